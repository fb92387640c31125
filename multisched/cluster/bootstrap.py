"""What a fresh cluster holds before anyone asks: namespaces, service accounts, system priority classes, standard roles.

Owns nothing; `fill` writes through `Objects` once, when a server starts empty.
"""

from __future__ import annotations

from multisched.cluster.objects import Objects
from multisched.cluster.resources import Catalog, Document

NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


def _must_find(catalog: Catalog, group: str, version: str, plural: str):  # type: ignore[no-untyped-def]
    found = catalog.find(group, version, plural)
    assert found is not None
    return found


def fill(objects: Objects, catalog: Catalog) -> None:
    """Writes the bootstrap objects."""
    namespaces = _must_find(catalog, "", "v1", "namespaces")
    accounts = _must_find(catalog, "", "v1", "serviceaccounts")
    classes = _must_find(catalog, "scheduling.k8s.io", "v1", "priorityclasses")
    for name in NAMESPACES:
        objects.create(namespaces, {"metadata": {"name": name}}, "")
        if not objects.store.collection("serviceaccounts").objects.get(f"{name}/default"):
            objects.create(accounts, {"metadata": {"name": "default"}}, name)
    for entry in _priority_classes():
        objects.create(classes, entry, "")


def _priority_classes() -> list[Document]:
    node = "Used for system critical pods that must not be moved from their current node."
    cluster = (
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."
    )
    return [
        {"metadata": {"name": "system-node-critical"}, "value": 2_000_001_000, "description": node},
        {"metadata": {"name": "system-cluster-critical"}, "value": 2_000_000_000, "description": cluster},
    ]
