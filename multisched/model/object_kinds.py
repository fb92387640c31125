"""The kinds of objects, other than pods and nodes, that plugins may read: one entry per kind with all that depends on it.

A new kind needs a struct in `cluster_objects`, a decoder in `decode_objects`, one entry here, and the right to read it in
`deploy/base/rbac.yaml`, which a test checks. The entry defines where the kind is listed, how the store indexes it, what the
audit compares, and which of its events requeue pods. Plugins name a kind in `Traits.reads_objects` and in the events they
register.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, Self, TypeVar

import msgspec

from multisched.model.cluster_objects import ClusterObject
from multisched.model.decode_objects import (
    decode_attachment,
    decode_claim,
    decode_cron_job,
    decode_csi_driver,
    decode_csi_node,
    decode_disruption_budget,
    decode_elastic_quota,
    decode_job,
    decode_koordinator_quota,
    decode_namespace,
    decode_node_devices,
    decode_pod_group,
    decode_quota,
    decode_quota_tree,
    decode_replica_set,
    decode_replication_controller,
    decode_resource_policy,
    decode_resource_slice,
    decode_service,
    decode_sigs_pod_group,
    decode_slice_set,
    decode_stateful_set,
    decode_storage_capacity,
    decode_storage_class,
    decode_volume,
    decode_workload_group,
)

T = TypeVar("T", bound=ClusterObject)

CORE, APPS, BATCH, POLICY, STORAGE = "v1", "apps/v1", "batch/v1", "policy/v1", "storage.k8s.io/v1"
ACK_QUOTAS, KOORDINATOR_QUOTAS = "scheduling.sigs.k8s.io/v1beta1", "scheduling.sigs.k8s.io/v1alpha1"
KOORDINATOR_DEVICES = "scheduling.koordinator.sh/v1alpha1"
SCHEDULER_PLUGINS = "scheduling.x-k8s.io/v1alpha1"
SIGS = "scheduling.sigs.k8s.io/v1alpha1"
"""Koordinator's version of the group; v1beta1 is ACK's."""
WORKLOADS = "scheduling.k8s.io/v1alpha2"
SLICES = "multisched.io/v1alpha1"
ACK_POLICIES = "scheduling.alibabacloud.com/v1alpha1"


class KindDefinition(msgspec.Struct, Generic[T], frozen=True):
    """The properties of one kind."""

    name: str
    """Kind in the API, as PersistentVolumeClaim."""
    api_version: str
    """Group and version, as an object's apiVersion."""
    decode: Callable[[bytes | msgspec.Raw], T]
    """Raises DecodeError if the document is not an object, and nothing else."""
    is_in_wildcard: bool = False
    """Resource.WILDCARD includes its events, which then requeue pods refused by plugins that registered nothing.
    Events of all other kinds reach only plugins that registered the kind by name.

    Source: kube-scheduler 1.36, pkg/scheduler/framework/types.go, UnrollWildCardResource; Namespace and
    VolumeAttachment are additions."""
    is_optional: bool = False
    """Its definition need not be installed: if the server does not serve it (404), there are no objects."""
    is_needed: bool = True
    """False: without the right to list it (403), the process is ready all the same; it only misses what its objects would show."""
    or_versions: tuple[str, ...] = ()
    """Other versions of the group in which a server may serve the kind, equal in all fields that are read here."""
    has_status_path: bool = True
    """True if the status is a subresource, written at /status; False if it is written with the object."""
    index_of: Callable[[T], str] | None = None
    """The store's index key of an object; None: its namespace."""
    node_of: Callable[[T], str] = lambda one: ""
    """spec.nodeName, which the audit compares; empty if the kind has none."""

    @property
    def group(self) -> str:
        """API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def plural(self) -> str:
        """The kind's resource name, as in paths and roles."""
        name = self.name.lower()
        if name.endswith("y"):
            return f"{name[:-1]}ies"
        return f"{name}es" if name.endswith("s") else f"{name}s"

    @property
    def path(self) -> str:
        """The list path of the kind, over all namespaces."""
        return self.paths[0]

    @property
    def paths(self) -> tuple[str, ...]:
        """The list path in each version."""
        versions = (self.api_version, *(f"{self.group}/{version}" for version in self.or_versions))
        return tuple(f"/{'apis' if self.group else 'api'}/{version}/{self.plural}" for version in versions)


