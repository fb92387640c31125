"""Scenarios of room that comes back although no pod has ended there.

A bind reaches nobody, a nomination is not needed any more, or a pod is turned away at Permit. Somebody waits for
exactly that room.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from tests.kit.disruptions.scene import Scene
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


async def _lose_bind(scene: Scene, *, lose: Loss) -> bool:
    """A pod whose bind is on its way is lost, and the answer to the bind is the first word of it."""
    rooms = Rooms(scene)
    node = await rooms.room("lost")
    slow = scene.faults.slow_nodes
    slow.add(node)
    try:
        going = await rooms.pod("lost", milli=HALF_MILLI)
        await scene.until(lambda: bool(scene.replicas.on_their_way([going])))
        sleeper = Sleeper(await rooms.pod("lost", milli=HALF_MILLI), "the end of a bind", partial(lose, rooms, going))
        await fall_asleep(scene, [sleeper])
        for process in scene.replicas.running:
            process.transport.pods_late_until_s = scene.now_s() + LATE_S
        await wake_up(scene, sleeper.wake, [sleeper])
    finally:
        slow.discard(node)
    await scene.until(lambda: bool(bound_pods(scene, [sleeper.pod])))
    return True


async def _delete(rooms: Rooms, name: str) -> None:
    await rooms.scene.world.user.delete_named(name)


async def _bind_elsewhere(rooms: Rooms, name: str) -> None:
    node = await rooms.room("elsewhere")
    for pod in named(rooms.scene, [name]):
        await rooms.scene.world.strangers.bind(pod, node)


async def _nominate_elsewhere(scene: Scene) -> bool:
    """A pod that was promised a room finds another one before its victim has gone. One that is as urgent has place beside the
    victim, and none beside the promise."""
    rooms = Rooms(scene)
    first, second = await rooms.room("promised"), await rooms.room("promised", unschedulable=True)
    victim = await rooms.holder(first, milli=FILLED_MILLI)
    pressing = await rooms.pod("promised", milli=PRESSING_MILLI, is_urgent=True)
    await scene.until(lambda: nominated(scene, pressing))
    here = {"nodeSelector": {HOSTNAME: first, BED: "promised"}}
    waiting = Sleeper(await rooms.pod("", here, milli=MODEST_MILLI, is_urgent=True), "a promise that ended", _nothing)
    await scene.until(lambda: asleep(scene, waiting.pod), ENDED_S)
    before = leader(scene)
    await rooms.patch(second, spec={"unschedulable": None})
    await scene.until(lambda: bool(bound_pods(scene, [pressing])), 2 * ENDED_S)
    is_elsewhere = any(pod.node == second for pod in bound_pods(scene, [pressing]))

    def is_alone() -> bool:
        """Nothing else has helped yet."""
        return any(pod.uid == victim for pod in scene.world.pods())

    await scene.until(lambda: not asleep(scene, waiting.pod) or not is_alone(), ENDED_S)
    if is_elsewhere and is_alone():
        await check_awake(scene, [waiting], before)
    await scene.until(lambda: bool(bound_pods(scene, [waiting.pod])))
    return True


async def _nothing() -> None: ...


async def _turn_away(scene: Scene) -> bool:
    """A pod that is held at Permit is displaced by a more urgent one, and later there is room elsewhere."""
    if scene.setting.is_shipped:
        return await _nominate_elsewhere(scene)  # nobody is held at Permit there
    rooms = Rooms(scene)
    first, second = await rooms.room("held"), await rooms.room("held")
    full = await rooms.holder(second, milli=HALF_MILLI)
    held = f"{HELD}{rooms.mark}"
    spec = {"tolerations": [TOLERATED], "nodeSelector": {BED: "held"}}
    await place(scene, "", HALF_MILLI, spec=spec, name=held)
    await scene.until(lambda: bool(scene.replicas.on_their_way([held])))
    urgent = {"tolerations": [TOLERATED], "nodeSelector": {HOSTNAME: first}}
    pressing = await place(scene, "", HALF_MILLI, spec=urgent, is_urgent=True)
    await scene.until(lambda: bool(bound_pods(scene, [pressing])))
    sleeper = Sleeper(held, "room elsewhere, after it was displaced", partial(rooms.send_off, full))
    await fall_asleep(scene, [sleeper])
    await wake_up(scene, sleeper.wake, [sleeper])
    await scene.until(lambda: bool(bound_pods(scene, [held])))
    return True


SCENARIOS: Final[Scenarios] = (
    ("bind to a pod that is gone", partial(_lose_bind, lose=_delete)),
    ("bind to a pod that is elsewhere", partial(_lose_bind, lose=_bind_elsewhere)),
    ("promise kept elsewhere", _nominate_elsewhere),
    ("held pod displaced", _turn_away),
)
