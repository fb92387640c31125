"""Objects that cannot be read: who hears of it, and how often."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import orjson
import pytest

from multisched.framework.events import ClusterEvent, EventObject
from multisched.framework.objects_view import ObjectKind
from multisched.framework.ports import Event, ObjectRef
from multisched.model.cluster_objects import ClusterObject
from multisched.model.decode_objects import decoders
from multisched.shell.object_ingest import ObjectIngest
from multisched.state.object_store import ObjectStore
from tests.unit.shell.shell_kit import Desk

KIND = ObjectKind.POD_DISRUPTION_BUDGET


def a_budget(selector: Any) -> msgspec.Raw:
    metadata = {"name": "few", "namespace": "team", "uid": "uid-1"}
    return msgspec.Raw(orjson.dumps({"metadata": metadata, "spec": {"selector": selector}}))


def test_an_object_that_is_deleted_is_known_no_more_and_events_say_so() -> None:
    told: list[tuple[str, str | None]] = []

    def tell(event: ClusterEvent, old: EventObject, new: EventObject) -> None:
        told.append((event.label, old.name if isinstance(old, ClusterObject) else None))

    store, kind = ObjectStore(), ObjectKind.PERSISTENT_VOLUME_CLAIM
    ingest = ObjectIngest(kind, store, decoders()[kind.value], tell, Desk(), "ours")
    for namespace in ("team", "other"):
        metadata = {"name": "data", "namespace": namespace, "uid": f"uid-{namespace}"}
        ingest.upsert(f"{namespace}/data", msgspec.Raw(orjson.dumps({"metadata": metadata, "spec": {}})))
    ingest.delete("team/data", None)
    ingest.delete("team/data", None)
    assert [item.key for item in store.all(kind)] == ["other/data"]
    added, deleted = "PersistentVolumeClaimAdd", "PersistentVolumeClaimDelete"
    assert told == [(added, None), (added, None), (deleted, "data")]


def test_a_malformed_object_is_told_once_for_each_fault_on_the_object_itself(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    store = ObjectStore()
    ingest = ObjectIngest(KIND, store, decoders()[KIND.value], lambda event, old, new: None, desk, "ours")
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
