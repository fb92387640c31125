"""Slim objects of all kinds except pods and nodes: the fields of services, volumes and others that in-tree plugins read.

All are frozen values, replaced as a whole at each update, decoded by `multisched.model.decode_objects`, kept by
`multisched.state.object_store`, and read by plugins through `framework.objects_view.ObjectsView`. Every struct has
`name`, `namespace` (empty for cluster-wide kinds), `uid`, `version` (resourceVersion) and `malformed`. `malformed`
names the first unreadable field; it is empty for a good object. A malformed object keeps its readable fields; a
plugin that needs the others must check `malformed` first.

Conventions: `selector is None` means that the object has no selector, which differs from an empty one. Sizes are bytes rounded
up, as upstream's `Value()`. Where upstream compares quantities exactly (matching volumes), there are nano-units in addition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from multisched.model.gang import GangSpec
from multisched.model.objects import Owner, Requests
from multisched.model.quota_tree import QuotaTree, TreeProblem
from multisched.model.selectors import LabelSelector, NodeSelector
from multisched.model.slice_parts import SliceSpec, SliceStatus
from multisched.model.version import NO_VERSION, Version
from multisched.model.volumes import MigratedDisk

NO_TEXTS: Mapping[str, str] = {}

BETA_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
BIND_COMPLETED_ANNOTATION = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER_ANNOTATION = "pv.kubernetes.io/bound-by-controller"
SELECTED_NODE_ANNOTATION = "volume.kubernetes.io/selected-node"
MIGRATED_PLUGINS_ANNOTATION = "storage.alpha.kubernetes.io/migrated-plugins"

WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"
READ_WRITE_ONCE_POD = "ReadWriteOncePod"


IN_FORCE_ANNOTATION: Final = "multisched.io/in-force"
"""Annotation of Koordinator's ElasticQuotas: the version in force, as JSON, for a process that starts later."""
LIFT_ANNOTATION: Final = "multisched.io/lift-quotas"
"""Annotation of an ElasticQuotaTree: `true` allows lifting its limits when it is deleted."""
TREE_NAMESPACE: Final = "kube-system"
"""Trees in other namespaces have no effect, as in ACK."""


