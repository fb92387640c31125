"""A tree of elastic quotas for the judge: its levels, its rules, and the usage of each level.

Source: the rules of ACK's `ElasticQuotaTree` (`scheduling.sigs.k8s.io/v1beta1`). Shares no code with the scheduler.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from multisched.verify.demands import Requests, is_counted
from multisched.verify.fields import Json, Unreadable, mapping, objects, text, texts
from multisched.verify.quantities import amounts, quota_units

PODS = "pods"
"""A resource of which each pod takes one."""
MAX_JOBS = "kube-queue/max-jobs"
"""A key of `min` and `max` that counts jobs of a queue and is not a resource of pods."""
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
DEPTH_MAX = 32
"""Most levels of a tree; a document with more is refused."""


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """One node of the tree."""

    name: str
    path: str
    """Names from the root, joined by dots; a name that begins with the path above it is the path."""
    min: Requests
    """A missing resource is not guaranteed."""
    max: Requests
    """A missing resource is not bounded at this level."""
    namespaces: tuple[str, ...] = ()
    children: tuple[Level, ...] = ()

    @property
    def is_leaf(self) -> bool:
        return not self.children

    def below(self) -> Iterator[Level]:
        """Yields this level and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.below()


class Excess(NamedTuple):
    """A level whose pods take more than its max."""

    level: Level
    resource: str
    used: int
    max: int

    def __str__(self) -> str:
        return f"{self.level.path} holds {self.used} of at most {self.max} {self.resource}"


class QuotaTree:
    """A tree that satisfies all rules."""

    def __init__(self, root: Level) -> None:
        self.root = root
        self._chains: dict[str, tuple[Level, ...]] = {}
        for chain in _chains(root, ()):
            for namespace in chain[0].namespaces:
                self._chains[namespace] = chain

    def levels_of(self, namespace: str) -> tuple[Level, ...]:
        """Returns the leaf of the namespace and the levels above it up to the root; empty if no leaf has the namespace."""
        return self._chains.get(namespace, ())

    def leaf_of(self, namespace: str) -> Level | None:
        chain = self.levels_of(namespace)
        return chain[0] if chain else None

    def usage(self, pods: Iterable[tuple[str, Requests]] = ()) -> Usage:
        """Returns the usage of these pods, each given as namespace and requests."""
        found = Usage(self)
        for namespace, requests in pods:
            found.add(namespace, requests)
        return found


class Usage:
    """The usage of each level of one tree. Pods of other namespaces are not counted."""

    def __init__(self, tree: QuotaTree) -> None:
        self.tree = tree
        self._sums: dict[str, Counter[str]] = {level.path: Counter() for level in tree.root.below()}

    def copy(self) -> Usage:
        found = Usage(self.tree)
        for path, sums in self._sums.items():
            found._sums[path].update(sums)
        return found

    def add(self, namespace: str, requests: Requests, sign: int = 1) -> None:
        for level in self.tree.levels_of(namespace):
            sums = self._sums[level.path]
            for resource, amount in requests.items():
                sums[resource] += sign * amount

    def of(self, level: Level) -> Mapping[str, int]:
        """Returns resource -> usage of the level."""
        return self._sums[level.path]

    def excesses(self) -> list[Excess]:
        """Returns every level over its max, for each resource."""
        return [one for level in self.tree.root.below() for one in self._over(level, level.max)]

    def excesses_with(self, namespace: str, requests: Requests) -> list[Excess]:
        """Returns the levels that an additional pod of the namespace would take over their max, for what it requests."""
        wanted = {resource: amount for resource, amount in requests.items() if amount > 0}
        chain = self.tree.levels_of(namespace)
        return [one for level in chain for one in self._over(level, wanted, wanted)]

    def is_entitled(self, namespace: str, requests: Requests) -> bool:
        """Reports whether its leaf stays within min with this pod, for all resources that the pod requests and the leaf names."""
        leaf = self.tree.leaf_of(namespace)
        return leaf is not None and self.stays_within_min(leaf, requests)

    def stays_within_min(self, level: Level, requests: Requests) -> bool:
        """Reports the same for one level; resources that the level does not name are ignored."""
        wanted = {r: n for r, n in requests.items() if n > 0 and (r in level.min or r in level.max)}
        return all(self.of(level)[r] + n <= level.min.get(r, 0) for r, n in wanted.items())

    def over_min(self, level: Level, resource: str) -> int:
        """Returns what the level has borrowed; if negative, what it lacks of its min."""
        return self.of(level)[resource] - level.min.get(resource, 0)

    def _over(self, level: Level, resources: Iterable[str], more: Requests | None = None) -> Iterator[Excess]:
        for resource in resources:
            used = self.of(level)[resource] + (more or {}).get(resource, 0)
            if resource in level.max and used > level.max[resource]:
                yield Excess(level, resource, used, level.max[resource])


