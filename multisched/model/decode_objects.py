"""Decodes JSON of the API server into the slim objects of `cluster_objects`: partial, typed; never raises for a bad object.

There is one function per kind, at the end: JSON in, struct out. `object_kinds.py` maps kinds to functions, and all callers use
it. If a field cannot be read, the result has `malformed` set and keeps the readable fields. Only a document without metadata
raises DecodeError; nothing else is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Any, TypedDict, TypeVar, cast

import msgspec

from multisched.model.api_time import parse_timestamp
from multisched.model.cluster_objects import (
    BETA_CLASS_ANNOTATION,
    BIND_COMPLETED_ANNOTATION,
    BOUND_BY_CONTROLLER_ANNOTATION,
    IN_FORCE_ANNOTATION,
    LIFT_ANNOTATION,
    MIGRATED_PLUGINS_ANNOTATION,
    SELECTED_NODE_ANNOTATION,
    ClaimRef,
    ClusterObject,
    CronJob,
    CsiDriver,
    CsiNode,
    CsiNodeDriver,
    CsiStorageCapacity,
    ElasticQuota,
    ElasticQuotaTree,
    Job,
    KoordinatorQuota,
    Namespace,
    NodeDevices,
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    PodGroup,
    ReplicaSet,
    ReplicationController,
    ResourcePolicy,
    ResourceQuota,
    ResourceSlice,
    Service,
    SliceSet,
    StatefulSet,
    StorageClass,
    TopologyTerm,
    VolumeAttachment,
)
from multisched.model.decode import DecodeError
from multisched.model.decode_devices import WireDevice, WireSlice, node_devices
from multisched.model.decode_gangs import WirePodGroup, WireWorkloadGroup, sigs_terms, terms, workload_terms
from multisched.model.decode_metadata import (
    BAD_TEXT,
    AgedMetadata,
    WireIdentity,
    WireMetadata,
    WireOwnerReference,
    controller_of,
    with_valid_text,
)
from multisched.model.decode_quotas import WireElasticQuota, bounds, place_in_tree
from multisched.model.decode_selectors import (
    Refusal,
    Wire,
    WireLabelSelector,
    WireNodeSelector,
    compile_label_selector,
    compile_node_selector,
    equality_selector,
)
from multisched.model.decode_slices import WireSliceSet, slice_set
from multisched.model.decode_volumes import InTreeSource, migrated_disk
from multisched.model.objects import CPU, Owner
from multisched.model.quantity import QuantityError, milli_of_nano, parse_nano, value_of_nano
from multisched.model.quota_tree import QuotaTree, TreeProblem, read_tree
from multisched.model.selectors import LabelSelector
from multisched.model.version import Version, version_of
from multisched.model.wire import UNREADABLE

Quantity = str | int | float

DRIVERS_MAX = 256
TOPOLOGY_TERMS_MAX = 256
MODES_MAX = 16
DISRUPTED_MAX = 10_000
QUOTA_NAMES_MAX = 1_024
"""Work and memory per object are bounded: their authors are not trusted."""

SHARED_MAX = 65_536
"""Cached texts, selectors and annotations that many objects share: this halves the memory of a volume."""

_READ_ANNOTATIONS = frozenset(
    {BETA_CLASS_ANNOTATION, BIND_COMPLETED_ANNOTATION, BOUND_BY_CONTROLLER_ANNOTATION, SELECTED_NODE_ANNOTATION}
)
_EMPTY: Mapping[str, str] = {}

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T", bound=ClusterObject)
ByMap = TypeVar("ByMap", Service, ReplicationController)
BySelector = TypeVar("BySelector", ReplicaSet, StatefulSet)
V = TypeVar("V")


class _Bare(Wire):
    metadata: WireIdentity


class _Named(Wire):
    metadata: WireMetadata


class _MapSpec(Wire):
    selector: dict[str, str] | None = None


class _MapSelected(Wire):
    """Services and ReplicationControllers."""

    metadata: WireMetadata
    spec: _MapSpec | None = None


class _SelectorSpec(Wire):
    selector: WireLabelSelector | None = None


class _JobMetadata(WireMetadata):
    creation_timestamp: datetime | None = None


class _FailureCondition(Wire):
    type: str = ""


class _FailureRule(Wire):
    action: str = ""
    on_pod_conditions: list[_FailureCondition] | None = None


class _FailurePolicy(Wire):
    rules: list[_FailureRule] | None = None


class _JobSpec(Wire):
    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    pod_failure_policy: _FailurePolicy | None = None


class _JobStatus(Wire):
    start_time: datetime | None = None
    failed: int = 0


class _Job(Wire):
    metadata: _JobMetadata
    spec: _JobSpec = msgspec.field(default_factory=_JobSpec)
    status: _JobStatus = msgspec.field(default_factory=_JobStatus)


class _CronJobSpec(Wire):
    schedule: str = ""
    time_zone: str | None = None


class _CronJob(Wire):
    metadata: WireMetadata
    spec: _CronJobSpec = msgspec.field(default_factory=_CronJobSpec)


class _DisruptionStatus(Wire):
    disruptions_allowed: int = 0
    disrupted_pods: dict[str, msgspec.Raw] | None = None


class _Selected(Wire):
    """ReplicaSets, StatefulSets and PodDisruptionBudgets; only these have the status that is read."""

    metadata: WireMetadata
    spec: _SelectorSpec | None = None
    status: _DisruptionStatus | None = None


class _CsiSource(Wire):
    driver: str = ""
    volume_handle: str = ""


class _WireClaimRef(Wire):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class _VolumeAffinity(Wire):
    required: WireNodeSelector | None = None


class _VolumeSpec(InTreeSource):
    capacity: dict[str, Quantity] | None = None
    access_modes: list[str] | None = None
    storage_class_name: str = ""
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    claim_ref: _WireClaimRef | None = None
    node_affinity: _VolumeAffinity | None = None
    csi: _CsiSource | None = None


class _Phase(Wire):
    phase: str = ""


class _Volume(Wire):
    metadata: WireMetadata
    spec: _VolumeSpec = msgspec.field(default_factory=_VolumeSpec)
    status: _Phase | None = None


class _Resources(Wire):
    requests: dict[str, Quantity] | None = None


class _ClaimSpec(Wire):
    access_modes: list[str] | None = None
    selector: WireLabelSelector | None = None
    resources: _Resources | None = None
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None


class _Claim(Wire):
    metadata: WireMetadata
    spec: _ClaimSpec = msgspec.field(default_factory=_ClaimSpec)
    status: _Phase | None = None


class _TopologyExpression(Wire):
    key: str = ""
    values: list[str] | None = None


class _WireTopologyTerm(Wire):
    match_label_expressions: list[_TopologyExpression] | None = None


class _StorageClass(Wire):
    metadata: WireMetadata
    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: list[_WireTopologyTerm] | None = None


class _Allocatable(Wire):
    count: int | None = None


class _NodeDriver(Wire):
    name: str = ""
    node_id: str = msgspec.field(default="", name="nodeID")
    topology_keys: list[str] | None = None
    allocatable: _Allocatable | None = None


class _CsiNodeSpec(Wire):
    drivers: list[_NodeDriver] | None = None


class _CsiNode(Wire):
    metadata: WireMetadata
    spec: _CsiNodeSpec = msgspec.field(default_factory=_CsiNodeSpec)


class _CsiDriverSpec(Wire):
    storage_capacity: bool | None = None
    prevent_pod_scheduling_if_missing: bool | None = None


class _CsiDriver(Wire):
    metadata: WireMetadata
    spec: _CsiDriverSpec = msgspec.field(default_factory=_CsiDriverSpec)


class _Capacity(Wire):
    metadata: WireMetadata
    storage_class_name: str = ""
    node_topology: WireLabelSelector | None = None
    capacity: Quantity | None = None
    maximum_volume_size: Quantity | None = None


class _AttachedSource(Wire):
    persistent_volume_name: str | None = None


class _AttachmentSpec(Wire):
    attacher: str = ""
    node_name: str = ""
    source: _AttachedSource = msgspec.field(default_factory=_AttachedSource)


class _AttachmentStatus(Wire):
    attached: bool = False


class _Attachment(Wire):
    metadata: WireMetadata
    spec: _AttachmentSpec = msgspec.field(default_factory=_AttachmentSpec)
    status: _AttachmentStatus | None = None


class _QuotaSpec(Wire):
    hard: dict[str, Quantity] | None = None
    scopes: list[str] | None = None
    scope_selector: msgspec.Raw | None = None


class _QuotaStatus(Wire):
    used: dict[str, Quantity] | None = None


class _Quota(Wire):
    metadata: WireMetadata
    spec: _QuotaSpec | None = None
    status: _QuotaStatus | None = None


class _QuotaTreeSpec(Wire):
    root: Any = None


class _QuotaTree(Wire):
    metadata: AgedMetadata
    spec: _QuotaTreeSpec | None = None
    status: msgspec.Raw = msgspec.Raw()
    """Raw, as it contains the figures of all levels; decoded only if the spec has problems."""


class _QuotaTreeStatus(Wire):
    last_good: _QuotaTreeSpec | None = None


_status_decoder = msgspec.json.Decoder(_QuotaTreeStatus)
_bare_decoder = msgspec.json.Decoder(_Bare)


def _decoder(wire: type[S], compile_it: Callable[[S], T], struct: type[T]) -> Callable[[bytes | msgspec.Raw], T]:
    reader = msgspec.json.Decoder(wire)

    def decode(document: bytes | msgspec.Raw) -> T:
        try:
            return compile_it(reader.decode(document))
        except (msgspec.ValidationError, Refusal, QuantityError) as error:
            return _bare(struct, document, str(error))
        except UnicodeDecodeError:
            return _bare(struct, document, BAD_TEXT)
        except UNREADABLE as error:
            raise DecodeError(str(error)) from error

    return decode


def _bare(struct: type[T], document: bytes | msgspec.Raw, reason: str) -> T:
    """Returns an object of which only the metadata is usable."""
    try:
        meta = _bare_decoder.decode(with_valid_text(document)).metadata
    except UNREADABLE as error:
        raise DecodeError(str(error)) from error
    return struct(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        version=version_of(meta.resource_version),
        malformed=reason,
    )


class _Identity(TypedDict):
    """The fields that all kinds have."""

    name: str
    namespace: str
    uid: str
    version: Version


def _identity(meta: WireMetadata) -> _Identity:
    return {
        "name": meta.name,
        "namespace": _shared(meta.namespace),
        "uid": meta.uid,
        "version": version_of(meta.resource_version),
    }


def _namespace(wire: _Named) -> Namespace:
    return Namespace(**_identity(wire.metadata), labels=wire.metadata.labels or _EMPTY)


def _by_map(struct: type[ByMap]) -> Callable[[_MapSelected], ByMap]:
    """Returns the function that compiles a kind that selects by a map of labels."""

    def compiled(wire: _MapSelected) -> ByMap:
        return struct(**_identity(wire.metadata), selector=equality_selector(wire.spec.selector if wire.spec else None))

    return compiled


def _by_selector(struct: type[BySelector]) -> Callable[[_Selected], BySelector]:
    """Returns the function that compiles a kind that selects by a label selector."""

    def compiled(wire: _Selected) -> BySelector:
        return struct(**_identity(wire.metadata), selector=_selector(wire))

    return compiled


def _selector(wire: _Selected) -> LabelSelector | None:
    return compile_label_selector(wire.spec.selector if wire.spec else None, "spec.selector")


def _disruption_budget(wire: _Selected) -> PodDisruptionBudget:
    """Applies no bound to the selector: a refused budget would protect no pod. Excess disrupted pods count as not disrupted."""
    status = wire.status or _DisruptionStatus()
    selector = wire.spec.selector if wire.spec else None
    return PodDisruptionBudget(
        **_identity(wire.metadata),
        selector=compile_label_selector(selector, "spec.selector", is_bounded=False),
        disruptions_allowed=status.disruptions_allowed,
        disrupted_pods=frozenset(islice(status.disrupted_pods or {}, DISRUPTED_MAX)),
    )


def _quota(wire: _Quota) -> ResourceQuota:
    spec, status = wire.spec or _QuotaSpec(), wire.status or _QuotaStatus()
    return ResourceQuota(
        **_identity(wire.metadata),
        hard=_amounts(spec.hard, "spec.hard"),
        used=_amounts(status.used, "status.used"),
        is_scoped=bool(spec.scopes) or spec.scope_selector is not None,
    )


def _quota_tree(wire: _QuotaTree) -> ElasticQuotaTree:
    tree, problems = read_tree(None if wire.spec is None else wire.spec.root)
    return ElasticQuotaTree(
        **_identity(wire.metadata),
        tree=tree,
        problems=problems,
        malformed=_all_of(problems),
        created=wire.metadata.creation_timestamp or "",
        last_good=_last_good(wire.status) if problems else None,
        is_lifted=(wire.metadata.annotations or {}).get(LIFT_ANNOTATION) == "true",
    )


def _last_good(status: msgspec.Raw) -> QuotaTree | None:
    """Returns the last valid tree in the status of a tree with problems; None if there is none or it is invalid."""
    try:
        found = _status_decoder.decode(status)
    except UNREADABLE:
        return None
    return None if found.last_good is None else read_tree(found.last_good.root)[0]


def _elastic_quota(wire: WireElasticQuota) -> ElasticQuota:
    found = bounds(wire)
    created = wire.metadata.creation_timestamp or ""
    return ElasticQuota(**_identity(wire.metadata), **found, malformed=_all_of(found["problems"]), created=created)


def _koordinator_quota(wire: WireElasticQuota) -> KoordinatorQuota:
    found = place_in_tree(wire)
    return KoordinatorQuota(
        **_identity(wire.metadata),
        **found,
        malformed=_all_of(found["problems"]),
        created=wire.metadata.creation_timestamp or "",
        in_force_note=(wire.metadata.annotations or {}).get(IN_FORCE_ANNOTATION, ""),
    )


def _node_devices(wire: WireDevice) -> NodeDevices:
    gpus, problems = node_devices(wire)
    return NodeDevices(**_identity(wire.metadata), gpus=gpus, problems=problems)


def _resource_slice(wire: WireSlice) -> ResourceSlice:
    spec = wire.spec
    return ResourceSlice(
        **_identity(wire.metadata),
        driver=_shared(spec.driver),
        node=_shared(spec.node_name),
        devices=len(spec.devices or ()),
    )


class _ResourcePolicy(Wire):
    metadata: AgedMetadata
    spec: dict[str, Any] | None = None


def _resource_policy(wire: _ResourcePolicy) -> ResourcePolicy:
    """Keeps the spec as it is: the plugin names what is wrong in it to the owners of the pods it selects."""
    created = wire.metadata.creation_timestamp or ""
    try:
        created_s = parse_timestamp(created).timestamp() if created else 0.0
    except ValueError:
        raise Refusal(f"metadata.creationTimestamp: {created[:40]!r} is not a time") from None
    return ResourcePolicy(**_identity(wire.metadata), spec=wire.spec or {}, created_s=created_s)


def _all_of(problems: Sequence[TreeProblem]) -> str:
    """Joins the problems to the text of `malformed`; the object's own event has them, too."""
    return "; ".join(map(str, problems))


