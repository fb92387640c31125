"""Drafts of trees: levels that readers of other APIs fill while they read objects, and the losses of the translation.

`writing` turns the resulting tree into an ElasticQuotaTree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from multisched.model.objects import Requests
from multisched.model.quota_tree import QuotaNode, QuotaTree
from multisched.model.quotas.reading import Problems, ProblemsByObject

Json = Mapping[str, Any]

LOSSES_MAX: Final = 1_000
"""Losses of one translation that are kept; others are dropped."""
ROOT: Final = "root"
"""Name of the top level, if the other API does not name it."""
WEIGHT_MAX: Final = 999_999_999
"""Largest weight of a level, a whole number."""
NOTHING_LIKE_IT: Final = "not converted; an ElasticQuotaTree has no such field"


class Loss(msgspec.Struct, frozen=True):
    """A part of an object that an ElasticQuotaTree cannot express, or expresses differently."""

    key: str
    """The object: kind and name, `ClusterQueue team-a`; empty for the tree as a whole."""
    path: str
    text: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.key, self.path, self.text) if part)


class Translation(msgspec.Struct, frozen=True):
    """Objects of another API as a tree; no tree if they have problems."""

    tree: QuotaTree | None
    problems: Problems = {}
    """Key of an object -> its problems."""
    losses: tuple[Loss, ...] = ()


class Losses:
    """Collects losses."""

    def __init__(self) -> None:
        self._found: list[Loss] = []

    def report(self, key: str, path: str, text: str) -> None:
        if len(self._found) < LOSSES_MAX:
            self._found.append(Loss(key, path, text))

    def report_others(self, key: str, above: str, fields: Json, carried: Collection[str]) -> None:
        """Reports every field with a value that is not in `carried`."""
        for name, value in fields.items():
            if name not in carried and value not in (None, "", {}, [], ()):
                self.report(key, f"{above}.{name}" if above else name, NOTHING_LIKE_IT)

    def found(self) -> tuple[Loss, ...]:
        return tuple(self._found)


class Draft:
    """One level of a tree that is being built."""

    def __init__(self, name: str, key: str = "") -> None:
        """`key`: the object that it comes from."""
        self.name = name
        self.key = key
        self.min: dict[str, int] = {}
        self.max: dict[str, int] = {}
        self.guarantee: dict[str, int] = {}
        self.weight: int | None = None
        self.namespaces: list[str] = []
        self.children: list[Draft] = []

    def below(self) -> Iterator[Draft]:
        """Yields the draft itself and all below it, parents first."""
        waiting = [self]
        while waiting:
            one = waiting.pop()
            yield one
            waiting += reversed(one.children)


def sum_of(amounts: Sequence[Requests]) -> dict[str, int]:
    """Returns resource -> sum."""
    found: dict[str, int] = {}
    for one in amounts:
        for resource, amount in one.items():
            found[resource] = found.get(resource, 0) + amount
    return found


def tree_of(root: Draft) -> QuotaTree:
    """Returns the tree of a draft and all below it, parents first."""
    nodes: list[QuotaNode] = []
    children: list[list[int]] = []
    waiting: list[tuple[Draft, int]] = [(root, -1)]
    while waiting:
        one, parent = waiting.pop()
        at = len(nodes)
        path = f"{nodes[parent].path}.{one.name}" if parent >= 0 else one.name
        nodes.append(
            QuotaNode(
                one.name,
                path,
                parent,
                (),
                one.min,
                one.max,
                tuple(one.namespaces),
                one.weight,
                guarantee={resource: amount for resource, amount in one.guarantee.items() if amount},
            )
        )
        children.append([])
        if parent >= 0:
            children[parent].append(at)
        waiting += [(child, at) for child in reversed(one.children)]
    return QuotaTree.of([msgspec.structs.replace(node, children=tuple(children[at])) for at, node in enumerate(nodes)])


def translated(root: Draft, problems: ProblemsByObject, losses: Losses) -> Translation:
    """Returns the tree below `root`, or the problems of its objects."""
    return Translation(None if problems else tree_of(root), problems.by_object(), losses.found())


class NamespaceOwners:
    """The draft of each namespace: the first that names it."""

    def __init__(self, losses: Losses) -> None:
        self._owners: dict[str, Draft] = {}
        self._losses = losses

    def give(self, namespace: str, draft: Draft, key: str, path: str) -> None:
        """Assigns a namespace to a draft. `key` and `path`: the object and field that name it."""
        first = self._owners.setdefault(namespace, draft)
        if first is not draft:
            what = (
                f"its pods count for {first.key}: a namespace has one leaf only, and {namespace} is already in that one"
            )
            self._losses.report(key, path, what)
        elif namespace not in draft.namespaces:
            draft.namespaces.append(namespace)


def report_empty_leaves(root: Draft, losses: Losses, hint: str) -> None:
    """Reports leaves without namespaces, which bound no pods."""
    for one in root.below():
        if one.key and not one.children and not one.namespaces:
            losses.report(one.key, "", f"it has no namespaces; {hint}")


class Objects:
    """Documents of one API by kind, in their order; reports a duplicate name as a problem."""

    def __init__(self, documents: Sequence[Json], problems: ProblemsByObject) -> None:
        self._by_kind: dict[str, dict[str, Json]] = {}
        for one in documents:
            known = self._by_kind.setdefault(str(one.get("kind")), {})
            key = key_of(one)
            if not name_of(one):
                problems.report(key, "metadata.name", "it is missing", "write one")
            elif key in known:
                problems.report(key, "metadata.name", "it is there twice", "give it once")
            known.setdefault(key, one)

    def of(self, kind: str) -> Iterator[tuple[str, str, Json]]:
        """Yields (key, name, document), sorted by key."""
        for key, one in sorted(self._by_kind.get(kind, {}).items()):
            yield key, name_of(one), one


def name_of(document: Json) -> str:
    """Returns the name; empty if there is none."""
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return name if isinstance(name, str) else ""


def key_of(document: Json) -> str:
    """Returns `ClusterQueue team-a`, or with a namespace `LocalQueue team-a/queue`."""
    metadata = document.get("metadata")
    namespace = metadata.get("namespace") if isinstance(metadata, Mapping) else None
    place = f"{namespace}/" if isinstance(namespace, str) and namespace else ""
    return f"{document.get('kind')} {place}{name_of(document)}"


def part_of(document: Json, name: str, key: str, above: str, problems: ProblemsByObject) -> Json:
    """Returns the object at a field; empty if it is missing or, with a problem, if it is not an object."""
    part = document.get(name)
    if part is None:
        return {}
    if isinstance(part, Mapping):
        return part
    problems.report(key, f"{above}.{name}" if above else name, "not an object", "write its fields below it")
    return {}


def text_of(document: Json, name: str, key: str, above: str, problems: ProblemsByObject) -> str:
    """Returns the string at a field; empty if it is missing or, with a problem, if it is not a string."""
    text = document.get(name)
    if text is None:
        return ""
    if isinstance(text, str):
        return text
    problems.report(key, f"{above}.{name}", "not a string", "write a name")
    return ""