class ClusterObject(msgspec.Struct, frozen=True, gc=False, eq=False, kw_only=True):
    """The fields that all kinds have."""

    name: str
    namespace: str = ""
    uid: str = ""
    version: Version = NO_VERSION
    malformed: str = ""

    @property
    def key(self) -> str:
        """namespace/name, or the bare name."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def after(self, before: ClusterObject) -> ClusterObject:
        """Returns this version with information kept from the previous one. `before`: the previous version, maybe of another uid."""
        return self

    @property
    def deletion_note(self) -> str:
        """Message for the author of a deletion; empty for most kinds."""
        return ""


class Namespace(ClusterObject, frozen=True, gc=False, eq=False):
    labels: Mapping[str, str] = NO_TEXTS


class Service(ClusterObject, frozen=True, gc=False, eq=False):
    selector: LabelSelector | None = None
    """The labels as In requirements of one value; None for a service without selector, which matches nothing."""


class ReplicaSet(ClusterObject, frozen=True, gc=False, eq=False):
    selector: LabelSelector | None = None


class StatefulSet(ClusterObject, frozen=True, gc=False, eq=False):
    selector: LabelSelector | None = None


class ReplicationController(ClusterObject, frozen=True, gc=False, eq=False):
    selector: LabelSelector | None = None
    """The labels as In requirements of one value; None if there are none."""


class Job(ClusterObject, frozen=True, gc=False, eq=False):
    owner: Owner | None = None
    """The controlling owner, such as a CronJob."""
    created_s: float = 0.0
    """metadata.creationTimestamp, seconds since the epoch."""
    started_s: float = 0.0
    """status.startTime; 0 until the Job controller sets it."""
    active_deadline_s: int | None = None
    """spec.activeDeadlineSeconds: from `started_s`, while its pods are pending too."""
    retries_left: int | None = None
    """How many more evicted pods it replaces before it fails; None: any number, by its podFailurePolicy."""


class CronJob(ClusterObject, frozen=True, gc=False, eq=False):
    schedule: str = ""
    """spec.schedule, unparsed (`model.cron_schedule`)."""
    time_zone: str = ""
    """spec.timeZone; empty: that of the controller manager."""


class PodDisruptionBudget(ClusterObject, frozen=True, gc=False, eq=False):
    selector: LabelSelector | None = None
    """None selects nothing; an empty selector selects every pod of the namespace."""
    disruptions_allowed: int = 0
    disrupted_pods: frozenset[str] = frozenset()
    """Names of pods whose eviction the budget already counts."""


class ResourceQuota(ClusterObject, frozen=True, gc=False, eq=False):
    hard: Mapping[str, int] = {}
    """spec.hard by name, as `requests.cpu` or `pods`: milli-CPU, bytes or counts."""
    used: Mapping[str, int] = {}
    """status.used, by the same names."""
    is_scoped: bool = False
    """True if spec.scopes or spec.scopeSelector restricts the quota to some pods of its namespace."""


class ElasticQuotaTree(ClusterObject, frozen=True, gc=False, eq=False):
    """`scheduling.sigs.k8s.io/v1beta1`: the quotas of all teams, in one object."""

    tree: QuotaTree | None = None
    """None if it has problems."""
    problems: tuple[TreeProblem, ...] = ()
    """All problems of the object."""
    created: str = ""
    """metadata.creationTimestamp, unparsed; such texts sort by time."""
    last_good: QuotaTree | None = None
    """Set if the tree has problems: the last valid tree seen by this process, else the one in status.lastGood."""
    is_lifted: bool = False
    """Its annotation allows lifting its limits when it is deleted."""

    @property
    def deletion_note(self) -> str:
        """Its limits apply to all teams, so they stay in force unless the annotation allows lifting them."""
        if self.namespace != TREE_NAMESPACE or (self.tree or self.last_good) is None:
            return ""
        if self.is_lifted:
            return "The tree was deleted: its limits are lifted"
        what = "The tree was deleted without consent: its limits stay in force until another tree exists"
        return f'{what}. To lift them, create it again with the annotation {LIFT_ANNOTATION}: "true", and delete it'

    def after(self, before: ClusterObject) -> ClusterObject:
        """Keeps the last valid tree, also in a process that does not lead: it may become the leader."""
        if self.tree is not None or not isinstance(before, ElasticQuotaTree) or before.uid != self.uid:
            return self
        return msgspec.structs.replace(self, last_good=before.tree or before.last_good or self.last_good)


class ElasticQuota(ClusterObject, frozen=True, gc=False, eq=False):
    """`scheduling.x-k8s.io/v1alpha1` (scheduler-plugins): the quota of its namespace."""

    min: Requests = {}
    max: Requests = {}
    problems: tuple[TreeProblem, ...] = ()
    """Problems of this object alone, without regard to others."""
    created: str = ""
    """metadata.creationTimestamp, unparsed; such texts sort by time."""
    last_good: ElasticQuota | None = None
    """Set if the quota has problems: its last version without any, as seen by this process."""

    def after(self, before: ClusterObject) -> ClusterObject:
        """Keeps the last valid version."""
        if not self.malformed or not isinstance(before, ElasticQuota) or before.uid != self.uid:
            return self
        return msgspec.structs.replace(self, last_good=before.last_good if before.malformed else before)


class NodeDevice(msgspec.Struct, frozen=True, gc=False):
    """One GPU of a node, as Koordinator's Device describes it."""

    id: str
    minor: int
    memory_bytes: int
    cores: int
    """Percent."""
    numa: int
    """NUMA node; -1 if unknown."""
    is_healthy: bool


