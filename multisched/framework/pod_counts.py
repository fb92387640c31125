"""PodCounts: how many pods on each row match a query, and what placed pods demand of others. Never counted by walking pods.

Pods are held in groups of equal namespace and labels: a workload's pods are one group. A query is counted when somebody
first asks: group by group where its namespaces hold few, in columns where they hold many (`group_columns`). From then
on it catches up with the pods that came and went since the last question. The query unused for longest is dropped. A
query that names the value of a label reads only the pods with that value. So a thousand services do not read each
other's pods. A query nobody asks again costs nobody anything, whoever comes and goes. What pods demand is in
`pod_demands`.

The node table owns one and writes it; an overlay has one above the table's. Plugins read it as `NodeView.pod_counts`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from multisched.framework.group_columns import GroupColumns
from multisched.framework.indexed_log import IndexedLog
from multisched.framework.pivots import Pivots, pivot_of
from multisched.framework.pod_demands import Concern, Effect, PodDemands
from multisched.framework.pod_group import PodGroup
from multisched.framework.row_sums import AnySum, SparseSum
from multisched.framework.term_columns import Asker
from multisched.model.objects import Pod
from multisched.model.placement import PodAffinity, PodQuery

QUERIES_MAX: Final = 4_096
"""Queries kept; those unused for longest go first."""

QUERIES_MIN: Final = 128
"""The latest queries, which are kept whatever they take: more than one pod asks for, as its counts are read side by side."""

QUERY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Memory for the counts of queries; those unused for longest go first."""

NARROW_GROUPS_MAX: Final = 32
"""Groups that a query is put to one by one; where its namespaces hold more, it is put to all groups at once."""

LOG_KEPT: Final = 4_096
"""Pods that came or went that a query can catch up with; beyond, it is counted anew. One with many labels counts for several."""

LABELS_OF_ONE: Final = 16
"""As many labels more make a pod in the log count for one more: the log keeps the labels of pods that are gone."""

MATCHES_KEPT: Final = 256
"""Groups of which a query remembers whether they match."""

MATCHES_MAX: Final = 2_048
"""Groups that a query which catches up puts to its selectors, times its scopes; beyond, it is counted anew, by columns."""

QUERIES_CHECKED: Final = 16
"""Queries that one audit of some rows counts anew."""

MATCHES_CHECKED: Final = 16_384
"""Pods that it puts to their selectors, times their scopes; one query is counted whatever it takes. Some ten milliseconds."""

_GroupKey = tuple[str, int, bool]
"""Namespace, identity of the labels, whether the pods are being deleted."""
_QUERY_BYTES: Final = 1_000
_TEXT_BYTES: Final = 150


class PodCountsView(Protocol):
    """What plugins read: `NodeView.pod_counts`."""

    @property
    def has_demands(self) -> bool:
        """False: no placed pod has a term about others."""
        ...

    def matching(self, query: PodQuery) -> AnySum:
        """How many pods on each row are in the query, as it is now."""
        ...

    def concern(self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]) -> Concern:
        """What placed pods demand of pods with these labels in that namespace, as it is now."""
        ...

    def effect(self, asker: Asker, affinity: PodAffinity, namespace: str) -> Effect:
        """What one placed pod with this affinity in that namespace demands of the asker's pods."""
        ...


class KeptQuery:
    """A query with its count, as far as it has caught up."""

    __slots__ = (
        "_matches",
        "count",
        "is_kept",
        "is_used",
        "matches",
        "pivot",
        "query",
        "seen",
        "size_bytes",
        "used_at",
    )

    def __init__(self, query: PodQuery, count: AnySum, seen: int) -> None:
        self.query = query
        self.pivot = pivot_of(query)
        """Labels of which all of its pods have one; none: it may be about any pod."""
        self.is_kept = True
        """A reader that holds on to the query asks for it again when it is not kept."""
        self.is_used = True
        self.used_at = 0
        """When it was asked for last, in questions to all queries."""
        self._matches: dict[PodGroup, bool] = {}
        self.matches = 0
        """Groups that were put to its scopes so far, times these."""
        self.size_bytes = 0
        self.counted(count, seen)

    def counted(self, count: AnySum, seen: int) -> None:
        """It was counted anew."""
        self.count = count
        self.seen = seen
        texts = _TEXT_BYTES * sum(scope.texts for scope in self.query.scopes)
        self.size_bytes = _QUERY_BYTES + texts + count.size_bytes

    def drop(self) -> None:
        """Nobody keeps it true any more: who reads it asks for it again."""
        self.is_kept = False
        self.count.clear()
        self._matches.clear()

    def has(self, group: PodGroup) -> bool:
        found = self._matches.get(group)
        if found is None:
            query = self.query
            found = (query.counts_deleting or not group.is_deleting) and query.has(group.namespace, group.labels)
            self.matches += len(query.scopes)
            if len(self._matches) >= MATCHES_KEPT:
                self._matches.clear()
            self._matches[group] = found
        return found


