"""`deploy/` as objects: overlays as `kubectl kustomize` builds them, the chart as `helm template` renders it.

Owns nothing. The programs come from `make controlplane`. What they refuse is a RefusedError with their words.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tests.real.control_plane import NotBuiltError, binaries

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
BASE: Final = DEPLOY / "base"
OVERLAYS: Final = DEPLOY / "overlays"
CHART: Final = DEPLOY / "helm" / "multisched"
NAMESPACE: Final = "multisched-system"
RELEASE: Final = "multisched"
BUILD_SCRIPT: Final = Path(__file__).parent / "tools" / "build.sh"
TIMEOUT_S: Final = 120
Object = dict[str, Any]


class RefusedError(RuntimeError):
    """A program ended with another code than 0."""


def tools() -> Path:
    """The folder of helm, kubeconform and kustomize; raises NotBuiltError when `make controlplane` did not run."""
    folder = Path(subprocess.run([BUILD_SCRIPT, "--where"], check=True, capture_output=True, text=True).stdout.strip())
    if not (folder / ".stamp").exists():
        raise NotBuiltError(f"no helm, kubeconform and kustomize in {folder}: run `make controlplane` (needs Go, once)")
    return folder


def run(
    command: Sequence[str | Path],
    text: str = "",
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout_s: float = TIMEOUT_S,
) -> str:
    """What the program printed to standard output; `text` is its standard input."""
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    done = subprocess.run(
        command,
        input=text,
        cwd=folder,
        env={**kept, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode != 0:
        raise RefusedError(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done.stdout


def kustomized(folder: Path, version: str = "") -> list[Object]:
    """Returns what `kubectl apply -k` would apply, with the kustomize of that version (default: that of our kubectl)."""
    if version:
        return _objects(run([tools() / f"kustomize-{version}", "build", folder]))
    return _objects(run([binaries() / "kubectl", "kustomize", folder]))


def templated(
    values: Mapping[str, Any] | None = None, *, release: str = RELEASE, namespace: str = NAMESPACE, chart: Path = CHART
) -> list[Object]:
    """What `helm install` would apply, but for the definitions in `crds/`."""
    command: list[str | Path] = [
        tools() / "helm",
        "template",
        release,
        chart,
        "--namespace",
        namespace,
        "--values",
        "-",
    ]
    return _objects(run(command, json.dumps(values or {})))


def the(objects: Sequence[Object], kind: str, name: str = "multisched") -> Object:
    """The one object of that kind and name."""
    (only,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return only


def configuration(objects: Sequence[Object]) -> str:
    """The file that the program is started with."""
    (only,) = [one for one in objects if one["kind"] == "ConfigMap" and "multisched.yaml" in one["data"]]
    text: str = only["data"]["multisched.yaml"]
    return text


def _objects(text: str) -> list[Object]:
    return [document for document in yaml.safe_load_all(text) if document]
