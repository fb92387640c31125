"""PodCounts: how many pods on each row match a query, and what placed pods demand of others. Never counted by walking pods.

A query is registered when somebody first asks, kept true as pods come and go, and dropped when it is unused for longest;
what pods demand is in `pod_demands`. The node table owns one and writes it; an overlay has one above the
table's. Plugins read it as `NodeView.pod_counts`.

Pods are held in groups of equal namespace and labels: a workload's pods are one group, so that a new query looks at groups,
and a pod that comes or goes at the few queries its group is in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from multisched.framework.label_index import LabelIndex
from multisched.framework.pod_demands import Concern, Effect, Int64, PodDemands, Rows
from multisched.framework.term_columns import Asker
from multisched.model.objects import Pod
from multisched.model.placement import PodAffinity, PodQuery

QUERIES_MAX = 4_096
"""Queries kept; the one unused for longest goes first. About 1 KB each, and 100 bytes for each row where it matches."""

CHANGES_KEPT = 256
"""Changes of one count that readers can catch up with; who misses more reads it anew."""

_NONE: Sequence[tuple[int, int, int]] = ()
_GroupKey = tuple[str, int, bool]
"""Namespace, identity of the labels, whether the pods are being deleted."""


class PodCount:
    """Pods per row for one query. `version` is never the same for two states of two counts of one table."""

    __slots__ = ("_floor", "_recent", "held", "is_kept", "is_used", "version")

    def __init__(self, version: int, held: dict[int, int] | None = None) -> None:
        self.held: dict[int, int] = {} if held is None else held
        """Row -> pods, rows without any left out. Read only."""
        self.version = version
        self.is_kept = False
        """True as long as the table keeps it true; a reader that holds on to a count asks for it again when it is not."""
        self.is_used = True
        """A reader that holds on to a count sets this at each use, so that the count is not dropped as unused."""
        self._floor = version
        self._recent: list[tuple[int, int, int]] = []

    def add(self, row: int, change: int, version: int) -> None:
        """For the owner: so many more pods on the row."""
        left = self.held.get(row, 0) + change
        if left:
            self.held[row] = left
        else:
            del self.held[row]
        self.version = version
        recent = self._recent
        recent.append((version, row, change))
        if len(recent) >= 2 * CHANGES_KEPT:
            self._floor = recent[CHANGES_KEPT - 1][0]
            del recent[:CHANGES_KEPT]

    def columns(self) -> tuple[Rows, Int64, Int64]:
        """Rows with pods, the pods, and what they amount to: as many."""
        rows = np.fromiter(self.held.keys(), np.intp, len(self.held))
        pods = np.fromiter(self.held.values(), np.int64, len(self.held))
        return rows, pods, pods

    def changes_since(self, version: int) -> Sequence[tuple[int, int, int]] | None:
        """(version, row, more pods) of each change after `version`; None when that is too long ago to know."""
        if version == self.version:
            return _NONE
        if version < self._floor:
            return None
        recent, at = self._recent, len(self._recent)
        while at and recent[at - 1][0] > version:
            at -= 1
        return recent[at:]


class PodCountsView(Protocol):
    """What plugins read: `NodeView.pod_counts`."""

    @property
    def has_demands(self) -> bool:
        """False: no placed pod has a term about others."""
        ...

    def matching(self, query: PodQuery) -> PodCount:
        """How many pods on each row are in the query; kept true as long as somebody asks now and then."""
        ...

    def concern(self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]) -> Concern:
        """What placed pods demand of pods with these labels in that namespace, as it is now."""
        ...

    def effect(self, asker: Asker, affinity: PodAffinity, namespace: str) -> Effect:
        """What one placed pod with this affinity in that namespace demands of the asker's pods."""
        ...