def _pod_group(wire: WirePodGroup) -> PodGroup:
    return PodGroup(**_identity(wire.metadata), **terms(wire))


def _sigs_pod_group(wire: WirePodGroup) -> PodGroup:
    return PodGroup(**_identity(wire.metadata), **sigs_terms(wire))


def _workload_group(wire: WireWorkloadGroup) -> PodGroup:
    return PodGroup(**_identity(wire.metadata), **workload_terms(wire))


def _amounts(quantities: dict[str, Quantity] | None, field: str) -> Mapping[str, int]:
    """Parses amounts: milli-units for CPU, with any prefix, and whole units, rounded up, for all else."""
    if len(quantities or ()) > QUOTA_NAMES_MAX:
        raise Refusal(f"{field}: {len(quantities or ())} entries, more than the {QUOTA_NAMES_MAX} that are read")
    found: dict[str, int] = {}
    for name, quantity in (quantities or {}).items():
        try:
            nano = parse_nano(quantity)
        except QuantityError as error:
            raise Refusal(f"{field}[{name[:64]}]: {error}") from error
        found[name] = milli_of_nano(nano) if name.rpartition(".")[2] == CPU else value_of_nano(nano)
    return found


def _volume(wire: _Volume) -> PersistentVolume:
    meta, spec = wire.metadata, wire.spec
    labels, annotations = _labels(meta.labels), _annotations(meta.annotations)
    capacity_nano = _storage(spec.capacity, "spec.capacity")
    claim = spec.claim_ref
    return PersistentVolume(
        **_identity(meta),
        labels=labels,
        annotations=annotations,
        capacity_bytes=value_of_nano(capacity_nano or 0),
        capacity_nano=capacity_nano or 0,
        access_modes=_modes(spec.access_modes),
        storage_class=_shared(annotations.get(BETA_CLASS_ANNOTATION, spec.storage_class_name)),
        volume_mode=_shared(spec.volume_mode or "Filesystem"),
        attributes_class=spec.volume_attributes_class_name or "",
        claim=ClaimRef(_shared(claim.namespace), claim.name, claim.uid) if claim else None,
        node_affinity=_shared(
            compile_node_selector(
                spec.node_affinity.required if spec.node_affinity else None, "spec.nodeAffinity.required"
            )
        ),
        csi_driver=_shared(spec.csi.driver) if spec.csi else "",
        csi_handle=spec.csi.volume_handle if spec.csi else "",
        migrated=migrated_disk(spec, labels),
        phase=_shared(wire.status.phase) if wire.status else "",
        is_deleting=meta.deletion_timestamp is not None,
    )


