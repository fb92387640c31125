"""Objects that cannot be read: who hears of it, and how often."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import orjson
import pytest

from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Resource
from multisched.framework.ports import Event, ObjectRef
from multisched.model.cluster_objects import ClusterObject
from multisched.model.object_kinds import ObjectKind
from multisched.shell.ingest import objects
from multisched.shell.ingest.objects import ObjectIngest
from multisched.state.object_store import ObjectStore
from tests.unit.queueing.builders import FIT, Listening, make_pod, make_queue, park
from tests.unit.shell.shell_kit import Desk

KIND = ObjectKind.POD_DISRUPTION_BUDGET


def a_budget(selector: Any) -> msgspec.Raw:
    metadata = {"name": "few", "namespace": "team", "uid": "uid-1"}
    return msgspec.Raw(orjson.dumps({"metadata": metadata, "spec": {"selector": selector}}))


def test_deleted_object_is_removed_and_announced() -> None:
    told: list[tuple[str, str | None]] = []

    def notify(event: ClusterEvent, old: EventObject, new: EventObject) -> None:
        told.append((event.label, old.name if isinstance(old, ClusterObject) else None))

    store, kind = ObjectStore(), ObjectKind.PERSISTENT_VOLUME_CLAIM
    ingest = ObjectIngest(kind, store, notify, Desk(), "ours")
    for namespace in ("team", "other"):
        metadata = {"name": "data", "namespace": namespace, "uid": f"uid-{namespace}"}
        ingest.upsert(f"{namespace}/data", msgspec.Raw(orjson.dumps({"metadata": metadata, "spec": {}})))
    ingest.delete("team/data", None)
    ingest.delete("team/data", None)
    assert [item.key for item in store.all(kind)] == ["other/data"]
    added, deleted = "PersistentVolumeClaimAdd", "PersistentVolumeClaimDelete"
    assert told == [(added, None), (added, None), (deleted, "data")]


@pytest.mark.parametrize("kind", ObjectKind)
def test_every_kind_is_decoded_stored_and_requeues_registered_plugins(kind: ObjectKind) -> None:
    store, woken = ObjectStore(), list[tuple[str, int]]()
    queue = make_queue(plugins=[Listening(FIT, EventRegistration(ClusterEvent(kind, Action.ALL)))])

    def notify(event: ClusterEvent, old: EventObject, new: EventObject) -> None:
        park(queue, make_pod(event.label))
        woken.append((event.label, queue.on_event(event, old, new, 0.0).backoff))

    ingest = ObjectIngest(kind, store, notify, Desk(), "ours")
    named = {"name": "x", "namespace": "team", "uid": "u"}
    for version, labels in (("1", None), ("2", None), ("3", "no labels")):
        metadata = {**named, "resourceVersion": version, "labels": labels}
        ingest.upsert("team/x", msgspec.Raw(orjson.dumps({"metadata": metadata})))
        assert [(item.key, str(item.version)) for item in store.all(kind)] == [("team/x", version)]
    ingest.delete("team/x", None)
    assert not store.all(kind)
    assert woken == [(f"{kind.value}{change}", 1) for change in ("Add", "Update", "Delete")]


@pytest.mark.parametrize(
    ("changes", "is_told"),
    [
        ({}, False),
        ({"metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}}}, False),
        ({"status": {"hard": {"pods": "1"}}}, False),
        ({"spec": {"hard": {"pods": "2"}}}, True),
        ({"status": {"used": {"pods": "1"}}}, True),
    ],
)
def test_changed_quota_spec_or_use_is_an_update(changes: dict[str, dict[str, Any]], is_told: bool) -> None:
    told = list[str]()
    ingest = ObjectIngest(
        ObjectKind.RESOURCE_QUOTA, ObjectStore(), lambda event, old, new: told.append(event.label), Desk(), "ours"
    )
    metadata = {"name": "q", "namespace": "team", "uid": "u", "resourceVersion": "1"}
    document: dict[str, dict[str, Any]] = {"metadata": metadata, "spec": {"hard": {"pods": "1"}}}
    ingest.upsert("team/q", msgspec.Raw(orjson.dumps(document)))
    changed = {**document, **changes, "metadata": {**metadata, **changes.get("metadata", {}), "resourceVersion": "2"}}
    ingest.upsert("team/q", msgspec.Raw(orjson.dumps(changed)))
    assert told == ["ResourceQuotaAdd", *(["ResourceQuotaUpdate"] if is_told else [])]


def test_malformed_object_is_reported_once_per_fault(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    store = ObjectStore()
    ingest = ObjectIngest(KIND, store, lambda event, old, new: None, desk, "ours")
    bad = {"matchExpressions": [{"key": "a", "operator": "Near"}]}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            ingest.upsert("team/few", a_budget(bad))
    (item,) = store.all(KIND)
    ref = ObjectRef("PodDisruptionBudget", "team", "few", "uid-1", "policy/v1")
    note = f"Not used for scheduling: {item.malformed}"
    assert item.malformed
    assert desk.events == [Event(ref, "Warning", "MalformedPodDisruptionBudget", "Scheduling", note, "ours")]
    (record,) = caplog.records
    told = vars(record)
    assert (told["kind"], told["key"], told["error"]) == (KIND.value, "team/few", item.malformed)

    ingest.upsert("team/few", a_budget({"matchLabels": {"a": "b"}}))
    ingest.upsert("team/few", a_budget(bad))
    assert (len(desk.events), ingest.malformed) == (2, 2)


def test_line_without_an_object_is_only_counted(caplog: pytest.LogCaptureFixture) -> None:
    store, told = ObjectStore(), list[str]()
    ingest = ObjectIngest(KIND, store, lambda event, old, new: told.append(event.label), Desk(), "ours")
    with caplog.at_level(logging.WARNING):
        ingest.upsert("team/few", msgspec.Raw(b"7"))
        ingest.upsert("team/few", msgspec.Raw(b"["))
    assert (ingest.malformed, told, len(store)) == (2, [], 0)
    said = vars(caplog.records[0])
    assert (said["kind"], said["key"], bool(said["error"])) == (KIND.value, "team/few", True)


def test_readable_kind_requeues_all_waiting_pods(caplog: pytest.LogCaptureFixture) -> None:
    store, told = ObjectStore(), list[tuple[ClusterEvent, EventObject, EventObject]]()
    ingest = ObjectIngest(KIND, store, lambda event, old, new: told.append((event, old, new)), Desk(), "ours")
    ingest.replaced("1")
    assert told == []
    ingest.refused("forbidden")
    ingest.refused("still forbidden")
    assert store.unreadable(KIND) == "still forbidden"
    (said,) = [vars(record) for record in caplog.records]
    path = "/apis/policy/v1/poddisruptionbudgets"
    assert (said["kind"], said["error"], said["path"]) == (KIND.value, "forbidden", path)
    ingest.replaced("2")
    ingest.replaced("3")
    assert store.unreadable(KIND) == ""
    readable = ClusterEvent(Resource.WILDCARD, Action.ALL, "PodDisruptionBudgetReadable")
    assert told == [(readable, None, None)]


def test_refused_kind_is_logged_once_anything_else_can_be_read(caplog: pytest.LogCaptureFixture) -> None:
    store, reads_nothing = ObjectStore(), True
    ingest = ObjectIngest(KIND, store, lambda event, old, new: None, Desk(), "ours")
    ingest.reads_nothing = lambda: reads_nothing
    with caplog.at_level(logging.INFO):
        ingest.refused("forbidden")
        assert (store.unreadable(KIND), caplog.records) == ("forbidden", [])
        ingest.replaced("1")
        assert [record.message for record in caplog.records] == ["objects listed"], "the server had read its roles"
        ingest.refused("forbidden")
        reads_nothing = False
        for _ in range(2):
            ingest.refused("forbidden")
        ingest.replaced("2")
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == ["kind cannot be read; grant get, list and watch on it, or disable the plugin that reads it"]
    assert "kind can be read again" in [record.message for record in caplog.records]


def test_number_of_remembered_malformed_objects_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "REPORTED_MAX", 2)
    desk = Desk()
    ingest = ObjectIngest(KIND, ObjectStore(), lambda event, old, new: None, desk, "ours")
    bad = {"matchExpressions": [{"key": "a", "operator": "Near"}]}

    def see(name: str) -> None:
        metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}"}
        ingest.upsert(f"team/{name}", msgspec.Raw(orjson.dumps({"metadata": metadata, "spec": {"selector": bad}})))

    for name in ("a", "b", "c", "b", "c", "a"):
        see(name)
    assert [event.regarding.name for event in desk.events] == ["a", "b", "c", "a"]


def test_object_restored_as_deleted_is_announced_to_domains_only(caplog: pytest.LogCaptureFixture) -> None:
    """It may still exist, if its kind cannot be listed yet; and each process that starts recalls it."""
    told: list[str] = []
    store, desk, kind = ObjectStore(), Desk(), ObjectKind.ELASTIC_QUOTA_TREE
    ingest = ObjectIngest(kind, store, lambda event, old, new: told.append(event.label), desk, "ours")
    metadata = {"name": "tree", "namespace": "kube-system", "uid": "u"}
    root = {"name": "root", "min": {"cpu": 4}, "max": {"cpu": 4}}
    ingest.restore_deleted(orjson.dumps({"metadata": metadata, "spec": {"root": root}}))
    assert store.last_removed(kind) is not None
    assert told == ["ElasticQuotaTreeDelete"]
    assert (caplog.records, desk.events) == ([], [])
