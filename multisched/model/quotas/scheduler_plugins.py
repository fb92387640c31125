"""ElasticQuotas of scheduler-plugins as a tree: a root, and a leaf for each namespace.

Source: scheduler-plugins pkg/capacityscheduling/elasticquota.go. A namespace may use up to its max while all
together stay within the sum of all min. That sum is the root's max, and 0 for a resource in no min. Unlike there, a quota
does not bound a resource that neither its min nor its max names; there CPU and memory are then 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Final

from multisched.model.cluster_objects import ElasticQuota
from multisched.model.quota_tree import QuotaNode, QuotaTree, TreeProblem
from multisched.model.quotas.reading import Problems, ProblemsByObject, ReadQuotas

ROOT: Final = "root"


def read_flat(quotas: Iterable[ElasticQuota]) -> ReadQuotas:
    """Returns the tree of all quotas; no tree if there are none."""
    return FlatQuotas(quotas).read()


class FlatQuotas:
    """The quotas by namespace, and their problems; after a change, only its namespace is checked again."""

    def __init__(self, quotas: Iterable[ElasticQuota] = ()) -> None:
        self._in: dict[str, list[ElasticQuota]] = {}
        """Namespace -> its quotas, the first by key first."""
        self.quotas: dict[str, ElasticQuota] = {}
        """Namespace -> its first quota."""
        self._dirty: set[str] = set()
        self._problems: dict[str, list[tuple[str, TreeProblem]]] = {}
        """Namespace -> (key of the quota, problem)."""
        for one in quotas:
            self.exchange(None, one)

    def exchange(self, before: ElasticQuota | None, now: ElasticQuota | None) -> None:
        """Replaces a version of a quota by another; None: the quota is added, or removed."""
        if before is not None:
            self._in[before.namespace].remove(before)
        if now is not None:
            there = self._in.setdefault(now.namespace, [])
            there.append(now)
            there.sort(key=lambda other: other.key)
        for namespace in {one.namespace for one in (before, now) if one is not None}:
            self._choose(namespace)

    def problems(self) -> Problems:
        """Returns the current problems by object."""
        for namespace in self._dirty:
            found = [*self._problems_in(namespace)]
            if found:
                self._problems[namespace] = found
            else:
                self._problems.pop(namespace, None)
        self._dirty.clear()
        problems = ProblemsByObject()
        for key, problem in sorted((one for some in self._problems.values() for one in some), key=itemgetter(0)):
            problems.add(key, problem)
        return problems.by_object()

    def read(self) -> ReadQuotas:
        """Returns the tree; no tree if there are problems, or no quotas."""
        problems = self.problems()
        if problems or not self.quotas:
            return ReadQuotas(None, problems)
        return ReadQuotas(_tree(sorted(self.quotas.values(), key=lambda one: one.key)))

    def _choose(self, namespace: str) -> None:
        there = self._in[namespace]
        self._dirty.add(namespace)
        if there:
            self.quotas[namespace] = there[0]
        else:
            self.quotas.pop(namespace, None)

    def _problems_in(self, namespace: str) -> Iterator[tuple[str, TreeProblem]]:
        for number, one in enumerate(self._in[namespace]):
            if one.malformed and not one.problems:
                yield one.key, TreeProblem("spec", one.malformed, "rewrite it")
            yield from ((one.key, problem) for problem in one.problems)
            if number:
                what = f"{self.quotas[namespace].name} is the quota of namespace {namespace} already"
                yield one.key, TreeProblem("metadata.name", what, "delete one of them")


def _tree(quotas: list[ElasticQuota]) -> QuotaTree:
    named = {resource for one in quotas for resource in (*one.min, *one.max)}
    whole = {resource: sum(one.min.get(resource, 0) for one in quotas) for resource in sorted(named)}
    leaves = [
        QuotaNode(one.namespace, f"{ROOT}.{one.namespace}", 0, (), one.min, one.max, (one.namespace,)) for one in quotas
    ]
    root = QuotaNode(ROOT, ROOT, -1, tuple(range(1, len(leaves) + 1)), whole, whole)
    return QuotaTree.of([root, *leaves])
