"""What one tenant may post to hurt the others: the shapes of `hostile_bench` and the starting points of `hostile_fuzz`.

Pure values. A shape is a pod by its number, as a namespace user may write it, and what becomes of it afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from multisched.model.gang import ACK_MIN, ACK_NAME, TOPOLOGY_ANNOTATION
from tests.perf import workload
from tests.perf.shapes import HOSTNAME, ZONE

PodOf = Callable[[int], dict[str, Any]]
"""Number -> the pod, without a schedulerName of its own."""

TENANT: Final = "tenant"
LENDER: Final = "lender"
TERMS: Final = 50
SELECTOR_BYTES: Final = 64 * 1024
VALUES_MAX: Final = 200
"""Values of one requirement, so that the selector stays below what the decoder reads."""

REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


@dataclass(frozen=True, slots=True)
class HostileShape:
    """`updates_per_s`: labels of this many of the tenant's pods are changed each second while the victims come."""

    name: str
    about: str
    pod: PodOf
    updates_per_s: int = 0
    replaces_per_s: int = 0
    """This many of the tenant's pods are deleted and created anew each second."""
    objects: Sequence[dict[str, Any]] = ()
    """What an administrator has made before."""
    displaced: PodOf | None = None
    """Pods of namespace `LENDER`, half as many, that are posted first: the tenant's may displace them."""


def bare(number: int) -> dict[str, Any]:
    """The smallest pod there is: ten thousand of them fit anywhere."""
    pod = workload.pod(f"hostile-{number:05}", "")
    room = {"cpu": "1m", "memory": "1Mi"}
    pod["spec"]["containers"][0] = {"name": "a", "image": "a", "resources": {"requests": room}}
    pod["metadata"]["labels"] = {"app": "hostile", "n": str(number)}
    return pod


def with_affinity(kind: str, strength: str, term: Callable[[int, int], dict[str, Any]], terms: int = TERMS) -> PodOf:
    """`term`: of the pod's number and its own."""

    def made(number: int) -> dict[str, Any]:
        pod, found = bare(number), [term(number, at) for at in range(terms)]
        if strength == PREFERRED:
            found = [{"weight": 1 + at % 100, "podAffinityTerm": one} for at, one in enumerate(found)]
        pod["spec"]["affinity"] = {kind: {strength: found}}
        return pod

    return made


def not_in(number: int, at: int) -> dict[str, Any]:
    """About nearly every pod of all namespaces."""
    return _term(ZONE, [_expression("app", "NotIn", f"v{number}-{at}")])


def both(number: int, at: int) -> dict[str, Any]:
    """About the victims, by two requirements of which no index takes both."""
    wanted = [_expression("app", "In", "victim", f"v{number}-{at}"), _expression("n", "NotIn", f"v{number}-{at}")]
    return _term(HOSTNAME, wanted)


def unheard(number: int, at: int) -> dict[str, Any]:
    """By topology keys that no node has."""
    return _term(f"example.com/k{number}-{at}", [_expression("app", "Exists")])


def nobody(number: int, at: int) -> dict[str, Any]:
    """Required anti-affinity that keeps nobody away, or nobody could be placed at all."""
    return _term(HOSTNAME, [_expression("app", "In", f"v{number}-{at}"), _expression(f"k{at}", "DoesNotExist")])


def everybody(number: int, at: int) -> dict[str, Any]:
    """Required affinity that every node meets once a pod stands in its zone."""
    return _term(ZONE, [_expression(f"k{number}-{at}", "DoesNotExist")])


def spread(number: int) -> dict[str, Any]:
    pod = bare(number)
    pod["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 1_000_000,
            "topologyKey": (ZONE, HOSTNAME)[at % 2],
            "whenUnsatisfiable": ("DoNotSchedule", "ScheduleAnyway")[at // 2 % 2],
            "labelSelector": {"matchExpressions": [_expression("n", "NotIn", f"v{number}-{at}")]},
        }
        for at in range(4)
    ]
    return pod


