"""For each plugin: events that help wake the pod that it refused, and events that do not leave it where it is.

A row is told by the two versions of one object, as the watch shows it: the product itself makes the events of them, and the
queue, with nobody but this plugin to ask, moves the pod or does not. Source of the rules: kube-scheduler 1.36, the plugins'
EventsToRegister and their hints; what differs says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from multisched.framework.events import (
    ASSIGNED_POD_ADD,
    ASSIGNED_POD_DELETE,
    NODE_ADD,
    NODE_DELETE,
    Action,
    ClusterEvent,
    EventObject,
)
from multisched.framework.points import (
    EnqueueExtensions,
    FilterPlugin,
    PermitPlugin,
    Plugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    ReservePlugin,
)
from multisched.framework.registry import PluginUse, Registry
from multisched.model.cluster_objects import ClusterObject
from multisched.model.gang import ACK_MIN, ACK_NAME
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.model.quotas.koordinator import POD_LABEL
from multisched.plugins import IN_TREE
from multisched.plugins.priority_sort import PrioritySort
from multisched.queueing.entry import Failure, ParkedPodFilter
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.transitions import QueueState
from multisched.shell.ingest.cluster_changes import assigned_pod_events, node_events
from multisched.state.object_store import ObjectStore
from multisched.testing.builders import Document, container, decode_node, decode_pod, node_document, pod_document
from tests.unit.model.quotas.quota_documents import linked
from tests.unit.plugins.scenes import context_of, put
from tests.unit.plugins.volumes import storage_documents as storage

QUOTAS = (
    linked("red", 1, 4, namespaces=["red"]),
    linked("blue", 0, 4, namespaces=["blue"]),
    linked("full", 0, 0, namespaces=["full"]),
    linked("tight", 0, 0, is_parent="true"),
    linked("left", 0, 4, "tight"),
    linked("right", 0, 4, "tight"),
)
"""Nobody who waits by other plugins is in their namespaces."""
PARKED_S = 600.0
"""When the event comes: the backoff is over, and there is no leftover flush."""


NEVER_REFUSING = {"DynamicResources"}
"""Looks on in PreFilter; pods with claims are refused before they come to a queue."""


@dataclass(frozen=True)
class Row:
    """`waiting` was refused by `plugin`; then the object changes from `old` to `new` (None: it came, it went)."""

    plugin: str
    what: str
    waiting: Pod
    old: EventObject
    new: EventObject
    is_help: bool
    priority_max: float = math.inf

    def __str__(self) -> str:
        return f"{self.plugin}: {self.what} {'helps' if self.is_help else 'does not help'}"


def pod(name: str = "waiting", *, labels: Mapping[str, str] | None = None, **fields: Any) -> Pod:
    """`node`, `nominated`, `cpu` (milli) and more of one container beside fields of the spec, and `namespace`."""
    of_container: Document = {key: fields.pop(key) for key in ("memory", "extra", "ports") if key in fields}
    if "cpu" in fields:
        of_container["cpu"] = f"{fields.pop('cpu')}m"
    status = {"phase": "Pending", "nominatedNodeName": fields.pop("nominated", "")}
    is_deleting = fields.pop("deleting", False)
    made = decode_pod(pod_document(name, container(**of_container), labels=labels or {}, status=status, **fields))
    return replace(made, is_deleting=is_deleting)


def node(name: str = "n", **fields: Any) -> Node:
    """`cpu` in milli."""
    status = {"declaredFeatures": fields.pop("features", [])}
    return decode_node(node_document(name, cpu=f"{fields.pop('cpu', 4000)}m", status=status, **fields))


def thing(kind: ObjectKind, document: Document) -> ClusterObject:
    return kind.definition.decode(orjson.dumps(document))


def plugin_of(name: str) -> Plugin:
    objects = ObjectStore()
    put(objects, ObjectKind.NAMESPACE, {"metadata": {"name": "default", "labels": {}}})
    for quota in QUOTAS:
        put(objects, ObjectKind.KOORDINATOR_QUOTA, quota)
    registry = Registry()
    registry.add_all(IN_TREE, "in-tree")
    return registry.build(PluginUse(name), context_of(objects=objects))


def tell(queue: PodQueue, row: Row) -> None:
    """The events that the product makes of the two versions."""
    old, new = row.old, row.new
    match old, new:
        case (None, Node()):
            events = [NODE_ADD]
        case (Node(), None):
            events = [NODE_DELETE]
        case (Node(), Node()):
            events = list(node_events(old, new))
        case (Pod(), Pod()) if new.uid == row.waiting.uid:
            queue.update(old, new, PARKED_S)
            return
        case (None, Pod()):
            events = [ASSIGNED_POD_ADD]
        case (Pod(), None):
            events = [ASSIGNED_POD_DELETE]
        case (Pod(), Pod()):
            events = list(assigned_pod_events(old, new))
        case _:
            events = [_object_event(old, new)]
    for event in events:
        queue.on_event(event, old, new, PARKED_S, ParkedPodFilter(priority_max=row.priority_max))


def _object_event(old: EventObject, new: EventObject) -> ClusterEvent:
    name = type(new if new is not None else old).__name__
    (kind,) = (kind for kind in ObjectKind if kind.value.lower() == name.lower())
    action = Action.ADD if old is None else Action.DELETE if new is None else Action.UPDATE
    return ClusterEvent(kind, action, f"{name}{action.name}")


def fail(plugin: str, point: str, error: Exception) -> None:
    raise AssertionError(f"{plugin} failed at {point}") from error


# -- the table ---------------------------------------------------------------------------------------------------------

ROOM: dict[str, Any] = {"cpu": 2000, "memory": 1 << 30}
BIG = pod(cpu=1000, memory=1 << 20)
GPU = pod(extra={"nvidia.com/gpu": 1})

FIT = [
    Row("NodeResourcesFit", "a node with room", BIG, None, node(**ROOM), True),
    Row("NodeResourcesFit", "a node too small even when empty", BIG, None, node(cpu=999), False),
    Row("NodeResourcesFit", "a node for no pods", BIG, None, node(**ROOM, pods=0), False),
    Row("NodeResourcesFit", "a node for a single pod", BIG, None, node(**ROOM, pods=1), True),
    Row("NodeResourcesFit", "a node that lacks the GPU", GPU, None, node(), False),
    Row("NodeResourcesFit", "a node that has the GPU", GPU, None, node(extra={"nvidia.com/gpu": 1}), True),
    Row("NodeResourcesFit", "more CPU", BIG, node(cpu=500), node(cpu=1000), True),
    Row("NodeResourcesFit", "more CPU, still too little", BIG, node(cpu=500), node(cpu=900), False),
    Row("NodeResourcesFit", "less CPU", BIG, node(cpu=3000), node(cpu=2000), False),
    Row("NodeResourcesFit", "the first GPU", GPU, node(), node(extra={"nvidia.com/gpu": 1}), True),
    Row("NodeResourcesFit", "the last GPU goes", GPU, node(extra={"nvidia.com/gpu": 1}), node(), False),
    Row("NodeResourcesFit", "more of what the pod does not ask for", GPU, node(cpu=1), node(cpu=9), False),
    Row("NodeResourcesFit", "room for more pods", BIG, node(pods=1), node(pods=2), True),
    Row("NodeResourcesFit", "another label", BIG, node(), node(labels={"a": "b"}), False),
    Row("NodeResourcesFit", "a node that is gone", BIG, node(), None, False),
    Row("NodeResourcesFit", "a pod that is gone from its node", BIG, pod("x", node="n", cpu=1), None, True),
    Row("NodeResourcesFit", "a pending pod that is gone", BIG, pod("x", cpu=1), None, False),
    Row("NodeResourcesFit", "a nominated pod that is gone", BIG, pod("x", nominated="n"), None, True),
    Row("NodeResourcesFit", "a pod that has come", BIG, None, pod("x", node="n"), False),
    Row(
        "NodeResourcesFit", "a pod that asks for less", BIG, pod("x", node="n", cpu=9), pod("x", node="n", cpu=8), True
    ),
    Row(
        "NodeResourcesFit",
        "a pod that asks for less of something else",
        GPU,
        pod("x", node="n", cpu=9),
        pod("x", node="n", cpu=8),
        False,
    ),
    Row(
        "NodeResourcesFit", "a pod that asks for more", BIG, pod("x", node="n", cpu=8), pod("x", node="n", cpu=9), False
    ),
    Row("NodeResourcesFit", "a smaller request of its own", BIG, BIG, pod(cpu=900, memory=1 << 20), True),
    Row("NodeResourcesFit", "a larger request of its own", BIG, BIG, pod(cpu=1100, memory=1 << 20), False),
    Row("NodeResourcesFit", "a label of its own", BIG, BIG, pod(cpu=1000, memory=1 << 20, labels={"a": "b"}), False),
    Row("NodeResourcesFit", "a promise to a lower pod", pod(priority=5), pod("x", nominated="n"), None, False, 0),
]

TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}
SOFT = {**TAINT, "effect": "PreferNoSchedule"}
TOLERATES_K = [{"key": "k", "operator": "Exists"}]
TAINTS = [
    Row("TaintToleration", "a node without taints", pod(), None, node(), True),
    Row("TaintToleration", "a tainted node", pod(), None, node(taints=[TAINT]), False),
    Row(
        "TaintToleration",
        "a node with a taint it tolerates",
        pod(tolerations=TOLERATES_K),
        None,
        node(taints=[TAINT]),
        True,
    ),
    Row("TaintToleration", "a softly tainted node", pod(), None, node(taints=[SOFT]), True),
    Row("TaintToleration", "a taint that went", pod(), node(taints=[TAINT]), node(), True),
    Row("TaintToleration", "a taint that came", pod(), node(), node(taints=[TAINT]), False),
    Row("TaintToleration", "a soft taint that went", pod(), node(taints=[SOFT]), node(), False),
    Row("TaintToleration", "another label", pod(), node(), node(labels={"a": "b"}), False),
    Row("TaintToleration", "a node uncordoned", pod(), node(unschedulable=True), node(), False),
    Row("TaintToleration", "a pod that is gone", pod(), pod("x", node="n"), None, False),
    Row("TaintToleration", "a toleration of its own", pod(), pod(), pod(tolerations=TOLERATES_K), True),
    Row("TaintToleration", "a label of its own", pod(), pod(), pod(labels={"a": "b"}), False),
]

CORDON = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]
UNSCHEDULABLE = [
    Row("NodeUnschedulable", "a node", pod(), None, node(), True),
    Row("NodeUnschedulable", "a cordoned node", pod(), None, node(unschedulable=True), False),
    Row("NodeUnschedulable", "a node uncordoned", pod(), node(unschedulable=True), node(), True),
    Row("NodeUnschedulable", "a node cordoned", pod(), node(), node(unschedulable=True), False),
    Row("NodeUnschedulable", "a taint that went", pod(), node(taints=[TAINT]), node(), False),
    Row("NodeUnschedulable", "a toleration of the cordon", pod(), pod(), pod(tolerations=CORDON), True),
    Row("NodeUnschedulable", "another toleration", pod(), pod(), pod(tolerations=TOLERATES_K), False),
]

ON_SSD = pod(nodeSelector={"disk": "ssd"})
AFFINITY = [
    Row("NodeAffinity", "a node that matches", ON_SSD, None, node(labels={"disk": "ssd"}), True),
    Row("NodeAffinity", "a node that does not", ON_SSD, None, node(labels={"disk": "hdd"}), False),
    Row("NodeAffinity", "a label that matches now", ON_SSD, node(), node(labels={"disk": "ssd"}), True),
    Row("NodeAffinity", "a label that matches no more", ON_SSD, node(labels={"disk": "ssd"}), node(), False),
    Row(
        "NodeAffinity",
        "a label beside one that matched",
        ON_SSD,
        node(labels={"disk": "ssd"}),
        node(labels={"disk": "ssd", "a": "b"}),
        False,
    ),
    Row("NodeAffinity", "more CPU", ON_SSD, node(cpu=1), node(cpu=2), False),
    Row("NodeAffinity", "a pod that is gone", ON_SSD, pod("x", node="n"), None, False),
]

NAMES = [
    Row("NodeName", "a node", pod(), None, node(), True),
    Row("NodeName", "a node that changed", pod(), node(), node(labels={"a": "b"}), False),
    Row("NodeName", "a pod that is gone", pod(), pod("x", node="n"), None, False),
]


def ports(*numbers: int, ip: str = "", protocol: str = "TCP") -> list[Document]:
    return [{"hostPort": number, "hostIP": ip, "protocol": protocol} for number in numbers]


WEB = pod(ports=ports(80))
PORTS = [
    Row("NodePorts", "a node", WEB, None, node(), True),
    Row("NodePorts", "a node that changed", WEB, node(), node(cpu=1), False),
    Row("NodePorts", "the pod that had the port is gone", WEB, pod("x", node="n", ports=ports(80)), None, True),
    Row("NodePorts", "a pod with another port is gone", WEB, pod("x", node="n", ports=ports(81)), None, False),
    Row(
        "NodePorts",
        "a pod with the port of UDP is gone",
        WEB,
        pod("x", node="n", ports=ports(80, protocol="UDP")),
        None,
        False,
    ),
    Row(
        "NodePorts",
        "a pod with the port on one address",
        WEB,
        pod("x", node="n", ports=ports(80, ip="10.0.0.1")),
        None,
        True,
    ),
    Row("NodePorts", "a pod without ports is gone", WEB, pod("x", node="n"), None, False),
    Row("NodePorts", "a pending pod with the port is gone", WEB, pod("x", ports=ports(80)), None, False),
    Row("NodePorts", "one that was promised it is gone", WEB, pod("x", nominated="n", ports=ports(80)), None, True),
    Row("NodePorts", "a pod that has come", WEB, None, pod("x", node="n", ports=ports(80)), False),
]

GATED = pod(schedulingGates=[{"name": "g"}, {"name": "h"}])
GATES = [
    Row("SchedulingGates", "its last gate is gone", GATED, GATED, pod(), True),
    Row("SchedulingGates", "a gate is left", GATED, GATED, pod(schedulingGates=[{"name": "h"}]), False),
    Row("SchedulingGates", "a node", GATED, None, node(), False),
    Row("SchedulingGates", "a pod that is gone", GATED, pod("x", node="n"), None, False),
]

OVER_ZONES = {
    "maxSkew": 1,
    "topologyKey": "zone",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": "web"}},
}
SPREAD = pod(labels={"app": "web"}, topologySpreadConstraints=[OVER_ZONES])
SPREAD_AND_MORE = pod(labels={"app": "web", "more": "x"}, topologySpreadConstraints=[OVER_ZONES])
BY_REVISION, BY_ANOTHER_REVISION = (
    pod(
        labels={"app": "web", "rev": revision},
        topologySpreadConstraints=[{**OVER_ZONES, "matchLabelKeys": ["rev"]}],
    )
    for revision in "12"
)
OTHER_APP, WEB_APP = {"app": "db"}, {"app": "web"}
SERVICE = thing(
    ObjectKind.SERVICE, {"metadata": {"name": "web", "namespace": "default"}, "spec": {"selector": {"app": "web"}}}
)
SPREADS = [
    Row("PodTopologySpread", "a pod that counts has come", SPREAD, None, pod("x", node="n", labels=WEB_APP), True),
    Row("PodTopologySpread", "a pod that counts is gone", SPREAD, pod("x", node="n", labels=WEB_APP), None, True),
    Row(
        "PodTopologySpread",
        "a pod that does not count is gone",
        SPREAD,
        pod("x", node="n", labels=OTHER_APP),
        None,
        False,
    ),
    Row("PodTopologySpread", "a pod that does not count has come", SPREAD, None, pod("x", node="n"), False),
    Row(
        "PodTopologySpread",
        "a pod of another namespace is gone",
        SPREAD,
        pod("x", node="n", labels=WEB_APP, namespace="other"),
        None,
        False,
    ),
    Row(
        "PodTopologySpread",
        "a pod counts no more",
        SPREAD,
        pod("x", node="n", labels=WEB_APP),
        pod("x", node="n", labels=OTHER_APP),
        True,
    ),
    Row(
        "PodTopologySpread",
        "a pod changes a label that does not count",
        SPREAD,
        pod("x", node="n", labels=WEB_APP),
        pod("x", node="n", labels={**WEB_APP, "a": "b"}),
        False,
    ),
    Row("PodTopologySpread", "a label of its own", BY_REVISION, BY_REVISION, BY_ANOTHER_REVISION, True),
    Row("PodTopologySpread", "a label of its own that no rule is about", SPREAD, SPREAD, SPREAD_AND_MORE, False),
    Row("PodTopologySpread", "a node with the key", SPREAD, None, node(labels={"zone": "a"}), True),
    Row("PodTopologySpread", "a node without the key", SPREAD, None, node(), False),
    Row("PodTopologySpread", "a node with the key is gone", SPREAD, node(labels={"zone": "a"}), None, True),
    Row("PodTopologySpread", "a node without the key is gone", SPREAD, node(), None, False),
    Row("PodTopologySpread", "a node moves", SPREAD, node(labels={"zone": "a"}), node(labels={"zone": "b"}), True),
    Row("PodTopologySpread", "another label", SPREAD, node(), node(labels={"a": "b"}), False),
    Row(
        "PodTopologySpread",
        "a pod that counts is being deleted",
        SPREAD,
        pod("x", node="n", labels=WEB_APP),
        pod("x", node="n", labels=WEB_APP, deleting=True),
        True,
    ),
    Row(
        "PodTopologySpread",
        "the emptiest domain is for others now",
        pod(labels={"app": "web"}, topologySpreadConstraints=[OVER_ZONES], nodeSelector={"pool": "a"}),
        node(labels={"zone": "a", "pool": "a"}),
        node(labels={"zone": "a", "pool": "b"}),
        True,
    ),
    Row("PodTopologySpread", "a service, beside constraints of its own", SPREAD, None, SERVICE, False),
    Row("PodTopologySpread", "more CPU", SPREAD, node(cpu=1), node(cpu=2), False),
]


def with_terms(kind: str, labels: Mapping[str, str] | None = None, name: str = "waiting", **fields: Any) -> Pod:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
    return pod(
        name, labels=labels, affinity={kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}, **fields
    )


NEAR, FAR = with_terms("podAffinity"), with_terms("podAntiAffinity")
KEPT_AWAY, SERIES = pod(labels=WEB_APP), with_terms("podAffinity", WEB_APP)
NAMESPACE = thing(ObjectKind.NAMESPACE, {"metadata": {"name": "late", "labels": {"team": "a"}}})
TERMS = [
    Row("InterPodAffinity", "a pod to be near has come", NEAR, None, pod("x", node="n", labels=WEB_APP), True),
    Row("InterPodAffinity", "another pod has come", NEAR, None, pod("x", node="n", labels=OTHER_APP), False),
    Row("InterPodAffinity", "a pod to be near is gone", NEAR, pod("x", node="n", labels=WEB_APP), None, False),
    Row(
        "InterPodAffinity",
        "a pod to be near, elsewhere",
        NEAR,
        None,
        pod("x", node="n", labels=WEB_APP, namespace="o"),
        False,
    ),
    Row(
        "InterPodAffinity",
        "a pod is one to be near now",
        NEAR,
        pod("x", node="n", labels=OTHER_APP),
        pod("x", node="n", labels=WEB_APP),
        True,
    ),
    Row("InterPodAffinity", "a pod to be far from is gone", FAR, pod("x", node="n", labels=WEB_APP), None, True),
    Row("InterPodAffinity", "another pod is gone", FAR, pod("x", node="n", labels=OTHER_APP), None, False),
    Row("InterPodAffinity", "a pod to be far from has come", FAR, None, pod("x", node="n", labels=WEB_APP), False),
    Row(
        "InterPodAffinity",
        "a pod is none to be far from any more",
        FAR,
        pod("x", node="n", labels=WEB_APP),
        pod("x", node="n", labels=OTHER_APP),
        True,
    ),
    Row(
        "InterPodAffinity",
        "who kept it away is gone",
        KEPT_AWAY,
        with_terms("podAntiAffinity", OTHER_APP, "x", node="n"),
        None,
        True,
    ),
    Row("InterPodAffinity", "a pod that kept nobody away is gone", KEPT_AWAY, pod("x", node="n"), None, False),
    Row("InterPodAffinity", "a pod without terms has come", KEPT_AWAY, None, pod("x", node="n", labels=WEB_APP), False),
    Row("InterPodAffinity", "a node", KEPT_AWAY, None, node(), True),
    Row("InterPodAffinity", "a label of its own", KEPT_AWAY, KEPT_AWAY, pod(labels=OTHER_APP), True),
    Row("InterPodAffinity", "a node with the key", NEAR, None, node(labels={"zone": "a"}), True),
    Row("InterPodAffinity", "a node without the key", NEAR, None, node(), False),
    Row(
        "InterPodAffinity",
        "another label",
        NEAR,
        node(labels={"zone": "a"}),
        node(labels={"zone": "a", "b": "c"}),
        False,
    ),
    Row("InterPodAffinity", "a node without the key", FAR, None, node(), True),
    Row("InterPodAffinity", "a node moves", FAR, node(labels={"zone": "a"}), node(labels={"zone": "b"}), True),
    Row(
        "InterPodAffinity",
        "another label",
        FAR,
        node(labels={"zone": "a"}),
        node(labels={"zone": "a", "b": "c"}),
        False,
    ),
    *(
        Row("InterPodAffinity", f"the last pod of its series: {what}", SERIES, old, new, True)
        for what, old, new in (
            ("deleted", pod("x", node="n", labels=WEB_APP), None),
            ("relabelled", pod("x", node="n", labels=WEB_APP), pod("x", node="n", labels=OTHER_APP)),
            ("its node deleted", node(labels={"zone": "a"}), None),
            ("the key removed from its node", node(labels={"zone": "a"}), node()),
        )
    ),
    Row(
        "InterPodAffinity", "a pod of another series is gone", SERIES, pod("x", node="n", labels=OTHER_APP), None, False
    ),
    Row("InterPodAffinity", "the node of a pod to be far from is gone", FAR, node(labels={"zone": "a"}), None, True),
    Row("InterPodAffinity", "a namespace shown after its pods", FAR, None, NAMESPACE, True),
    Row("InterPodAffinity", "a namespace as it was", FAR, NAMESPACE, NAMESPACE, False),
    Row("InterPodAffinity", "more CPU", NEAR, node(cpu=1), node(cpu=2), False),
]

CLAIMANT = pod(volumes=storage.uses("data"))
SCRATCH, OTHERS = [storage.ephemeral("scratch")], storage.uses("other")
EPHEMERAL = pod(volumes=SCRATCH)
MINE = thing(ObjectKind.PERSISTENT_VOLUME_CLAIM, storage.claim("data"))
BOUND = thing(ObjectKind.PERSISTENT_VOLUME_CLAIM, storage.claim("data", volume="v"))
NOT_MINE = thing(ObjectKind.PERSISTENT_VOLUME_CLAIM, storage.claim("other"))
ELSEWHERE = thing(ObjectKind.PERSISTENT_VOLUME_CLAIM, storage.claim("data", namespace="other"))
MADE_FOR_IT = thing(ObjectKind.PERSISTENT_VOLUME_CLAIM, storage.claim("waiting-scratch", owner="uid-waiting"))
VOLUME = thing(ObjectKind.PERSISTENT_VOLUME, storage.volume("v", handle="h"))
MOVED_VOLUME = thing(
    ObjectKind.PERSISTENT_VOLUME, storage.volume("v", {"topology.kubernetes.io/zone": "b"}, handle="h")
)
LATE_CLASS = thing(ObjectKind.STORAGE_CLASS, storage.storage_class("fast"))
EARLY_CLASS = thing(ObjectKind.STORAGE_CLASS, storage.storage_class("fast", mode="Immediate"))
RESTRICTED_CLASS = thing(
    ObjectKind.STORAGE_CLASS,
    {
        **storage.storage_class("fast"),
        "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}],
    },
)


def capacity(size: str) -> ClusterObject:
    document = {"metadata": {"name": "c", "namespace": "default"}, "storageClassName": "fast", "capacity": size}
    return thing(ObjectKind.CSI_STORAGE_CAPACITY, {**document, "nodeTopology": {}})


def driver(*, tracks_capacity: bool) -> ClusterObject:
    return thing(
        ObjectKind.CSI_DRIVER, {"metadata": {"name": storage.EBS}, "spec": {"storageCapacity": tracks_capacity}}
    )


def csi(count: int) -> ClusterObject:
    return thing(ObjectKind.CSI_NODE, storage.csi_node("n", **{storage.EBS.replace(".", "__"): count}))


NO_LIMITS = thing(
    ObjectKind.CSI_NODE, {"metadata": {"name": "n"}, "spec": {"drivers": [{"name": storage.EBS, "nodeID": "n"}]}}
)
DETACHED = thing(ObjectKind.VOLUME_ATTACHMENT, storage.attachment("a", "n", "v"))
DISK = [{"name": "d", "gcePersistentDisk": {"pdName": "disk"}}]
OTHER_DISK = [{"name": "d", "gcePersistentDisk": {"pdName": "another"}}]

VOLUMES = [
    Row("VolumeBinding", "its claim", CLAIMANT, None, MINE, True),
    Row("VolumeBinding", "a change of its claim", CLAIMANT, MINE, BOUND, True),
    Row("VolumeBinding", "another claim", CLAIMANT, None, NOT_MINE, False),
    Row("VolumeBinding", "a claim of another namespace", CLAIMANT, None, ELSEWHERE, False),
    Row("VolumeBinding", "the claim made for it", EPHEMERAL, None, MADE_FOR_IT, True),
    Row("VolumeBinding", "another claim", EPHEMERAL, None, NOT_MINE, False),
    Row("VolumeBinding", "a volume", CLAIMANT, None, VOLUME, True),
    Row("VolumeBinding", "a class", CLAIMANT, None, LATE_CLASS, True),
    Row("VolumeBinding", "a class allowed elsewhere", CLAIMANT, RESTRICTED_CLASS, LATE_CLASS, True),
    Row("VolumeBinding", "a class as it was", CLAIMANT, LATE_CLASS, LATE_CLASS, False),
    Row("VolumeBinding", "more capacity", CLAIMANT, capacity("1Gi"), capacity("2Gi"), True),
    Row("VolumeBinding", "less capacity", CLAIMANT, capacity("2Gi"), capacity("1Gi"), False),
    Row(
        "VolumeBinding",
        "capacity tracked no more",
        CLAIMANT,
        driver(tracks_capacity=True),
        driver(tracks_capacity=False),
        True,
    ),
    Row(
        "VolumeBinding",
        "capacity tracked",
        CLAIMANT,
        driver(tracks_capacity=False),
        driver(tracks_capacity=True),
        False,
    ),
    Row("VolumeBinding", "a node", CLAIMANT, None, node(), True),
    Row("VolumeBinding", "a node's drivers", CLAIMANT, None, csi(1), True),
    Row("VolumeBinding", "more volumes a node takes", CLAIMANT, csi(1), csi(2), False),
    Row("VolumeBinding", "a node's drivers are gone", CLAIMANT, csi(1), None, False),
    Row("VolumeBinding", "another label", CLAIMANT, node(), node(labels={"a": "b"}), True),
    Row("VolumeBinding", "more CPU", CLAIMANT, node(cpu=1), node(cpu=2), False),
    Row("VolumeBinding", "a pod that is gone", CLAIMANT, pod("x", node="n"), None, False),
    Row("VolumeBinding", "a pod that gave its volume back", CLAIMANT, pod("x", node="n", volumes=OTHERS), None, True),
    Row("VolumeBinding", "its ephemeral volume", CLAIMANT, pod("x", node="n", volumes=SCRATCH), None, True),
    Row("VolumeBinding", "another disk", CLAIMANT, pod("x", node="n", volumes=OTHER_DISK), None, False),
    Row("VolumeRestrictions", "its claim", CLAIMANT, None, MINE, True),
    Row("VolumeRestrictions", "another claim", CLAIMANT, None, NOT_MINE, False),
    Row("VolumeRestrictions", "a node", CLAIMANT, None, node(), True),
    Row("VolumeRestrictions", "a node that changed", CLAIMANT, node(), node(labels={"a": "b"}), False),
    Row(
        "VolumeRestrictions",
        "who had its claim is gone",
        CLAIMANT,
        pod("x", node="n", volumes=storage.uses("data")),
        None,
        True,
    ),
    Row(
        "VolumeRestrictions",
        "who had another claim is gone",
        CLAIMANT,
        pod("x", node="n", volumes=storage.uses("other")),
        None,
        False,
    ),
    Row(
        "VolumeRestrictions",
        "who had its disk is gone",
        pod(volumes=DISK),
        pod("x", node="n", volumes=DISK),
        None,
        True,
    ),
    Row(
        "VolumeRestrictions",
        "who had another disk is gone",
        pod(volumes=DISK),
        pod("x", node="n", volumes=OTHER_DISK),
        None,
        False,
    ),
    Row("VolumeRestrictions", "the node of the pod that has its claim is gone", CLAIMANT, node(), None, True),
    Row("VolumeRestrictions", "a node is gone, for one with a disk", pod(volumes=DISK), node(), None, False),
    Row("VolumeZone", "its claim", CLAIMANT, None, MINE, True),
    Row("VolumeZone", "another claim", CLAIMANT, None, NOT_MINE, False),
    Row("VolumeZone", "a volume", CLAIMANT, None, VOLUME, True),
    Row("VolumeZone", "a volume that moved", CLAIMANT, VOLUME, MOVED_VOLUME, True),
    Row("VolumeZone", "a volume as it was", CLAIMANT, VOLUME, VOLUME, False),
    Row("VolumeZone", "a class whose claims wait for their pod", CLAIMANT, None, LATE_CLASS, True),
    Row("VolumeZone", "a class whose claims do not wait", CLAIMANT, None, EARLY_CLASS, False),
    Row("VolumeZone", "another label", CLAIMANT, node(), node(labels={"a": "b"}), True),
    Row("VolumeZone", "more CPU", CLAIMANT, node(cpu=1), node(cpu=2), False),
    Row("NodeVolumeLimits", "a node that joins", CLAIMANT, None, node(), True),
    Row("NodeVolumeLimits", "drivers of a node", CLAIMANT, None, csi(1), True),
    Row("NodeVolumeLimits", "a higher limit", CLAIMANT, csi(1), csi(2), True),
    Row("NodeVolumeLimits", "a lower limit", CLAIMANT, csi(2), csi(1), False),
    Row("NodeVolumeLimits", "its claim", CLAIMANT, None, MINE, True),
    Row("NodeVolumeLimits", "the claim made for it", EPHEMERAL, None, MADE_FOR_IT, True),
    Row("NodeVolumeLimits", "another claim", CLAIMANT, None, NOT_MINE, False),
    Row("NodeVolumeLimits", "a volume detached", CLAIMANT, DETACHED, None, True),
    Row("NodeVolumeLimits", "a volume attached", CLAIMANT, None, DETACHED, False),
    Row(
        "NodeVolumeLimits",
        "a pod with volumes is gone",
        CLAIMANT,
        pod("x", node="n", volumes=storage.uses("other")),
        None,
        True,
    ),
    Row("NodeVolumeLimits", "a pod without volumes is gone", CLAIMANT, pod("x", node="n"), None, False),
    Row("NodeVolumeLimits", "a node's limits are gone", CLAIMANT, csi(1), None, True),
    Row("NodeVolumeLimits", "a driver without its limit", CLAIMANT, csi(1), NO_LIMITS, True),
    Row(
        "NodeVolumeLimits",
        "another user of its volume",
        CLAIMANT,
        None,
        pod("x", node="n", volumes=storage.uses("data")),
        True,
    ),
    Row("NodeVolumeLimits", "a user of another volume", CLAIMANT, None, pod("x", node="n", volumes=OTHERS), False),
    Row("NodeVolumeLimits", "more CPU", CLAIMANT, node(cpu=1), node(cpu=2), False),
]


def in_red(name: str = "waiting", **fields: Any) -> Pod:
    return pod(name, **{"namespace": "red", "cpu": 1000, **fields})


def in_blue(**fields: Any) -> Pod:
    return pod("x", **{"namespace": "blue", "cpu": 1000, "node": "n", **fields})


def in_full(name: str = "waiting", **fields: Any) -> Pod:
    return pod(name, **{"namespace": "full", "cpu": 1000, **fields})


AS_BLUE, AS_FULL, AS_LEFT = {POD_LABEL: "blue"}, {POD_LABEL: "full"}, {POD_LABEL: "left"}

QUOTA = [
    Row("ElasticQuota", "a pod of its quota that is gone", in_full(), in_full("x", node="n"), None, True),
    Row("ElasticQuota", "a pod below the same full level that is gone", in_full(labels={POD_LABEL: "right"}),
        in_full("x", node="n", labels=AS_LEFT), None, True),
    Row("ElasticQuota", "a pod below no level that holds it", in_full(), in_blue(), None, False),
    Row("ElasticQuota", "a pod below whose going its quota is entitled again", in_red(), in_red(name="x", node="n"), None, True),
    Row("ElasticQuota", "a pod of another quota, for one that no max holds", in_red(), in_blue(), None, False),
    Row("ElasticQuota", "a pod of no quota that is gone", in_full(), pod("x", node="n", cpu=1000), None, False),
    Row("ElasticQuota", "a pod that is gone, for one without a quota", pod(cpu=1000), in_blue(), None, False),
    Row("ElasticQuota", "a pod that asks for less", in_full(), in_full("x", cpu=2000, node="n"), in_full("x", node="n"), True),
    Row("ElasticQuota", "a pod that leaves its quota by a label", in_full(), in_full("x", node="n"),
        in_full("x", node="n", labels=AS_BLUE), True),
    Row("ElasticQuota", "another label of a pod", in_full(), in_full("x", node="n"), in_full("x", node="n", labels={"a": "b"}), False),
    Row("ElasticQuota", "another label of a pod elsewhere", in_red(), in_blue(), in_blue(labels={"a": "b"}), False),
    Row("ElasticQuota", "somebody of its own quota", in_red(), None, in_blue(namespace="red"), False),
    Row("ElasticQuota", "somebody who comes, for a pod that is sure of nothing", in_blue(node=""), None,
        pod("y", namespace="red", node="n", cpu=1000), False),
    Row("ElasticQuota", "a smaller request of its own", in_red(), in_red(), pod(namespace="red", cpu=500), True),
    Row("ElasticQuota", "another quota by a label of its own", in_red(), in_red(), in_red(labels=AS_BLUE), True),
    Row("ElasticQuota", "another label of its own", in_red(), in_red(), in_red(labels={"a": "b"}), False),
    Row("ElasticQuota", "a node", in_red(), None, node(), False),
]  # fmt: skip
MEMBER = pod(labels={ACK_NAME: "g", ACK_MIN: "1"})

ROWS = [
    *FIT,
    *TAINTS,
    *UNSCHEDULABLE,
    *AFFINITY,
    *NAMES,
    *PORTS,
    *GATES,
    *SPREADS,
    *TERMS,
    *VOLUMES,
    *QUOTA,
    Row("GangScheduling", "a node", MEMBER, None, node(), True),
    Row("GangScheduling", "a pod that is gone", MEMBER, pod("x", node="n"), None, True),
    Row("GangScheduling", "a node that is gone", MEMBER, node(), None, False),
    Row("GangScheduling", "a label of a node", MEMBER, node(), node(labels={"rack": "r1"}), True),
    Row("GangScheduling", "a taint that went", MEMBER, node(taints=[TAINT]), node(), True),
    Row("GangScheduling", "a larger node", MEMBER, node(cpu=2000), node(), True),
    Row(
        "GangScheduling",
        "another label of a pod on a node",
        MEMBER,
        pod("x", node="n"),
        pod("x", node="n", labels={"a": "b"}),
        True,
    ),
    Row(
        "GangScheduling",
        "a pod that asks for less",
        MEMBER,
        pod("x", cpu=2000, node="n"),
        pod("x", cpu=100, node="n"),
        True,
    ),
    Row("GangScheduling", "a pod that comes", MEMBER, None, pod("x", node="n"), False),
    Row("GangScheduling", "a node, for a member with a mistake", pod(labels={ACK_NAME: "g"}), None, node(), False),
    Row("NodeDeclaredFeatures", "a node", pod(), None, node(), True),
    Row("NodeDeclaredFeatures", "a feature", pod(), node(), node(features=["F"]), True),
    Row("NodeDeclaredFeatures", "another label", pod(), node(), node(labels={"a": "b"}), False),
    Row("NodeDeclaredFeatures", "a label of its own", pod(), pod(), pod(labels={"a": "b"}), False),
    Row("DefaultPreemption", "a pod that is gone", pod(), pod("x", node="n"), None, False),
    Row("DefaultPreemption", "a node", pod(), None, node(), False),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_helpful_events_requeue_and_others_skip(row: Row) -> None:
    plugin = plugin_of(row.plugin)
    gates = [plugin] if isinstance(plugin, PreEnqueuePlugin) and row.waiting.gates else []
    queue = PodQueue(PrioritySort(), gates, [plugin], on_error=fail, leftover_s=1e9)
    queue.add(row.waiting, 0.0)
    if not gates:
        assert queue.pop(0.0) is not None
        queue.fail(row.waiting.uid, Failure(frozenset({row.plugin})), 0.0)
    parked = queue.where(row.waiting.uid)
    assert parked in (QueueState.UNSCHEDULABLE, QueueState.GATED)
    tell(queue, row)

    assert queue.where(row.waiting.uid) is (QueueState.ACTIVE if row.is_help else parked)


def test_every_refusing_plugin_has_events_in_the_table() -> None:
    points = (FilterPlugin, PreFilterPlugin, PreEnqueuePlugin, ReservePlugin, PermitPlugin)
    refusing = {name for name in IN_TREE if isinstance(plugin_of(name), points)} - NEVER_REFUSING

    assert {name for name in refusing if not isinstance(plugin_of(name), EnqueueExtensions)} == set()
    assert refusing == {row.plugin for row in ROWS}
    assert {row.plugin for row in ROWS if row.is_help} == refusing - {"DefaultPreemption"}
    assert {row.plugin for row in ROWS if not row.is_help} == refusing


def test_events_are_named_after_object_and_change() -> None:
    """Metrics and records tell by these names who woke a pod."""
    for name in IN_TREE:
        plugin = plugin_of(name)
        if isinstance(plugin, EnqueueExtensions):
            labels = [(one.event.resource, one.event.label) for one in plugin.events_to_register()]
            assert all(label.startswith((resource.value, "Pod")) for resource, label in labels), (name, labels)


def test_claim_created_for_one_pod_requeues_equal_pods() -> None:
    for name in ("VolumeBinding", "NodeVolumeLimits"):
        queue = PodQueue(PrioritySort(), [], [plugin_of(name)], on_error=fail, leftover_s=1e9)
        first, second = pod("first", volumes=[storage.ephemeral("scratch")]), EPHEMERAL
        for waiting in (first, second):
            queue.add(waiting, 0.0)
            queue.pop(0.0)
            queue.fail(waiting.uid, Failure(frozenset({name})), 0.0)
        queue.on_event(_object_event(None, MADE_FOR_IT), None, MADE_FOR_IT, PARKED_S)

        assert queue.where(second.uid) is QueueState.ACTIVE
