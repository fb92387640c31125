"""The custom resource definitions of `deploy/crds` for tests: each file is parsed once per process, which takes 30 ms."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

FOLDER: Final = Path(__file__).parents[2] / "deploy" / "crds"
PATH: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@cache
def definition(name: str) -> dict[str, Any]:
    """Returns the definition in `NAME.yaml`; not to be changed."""
    found: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text("utf-8"))
    return found


@cache
def all_definitions() -> tuple[dict[str, Any], ...]:
    """Returns all definitions, in the order of their files."""
    return tuple(definition(file.stem) for file in sorted(FOLDER.glob("*.yaml")))
