"""The status of custom objects: apart from the rest where their definition says so, and a part of it elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from multisched.cluster.api.server import ApiServer
from multisched.model.wire import MERGE_PATCH
from tests.unit.cluster.server_kit import ask, make_server, must

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
THINGS = "/apis/example.com/v1/namespaces/default/things"
ONE = f"{THINGS}/one"
STATUS = f"{ONE}/status"

SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {"type": "object", "properties": {"size": {"type": "integer"}}},
        "status": {
            "type": "object",
            "properties": {"phase": {"type": "string"}, "count": {"type": "integer"}},
        },
    },
}


def make_things(*, has_status: bool = True) -> ApiServer:
    """A server that knows the kind, and one object of it with labels and size 1."""
    server = make_server()
    version: dict[str, Any] = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}
    if has_status:
        version["subresources"] = {"status": {}}
    names = {"kind": "Thing", "plural": "things"}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    must(server, "POST", DEFINITIONS, {"metadata": {"name": "things.example.com"}, "spec": spec})
    thing = {"metadata": {"name": "one", "labels": {"a": "b"}}, "spec": {"size": 1}, "status": {"phase": "New"}}
    must(server, "POST", THINGS, thing)
    return server


def patch(server: ApiServer, path: str, document: dict[str, Any]) -> Any:
    return must(server, "PATCH", path, document, MERGE_PATCH)


def test_write_to_the_object_keeps_its_status() -> None:
    server = make_things()
    assert "status" not in must(server, "GET", ONE)
    assert "status" not in patch(server, ONE, {"status": {"phase": "Old"}})

    patch(server, STATUS, {"status": {"phase": "Ready"}})
    whole = must(server, "GET", ONE)
    must(server, "PUT", ONE, {**whole, "status": {}, "spec": {"size": 2}})

    assert must(server, "GET", ONE)["status"] == {"phase": "Ready"}


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_write_to_the_status_changes_only_the_status(method: str) -> None:
    server = make_things()
    before = must(server, "GET", ONE)
    metadata: dict[str, Any] = {"labels": {"c": "d"}, "annotations": {"e": "f"}, "finalizers": ["example.com/x"]}
    given = {"metadata": metadata, "spec": {"size": 5}, "status": {"phase": "Ready"}}
    if method == "PUT":
        metadata |= {"name": "one", "resourceVersion": before["metadata"]["resourceVersion"]}

    after = must(server, method, STATUS, given, MERGE_PATCH if method == "PATCH" else "application/json")

    assert after["status"] == {"phase": "Ready"}
    assert after["spec"] == {"size": 1}
    fixed = {key: value for key, value in after["metadata"].items() if key != "resourceVersion"}
    assert fixed == {key: value for key, value in before["metadata"].items() if key != "resourceVersion"}


def test_writing_an_equal_status_makes_no_new_version() -> None:
    server = make_things()
    first = patch(server, STATUS, {"status": {"phase": "Ready", "count": 3}})
    again = patch(server, STATUS, {"status": {"count": 3}})
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_null_removes_a_field_of_the_status_or_all_of_it() -> None:
    server = make_things()
    patch(server, STATUS, {"status": {"phase": "Ready", "count": 3}})
    assert patch(server, STATUS, {"status": {"count": None}})["status"] == {"phase": "Ready"}
    assert "status" not in patch(server, STATUS, {"status": None})


def test_status_fields_outside_the_schema_are_pruned_and_wrong_types_refused() -> None:
    server = make_things()
    assert patch(server, STATUS, {"status": {"phase": "Ready", "stranger": 1}})["status"] == {"phase": "Ready"}
    status, answer = ask(server, "PATCH", STATUS, {"status": {"phase": 7}}, MERGE_PATCH)
    assert (status, answer["details"]["causes"][0]["field"]) == (422, "status.phase")


@pytest.mark.parametrize("precondition", [{"uid": "another"}, {"resourceVersion": "1"}])
def test_failed_precondition_is_a_conflict(precondition: dict[str, str]) -> None:
    server = make_things()
    status, answer = ask(server, "PATCH", STATUS, {"metadata": precondition, "status": {"count": 1}}, MERGE_PATCH)
    assert (status, answer["reason"]) == (409, "Conflict")


def test_status_is_part_of_the_object_without_the_subresource() -> None:
    server = make_things(has_status=False)
    status, answer = ask(server, "PATCH", STATUS, {"status": {"count": 1}}, MERGE_PATCH)
    assert (status, answer["message"]) == (404, "the server could not find the requested resource")
    assert must(server, "GET", ONE)["status"] == {"phase": "New"}

    after = patch(server, ONE, {"status": {"phase": "Old"}})

    assert after["status"] == {"phase": "Old"}
    assert after["metadata"]["generation"] == 2


def test_status_writes_do_not_raise_the_generation() -> None:
    server = make_things()
    assert patch(server, STATUS, {"status": {"count": 1}})["metadata"]["generation"] == 1
    assert patch(server, ONE, {"spec": {"size": 2}})["metadata"]["generation"] == 2
