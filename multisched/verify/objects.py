"""Pods, nodes, volumes and claims for the judge, read from the API's JSON.

An unreadable part of an object is listed in `Problems` and counts as missing; the rest of the object is judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from multisched.verify.cards import POD_KEYS, Held, NodeCards, cards_of_node, cards_of_pod, without_emptied
from multisched.verify.demands import Demand, HostPort, Requests, demand_of, host_ports
from multisched.verify.fields import Json, Unreadable, flag, integer, mapping, moment, objects, strings, text, texts
from multisched.verify.quantities import amounts, whole_units
from multisched.verify.selectors import (
    Labels,
    LabelSelector,
    NodeSelector,
    Taint,
    Toleration,
    label_selector,
    node_selector,
    tolerations,
)

T = TypeVar("T")
Order = tuple[float, bool, int, int, str]
"""Sort key of pods by the time of their placement."""
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a pod that a kubelet runs on its own: no scheduler places it."""
ZONE_LABELS = {
    "topology.kubernetes.io/zone": "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/region": "failure-domain.beta.kubernetes.io/region",
}
"""Current label -> its former name."""
UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""The taint that `spec.unschedulable` is equivalent to."""
_NO_DEMAND = Demand({}, {})
_NO_LABELS: dict[str, str] = {}
_NO_ROOM: Requests = {}


class Problem(NamedTuple):
    """An unreadable part of the input."""

    object: str
    problem: str


class Problems:
    """Collects the problems of all objects."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, what: str, problem: str) -> None:
        self.found.append(Problem(what, problem))

    def part(self, what: str, where: str, default: T, read: Callable[..., T], *args: object) -> T:
        """Returns the result of `read`; if that raises Unreadable, reports a problem and returns the default."""
        try:
            return read(*args)
        except Unreadable as error:
            self.add(what, f"{where}.{error}" if where else str(error))
            return default


@dataclass(frozen=True, slots=True)
class Query:
    """Selects the pods of a term or a constraint, by labels and namespaces."""

    selector: LabelSelector
    namespaces: frozenset[str]
    namespace_selector: LabelSelector | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """A required term of pod affinity or anti-affinity. Without a query it matches no pod."""

    topology_key: str
    query: Query | None


@dataclass(frozen=True, slots=True)
class Spread:
    """A topology spread constraint with DoNotSchedule."""

    topology_key: str
    max_skew: int
    min_domains: int
    query: Query | None
    honors_affinity: bool
    honors_taints: bool


@dataclass(frozen=True, slots=True)
class Disk:
    """An inline volume of a pod, of a kind that one node may use only once."""

    kind: str
    ids: frozenset[str]
    """Two disks of a kind are the same if they share any id."""
    is_read_only: bool

    def collides(self, other: Disk) -> bool:
        if self.kind != other.kind or not self.ids & other.ids:
            return False
        return self.kind == "awsElasticBlockStore" or not (self.is_read_only and other.is_read_only)


@dataclass(slots=True)
class Pod:
    """A pod that has a node and has not ended."""

    uid: str
    name: str
    namespace: str
    node: str
    scheduler: str
    labels: Labels
    annotations: Labels
    is_terminating: bool
    is_mirror: bool
    created_s: float | None
    placed_s: float | None
    """Time of binding, else of start, else of creation; None if unknown."""
    demand: Demand
    ports: tuple[HostPort, ...]
    tolerations: tuple[Toleration, ...]
    node_labels: tuple[tuple[str, str], ...]
    """spec.nodeSelector."""
    node_affinity: NodeSelector | None
    affinity: tuple[Term, ...]
    anti_affinity: tuple[Term, ...]
    spread: tuple[Spread, ...]
    claims: tuple[str, ...]
    disks: tuple[Disk, ...]
    held: Mapping[str, Held]
    """GPU cards by the annotations of each sharing system."""
    order: Order = field(init=False)
    """Among pods of the same time, those with the fewest demands come first, so that few are reported."""

    def __post_init__(self) -> None:
        most, placed_s = self.demand.most, self.placed_s
        when = placed_s if placed_s is not None else math.inf
        self.order = (when, bool(self.anti_affinity), most.get("cpu", 0), most.get("memory", 0), self.key)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def accepts(self, node: Node) -> bool:
        """Reports whether its nodeSelector and required node affinity match the node."""
        labels = node.labels
        if any(labels.get(key) != value for key, value in self.node_labels):
            return False
        return self.node_affinity is None or self.node_affinity.matches(labels, node.name)


