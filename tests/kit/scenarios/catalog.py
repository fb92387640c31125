"""Which scenario ends a run: each is named where it is written."""

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
"""One at least of the configuration as it ships (`Setting.is_shipped`)."""
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


async def play_one(context: RunContext, struck: Counter[str]) -> None:
    """The scenarios take turns, three runs each: a hundred runs meet every one.

    None is played where a faulty ledger may fail at its pods: they would wait for the next audit.
    """
    if context.setting.has_faulty_plugin:
        return
    name, action = SCENARIOS[context.seed // RUNS_EACH % len(SCENARIOS)]
    first = await create_pod(context, "", 10)
    await context.until(lambda: bool(bound_pods(context, [first])), LED_MAX_S)
    if bound_pods(context, [first]):
        struck[name] += await action(context)