def _claim(wire: _Claim) -> PersistentVolumeClaim:
    meta, spec = wire.metadata, wire.spec
    annotations = _annotations(meta.annotations)
    request_nano = _storage(spec.resources.requests if spec.resources else None, "spec.resources.requests")
    return PersistentVolumeClaim(
        **_identity(meta),
        annotations=annotations,
        owner=_owner(meta.owner_references),
        volume=spec.volume_name,
        storage_class=_shared(annotations.get(BETA_CLASS_ANNOTATION, spec.storage_class_name)),
        request_bytes=None if request_nano is None else value_of_nano(request_nano),
        request_nano=request_nano or 0,
        access_modes=_modes(spec.access_modes),
        selector=compile_label_selector(spec.selector, "spec.selector"),
        volume_mode=_shared(spec.volume_mode or "Filesystem"),
        attributes_class=spec.volume_attributes_class_name or "",
        phase=_shared(wire.status.phase) if wire.status else "",
        is_deleting=meta.deletion_timestamp is not None,
    )


def _storage_class(wire: _StorageClass) -> StorageClass:
    meta, terms = wire.metadata, wire.allowed_topologies or []
    if sum(len(t.match_label_expressions or ()) + 1 for t in terms) > TOPOLOGY_TERMS_MAX:
        raise Refusal(f"allowedTopologies: more than the {TOPOLOGY_TERMS_MAX} terms and keys that are read; merge some")
    return StorageClass(
        **_identity(meta),
        provisioner=wire.provisioner,
        binding_mode=wire.volume_binding_mode,
        allowed_topologies=tuple(
            TopologyTerm(tuple((e.key, tuple(e.values or ())) for e in term.match_label_expressions or ()))
            for term in terms
        ),
    )


