"""OpenAPI documents as kubectl needs them: kinds, fields, and the parameters for field validation and dry run.

The patch operations deliberately do not list strategic-merge-patch+json. kubectl then takes list merge keys from its own
complete, compiled-in types instead of from these schemas. The server accepts strategic merge patches nevertheless.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import orjson

from multisched.cluster.api.openapi_types import REVISION, component_name, components, kind_schema
from multisched.cluster.base import api_types, errors
from multisched.cluster.base.resources import Catalog, Document, Resource
from multisched.model.wire import Response

JSON_TYPE = {"content-type": "application/json"}
_INFO = {"title": "Kubernetes", "version": "v1.36.3"}
# An OpenAPI v2 document as protobuf with no definitions: swagger = "2.0", info = {title, version}.
_V2_PROTOBUF = b"\x0a\x032.0\x12\x15\x0a\x0aKubernetes\x12\x07v1.36.3"
_V2_MEDIA = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for name in ("dryRun", "fieldManager", "fieldValidation", "force", "pretty")
]
_MEDIA = {"application/json": {"schema": {"type": "object"}}}
_PATCH_MEDIA = {
    name: {"schema": {"type": "object"}}
    for name in ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")
}


def v2(accept: str) -> Response:
    """Handles GET /openapi/v2: a document without definitions, as JSON or protobuf."""
    if "protobuf" in accept:
        return Response(200, _V2_PROTOBUF, {"content-type": _V2_MEDIA})
    document = {"swagger": "2.0", "info": _INFO, "paths": {}, "definitions": {}}
    return Response(200, orjson.dumps(document), JSON_TYPE)


def _place(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def v3(catalog: Catalog, segments: list[str]) -> Response:
    """Handles GET /openapi/v3 and /openapi/v3/apis/GROUP/VERSION."""
    groups = catalog.groups()
    if not segments:
        paths = {}
        for group, versions in groups.items():
            for version, resources in versions.items():
                place = _place(group, version)
                names = ",".join(sorted(f"{entry.plural}{hash_of(entry)}" for entry in resources))
                digest = hashlib.sha256(f"{REVISION},{names}".encode()).hexdigest()[:32].upper()
                paths[place] = {"serverRelativeURL": f"/openapi/v3/{place}?hash={digest}"}
        return Response(200, orjson.dumps({"paths": paths}), JSON_TYPE)
    group, version = ("", segments[1]) if segments[0] == "api" and len(segments) == 2 else ("-", "-")
    if segments[0] == "apis" and len(segments) == 3:
        group, version = segments[1], segments[2]
    found = groups.get(group, {}).get(version)
    if found is None:
        raise errors.path_not_found()
    return Response(200, orjson.dumps(_document(_place(group, version), found)), JSON_TYPE)


def hash_of(resource: Resource) -> str:
    """Returns a hash of the kind's schema."""
    if resource.schema is None:
        return ""
    return hashlib.sha256(orjson.dumps(resource.schema, option=orjson.OPT_SORT_KEYS)).hexdigest()[:8]


def _document(place: str, resources: Iterable[Resource]) -> Document:
    paths: Document = {}
    schemas: Document = {}
    for resource in resources:
        kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        scope = "/namespaces/{namespace}" if resource.namespaced else ""
        base = f"/{place}{scope}/{resource.plural}"
        paths[base] = _collection_operations(resource, kind)
        if resource.is_stored:
            paths[base + "/{name}"] = _object_operations(resource, kind)
        type_name = "" if resource.is_custom else api_types.type_name(resource.group, resource.version, resource.kind)
        if type_name:
            schemas.update(components(type_name))
            schemas[component_name(type_name)] = {
                **kind_schema(type_name),
                "x-kubernetes-group-version-kind": [kind],
            }
        else:
            schemas[schema_name(resource)] = _schema(resource, kind)
    return {"openapi": "3.0.0", "info": _INFO, "paths": paths, "components": {"schemas": schemas}}


def schema_name(resource: Resource) -> str:
    """Returns the kind's component name in upstream's style."""
    group = (resource.group or "core").split(".")
    if resource.is_custom:
        return ".".join([*reversed(group), resource.version, resource.kind])
    return f"io.k8s.api.{group[0]}.{resource.version}.{resource.kind}"


def _operation(action: str, kind: Document, media: Document | None) -> Document:
    operation: Document = {
        "operationId": f"{action}{kind['group'].title().replace('.', '')}{kind['version'].title()}{kind['kind']}",
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": kind,
        "parameters": _PARAMETERS,
        "responses": {"200": {"description": "OK", "content": _MEDIA}},
    }
    if media is not None:
        operation["requestBody"] = {"content": media, "required": True}
    return operation


def _collection_operations(resource: Resource, kind: Document) -> Document:
    operations = {}
    if "list" in resource.verbs:
        operations["get"] = _operation("list", kind, None)
    if "create" in resource.verbs:
        operations["post"] = _operation("post", kind, _MEDIA)
    if "deletecollection" in resource.verbs:
        operations["delete"] = _operation("deletecollection", kind, None)
    return operations


def _object_operations(resource: Resource, kind: Document) -> Document:
    operations = {"get": _operation("get", kind, None)}
    if "update" in resource.verbs:
        operations["put"] = _operation("put", kind, _MEDIA)
    if "patch" in resource.verbs:
        operations["patch"] = _operation("patch", kind, _PATCH_MEDIA)
    if "delete" in resource.verbs:
        operations["delete"] = _operation("delete", kind, None)
    return operations


def _schema(resource: Resource, kind: Document) -> Document:
    own = (resource.schema or {}).get("openAPIV3Schema")
    anything: Document = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    properties: Document = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    if resource.spec_key:
        properties[resource.spec_key] = anything
    if resource.has_status:
        properties["status"] = anything
    base: Document = {"type": "object", "properties": properties, "x-kubernetes-preserve-unknown-fields": True}
    if own:
        base = {**own, "properties": {**properties, **(own.get("properties") or {})}}
    return {**base, "x-kubernetes-group-version-kind": [kind]}