@dataclass(slots=True)
class Node:
    name: str
    labels: Labels
    annotations: Labels
    created_s: float | None
    allocatable: Requests | None
    """None if unreadable: resources are not judged then."""
    capacity: Requests
    taints: tuple[Taint, ...]
    is_unschedulable: bool
    cards: NodeCards


@dataclass(slots=True)
class Claim:
    """A PersistentVolumeClaim."""

    key: str
    uid: str
    volume: str
    storage_class: str
    is_exclusive: bool
    """ReadWriteOncePod."""


@dataclass(slots=True)
class Volume:
    """A PersistentVolume."""

    name: str
    claim: str
    claim_uid: str
    node_affinity: NodeSelector | None
    zones: tuple[tuple[str, frozenset[str]], ...]
    driver: str
    handle: str


def name_of(document: Json) -> tuple[str, str, str]:
    """Returns (name, namespace, uid). Raises Unreadable if there is no name."""
    metadata = mapping(document, "metadata")
    name = text(metadata, "name")
    if not name:
        raise Unreadable("metadata.name: is missing")
    return name, text(metadata, "namespace"), text(metadata, "uid")


def is_over(document: Json) -> bool:
    return text(mapping(document, "status"), "phase") in ("Succeeded", "Failed")


def node_name_of(document: Json) -> str:
    return text(mapping(document, "spec"), "nodeName")


def read_pod(document: Json, problems: Problems) -> Pod:
    """Reads a pod. Raises Unreadable if its name or node is unreadable."""
    name, namespace, uid = name_of(document)
    namespace = namespace or "default"
    metadata, spec, status = mapping(document, "metadata"), mapping(document, "spec"), mapping(document, "status")
    what = f"pod {namespace}/{name}"
    labels = problems.part(what, "metadata", _NO_LABELS, strings, metadata, "labels")
    annotations = without_emptied(problems.part(what, "metadata", _NO_LABELS, strings, metadata, "annotations"))
    created_s = problems.part(what, "metadata", None, moment, metadata, "creationTimestamp")
    placed_s = problems.part(what, "status", None, _placed, status)
    required = problems.part(what, "spec", _NO_AFFINITY, _affinity, spec, namespace)
    claims, disks = problems.part(what, "spec", _NO_VOLUMES, _volumes, spec, name)
    demand = problems.part(what, "", _NO_DEMAND, demand_of, document)
    return Pod(
        uid=uid or f"{namespace}/{name}",
        name=name,
        namespace=namespace,
        node=text(spec, "nodeName"),
        scheduler=problems.part(what, "spec", "", text, spec, "schedulerName"),
        labels=labels,
        annotations=annotations,
        is_terminating=metadata.get("deletionTimestamp") is not None,
        is_mirror=MIRROR in annotations,
        created_s=created_s,
        placed_s=placed_s if placed_s is not None else created_s,
        demand=demand,
        ports=problems.part(what, "", (), host_ports, document),
        tolerations=problems.part(what, "spec", (), tolerations, spec, "tolerations"),
        node_labels=tuple(sorted(problems.part(what, "spec", _NO_LABELS, strings, spec, "nodeSelector").items())),
        node_affinity=required[0],
        affinity=required[1],
        anti_affinity=required[2],
        spread=problems.part(what, "spec", (), _spread, spec, namespace, labels),
        claims=claims,
        disks=disks,
        held=_held(annotations, demand, spec, partial(problems.add, what)),
    )


