"""Scenarios of what goes wrong with us and not with a pod: nobody is set aside or overlooked for it."""

from __future__ import annotations

from itertools import repeat
from typing import Final

from multisched.queueing.quarantine import REFUSALS_ALIKE_MAX
from tests.kit.disruptions.scene import Scene
from tests.kit.scenarios.steps import (
    Scenarios,
    are_bound,
    bound_pods,
    is_led_by,
    leading,
    place,
    several,
    steady_leader,
)
from tests.kit.wire.faults import FORBIDDEN

DENIED_S: Final = 20.0
"""In which a pod is tried REFUSALS_ALIKE_MAX times: it backs off for 1, 2, 4 and 8 s between them."""
REOPENED_S: Final = 35.0
"""In which a watch is opened again: it may have failed before, and backs off for half a minute at most."""


async def _lose_rights(scene: Scene) -> bool:
    """We may not bind for a while. A pod that we are refused so is not at fault, however often that happens."""
    name, answers = f"denied-{scene.mark()}", scene.faults.bind_answers
    answers[name] = repeat(FORBIDDEN)
    try:
        await place(scene, "", 10, name=name)
        await scene.until(lambda: _refusals(scene, name) >= REFUSALS_ALIKE_MAX or _is_set_aside(scene, name), DENIED_S)
        if _is_set_aside(scene, name):
            scene.bind_checker.complain(f"I3: {name} is set aside, for which it was not we who were refused")
    finally:
        del answers[name]
    await scene.world.user.delete_named(name)
    return True


def _refusals(scene: Scene, name: str) -> int:
    return max((e.attempts for queue in leading(scene) for e in queue.entries() if e.pod.name == name), default=0)


def _is_set_aside(scene: Scene, name: str) -> bool:
    return any(entry.is_quarantined for queue in leading(scene) for entry in queue.entries() if entry.pod.name == name)


async def _cut_line_short(scene: Scene) -> bool:
    """The line that tells of a pod is cut short, and the watch goes on. A list has to tell of it."""
    name, before = f"short-{scene.mark()}", steady_leader(scene)
    for process in scene.replicas.running:
        process.transport.cut_short.add(name)
    await place(scene, "", 10, name=name)
    second = await place(scene, "", 10)
    await scene.until(lambda: are_bound(scene, [name, second]), REOPENED_S)
    if is_led_by(scene, before) and bound_pods(scene, [second]) and not bound_pods(scene, [name]):
        scene.bind_checker.complain(f"I3: {name} is not heard of, whose line was cut short")
    for one in (name, second):
        await scene.world.user.delete_named(one)
    return True


OUTAGES: Final[Scenarios] = (("rights lost", _lose_rights), ("line cut short", _cut_line_short))
SCENARIOS: Final[Scenarios] = (("rights lost, lines cut short", several(OUTAGES, len(OUTAGES))),)
