"""Pivots: the labels that queries require.

A query for `app In (web)` can match only pods with that label. Such a label is the query's *pivot*: log entries are
tagged with it, and groups are found by it. Owned by `PodCounts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from multisched.framework.pod_group import PodGroup
from multisched.model.placement import PodQuery
from multisched.model.selectors import Operator

Label = tuple[str, str]


class Pivots:
    """The keys of the pivots in use."""

    def __init__(self) -> None:
        self._readers: Counter[str] = Counter()

    def watch(self, pivot: Collection[Label]) -> None:
        """Registers a query with this pivot; all its labels have the same key."""
        self._readers.update({key for key, _ in pivot})

    def unwatch(self, pivot: Collection[Label]) -> None:
        for key in {key for key, _ in pivot}:
            self._readers[key] -= 1
            if not self._readers[key]:
                del self._readers[key]

    def labels_of(self, group: PodGroup) -> Collection[Label]:
        """Returns the labels of the group whose keys are pivot keys."""
        readers = self._readers
        return [label for label in group.labels.items() if label[0] in readers] if readers else ()


def pivot_of(query: PodQuery) -> tuple[Label, ...]:
    """Returns labels with one key, of which every pod of the query has one; empty if no requirement names values."""
    named = (r for scope in query.scopes for r in scope.selector.requirements if r.operator is Operator.IN)
    pivot = min(named, key=lambda requirement: len(requirement.values), default=None)
    return () if pivot is None else tuple((pivot.key, value) for value in dict.fromkeys(pivot.values))
