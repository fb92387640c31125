"""GroupColumns: groups of placed pods, with labels and rows, in arrays, so that one query is matched against all at once.

For queries over many namespaces: testing ten thousand groups one by one takes ten milliseconds, and a pod may need
fifty such queries. Here one takes a tenth of a millisecond. Built at the first such query; owned by `PodCounts`.
"""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np
from numpy.typing import NDArray

from multisched.framework.pod_group import PodGroup
from multisched.framework.row_sums import AnySum, Int64, sum_of
from multisched.model.placement import PodQuery, PodScope
from multisched.model.selectors import Operator, Requirement

DEAD_MIN: Final = 1 << 16
"""Size of the groups without pods, including labels, at which the columns are rebuilt."""

BUCKETS: Final = 1 << 10
"""Label keys are hashed into this many lists, so that a query reads few labels with other keys."""

_Ints = NDArray[np.int32]
_Bools = NDArray[np.bool_]


class _Labels:
    """Labels whose keys are in one bucket: group, key and value of each."""

    __slots__ = ("groups", "keys", "values")

    def __init__(self) -> None:
        self.groups, self.keys, self.values = array("i"), array("i"), array("i")


class GroupColumns:
    """Groups of placed pods as arrays, matched against one query in one operation."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        self._buckets: dict[int, _Labels] = {}
        self._namespaces, self._deleting = array("i"), array("b")
        """By group."""
        self._places: dict[tuple[int, int], int] = {}
        """(group, row) -> index into the three arrays below."""
        self._place_group, self._place_row, self._place_pods = array("i"), array("i"), array("i")
        self._size = self._living = 0
        """Size of all groups (1 each plus labels), and of the groups with pods."""
        self._sizes = array("i")
        """By group: 1 plus its labels."""
        self._pods_of = array("i")
        """By group: rows with pods of it."""

    @property
    def is_stale(self) -> bool:
        """Reports whether most groups have no pods any more, so that the columns should be rebuilt."""
        dead = self._size - self._living
        return dead > DEAD_MIN and dead > self._living

    def change(self, group: PodGroup, row: int, pods: int) -> None:
        """Adds `pods` pods of the group to the row; negative removes."""
        if group.column < 0:
            self._add(group)
        number = group.column
        place = self._places.get((number, row))
        if place is None:
            self._places[number, row] = len(self._place_row)
            self._place_group.append(number)
            self._place_row.append(row)
            self._place_pods.append(pods)
            if not self._pods_of[number]:
                self._living += self._sizes[number]
            self._pods_of[number] += 1
            return
        self._place_pods[place] += pods
        if not self._place_pods[place]:
            self._clear(number, row, place)

    def count(self, query: PodQuery, version: int) -> AnySum:
        """Returns the number of matching pods by row."""
        selected = self._selected(query)
        place_groups, rows = np.frombuffer(self._place_group, np.int32), np.frombuffer(self._place_row, np.int32)
        at = selected.take(place_groups)
        pods = np.frombuffer(self._place_pods, np.int32)[at]
        by_row: Int64 = np.bincount(rows[at], pods).astype(np.int64)
        return sum_of(by_row, by_row.copy(), version)

    def _add(self, group: PodGroup) -> None:
        number = group.column = len(self._namespaces)
        texts = self._texts
        self._namespaces.append(texts.setdefault(group.namespace, len(texts)))
        self._deleting.append(group.is_deleting)
        self._pods_of.append(0)
        self._sizes.append(1 + len(group.labels))
        self._size += 1 + len(group.labels)
        for key, value in group.labels.items():
            at = texts.setdefault(key, len(texts))
            bucket = self._buckets.get(at % BUCKETS)
            if bucket is None:
                bucket = self._buckets[at % BUCKETS] = _Labels()
            bucket.groups.append(number)
            bucket.keys.append(at)
            bucket.values.append(texts.setdefault(value, len(texts)))

    def _clear(self, number: int, row: int, place: int) -> None:
        """Removes an entry; the last entry moves to its position."""
        del self._places[number, row]
        moved = self._place_group.pop(), self._place_row.pop(), self._place_pods.pop()
        if place != len(self._place_row):
            self._place_group[place], self._place_row[place], self._place_pods[place] = moved
            self._places[moved[0], moved[1]] = place
        self._pods_of[number] -= 1
        if not self._pods_of[number]:
            self._living -= self._sizes[number]

    def _selected(self, query: PodQuery) -> _Bools:
        """bool[groups]"""
        found = np.full(len(self._namespaces), bool(query.scopes), np.bool_)
        if not query.counts_deleting:
            found &= np.frombuffer(self._deleting, np.bool_) == 0
        for scope in query.scopes:
            self._narrow(found, scope)
        return found

    def _narrow(self, found: _Bools, scope: PodScope) -> None:
        if scope.namespaces is not None:
            known = [self._texts[name] for name in scope.namespaces if name in self._texts]
            found &= _is_one_of(np.frombuffer(self._namespaces, np.int32), known)
        for requirement in scope.selector.requirements:
            holders = self._holders(requirement)
            if requirement.operator in (Operator.NOT_IN, Operator.DOES_NOT_EXIST):
                found[holders] = False
            else:
                kept = np.zeros(len(found), np.bool_)
                kept[holders] = found[holders]
                found[:] = kept

    def _holders(self, requirement: Requirement) -> _Ints:
        """Returns the groups that have the key, and one of the values if the requirement has any."""
        key = self._texts.get(requirement.key, -1)
        bucket = self._buckets.get(key % BUCKETS)
        if key < 0 or bucket is None:
            return np.zeros(0, np.int32)
        at = np.frombuffer(bucket.keys, np.int32) == key
        if requirement.values:
            known = [self._texts[value] for value in requirement.values if value in self._texts]
            at &= _is_one_of(np.frombuffer(bucket.values, np.int32), known)
        found: _Ints = np.frombuffer(bucket.groups, np.int32)[at]
        return found


def _is_one_of(numbers: _Ints, wanted: list[int]) -> _Bools:
    if len(wanted) > 1:
        return np.isin(numbers, wanted)
    found: _Bools = numbers == (wanted[0] if wanted else -1)
    return found
