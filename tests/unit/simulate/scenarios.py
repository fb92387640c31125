"""Small scenarios as files: two services, four nodes, four days at six hours, of which two are judged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from multisched.config.document import ConfigError
from multisched.simulate.recorded_services import RecordedServices
from multisched.simulate.scenario import Scenario
from multisched.simulate.simulation_file import load_simulation

BEGIN = datetime(2026, 1, 5)
STEP = timedelta(hours=6)
STEPS = 16
Line = tuple[str, str, str, str]
HEADER = "timestamp,service,dimension,value"


def at(step: int) -> str:
    return (BEGIN + step * STEP).isoformat()


def usage_lines(services: Sequence[str] = ("web", "db"), dimensions: Sequence[str] = ("cpu", "log")) -> list[Line]:
    """A use that differs from service to service, dimension to dimension and step to step."""
    return [
        (at(step), service, dimension, f"{(s + 1) * (d + 1) * (1 + (step + s) % 4):.1f}")
        for s, service in enumerate(services)
        for d, dimension in enumerate(dimensions)
        for step in range(STEPS)
    ]


def fields(**changes: Any) -> dict[str, Any]:
    """A scenario file as plain data; None leaves a field out."""
    plain: dict[str, Any] = {
        "apiVersion": "multisched.io/v1alpha1",
        "kind": "Scenario",
        "usage": {"files": ["usage.csv"]},
        "services": {"list": [{"name": "web", "replicas": 4, "requests": {"cpu": 1}}, {"name": "db", "replicas": 2}]},
        "nodes": [{"name": "node", "count": 4, "allocatable": {"cpu": 4, "memory": "8Gi"}, "capacity": {"log": 40}}],
        "known": {"until": "day 2"},
        "judged": {"from": "day 3", "to": "day 4"},
        "seeds": 2,
    }
    plain |= changes
    return {key: value for key, value in plain.items() if value is not None}


def write(folder: Path, *, lines: Sequence[Line] | None = None, header: str = HEADER, **changes: Any) -> Path:
    """The scenario and its usage; its path."""
    rows = [",".join(line) for line in (usage_lines() if lines is None else lines)]
    (folder / "usage.csv").write_text("\n".join([header, *rows]) + "\n")
    path = folder / "scenario.yaml"
    unshared = json.loads(json.dumps(fields(**changes)))  # YAML would write what is shared as an anchor
    path.write_text(yaml.safe_dump(unshared, sort_keys=False))
    return path


def load_scenario(path: Path) -> Scenario:
    """A scenario of recorded services."""
    simulation = load_simulation(path)
    assert isinstance(simulation, RecordedServices)
    return simulation.scenario


def refusals(path: Path) -> list[str]:
    """What is wrong with a scenario, each sentence with the last part of its file's name only."""
    try:
        load_scenario(path)
    except ConfigError as error:
        return [str(problem).removeprefix(f"{path.parent}/") for problem in error.problems]
    return []
