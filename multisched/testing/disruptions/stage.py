"""What is played at the end of some runs, once all is quiet: one scene with a known end, in which nothing else helps or hinders.

While disruptions strike, something else wakes whoever was passed over, leaders are away, and bindings are decided anew for many
reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from multisched.model.objects import CPU, Pod
from multisched.queueing.transitions import Place
from multisched.testing.disruptions.scene import Act, Scene
from multisched.testing.world import CROWDED

Plays = Sequence[tuple[str, Act]]
"""Name and act."""
DOMAIN, SCHEDULER = "forecast", "forecast-scheduler"
LED_MAX_S: Final = 10.0
"""Until somebody leads and binds. Where nobody does for as long, nothing is played: it would take half a minute more."""
PLAIN_MILLI: Final = 4_000
"""CPU of a plain node."""


def several(plays: Plays, count: int) -> Act:
    """So many of them, one after the other."""

    async def act(scene: Scene) -> bool:
        return any([await one(scene) for _, one in scene.rng.sample(plays, count)])

    return act


async def place(
    scene: Scene, node: str, milli: int, *, spec: Mapping[str, Any] | None = None, is_urgent: bool = False, **more: Any
) -> str:
    """The name of a small pod for this node."""
    return await scene.world.place_lowly(
        node, spec or {}, is_urgent=is_urgent, scheduler=SCHEDULER, cpu=f"{milli}m", **more
    )


def leading(scene: Scene) -> list[Any]:
    """Queues of those who decide about these pods."""
    workers = [worker for process in scene.run.processes for worker in process.program.router.workers()]
    return [worker.queue for worker in workers if worker.name == DOMAIN and worker.is_leading]


def parked(scene: Scene, names: Sequence[str]) -> list[str]:
    """Those that wait for an event."""
    entries = [entry for queue in leading(scene) for entry in queue.entries(Place.UNSCHEDULABLE)]
    return [entry.pod.name for entry in entries if entry.pod.name in names]


def named(scene: Scene, names: Sequence[str]) -> list[Pod]:
    return [pod for pod in scene.world.pods() if pod.name in names]


def standing(scene: Scene, names: Sequence[str]) -> list[Pod]:
    return [pod for pod in named(scene, names) if pod.node and not pod.is_deleting]


def emptiest(scene: Scene) -> str:
    """Of the nodes that crowds want and that are there."""
    amounts, there = used(scene), scene.run.door.nodes()
    return min((f"node-{number}" for number in CROWDED if f"node-{number}" in there), key=lambda node: amounts[node])


def used(scene: Scene) -> Counter[str]:
    """Node -> the CPU that its pods have."""
    amounts: Counter[str] = Counter()
    for pod in scene.world.pods():
        amounts[pod.node] += pod.requests.get(CPU, 0)
    return amounts