class NodeDevices(ClusterObject, frozen=True, gc=False, eq=False):
    """`scheduling.koordinator.sh/v1alpha1` Device: the devices of the node of the same name."""

    gpus: tuple[NodeDevice, ...] = ()
    """The GPUs, sorted by minor number."""
    problems: tuple[str, ...] = ()
    """Field and problem of each GPU that is left out."""


class ResourceSlice(ClusterObject, frozen=True, gc=False, eq=False):
    """Devices that a DRA driver publishes. Only their number is kept: they are not allocated here."""

    driver: str = ""
    node: str = ""
    """Empty if the devices are not those of one node."""
    devices: int = 0


class KoordinatorQuota(ClusterObject, frozen=True, gc=False, eq=False):
    """ElasticQuota of `scheduling.sigs.k8s.io/v1alpha1`: one node of a tree that is described by labels."""

    min: Requests = {}
    max: Requests = {}
    parent: str = ""
    """Name of the parent quota; empty: the root."""
    is_parent: bool = False
    """It may have child quotas, but no pods."""
    tree_id: str = ""
    is_lent: bool = True
    """False: idle resources within its min are not lent."""
    weights: Requests | None = None
    """Annotation shared-weight; None: max is used."""
    namespaces: tuple[str, ...] = ()
    total: Requests = {}
    """Annotation total-resource of the root of a tree: all resources of the tree."""
    problems: tuple[TreeProblem, ...] = ()
    """Problems of this object alone, without regard to others."""
    created: str = ""
    """metadata.creationTimestamp, unparsed; such texts sort by time."""
    in_force_note: str = ""
    """Annotation IN_FORCE_ANNOTATION. A change of it alone is no change of the quota."""
    last_good: KoordinatorQuota | None = None
    """Set if the quota has problems: its last version without any, as seen by this process."""

    def after(self, before: ClusterObject) -> ClusterObject:
        """Keeps the last valid version."""
        if not self.malformed or not isinstance(before, KoordinatorQuota) or before.uid != self.uid:
            return self
        return msgspec.structs.replace(self, last_good=before.last_good if before.malformed else before)


class PodGroup(ClusterObject, frozen=True, gc=False, eq=False):
    """A PodGroup of scheduler-plugins, Koordinator, ACK or Kubernetes."""

    spec: GangSpec | None = None
    """None if it has a problem."""
    problem: str = ""


class ResourcePolicy(ClusterObject, frozen=True, gc=False, eq=False):
    """`scheduling.alibabacloud.com/v1alpha1` (ACK): an order of units of nodes for the pods that it selects in its namespace."""

    spec: Mapping[str, Any] = {}
    """The spec as written; the plugin that uses it reads and checks it."""
    created_s: float = 0.0
    """metadata.creationTimestamp, seconds since the epoch."""


class SliceSet(ClusterObject, frozen=True, gc=False, eq=False):
    """`multisched.io/v1alpha1`: parts of a lender's nodes that the pods of a borrower in another process may use."""

    spec: SliceSpec | None = None
    """None: it cannot be trusted, as `malformed` explains; the borrower then claims nothing."""
    status: SliceStatus | None = None
    """None: it cannot be trusted; the lender then counts as held what could be held before."""
    lender_epoch: int = 0
    borrower_epoch: int = 0
    """The epochs as written, even if the rest of their half cannot be trusted; 0 if they cannot be read."""
    is_deleting: bool = False
    has_finalizer: bool = False
    """metadata.finalizers has `multisched.io/slices`: the object remains until nothing is held."""


class ClaimRef(msgspec.Struct, frozen=True, gc=False):
    """PersistentVolume.spec.claimRef. An empty uid reserves the volume for any claim of that name."""

    namespace: str
    name: str
    uid: str = ""


