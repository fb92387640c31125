"""Discovery: the served groups, versions and kinds, in the aggregated and the legacy form.

All documents are derived from the Catalog.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from multisched.cluster.base import errors
from multisched.cluster.base.resources import Catalog, Document, Resource
from multisched.model.wire import Response

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
JSON_TYPE = {"content-type": "application/json"}


def wants_aggregated(accept: str) -> bool:
    """Reports whether the client prefers the aggregated form in version v2."""
    for offer in accept.split(","):
        if "as=APIGroupDiscoveryList" in offer:
            if "v=v2" in offer.replace("v=v2beta1", ""):
                return True
        elif offer.strip().startswith("application/json"):
            return False
    return False


def _json(document: Any) -> Response:
    return Response(200, orjson.dumps(document), JSON_TYPE)


def answer(catalog: Catalog, segments: list[str], accept: str, address: str) -> Response:
    """Handles GET /api, /apis, /api/v1, /apis/GROUP and /apis/GROUP/VERSION."""
    groups = catalog.groups()
    root, rest = segments[0], segments[1:]
    if not rest:
        if wants_aggregated(accept):
            chosen = {name: versions for name, versions in groups.items() if bool(name) == (root == "apis")}
            items = [_aggregated_group(name, versions) for name, versions in chosen.items()]
            document = {
                "kind": "APIGroupDiscoveryList",
                "apiVersion": "apidiscovery.k8s.io/v2",
                "metadata": {},
                "items": items,
            }
            return Response(200, orjson.dumps(document), {"content-type": AGGREGATED})
        return _json(_legacy_root(root, groups, address))
    group, versions = ("", rest) if root == "api" else (rest[0], rest[1:])
    found = groups.get(group)
    if found is None:
        raise errors.path_not_found()
    if not versions:
        return _json({"kind": "APIGroup", "apiVersion": "v1", **_legacy_group(group, found)})
    if versions[0] not in found:
        raise errors.path_not_found()
    return _json(_resource_list(group, versions[0], found[versions[0]]))


# -- aggregated --------------------------------------------------------------------------------------------------


def _aggregated_group(group: str, versions: Any) -> Document:
    return {
        "metadata": {"name": group} if group else {},
        "versions": [
            {
                "version": version,
                "resources": [
                    _aggregated_resource(resource) for resource in sorted(resources, key=lambda entry: entry.plural)
                ],
                "freshness": "Current",
            }
            for version, resources in versions.items()
        ],
    }


def _aggregated_resource(resource: Resource) -> Document:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    document: Document = {
        "resource": resource.plural,
        "responseKind": kind,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.one,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        document["shortNames"] = list(resource.short_names)
    if resource.categories:
        document["categories"] = list(resource.categories)
    if resource.subresources:
        document["subresources"] = [
            {
                "subresource": entry.name,
                "responseKind": {"group": entry.group, "version": entry.version or "v1", "kind": entry.kind}
                if entry.kind
                else kind,
                "verbs": list(entry.verbs),
            }
            for entry in resource.subresources
        ]
    return document


# -- legacy ------------------------------------------------------------------------------------------------------


def _legacy_root(root: str, groups: Any, address: str) -> Document:
    if root == "api":
        addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}
    listed = [_legacy_group(name, versions) for name, versions in groups.items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}


def _legacy_group(group: str, versions: Any) -> Document:
    listed = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": listed, "preferredVersion": listed[0]}


def _resource_list(group: str, version: str, resources: Iterable[Resource]) -> Document:
    listed: list[Document] = []
    for resource in sorted(resources, key=lambda entry: entry.plural):
        entry: Document = {
            "name": resource.plural,
            "singularName": resource.one,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(resource.verbs),
        }
        if resource.short_names:
            entry["shortNames"] = list(resource.short_names)
        if resource.categories:
            entry["categories"] = list(resource.categories)
        listed.append(entry)
        listed += [_legacy_subresource(resource, below) for below in resource.subresources]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": listed,
    }


def _legacy_subresource(resource: Resource, below: Any) -> Document:
    entry: Document = {
        "name": f"{resource.plural}/{below.name}",
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": below.kind or resource.kind,
        "verbs": list(below.verbs),
    }
    if below.kind:
        entry |= {"group": below.group, "version": below.version or "v1"}
    return entry
