"""Names, verbs, subresources and table columns of every kind, as kube-apiserver 1.36.3 has them (recorded_kinds.jsonl)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.api.conftest import Api

KINDS = [json.loads(line) for line in (Path(__file__).parent / "recorded_kinds.jsonl").read_text().splitlines()]
STREAMED = {"attach", "exec", "log", "portforward", "proxy"}
"""Subresources that need a kubelet behind them: the embedded server has none."""


@pytest.mark.parametrize(
    "accept", ["application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", "application/json"]
)
async def test_discovery_lists_every_recorded_kind(api: Api, accept: str) -> None:
    for path in sorted({kind["path"] for kind in KINDS}):
        wanted = {kind["plural"]: kind for kind in KINDS if kind["path"] == path}
        found = await (_aggregated(api, path) if "as=" in accept else _legacy(api, path))
        for plural, kind in wanted.items():
            shown = {name: kind[name] for name in ("kind", "scope", "one", "verbs", "short", "categories", "below")}
            assert found[plural] == shown, (path, plural)


async def _aggregated(api: Api, path: str) -> dict[str, dict[str, Any]]:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    _status, document = await api.ask("GET", "/" + path.split("/")[1], accept=accept)
    group, version = ["", path.split("/")[2]] if path.startswith("/api/") else path.split("/")[2:4]
    versions = next(item["versions"] for item in document["items"] if item["metadata"].get("name", "") == group)
    resources = next(entry["resources"] for entry in versions if entry["version"] == version)
    return {
        entry["resource"]: {
            "kind": entry["responseKind"]["kind"],
            "scope": entry["scope"],
            "one": entry["singularResource"],
            "verbs": entry["verbs"],
            "short": entry.get("shortNames", []),
            "categories": entry.get("categories", []),
            "below": {
                below["subresource"]: [below["responseKind"]["kind"], below["verbs"]]
                for below in entry.get("subresources", [])
                if below["subresource"] not in STREAMED
            },
        }
        for entry in resources
    }


async def _legacy(api: Api, path: str) -> dict[str, dict[str, Any]]:
    document = await api.must("GET", path)
    found: dict[str, dict[str, Any]] = {}
    for entry in document["resources"]:
        plural, _, below = entry["name"].partition("/")
        if below:
            if below not in STREAMED:
                found[plural]["below"][below] = [entry["kind"], entry["verbs"]]
            continue
        found[plural] = {
            "kind": entry["kind"],
            "scope": "Namespaced" if entry["namespaced"] else "Cluster",
            "one": entry["singularName"],
            "verbs": entry["verbs"],
            "short": entry.get("shortNames", []),
            "categories": entry.get("categories", []),
            "below": {},
        }
    return found


async def test_every_table_has_the_recorded_columns(api: Api) -> None:
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    listed = [kind for kind in KINDS if kind["columns"]]
    assert len(listed) > 35
    for kind in listed:
        status, table = await api.ask("GET", f"{kind['path']}/{kind['plural']}?limit=1", accept=accept)
        assert status == 200
        columns = [
            [entry["name"], entry["type"], entry["format"], entry["priority"]] for entry in table["columnDefinitions"]
        ]
        assert columns == kind["columns"], kind["plural"]
