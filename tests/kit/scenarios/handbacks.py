"""Scenarios of room that comes back although no pod has ended there.

A bind reaches nobody, a nomination is not needed any more, or a pod is turned away at Permit. Somebody waits for
exactly that room.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from tests.kit.disruptions.run_context import RunContext
from tests.kit.plugins.permit_holds import HELD
from tests.kit.scenarios.rooms import (
    BED,
    TOLERATED,
    Rooms,
    Sleeper,
    asleep,
    check_awake,
    fall_asleep,
    leader,
    wake_up,
)
from tests.kit.scenarios.steps import Scenarios, bound_pods, named, nominated, place
from tests.kit.world.labels import HOSTNAME

HALF_MILLI: Final = 2_500
"""CPU of more than half a room."""
FILLED_MILLI, PRESSING_MILLI, MODEST_MILLI = 2_500, 2_700, 1_400
"""Of a room: the third has place beside the first, and not beside the second."""
LATE_S: Final = 4.0
"""Longer than a slow bind is still on its way: its answer comes before the watch tells why."""
ENDED_S: Final = 1.0
"""For what ends inside the program."""

Loss = Callable[[Rooms, str], Awaitable[None]]


async def _lose_bind(context: RunContext, *, lose: Loss) -> bool:
    """A pod whose bind is on its way is lost, and the answer to the bind is the first word of it."""
    rooms = Rooms(context)
    node = await rooms.room("lost")
    slow = context.faults.slow_nodes
    slow.add(node)
    try:
        going = await rooms.pod("lost", milli=HALF_MILLI)
        await context.until(lambda: bool(context.replicas.on_their_way([going])))
        sleeper = Sleeper(await rooms.pod("lost", milli=HALF_MILLI), "the end of a bind", partial(lose, rooms, going))
        await fall_asleep(context, [sleeper])
        for process in context.replicas.running:
            process.transport.pods_late_until_s = context.now_s() + LATE_S
        await wake_up(context, sleeper.wake, [sleeper])
    finally:
        slow.discard(node)
    await context.until(lambda: bool(bound_pods(context, [sleeper.pod])))
    return True


async def _delete(rooms: Rooms, name: str) -> None:
    await rooms.context.world.user.delete_named(name)


async def _bind_elsewhere(rooms: Rooms, name: str) -> None:
    node = await rooms.room("elsewhere")
    for pod in named(rooms.context, [name]):
        await rooms.context.world.strangers.bind(pod, node)


async def _nominate_elsewhere(context: RunContext) -> bool:
    """A pod that was promised a room finds another one before its victim has gone. One that is as urgent has place beside the
    victim, and none beside the promise."""
    rooms = Rooms(context)
    first, second = await rooms.room("promised"), await rooms.room("promised", unschedulable=True)
    victim = await rooms.holder(first, milli=FILLED_MILLI)
    pressing = await rooms.pod("promised", milli=PRESSING_MILLI, is_urgent=True)
    await context.until(lambda: nominated(context, pressing))
    here = {"nodeSelector": {HOSTNAME: first, BED: "promised"}}
    waiting = Sleeper(await rooms.pod("", here, milli=MODEST_MILLI, is_urgent=True), "a promise that ended", _nothing)
    await context.until(lambda: asleep(context, waiting.pod), ENDED_S)
    before = leader(context)
    await rooms.patch(second, spec={"unschedulable": None})
    await context.until(lambda: bool(bound_pods(context, [pressing])), 2 * ENDED_S)
    is_elsewhere = any(pod.node == second for pod in bound_pods(context, [pressing]))

    def is_alone() -> bool:
        """Nothing else has helped yet."""
        return any(pod.uid == victim for pod in context.world.pods())

    await context.until(lambda: not asleep(context, waiting.pod) or not is_alone(), ENDED_S)
    if is_elsewhere and is_alone():
        await check_awake(context, [waiting], before)
    await context.until(lambda: bool(bound_pods(context, [waiting.pod])))
    return True


async def _nothing() -> None: ...


async def _turn_away(context: RunContext) -> bool:
    """A pod that is held at Permit is displaced by a more urgent one, and later there is room elsewhere."""
    if context.setting.is_shipped:
        return await _nominate_elsewhere(context)  # nobody is held at Permit there
    rooms = Rooms(context)
    first, second = await rooms.room("held"), await rooms.room("held")
    full = await rooms.holder(second, milli=HALF_MILLI)
    held = f"{HELD}{rooms.mark}"
    spec = {"tolerations": [TOLERATED], "nodeSelector": {BED: "held"}}
    await place(context, "", HALF_MILLI, spec=spec, name=held)
    await context.until(lambda: bool(context.replicas.on_their_way([held])))
    urgent = {"tolerations": [TOLERATED], "nodeSelector": {HOSTNAME: first}}
    pressing = await place(context, "", HALF_MILLI, spec=urgent, is_urgent=True)
    await context.until(lambda: bool(bound_pods(context, [pressing])))
    sleeper = Sleeper(held, "room elsewhere, after it was displaced", partial(rooms.send_off, full))
    await fall_asleep(context, [sleeper])
    await wake_up(context, sleeper.wake, [sleeper])
    await context.until(lambda: bool(bound_pods(context, [held])))
    return True


SCENARIOS: Final[Scenarios] = (
    ("bind to a pod that is gone", partial(_lose_bind, lose=_delete)),
    ("bind to a pod that is elsewhere", partial(_lose_bind, lose=_bind_elsewhere)),
    ("promise kept elsewhere", _nominate_elsewhere),
    ("held pod displaced", _turn_away),
)
