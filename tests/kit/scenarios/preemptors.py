"""Scenarios of pods that make others go: what is promised to them, and whom they wait for in vain.

What a preemption takes is judged where it begins (`PreemptionChecker`), what is promised wherever a pod is assumed
(`AssumptionChecker`). Here the pods are few, so that what must come of it is known beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from tests.kit.disruptions.scene import Scene
from tests.kit.scenarios.rooms import Rooms
from tests.kit.scenarios.steps import (
    PLAIN_MILLI,
    Scenarios,
    are_bound,
    bound_pods,
    emptiest,
    is_led_by,
    named,
    nominated,
    place,
    several,
    steady_leader,
    used,
)
from tests.kit.world.labels import HOSTNAME

PORT: Final = 9_972
FILLED_MILLI: Final = 900
LARGE_MILLI, SMALL_MILLI = 2_500, 1_400
"""A node takes one of each. Where the small one goes there is no room for a second large one."""
SPARE_MILLI: Final = 50
"""What is left beside the urgent pod."""
HELPED_S: Final = 8.0
"""Within this a pod has preempted that nothing hinders; `checkers/process/preemptions.py` says that it may."""


def _wants_port(milli: int) -> dict[str, Any]:
    ports = [{"containerPort": 80, "hostPort": PORT}]
    resources = {"requests": {"cpu": f"{milli}m", "memory": "64Mi"}}
    return {"containers": [{"name": "main", "image": "app-0:v1", "resources": resources, "ports": ports}]}


async def _nominate_for_port(scene: Scene) -> bool:
    """An urgent pod waits for the room of others. The port that it wants too is free, and smaller pods would like it."""
    node = emptiest(scene)
    free = PLAIN_MILLI - used(scene)[node]
    fillers = [await place(scene, node, FILLED_MILLI) for _ in range(max(free // FILLED_MILLI, 1))]
    await scene.until(lambda: are_bound(scene, fillers))
    left = PLAIN_MILLI - used(scene)[node]
    pressing = await place(scene, node, 10, spec=_wants_port(left + FILLED_MILLI - SPARE_MILLI), is_urgent=True)
    await scene.until(lambda: nominated(scene, pressing))
    eager = [await place(scene, node, 10, spec=_wants_port(5)) for _ in range(2)]
    await scene.until(lambda: bool(bound_pods(scene, [pressing])), HELPED_S)
    for name in (*eager, pressing, *fillers):
        await scene.world.user.delete_named(name)
    return True


async def _bear_with_the_urgent(scene: Scene) -> bool:
    """A pod of little importance bears no soft one on its host. An urgent soft one wants that host: the other has to go."""
    node, labels = emptiest(scene), {"tone": "softest"}
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": labels}}
    spec = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    averse = await place(scene, node, 10, spec=spec)
    await scene.until(lambda: bool(bound_pods(scene, [averse])))
    pressing = await place(scene, node, 10, is_urgent=True, labels=labels)
    await scene.until(lambda: nominated(scene, pressing), HELPED_S)
    for name in (pressing, averse):
        await scene.world.user.delete_named(name)
    return True


async def _fill_exactly(scene: Scene) -> bool:
    """An urgent pod is as large as its node."""
    rooms, before = Rooms(scene), steady_leader(scene)
    node = await rooms.room("exact")
    lowly = await rooms.pod("exact", milli=LARGE_MILLI)
    await scene.until(lambda: bool(bound_pods(scene, [lowly])))
    pressing = await rooms.pod("exact", milli=PLAIN_MILLI, is_urgent=True)
    await scene.until(lambda: nominated(scene, pressing), HELPED_S)
    if is_led_by(scene, before) and bound_pods(scene, [lowly]) and not nominated(scene, pressing):
        scene.bind_checker.complain(f"I3: {pressing} preempts nobody, and would fill {node}")
    await _clear(scene, [node], [pressing, lowly])
    return True


async def _nominate_twice(scene: Scene) -> bool:
    """Two urgent pods as important as each other displace one pod each of a large node. Neither takes the other's promise back."""
    rooms, before = Rooms(scene), steady_leader(scene)
    node = await rooms.room("twice", cpu="8")
    lowly = [await rooms.pod("twice", milli=LARGE_MILLI) for _ in range(3)]
    await scene.until(partial(are_bound, scene, lowly))
    first = await rooms.pod("twice", milli=LARGE_MILLI, is_urgent=True)
    await scene.until(lambda: nominated(scene, first), HELPED_S)
    was_nominated = nominated(scene, first)
    second = await rooms.pod("twice", milli=LARGE_MILLI, is_urgent=True)
    await scene.until(lambda: nominated(scene, second), HELPED_S)
    if is_led_by(scene, before) and was_nominated and nominated(scene, second) and not nominated(scene, first):
        scene.bind_checker.complain(f"I7: {first} has lost its promise to {second}, which is as urgent")
    await scene.until(partial(are_bound, scene, [first, second]), HELPED_S)
    await _clear(scene, [node], [first, second, *lowly])
    return True


async def _start_meanwhile(scene: Scene) -> bool:
    """Two urgent pods of one kind, one after the other.

    On either node are a large pod and a small one of equal priority. Before the second urgent pod comes, some of these
    start, which makes them the more important.
    """
    rooms = Rooms(scene)
    for is_large in (False, True):
        bed = f"start-{is_large}"
        nodes = [await rooms.room(bed) for _ in range(2)]
        large = [await rooms.pod(bed, _on(node), milli=LARGE_MILLI) for node in nodes]
        small = [await rooms.pod(bed, _on(node), milli=SMALL_MILLI) for node in nodes]
        await scene.until(partial(are_bound, scene, [*large, *small]))
        pressing: list[str] = []
        for started in ([], large if is_large else small):
            for pod in named(scene, started):
                await scene.world.kubelets.start_pod(pod)
            await scene.pause(0.2, 0.4)
            pressing.append(await rooms.pod(bed, milli=LARGE_MILLI, is_urgent=True))
            await scene.until(partial(are_bound, scene, pressing), HELPED_S)
        await _clear(scene, nodes, [*pressing, *large, *small])
    return True


def _on(node: str) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [node]}]}]
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    }


async def _clear(scene: Scene, nodes: Sequence[str], pods: Sequence[str]) -> None:
    """The pods go, and nobody comes any more."""
    for node in nodes:
        await scene.world.nodes.patch(node, {"spec": {"unschedulable": True}})
    for name in pods:
        await scene.world.user.delete_named(name)


NOMINATIONS: Final[Scenarios] = (
    ("port promised", _nominate_for_port),
    ("urgent pod kept off by another's rule", _bear_with_the_urgent),
    ("urgent pod as large as a node", _fill_exactly),
    ("two urgent pods on a large node", _nominate_twice),
    ("pods started between two urgent ones", _start_meanwhile),
)
SCENARIOS: Final[Scenarios] = (("promises and rules of preemptors", several(NOMINATIONS, len(NOMINATIONS))),)
