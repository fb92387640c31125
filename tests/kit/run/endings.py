"""What happens when all arrivals and disruptions are over, and nothing else comes to help.

Here single events are the only ones. They are a deletion that no watch showed, a pod held while room comes free, and a
policy lifted from quarantined pods.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from tests.kit.disruptions.pods import may_be_deleted_unseen
from tests.kit.disruptions.run_context import RunContext
from tests.kit.plugins.permit_holds import HELD
from tests.kit.scenarios.catalog import play_one
from tests.kit.world.policies import OWNER

QUIET_S = 3.0
"""Before the last pod, about which nothing happens but one event while Permit holds it."""
HEARD_S = 0.3
COME_BACK_S = 8.0
"""Within this it is back: held for 2 s, then backing off for 1 s."""
SET_ASIDE_MAX_S = 60.0
"""A new leader may have to come first, and then five attempts with their backoffs (1, 2, 4 and 8 s)."""
UNHEARD = 0.25
"""Of all runs: in these the audit must find a deletion that no watch showed, which takes up to two of its periods."""

NotQuarantined = Callable[[], Sequence[str]]
"""Keys of pods that the API server always refuses, and that some leader may try all the same."""


async def end(context: RunContext, struck: Counter[str], not_quarantined: NotQuarantined) -> None:
    if context.rng.random() < UNHEARD:  # where no other list comes to help
        struck["pod deleted unheard"] += await _delete_unheard(context)
    await _wait_until_quarantined(context, not_quarantined)
    await play_one(context, struck)
    if not context.setting.is_shipped:
        await _free_room_while_held(context)
    await _fix_refused(context, struck, not_quarantined)


async def _delete_unheard(context: RunContext) -> bool:
    """Every open watch loses its deletion without a word: only the audit can find out."""
    pod = context.any_pod(may_be_deleted_unseen)
    if pod is None:
        return False
    context.faults.undelivered_pods.add(pod.name)
    await context.world.user.delete_pod(pod)
    await asyncio.sleep(1.0)
    context.faults.undelivered_pods.discard(pod.name)
    return True


async def _fix_refused(context: RunContext, struck: Counter[str], not_quarantined: NotQuarantined) -> None:
    """Once what the API server refuses is set aside, so that only the event that mends it can bring it back (I3)."""
    await _wait_until_quarantined(context, not_quarantined)
    for pod in context.world.pods():
        if context.bind_checker.policies.policy_of(pod.name) == OWNER:
            struck["refused pod mended"] += await context.world.comply_with_policy(pod)
    await context.world.trust_namespace()
    struck["namespace trusted"] += 1


async def _wait_until_quarantined(context: RunContext, not_quarantined: NotQuarantined) -> None:
    """Waits until what the API server refuses is set aside: until then each attempt gives back room, which is news."""
    context.faults.is_on = False
    until_s = context.now_s() + SET_ASIDE_MAX_S
    while context.now_s() < until_s and not_quarantined():  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(2.0)


async def _free_room_while_held(context: RunContext) -> None:
    """A pod is held at Permit while room comes free elsewhere, and nothing happens after that.

    The event of its attempt must bring it back (I3).
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
    await asyncio.sleep(HEARD_S)
    has_heard = all(p.program.cache.placed(freed.uid) is None for p in leaders)
    await asyncio.sleep(COME_BACK_S)
    is_undisturbed = (
        has_heard and all(p in context.replicas.running for p in leaders) and not context.setting.has_faulty_plugin
    )
    if is_undisturbed and any(pod.name == name for pod in context.bind_checker.unbound_feasible()):
        context.bind_checker.complain(f"I3: {name} missed the event of its attempt")
