"""Objects besides pods and nodes, from the API server's JSON: what is read of each kind, and what bad ones become."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.cluster_objects import (
    ClaimRef,
    ClusterObject,
    CsiDriver,
    CsiNode,
    CsiNodeDriver,
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    ReplicaSet,
    ResourceQuota,
    Service,
    TopologyTerm,
    VolumeAttachment,
)
from multisched.model.decode import DecodeError
from multisched.model.decode_objects import DISRUPTED_MAX, DRIVERS_MAX
from multisched.model.decode_selectors import SELECTOR_VALUES_MAX
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Owner
from multisched.model.selectors import LabelSelector, Operator, Requirement

GI = 2**30


def read(kind: ObjectKind, document: dict[str, Any]) -> ClusterObject:
    metadata = {"name": "x", "uid": "u", "resourceVersion": "7", **document.pop("metadata", {})}
    return kind.definition.decode(orjson.dumps({"metadata": metadata, **document}))


def fields(item: object, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(item, name) for name in names)


@pytest.mark.parametrize("kind", list(ObjectKind))
def test_object_with_only_metadata_is_read(kind: ObjectKind) -> None:
    spec = {"root": {"name": "root"}} if kind is ObjectKind.ELASTIC_QUOTA_TREE else {}  # which is nothing without one
    item = read(kind, {"metadata": {"namespace": "team"}, "spec": spec})
    assert (item.name, item.uid, item.version, item.malformed) == ("x", "u", 7, "")


def test_persistent_volume_is_decoded() -> None:
    volume = read(
        ObjectKind.PERSISTENT_VOLUME,
        {
            "metadata": {
                "labels": {"disk": "ssd"},
                "annotations": {"pv.kubernetes.io/bound-by-controller": "yes", "other": "text"},
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "fast",
                "volumeMode": "Block",
                "claimRef": {"namespace": "team", "name": "data", "uid": "c"},
                "nodeAffinity": {
                    "required": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "z", "operator": "In", "values": ["a"]}]}]
                    }
                },
                "csi": {"driver": "d", "volumeHandle": "h"},
            },
            "status": {"phase": "Bound"},
        },
    )
    assert isinstance(volume, PersistentVolume)
    assert fields(volume, "labels", "capacity_bytes", "access_modes", "storage_class", "volume_mode", "phase") == (
        {"disk": "ssd"}, 10 * GI, ("ReadWriteOnce",), "fast", "Block", "Bound",
    )  # fmt: skip
    assert volume.annotations == {"pv.kubernetes.io/bound-by-controller": "yes"}
    assert volume.claim == ClaimRef("team", "data", "c")
    assert volume.node_affinity is not None
    assert volume.node_affinity.matches({"z": "a"}, "")
    assert fields(volume, "csi_driver", "csi_handle", "migrated", "is_deleting") == ("d", "h", None, True)


def test_in_tree_volume_is_decoded_as_its_csi_migration() -> None:
    volume = read(ObjectKind.PERSISTENT_VOLUME, {"spec": {"awsElasticBlockStore": {"volumeID": "aws://z/vol-1"}}})
    assert isinstance(volume, PersistentVolume)
    assert volume.migrated is not None
    assert fields(volume.migrated, "plugin", "driver", "handle") == (
        "kubernetes.io/aws-ebs",
        "ebs.csi.aws.com",
        "vol-1",
    )


def test_claim_and_its_beta_class_annotation_are_decoded() -> None:
    claim = read(
        ObjectKind.PERSISTENT_VOLUME_CLAIM,
        {
            "metadata": {
                "namespace": "team",
                "annotations": {
                    "volume.beta.kubernetes.io/storage-class": "old",
                    "pv.kubernetes.io/bind-completed": "yes",
                },
                "ownerReferences": [
                    {"kind": "X", "name": "n", "uid": "1"},
                    {"kind": "Pod", "name": "p", "uid": "2", "controller": True},
                ],
            },
            "spec": {"storageClassName": "new", "volumeName": "v", "resources": {"requests": {"storage": "1.5"}}},
            "status": {"phase": "Bound"},
        },
    )
    assert isinstance(claim, PersistentVolumeClaim)
    assert (claim.storage_class, claim.class_name, claim.key) == ("old", "old", "team/x")
    assert (claim.request_bytes, claim.request_nano) == (2, 1_500_000_000)
    assert claim.owner == Owner("Pod", "p", "2")
    assert claim.is_fully_bound
    assert not msgspec.structs.replace(claim, volume="").is_fully_bound


def test_a_claim_without_class_differs_from_one_of_the_empty_class() -> None:
    without, empty = (
        read(ObjectKind.PERSISTENT_VOLUME_CLAIM, {"spec": spec}) for spec in ({}, {"storageClassName": ""})
    )
    assert isinstance(without, PersistentVolumeClaim)
    assert isinstance(empty, PersistentVolumeClaim)
    assert (without.storage_class, empty.storage_class) == (None, "")
    assert without.request_bytes is None


def test_storage_kinds_are_decoded() -> None:
    expressions = [{"key": "zone", "values": ["a", "b"]}]
    assert fields(
        read(
            ObjectKind.STORAGE_CLASS,
            {
                "provisioner": "p",
                "volumeBindingMode": "WaitForFirstConsumer",
                "allowedTopologies": [{"matchLabelExpressions": expressions}, {}],
            },
        ),
        "provisioner", "binding_mode", "allowed_topologies",
    ) == ("p", "WaitForFirstConsumer", (TopologyTerm((("zone", ("a", "b")),)), TopologyTerm()))  # fmt: skip
    node = read(
        ObjectKind.CSI_NODE,
        {
            "metadata": {"annotations": {"storage.alpha.kubernetes.io/migrated-plugins": "a,b"}},
            "spec": {"drivers": [{"name": "d", "nodeID": "n", "topologyKeys": ["z"], "allocatable": {"count": 3}}]},
        },
    )
    assert isinstance(node, CsiNode)
    assert node.drivers == (CsiNodeDriver("d", "n", ("z",), 3),)
    assert node.migrated_plugins == {"a", "b"}
    driver = read(ObjectKind.CSI_DRIVER, {"spec": {"storageCapacity": True}})
    assert isinstance(driver, CsiDriver)
    assert (driver.tracks_capacity, driver.refuses_without_driver) == (True, False)
    attachment = read(
        ObjectKind.VOLUME_ATTACHMENT,
        {
            "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
            "status": {"attached": True},
        },
    )
    assert isinstance(attachment, VolumeAttachment)
    assert fields(attachment, "attacher", "node", "volume", "is_attached") == ("d", "n", "v", True)


@pytest.mark.parametrize(
    ("fields_", "limit"),
    [
        ({}, None),
        ({"capacity": "2Gi"}, 2 * GI),
        ({"capacity": "2Gi", "maximumVolumeSize": "1Gi"}, GI),
    ],
)
def test_volume_limit_of_a_capacity_is_its_maximum_or_capacity(fields_: dict[str, str], limit: int | None) -> None:
    capacity = read(ObjectKind.CSI_STORAGE_CAPACITY, {"storageClassName": "fast", **fields_})
    assert isinstance(capacity, CsiStorageCapacity)
    assert (capacity.volume_limit_bytes, capacity.node_topology) == (limit, None)


def test_missing_empty_and_map_selectors_are_decoded() -> None:
    nothing = read(ObjectKind.REPLICA_SET, {"spec": {}})
    everything = read(ObjectKind.REPLICA_SET, {"spec": {"selector": {}}})
    assert isinstance(nothing, ReplicaSet)
    assert isinstance(everything, ReplicaSet)
    assert (nothing.selector, everything.selector) == (None, LabelSelector())
    service = read(ObjectKind.SERVICE, {"spec": {"selector": {"app": "web"}}})
    assert isinstance(service, Service)
    assert service.selector == LabelSelector((Requirement("app", Operator.IN, ("web",)),))
    budget = read(
        ObjectKind.POD_DISRUPTION_BUDGET,
        {"spec": {"selector": {}}, "status": {"disruptionsAllowed": 2, "disruptedPods": {"p": "2026-01-01T00:00:00Z"}}},
    )
    assert isinstance(budget, PodDisruptionBudget)
    assert (budget.selector, budget.disruptions_allowed, budget.disrupted_pods) == (LabelSelector(), 2, frozenset("p"))


def test_oversized_budget_still_protects_its_pods() -> None:
    values = [f"v{number}" for number in range(SELECTOR_VALUES_MAX + 1)]
    wide = {"matchExpressions": [{"key": "app", "operator": "In", "values": [*values, "web"]}]}
    disrupted = {f"p{number}": "2026-01-01T00:00:00Z" for number in range(DISRUPTED_MAX + 1)}
    budget = read(
        ObjectKind.POD_DISRUPTION_BUDGET, {"spec": {"selector": wide}, "status": {"disruptedPods": disrupted}}
    )
    assert isinstance(budget, PodDisruptionBudget)
    assert not budget.malformed
    assert budget.selector is not None
    assert budget.selector.matches({"app": "web"})
    assert len(budget.disrupted_pods) == DISRUPTED_MAX


def test_resource_quota_is_decoded_with_hard_and_used() -> None:
    quota = read(
        ObjectKind.RESOURCE_QUOTA,
        {
            "spec": {"hard": {"requests.cpu": "1500m", "memory": "1Gi", "pods": "10", "count/services": "5"}},
            "status": {"used": {"requests.cpu": "1", "memory": "1k", "pods": 3}},
        },
    )
    scoped = read(ObjectKind.RESOURCE_QUOTA, {"spec": {"hard": {"pods": "1"}, "scopes": ["BestEffort"]}})
    assert isinstance(quota, ResourceQuota)
    assert isinstance(scoped, ResourceQuota)
    assert quota.hard == {"requests.cpu": 1500, "memory": 2**30, "pods": 10, "count/services": 5}
    assert quota.used == {"requests.cpu": 1000, "memory": 1000, "pods": 3}
    assert (quota.is_scoped, scoped.is_scoped) == (False, True)


@pytest.mark.parametrize(
    ("kind", "document", "words"),
    [
        (ObjectKind.PERSISTENT_VOLUME, {"spec": {"capacity": {"storage": "lots"}}}, "spec.capacity.storage"),
        (ObjectKind.PERSISTENT_VOLUME, {"spec": {"accessModes": ["RWO"] * 99}}, "spec.accessModes"),
        (ObjectKind.PERSISTENT_VOLUME, {"spec": "text"}, "spec"),
        (
            ObjectKind.REPLICA_SET,
            {"spec": {"selector": {"matchExpressions": [{"key": "a", "operator": "Near", "values": ["b"]}]}}},
            "Near",
        ),
        (
            ObjectKind.STATEFUL_SET,
            {"spec": {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}},
            "spec.selector",
        ),
        (ObjectKind.CSI_NODE, {"spec": {"drivers": [{"name": "d"}] * (DRIVERS_MAX + 1)}}, "spec.drivers"),
        (ObjectKind.RESOURCE_QUOTA, {"spec": {"hard": {"requests.cpu": "lots"}}}, "spec.hard[requests.cpu]"),
        (ObjectKind.CSI_STORAGE_CAPACITY, {"capacity": "x"}, "'x' is not a quantity"),
    ],
)
def test_object_with_a_bad_field_is_malformed_and_keeps_its_name(
    kind: ObjectKind, document: dict[str, Any], words: str
) -> None:
    item = read(kind, document)
    assert words in item.malformed
    assert (item.name, item.uid, item.version) == ("x", "u", 7)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"metadata": {}}', b'{"metadata": {"name": 1}}', b"\xff"])
def test_non_objects_are_refused(text: bytes) -> None:
    for kind in ObjectKind:
        with pytest.raises(DecodeError):
            kind.definition.decode(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=4) | st.sampled_from(("1Gi", "In", "a")),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ("storage", "selector", "matchLabels", "matchExpressions", "key", "operator", "values", "drivers", "name",
             "required", "nodeSelectorTerms", "requests", "resources", "capacity", "claimRef", "nodeAffinity")
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(st.sampled_from(list(ObjectKind)), json_values, json_values)
def test_any_value_in_any_field_is_decoded_or_malformed(kind: ObjectKind, spec: Any, status: Any) -> None:
    item = read(kind, {"spec": spec, "status": status, "nodeTopology": spec, "allowedTopologies": status})
    assert item.name == "x"
