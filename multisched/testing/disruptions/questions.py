"""People who ask what would be: whoever asks changes nothing."""

from __future__ import annotations

from typing import Any, Final

from multisched.testing.disruptions.scene import Disruption, Scene
from multisched.testing.questions import Questions
from multisched.testing.relations import HOSTNAME, ZONE

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
ASKED: Final = 6


def _main(**resources: str) -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": "app-0:v1", "resources": {"requests": resources}}]}


def _near(key: str, operator: str, *values: str) -> dict[str, Any]:
    expression = {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
    also = {"key": ZONE, "operator": "In", "values": ["z0", "z1", "z2"]}
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression, also]}]}}}}


_NOBODY: Final = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "nobody"}}}
_ANYBODY: Final = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}
_LEVEL: Final = {"maxSkew": 1, "topologyKey": "rank", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
UNPLACEABLE: Final = (
    _main(cpu="5"),
    _main(memory="9Gi", cpu="100m"),
    _main(memory="8589934593") | {"tolerations": [{"key": "other", "operator": "Exists"}]},
    {"nodeSelector": {"tier": "gold"}},
    {"nodeSelector": {ZONE: "z9"}},
    {"nodeSelector": {HOSTNAME: "node-9"}},
    _near("rank", "Gt", "90"),
    _near("rank", "Lt", "0"),
    _near("tier", "Exists"),
    _near("tier", "In", "gold", "silver"),
    _near(HOSTNAME, "NotIn", *(f"node-{number}" for number in range(40))),
    _near("kubernetes.io/hostname", "DoesNotExist"),
    {"affinity": {"podAffinity": {REQUIRED: [_NOBODY]}}},
    {"affinity": {"podAntiAffinity": {REQUIRED: [_ANYBODY | {"topologyKey": ZONE, "namespaceSelector": {}}]}}},
    {"topologySpreadConstraints": [_LEVEL, _LEVEL | {"topologyKey": "nowhere"}]},
    {"topologySpreadConstraints": [_LEVEL | {"topologyKey": ZONE, "minDomains": 9}]},
    {"containers": [{**_main(cpu="100m")["containers"][0], "ports": [{"containerPort": 80, "hostPort": 9_000}]}]},
    {"schedulingGates": [{"name": "one"}, {"name": "two"}]},
)
"""What pods may ask for that no node gives, each for another reason."""


async def _ask(scene: Scene) -> bool:
    """About pods that fit nowhere, one process after the other, in the middle of whatever they do."""
    names = [await scene.world.add_unplaceable(spec) for spec in scene.rng.sample(UNPLACEABLE, ASKED)]
    await scene.pause(0.5, 3.0)
    for process in list(scene.run.processes):
        if process.identity not in scene.run.disturbed:
            await Questions(scene.run, process, names).ask()
    for name in names:
        await scene.world.delete_named(name)
    return True


TABLE = (Disruption("questions asked", _ask, 6),)
