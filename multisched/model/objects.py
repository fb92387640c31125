"""Slim Kubernetes objects: only what scheduling reads, decoded once, shared if equal.

All are values. Pods of one workload share one `PodSpec`, one labels mapping and one annotations mapping
(interned by `multisched.model.decode`), so that a bound pod costs well under 2 KB.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec

from multisched.model.placement import PodAffinity, SpreadConstraint
from multisched.model.selectors import NodeSelector, PreferredTerm, Requirement, Taint, Toleration
from multisched.model.version import Version
from multisched.model.volumes import LocalVolume, PodResourceClaim, PodVolume

CPU, MEMORY, EPHEMERAL_STORAGE, PODS = "cpu", "memory", "ephemeral-storage", "pods"

Requests = Mapping[str, int]
"""Resource name to amount: milli-CPU for cpu, bytes or counts for everything else."""

NO_REQUESTS: Requests = {}


class QosClass(Enum):
    """Quality of service, best first (source: component-helpers ComputePodQOS)."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"

    __hash__ = object.__hash__  # Enum's own hash is a Python call, and each queued pod's class is looked up


class HostPort(msgspec.Struct, frozen=True, gc=False):
    """A host port of a pod. An empty ip means every address (0.0.0.0)."""

    ip: str
    protocol: str
    port: int


class NodeAffinity(msgspec.Struct, frozen=True, gc=False):
    """spec.nodeSelector and spec.affinity.nodeAffinity, compiled."""

    node_selector: tuple[Requirement, ...] = ()
    required: NodeSelector | None = None
    preferred: tuple[PreferredTerm, ...] = ()

    def matches(self, labels: Mapping[str, str], name: str) -> bool:
        """Reports whether a node meets the selector and the required terms."""
        is_selected = all(r.matches_value(labels.get(r.key)) for r in self.node_selector)
        return is_selected and (self.required is None or self.required.matches(labels, name))

    @property
    def named_node(self) -> str:
        """The single node that the required terms name, as for a pod of a DaemonSet; empty if there is none or several."""
        if self.required is None or len(self.required.terms) != 1:
            return ""
        fields = self.required.terms[0].fields
        return fields[0].values[0] if len(fields) == 1 and fields[0].names_a_node else ""


class ExtendedRequests(msgspec.Struct, frozen=True, gc=False):
    """The extended resources that one container requests."""

    name: str
    position: int
    """Position among the containers, or among the init containers."""
    is_init: bool
    amounts: Mapping[str, int]


