"""The object store: what the watches brought, found by namespace, name and what else it is asked for by."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.cluster_objects import (
    ClusterObject,
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    ReplicaSet,
    ReplicationController,
    ResourceSlice,
    Service,
    StatefulSet,
    VolumeAttachment,
)
from multisched.model.object_kinds import ObjectKind
from multisched.state.object_store import ObjectStore

PV, PVC, CAPACITY, ATTACHMENT, SERVICE = (
    ObjectKind.PERSISTENT_VOLUME,
    ObjectKind.PERSISTENT_VOLUME_CLAIM,
    ObjectKind.CSI_STORAGE_CAPACITY,
    ObjectKind.VOLUME_ATTACHMENT,
    ObjectKind.SERVICE,
)


def test_object_is_found_by_name_until_removed() -> None:
    store = ObjectStore()
    claim = PersistentVolumeClaim(name="data", namespace="team", uid="u", version=3)

    assert store.set(PVC, claim) is None
    assert store.claim("team", "data") is store.get(PVC, "team", "data") is claim
    assert store.claim("other", "data") is None
    assert store.remove(PVC, "team", "data") is claim
    assert store.remove(PVC, "team", "data") is None
    assert store.claim("team", "data") is None
    assert len(store) == 0


def test_objects_are_found_by_the_keys_of_plugins() -> None:
    store = ObjectStore()
    store.set(PV, PersistentVolume(name="a", storage_class="fast"))
    store.set(PV, PersistentVolume(name="b", storage_class="slow"))
    store.set(CAPACITY, CsiStorageCapacity(name="c", namespace="kube-system", storage_class="fast"))
    store.set(ATTACHMENT, VolumeAttachment(name="d", node="n1"))
    store.set(SERVICE, Service(name="e", namespace="team"))

    assert [v.name for v in store.volumes_of_class("fast")] == ["a"]
    assert [v.name for v in store.storage_capacities("fast")] == ["c"]
    assert [v.name for v in store.attachments_on("n1")] == ["d"]
    assert [v.name for v in store.services("team")] == ["e"]
    assert [v.name for v in store.in_namespace(CAPACITY, "kube-system")] == ["c"]
    assert not store.volumes_of_class("none")
    assert not store.services("none")


def test_version_changes_only_with_stored_content() -> None:
    store = ObjectStore()
    store.set(PV, PersistentVolume(name="a", version=1, phase="Available"))
    before = store.version(PV)

    store.set(PV, PersistentVolume(name="a", version=2, phase="Available"))
    assert store.version(PV) == before
    found = store.volume("a")
    assert found is not None
    assert found.version == 2
    assert [v.version for v in store.volumes_of_class("")] == [2]

    store.set(PV, PersistentVolume(name="a", version=3, phase="Bound"))
    assert store.version(PV) > before
    assert store.versions(PV, PVC) == (store.version(PV), 0)
    assert store.changed_since(PV, before) == [("", "a")]


def test_unreadable_kind_has_a_reason_until_readable() -> None:
    store = ObjectStore()
    assert store.unreadable(PV) == ""
    before = store.sequence
    store.set_unreadable(PV, "403 Forbidden")
    assert store.unreadable(PV) == "403 Forbidden"
    assert store.sequence > before
    store.set_unreadable(PV, "")
    assert store.unreadable(PV) == ""


CHANGES = st.lists(
    st.tuples(st.booleans(), st.sampled_from("abcd"), st.sampled_from(("", "fast", "slow")), st.integers(0, 2)),
    max_size=30,
)


@given(CHANGES)
def test_indexes_and_versions_agree_with_what_was_written(changes: list[tuple[bool, str, str, int]]) -> None:
    store = ObjectStore()
    model: dict[str, PersistentVolume] = {}
    for is_set, name, storage_class, size in changes:
        before, version, sequence = model.get(name), store.version(PV), store.sequence
        if is_set:
            model[name] = PersistentVolume(name=name, storage_class=storage_class, capacity_bytes=size)
            assert store.set(PV, model[name]) is before
            is_news = before is None or _content(before) != _content(model[name])
        else:
            assert store.remove(PV, "", name) is model.pop(name, None)
            is_news = before is not None
        assert (store.version(PV) > version) == is_news
        assert store.sequence > sequence or not is_news
        assert {v.name: v for v in store.all(PV)} == model
        for one in ("", "fast", "slow"):
            found = {v.name: v for v in store.volumes_of_class(one)}
            assert found == {n: v for n, v in model.items() if v.storage_class == one}


@pytest.mark.parametrize("kind", list(ObjectKind))
def test_every_kind_has_a_store(kind: ObjectKind) -> None:
    store = ObjectStore()
    item: ClusterObject = _any_object(kind)
    store.set(kind, item)
    assert list(store.all(kind)) == [item]
    assert store.version(kind) == 1


def _any_object(kind: ObjectKind) -> ClusterObject:
    shaped: dict[ObjectKind, type[Any]] = {
        PV: PersistentVolume,
        CAPACITY: CsiStorageCapacity,
        ATTACHMENT: VolumeAttachment,
        ObjectKind.RESOURCE_SLICE: ResourceSlice,
    }
    made: ClusterObject = shaped.get(kind, Service)(name="x")
    return made


def _content(volume: PersistentVolume) -> tuple[str, int]:
    return volume.storage_class, volume.capacity_bytes


def test_each_kind_is_found_by_its_namespace() -> None:
    store = ObjectStore()
    kinds = {
        ObjectKind.SERVICE: Service,
        ObjectKind.REPLICA_SET: ReplicaSet,
        ObjectKind.STATEFUL_SET: StatefulSet,
        ObjectKind.REPLICATION_CONTROLLER: ReplicationController,
        ObjectKind.POD_DISRUPTION_BUDGET: PodDisruptionBudget,
    }
    for kind, make in kinds.items():
        for namespace in ("team", "other"):
            store.set(kind, make(name=f"{kind.value}-{namespace}", namespace=namespace))
    for kind in kinds:
        assert [one.name for one in store.in_namespace(kind, "team")] == [f"{kind.value}-team"]
        assert list(store.in_namespace(kind, "nobody")) == []
    assert [one.name for one in store.services("team")] == ["Service-team"]
    assert [one.name for one in store.disruption_budgets("team")] == ["PodDisruptionBudget-team"]
    assert len(store) == 2 * len(kinds)


def test_objects_indexed_by_other_keys_are_also_found_by_namespace() -> None:
    store = ObjectStore()
    for namespace in ("team", "other"):
        store.set(CAPACITY, CsiStorageCapacity(name="c", namespace=namespace, storage_class="fast"))
    assert [one.namespace for one in store.in_namespace(CAPACITY, "team")] == ["team"]
    store.set(PV, PersistentVolume(name="a"))
    assert [one.name for one in store.volumes()] == ["a"]


def test_kind_version_changes_when_it_becomes_readable_or_unreadable() -> None:
    store = ObjectStore()
    versions = []
    for why in ("", "forbidden", "still forbidden", "", ""):
        store.set_unreadable(PVC, why)
        versions.append(store.version(PVC))
        assert store.unreadable(PVC) == why
    assert [later - versions[0] for later in versions] == [0, 1, 1, 2, 2]
    assert store.versions(PVC, PV) == (versions[-1], 0)
