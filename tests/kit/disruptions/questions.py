"""Users who ask for explanations and plans: questions change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tests.kit.disruptions.run_context import Disruption, RunContext
from tests.kit.processes.process import Process
from tests.kit.processes.questions import Questions
from tests.kit.world.labels import HOSTNAME, ZONE
from tests.kit.world.nodes import CROWDED

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
ASKED: Final = 6


def _main(**resources: str) -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": "app-0:v1", "resources": {"requests": resources}}]}


def _near(key: str, operator: str, *values: str) -> dict[str, Any]:
    expression = {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
    also = {"key": ZONE, "operator": "In", "values": ["z0", "z1", "z2"]}
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression, also]}]}}}}


def _single(key: str, operator: str) -> dict[str, Any]:
    """Returns a node affinity with a single expression."""
    terms = [{"matchExpressions": [{"key": key, "operator": operator}]}]
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}


_NOBODY: Final = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "nobody"}}}
_ANYBODY: Final = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}
_LEVEL: Final = {"maxSkew": 1, "topologyKey": "rank", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
RELATED: Final[tuple[dict[str, Any], ...]] = (
    {"affinity": {"podAffinity": {REQUIRED: [_NOBODY]}}},
    {"affinity": {"podAntiAffinity": {REQUIRED: [_ANYBODY | {"topologyKey": ZONE, "namespaceSelector": {}}]}}},
    {"topologySpreadConstraints": [_LEVEL | {"topologyKey": ZONE, "minDomains": 9}]},
)
"""Specs that fit no node because of where other pods are."""
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
    _single("tier", "Exists"),
    {"topologySpreadConstraints": [_LEVEL, {**_LEVEL, "topologyKey": ZONE, "whenUnsatisfiable": "ScheduleAnyway"}]},
    _main(cpu="100m") | {"resources": {"requests": {"cpu": "9"}}},
)
"""Specs that fit no node, each for another reason."""
TAINTS: Final = (
    [{"key": "sim/asked", "value": "yes", "effect": "NoSchedule"}],
    [{"key": "sim/asked", "effect": "NoSchedule"}, {"key": "sim/asked", "value": "no", "effect": "NoExecute"}],
    [{"key": "sim/asked", "effect": "NoSchedule"}, {"key": "sim/also", "effect": "NoSchedule"}],
)
"""Taints of nodes while users ask why a pod is not placed there."""
PORT: Final = 9_985


def _questions(context: RunContext, process: Process, names: Sequence[str]) -> Questions:
    return Questions(
        process,
        names,
        configuration=process.program.configuration if context.setting.is_reloaded else context.setting.configuration,
        server=context.server,
        world=context.world,
        bind_checker=context.bind_checker,
        clock=context.clock,
        rng=context.rng,
    )


async def _ask(context: RunContext) -> bool:
    """Asks each process about pods that fit nowhere, at any moment of its work."""
    names = [await context.world.add_unplaceable(spec) for spec in context.rng.sample(UNPLACEABLE, ASKED)]
    await context.pause(0.5, 3.0)
    for process in list(context.replicas.running):
        if process.identity not in context.replicas.disturbed:
            await _questions(context, process, names).ask()
    for name in names:
        await context.world.user.delete_named(name)
    return True


async def _exclude_pods(context: RunContext) -> bool:
    """Creates pods for one node each, which refuses them for one reason: a taint, a cordon, a port, a feature, or other pods.

    Users ask why. Then pods and nodes change, in ways that help and in ways that do not.
    """
    nodes = [f"node-{number}" for number in context.rng.sample(CROWDED, len(CROWDED))]
    before = context.bind_checker.nodes()
    if any(name not in before or before[name].taints or before[name].is_unschedulable for name in nodes):
        return False
    *tainted, cordoned, busy, full = nodes
    for name, taints in zip(tainted, TAINTS, strict=True):
        await context.world.nodes.patch(name, {"spec": {"taints": taints}})
    await context.world.nodes.patch(cordoned, {"spec": {"unschedulable": True}})
    await context.world.nodes.patch(busy, {"status": {"declaredFeatures": []}})
    wanted: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in (*tainted, *tainted, cordoned)]
    wanted += [(busy, _main(cpu="10m") | {"hostNetwork": True, "hostUsers": False}), (full, _main(cpu="3900m"))]
    main = _main(cpu="10m")["containers"][0] | {"ports": [{"containerPort": 80, "hostPort": PORT}]}
    wanted += [(busy, {"containers": [main]})] * 2
    names = [
        await context.world.add_small_pod(name, spec, is_urgent=False, scheduler="forecast-scheduler")
        for name, spec in wanted
    ]
    names += [await context.world.add_unplaceable(spec) for spec in RELATED]
    await context.pause(0.5, 1.5)
    process = context.replicas.leader()
    if process is not None:
        await _questions(context, process, names).ask()
    await _change_labels_and_taints(context, names, nodes)
    for name in tainted:
        await context.world.nodes.patch(name, {"spec": {"taints": None}})
    await context.world.nodes.patch(cordoned, {"spec": {"unschedulable": None}})
    await context.pause(0.5, 2.0)
    for name in names:
        await context.world.user.delete_named(name)
    return True


async def _change_labels_and_taints(context: RunContext, names: Sequence[str], nodes: Sequence[str]) -> None:
    """Changes labels, tolerations, taints and features."""
    further = {"key": "sim/further", "operator": "Exists"}
    for number, pod in enumerate([pod for pod in context.world.pods() if pod.name in names and not pod.node]):
        await context.world.patch_pod(pod, {"metadata": {"labels": {"stirred": "yes"}}})
        await context.pause(0.0, 0.2)
        tolerations = [further, {"operator": "Exists"}] if number % 3 == 0 else [further]
        await context.world.patch_pod(pod, {"spec": {"tolerations": tolerations}})
    await context.world.nodes.patch(nodes[1], {"spec": {"taints": TAINTS[0]}})
    for name in nodes:
        await context.world.nodes.patch(name, {"metadata": {"labels": {"stirred": "yes"}}})
        await context.world.nodes.patch(name, {"status": {"declaredFeatures": ["UserNamespacesHostNetworkSupport"]}})
        await context.pause(0.0, 0.3)


TABLE = (Disruption("questions asked", _ask, 6), Disruption("pods shut out", _exclude_pods, 4))