def _csi_node(wire: _CsiNode) -> CsiNode:
    meta, drivers = wire.metadata, wire.spec.drivers or []
    if len(drivers) > DRIVERS_MAX:
        raise Refusal(f"spec.drivers: {len(drivers)} entries, more than the {DRIVERS_MAX} that are read")
    migrated = (meta.annotations or {}).get(MIGRATED_PLUGINS_ANNOTATION, "")
    return CsiNode(
        **_identity(meta),
        drivers=tuple(
            CsiNodeDriver(
                d.name, d.node_id, tuple(d.topology_keys or ()), d.allocatable.count if d.allocatable else None
            )
            for d in drivers
        ),
        migrated_plugins=frozenset(migrated.split(",")) if migrated else frozenset(),
    )


def _csi_driver(wire: _CsiDriver) -> CsiDriver:
    meta = wire.metadata
    return CsiDriver(
        **_identity(meta),
        tracks_capacity=bool(wire.spec.storage_capacity),
        refuses_without_driver=bool(wire.spec.prevent_pod_scheduling_if_missing),
    )


def _capacity(wire: _Capacity) -> CsiStorageCapacity:
    meta = wire.metadata
    return CsiStorageCapacity(
        **_identity(meta),
        storage_class=wire.storage_class_name,
        node_topology=compile_label_selector(wire.node_topology, "nodeTopology"),
        capacity_bytes=_bytes(wire.capacity),
        maximum_volume_bytes=_bytes(wire.maximum_volume_size),
    )