_NOTHING_HELD: Mapping[str, Held] = {}


def _held(annotations: Labels, demand: Demand, spec: Json, report: Callable[[str], None]) -> Mapping[str, Held]:
    if POD_KEYS.keys().isdisjoint(annotations):
        return _NOTHING_HELD
    init = spec.get("initContainers")
    return cards_of_pod(annotations, demand.most, len(init) if isinstance(init, list) else 0, report)


_Affinity = tuple[NodeSelector | None, tuple[Term, ...], tuple[Term, ...]]
_NO_AFFINITY: _Affinity = (None, (), ())


def _placed(status: Json) -> float | None:
    for one in objects(status, "conditions"):
        if text(one, "type") == "PodScheduled" and text(one, "status") == "True":
            placed_s = moment(one, "lastTransitionTime")
            if placed_s is not None:
                return placed_s
    return moment(status, "startTime")


def _affinity(spec: Json, namespace: str) -> _Affinity:
    affinity = mapping(spec, "affinity")
    if not affinity:
        return _NO_AFFINITY
    terms = [
        tuple(_term(one, namespace) for one in objects(mapping(affinity, kind), REQUIRED))
        for kind in ("podAffinity", "podAntiAffinity")
    ]
    return node_selector(mapping(affinity, "nodeAffinity"), REQUIRED), terms[0], terms[1]


def _term(document: Json, namespace: str) -> Term:
    """Reads an affinity term. The API server has merged matchLabelKeys and mismatchLabelKeys into its selector."""
    selector = label_selector(document, "labelSelector")
    names, by_labels = frozenset(texts(document, "namespaces")), label_selector(document, "namespaceSelector")
    if not names and by_labels is None:
        names = frozenset((namespace,))
    query = None if selector is None else Query(selector, names, by_labels)
    return Term(_topology_key(document), query)


def _spread(spec: Json, namespace: str, labels: Labels) -> tuple[Spread, ...]:
    found = []
    for one in objects(spec, "topologySpreadConstraints"):
        if text(one, "whenUnsatisfiable") != "DoNotSchedule":
            continue
        selector = label_selector(one, "labelSelector")
        if selector is not None:
            keys = texts(one, "matchLabelKeys")
            selector = selector.with_labels({key: labels[key] for key in keys if key in labels})
        query = None if selector is None else Query(selector, frozenset((namespace,)))
        found.append(
            Spread(
                _topology_key(one),
                integer(one, "maxSkew", 1),
                integer(one, "minDomains", 1),
                query,
                honors_affinity=text(one, "nodeAffinityPolicy", "Honor") == "Honor",
                honors_taints=text(one, "nodeTaintsPolicy", "Ignore") == "Honor",
            )
        )
    return tuple(found)


def _topology_key(document: Json) -> str:
    key = text(document, "topologyKey")
    if not key:
        raise Unreadable("topologyKey: is missing; name a label of nodes")
    return key


_Volumes = tuple[tuple[str, ...], tuple[Disk, ...]]
_NO_VOLUMES: _Volumes = ((), ())


def _volumes(spec: Json, pod: str) -> _Volumes:
    """Returns its claims and its inline disks."""
    claims: list[str] = []
    disks: list[Disk] = []
    for volume in objects(spec, "volumes"):
        if volume.get("persistentVolumeClaim") is not None:
            claims.append(text(mapping(volume, "persistentVolumeClaim"), "claimName"))
        if volume.get("ephemeral") is not None:
            claims.append(f"{pod}-{text(volume, 'name')}")
        disks.extend(Disk(kind, *_disk(kind, mapping(volume, kind))) for kind in _DISKS if volume.get(kind) is not None)
    return tuple(claims), tuple(disks)


