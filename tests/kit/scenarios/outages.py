"""Scenarios of faults that are not a pod's own: no pod is quarantined or missed because of them."""

from __future__ import annotations

from itertools import repeat
from typing import Final

from multisched.queueing.quarantine import EQUAL_REFUSALS_MAX
from tests.kit.disruptions.run_context import RunContext
from tests.kit.scenarios.steps import (
    Scenarios,
    are_bound,
    bound_pods,
    create_pod,
    is_led_by,
    leading_queues,
    several,
    steady_leader,
)
from tests.kit.wire.faults import FORBIDDEN

DENIED_S: Final = 20.0
"""Time in which a pod is tried EQUAL_REFUSALS_MAX times: it backs off for 1, 2, 4 and 8 s between attempts."""
REOPENED_S: Final = 35.0
"""Time in which a watch is opened again: it may have failed before, and backs off for half a minute at most."""


async def _deny_binds(context: RunContext) -> bool:
    """Denies binds to the program for a while. A pod is not quarantined for that, however often it happens."""
    name, answers = f"denied-{context.mark()}", context.faults.bind_answers
    answers[name] = repeat(FORBIDDEN)
    try:
        await create_pod(context, "", 10, name=name)
        await context.until(
            lambda: _refusals(context, name) >= EQUAL_REFUSALS_MAX or _is_quarantined(context, name), DENIED_S
        )
        if _is_quarantined(context, name):
            context.bind_checker.report_violation(f"I3: {name} is set aside, for which it was not we who were refused")
    finally:
        del answers[name]
    await context.world.user.delete_named(name)
    return True


def _refusals(context: RunContext, name: str) -> int:
    return max(
        (e.attempts for queue in leading_queues(context) for e in queue.entries() if e.pod.name == name), default=0
    )


def _is_quarantined(context: RunContext, name: str) -> bool:
    return any(
        entry.is_quarantined for queue in leading_queues(context) for entry in queue.entries() if entry.pod.name == name
    )


async def _truncate_event(context: RunContext) -> bool:
    """Truncates the watch event of a pod without ending the watch. A list has to deliver the pod."""
    name, before = f"short-{context.mark()}", steady_leader(context)
    for process in context.replicas.running:
        process.transport.truncated_pods.add(name)
    await create_pod(context, "", 10, name=name)
    second = await create_pod(context, "", 10)
    await context.until(lambda: are_bound(context, [name, second]), REOPENED_S)
    if is_led_by(context, before) and bound_pods(context, [second]) and not bound_pods(context, [name]):
        context.bind_checker.report_violation(f"I3: {name} is not heard of, whose line was cut short")
    for one in (name, second):
        await context.world.user.delete_named(one)
    return True


OUTAGES: Final[Scenarios] = (("rights lost", _deny_binds), ("line cut short", _truncate_event))
SCENARIOS: Final[Scenarios] = (("rights lost, lines cut short", several(OUTAGES, len(OUTAGES))),)
