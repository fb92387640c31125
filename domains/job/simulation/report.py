"""The workload `jobDay`: plays policies on a day of jobs with deadlines, and reports misses, coverage, cost and waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import msgspec
import numpy as np

from domains.job.simulation.hidden import HOUR_S, drawn, least_priced_work_s
from domains.job.simulation.run import CHEAPEST, PRICE, DayRun, EventLog
from domains.job.simulation.section import JobDayFile, JobDaySection, problem_of
from multisched.config.document import Document
from multisched.framework.points import QueueSortPlugin
from multisched.simulate.bare_core import BareCore
from multisched.simulate.report import Plot, Report, Table, rounded, verdict_of
from multisched.simulate.scenario import Policy
from multisched.simulate.scenario_schema import API_VERSION

KIND: Final = "JobDayReport"
FIFO, DEADLINE = "fifo", "deadline"
POLICIES: Final = (FIFO, DEADLINE)
FIGURES: Final = (
    "missedPercent",
    "p90Coverage",
    "cost",
    "costOverBound",
    "waitP50S",
    "waitP99S",
    "slotsUsed",
    "pricedJobs",
)
LEGEND: Final = (
    "missed: jobs that end after their deadline, in percent; a schedule in which none does exists; coverage: share of runs within the P90 "
    "predicted at their bind; cost: of the priced unit; over bound: over what it costs at least, with run times known before; "
    "wait: seconds from creation to bind; used: share of the time of own slots"
)


class DayOutcome(msgspec.Struct, frozen=True):
    """One run."""

    seed: int
    jobs: int
    missed: int
    judged: int
    covered: int
    cost: float
    bound: float
    """A lower bound of the cost of the priced unit."""
    wait_p50_s: float
    wait_p99_s: float
    slots_used: float
    priced_jobs: int
    lines: Mapping[str, tuple[float, ...]]
    """Plotted, evenly spaced over the day."""
    events: tuple[bytes, ...]
    failures: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        return not self.failures


class DaySimulation(msgspec.Struct, frozen=True):
    """Implements `simulate.contribution.Simulation` and `RecordingSimulation`."""

    name: str
    policies: tuple[Policy, ...]
    seeds: tuple[int, ...]
    section: JobDaySection
    is_recording: bool = False

    def recording(self) -> DaySimulation:
        return msgspec.structs.replace(self, is_recording=True)

    def events(self, outcomes: Mapping[str, Sequence[DayOutcome]]) -> Iterator[bytes]:
        """Yields the lines of the event log, run by run."""
        return (line for runs in outcomes.values() for run in runs for line in run.events)

    def runner(self) -> Callable[[Policy, int], DayOutcome]:
        return partial(play, self.section, is_recording=self.is_recording)

    def report(self, outcomes: Mapping[str, Sequence[DayOutcome]]) -> Report:
        section = self.section
        policies = [{"name": name, **_figures(runs)} for name, runs in outcomes.items()]
        document = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "scenario": self.name,
            "slots": section.slots,
            "fullShare": section.full_share,
            "hours": section.hours,
            "seeds": list(self.seeds),
            "policies": policies,
        }
        head = ("policy", "missed %", "coverage", "cost", "over bound", "wait p50", "wait p99", "used", "priced jobs")
        rows = tuple((one["name"], *(_cell(one[name]) for name in FIGURES)) for one in policies)
        intro = (
            f"{self.name}: {section.slots} own slots, {section.full_share:g} of the hidden schedule full, {section.hours} h;"
            f" means over {len(self.seeds)} seeds"
        )
        table = Table(intro, head, rows, LEGEND)
        notes = tuple(dict.fromkeys(failure for runs in outcomes.values() for run in runs for failure in run.failures))
        missed = {str(one["name"]): float(one["missedPercent"]) for one in policies}
        verdict = verdict_of("share of jobs that miss their deadline", missed, " %")
        return Report(self.name, document, tuple(outcomes), table, table, verdict, notes, self._plots(outcomes))

    def _plots(self, outcomes: Mapping[str, Sequence[DayOutcome]]) -> Mapping[str, Sequence[Plot]]:
        hours = self.section.hours
        labels = [f"{hour} h" for hour in range(0, hours, max(1, round(hours / 8)))]

        def plot(title: str, line: str, unit: str, marks: Sequence[float] = ()) -> Plot:
            lines = {
                name: np.mean([run.lines[line] for run in runs], axis=0).tolist() for name, runs in outcomes.items()
            }
            return Plot(title, lines, labels, marks, unit, "time since the start")

        found = {
            "queue": [
                plot("Jobs that wait", "waiting", "jobs"),
                plot("Own slots in use", "in use", "slots", (float(self.section.slots),)),
            ],
            "deadlines": [plot("Missed deadlines so far", "missed", "jobs")],
        }
        if self.section.priced is not None:
            found["cost"] = [plot("Cost so far", "cost", "cost")]
        return found


def play(section: JobDaySection, policy: Policy, seed: int, *, is_recording: bool = False) -> DayOutcome:
    """Plays one seed under one policy. Deterministic in its arguments."""
    core = BareCore(policy, seed)
    sort = next(one for one in core.plugins() if isinstance(one, QueueSortPlugin))
    instance = drawn(section, seed)
    log = EventLog(policy.name, seed, is_wanted=is_recording)
    run = DayRun(section, instance, policy.name, sort, log)
    run.run()
    per_s = 0.0 if section.priced is None else section.priced.price_per_hour / HOUR_S
    samples = np.array(run.samples)
    lines = dict(zip(("waiting", "in use", "missed", "cost"), samples.T, strict=True))
    lines["cost"] = lines["cost"] * per_s * HOUR_S
    p50_s, p99_s = np.quantile(run.waits_s, (0.5, 0.99)).tolist()
    return DayOutcome(
        seed,
        len(instance.jobs),
        len(run.late_s),
        run.judged,
        run.covered,
        run.priced_s * per_s,
        least_priced_work_s(instance, section.slots) * per_s,
        p50_s,
        p99_s,
        run.busy_s / (section.slots * section.hours * HOUR_S),
        run.priced_jobs,
        {name: tuple(values.tolist()) for name, values in lines.items()},
        tuple(log.lines),
        core.failures(),
    )


def _figures(runs: Sequence[DayOutcome]) -> dict[str, Any]:
    found = [_of_run(run) for run in runs]
    means = {name: _mean([one[name] for one in found]) for name in FIGURES}
    return {**means, "runs": found}


def _of_run(run: DayOutcome) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "jobs": run.jobs,
        "missed": run.missed,
        "missedPercent": rounded(100.0 * run.missed / run.jobs),
        "p90Coverage": rounded(run.covered / run.judged) if run.judged else None,
        "cost": rounded(run.cost),
        "bound": rounded(run.bound),
        "costOverBound": rounded(run.cost / run.bound) if run.cost and run.bound > 0.0 else None,
        "waitP50S": rounded(run.wait_p50_s),
        "waitP99S": rounded(run.wait_p99_s),
        "slotsUsed": rounded(run.slots_used),
        "pricedJobs": run.priced_jobs,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return rounded(fmean(known)) if known else None


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def read_job_day(document: Document, file: JobDayFile, policies: tuple[Policy, ...], path: Path) -> DaySimulation:
    """Reads a validated scenario with `jobDay`; adds problems to the document."""
    section = file.job_day
    problem = problem_of(section)
    if problem is not None:
        document.add(("jobDay", *problem[0]), problem[1])
    for number, policy in enumerate(policies):
        if section.priced is None and policy.name in (PRICE, CHEAPEST):
            text = f"policy {policy.name!r} uses a priced unit, which jobDay.priced describes; write it"
            document.add(("policies", number), text)
    return DaySimulation(file.name or path.stem, policies, file.seeds, section)
