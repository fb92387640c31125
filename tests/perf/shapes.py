"""The shapes of `make bench`: which pods wait on which nodes, and what multisched must show against kube-scheduler there.

Pure values. A shape is run by both schedulers, one after the other, on the same API server and nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.perf import gangs, workload

Pods = Callable[[int, str], Iterator[dict[str, Any]]]
"""(how many, schedulerName) -> pods to create."""

HOSTNAME: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
LABELS: Final[Mapping[str, str]] = {"app": "bench"}
SELECTOR: Final[Mapping[str, Any]] = {"matchLabels": dict(LABELS)}

SIZES: Final = ((50, 100), (100, 500), (250, 1_000), (500, 2_000), (1_000, 4_000))
"""milli-CPU and MiB of the mixed pods, in turn."""

PRIORITY_CLASS: Final = "bench-high"
VICTIMS_PER_NODE: Final = 4
VICTIM: Final = (1_000, 500)
PREEMPTOR: Final = (1_000, 500)

REPLICAS: Final = 3
"""Of one service."""

GANG_SIZE: Final = 3
GANGS: Final = 3_000
LARGE_GANG: Final = 5_000

IMPOSSIBLE_EVERY_S: Final = 0.2
IMPOSSIBLE_CPU_MILLI: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """`speedup`: times kube-scheduler's pods/s at least; `cpu_share`: times its CPU per pod at most."""

    name: str
    count: int
    pods: Pods
    speedup: float
    cpu_share: float
    victims_per_node: int = 0
    """Pods of low priority that run on every node before."""
    impossible_every_s: float = 0.0
    """One pod that fits nowhere comes in this interval while the others are placed."""
    rss_mib: float = math.inf
    """What multisched's process may take at most."""
    gang_size: int = 0
    """Pods of a gang, where the pods come in gangs; `speedup` and `cpu_share` are of gangs then."""


def mixed(count: int, scheduler_name: str) -> Iterator[dict[str, Any]]:
    for index in range(count):
        cpu, memory = SIZES[index % len(SIZES)]
        yield _sized(workload.pod(f"pod-{index:05}", scheduler_name), cpu, memory)


def with_spec(**spec: Any) -> Pods:
    """Plain pods of one label, with these fields in their spec."""

    def made(count: int, scheduler_name: str) -> Iterator[dict[str, Any]]:
        for pod in workload.pods(count, scheduler_name):
            pod["metadata"]["labels"] = dict(LABELS)
            pod["spec"] |= spec
            yield pod

    return made


def preemptors(count: int, scheduler_name: str) -> Iterator[dict[str, Any]]:
    for pod in workload.pods(count, scheduler_name):
        pod["spec"]["priorityClassName"] = PRIORITY_CLASS
        yield _sized(pod, *PREEMPTOR)


def victims(nodes: int, per_node: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Pods that fill every node, with the node's number; they go at once when they are deleted: there is no kubelet."""
    for index in range(nodes * per_node):
        pod = _sized(workload.pod(f"victim-{index:05}", "nobody"), *VICTIM)
        pod["spec"]["terminationGracePeriodSeconds"] = 0
        yield pod, index % nodes


def services(*, is_hard: bool) -> Pods:
    """Replicas of many small services, each with labels, sizes, anti-affinity over hosts and a spread over zones of its own.

    The services come interleaved, as controllers make the pods of many at once: no two that follow one another are alike.
    """

    def made(count: int, scheduler_name: str) -> Iterator[dict[str, Any]]:
        different = max(count // REPLICAS, 1)
        for index in range(count):
            pod = workload.pod(f"pod-{index:05}", scheduler_name)
            service = index % different
            labels = {"app": f"service-{service:05}"}
            pod["metadata"]["labels"] = labels
            selector = {"matchLabels": labels}
            pod["spec"] |= _apart(selector, is_hard=is_hard)
            yield _sized(pod, 50 + service % 97, 100 + service % 89)

    return made


def _apart(selector: Mapping[str, Any], *, is_hard: bool) -> dict[str, Any]:
    """Anti-affinity over hosts and a spread over zones, among the pods that the selector selects."""
    term = {"topologyKey": HOSTNAME, "labelSelector": selector}
    terms = {_REQUIRED: [term]} if is_hard else {_PREFERRED: [{"weight": 100, "podAffinityTerm": term}]}
    when = "DoNotSchedule" if is_hard else "ScheduleAnyway"
    return {"affinity": {"podAntiAffinity": terms}, "topologySpreadConstraints": _spread(when, selector)}


def daemons(count: int, scheduler_name: str) -> Iterator[dict[str, Any]]:
    """One pod for each node in turn, as the DaemonSet controller makes them."""
    for index in range(count):
        pod = _sized(workload.pod(f"pod-{index:05}", scheduler_name), 50, 50)
        named = {"key": "metadata.name", "operator": "In", "values": [f"work-{index:05}"]}
        pod["spec"]["affinity"] = {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [{"matchFields": [named]}]}}}
        pod["spec"]["tolerations"] = [{"operator": "Exists"}]
        yield pod


