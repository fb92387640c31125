"""Slim objects besides pods and nodes: what the in-tree plugins read of services, volumes and their like.

All are frozen values, replaced as a whole at each update, decoded by `multisched.model.decode_objects`, kept by
`multisched.state.object_store`, and read by plugins through `framework.objects_view.ObjectsView`. Every struct has
`name`, `namespace` (empty for cluster-wide kinds), `uid`, `version` (resourceVersion) and `malformed`. `malformed`
names the first field that cannot be read; it is empty for a good object. A malformed object keeps what could be read; a
plugin that needs the rest asks `malformed` first.

Conventions. `selector is None` means that the object has none, which is not the same as an empty one. Sizes are bytes rounded
up, as upstream's `Value()`; where upstream compares quantities exactly (matching volumes) there are nano-units beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from multisched.model.gang import GangSpec
from multisched.model.objects import Owner, Requests
from multisched.model.quota_tree import QuotaTree, TreeProblem
from multisched.model.selectors import LabelSelector, NodeSelector
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


LIFT_ANNOTATION: Final = "multisched.io/lift-quotas"
"""Of an ElasticQuotaTree: `true` consents to lifting its limits when it is deleted."""
TREE_NAMESPACE: Final = "kube-system"
"""Trees elsewhere have no effect, as in ACK."""


class ClusterObject(msgspec.Struct, frozen=True, gc=False, eq=False, kw_only=True):
    """What all kinds have in common."""

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
        """The object with what only an earlier version of it tells. `before`: the version that was known, perhaps of another uid."""
        return self

    @property
    def deletion_note(self) -> str:
        """What the author of a deletion has to know of it; empty for most kinds."""
        return ""


class Namespace(ClusterObject, frozen=True, gc=False, eq=False):
    labels: Mapping[str, str] = NO_TEXTS


class Service(ClusterObject, frozen=True, gc=False, eq=False):
    selector: LabelSelector | None = None
    """None for a service without selector (it matches nothing); its labels are In requirements of one value."""


class ReplicaSet(ClusterObject, frozen=True, gc=False, eq=False):
    selector: LabelSelector | None = None


class StatefulSet(ClusterObject, frozen=True, gc=False, eq=False):
    selector: LabelSelector | None = None


class ReplicationController(ClusterObject, frozen=True, gc=False, eq=False):
    selector: LabelSelector | None = None
    """Its label map as In requirements of one value; None where it is empty."""


class PodDisruptionBudget(ClusterObject, frozen=True, gc=False, eq=False):
    selector: LabelSelector | None = None
    """None selects nothing; an empty one every pod of the namespace."""
    disruptions_allowed: int = 0
    disrupted_pods: frozenset[str] = frozenset()
    """Names of pods whose eviction the budget has counted already."""


class ResourceQuota(ClusterObject, frozen=True, gc=False, eq=False):
    hard: Mapping[str, int] = {}
    """spec.hard by name, as `requests.cpu` or `pods`: milli-CPU, bytes or counts."""
    used: Mapping[str, int] = {}
    """status.used, by the same names."""
    is_scoped: bool = False
    """Counts some pods of its namespace only: spec.scopes or spec.scopeSelector."""


class ElasticQuotaTree(ClusterObject, frozen=True, gc=False, eq=False):
    """`scheduling.sigs.k8s.io/v1beta1`: the quotas of all teams, in one object."""

    tree: QuotaTree | None = None
    """None where it has problems."""
    problems: tuple[TreeProblem, ...] = ()
    """All that is wrong with it."""
    created: str = ""
    """metadata.creationTimestamp, as it is written: such texts sort by time."""
    last_good: QuotaTree | None = None
    """Of a tree with problems: what was in force before somebody made the mistake, as seen by us, else by status.lastGood."""
    is_lifted: bool = False
    """Its annotation says that its limits may go with it, if it is deleted."""

    @property
    def deletion_note(self) -> str:
        """Its limits are those of all teams: without consent they stay."""
        if self.namespace != TREE_NAMESPACE or (self.tree or self.last_good) is None:
            return ""
        if self.is_lifted:
            return "The tree was deleted: its limits are lifted"
        what = "The tree was deleted without consent: limits that were in force stay so until there is another tree"
        return f'{what}. To lift them, create it again with the annotation {LIFT_ANNOTATION}: "true", and delete it'

    def after(self, before: ClusterObject) -> ClusterObject:
        """A process that does not lead asks for no quota, and has to know the last good one all the same."""
        if self.tree is not None or not isinstance(before, ElasticQuotaTree) or before.uid != self.uid:
            return self
        return msgspec.structs.replace(self, last_good=before.tree or before.last_good or self.last_good)


class ElasticQuota(ClusterObject, frozen=True, gc=False, eq=False):
    """`scheduling.x-k8s.io/v1alpha1` (scheduler-plugins): the quota of its namespace."""

    min: Requests = {}
    max: Requests = {}
    problems: tuple[TreeProblem, ...] = ()
    """What is wrong with it alone."""
    last_good: ElasticQuota | None = None
    """Of a quota with problems: its last version without one, as seen by us."""

    def after(self, before: ClusterObject) -> ClusterObject:
        """As that of a tree."""
        if not self.malformed or not isinstance(before, ElasticQuota) or before.uid != self.uid:
            return self
        return msgspec.structs.replace(self, last_good=before.last_good if before.malformed else before)


class KoordinatorQuota(ClusterObject, frozen=True, gc=False, eq=False):
    """ElasticQuota of `scheduling.sigs.k8s.io/v1alpha1`: one node of a tree that labels make."""

    min: Requests = {}
    max: Requests = {}
    parent: str = ""
    """Name of another quota; empty: it stands below the root."""
    is_parent: bool = False
    """Other quotas may stand below it, and no pods."""
    tree_id: str = ""
    is_lent: bool = True
    """False: what of its min is idle is lent to nobody."""
    weights: Requests | None = None
    """Annotation shared-weight; None: its max."""
    namespaces: tuple[str, ...] = ()
    total: Requests = {}
    """Annotation total-resource of the root of a tree: all that the tree has."""
    problems: tuple[TreeProblem, ...] = ()
    """What is wrong with it alone."""
    last_good: KoordinatorQuota | None = None
    """Of a quota with problems: its last version without one, as seen by us."""

    def after(self, before: ClusterObject) -> ClusterObject:
        """As that of a tree."""
        if not self.malformed or not isinstance(before, KoordinatorQuota) or before.uid != self.uid:
            return self
        return msgspec.structs.replace(self, last_good=before.last_good if before.malformed else before)


class PodGroup(ClusterObject, frozen=True, gc=False, eq=False):
    """A gang's own object, of scheduler-plugins or of Kubernetes itself."""

    spec: GangSpec | None = None
    """None where it has a problem."""
    problem: str = ""