def wide_labels(number: int) -> dict[str, Any]:
    pod = bare(number)
    for at in range(SELECTOR_BYTES // 128):
        pod["metadata"]["labels"][f"k{number:05}-{at:04}".ljust(60, "x")] = f"v{number:05}-{at:04}".ljust(60, "y")
    return pod


def wide_selectors(number: int) -> dict[str, Any]:
    pod, each = bare(number), SELECTOR_BYTES // VALUES_MAX // 64
    terms = [
        _term(ZONE, [_expression("app", "NotIn", *(f"v{number}-{at}-{n}".ljust(60, "z") for n in range(VALUES_MAX)))])
        for at in range(each)
    ]
    weighted = [{"weight": 1, "podAffinityTerm": term} for term in terms]
    pod["spec"]["affinity"] = {"podAffinity": {PREFERRED: weighted}}
    return pod


def hopeless(number: int) -> dict[str, Any]:
    """Fits nowhere, and every pod that comes or goes has to be asked about."""
    pod = with_affinity(
        "podAffinity", REQUIRED, lambda n, at: _term(ZONE, [_expression("app", "In", f"never-{n}-{at}")])
    )(number)
    return pod


def gated(number: int) -> dict[str, Any]:
    """Behind a gate, with a node selector of many terms and a claim that is not there."""
    pod = bare(number)
    pod["spec"]["schedulingGates"] = [{"name": f"example.com/gate-{number}"}] if number % 2 else []
    pod["spec"]["volumes"] = [{"name": "c", "persistentVolumeClaim": {"claimName": f"none-{number}"}}]
    terms = [
        {"matchExpressions": [{"key": "disk", "operator": "NotIn", "values": [f"v{number}-{at}"]}]}
        for at in range(TERMS)
    ]
    pod["spec"]["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    return pod


def annotated(number: int) -> dict[str, Any]:
    pod = bare(number)
    pod["metadata"]["annotations"] = {f"example.com/a{at}": f"{number}-{at}".ljust(4_000, "a") for at in range(16)}
    return pod


def in_gangs(pod_of: PodOf, size: int, *, topology: str = "", is_stuck: bool = False) -> PodOf:
    """Gangs of so many of the pods. `topology`: as the annotation has it. `is_stuck`: no node takes the last member of each gang."""

    def made(number: int) -> dict[str, Any]:
        pod = pod_of(number)
        pod["metadata"]["labels"] |= {ACK_NAME: f"gang-{number // size:05}", ACK_MIN: str(size)}
        if topology:
            pod["metadata"].setdefault("annotations", {})[TOPOLOGY_ANNOTATION] = topology
        if is_stuck and number % size == size - 1:
            nobody = _term(ZONE, [_expression("app", "In", f"never-{number}")])
            pod["spec"].setdefault("affinity", {}).setdefault("podAffinity", {})[REQUIRED] = [nobody]
        return pod

    return made


def urgent(number: int) -> dict[str, Any]:
    pod = bare(number)
    pod["spec"]["priorityClassName"] = URGENT["metadata"]["name"]
    return pod


def _leaf(name: str, sure: str) -> dict[str, Any]:
    return {"name": f"root.{name}", "namespaces": [name], "min": {"cpu": sure}, "max": {"cpu": QUOTA_CPU}}


def near_its_gang(number: int, at: int) -> dict[str, Any]:
    """Required affinity to pods of the own kind, so that members wait for one another."""
    return _term(ZONE, [_expression("app", "In", "hostile", f"v{number}-{at}")])


def _expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def _term(topology: str, expressions: list[dict[str, Any]]) -> dict[str, Any]:
    return {"topologyKey": topology, "namespaceSelector": {}, "labelSelector": {"matchExpressions": expressions}}


QUOTA_CPU: Final = "400m"
"""Fewer than the lender's pods ask for, so that the quota is full; enough for two gangs of 200."""
TREE: Final[dict[str, Any]] = {
    "apiVersion": "scheduling.sigs.k8s.io/v1beta1",
    "kind": "ElasticQuotaTree",
    "metadata": {"name": "tree", "namespace": "kube-system"},
    "spec": {
        "root": {
            "name": "root",
            "min": {"cpu": QUOTA_CPU},
            "max": {"cpu": QUOTA_CPU},
            "children": [_leaf(LENDER, "0"), _leaf(TENANT, QUOTA_CPU)],
        }
    },
}
URGENT: Final[dict[str, Any]] = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 1000,
}

SHAPES: Final = (
    HostileShape("preferred", "50 preferred terms about everybody", with_affinity("podAffinity", PREFERRED, not_in)),
    HostileShape("two-part", "50 preferred terms about the victims", with_affinity("podAntiAffinity", PREFERRED, both)),
    HostileShape("avoiding", "50 required anti-affinity terms", with_affinity("podAntiAffinity", REQUIRED, nobody)),
    HostileShape("clinging", "50 required affinity terms", with_affinity("podAffinity", REQUIRED, everybody)),
    HostileShape("unheard", "50 topology keys no node has", with_affinity("podAffinity", PREFERRED, unheard)),
    HostileShape("spreading", "4 spread constraints, all different", spread),
    HostileShape("labelled", "64 KiB of labels", wide_labels),
    HostileShape("selecting", "64 KiB of selectors", wide_selectors),
    HostileShape("hopeless", "affinity nobody meets, beside churn", hopeless, replaces_per_s=20),
    HostileShape(
        "churning", "labels changed 1,000 times a second", with_affinity("podAffinity", PREFERRED, not_in), 1_000
    ),
    HostileShape(
        "gang-wide",
        "gangs of 400, 10 preferred terms, one stuck",
        in_gangs(with_affinity("podAffinity", PREFERRED, not_in, 10), 400, is_stuck=True),
    ),
    HostileShape(
        "gang-domains",
        "gangs of 100, 10 preferred terms, two topology levels, one stuck",
        in_gangs(
            with_affinity("podAffinity", PREFERRED, not_in, 10), 100, topology=f"{ZONE},{HOSTNAME}", is_stuck=True
        ),
    ),
    HostileShape(
        "gang-near",
        "gangs of 100 with required affinity to one another",
        in_gangs(with_affinity("podAffinity", REQUIRED, near_its_gang, 10), 100, is_stuck=True),
    ),
    HostileShape("gang-tiny", "gangs of two that come and go", in_gangs(bare, 2, is_stuck=True), replaces_per_s=100),
    HostileShape(
        "gang-preempt",
        "urgent gangs of 200 beside pods that they may displace, one stuck",
        in_gangs(urgent, 200, is_stuck=True),
        objects=[URGENT],
        displaced=bare,
        replaces_per_s=20,
    ),
    HostileShape(
        "gang-reclaim",
        "gangs of 200 whose full quota others have borrowed, one stuck",
        in_gangs(bare, 200, is_stuck=True),
        objects=[TREE],
        displaced=bare,
        replaces_per_s=20,
    ),
    HostileShape("gated", "gates, claims and 50 node terms", gated),
    HostileShape("annotated", "64 KiB of annotations", annotated),
)
BY_NAME: Final[Mapping[str, HostileShape]] = {shape.name: shape for shape in SHAPES}
