"""What stands in the status of objects, as the watch and answers bring it."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest

from multisched.client import server_status
from multisched.client.server_status import ServerStatuses
from multisched.framework.object_status import ObjectKey
from multisched.model.object_kinds import ObjectKind
from tests.unit.client.scripted import Mirror, an_object

KIND = ObjectKind.RESOURCE_QUOTA
KEY: ObjectKey = (KIND, "team", "quota")


def raw(version: int, status: object = None, **metadata: Any) -> msgspec.Raw:
    document = an_object("quota", version, namespace="team")
    document["metadata"] |= metadata
    if status is not None:
        document["status"] = status
    return msgspec.Raw(orjson.dumps(document))


def test_status_is_stored_with_uid_version_and_generation() -> None:
    standing = ServerStatuses()
    standing.record(KEY, raw(7, {"used": {"cpu": "1"}}, generation=3))
    found = standing.get(KEY)
    assert found is not None
    assert (found.uid, found.version, found.generation) == ("uid-quota", "7", 3)
    assert found.document() == {"used": {"cpu": "1"}}


@pytest.mark.parametrize("status", [None, "none", [1], 7])
def test_non_object_status_counts_as_none(status: object) -> None:
    standing = ServerStatuses()
    standing.record(KEY, raw(7, status))
    found = standing.get(KEY)
    assert found is not None
    assert found.document() == {}


def test_deeply_nested_status_counts_as_none() -> None:
    deep = b'{"metadata":{"uid":"u","resourceVersion":"1"},"status":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}"
    standing = ServerStatuses()
    found = standing.record(KEY, deep)
    assert found is None or found.document() == {}


def test_unreadable_object_keeps_the_stored_status() -> None:
    standing = ServerStatuses()
    standing.record(KEY, raw(7, {"used": 1}))
    assert standing.record(KEY, b"<html>") is None
    assert standing.record(KEY, b'{"metadata":{"uid":7}}') is None
    found = standing.get(KEY)
    assert found is not None
    assert found.version == "7"


def test_oversized_status_is_returned_once_and_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_status, "STATUS_BYTES_MAX", 10)
    standing = ServerStatuses()
    standing.record(KEY, raw(7))
    assert standing.record(KEY, raw(8, {"used": {"cpu": "1"}})) is not None
    assert standing.get(KEY) is None


def test_wrapped_handler_gets_everything_before_changes_are_announced() -> None:
    standing, mirror = ServerStatuses(), Mirror()
    seen: list[tuple[ObjectKey, int]] = []
    handler = standing.watching(KIND, mirror, lambda key: seen.append((key, len(mirror.calls))))

    handler.upsert("team/quota", raw(7))
    handler.upsert("team/quota", raw(8, {"used": 1}))
    handler.replaced("8")
    handler.delete("team/quota", None)

    assert mirror.calls == [("upsert", "team/quota"), ("upsert", "team/quota"), ("vanish", "team/quota")]
    assert mirror.replacements == ["8"]
    assert seen == [(KEY, 1), (KEY, 2), (KEY, 3)]
    assert len(standing) == 0


def test_watch_event_of_an_own_write_is_no_change() -> None:
    standing, seen = ServerStatuses(), list[ObjectKey]()
    handler = standing.watching(KIND, Mirror(), seen.append)
    handler.upsert("team/quota", raw(7))
    standing.record(KEY, raw(8, {"used": 1}))  # the answer to a write

    handler.upsert("team/quota", raw(8, {"used": 1}))
    assert seen == [KEY]

    handler.upsert("team/quota", raw(8, {"used": 1}, uid="another"))
    assert seen == [KEY, KEY]


def test_cluster_scoped_objects_have_no_namespace() -> None:
    standing, seen = ServerStatuses(), list[ObjectKey]()
    handler = standing.watching(ObjectKind.NAMESPACE, Mirror(), seen.append)
    handler.upsert("team", msgspec.Raw(orjson.dumps(an_object("team", 1, namespace=""))))
    assert seen == [(ObjectKind.NAMESPACE, "", "team")]
