"""JSON Schemas of every kind that a real API server knows, as kubeconform reads them: from its own OpenAPI, at test time.

`write_schemas` fills a folder; `conform` has kubeconform judge objects by it. An object may have no field that its schema
does not name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import yaml

from tests.real.admin import Admin, until
from tests.real.rendering import Object, run, tools

OPEN_FIELDS: Final = "x-kubernetes-preserve-unknown-fields"
KINDS: Final = "x-kubernetes-group-version-kind"
PUBLISHED_LIMIT_S: Final = 60
LOCATION: Final = "{{ .Group }}_{{ .ResourceAPIVersion }}_{{ .ResourceKind }}.json"


async def wait_published(admin: Admin, definitions: Iterable[Object]) -> None:
    """Until the OpenAPI has every version of these CustomResourceDefinitions, which is a moment after they are established."""
    expected = {
        (f"apis/{one['spec']['group']}/{version['name']}", one["spec"]["names"]["kind"])
        for one in definitions
        for version in one["spec"]["versions"]
        if version["served"]
    }

    async def are_there() -> bool:
        paths = (await admin.request("GET", "/openapi/v3"))["paths"]
        if not {path for path, _kind in expected} <= paths.keys():
            return False
        found = set()
        for path in {path for path, _kind in expected}:
            schemas = (await admin.request("GET", f"/openapi/v3/{path}"))["components"]["schemas"]
            found |= {(path, kind["kind"]) for schema in schemas.values() for kind in schema.get(KINDS, ())}
        return expected <= found

    await until(are_there, PUBLISHED_LIMIT_S)


async def write_schemas(admin: Admin, folder: Path) -> int:
    """One file per kind; how many there are."""
    await anyio.Path(folder).mkdir()
    written = 0
    paths: Mapping[str, Any] = (await admin.request("GET", "/openapi/v3"))["paths"]
    for path in paths:
        if not path.startswith(("api/", "apis/")):
            continue
        schemas = (await admin.request("GET", f"/openapi/v3/{path}")).get("components", {}).get("schemas", {})
        for schema in schemas.values():
            _close(schema)
        for name, schema in schemas.items():
            for kind in schema.get(KINDS, ()):
                whole = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
                (folder / _file_name(kind)).write_text(json.dumps(whole))
                written += 1
    return written


def conform(objects: Iterable[Object], folder: Path) -> None:
    """Raises RefusedError, with what is wrong, unless kubeconform knows every kind and finds every object good."""
    command: list[str | Path] = [
        tools() / "kubeconform",
        "-strict",
        "-summary",
        "-schema-location",
        f"{folder}/{LOCATION}",
        "-",
    ]
    run(command, yaml.safe_dump_all(objects))


def _file_name(kind: Mapping[str, str]) -> str:
    # kubeconform calls the core group by its version.
    return f"{kind['group'] or kind['version']}_{kind['version']}_{kind['kind'].lower()}.json"


def _close(part: Any) -> None:
    """Forbids unknown fields wherever fields are named."""
    if isinstance(part, dict):
        if "properties" in part and not part.get(OPEN_FIELDS):
            part.setdefault("additionalProperties", False)
        for value in part.values():
            _close(value)
    elif isinstance(part, list):
        for value in part:
            _close(value)
