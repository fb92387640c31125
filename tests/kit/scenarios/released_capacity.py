"""Scenarios of capacity that is released although no pod has ended.

A bind fails, a nomination is no longer needed, or a pod is rejected at Permit. Another pod waits for exactly this capacity.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from tests.kit.disruptions.run_context import RunContext
from tests.kit.plugins.permit_holds import HELD
from tests.kit.scenarios.dedicated_nodes import (
    GROUP_LABEL,
    TOLERATED,
    DedicatedNodes,
    ParkedPod,
    check_requeue,
    check_requeued,
    is_parked,
    leader,
    wait_until_parked,
)
from tests.kit.scenarios.steps import Scenarios, bound_pods, create_pod, is_nominated, pods_named
from tests.kit.world.labels import HOSTNAME

HALF_MILLI: Final = 2_500
"""CPU of more than half a dedicated node."""
FILLED_MILLI, PRESSING_MILLI, MODEST_MILLI = 2_500, 2_700, 1_400
"""CPU of pods on a dedicated node: the third fits together with the first, and not with the second."""
LATE_S: Final = 4.0
"""Longer than a slow bind takes: its response arrives before the watch shows the reason."""
ENDED_S: Final = 1.0
"""Time for changes inside the program."""

Loss = Callable[[DedicatedNodes, str], Awaitable[None]]


async def _lose_bind(context: RunContext, *, lose: Loss) -> bool:
    """Removes or binds a pod while its bind is in flight, so that the response to the bind is the first news of it."""
    dedicated = DedicatedNodes(context)
    node = await dedicated.add_node("lost")
    slow = context.faults.slow_nodes
    slow.add(node)
    try:
        going = await dedicated.add_pod("lost", milli=HALF_MILLI)
        await context.until(lambda: bool(context.replicas.assumed_pods([going])))
        waiting_pod = ParkedPod(
            await dedicated.add_pod("lost", milli=HALF_MILLI), "the end of a bind", partial(lose, dedicated, going)
        )
        await wait_until_parked(context, [waiting_pod])
        for process in context.replicas.running:
            process.transport.pods_late_until_s = context.now_s() + LATE_S
        await check_requeue(context, waiting_pod.event, [waiting_pod])
    finally:
        slow.discard(node)
    await context.until(lambda: bool(bound_pods(context, [waiting_pod.pod])))
    return True


async def _delete(dedicated: DedicatedNodes, name: str) -> None:
    await dedicated.context.world.user.delete_named(name)


async def _bind_elsewhere(dedicated: DedicatedNodes, name: str) -> None:
    node = await dedicated.add_node("elsewhere")
    for pod in pods_named(dedicated.context, [name]):
        await dedicated.context.world.external_actors.bind(pod, node)


async def _nominate_elsewhere(context: RunContext) -> bool:
    """Frees another node for a nominated pod before its victim has ended. A pod of the same priority fits together with the victim,
    and not with the nominated pod.
    """
    dedicated = DedicatedNodes(context)
    first, second = await dedicated.add_node("promised"), await dedicated.add_node("promised", unschedulable=True)
    victim = await dedicated.add_placed_pod(first, milli=FILLED_MILLI)
    urgent_pod = await dedicated.add_pod("promised", milli=PRESSING_MILLI, is_urgent=True)
    await context.until(lambda: is_nominated(context, urgent_pod))
    here = {"nodeSelector": {HOSTNAME: first, GROUP_LABEL: "promised"}}
    waiting = ParkedPod(
        await dedicated.add_pod("", here, milli=MODEST_MILLI, is_urgent=True), "a promise that ended", _nothing
    )
    await context.until(lambda: is_parked(context, waiting.pod), ENDED_S)
    before = leader(context)
    await dedicated.patch(second, spec={"unschedulable": None})
    await context.until(lambda: bool(bound_pods(context, [urgent_pod])), 2 * ENDED_S)
    is_elsewhere = any(pod.node == second for pod in bound_pods(context, [urgent_pod]))

    def is_alone() -> bool:
        """Reports whether the victim still exists, so that nothing else can have helped."""
        return any(pod.uid == victim for pod in context.world.pods())

    await context.until(lambda: not is_parked(context, waiting.pod) or not is_alone(), ENDED_S)
    if is_elsewhere and is_alone():
        await check_requeued(context, [waiting], before)
    await context.until(lambda: bool(bound_pods(context, [waiting.pod])))
    return True


async def _nothing() -> None: ...


async def _displace_at_permit(context: RunContext) -> bool:
    """Displaces a pod at Permit by a more urgent one, and frees room for it elsewhere later."""
    if context.setting.is_shipped:
        return await _nominate_elsewhere(context)  # no pod is held at Permit there
    dedicated = DedicatedNodes(context)
    first, second = await dedicated.add_node("held"), await dedicated.add_node("held")
    full = await dedicated.add_placed_pod(second, milli=HALF_MILLI)
    held = f"{HELD}{dedicated.mark}"
    spec = {"tolerations": [TOLERATED], "nodeSelector": {GROUP_LABEL: "held"}}
    await create_pod(context, "", HALF_MILLI, spec=spec, name=held)
    await context.until(lambda: bool(context.replicas.assumed_pods([held])))
    urgent = {"tolerations": [TOLERATED], "nodeSelector": {HOSTNAME: first}}
    urgent_pod = await create_pod(context, "", HALF_MILLI, spec=urgent, is_urgent=True)
    await context.until(lambda: bool(bound_pods(context, [urgent_pod])))
    waiting_pod = ParkedPod(held, "room elsewhere, after it was displaced", partial(dedicated.delete_pod, full))
    await wait_until_parked(context, [waiting_pod])
    await check_requeue(context, waiting_pod.event, [waiting_pod])
    await context.until(lambda: bool(bound_pods(context, [held])))
    return True


SCENARIOS: Final[Scenarios] = (
    ("bind to a pod that is gone", partial(_lose_bind, lose=_delete)),
    ("bind to a pod that is elsewhere", partial(_lose_bind, lose=_bind_elsewhere)),
    ("promise kept elsewhere", _nominate_elsewhere),
    ("held pod displaced", _displace_at_permit),
)