class _Group:
    """Pods of one namespace with the same labels, alike in whether they are being deleted."""

    __slots__ = ("counts", "is_deleting", "labels", "namespace", "row", "rows")

    def __init__(self, namespace: str, labels: Mapping[str, str], *, is_deleting: bool) -> None:
        self.namespace = namespace
        self.labels = labels
        self.is_deleting = is_deleting
        self.row = -1
        """Where its pod stands, as long as there is but one: half of all groups of jobs are of one pod."""
        self.rows: dict[int, int] | None = None
        self.counts: tuple[PodCount, ...] = ()

    def add(self, row: int) -> None:
        if self.rows is None:
            if self.row < 0:
                self.row = row
                return
            self.rows = {self.row: 1}
        self.rows[row] = self.rows.get(row, 0) + 1

    def remove(self, row: int) -> bool:
        """True if that was the last pod."""
        if self.rows is None:
            self.row = -1
            return True
        left = self.rows[row] - 1
        if left:
            self.rows[row] = left
        else:
            del self.rows[row]
        return not self.rows

    def items(self) -> Iterable[tuple[int, int]]:
        return ((self.row, 1),) if self.rows is None else self.rows.items()

    def forget(self, row: int) -> bool:
        """Takes all its pods off the row; True if none is left."""
        if self.rows is None:
            return self.row == row
        self.rows.pop(row, None)
        return not self.rows


