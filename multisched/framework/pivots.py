"""Pivots: labels by whose values queries name their pods, and the groups of pods that have them.

A query that asks for `app In (web)` can be about pods with that label alone. What came and went is noted by such labels, and where
many queries go by one key, groups are found by it. Owned by `PodCounts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Final

from multisched.framework.pod_group import PodGroup
from multisched.model.placement import PodQuery
from multisched.model.selectors import Operator

READERS_MIN: Final = 8
"""Queries by one key before groups are indexed by it: that takes a look at all groups."""

Label = tuple[str, str]


class Pivots:
    """Which keys are somebody's pivot, and the groups by the labels of those that are many's."""

    def __init__(self, groups: Callable[[], Iterable[PodGroup]]) -> None:
        """`groups`: all there are."""
        self._groups = groups
        self._readers: Counter[str] = Counter()
        self._indexed: dict[str, dict[str, dict[PodGroup, None]]] = {}

    def watch(self, pivot: Collection[Label]) -> None:
        """A query goes by these labels, which have one key, from now on."""
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
        """Those of its labels by which some query goes."""
        readers = self._readers
        return [label for label in group.labels.items() if label[0] in readers] if readers else ()

    def came(self, group: PodGroup) -> None:
        """There is a new group."""
        for key in self._indexed:
            self._add(group, key)

    def left(self, group: PodGroup) -> None:
        """A group has no pods any more."""
        for key, by_value in self._indexed.items():
            value = group.labels.get(key)
            if value is not None:
                groups = by_value[value]
                del groups[group]
                if not groups:
                    del by_value[value]

    def groups_with(self, pivot: Collection[Label]) -> list[PodGroup] | None:
        """The groups that have one of these labels; None where groups are not indexed by it."""
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
    """Labels of one key, of which each pod of the query has one; none where it names no values."""
    named = (r for scope in query.scopes for r in scope.selector.requirements if r.operator is Operator.IN)
    pivot = min(named, key=lambda requirement: len(requirement.values), default=None)
    return () if pivot is None else tuple((pivot.key, value) for value in dict.fromkeys(pivot.values))
