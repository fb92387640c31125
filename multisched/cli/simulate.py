"""`multisched simulate`: reads the scenario, runs every policy with every seed, and reports the results.

Runs are independent and are distributed over processes; the report does not depend on the distribution.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from multisched.observe.tables import as_document
from multisched.shell.garbage import collect_seldom
from multisched.simulate.fits import FitCache
from multisched.simulate.html_report import html_of
from multisched.simulate.report import Outcome, document_of, run_one, table_of
from multisched.simulate.scenario import Scenario
from multisched.simulate.scenario_file import load_scenario

JOBS_MAX: Final = 64

_given: list[tuple[Scenario, FitCache]] = []
"""Set once per worker process, because scenarios are large."""


def simulate(path: Path, output: str, jobs: int | None) -> tuple[str, bool]:
    """Returns the report as `table`, `json` or `html`, and whether every pod was placed and no plugin failed.

    Raises ConfigError for an invalid scenario, PluginSetupError for a plugin that cannot be built.
    """
    scenario = load_scenario(path)
    wanted = [(policy, seed) for policy in range(len(scenario.policies)) for seed in scenario.seeds]
    found = list(_outcomes(scenario, wanted, min(jobs or os.cpu_count() or 1, len(wanted))))
    outcomes: dict[str, list[Outcome]] = {policy.name: [] for policy in scenario.policies}
    for (policy, _), outcome in zip(wanted, found, strict=True):
        outcomes[scenario.policies[policy].name].append(outcome)
    document = document_of(scenario, outcomes)
    is_whole = all(outcome.is_whole for outcome in found)
    if output == "html":
        return html_of(document, outcomes), is_whole
    return (table_of(document) if output == "table" else as_document(document, output)), is_whole


def _outcomes(scenario: Scenario, wanted: list[tuple[int, int]], jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        before = logging.root.manager.disable
        _begin(scenario)
        try:
            yield from map(_one, wanted)
        finally:
            _given.clear()
            logging.disable(before)
        return
    with ProcessPoolExecutor(jobs, initializer=_begin, initargs=(scenario,)) as pool:
        yield from pool.map(_one, wanted)


def _begin(scenario: Scenario) -> None:
    """Prepares a process. Disables logging, because every run would log the same warnings."""
    logging.disable(logging.ERROR)
    collect_seldom()
    _given[:] = [(scenario, FitCache(scenario))]


def _one(wanted: tuple[int, int]) -> Outcome:
    ((scenario, fits),) = _given
    policy, seed = wanted
    return run_one(scenario, scenario.policies[policy], seed, fits)
