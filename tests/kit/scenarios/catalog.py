"""Chooses the scenario that ends a run."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tests.kit.disruptions.run_context import RunContext
from tests.kit.scenarios import (
    classes,
    external_changes,
    outages,
    preemptors,
    released_capacity,
    requeues,
    restarts,
    storage,
    waiting,
)
from tests.kit.scenarios.steps import LED_MAX_S, Scenarios, bound_pods, create_pod

RUNS_EACH: Final = 3
"""Consecutive seeds with the same scenario. At least one of them uses the default configuration (`Setting.is_shipped`)."""
SCENARIOS: Final[Scenarios] = (
    *waiting.SCENARIOS,
    *requeues.SCENARIOS,
    *released_capacity.SCENARIOS,
    *external_changes.SCENARIOS,
    *preemptors.SCENARIOS,
    *storage.SCENARIOS,
    *classes.SCENARIOS,
    *restarts.SCENARIOS,
    *classes.LATER,
    *outages.SCENARIOS,
)


async def run_scenario(context: RunContext, struck: Counter[str]) -> None:
    """Runs the scenario of the seed; each scenario is used in a hundred runs.

    None is run with the faulty plugin: its ledger may fail for the scenario's pods, which would wait for the next audit.
    """
    if context.setting.has_faulty_plugin:
        return
    name, action = SCENARIOS[context.seed // RUNS_EACH % len(SCENARIOS)]
    first = await create_pod(context, "", 10)
    await context.until(lambda: bool(bound_pods(context, [first])), LED_MAX_S)
    if bound_pods(context, [first]):
        struck[name] += await action(context)
