"""Slim Kubernetes objects: only what scheduling reads, decoded once, shared where equal.

Everything here is a value. Pods of one workload share one `PodSpec`, one labels mapping and one annotations mapping
(interned by `multisched.model.decode`). So a bound pod costs well under 2 KB.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

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


class HostPort(msgspec.Struct, frozen=True, gc=False):
    """A port a pod wants on its host. An empty ip means every address (0.0.0.0)."""

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
        """The one node that the required terms name, as those of a DaemonSet's pod do; empty if there is none, or more."""
        if self.required is None or len(self.required.terms) != 1:
            return ""
        fields = self.required.terms[0].fields
        return fields[0].values[0] if len(fields) == 1 and fields[0].names_a_node else ""


class PodSpec(msgspec.Struct, frozen=True, gc=False, eq=False):
    """What scheduling reads of a pod's spec. Interned: equal specs are one object, so identity is equality."""

    scheduler_name: str = "default-scheduler"
    priority: int = 0
    can_preempt: bool = True
    """False for preemptionPolicy Never."""
    requests: Requests = NO_REQUESTS
    """What the pod takes on a node: init containers, sidecars, pod-level resources and overhead included."""
    container_requests: Requests | None = None
    """As requests, but without pod-level requests; None where the pod has none."""
    scoring_cpu_milli: int = 0
    scoring_memory_bytes: int = 0
    """What NodeResourcesFit scores a pending pod by: containers and overhead without pod-level requests.

    Each container that does not name them counts with 100m CPU and 200 MiB."""
    placed_cpu_milli: int = 0
    placed_memory_bytes: int = 0
    """What a placed pod adds to its row's scoring_requested.

    Pod-level requests count, and defaults only for a resource that nothing in the pod asks for. Source: scheduler
    framework types.go, CalculateResource."""
    qos: QosClass = QosClass.BEST_EFFORT
    tolerations: tuple[Toleration, ...] = ()
    affinity: NodeAffinity = NodeAffinity()
    pod_affinity: PodAffinity | None = None
    """None where it has no term about other pods."""
    spread: tuple[SpreadConstraint, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    images: tuple[str, ...] = ()
    """Image of each init container and container, in order, duplicates kept."""
    image_volumes: tuple[str, ...] = ()
    """Image of each volume that is one, in order, duplicates kept."""
    volumes: tuple[PodVolume, ...] = ()
    """Those that scheduling reads, in the order of the spec."""
    local_volumes: tuple[LocalVolume, ...] = ()
    """Those on the node, which no filter reads: who would move the pod must know."""
    resource_claims: tuple[PodResourceClaim, ...] = ()
    required_features: frozenset[str] = frozenset()
    """Features of the kubelet that the pod cannot do without (NodeDeclaredFeatures)."""
    pod_group: str = ""
    """spec.schedulingGroup.podGroupName."""
    size_bytes: int = 0
    """Of the document it was read from, roughly: who keeps specs of pods that are gone bounds them by it."""
    unsupported: tuple[str, ...] = ()
    """Constraints this version cannot honour; a pending pod that has any is refused with their names, never misplaced."""


EMPTY_SPEC = PodSpec()


class Owner(msgspec.Struct, frozen=True, gc=False):
    """The controlling owner: names the service a pod belongs to."""

    kind: str
    name: str
    uid: str
    api_version: str = ""


BYTES_PER_LABEL = 200
"""Of a pod, where somebody keeps it in memory."""


class Pod(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A pod as scheduling sees it. Replaced as a whole at each update, never changed."""

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
    """The condition Ready."""
    is_preempted: bool = False
    """The condition DisruptionTarget says that a scheduler removes it for another pod."""
    created_s: float = 0.0
    """metadata.creationTimestamp, seconds since the epoch."""
    started_s: float = 0.0
    """status.startTime, seconds since the epoch; 0 before the kubelet has seen it."""
    held: Requests | None = None
    """What a pod that is being resized in place holds, where that differs from what its spec asks for."""
    held_scoring: tuple[int, int] | None = None
    """The same for scoring: milli-CPU and memory bytes."""
    malformed: str = ""
    """Why this pod cannot be scheduled at all: the field and what is wrong with it. Empty for a good pod."""
    is_victim: bool = False
    """This process has decided to remove the pod, and the watch has not shown the deletion yet. Set by the cache alone."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def is_leaving(self) -> bool:
        """The pod is being deleted, or this process has decided to remove it. All that plan removals go by this."""
        return self.is_deleting or self.is_victim

    @property
    def kept_bytes(self) -> int:
        """What it costs to keep its spec and labels, roughly: who keeps them may be the last to do so."""
        return self.spec.size_bytes + BYTES_PER_LABEL * len(self.labels)

    @property
    def requests(self) -> Requests:
        """What the pod takes on the node it is on."""
        return self.spec.requests if self.held is None else self.held

    @property
    def scoring_requests(self) -> tuple[int, int]:
        """Milli-CPU and memory bytes the pod adds to `scoring_requested` of the node it is on."""
        if self.held_scoring is not None:
            return self.held_scoring
        return self.spec.placed_cpu_milli, self.spec.placed_memory_bytes

    @property
    def is_terminal(self) -> bool:
        """Succeeded and Failed pods hold nothing."""
        return self.phase in ("Succeeded", "Failed")


class Image(msgspec.Struct, frozen=True, gc=False):
    """A container image present on a node."""

    names: tuple[str, ...]
    size_bytes: int


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
    images: tuple[Image, ...] = ()
    declared_features: tuple[str, ...] = ()
    """status.declaredFeatures: features of the kubelet that not every node has."""
    malformed: str = ""
    """Why nothing may be placed here: the field and what is wrong with it. Empty for a good node."""


def ask_alike(before: Pod, after: Pod) -> bool:
    """Two states of one pod in which all that its place depends on is the same; status may differ."""
    return before.spec is after.spec and all(
        getattr(before, field) == getattr(after, field) for field in ("labels", "annotations", "owner", "gates")
    )


def differ_in_version_only(before: msgspec.Struct, after: msgspec.Struct) -> bool:
    """Two states of one object that are alike in everything that scheduling reads: a heartbeat, another's annotation."""
    return type(before) is type(after) and all(
        field == "version" or getattr(before, field) == getattr(after, field) for field in after.__struct_fields__
    )