def _chains(level: Level, above: tuple[Level, ...]) -> Iterator[tuple[Level, ...]]:
    chain = (level, *above)
    if level.is_leaf:
        yield chain
    for child in level.children:
        yield from _chains(child, chain)


# -- reading -----------------------------------------------------------------------------------------------------------


def read_tree(document: Json) -> QuotaTree:
    """Reads a tree. Raises Unreadable, with every rule that the document violates."""
    spec = mapping(mapping(document, "spec"), "root")
    if not spec:
        raise Unreadable("spec.root: is missing")
    root = _level(spec, "", 1)
    faults = [*_faults_of_names(root), *(fault for level in root.below() for fault in _faults(level))]
    faults += _faults_of_root(root)
    if faults:
        raise Unreadable("; ".join(faults))
    return QuotaTree(root)


def _level(document: Json, above: str, depth: int) -> Level:
    name = text(document, "name")
    path = name if not above or name.startswith(f"{above}.") else f"{above}.{name}"
    if not name:
        raise Unreadable(f"{above or 'spec.root'}: a level without a name")
    if depth > DEPTH_MAX:
        raise Unreadable(f"{path}: more than {DEPTH_MAX} levels")
    try:
        children = tuple(_level(child, path, depth + 1) for child in objects(document, "children"))
        return Level(
            name, path, _amounts(document, "min"), _amounts(document, "max"), texts(document, "namespaces"), children
        )
    except Unreadable as error:
        raise error if str(error).startswith(f"{path}") else Unreadable(f"{path}: {error}") from error


def _amounts(document: Json, field: str) -> Requests:
    found = {resource: amount for resource, amount in amounts(document, field).items() if resource != MAX_JOBS}
    unknown = sorted(resource for resource in found if not is_counted(resource) and resource != PODS)
    if unknown:
        raise Unreadable(f"{field}: {', '.join(unknown)} is not a resource of pods")
    finest = {of: much * 1000 if "/" in of else much for of, much in found.items() if of == PODS or "/" in of}
    broken = sorted(of for of, much in finest.items() if much.denominator != 1)
    if broken:
        raise Unreadable(
            f"{field}: {', '.join(broken)} is not a whole number, or is finer than a thousandth of a device"
        )
    return {resource: quota_units(resource, amount) for resource, amount in found.items()}


def _faults_of_names(root: Level) -> Iterator[str]:
    """Checks that names are unique, and that each namespace is in one leaf only and at no inner level."""
    names = Counter(level.name for level in root.below())
    yield from (f"{name}: the name of {count} levels" for name, count in names.items() if count > 1)
    namespaces = Counter(namespace for level in root.below() for namespace in level.namespaces)
    yield from (f"namespace {name} is listed {count} times" for name, count in namespaces.items() if count > 1)
    yield from (f"namespace {name!r} is not a valid name" for name in namespaces if not NAMESPACE.fullmatch(name))
    for level in root.below():
        if level.namespaces and not level.is_leaf:
            yield f"{level.path}: namespaces at a level that has children"


def _faults(level: Level) -> Iterator[str]:
    for resource, least in level.min.items():
        if resource in level.max and least > level.max[resource]:
            yield f"{level.path}: min {least} {resource} is over max {level.max[resource]}"
    for resource in sorted({resource for child in level.children for resource in child.min}):
        total = sum(child.min.get(resource, 0) for child in level.children)
        if total > level.min.get(resource, 0):
            yield f"{level.path}: its children's min are {total} {resource}, and its own is {level.min.get(resource, 0)}"
    for child in level.children:
        for resource, most in child.max.items():
            if resource in level.max and most > level.max[resource]:
                yield f"{child.path}: max {most} {resource} is over its parent's {level.max[resource]}"


def _faults_of_root(root: Level) -> Iterator[str]:
    for resource in sorted(root.min.keys() | root.max.keys()):
        if root.min.get(resource) != root.max.get(resource):
            yield f"{root.path}: min and max of the root differ in {resource}"
