"""PodCounts: how many placed pods on each row match a query, and what placed pods' affinity demands of others.

Pods are kept in groups with equal namespace and labels: a workload's pods are one group. A query is counted when it is
first used: group by group if its namespaces have few groups, else by columns (`group_columns`). After that, each use
applies the pods added and removed since the last use. The least recently used query is dropped. A query that requires a
label value reads only the changes of pods with that value, so the query of one service does not read the pods of others. An
unused query costs nothing when pods come and go. What pods demand of others is in `pod_demands`.

The node table owns one and writes it; an overlay adds its changes to it (`OverlaidCounts`). Plugins read `NodeView.pod_counts`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from multisched.framework.group_columns import GroupColumns
from multisched.framework.indexed_log import IndexedLog
from multisched.framework.pivots import Pivots, pivot_of
from multisched.framework.pod_demands import AffinityIndexEntry, Effect, PodDemands
from multisched.framework.pod_group import PodGroup
from multisched.framework.row_sums import AnySum, SparseSum
from multisched.framework.term_columns import IncomingPod
from multisched.model.objects import Pod
from multisched.model.placement import PodAffinity, PodQuery

QUERIES_MAX: Final = 4_096
"""Queries kept; the least recently used are dropped."""

QUERIES_MIN: Final = 128
"""Most recently used queries, kept whatever their size. A pod needs fewer; their counts are read together."""

QUERY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Memory for the counts of queries; the least recently used are dropped."""

NARROW_GROUPS_MAX: Final = 32
"""Groups up to which a query is matched group by group; with more, it is matched against all groups at once."""

LOG_KEPT: Final = 4_096
"""Changes that a query can catch up on; with more, it is recounted. A pod with many labels counts as several."""

LABELS_OF_ONE: Final = 16
"""This many labels of a pod in the log add 1 to its weight: the log keeps the labels of deleted pods."""

MATCHES_KEPT: Final = 256
"""Groups for which a query caches whether they match."""

MATCHES_MAX: Final = 2_048
"""Group matches (groups times scopes) of one catch-up; with more, the query is recounted by columns."""

QUERIES_CHECKED: Final = 16
"""Queries that one audit of some rows recounts."""

MATCHES_CHECKED: Final = 16_384
"""Pod matches (pods times scopes) of one audit; at least one query is recounted. Some ten milliseconds."""

_GroupKey = tuple[str, int, bool]
"""Namespace, identity of the labels, whether the pods are being deleted."""
_QUERY_BYTES: Final = 1_000
_TEXT_BYTES: Final = 150


class PodCountsView(Protocol):
    """The interface for plugins: `NodeView.pod_counts`."""

    @property
    def has_demands(self) -> bool:
        """False: no placed pod has a pod affinity term."""
        ...

    def matching(self, query: PodQuery) -> AnySum:
        """Returns the current number of matching pods on each row."""
        ...

    def affinity_entry(
        self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]
    ) -> AffinityIndexEntry:
        """Returns what placed pods currently demand of pods with these labels in that namespace."""
        ...

    def effect(self, incoming: IncomingPod, affinity: PodAffinity, namespace: str) -> Effect:
        """Returns what one placed pod with this affinity in that namespace demands of the incoming pod."""
        ...


