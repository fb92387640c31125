"""GroupColumns: groups of placed pods, with labels and rows, in arrays, so that one query is matched against all at once.

For queries over many groups: testing ten thousand groups one by one takes ten milliseconds, and a pod may need fifty such
queries. Here one takes a tenth of a millisecond. A new group is added when its first pod is placed, which takes some
microseconds: adding all groups at the first query would take half a second in one step, with 100,000 pods.

Groups are numbered in segments of bounded size. Once most groups of a segment have been removed, the others move to the newest segment.
So the memory of removed groups is bounded, and no step rewrites all groups. Owned by `PodCounts`.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from multisched.framework.pod_group import PodGroup
from multisched.framework.row_sums import AnySum, Int64, sum_of
from multisched.model.placement import PodQuery, PodScope
from multisched.model.selectors import Operator

SEGMENT_MAX: Final = 1 << 15
"""Limit of the total size of the groups of one segment; a group's size is 1 plus its number of labels."""

SPARSE_BELOW: Final = 4
"""A segment is dropped when less than one in this many of its groups, by size, is left. Moving those takes some 10 ms."""

BUCKETS: Final = 1 << 8
"""Label keys of a segment are hashed into this many lists, so that a query reads few labels with other keys."""

_Ints = NDArray[np.int32]
_Bools = NDArray[np.bool_]


