"""Trees of quotas as the API's JSON, built here as the judge shares nothing with the scheduler and its kits."""

from __future__ import annotations

from typing import Any

from multisched.verify.fields import Json
from multisched.verify.quota_tree import QuotaTree, read_tree
from tests.unit.verify.clusters import Document

CPU = "cpu"


def level(name: str, least: object, most: object, *children: Document, namespaces: tuple[str, ...] = ()) -> Document:
    """`least` and `most` are CPUs, or amounts by name."""
    found: Document = {"name": name, "min": _amounts(least), "max": _amounts(most)}
    if namespaces:
        found["namespaces"] = list(namespaces)
    if children:
        found["children"] = list(children)
    return found


def tree_document(root: Document, name: str = "tree", **fields: Any) -> Document:
    metadata = {"name": name, "namespace": "kube-system", "uid": f"uid-{name}"}
    return {"kind": "ElasticQuotaTree", "metadata": metadata, "spec": {"root": root}, **fields}


def tree(root: Document) -> QuotaTree:
    return read_tree(tree_document(root))


def manual() -> Document:
    """The tree of ACK's manual: 40 CPUs, four leaves that are sure of 10 and have 20 at most, one namespace each."""
    leaves = [level(f"root.{at}", 10, 20, namespaces=(f"namespace{number}",)) for number, at in enumerate(_AT, 1)]
    a, b = level("root.a", 20, 40, *leaves[:2]), level("root.b", 20, 40, *leaves[2:])
    return level("root", 40, 40, a, b)


_AT = ("a.1", "a.2", "b.1", "b.2")


def cpus(number: int) -> Json:
    return {CPU: number * 1000}


def _amounts(given: object) -> Document:
    return given if isinstance(given, dict) else {CPU: str(given)}