class KeptQuery:
    """A query with its count, as of its last catch-up."""

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
        """Labels of which every matching pod has one; empty: the query may match any pod."""
        self.is_kept = True
        """False after it was dropped: a reader that holds the query must request it again."""
        self.is_used = True
        self.used_at = 0
        """Value of the owner's use counter at the last use."""
        self._matches: dict[PodGroup, bool] = {}
        self.matches = 0
        """Group matches so far (groups times scopes)."""
        self.size_bytes = 0
        self.counted(count, seen)

    def counted(self, count: AnySum, seen: int) -> None:
        """Stores a new count."""
        self.count = count
        self.seen = seen
        texts = _TEXT_BYTES * sum(scope.texts for scope in self.query.scopes)
        self.size_bytes = _QUERY_BYTES + texts + count.size_bytes

    def drop(self) -> None:
        """Marks the query as no longer kept and empties it: readers must request it again."""
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
        """`is_topology`: whether any node has this label; None: assume that nodes have every label."""
        self.demands = PodDemands(is_topology)
        self._sequence = 0
        self._groups: dict[str, dict[tuple[int, bool], PodGroup]] = {}
        self._queries: dict[PodQuery, KeptQuery] = {}
        self._uses = self._bytes = 0
        self._columns = GroupColumns()
        self._log: IndexedLog[tuple[PodGroup, int, int]] = IndexedLog(LOG_KEPT, _weight)
        """(group, row, 1 if a pod was added or -1 if removed), tagged with the group's labels whose keys are pivot keys."""
        self._pivots = Pivots()
        self.groups_looked_at = 0
        """Number of groups matched one by one so far."""

    # -- reading ---------------------------------------------------------------------------------------------------

    def matching(self, query: PodQuery) -> AnySum:
        return self.kept(query).count

    def kept(self, query: PodQuery) -> KeptQuery:
        """Returns the query with its current count; the caller may hold it and must `refresh` it before each use."""
        found = self._queries.get(query)
        if found is None:
            self._make_room()
            found = self._queries[query] = KeptQuery(query, self._counted(query), self._log.end)
            self._pivots.watch(found.pivot)
            self._bytes += found.size_bytes
        self.refresh(found)
        return found

    def refresh(self, kept: KeptQuery) -> None:
        """Applies the changes since the query was last used."""
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

    def affinity_entry(
        self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]
    ) -> AffinityIndexEntry:
        return self.demands.affinity_entry(namespace, labels, namespace_labels)

    def effect(self, incoming: IncomingPod, affinity: PodAffinity, namespace: str) -> Effect:
        return self.demands.effect(incoming, affinity, namespace)

    @property
    def demands_sequence(self) -> int:
        return self.demands.sequence

    @property
    def has_demands(self) -> bool:
        return bool(self.demands)

    # -- writing ---------------------------------------------------------------------------------------------------

    def account(self, row: int, pod: Pod, sign: int) -> None:
        """Adds a pod to the row (`sign` 1) or removes it (-1)."""
        self._count(row, pod, sign)
        if pod.spec.pod_affinity is not None:
            self.demands.account(row, pod.spec.pod_affinity, pod.namespace, sign)

    def replace(self, row: int, before: Pod, after: Pod) -> None:
        """Replaces a pod on the row with a newer object with the same spec."""
        if before.labels is not after.labels or before.is_deleting != after.is_deleting:
            self._count(row, before, -1)
            self._count(row, after, 1)

    def forget_row(self, row: int) -> None:
        """Drops a row that is to be recounted, and all counts of queries: any of them may be wrong."""
        for group in self._columns.forget_row(row):
            self._remove(group)
        for kept in self._queries.values():
            self._drop(kept)
        self._queries.clear()
        self._bytes = 0
        self.demands.forget_row(row)

    # -- checking --------------------------------------------------------------------------------------------------

    def faults(self, pods_on: Mapping[int, Collection[Pod]], *, is_whole: bool = False) -> dict[int, str]:
        """Returns row -> difference between the counts and these pods, with both values (I4).

        `is_whole`: also recomputes all index entries, and looks for groups without any of these pods. There may be as many
        groups as pods.
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
        """Yields these groups (None: all), with their pods by row."""
        if groups is None:
            groups = [(namespace, *key) for namespace, known in self._groups.items() for key in known]
        for namespace, labels, is_deleting in groups:
            group = self._groups.get(namespace, {}).get((labels, is_deleting))
            if group is not None:
                yield (namespace, labels, is_deleting), dict(self._columns.pods(group))

    def _find_wrong_counts(
        self, pods_on: Mapping[int, Collection[Pod]], found: dict[int, str], *, is_whole: bool
    ) -> None:
        """Recounts some queries on these rows, different ones each time; all of them if `is_whole`."""
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
                    found.setdefault(row, f"{query} counts {held.get(row, 0)} pods, but the row has {there}")

    # -- internal --------------------------------------------------------------------------------------------------

    def _tick(self) -> int:
        self._sequence += 1
        return self._sequence

    def _count(self, row: int, pod: Pod, sign: int) -> None:
        groups = self._groups.get(pod.namespace)
        if groups is None:
            groups = self._groups[pod.namespace] = {}
        key = (id(pod.labels), pod.is_deleting)  # the group keeps the labels, so their id is not reused
        group = groups.get(key)
        if group is None:
            if sign < 0:
                raise AssertionError(f"pod {pod.key} leaves row {row}, where no pod with its labels was counted")
            group = groups[key] = PodGroup(pod.namespace, pod.labels, is_deleting=pod.is_deleting)
            self._columns.add(group)
        if self._queries:
            self._log.note((group, row, sign), self._pivots.labels_of(group))
        if not self._columns.account(group, row, sign):
            self._remove(group)

    def _remove(self, group: PodGroup) -> None:
        """Removes a group that has no pods any more."""
        self._columns.remove(group)
        groups = self._groups[group.namespace]
        del groups[id(group.labels), group.is_deleting]
        if not groups:
            del self._groups[group.namespace]

    def _counted(self, query: PodQuery) -> AnySum:
        """Returns the query's pods by row, counted from the groups."""
        if not query.scopes:
            return SparseSum(self._tick())
        names = query.scopes[0].namespaces
        namespaces = self._groups.keys() if names is None else names & self._groups.keys()
        if sum(len(self._groups[name]) for name in namespaces) <= NARROW_GROUPS_MAX:
            return self._counted_among((one for name in namespaces for one in self._groups[name].values()), query)
        pivot = pivot_of(query)
        named = self._columns.groups_with(pivot, NARROW_GROUPS_MAX) if pivot else None
        return self._columns.count(query, self._tick()) if named is None else self._counted_among(named, query)

    def _counted_among(self, groups: Iterable[PodGroup], query: PodQuery) -> AnySum:
        held: dict[int, int] = {}
        for group in groups:
            self.groups_looked_at += 1
            if (query.counts_deleting or not group.is_deleting) and query.has(group.namespace, group.labels):
                for row, pods in self._columns.pods(group):
                    held[row] = held.get(row, 0) + pods
        return SparseSum(self._tick(), held)

    def _make_room(self) -> None:
        """Drops queries that were not used since this function last examined them. The latest are kept: they may be in use."""
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


def _weight(change: tuple[PodGroup, int, int]) -> int:
    return 1 + len(change[0].labels) // LABELS_OF_ONE


def _difference(said: Mapping[Hashable, int], wanted: Mapping[Hashable, int]) -> str:
    differing = [key for key in said.keys() | wanted.keys() if said.get(key) != wanted.get(key)]
    return "; ".join(f"{key} counts {said.get(key, 0)} pods, but the row has {wanted.get(key, 0)}" for key in differing)


def counts_of(rows: Iterable[tuple[int, Iterable[Pod]]]) -> PodCounts:
    """Returns the counts of these pods, for views that keep none."""
    counts = PodCounts()
    for row, pods in rows:
        for pod in pods:
            counts.account(row, pod, 1)
    return counts
