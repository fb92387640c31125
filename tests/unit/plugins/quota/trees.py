"""Trees of quotas for tests: CPU alone, unless a test says more."""

from __future__ import annotations

from typing import Any

from multisched.model.quota_tree import QuotaTree, read_tree

Json = dict[str, Any]


def leaf(name: str, least: int, most: int, *namespaces: str, **more: Any) -> Json:
    """Sure of so many CPUs, with so many at most; its namespace has its name unless others are given."""
    return node(name, {"cpu": least}, {"cpu": most}, namespaces=list(namespaces or (name,)), **more)


def node(name: str, least: Json, most: Json, *children: Json, **more: Any) -> Json:
    document: Json = {"name": name, "min": least, "max": most, **more}
    if children:
        document["children"] = list(children)
    return document


def tree_of(least: Json, most: Json, *children: Json) -> QuotaTree:
    tree, problems = read_tree(node("root", least, most, *children))
    assert tree is not None, problems
    return tree


def acks_example() -> Json:
    """The tree of ACK's manual: 40 CPU, two halves, four leaves that may borrow as much as they are sure of."""

    def amounts(cpu: int, gpu: int) -> Json:
        return {"cpu": cpu, "memory": f"{cpu}Gi", "nvidia.com/gpu": gpu}

    def half(name: str, *leaves: Json) -> Json:
        return node(name, amounts(20, 2), amounts(40, 4), *leaves)

    def quarter(name: str, namespace: str) -> Json:
        return node(name, amounts(10, 1), amounts(20, 2), namespaces=[namespace])

    return node(
        "root",
        amounts(40, 4),
        amounts(40, 4),
        half("root.a".removeprefix("root."), quarter("1", "namespace1"), quarter("2", "namespace2")),
        half("b", quarter("3", "namespace3"), quarter("4", "namespace4")),
    )
