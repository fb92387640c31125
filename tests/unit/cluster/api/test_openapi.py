"""The OpenAPI documents: complete in themselves, and with the fields of the built-in kinds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from multisched.cluster.api import openapi
from multisched.cluster.base.resources import Catalog

PLACES = [
    "api/v1",
    "apis/apps/v1",
    "apis/batch/v1",
    "apis/apiextensions.k8s.io/v1",
    "apis/rbac.authorization.k8s.io/v1",
]


def document(place: str) -> dict[str, Any]:
    answer: dict[str, Any] = orjson.loads(openapi.v3(Catalog(), place.split("/")).body)
    return answer


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for entry in value.values():
            yield from references(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from references(entry)


@pytest.mark.parametrize("place", PLACES)
def test_every_reference_resolves(place: str) -> None:
    found = document(place)
    schemas = {f"#/components/schemas/{name}" for name in found["components"]["schemas"]}
    assert set(references(found)) <= schemas


def test_pod_schema_has_fields_and_list_keys() -> None:
    schemas = document("api/v1")["components"]["schemas"]
    spec = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]
    assert spec["schedulerName"] == {"type": "string"}
    assert spec["nodeSelector"] == {"type": "object", "additionalProperties": {"type": "string"}}
    assert spec["containers"]["items"] == {"$ref": "#/components/schemas/io.k8s.api.core.v1.Container"}
    assert spec["containers"]["x-kubernetes-patch-merge-key"] == "name"
    [kind] = schemas["io.k8s.api.core.v1.Pod"]["x-kubernetes-group-version-kind"]
    assert kind == {"group": "", "version": "v1", "kind": "Pod"}
