"""The last part of a run, after all arrivals and disruptions: single events without any other that could help.

These are a deletion that no watch delivers, a pod at Permit while room becomes free, and quarantined pods whose policy is lifted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from tests.kit.disruptions.pods import may_be_deleted_unseen
from tests.kit.disruptions.run_context import RunContext
from tests.kit.plugins.permit_holds import HELD
from tests.kit.scenarios.catalog import run_scenario
from tests.kit.world.policies import OWNER

QUIET_S = 3.0
"""Time without events before the last pod, for which a single event occurs while Permit holds it."""
OBSERVED_S = 0.3
COME_BACK_S = 8.0
"""Time within which it is tried again: held for 2 s, then backoff of 1 s."""
QUARANTINED_MAX_S = 60.0
"""A new leader may have to take over first; then five attempts with backoffs of 1, 2, 4 and 8 s."""
WITHOUT_EVENT = 0.25
"""Share of runs in which the audit must find a deletion that no watch delivered, which takes up to two of its periods."""

NotQuarantined = Callable[[], Sequence[str]]
"""Returns keys of pods that the API server always refuses and that a leader may still try."""


async def end(context: RunContext, struck: Counter[str], not_quarantined: NotQuarantined) -> None:
    if context.rng.random() < WITHOUT_EVENT:  # no other list can help
        struck["pod deleted unheard"] += await _delete_without_event(context)
    await _wait_until_quarantined(context, not_quarantined)
    await run_scenario(context, struck)
    if not context.setting.is_shipped:
        await _free_room_while_held(context)
    await _fix_refused(context, struck, not_quarantined)


async def _delete_without_event(context: RunContext) -> bool:
    """Deletes a pod without any watch event: only the audit can detect that."""
    pod = context.any_pod(may_be_deleted_unseen)
    if pod is None:
        return False
    context.faults.undelivered_pods.add(pod.name)
    await context.world.user.delete_pod(pod)
    await asyncio.sleep(1.0)
    context.faults.undelivered_pods.discard(pod.name)
    return True


async def _fix_refused(context: RunContext, struck: Counter[str], not_quarantined: NotQuarantined) -> None:
    """Waits until refused pods are quarantined, then lifts the reasons: only these events can requeue the pods (I3)."""
    await _wait_until_quarantined(context, not_quarantined)
    for pod in context.world.pods():
        if context.bind_checker.policies.policy_of(pod.name) == OWNER:
            struck["refused pod mended"] += await context.world.comply_with_policy(pod)
    await context.world.trust_namespace()
    struck["namespace trusted"] += 1


async def _wait_until_quarantined(context: RunContext, not_quarantined: NotQuarantined) -> None:
    """Waits until all pods that the API server refuses are quarantined: until then each attempt releases room, which is an
    event.
    """
    context.faults.is_on = False
    until_s = context.now_s() + QUARANTINED_MAX_S
    while context.now_s() < until_s and not_quarantined():  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(2.0)


async def _free_room_while_held(context: RunContext) -> None:
    """Frees room elsewhere while a pod is held at Permit; nothing happens afterwards.

    The event during its attempt must requeue it (I3).
    """
    name = f"{HELD}last"
    context.faults.is_on = False
    await asyncio.sleep(QUIET_S)
    leaders = [p for p in context.replicas.running if p.program.router.workers()[0].is_leading]
    await context.world.add_pod(name, scheduler="forecast-scheduler")
    await asyncio.sleep(1.0)
    held = next((pod.uid for pod in context.bind_checker.pods().values() if pod.name == name), "")
    leaders = [p for p in leaders if p.program.cache.is_assumed(held)]
    freed = context.any_pod(lambda pod: bool(pod.node) and not pod.is_terminal)
    if freed is None or not leaders:
        return
    await context.world.user.delete_pod(freed)
    await asyncio.sleep(OBSERVED_S)
    has_heard = all(p.program.cache.placed(freed.uid) is None for p in leaders)
    await asyncio.sleep(COME_BACK_S)
    is_undisturbed = (
        has_heard and all(p in context.replicas.running for p in leaders) and not context.setting.has_faulty_plugin
    )
    if is_undisturbed and any(pod.name == name for pod in context.bind_checker.unbound_feasible()):
        context.bind_checker.report_violation(f"I3: {name} missed the event of its attempt")
