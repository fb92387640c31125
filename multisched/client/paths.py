"""Request paths of objects: names from the cluster as path segments, and deadlines. Pure."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

_PLAIN_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]*(?:\.[a-z0-9-]+)*")


def segment(name: str) -> str:
    """The name, quoted. Nearly all are DNS names, which stand for themselves; seeing that costs a fifth of quoting."""
    return name if _PLAIN_NAME.fullmatch(name) else quote(name, safe="")


def pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}"


def object_path(list_path: str, namespace: str, name: str) -> str:
    """`list_path`: where its kind is listed; `namespace`: empty for cluster-wide kinds."""
    root, _, plural = list_path.rpartition("/")
    place = f"{root}/namespaces/{segment(namespace)}" if namespace else root
    return f"{place}/{plural}/{segment(name)}"


def within(path: str, timeout_s: float) -> str:
    """Of a write that must not land if the server takes it up later than that. `path` has no query."""
    return f"{path}?timeout={max(int(timeout_s * 1000), 1)}ms"
