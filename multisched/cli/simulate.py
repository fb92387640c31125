"""`multisched simulate`: reads the scenario, runs every policy with every seed, and reports the results.

Runs are independent and are distributed over processes; the report does not depend on the distribution.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from multisched.config.document import ConfigError, Problem
from multisched.observe.tables import as_document
from multisched.shell.garbage import set_gc_thresholds
from multisched.simulate.contribution import Outcome, RecordingSimulation, Simulation
from multisched.simulate.html_report import html_of
from multisched.simulate.report import text_of
from multisched.simulate.scenario import Policy
from multisched.simulate.simulation_file import load_simulation

JOBS_MAX: Final = 64

_runner: list[Callable[[Policy, int], Outcome]] = []
"""Set once per worker process, because scenarios are large."""


def simulate(path: Path, output: str, jobs: int | None, events: Path | None = None) -> tuple[str, bool]:
    """Returns the report as `table`, `json` or `html`, and whether every run is whole. Writes the log of events to `events`.

    Raises ConfigError for an invalid scenario, or one whose workload has no log; PluginSetupError for a plugin that cannot be built;
    OSError if the log cannot be written.
    """
    simulation = load_simulation(path)
    recorded = None
    if events is not None:
        if not isinstance(simulation, RecordingSimulation):
            text = "its workload has no log of events; leave --events out"
            raise ConfigError([Problem(str(path), 1, 1, "", text)])
        events.write_bytes(b"")
        simulation = recorded = simulation.recording()
    wanted = [(policy, seed) for policy in simulation.policies for seed in simulation.seeds]
    found = list(_outcomes(simulation, wanted, min(jobs or os.cpu_count() or 1, len(wanted))))
    outcomes: dict[str, list[Outcome]] = {policy.name: [] for policy in simulation.policies}
    for (policy, _), outcome in zip(wanted, found, strict=True):
        outcomes[policy.name].append(outcome)
    if events is not None:
        assert isinstance(recorded, RecordingSimulation), "it records"
        with events.open("wb") as file:
            file.writelines(line + b"\n" for line in recorded.events(outcomes))
    report = simulation.report(outcomes)
    is_whole = all(outcome.is_whole for outcome in found)
    match output:
        case "html":
            return html_of(report), is_whole
        case "table":
            return text_of(report), is_whole
    return as_document(report.document, output), is_whole


def _outcomes(simulation: Simulation, wanted: list[tuple[Policy, int]], jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        before = logging.root.manager.disable
        _begin(simulation)
        try:
            yield from map(_run, wanted)
        finally:
            _runner.clear()
            logging.disable(before)
        return
    with ProcessPoolExecutor(jobs, initializer=_begin, initargs=(simulation,)) as pool:
        yield from pool.map(_run, wanted)


def _begin(simulation: Simulation) -> None:
    """Prepares a process. Disables logging, because every run would log the same warnings."""
    logging.disable(logging.ERROR)
    set_gc_thresholds()
    _runner[:] = [simulation.runner()]


def _run(wanted: tuple[Policy, int]) -> Outcome:
    (runner,) = _runner
    return runner(*wanted)