class PodSpec(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The fields of a pod's spec that scheduling reads. Interned: equal specs are one object, so identity is equality."""

    scheduler_name: str = "default-scheduler"
    priority: int = 0
    can_preempt: bool = True
    """False for preemptionPolicy Never."""
    requests: Requests = NO_REQUESTS
    """Resources the pod takes on a node, including init containers, sidecars, pod-level resources and overhead."""
    container_requests: Requests | None = None
    """Requests without pod-level requests; None if the pod has no pod-level requests."""
    scoring_cpu_milli: int = 0
    scoring_memory_bytes: int = 0
    """Requests by which NodeResourcesFit scores a pending pod: containers and overhead without pod-level requests.

    A container without a request counts with 100m CPU and 200 MiB."""
    placed_cpu_milli: int = 0
    placed_memory_bytes: int = 0
    """The amount that a placed pod adds to its row's scoring_requested.

    Pod-level requests count; defaults count only for a resource without any request in the pod. Source: scheduler
    framework types.go, CalculateResource."""
    extended: tuple[ExtendedRequests, ...] = ()
    """The requests of each container that requests extended resources: init containers first, in the order of the spec."""
    container_count: int = 0
    init_container_count: int = 0
    qos: QosClass = QosClass.BEST_EFFORT
    tolerations: tuple[Toleration, ...] = ()
    affinity: NodeAffinity = NodeAffinity()
    pod_affinity: PodAffinity | None = None
    """None if it has no terms."""
    spread: tuple[SpreadConstraint, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    images: tuple[str, ...] = ()
    """Image of each init container and container, in order, with duplicates."""
    image_volumes: tuple[str, ...] = ()
    """Image of each image volume, in order, with duplicates."""
    volumes: tuple[PodVolume, ...] = ()
    """Volumes that scheduling reads, in the order of the spec."""
    local_volumes: tuple[LocalVolume, ...] = ()
    """Volumes with data on the node. No filter reads them; code that moves pods must check them."""
    resource_claims: tuple[PodResourceClaim, ...] = ()
    required_features: frozenset[str] = frozenset()
    """Kubelet features that the pod requires (NodeDeclaredFeatures)."""
    pod_group: str = ""
    """spec.schedulingGroup.podGroupName."""
    size_bytes: int = 0
    """Approximate size of its document; bounds caches that keep specs of deleted pods."""
    unsupported: tuple[str, ...] = ()
    """Constraints that this version cannot evaluate; a pending pod with any is refused, and the message names them."""


EMPTY_SPEC = PodSpec()


class Owner(msgspec.Struct, frozen=True, gc=False):
    """The controlling owner. Identifies the service that a pod belongs to."""

    kind: str
    name: str
    uid: str
    api_version: str = ""


BYTES_PER_LABEL = 200
"""Estimated memory of one label of a pod."""


class Pod(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A pod as scheduling sees it. Replaced as a whole at each update, never modified."""

    namespace: str
    name: str
    uid: str
    version: Version
    """metadata.resourceVersion."""
    spec: PodSpec = EMPTY_SPEC
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    owner: Owner | None = None
    node: str = ""
    nominated_node: str = ""
    phase: str = "Pending"
    gates: tuple[str, ...] = ()
    is_deleting: bool = False
    is_ready: bool = False
    """Condition Ready."""
    is_preempted: bool = False
    """Condition DisruptionTarget: a scheduler is preempting the pod."""
    created_s: float = 0.0
    """metadata.creationTimestamp, seconds since the epoch."""
    started_s: float = 0.0
    """status.startTime, seconds since the epoch; 0 until the kubelet sets it."""
    held: Requests | None = None
    """Resources held by a pod during an in-place resize, if they differ from the requests in its spec."""
    held_scoring: tuple[int, int] | None = None
    """The same for scoring: milli-CPU and bytes of memory."""
    malformed: str = ""
    """Why this pod cannot be scheduled: the field and its problem. Empty for a good pod."""
    is_victim: bool = False
    """This process has decided to evict the pod, and the watch has not shown the deletion yet. Set only by the cache."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def is_leaving(self) -> bool:
        """True if the pod is being deleted or this process has decided to evict it. All code that plans evictions uses this."""
        return self.is_deleting or self.is_victim

    @property
    def kept_bytes(self) -> int:
        """Estimated memory of its spec and labels, which a cache may be the last to reference."""
        return self.spec.size_bytes + BYTES_PER_LABEL * len(self.labels)

    @property
    def requests(self) -> Requests:
        """Resources the pod takes on its node."""
        return self.spec.requests if self.held is None else self.held

    @property
    def scoring_requests(self) -> tuple[int, int]:
        """Milli-CPU and bytes of memory that the pod adds to `scoring_requested` of its node."""
        if self.held_scoring is not None:
            return self.held_scoring
        return self.spec.placed_cpu_milli, self.spec.placed_memory_bytes

    @property
    def is_terminal(self) -> bool:
        """True if Succeeded or Failed; such pods hold no resources."""
        return self.phase in ("Succeeded", "Failed")


class Image(msgspec.Struct, frozen=True, gc=False):
    """A container image present on a node."""

    names: tuple[str, ...]
    size_bytes: int


ELASTIC_AMOUNT: Final = 2**50
"""The allocatable amount of an elastic resource: `decode.ALLOCATABLE_MAX`, with which sums cannot overflow."""


class Node(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A node as scheduling sees it."""

    name: str
    uid: str
    version: Version
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    is_unschedulable: bool = False
    allocatable: Requests = NO_REQUESTS
    reduced_capacity: Requests = NO_REQUESTS
    """Capacity of the extended resources of which less is allocatable, because some of their devices are unhealthy."""
    images: tuple[Image, ...] = ()
    declared_features: tuple[str, ...] = ()
    """status.declaredFeatures: kubelet features of the node."""
    malformed: str = ""
    """Why no pod may be placed here: the field and its problem. Empty for a good node."""
    elastic: frozenset[str] = frozenset()
    """Resources that `allocatable` does not limit here, as the configuration says: set by `ClusterCache`, see `ElasticLedger`."""

    def limit(self, resource: str) -> int:
        """Returns how much of the resource the requests of the node's pods may sum up to."""
        if self.malformed:
            return 0
        return ELASTIC_AMOUNT if resource in self.elastic else self.allocatable.get(resource, 0)


def have_equal_demands(before: Pod, after: Pod) -> bool:
    """Reports whether two states of one pod have the same placement requirements; their status may differ."""
    return before is after or (
        before.spec is after.spec
        and before.labels == after.labels
        and before.annotations == after.annotations
        and before.owner == after.owner
        and before.gates == after.gates
    )


def are_alike(one: Pod, other: Pod) -> bool:
    """Reports whether two pods differ only in name, uid, state and times, by the objects that pods of one workload share.

    False also for pods whose equal parts are not the same objects.
    """
    return (
        one.spec is other.spec
        and one.labels is other.labels
        and one.annotations is other.annotations
        and one.owner is other.owner
        and one.namespace == other.namespace
        and one.node == other.node
    )


def reported_values_differ(before: Pod, after: Pod, keys: frozenset[str]) -> bool:
    """Reports whether a pod with annotations of these keys has other values of them, or another phase."""
    if keys.isdisjoint(after.annotations) and keys.isdisjoint(before.annotations):
        return False
    return before.phase != after.phase or any(before.annotations.get(k) != after.annotations.get(k) for k in keys)


_NOT_READ: Final = frozenset({"version", "in_force_note"})
"""Fields that differ between two states of an object without an effect on scheduling."""


def differ_in_version_only(before: msgspec.Struct, after: msgspec.Struct) -> bool:
    """Reports whether two states of one object are equal in all that scheduling reads, as after a heartbeat."""
    return type(before) is type(after) and all(
        field in _NOT_READ or getattr(before, field) == getattr(after, field) for field in after.__struct_fields__
    )