def _attachment(wire: _Attachment) -> VolumeAttachment:
    meta, spec = wire.metadata, wire.spec
    return VolumeAttachment(
        **_identity(meta),
        attacher=_shared(spec.attacher),
        node=_shared(spec.node_name),
        volume=spec.source.persistent_volume_name or "",
        is_attached=wire.status.attached if wire.status else False,
    )


@lru_cache(maxsize=SHARED_MAX)
def _first_equal(value: Any) -> Any:
    """Returns the first of all equal values while it is cached."""
    return value


def _shared(value: V) -> V:
    return cast(V, _first_equal(value))


@lru_cache(maxsize=SHARED_MAX)
def _shared_pairs(pairs: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    return dict(pairs)


def _labels(pairs: dict[str, str] | None) -> Mapping[str, str]:
    return _shared_pairs(tuple(pairs.items())) if pairs else _EMPTY


def _annotations(pairs: dict[str, str] | None) -> Mapping[str, str]:
    """Keeps only the annotations that scheduling reads: the others are often long."""
    if not pairs:
        return _EMPTY
    kept = tuple((key, value) for key, value in pairs.items() if key in _READ_ANNOTATIONS)
    return _shared_pairs(kept) if kept else _EMPTY


def _owner(references: list[WireOwnerReference] | None) -> Owner | None:
    reference = controller_of(references)
    return None if reference is None else Owner(reference.kind, reference.name, reference.uid)


def _modes(modes: list[str] | None) -> tuple[str, ...]:
    if modes is not None and len(modes) > MODES_MAX:
        raise Refusal(f"spec.accessModes: {len(modes)} entries, more than the {MODES_MAX} that are read")
    return _shared(tuple(modes or ()))


def _storage(quantities: dict[str, Quantity] | None, path: str) -> int | None:
    """Returns the amount of storage in nano-units; None if there is none."""
    text = (quantities or {}).get("storage")
    if text is None:
        return None
    try:
        return parse_nano(text)
    except QuantityError as error:
        raise Refusal(f"{path}.storage: {error}") from error


def _bytes(quantity: Quantity | None) -> int | None:
    return None if quantity is None else value_of_nano(parse_nano(quantity))


def _job(wire: _Job) -> Job:
    meta = wire.metadata
    created, started = meta.creation_timestamp, wire.status.start_time
    return Job(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        version=version_of(meta.resource_version),
        owner=_owner(meta.owner_references),
        created_s=created.timestamp() if created is not None else 0.0,
        started_s=started.timestamp() if started is not None else 0.0,
        active_deadline_s=wire.spec.active_deadline_seconds,
        retries_left=_retries_left(wire),
    )


def _retries_left(wire: _Job) -> int | None:
    """Returns None if evictions do not count as failures, or the API server sets no limit."""
    limit, policy = wire.spec.backoff_limit, wire.spec.pod_failure_policy
    for rule in (policy.rules or ()) if policy is not None else ():
        if any(one.type == "DisruptionTarget" for one in rule.on_pod_conditions or ()):
            if rule.action == "Ignore":
                return None
            break  # the first rule that matches counts
    return None if limit is None else max(0, limit - wire.status.failed)


def _cron_job(wire: _CronJob) -> CronJob:
    meta = wire.metadata
    return CronJob(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        version=version_of(meta.resource_version),
        schedule=wire.spec.schedule,
        time_zone=_shared(wire.spec.time_zone or ""),
    )


decode_namespace = _decoder(_Named, _namespace, Namespace)
decode_service = _decoder(_MapSelected, _by_map(Service), Service)
decode_replica_set = _decoder(_Selected, _by_selector(ReplicaSet), ReplicaSet)
decode_stateful_set = _decoder(_Selected, _by_selector(StatefulSet), StatefulSet)
decode_replication_controller = _decoder(_MapSelected, _by_map(ReplicationController), ReplicationController)
decode_job = _decoder(_Job, _job, Job)
decode_cron_job = _decoder(_CronJob, _cron_job, CronJob)
decode_disruption_budget = _decoder(_Selected, _disruption_budget, PodDisruptionBudget)
decode_quota = _decoder(_Quota, _quota, ResourceQuota)
decode_quota_tree = _decoder(_QuotaTree, _quota_tree, ElasticQuotaTree)
decode_elastic_quota = _decoder(WireElasticQuota, _elastic_quota, ElasticQuota)
decode_koordinator_quota = _decoder(WireElasticQuota, _koordinator_quota, KoordinatorQuota)
decode_node_devices = _decoder(WireDevice, _node_devices, NodeDevices)
decode_resource_slice = _decoder(WireSlice, _resource_slice, ResourceSlice)
decode_resource_policy = _decoder(_ResourcePolicy, _resource_policy, ResourcePolicy)
decode_slice_set = _decoder(WireSliceSet, slice_set, SliceSet)
decode_pod_group = _decoder(WirePodGroup, _pod_group, PodGroup)
decode_sigs_pod_group = _decoder(WirePodGroup, _sigs_pod_group, PodGroup)
decode_workload_group = _decoder(WireWorkloadGroup, _workload_group, PodGroup)
decode_volume = _decoder(_Volume, _volume, PersistentVolume)
decode_claim = _decoder(_Claim, _claim, PersistentVolumeClaim)
decode_storage_class = _decoder(_StorageClass, _storage_class, StorageClass)
decode_csi_node = _decoder(_CsiNode, _csi_node, CsiNode)
decode_csi_driver = _decoder(_CsiDriver, _csi_driver, CsiDriver)
decode_storage_capacity = _decoder(_Capacity, _capacity, CsiStorageCapacity)
decode_attachment = _decoder(_Attachment, _attachment, VolumeAttachment)