class _Segment:
    """Some groups, with their labels as numbers."""

    __slots__ = ("_labels", "_labels_with", "_namespaces", "_texts", "deleting", "groups", "living", "size", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        """Number of its first group."""
        self.groups: list[PodGroup | None] = []
        """None: the group was removed."""
        self.size = self.living = 0
        """Size of all its groups, and of those that were not removed."""
        self.deleting = array("b")
        """For each group: whether its pods are being deleted."""
        self._namespaces = array("i")
        """For each group: the number of its namespace."""
        self._texts: dict[str, int] = {}
        """Namespace, label key or value -> its number, counted from 0 in the order in which they were added."""
        self._labels: dict[int, array[int]] = {}
        """Bucket -> the numbers of group, key and value of each label whose key is in the bucket, one after another."""
        self._labels_with: dict[str, tuple[int, array[int]]] = {}
        """Label key -> its number, and the array that has its labels."""

    def add(self, group: PodGroup) -> None:
        at, texts, labels_with = len(self.groups), self._texts, self._labels_with
        group.number = self.start + at
        self.groups.append(group)
        self.deleting.append(group.is_deleting)
        self._namespaces.append(texts.setdefault(group.namespace, len(texts)))
        self.size += group.size
        self.living += group.size
        for key, value in group.labels.items():
            known = labels_with.get(key)
            if known is None:
                number = texts.setdefault(key, len(texts))
                known = labels_with[key] = number, self._labels.setdefault(number % BUCKETS, array("i"))
            known[1].extend((at, known[0], texts.setdefault(value, len(texts))))

    @property
    def is_sparse(self) -> bool:
        """Reports whether most of its groups were removed."""
        return SPARSE_BELOW * self.living < self.size

    def narrow(self, found: _Bools, scope: PodScope) -> None:
        """Sets `found`, bool[groups], to False for groups outside the scope."""
        if scope.namespaces is not None:
            known = [self._texts[name] for name in scope.namespaces if name in self._texts]
            found &= _is_one_of(np.frombuffer(self._namespaces, np.int32), known)
        for requirement in scope.selector.requirements:
            holders = self.holders(requirement.key, requirement.values)
            if requirement.operator in (Operator.NOT_IN, Operator.DOES_NOT_EXIST):
                found[holders] = False
            else:
                kept = np.zeros(len(found), np.bool_)
                kept[holders] = found[holders]
                found[:] = kept

    def holders(self, key: str, values: Collection[str]) -> _Ints:
        """Returns the groups that have the label key with one of these values, or with any value if none is given."""
        known = self._labels_with.get(key)
        numbers = [self._texts[value] for value in values if value in self._texts]
        if known is None or (values and not numbers):
            return np.zeros(0, np.int32)
        groups, keys, values_there = np.frombuffer(known[1], np.int32).reshape(-1, 3).T
        at = keys == known[0]
        if values:
            at &= _is_one_of(values_there, numbers)
        found: _Ints = groups[at]
        return found


class GroupColumns:
    """Groups of placed pods as arrays, matched against one query in one operation."""

    def __init__(self) -> None:
        self._newest = _Segment(0)
        self._segments: list[_Segment | None] = [self._newest]
        """The i-th segment numbers its groups from i * SEGMENT_MAX; None: no group has such a number now."""
        self._place_group, self._place_row, self._place_pods = array("i"), array("i"), array("i")
        """One entry per group and row; `PodGroup.place` is its index."""

    def add(self, group: PodGroup) -> None:
        """Adds a new group, without pods."""
        if self._newest.size + group.size > SEGMENT_MAX and self._newest.size:
            before = self._newest
            self._newest = self._new_segment()
            if before.is_sparse:
                self._drop(before)
        self._newest.add(group)

    def remove(self, group: PodGroup) -> None:
        """Removes a group that has no pods any more."""
        segment = self._segments[group.number // SEGMENT_MAX]
        assert segment is not None, "a segment with groups is not dropped"
        segment.groups[group.number - segment.start] = None
        segment.living -= group.size
        if segment is not self._newest and segment.is_sparse:
            self._drop(segment)

    def account(self, group: PodGroup, row: int, sign: int) -> bool:
        """Adds one pod of the group to the row (`sign` 1) or removes one (-1). Returns False if the group has no pods any more."""
        place = group.place(row)
        if place < 0:
            if sign < 0:
                raise AssertionError(f"no pod of {group.namespace} with these labels was counted on row {row}")
            group.set_place(row, len(self._place_row))
            self._place_group.append(group.number)
            self._place_row.append(row)
            self._place_pods.append(1)
            return True
        pods = self._place_pods[place] = self._place_pods[place] + sign
        return pods > 0 or self._clear(group, row, place)

    def pods(self, group: PodGroup) -> Iterator[tuple[int, int]]:
        """Yields each row with pods of the group, and their number."""
        for row, place in group.places():
            yield row, self._place_pods[place]

    def forget_row(self, row: int) -> list[PodGroup]:
        """Removes all pods on the row. Returns the groups that have none left."""
        numbers = np.array(self._place_group)[np.array(self._place_row) == row].tolist()
        return [group for group in map(self._group, numbers) if not self._clear(group, row, group.place(row))]

    def count(self, query: PodQuery, version: int) -> AnySum:
        """Returns the number of matching pods by row."""
        place_groups, rows = np.frombuffer(self._place_group, np.int32), np.frombuffer(self._place_row, np.int32)
        at = self._selected(query).take(place_groups)
        pods = np.frombuffer(self._place_pods, np.int32)[at]
        by_row: Int64 = np.bincount(rows[at], pods).astype(np.int64)
        return sum_of(by_row, by_row.copy(), version)

    def groups_with(self, labels: Collection[tuple[str, str]], most: int) -> list[PodGroup] | None:
        """Returns the groups with one of these labels, all of one key; None if they may be more than `most`."""
        found: list[PodGroup] = []
        key, values = next(iter(labels))[0], [value for _, value in labels]
        for segment in self._segments:
            numbers = () if segment is None else segment.holders(key, values)
            if len(found) + len(numbers) > most:
                return None
            groups = () if segment is None else map(segment.groups.__getitem__, numbers)
            found += [group for group in groups if group is not None]
        return found

    def _group(self, number: int) -> PodGroup:
        segment = self._segments[number // SEGMENT_MAX]
        group = None if segment is None else segment.groups[number - segment.start]
        assert group is not None, "a removed group has no pods"
        return group

    def _clear(self, group: PodGroup, row: int, place: int) -> bool:
        """Removes an entry; the last entry moves to its position. Returns False if the group has no pods any more."""
        is_empty = group.drop_place(row)
        number, moved_row, pods = self._place_group.pop(), self._place_row.pop(), self._place_pods.pop()
        if place != len(self._place_row):
            self._place_group[place], self._place_row[place], self._place_pods[place] = number, moved_row, pods
            self._group(number).set_place(moved_row, place)
        return not is_empty

    def _new_segment(self) -> _Segment:
        free = next((at for at, one in enumerate(self._segments) if one is None), len(self._segments))
        segment = _Segment(free * SEGMENT_MAX)
        self._segments[free : free + 1] = [segment]
        return segment

    def _drop(self, segment: _Segment) -> None:
        """Drops a segment; its groups move to the newest one."""
        self._segments[segment.start // SEGMENT_MAX] = None
        for group in segment.groups:
            if group is not None:
                self.add(group)
                for _, place in group.places():
                    self._place_group[place] = group.number

    def _selected(self, query: PodQuery) -> _Bools:
        """Returns bool[numbers of groups]: whether the group's pods match the query."""
        found = np.zeros(len(self._segments) * SEGMENT_MAX, np.bool_)
        for segment in self._segments:
            if segment is None or not query.scopes:
                continue
            of_segment = found[segment.start : segment.start + len(segment.groups)]
            of_segment[:] = query.counts_deleting or np.frombuffer(segment.deleting, np.bool_) == 0
            for scope in query.scopes:
                segment.narrow(of_segment, scope)
        return found


def _is_one_of(numbers: _Ints, wanted: list[int]) -> _Bools:
    if len(wanted) > 1:
        return np.isin(numbers, wanted)
    found: _Bools = numbers == (wanted[0] if wanted else -1)
    return found