class DefinedKind(Enum):
    """Enumeration of definitions, with one member per API group and kind.

    The value names a kind in labels of events, metrics and logs: the kind in the API. If an earlier entry of another group has
    the same kind, it is KIND.GROUP, as kubectl writes it.
    """

    definition: KindDefinition[ClusterObject]

    __hash__ = object.__hash__  # Enum hashes the name, in Python; this is called ten times per pod

    def __new__(cls, definition: KindDefinition[Any]) -> Self:
        namesakes = [one.definition.group for one in cls if one.definition.name == definition.name]
        if definition.group in namesakes:
            raise ValueError(f"{definition.name} of {definition.api_version} is defined twice")
        kind = object.__new__(cls)
        kind._value_ = f"{definition.name}.{definition.group or 'core'}" if namesakes else definition.name
        kind.definition = definition
        return kind

    @property
    def resource(self) -> str:
        """The plural for metrics, with the group if the value has it."""
        suffix: str = self._value_.removeprefix(self.definition.name)
        return self.definition.plural + suffix


class ObjectKind(DefinedKind):
    """Kinds that plugins may read."""

    NAMESPACE = KindDefinition("Namespace", CORE, decode_namespace, is_in_wildcard=True)
    SERVICE = KindDefinition("Service", CORE, decode_service)
    REPLICA_SET = KindDefinition("ReplicaSet", APPS, decode_replica_set)
    STATEFUL_SET = KindDefinition("StatefulSet", APPS, decode_stateful_set)
    REPLICATION_CONTROLLER = KindDefinition("ReplicationController", CORE, decode_replication_controller)
    JOB = KindDefinition("Job", BATCH, decode_job, is_needed=False)
    CRON_JOB = KindDefinition("CronJob", BATCH, decode_cron_job, is_needed=False)
    POD_DISRUPTION_BUDGET = KindDefinition("PodDisruptionBudget", POLICY, decode_disruption_budget)
    RESOURCE_QUOTA = KindDefinition("ResourceQuota", CORE, decode_quota)
    ELASTIC_QUOTA_TREE = KindDefinition("ElasticQuotaTree", ACK_QUOTAS, decode_quota_tree, is_optional=True)
    ELASTIC_QUOTA = KindDefinition("ElasticQuota", SCHEDULER_PLUGINS, decode_elastic_quota, is_optional=True)
    KOORDINATOR_QUOTA = KindDefinition(
        "ElasticQuota", KOORDINATOR_QUOTAS, decode_koordinator_quota, is_optional=True, has_status_path=False
    )
    POD_GROUP = KindDefinition("PodGroup", SCHEDULER_PLUGINS, decode_pod_group, is_optional=True)
    SIGS_POD_GROUP = KindDefinition("PodGroup", SIGS, decode_sigs_pod_group, is_optional=True, or_versions=("v1beta1",))
    WORKLOAD_POD_GROUP = KindDefinition(
        "PodGroup", WORKLOADS, decode_workload_group, is_optional=True, or_versions=("v1beta1", "v1alpha3")
    )
    RESOURCE_POLICY = KindDefinition(
        "ResourcePolicy", ACK_POLICIES, decode_resource_policy, is_optional=True, is_needed=False
    )
    SLICE_SET = KindDefinition("SliceSet", SLICES, decode_slice_set, is_optional=True, is_needed=False)
    NODE_DEVICES = KindDefinition("Device", KOORDINATOR_DEVICES, decode_node_devices, is_optional=True)
    RESOURCE_SLICE = KindDefinition(
        "ResourceSlice",
        "resource.k8s.io/v1",
        decode_resource_slice,
        is_optional=True,
        is_needed=False,
        or_versions=("v1beta2", "v1beta1"),
        index_of=lambda one: one.node,
        node_of=lambda one: one.node,
    )
    PERSISTENT_VOLUME = KindDefinition(
        "PersistentVolume", CORE, decode_volume, is_in_wildcard=True, index_of=lambda one: one.storage_class
    )
    PERSISTENT_VOLUME_CLAIM = KindDefinition("PersistentVolumeClaim", CORE, decode_claim, is_in_wildcard=True)
    STORAGE_CLASS = KindDefinition("StorageClass", STORAGE, decode_storage_class, is_in_wildcard=True)
    CSI_NODE = KindDefinition("CSINode", STORAGE, decode_csi_node, is_in_wildcard=True)
    CSI_DRIVER = KindDefinition("CSIDriver", STORAGE, decode_csi_driver, is_in_wildcard=True)
    CSI_STORAGE_CAPACITY = KindDefinition(
        "CSIStorageCapacity",
        STORAGE,
        decode_storage_capacity,
        is_in_wildcard=True,
        index_of=lambda one: one.storage_class,
    )
    VOLUME_ATTACHMENT = KindDefinition(
        "VolumeAttachment",
        STORAGE,
        decode_attachment,
        is_in_wildcard=True,
        index_of=lambda one: one.node,
        node_of=lambda one: one.node,
    )
