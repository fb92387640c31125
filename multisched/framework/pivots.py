"""Pivots: the labels that queries require, and an index of pod groups by these labels.

A query for `app In (web)` can match only pods with that label. Such a label is the query's *pivot*: log entries are
tagged with it, and if many queries have the same pivot key, groups are indexed by it. Owned by `PodCounts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Final

from multisched.framework.pod_group import PodGroup
from multisched.model.placement import PodQuery
from multisched.model.selectors import Operator

READERS_MIN: Final = 8
"""Queries with one pivot key before groups are indexed by it, which takes one pass over all groups."""

Label = tuple[str, str]


class Pivots:
    """The pivot keys in use, and an index of the groups by the most used ones."""

    def __init__(self, groups: Callable[[], Iterable[PodGroup]]) -> None:
        """`groups`: returns all existing groups."""
        self._groups = groups
        self._readers: Counter[str] = Counter()
        self._indexed: dict[str, dict[str, dict[PodGroup, None]]] = {}

    def watch(self, pivot: Collection[Label]) -> None:
        """Registers a query with this pivot; all its labels have the same key."""
        for key in {key for key, _ in pivot}:
            self._readers[key] += 1
            if self._readers[key] >= READERS_MIN and key not in self._indexed:
                self._indexed[key] = {}
                for group in self._groups():
                    self._add(group, key)

    def unwatch(self, pivot: Collection[Label]) -> None:
        for key in {key for key, _ in pivot}:
            self._readers[key] -= 1
            if not self._readers[key]:
                del self._readers[key]
                self._indexed.pop(key, None)

    def labels_of(self, group: PodGroup) -> Collection[Label]:
        """Returns the labels of the group whose keys are pivot keys."""
        readers = self._readers
        return [label for label in group.labels.items() if label[0] in readers] if readers else ()

    def add_group(self, group: PodGroup) -> None:
        """Adds a new group to the indices."""
        for key in self._indexed:
            self._add(group, key)

    def remove_group(self, group: PodGroup) -> None:
        """Removes a group that has no pods any more from the indices."""
        for key, by_value in self._indexed.items():
            value = group.labels.get(key)
            if value is not None:
                groups = by_value[value]
                del groups[group]
                if not groups:
                    del by_value[value]

    def groups_with(self, pivot: Collection[Label]) -> list[PodGroup] | None:
        """Returns the groups with one of these labels; None if groups are not indexed by this key."""
        found: list[PodGroup] = []
        for key, value in pivot:
            by_value = self._indexed.get(key)
            if by_value is None:
                return None
            found += by_value.get(value, ())
        return found

    def _add(self, group: PodGroup, key: str) -> None:
        value = group.labels.get(key)
        if value is not None:
            self._indexed[key].setdefault(value, {})[group] = None


def pivot_of(query: PodQuery) -> tuple[Label, ...]:
    """Returns labels with one key, of which every pod of the query has one; empty if no requirement names values."""
    named = (r for scope in query.scopes for r in scope.selector.requirements if r.operator is Operator.IN)
    pivot = min(named, key=lambda requirement: len(requirement.values), default=None)
    return () if pivot is None else tuple((pivot.key, value) for value in dict.fromkeys(pivot.values))