class PodCounts:
    """See the module."""

    def __init__(self, is_topology: Callable[[str], bool] | None = None) -> None:
        """`is_topology`: whether any node has this label; None: any may."""
        self._sequence = 0
        self._groups: dict[str, dict[tuple[int, bool], _Group]] = {}
        self._queries: dict[PodQuery, PodCount] = {}
        self._query_index: LabelIndex[PodQuery] = LabelIndex()
        self.demands = PodDemands(is_topology)

    # -- reading ---------------------------------------------------------------------------------------------------

    def matching(self, query: PodQuery) -> PodCount:
        count = self._queries.get(query)
        if count is None:
            count = self._queries[query] = self._register(query)
        count.is_used = True
        return count

    def concern(self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]) -> Concern:
        return self.demands.concern(namespace, labels, namespace_labels)

    def effect(self, asker: Asker, affinity: PodAffinity, namespace: str) -> Effect:
        return self.demands.effect(asker, affinity, namespace)

    @property
    def has_demands(self) -> bool:
        return bool(self.demands)

    # -- writing ---------------------------------------------------------------------------------------------------

    def account(self, row: int, pod: Pod, sign: int) -> None:
        """A pod comes to the row (1) or leaves it (-1)."""
        self._count(row, pod, sign)
        if pod.spec.pod_affinity is not None:
            self.demands.account(row, pod.spec.pod_affinity, pod.namespace, sign)

    def replace(self, row: int, before: Pod, after: Pod) -> None:
        """A newer object of a pod on the row, with the same spec."""
        if before.labels is not after.labels or before.is_deleting != after.is_deleting:
            self._count(row, before, -1)
            self._count(row, after, 1)

    def forget_row(self, row: int) -> None:
        """Drops what is known of a row that is counted anew."""
        for namespace, groups in list(self._groups.items()):
            for key in [key for key, group in groups.items() if group.forget(row)]:
                del groups[key]
            if not groups:
                del self._groups[namespace]
        for count in self._queries.values():
            if row in count.held:
                count.add(row, -count.held[row], self._tick())
        self.demands.forget_row(row)

    # -- checking --------------------------------------------------------------------------------------------------

    def faults(self, pods_on: Mapping[int, Collection[Pod]], *, is_whole: bool = False) -> dict[int, str]:
        """Row -> what is wrong there, with both sides: whether these rows are the sums of these pods (I4).

        `is_whole`: also looks for groups that none of these pods is in, of which there may be one for every pod.
        """
        wanted: dict[int, dict[Hashable, int]] = {row: {} for row in pods_on}
        counted_in: dict[_GroupKey, list[Hashable]] = {}
        for row, pods in pods_on.items():
            for pod in pods:
                group = (pod.namespace, id(pod.labels), pod.is_deleting)
                if group not in counted_in:
                    counted_in[group] = list(self._queries_of(pod))
                keys = [group, *counted_in[group]]
                if pod.spec.pod_affinity is not None:
                    keys.append(self.demands.key_of(pod.spec.pod_affinity, pod.namespace))
                for key in keys:
                    wanted[row][key] = wanted[row].get(key, 0) + 1
        said: dict[int, dict[Hashable, int]] = {row: {} for row in pods_on}
        for key, held in self._all(None if is_whole else counted_in):
            for row in held.keys() & said.keys():
                said[row][key] = held[row]
        found = {row: self._difference(said[row], wanted[row]) for row in pods_on if said[row] != wanted[row]}
        if is_whole and (wrong := self.demands.faults()):
            found[-1] = "; ".join(wrong)
        return found

    def _queries_of(self, pod: Pod) -> Iterator[Hashable]:
        """The queries that the pod is to be counted in, found anew."""
        for query in self._query_index.candidates(pod.namespace, pod.labels):
            if (query.counts_deleting or not pod.is_deleting) and query.has(pod.namespace, pod.labels):
                yield id(self._queries[query])

    def _all(self, groups: Iterable[_GroupKey] | None) -> Iterator[tuple[Hashable, Mapping[int, int]]]:
        """Every query and affinity, and these groups (None: all), with their pods per row."""
        for count in self._queries.values():
            yield id(count), count.held
        yield from self.demands.rows()
        if groups is None:
            groups = [(namespace, *key) for namespace, known in self._groups.items() for key in known]
        for namespace, labels, is_deleting in groups:
            group = self._groups.get(namespace, {}).get((labels, is_deleting))
            if group is not None:
                yield (namespace, labels, is_deleting), dict(group.items())

    def _difference(self, said: Mapping[Hashable, int], wanted: Mapping[Hashable, int]) -> str:
        names: dict[Hashable, object] = {id(count): query for query, count in self._queries.items()}
        differing = [key for key in said.keys() | wanted.keys() if said.get(key) != wanted.get(key)]
        return "; ".join(
            f"{names.get(key, key)} counts {said.get(key, 0)} pods, there are {wanted.get(key, 0)}" for key in differing
        )

    # -- inside ----------------------------------------------------------------------------------------------------

    def _tick(self) -> int:
        self._sequence += 1
        return self._sequence

    def _count(self, row: int, pod: Pod, sign: int) -> None:
        groups = self._groups.get(pod.namespace)
        if groups is None:
            groups = self._groups[pod.namespace] = {}
        key = (id(pod.labels), pod.is_deleting)  # the group keeps the labels, so that the id stays theirs
        group = groups.get(key)
        if group is None:
            if sign < 0:
                raise AssertionError(f"pod {pod.key} leaves row {row}, and none with its labels was counted there")
            group = groups[key] = _Group(pod.namespace, pod.labels, is_deleting=pod.is_deleting)
            group.counts = self._counts_of(group)
        for count in group.counts:
            count.add(row, sign, self._tick())
        if sign > 0:
            group.add(row)
        elif group.remove(row):
            del groups[key]
            if not groups:
                del self._groups[pod.namespace]

    def _counts_of(self, group: _Group) -> tuple[PodCount, ...]:
        """The counts of all queries that the group's pods are in."""
        if not self._query_index:
            return ()
        return tuple(
            self._queries[query]
            for query in self._query_index.candidates(group.namespace, group.labels)
            if (query.counts_deleting or not group.is_deleting) and query.has(group.namespace, group.labels)
        )

    def _register(self, query: PodQuery) -> PodCount:
        if len(self._queries) >= QUERIES_MAX:
            self._unregister(self._unused_query())
        count = PodCount(self._tick())
        count.is_kept = True
        for group in self._groups_in(query):
            group.counts = (*group.counts, count)
            for row, pods in group.items():
                count.held[row] = count.held.get(row, 0) + pods
        if query.scopes:
            self._query_index.add(query, query.scopes[0].selector, query.scopes[0].namespaces)
        return count

    def _unused_query(self) -> PodQuery:
        """The first that nobody used since it was last passed over here."""
        while True:
            query = next(iter(self._queries))
            count = self._queries[query]
            if not count.is_used:
                return query
            count.is_used = False
            self._queries[query] = self._queries.pop(query)

    def _unregister(self, query: PodQuery) -> None:
        count = self._queries.pop(query)
        count.is_kept = False
        for group in self._groups_in(query):
            group.counts = tuple(one for one in group.counts if one is not count)
        if query.scopes:
            self._query_index.discard(query, query.scopes[0].selector, query.scopes[0].namespaces)

    def _groups_in(self, query: PodQuery) -> Iterator[_Group]:
        if not query.scopes:
            return
        namespaces = query.scopes[0].namespaces
        for namespace in self._groups if namespaces is None else namespaces:
            for group in self._groups.get(namespace, {}).values():
                if (query.counts_deleting or not group.is_deleting) and query.has(namespace, group.labels):
                    yield group


def counts_of(rows: Iterable[tuple[int, Iterable[Pod]]]) -> PodCounts:
    """Counted from the pods on each row, for views that keep none."""
    counts = PodCounts()
    for row, pods in rows:
        for pod in pods:
            counts.account(row, pod, 1)
    return counts
