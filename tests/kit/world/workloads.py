"""Workloads of a simulated cluster: batches of pods with one spec, as a controller creates them.

The pods of a batch differ in labels and names, as those of a real controller do; with some shapes also in role, priority or
namespace. Every workload is created in two rounds, so that the second one meets the pods of the first.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.kit.world.labels import HOSTNAME, ZONE
from tests.kit.world.world import NAMESPACES, World

BATCH_MIN, BATCH_MAX = 3, 30
APART_MAX = 12
"""Maximum number of pods of a workload that needs a host for each."""
KINDS = ("ReplicaSet", "Job", "StatefulSet")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

Spec = dict[str, Any]
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Shape:
    """The rules between the pods of a workload. `rules`: returns a part of the spec from the workload's labels."""

    name: str
    rules: Callable[[Labels, random.Random], Spec]
    most: int = BATCH_MAX
    schedulers: tuple[str, ...] = ("forecast", "forecast", "job")
    roles: tuple[str, ...] = ()
    """Each pod has one of these roles, so that terms select only some pods of the same spec."""
    priorities: tuple[str, ...] = ("",)
    annotations: Mapping[str, str] = field(default_factory=dict)
    namespaces: int = 1
    limits: Mapping[str, str] = field(default_factory=dict)
    """Extended resources of each pod."""


def _term(labels: Labels, key: str) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": dict(labels)}}


def _anti(*terms: Mapping[str, Any]) -> Spec:
    return {"affinity": {"podAntiAffinity": {_REQUIRED: list(terms)}}}


def _level(labels: Labels, key: str, skew: int, *, is_hard: bool = True) -> dict[str, Any]:
    when = "DoNotSchedule" if is_hard else "ScheduleAnyway"
    return {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": dict(labels)},
    }


def _leader_apart(labels: Labels, rng: random.Random) -> Spec:
    """Host anti-affinity to leaders."""
    return _anti(_term({**labels, "role": "leader"}, HOSTNAME))


def _follower_near(labels: Labels, rng: random.Random) -> Spec:
    """Zone affinity to the workload, and host anti-affinity to leaders."""
    near = {"podAffinity": {_REQUIRED: [_term(labels, ZONE)]}}
    return {"affinity": near | _anti(_term({**labels, "role": "leader"}, HOSTNAME))["affinity"]}


def _apart(labels: Labels, rng: random.Random) -> Spec:
    return _anti(_term(labels, HOSTNAME))


def _spread(labels: Labels, rng: random.Random) -> Spec:
    return {"topologySpreadConstraints": [_level(labels, ZONE, rng.randint(1, 2))]}


def _spread_twice(labels: Labels, rng: random.Random) -> Spec:
    return {"topologySpreadConstraints": [_level(labels, ZONE, 1), _level(labels, HOSTNAME, rng.randint(1, 3))]}


def _spread_roles(labels: Labels, rng: random.Random) -> Spec:
    """Spreading that counts only leaders, also for followers."""
    return {"topologySpreadConstraints": [_level({**labels, "role": "leader"}, HOSTNAME, 1)]}


def _packed(labels: Labels, rng: random.Random) -> Spec:
    return {"affinity": {"podAffinity": {_REQUIRED: [_term(labels, ZONE)]}}}


def _inclined(labels: Labels, rng: random.Random) -> Spec:
    leaders = {**labels, "role": "leader"}
    return {
        "affinity": {
            "podAffinity": {_PREFERRED: [{"weight": 50, "podAffinityTerm": _term(leaders, ZONE)}]},
            "podAntiAffinity": {_PREFERRED: [{"weight": 80, "podAffinityTerm": _term(labels, HOSTNAME)}]},
        },
        "topologySpreadConstraints": [_level(labels, ZONE, 1, is_hard=False)],
    }


def _tolerant(labels: Labels, rng: random.Random) -> Spec:
    return {"tolerations": [{"key": "sim/upkeep", "operator": "Exists"}]}


