"""Plays of pods that make others go: what is promised to them, and whom they wait for in vain.

What a preemption takes is judged where it begins (`testing/preemptions.py`), what is promised wherever a pod is assumed
(`Witness`). Here the pods are few, so that what must come of it is known beforehand.
"""

from __future__ import annotations

from typing import Any, Final

from multisched.testing.disruptions.scene import Scene
from multisched.testing.disruptions.stage import (
    PLAIN_MILLI,
    Plays,
    emptiest,
    place,
    promised,
    several,
    standing,
    used,
)
from multisched.testing.relations import HOSTNAME

PORT: Final = 9_972
FILLED_MILLI: Final = 900
SPARE_MILLI: Final = 50
"""What is left beside the urgent pod."""
HELPED_S: Final = 8.0
"""Within this a pod has preempted that nothing hinders; that it may is told by `preemptions.py`."""


def _wants_port(milli: int) -> dict[str, Any]:
    ports = [{"containerPort": 80, "hostPort": PORT}]
    resources = {"requests": {"cpu": f"{milli}m", "memory": "64Mi"}}
    return {"containers": [{"name": "main", "image": "app-0:v1", "resources": resources, "ports": ports}]}


async def _promise_port(scene: Scene) -> bool:
    """An urgent pod waits for the room of others. The port that it wants too is free, and smaller pods would like it."""
    node = emptiest(scene)
    free = PLAIN_MILLI - used(scene)[node]
    fillers = [await place(scene, node, FILLED_MILLI) for _ in range(max(free // FILLED_MILLI, 1))]
    await scene.until(lambda: len(standing(scene, fillers)) == len(fillers))
    left = PLAIN_MILLI - used(scene)[node]
    pressing = await place(scene, node, 10, spec=_wants_port(left + FILLED_MILLI - SPARE_MILLI), is_urgent=True)
    await scene.until(lambda: promised(scene, pressing))
    eager = [await place(scene, node, 10, spec=_wants_port(5)) for _ in range(2)]
    await scene.until(lambda: bool(standing(scene, [pressing])), HELPED_S)
    for name in (*eager, pressing, *fillers):
        await scene.world.delete_named(name)
    return True


async def _bear_with_the_urgent(scene: Scene) -> bool:
    """A pod of little importance bears no soft one on its host. An urgent soft one wants that host: the other has to go."""
    node, labels = emptiest(scene), {"tone": "softest"}
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": labels}}
    spec = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    averse = await place(scene, node, 10, spec=spec)
    await scene.until(lambda: bool(standing(scene, [averse])))
    pressing = await place(scene, node, 10, is_urgent=True, labels=labels)
    await scene.until(lambda: promised(scene, pressing), HELPED_S)
    for name in (pressing, averse):
        await scene.world.delete_named(name)
    return True


PROMISES: Final[Plays] = (
    ("port promised", _promise_port),
    ("urgent pod kept off by another's rule", _bear_with_the_urgent),
)
PLAYS: Final[Plays] = (("promises and rules of preemptors", several(PROMISES, len(PROMISES))),)