_DISKS = ("gcePersistentDisk", "awsElasticBlockStore", "iscsi", "rbd")


def _disk(kind: str, disk: Json) -> tuple[frozenset[str], bool]:
    is_read_only = flag(disk, "readOnly")
    match kind:
        case "gcePersistentDisk":
            return frozenset((text(disk, "pdName"),)), is_read_only
        case "awsElasticBlockStore":
            return frozenset((text(disk, "volumeID"),)), is_read_only
        case "iscsi":
            return frozenset((text(disk, "iqn"),)), is_read_only
    image = f"{text(disk, 'pool', 'rbd')}/{text(disk, 'image')}"
    return frozenset(f"{monitor} {image}" for monitor in texts(disk, "monitors")), is_read_only


def read_node(document: Json, problems: Problems) -> Node:
    """Reads a node. Raises Unreadable if it has no name."""
    name, _, _ = name_of(document)
    metadata, spec, status = mapping(document, "metadata"), mapping(document, "spec"), mapping(document, "status")
    what = f"node {name}"
    annotations = problems.part(what, "metadata", _NO_LABELS, strings, metadata, "annotations")
    room = problems.part(what, "status", None, _room, status, "allocatable")
    capacity: Requests = problems.part(what, "", _NO_ROOM, _room, status, "capacity") if status.get("capacity") else {}
    return Node(
        name,
        problems.part(what, "metadata", _NO_LABELS, strings, metadata, "labels"),
        annotations,
        problems.part(what, "metadata", None, moment, metadata, "creationTimestamp"),
        room,
        capacity,
        problems.part(what, "spec", (), _taints, spec),
        problems.part(what, "spec", False, flag, spec, "unschedulable"),
        cards_of_node(annotations, room or {}, capacity, partial(problems.add, what)),
    )


def _room(status: Json, field_name: str) -> Requests:
    if status.get(field_name) is None:
        raise Unreadable(f"{field_name}: is missing; sums on this node are not judged")
    return {name: whole_units(name, amount) for name, amount in amounts(status, field_name).items()}


def _taints(spec: Json) -> tuple[Taint, ...]:
    return tuple(
        Taint(text(one, "key"), text(one, "value"), text(one, "effect"), moment(one, "timeAdded"))
        for one in objects(spec, "taints")
    )


def read_claim(document: Json, problems: Problems) -> Claim:
    name, namespace, uid = name_of(document)
    spec = mapping(document, "spec")
    return Claim(
        f"{namespace or 'default'}/{name}",
        uid,
        text(spec, "volumeName"),
        text(spec, "storageClassName"),
        "ReadWriteOncePod" in texts(spec, "accessModes"),
    )


def read_volume(document: Json, problems: Problems) -> Volume:
    name, _, _ = name_of(document)
    spec = mapping(document, "spec")
    labels = strings(mapping(document, "metadata"), "labels")
    claim, csi = mapping(spec, "claimRef"), mapping(spec, "csi")
    known = {label: label for label in ZONE_LABELS} | {old: label for label, old in ZONE_LABELS.items()}
    zones = tuple((known[key], frozenset(value.split("__"))) for key, value in labels.items() if key in known)
    return Volume(
        name,
        f"{text(claim, 'namespace')}/{text(claim, 'name')}" if claim else "",
        text(claim, "uid"),
        node_selector(mapping(spec, "nodeAffinity"), "required"),
        zones,
        text(csi, "driver"),
        text(csi, "volumeHandle"),
    )


def read_limits(document: Json, problems: Problems) -> tuple[str, dict[str, int]]:
    """Reads a CSINode. Returns its node, and driver -> maximum number of volumes."""
    name, _, _ = name_of(document)
    found = {}
    for driver in objects(mapping(document, "spec"), "drivers"):
        room = mapping(driver, "allocatable")
        if room.get("count") is not None:
            found[text(driver, "name")] = integer(room, "count")
    return name, found