def _choosy(labels: Labels, rng: random.Random) -> Spec:
    """Node affinity to two zones."""
    expression = {"key": ZONE, "operator": "In", "values": ["z0", "z1"]}
    return {"affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}}


def _particular(labels: Labels, rng: random.Random) -> Spec:
    """Node affinity with every operator, required and preferred, and with the node's name."""
    anywhere = [
        {"key": "sim/nowhere", "operator": "DoesNotExist"},
        {"key": ZONE, "operator": "NotIn", "values": ["z9"]},
        {"key": "rank", "operator": "Gt", "values": [str(rng.randrange(12))]},
        {"key": "rank", "operator": "Lt", "values": ["38"]},
        {"key": HOSTNAME, "operator": "Exists"},
    ]
    names = [{"key": "metadata.name", "operator": "In", "values": [f"node-{rng.choice((4, 5, 14))}"]}]
    terms: list[Spec] = [{"matchExpressions": rng.sample(anywhere, 3)}]
    if rng.random() < 0.4:
        terms = [{"matchFields": names}]
    elif rng.random() < 0.3:
        terms.append({"matchFields": [{**names[0], "operator": "NotIn"}]})
    rather = [
        {"weight": 20, "preference": {"matchExpressions": rng.sample(anywhere, 2)}},
        {"weight": 3, "preference": {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z1"]}]}},
    ]
    return {"affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}, _PREFERRED: rather}}}


def _unfriendly(labels: Labels, rng: random.Random) -> Spec:
    """Terms with namespace selectors, with empty selectors, and with label keys of the pod."""
    everywhere = {**_term(labels, HOSTNAME), "namespaceSelector": {}}
    teams = {
        "topologyKey": ZONE,
        "labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "team-a"}},
        "matchLabelKeys": ["pod-name"],
    }
    return {
        "affinity": {
            "podAntiAffinity": {
                _REQUIRED: [everywhere],
                _PREFERRED: [{"weight": 9, "podAffinityTerm": teams}, {"weight": 1, "podAffinityTerm": everywhere}],
            }
        }
    }


def _levelled_anew(labels: Labels, rng: random.Random) -> Spec:
    """Spread constraints with every field."""
    rule = _level(labels, ZONE, 2) | {
        "minDomains": 2 * rng.randint(1, 3) - 1,  # there are three zones
        "nodeAffinityPolicy": rng.choice(("Honor", "Ignore")),
    }
    soft = _level(labels, HOSTNAME, 1, is_hard=False) | {"matchLabelKeys": ["role"], "nodeTaintsPolicy": "Honor"}
    return {"topologySpreadConstraints": [rule, soft]}


def _broad(labels: Labels, rng: random.Random) -> Spec:
    """Other requirements of a spec: ports on addresses, tolerations, and a sidecar container."""
    port = {"containerPort": 80, "hostPort": 9_950 + rng.randrange(3), "hostIP": rng.choice(("0.0.0.0", "10.0.0.1"))}
    first = {"name": "first", "image": "app-3:v1", "resources": {"requests": {"cpu": "300m"}}, "ports": [port]}
    return {
        "initContainers": [{**first, "restartPolicy": "Always"}],
        "tolerations": [{"key": "sim/rather", "operator": "Exists"}],
    }


def _plain(labels: Labels, rng: random.Random) -> Spec:
    return {}


SHAPES = (
    Shape("leaders apart", _leader_apart, roles=("leader", "follower", "follower")),
    Shape("leaders apart", _leader_apart, roles=("leader", "follower"), schedulers=("forecast",)),
    Shape("followers near", _follower_near, roles=("leader", "follower", "follower")),
    Shape("apart", _apart, APART_MAX),
    Shape("spread", _spread),
    Shape("spread twice", _spread_twice),
    Shape("leaders spread", _spread_roles, roles=("leader", "follower")),
    Shape("packed", _packed),
    Shape("inclined", _inclined, roles=("leader", "follower")),
    Shape("tolerant", _tolerant),
    Shape("choosy", _choosy, schedulers=("forecast",)),
    Shape("particular", _particular, APART_MAX, schedulers=("forecast",)),
    Shape("unfriendly", _unfriendly, APART_MAX, roles=("leader", "follower")),
    Shape("levelled anew", _levelled_anew, roles=("leader", "follower")),
    Shape("broad", _broad, APART_MAX),
    Shape("licensed", _plain, APART_MAX, schedulers=("job",), limits={"example.com/licence": "1"}),
    Shape("of mixed priority", _plain, priorities=("", "", "system-cluster-critical")),
    Shape("of two namespaces", _plain, namespaces=2),
    Shape("fractions", _plain, schedulers=("gpu",), annotations={"multisched.io/gpu-milli": "250"}),
)


@dataclass(slots=True)
class _Workload:
    shape: Shape
    labels: Labels
    kind: str
    namespaces: tuple[str, ...]
    template: Spec
    size: int
    created: int = 0


class Workloads:
    """The workloads of one run."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._rng = random.Random(f"{seed}/workloads")
        self._known: dict[int, _Workload] = {}

    async def create(self, number: int) -> str:
        """Creates a workload with its first round. Returns a description."""
        rng = self._rng
        shape = rng.choice(SHAPES)
        labels = {"workload": f"w{number}"}
        container: Spec = {
            "name": "main",
            "image": f"app-{rng.randrange(4)}:v1",
            "resources": {"requests": {"cpu": rng.choice(("100m", "250m", "500m")), "memory": "64Mi"}},
        }
        if shape.limits:
            container["resources"]["limits"] = dict(shape.limits)
        template = {"schedulerName": f"{rng.choice(shape.schedulers)}-scheduler", "containers": [container]}
        template |= shape.rules(labels, rng)
        namespaces = tuple(rng.sample(NAMESPACES, shape.namespaces))
        size = rng.randint(BATCH_MIN, shape.most)
        self._known[number] = _Workload(shape, labels, rng.choice(KINDS), namespaces, template, size)
        await self._add(self._known[number], size)
        return f"workload: {shape.name}"

    async def repeat(self, number: int) -> None:
        """Deletes some of its pods and creates more."""
        workload = self._known[number]
        existing = [pod for pod in self._world.pods() if pod.labels.get("workload") == workload.labels["workload"]]
        for pod in self._rng.sample(existing, len(existing) // 3):
            await self._world.user.delete_pod(pod)
        await self._add(workload, max(BATCH_MIN, workload.size // 2))

    async def _add(self, workload: _Workload, count: int) -> None:
        shape = workload.shape
        for _ in range(count):
            workload.created += 1
            name = f"{workload.labels['workload']}-{workload.created}"
            labels = {**workload.labels, "pod-name": name, "app": f"app-{self._rng.randrange(5)}"}
            if shape.roles:
                labels["role"] = self._rng.choice(shape.roles)
            spec = copy.deepcopy(workload.template)
            if priority := self._rng.choice(shape.priorities):
                spec["priorityClassName"] = priority
            owner = {
                "apiVersion": "batch/v1" if workload.kind == "Job" else "apps/v1",
                "kind": workload.kind,
                "name": workload.labels["workload"],
                "uid": f"uid-of-{workload.labels['workload']}",
                "controller": True,
            }
            metadata = {
                "name": name,
                "namespace": self._rng.choice(workload.namespaces),
                "labels": labels,
                "annotations": dict(shape.annotations),
                "ownerReferences": [owner],
            }
            await self._world.user.create_pod({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