class PodCounts:
    """Counts, per row, the placed pods that match each query in use."""

    def __init__(self, is_topology: Callable[[str], bool] | None = None) -> None:
        """`is_topology`: whether any node has this label; None: any may."""
        self.demands = PodDemands(is_topology)
        self._sequence = 0
        self._groups: dict[str, dict[tuple[int, bool], PodGroup]] = {}
        self._queries: dict[PodQuery, KeptQuery] = {}
        self._uses = self._bytes = 0
        self._columns: GroupColumns | None = None
        self._log: IndexedLog[tuple[PodGroup, int, int]] = IndexedLog(LOG_KEPT, _weight)
        """Group, row, and how many of its pods came or went; by those of its labels that are some query's pivot."""
        self._pivots = Pivots(self._all_groups)
        self.groups_looked_at = 0
        """Groups that queries were put to one by one so far."""

    # -- reading ---------------------------------------------------------------------------------------------------

    def matching(self, query: PodQuery) -> AnySum:
        return self.kept(query).count

    def kept(self, query: PodQuery) -> KeptQuery:
        """The query with its count as it is now; to hold on to, and to `refresh` at each use."""
        found = self._queries.get(query)
        if found is None:
            self._make_room()
            found = self._queries[query] = KeptQuery(query, self._counted(query), self._log.end)
            self._pivots.watch(found.pivot)
            self._bytes += found.size_bytes
        self.refresh(found)
        return found

    def refresh(self, kept: KeptQuery) -> None:
        """Catches up with what came and went since the query was last asked for."""
        self._uses += 1
        kept.is_used, kept.used_at = True, self._uses
        if kept.seen == self._log.end:
            return
        changes = self._log.since(kept.seen, kept.pivot or None)
        if changes is None:
            self._count_anew(kept)
            return
        scopes = kept.query.scopes
        namespaces = scopes[0].namespaces if scopes else frozenset()
        matches_end = kept.matches + MATCHES_MAX
        for group, row, pods in changes:
            if (namespaces is None or group.namespace in namespaces) and kept.has(group):
                kept.count.add(row, pods, pods, self._tick())
            if kept.matches > matches_end:
                self._count_anew(kept)
                return
        kept.seen = self._log.end

    def _count_anew(self, kept: KeptQuery) -> None:
        self._bytes -= kept.size_bytes
        kept.count.clear()
        kept.counted(self._counted(kept.query), self._log.end)
        self._bytes += kept.size_bytes

    def concern(self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]) -> Concern:
        return self.demands.concern(namespace, labels, namespace_labels)

    def effect(self, asker: Asker, affinity: PodAffinity, namespace: str) -> Effect:
        return self.demands.effect(asker, affinity, namespace)

    @property
    def demands_sequence(self) -> int:
        return self.demands.sequence

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
        """Drops what is known of a row that is counted anew, and all counts: what was wrong may be in any."""
        for namespace, groups in list(self._groups.items()):
            for key in [key for key, group in groups.items() if group.forget(row)]:
                self._pivots.left(groups[key])
                del groups[key]
            if not groups:
                del self._groups[namespace]
        for kept in self._queries.values():
            self._drop(kept)
        self._queries.clear()
        self._bytes = 0
        self._drop_columns()
        self.demands.forget_row(row)

    # -- checking --------------------------------------------------------------------------------------------------

    def faults(self, pods_on: Mapping[int, Collection[Pod]], *, is_whole: bool = False) -> dict[int, str]:
        """Row -> what is wrong there, with both sides: whether these rows are the sums of these pods (I4).

        `is_whole`: makes all concerns anew, and looks for groups that none of these pods is in. There may be one for
        every pod.
        """
        wanted: dict[int, dict[Hashable, int]] = {row: {} for row in pods_on}
        groups: set[_GroupKey] = set()
        for row, pods in pods_on.items():
            for pod in pods:
                group = (pod.namespace, id(pod.labels), pod.is_deleting)
                groups.add(group)
                keys: list[Hashable] = [group]
                if pod.spec.pod_affinity is not None:
                    keys.append(self.demands.key_of(pod.spec.pod_affinity, pod.namespace))
                for key in keys:
                    wanted[row][key] = wanted[row].get(key, 0) + 1
        said: dict[int, dict[Hashable, int]] = {row: {} for row in pods_on}
        for key, held in (*self.demands.rows(), *self._rows_of(None if is_whole else groups)):
            for row in held.keys() & said.keys():
                said[row][key] = held[row]
        found = {row: _difference(said[row], wanted[row]) for row in pods_on if said[row] != wanted[row]}
        self._find_wrong_counts(pods_on, found, is_whole=is_whole)
        if is_whole and (wrong := self.demands.faults()):
            found[-1] = "; ".join(wrong)
        return found

    def _rows_of(self, groups: Iterable[_GroupKey] | None) -> Iterator[tuple[Hashable, Mapping[int, int]]]:
        """These groups (None: all), with their pods by row."""
        if groups is None:
            groups = [(namespace, *key) for namespace, known in self._groups.items() for key in known]
        for namespace, labels, is_deleting in groups:
            group = self._groups.get(namespace, {}).get((labels, is_deleting))
            if group is not None:
                yield (namespace, labels, is_deleting), dict(group.items())

    def _find_wrong_counts(
        self, pods_on: Mapping[int, Collection[Pod]], found: dict[int, str], *, is_whole: bool
    ) -> None:
        """Counts some queries anew on these rows, other ones each time; all of them if `is_whole`."""
        matches_left, pods_there = MATCHES_CHECKED, sum(map(len, pods_on.values()))
        for number, query in enumerate(list(self._queries)[: None if is_whole else QUERIES_CHECKED]):
            matches_left -= pods_there * len(query.scopes)
            if matches_left < 0 and number and not is_whole:
                return
            kept = self._queries[query] = self._queries.pop(query)
            self.refresh(kept)
            held = kept.count.held
            for row, pods in pods_on.items():
                there = sum(
                    (query.counts_deleting or not pod.is_deleting) and query.has(pod.namespace, pod.labels)
                    for pod in pods
                )
                if held.get(row, 0) != there:
                    found.setdefault(row, f"{query} counts {held.get(row, 0)} pods, there are {there}")

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
            group = groups[key] = PodGroup(pod.namespace, pod.labels, is_deleting=pod.is_deleting)
            self._pivots.came(group)
        if self._queries or self._columns is not None:
            self._note(group, row, sign)
        if sign > 0:
            group.add(row)
        elif group.remove(row):
            self._pivots.left(group)
            del groups[key]
            if not groups:
                del self._groups[pod.namespace]

    def _note(self, group: PodGroup, row: int, sign: int) -> None:
        """For queries and columns, if there are any."""
        self._log.note((group, row, sign), self._pivots.labels_of(group))
        if self._columns is not None:
            self._columns.change(group, row, sign)
            if self._columns.is_stale:
                self._drop_columns()

    def _counted(self, query: PodQuery) -> AnySum:
        """The query's pods by row, from the groups as they are."""
        if not query.scopes:
            return SparseSum(self._tick())
        named = self._pivots.groups_with(pivot_of(query)) if pivot_of(query) else None
        if named is not None and len(named) <= NARROW_GROUPS_MAX:
            return self._counted_among(named, query)
        names = query.scopes[0].namespaces
        namespaces = self._groups.keys() if names is None else names & self._groups.keys()
        if sum(len(self._groups[name]) for name in namespaces) > NARROW_GROUPS_MAX:
            if self._columns is None:
                self._columns = self._filled()
            return self._columns.count(query, self._tick())
        return self._counted_among((group for name in namespaces for group in self._groups[name].values()), query)

    def _counted_among(self, groups: Iterable[PodGroup], query: PodQuery) -> AnySum:
        held: dict[int, int] = {}
        for group in groups:
            self.groups_looked_at += 1
            if (query.counts_deleting or not group.is_deleting) and query.has(group.namespace, group.labels):
                for row, pods in group.items():
                    held[row] = held.get(row, 0) + pods
        return SparseSum(self._tick(), held)

    def _make_room(self) -> None:
        """Those that nobody used since they were last passed over here go first; the latest stay: somebody reads them now."""
        while len(self._queries) >= QUERIES_MIN and (
            len(self._queries) >= QUERIES_MAX or self._bytes >= QUERY_BYTES_MAX
        ):
            query = next(iter(self._queries))
            kept = self._queries.pop(query)
            if kept.is_used or self._uses - kept.used_at < QUERIES_MIN - 1:
                kept.is_used = False
                self._queries[query] = kept
            else:
                self._bytes -= kept.size_bytes
                self._drop(kept)

    def _drop(self, kept: KeptQuery) -> None:
        self._pivots.unwatch(kept.pivot)
        kept.drop()

    def _filled(self) -> GroupColumns:
        columns = GroupColumns()
        for group in self._all_groups():
            for row, pods in group.items():
                columns.change(group, row, pods)
        return columns

    def _all_groups(self) -> Iterator[PodGroup]:
        return (group for groups in self._groups.values() for group in groups.values())

    def _drop_columns(self) -> None:
        self._columns = None
        for group in self._all_groups():
            group.column = -1


def _weight(change: tuple[PodGroup, int, int]) -> int:
    return 1 + len(change[0].labels) // LABELS_OF_ONE


def _difference(said: Mapping[Hashable, int], wanted: Mapping[Hashable, int]) -> str:
    differing = [key for key in said.keys() | wanted.keys() if said.get(key) != wanted.get(key)]
    return "; ".join(f"{key} counts {said.get(key, 0)} pods, there are {wanted.get(key, 0)}" for key in differing)


def counts_of(rows: Iterable[tuple[int, Iterable[Pod]]]) -> PodCounts:
    """Counted from the pods on each row, for views that keep none."""
    counts = PodCounts()
    for row, pods in rows:
        for pod in pods:
            counts.account(row, pod, 1)
    return counts
