"""Reads a scenario file of any workload. Raises ConfigError with all problems: file, line, field and fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from multisched.config import loading
from multisched.config.document import ConfigError, Document, read_document
from multisched.config.structure import validated
from multisched.simulate.contribution import Simulation, Workload, contributions
from multisched.simulate.policies import BUILT_IN, read_entries, read_policies, sections
from multisched.simulate.scenario_file import read_recorded
from multisched.simulate.scenario_schema import PolicyEntry, ScenarioFile


def load_simulation(path: Path) -> Simulation:
    """Reads and validates a scenario file and all files that it names."""
    document = read_document(
        loading.read_text(path), str(path), if_empty="; config/examples has scenarios to start from"
    )
    plain: Any = document.data if isinstance(document.data, dict) else {}
    of_domains = {key: workload for one in contributions() for key, workload in one.workloads.items()}
    selected = next((workload for key, workload in of_domains.items() if key in plain), None)
    workload = selected or _recorded_services()
    _name_policies(plain, workload.default_policies)
    added = sections() if selected is None else {}
    entries = read_entries(document, added)
    file = validated(document, workload.file)
    _raise_problems(document)
    assert file is not None, "it has no problems"
    policies = read_policies(document, cast(list[PolicyEntry], entries), added, path.parent)
    if len(set(file.seeds)) < len(file.seeds):
        document.add(("seeds",), "names a seed twice; remove one")
    simulation = workload.read(document, file, policies, path)
    _raise_problems(document)
    return simulation


def _recorded_services() -> Workload:
    """Returns the workload of a file that selects no other workload."""
    added = (name for one in contributions() for name in one.default_policies)
    return Workload(ScenarioFile, (*BUILT_IN, *added), read_recorded)


def _name_policies(plain: dict[str, Any], default: tuple[str, ...]) -> None:
    """Replaces a policy given as a bare name by an entry with that name; adds the default policies to a file without any."""
    policies = plain.setdefault("policies", list(default))
    if isinstance(policies, list):
        policies[:] = [{"name": entry} if isinstance(entry, str) else entry for entry in policies]


def _raise_problems(document: Document) -> None:
    if document.problems:
        raise ConfigError(document.problems)