def in_gangs(size: int) -> Pods:
    """Plain pods in gangs of this size."""

    def made(count: int, scheduler_name: str) -> Iterator[dict[str, Any]]:
        return gangs.pods(count, size, scheduler_name)

    return made


def impossible(number: int, scheduler_name: str) -> dict[str, Any]:
    return _sized(workload.pod(f"impossible-{number:05}", scheduler_name), IMPOSSIBLE_CPU_MILLI, 100)


def _sized(pod: dict[str, Any], cpu_milli: int, memory_mib: int) -> dict[str, Any]:
    room = {"cpu": f"{cpu_milli}m", "memory": f"{memory_mib}Mi"}
    pod["spec"]["containers"][0]["resources"] = {"requests": room, "limits": room}
    return pod


def _spread(when: str, selector: Mapping[str, Any] = SELECTOR) -> list[dict[str, Any]]:
    return [{"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": when, "labelSelector": selector}]


def _term(key: str) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": SELECTOR}


_REQUIRED, _PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)

SHAPES: Final = (
    Shape("plain", 10_000, workload.pods, 2.5, 0.2),
    Shape("mixed", 6_000, mixed, 2.5, 0.2),
    Shape(
        "anti-affinity",
        2_000,
        with_spec(affinity={"podAntiAffinity": {_REQUIRED: [_term(HOSTNAME)]}}),
        5.0,
        0.06,
    ),
    Shape("zone-affinity", 3_000, with_spec(affinity={"podAffinity": {_REQUIRED: [_term(ZONE)]}}), 6.0, 0.05),
    Shape("spread-hard", 4_000, with_spec(topologySpreadConstraints=_spread("DoNotSchedule")), 4.0, 0.08),
    Shape("spread-soft", 4_000, with_spec(topologySpreadConstraints=_spread("ScheduleAnyway")), 5.0, 0.07),
    Shape(
        "preferred-affinity",
        3_000,
        with_spec(affinity={"podAffinity": {_PREFERRED: [{"weight": 10, "podAffinityTerm": _term(ZONE)}]}}),
        4.0,
        0.08,
    ),
    Shape("preemption", 2_000, preemptors, 3.0, 0.2, victims_per_node=VICTIMS_PER_NODE),
    Shape("impossible", 10_000, workload.pods, 2.0, 0.2, impossible_every_s=IMPOSSIBLE_EVERY_S),
    Shape("services", 3_000, services(is_hard=False), 4.0, 0.15, rss_mib=250.0),
    Shape("services-hard", 3_000, services(is_hard=True), 6.0, 0.1, rss_mib=250.0),
    Shape("daemonset", 5_000, daemons, 2.5, 0.2, rss_mib=250.0),
    Shape("gangs", GANGS * GANG_SIZE, in_gangs(GANG_SIZE), 3.0, 0.2, gang_size=GANG_SIZE),
)
BY_NAME: Final[Mapping[str, Shape]] = {shape.name: shape for shape in SHAPES}
