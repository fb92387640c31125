"""What the chart in `deploy/helm` holds of what stands elsewhere: `make chart` writes it, a test says when it is old.

The chart has copies, because helm packs nothing from outside its folder: definitions of custom resources, the policies and
rights of `deploy/base`, alerts and dashboards. Its schema of values is made of `deploy/helm/values.schema.yaml` and
`config/schema.json`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[3]
DEPLOY: Final = ROOT / "deploy"
CHART: Final = DEPLOY / "helm" / "multisched"
SCHEMA: Final = "values.schema.json"
GENERATED: Final = ("crds", "files", SCHEMA)
"""Of the chart: nobody writes in these."""
OWN_SETTINGS: Final = ("apiVersion", "kind")
"""Of a configuration: the chart says them."""


def generated() -> dict[str, bytes]:
    """Path in the chart -> what it has to hold."""
    return {name: source.read_bytes() for name, source in _copies()} | {SCHEMA: _schema()}


def present() -> dict[str, bytes]:
    """Path in the chart -> what it holds, of all that is generated."""
    paths = [path for name in GENERATED for path in ((CHART / name).rglob("*") if "." not in name else [CHART / name])]
    return {path.relative_to(CHART).as_posix(): path.read_bytes() for path in paths if path.is_file()}


def write() -> None:
    """Makes `present` equal to `generated`."""
    for name in GENERATED:
        shutil.rmtree(CHART / name, ignore_errors=True)
    for name, content in generated().items():
        path = CHART / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _copies() -> Iterator[tuple[str, Path]]:
    for source in sorted((DEPLOY / "crds").glob("*.yaml")):
        yield f"crds/{source.name}", source
    for name in ("admission.yaml", "gpu-dialects-admission.yaml", "quota-admission.yaml", "rbac.yaml"):
        yield f"files/{name}", DEPLOY / "base" / name
    yield "files/validatingwebhook.yaml", DEPLOY / "webhook" / "validatingwebhook.yaml"
    monitoring = DEPLOY / "monitoring"
    for source in sorted([*monitoring.glob("alerts.yaml"), *monitoring.glob("dashboards/*.json")]):
        yield f"files/{source.relative_to(monitoring).as_posix()}", source


def _schema() -> bytes:
    own: dict[str, Any] = yaml.safe_load((DEPLOY / "helm" / "values.schema.yaml").read_text())
    configuration: Mapping[str, Any] = json.loads((ROOT / "config" / "schema.json").read_text())
    properties = {name: part for name, part in configuration["properties"].items() if name not in OWN_SETTINGS}
    own["properties"]["config"] = {"type": "object", "additionalProperties": False, "properties": properties}
    own["$defs"] |= configuration["$defs"]
    return _for_helm(json.dumps(own, indent=2)).encode() + b"\n"


def _for_helm(text: str) -> str:
    """Helm's regular expressions have no lookahead; without it they accept an empty duration too, which the program refuses."""
    return text.replace(json.dumps(r"(?=\d)")[1:-1], "")


if __name__ == "__main__":
    write()