class PersistentVolume(ClusterObject, frozen=True, gc=False, eq=False):
    labels: Mapping[str, str] = NO_TEXTS
    annotations: Mapping[str, str] = NO_TEXTS
    capacity_bytes: int = 0
    capacity_nano: int = 0
    access_modes: tuple[str, ...] = ()
    storage_class: str = ""
    """The beta annotation if set, else the field."""
    volume_mode: str = "Filesystem"
    attributes_class: str = ""
    claim: ClaimRef | None = None
    node_affinity: NodeSelector | None = None
    """spec.nodeAffinity.required; None if any node will do."""
    csi_driver: str = ""
    csi_handle: str = ""
    """spec.csi; both empty for any other source."""
    migrated: MigratedDisk | None = None
    """An in-tree source as its CSI driver sees it after migration; None for any other source."""
    phase: str = ""
    is_deleting: bool = False


class PersistentVolumeClaim(ClusterObject, frozen=True, gc=False, eq=False):
    annotations: Mapping[str, str] = NO_TEXTS
    owner: Owner | None = None
    """The controlling owner: the pod, if the claim belongs to a generic ephemeral volume."""
    volume: str = ""
    """spec.volumeName: the volume that it is bound to or shall be bound to."""
    storage_class: str | None = None
    """The requested class: the beta annotation if set, else the field; None if neither is set."""
    request_bytes: int | None = None
    """None if it requests no size."""
    request_nano: int = 0
    access_modes: tuple[str, ...] = ()
    selector: LabelSelector | None = None
    volume_mode: str = "Filesystem"
    attributes_class: str = ""
    phase: str = ""
    is_deleting: bool = False

    @property
    def is_fully_bound(self) -> bool:
        """True once the persistent volume controller has completed the binding."""
        return bool(self.volume) and BIND_COMPLETED_ANNOTATION in self.annotations

    @property
    def class_name(self) -> str:
        """The requested class, or an empty string."""
        return self.storage_class or ""


class TopologyTerm(msgspec.Struct, frozen=True, gc=False):
    """An entry of allowedTopologies: label key -> allowed values; a node must match every key."""

    expressions: tuple[tuple[str, tuple[str, ...]], ...] = ()


class StorageClass(ClusterObject, frozen=True, gc=False, eq=False):
    provisioner: str = ""
    binding_mode: str | None = None
    """Immediate or WaitForFirstConsumer; None if the server set no default."""
    allowed_topologies: tuple[TopologyTerm, ...] = ()
    """A node must match one of them; an empty list allows any node."""


class CsiNodeDriver(msgspec.Struct, frozen=True, gc=False):
    """A CSI driver as installed on a node."""

    name: str
    node_id: str = ""
    topology_keys: tuple[str, ...] = ()
    volumes_max: int | None = None
    """allocatable.count; None if the driver reports no limit."""


class CsiNode(ClusterObject, frozen=True, gc=False, eq=False):
    """The CSI drivers of the node of the same name."""

    drivers: tuple[CsiNodeDriver, ...] = ()
    migrated_plugins: frozenset[str] = frozenset()
    """In-tree plugins migrated to CSI on this node."""


class CsiDriver(ClusterObject, frozen=True, gc=False, eq=False):
    tracks_capacity: bool = False
    """spec.storageCapacity: volumes are created only where a CSIStorageCapacity shows enough capacity."""
    refuses_without_driver: bool = False
    """spec.preventPodSchedulingIfMissing."""


class CsiStorageCapacity(ClusterObject, frozen=True, gc=False, eq=False):
    storage_class: str = ""
    node_topology: LabelSelector | None = None
    """None: accessible from no node."""
    capacity_bytes: int | None = None
    maximum_volume_bytes: int | None = None

    @property
    def volume_limit_bytes(self) -> int | None:
        """The largest volume that can be created there; None if neither field is set, which means that none can be."""
        return self.capacity_bytes if self.maximum_volume_bytes is None else self.maximum_volume_bytes


class VolumeAttachment(ClusterObject, frozen=True, gc=False, eq=False):
    attacher: str = ""
    node: str = ""
    volume: str = ""
    """Name of the PersistentVolume; empty for a volume inlined in a pod."""
    is_attached: bool = False