class ClaimRef(msgspec.Struct, frozen=True, gc=False):
    """PersistentVolume.spec.claimRef. An empty uid is a reservation for whichever claim comes by that name."""

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
    """The class it belongs to: the beta annotation before the field."""
    volume_mode: str = "Filesystem"
    attributes_class: str = ""
    claim: ClaimRef | None = None
    node_affinity: NodeSelector | None = None
    """spec.nodeAffinity.required; None where any node will do."""
    csi_driver: str = ""
    csi_handle: str = ""
    """spec.csi; both empty for any other source."""
    migrated: MigratedDisk | None = None
    """An in-tree source as the CSI driver sees it that took its plugin over; None for any other source."""
    phase: str = ""
    is_deleting: bool = False


class PersistentVolumeClaim(ClusterObject, frozen=True, gc=False, eq=False):
    annotations: Mapping[str, str] = NO_TEXTS
    owner: Owner | None = None
    """The controlling owner: the pod, for the claim of a generic ephemeral volume."""
    volume: str = ""
    """spec.volumeName: the volume it is bound to, or is to be bound to."""
    storage_class: str | None = None
    """The class it asks for, the beta annotation before the field; None where neither is there."""
    request_bytes: int | None = None
    """None where it names no size."""
    request_nano: int = 0
    access_modes: tuple[str, ...] = ()
    selector: LabelSelector | None = None
    volume_mode: str = "Filesystem"
    attributes_class: str = ""
    phase: str = ""
    is_deleting: bool = False

    @property
    def is_fully_bound(self) -> bool:
        """True once the persistent volume controller is done with it."""
        return bool(self.volume) and BIND_COMPLETED_ANNOTATION in self.annotations

    @property
    def class_name(self) -> str:
        """The class it asks for, or an empty text."""
        return self.storage_class or ""


class TopologyTerm(msgspec.Struct, frozen=True, gc=False):
    """One of a class's allowedTopologies: label key -> the values of which the node must have one, for every key."""

    expressions: tuple[tuple[str, tuple[str, ...]], ...] = ()


class StorageClass(ClusterObject, frozen=True, gc=False, eq=False):
    provisioner: str = ""
    binding_mode: str | None = None
    """Immediate or WaitForFirstConsumer; None where the server did not default it."""
    allowed_topologies: tuple[TopologyTerm, ...] = ()
    """A node must match one of them; none means any node."""


class CsiNodeDriver(msgspec.Struct, frozen=True, gc=False):
    """A CSI driver as installed on a node."""

    name: str
    node_id: str = ""
    topology_keys: tuple[str, ...] = ()
    volumes_max: int | None = None
    """allocatable.count; None where the driver reports no limit."""


class CsiNode(ClusterObject, frozen=True, gc=False, eq=False):
    """Has its node's name."""

    drivers: tuple[CsiNodeDriver, ...] = ()
    migrated_plugins: frozenset[str] = frozenset()
    """In-tree plugins that have been migrated to CSI on this node."""


class CsiDriver(ClusterObject, frozen=True, gc=False, eq=False):
    tracks_capacity: bool = False
    """spec.storageCapacity: volumes are created only where a CSIStorageCapacity says there is room."""
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
        """The largest volume that can be created there; None where nothing is said, which means none."""
        return self.capacity_bytes if self.maximum_volume_bytes is None else self.maximum_volume_bytes


class VolumeAttachment(ClusterObject, frozen=True, gc=False, eq=False):
    attacher: str = ""
    node: str = ""
    volume: str = ""
    """The PersistentVolume's name; empty for a volume that a pod names itself."""
    is_attached: bool = False
