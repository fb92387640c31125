"""Reads a scenario with `loanDay` and the files that it names."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from domains.job.simulation.loans.fleet import DAY_S, Fleet
from domains.job.simulation.loans.report import POLICIES, LoanSimulation
from domains.job.simulation.loans.run import LOOK_S
from domains.job.simulation.loans.section import LoanDayFile, LoanDaySection
from multisched.config.document import ConfigError, Document, Problem
from multisched.config.structure import nearest
from multisched.model.objects import CPU
from multisched.simulate.scenario import Policy, Service
from multisched.simulate.services_file import read_services
from multisched.simulate.usage_table import UsageTable, filled, read_usage

KNOWN_DAYS_MIN: Final = 2
"""With less, a forecast cannot distinguish hours."""
PODS_MAX: Final = 10_000


def read_loan_day(document: Document, file: LoanDayFile, policies: tuple[Policy, ...], path: Path) -> LoanSimulation:
    """Reads a validated scenario with `loanDay`; adds problems to the document. Raises ConfigError if nothing can be returned."""
    section = file.loan_day
    for number, policy in enumerate(policies):
        if policy.name not in POLICIES:
            text = f"{policy.name!r} is no policy of loanDay; write some of {', '.join(POLICIES)}"
            document.add(("policies", number), text, suggestion=nearest(policy.name, POLICIES))
    _check_times(document, section)
    of_files = list[Problem]()
    usage = read_usage([path.parent / name for name in section.usage.files], of_files)
    services = read_services(path.parent / section.services.file, of_files)
    document.problems += of_files
    fleet = None if usage is None or of_files else _fleet(document, section, usage, services)
    if fleet is None:
        raise ConfigError(document.problems)
    return LoanSimulation(file.name or path.stem, policies, file.seeds, section, fleet)


def _check_times(document: Document, section: LoanDaySection) -> None:
    for name, value_s in (("notice", section.returns.notice_s), ("grace", section.returns.grace_s)):
        if value_s % LOOK_S:
            text = f"{value_s:g} s is no multiple of {LOOK_S:.0f} s, the step of the simulation; write for instance 30s"
            document.add(("loanDay", "return", name), text)


def _fleet(document: Document, section: LoanDaySection, usage: UsageTable, services: list[Service]) -> Fleet | None:
    """Returns the fleet; None after adding problems."""
    if CPU not in usage.dimensions:
        text = f"the usage has no dimension cpu, which is lent; it has {', '.join(usage.dimensions)}"
        document.add(("loanDay", "usage", "files"), text)
        return None
    days = (usage.end_s - usage.first_day_s) // DAY_S
    if usage.start_s % DAY_S or usage.end_s % DAY_S:
        document.add(
            ("loanDay", "usage", "files"), "the samples do not cover whole days; begin and end at midnight UTC"
        )
        return None
    if days - section.judged_days < KNOWN_DAYS_MIN:
        text = (
            f"{section.judged_days} of the {days} days of the usage leave less than {KNOWN_DAYS_MIN} days to learn from"
        )
        document.add(("loanDay", "judgedDays"), f"{text}; write at most {max(1, days - KNOWN_DAYS_MIN)}")
        return None
    known = {name: number for number, name in enumerate(usage.services)}
    found = [known[one.name] for one in services if one.name in known]
    at = usage.dimensions.index(CPU)
    for one in services:
        if one.name not in known:
            text = f"the usage has no samples of the service {one.name!r}; add them"
            document.add(("loanDay", "services", "file"), text, suggestion=nearest(one.name, known))
        elif np.isnan(usage.values[known[one.name], at]).all():
            document.add(
                ("loanDay", "usage", "files"), f"{one.name!r} has no sample of cpu; write zeros if it uses none"
            )
    replicas = tuple(one.replicas for one in services)
    if not 1 <= sum(replicas) <= PODS_MAX:
        text = f"{sum(replicas)} replicas; from 1 to {PODS_MAX} are simulated"
        document.add(("loanDay", "services", "file"), text)
    if document.problems:
        return None
    values = filled(usage.values[found])[0][:, at]
    judged_s = usage.end_s - section.judged_days * DAY_S
    total = np.array(replicas) @ values[:, (judged_s - usage.start_s) // usage.step_s :]
    nodes = section.nodes
    milli = round(1000.0 * float(total.max()) * 100.0 / nodes.peak_percent / nodes.count)
    if milli < 1:
        text = "the services use nothing in the judged days, so nodes have no size"
        document.add(("loanDay", "usage", "files"), text)
        return None
    names = tuple(one.name for one in services)
    return Fleet(names, replicas, usage.start_s, usage.step_s, values, judged_s, nodes.count, milli)
