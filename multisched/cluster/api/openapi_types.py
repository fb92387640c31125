"""OpenAPI schemas of built-in kinds, made from the table of their Go types: what `kubectl explain` shows.

Pure functions. Names and shapes are upstream's. The table has no descriptions, defaults or required fields, so the schemas have none.
Called only by `openapi`. The server validates fields with the table, not with these schemas.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from multisched.cluster.base.api_types import Field, fields_of
from multisched.cluster.base.resources import Document

REVISION: Final = "types-1"
"""Part of the hash by which clients cache schemas; change it when the generated schemas change."""

_SCALARS: Final[dict[str, Document]] = {
    "string": {"type": "string"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "bool": {"type": "boolean"},
    "double": {"type": "number", "format": "double"},
    "bytes": {"type": "string", "format": "byte"},
    "meta.v1.Time": {"type": "string", "format": "date-time"},
    "meta.v1.MicroTime": {"type": "string", "format": "date-time"},
    "meta.v1.FieldsV1": {"type": "object"},
    "meta.v1.Verbs": {"type": "array", "items": {"type": "string"}},
    "resource.Quantity": {"type": "string"},
    "intstr.IntOrString": {"type": "string", "format": "int-or-string"},
    "runtime.RawExtension": {"type": "object"},
    "authentication.v1.ExtraValue": {"type": "array", "items": {"type": "string"}},
    "authorization.v1.ExtraValue": {"type": "array", "items": {"type": "string"}},
}
_HEAD: Final[Document] = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
_MACHINERY: Final = {"meta": "io.k8s.apimachinery.pkg.apis.", "api": "io.k8s.api."}


def component_name(type_name: str) -> str:
    """Converts a type name: `core.v1.PodSpec` -> `io.k8s.api.core.v1.PodSpec`."""
    return _MACHINERY["meta" if type_name.startswith("meta.") else "api"] + type_name


def kind_schema(type_name: str) -> Document:
    """Returns the schema of a kind; `components` returns the schemas that it refers to."""
    schema = _object(type_name)
    return {**schema, "properties": {**_HEAD, **schema["properties"]}}


@cache
def components(type_name: str) -> dict[str, Document]:
    """Returns all schemas that the type refers to, directly or indirectly, by component name."""
    found: dict[str, Document] = {}
    waiting = [type_name]
    while waiting:
        for field in fields_of(waiting.pop()).values():
            name = component_name(field.type)
            if field.type not in _SCALARS and name not in found:
                found[name] = _object(field.type)
                waiting.append(field.type)
    return found


@cache
def _object(type_name: str) -> Document:
    return {"type": "object", "properties": {name: _property(field) for name, field in fields_of(type_name).items()}}


def _property(field: Field) -> Document:
    scalar = _SCALARS.get(field.type)
    value = dict(scalar) if scalar is not None else {"$ref": f"#/components/schemas/{component_name(field.type)}"}
    if field.shape == "map":
        return {"type": "object", "additionalProperties": value}
    if field.shape == "list":
        return {"type": "array", "items": value, **_merging(field)}
    # Upstream wraps a $ref in allOf if it has a description or default; here every $ref is wrapped.
    return value if scalar is not None else {"allOf": [value]}


def _merging(field: Field) -> Document:
    said: Document = {}
    if field.list_type:
        said["x-kubernetes-list-type"] = field.list_type
    if field.list_keys:
        said["x-kubernetes-list-map-keys"] = list(field.list_keys)
    if field.is_merged:
        said["x-kubernetes-patch-strategy"] = "merge"
    if field.merge_key:
        said["x-kubernetes-patch-merge-key"] = field.merge_key
    return said
