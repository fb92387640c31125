"""DomainTally: pods per topology domain, updated from the changes of the underlying counts.

A *domain* is the set of rows with the same value of a node label. PodTopologySpread and InterPodAffinity keep tallies
between attempts, so that the cost of an attempt depends on what changed since, not on the number of pods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import numpy as np

from multisched.framework.node_view import Bools, Int32, Int64, NodeView, Rows
from multisched.framework.pod_counts import KeptQuery, PodCounts, PodCountsView
from multisched.framework.pod_demands import AffinityIndexEntry, TermKind
from multisched.framework.row_sums import AnySum, no_sum
from multisched.model.placement import PodQuery

SPARSE_ABOVE: Final = 512
"""Above this number of domains, only domains with pods are stored: a small workload uses few of all hosts."""

SPARSE_MAX: Final = 64
"""Maximum number of domains with pods in the sparse form."""


class Source:
    """A query by which a rule counts pods, with its weight; caches the looked-up count while the count is kept."""

    __slots__ = ("_counts", "_kept", "_query", "weight")

    def __init__(self, query: PodQuery, weight: int = 1) -> None:
        self._query = query
        self.weight = weight
        self._kept: KeptQuery | None = None
        self._counts: PodCounts | None = None

    def count(self, counts: PodCountsView) -> AnySum:
        """Returns the query's count in that view."""
        kept = self._kept
        if kept is not None and counts is self._counts and kept.is_kept:
            self._counts.refresh(kept)
            return kept.count
        if not isinstance(counts, PodCounts):
            return counts.matching(self._query)
        self._kept, self._counts = counts.kept(self._query), counts
        return self._kept.count

    def version(self, counts: PodCountsView) -> int:
        return self.count(counts).version


class DemandSource:
    """The terms of placed pods of one `TermKind`, with a weight."""

    __slots__ = ("_entry", "_term_kind", "weight")

    def __init__(self, entry: AffinityIndexEntry, term_kind: TermKind, weight: int = 1) -> None:
        self._entry = entry
        self._term_kind = term_kind
        self.weight = weight

    def count(self, counts: PodCountsView) -> AnySum:
        """Returns the sum as of the last request of the index entry."""
        return self._entry.sums.get(self._term_kind, _NOTHING)

    def version(self, counts: PodCountsView) -> int:
        return self.count(counts).version


AnySource = Source | DemandSource


class DomainTally:
    """Weighted pods per value of one label key, over the eligible rows."""

    __slots__ = (
        "_dense",
        "_eligible",
        "_followed",
        "_nodes_version",
        "_none",
        "_seen",
        "_size",
        "_sparse",
        "codes",
        "flipped",
        "pods",
        "unlabelled",
    )

    def __init__(
        self, nodes: NodeView, key: str | None, sources: Sequence[AnySource], eligible: Bools | None = None
    ) -> None:
        """`key` None: each row is one domain. `eligible`: bool[all rows], rows whose pods count; None: all."""
        self.codes: Int32 = _own_codes(nodes) if key is None else nodes.label_codes(key)
        """int32[all rows]: the row's domain; 0 if the row lacks the label."""
        self._size = len(self.codes) if key is None else len(nodes.label_values(key))
        self._sparse: dict[int, int] | None = {} if self._size > SPARSE_ABOVE else None
        """Domain -> pods times weight, if few of many domains have pods; `_dense` is empty then."""
        self._dense: Int64 = np.zeros(0 if self._sparse is not None else self._size, np.int64)
        self._none = -1 if key is None else 0
        """The code of rows that are in no domain."""
        self.unlabelled = 0
        """Pods times weight on rows without the label."""
        self.pods = 0
        """Pods, unweighted, on rows that have the label."""
        self.flipped: set[int] | None = None
        """Domains that got their first pod or lost their last one since the reader put an empty set here; None: not recorded."""
        self._eligible = eligible
        self._nodes_version = nodes.nodes_version
        self._followed = [source.count(nodes.pod_counts) for source in sources]
        self._seen = [count.version for count in self._followed]
        for source, count in zip(sources, self._followed, strict=True):
            self._add_all(count, source.weight)

    def follow(self, nodes: NodeView, sources: Sequence[AnySource]) -> bool:
        """Applies the changes of the same sources. Returns False if that is impossible and a new tally is needed."""
        if self._nodes_version != nodes.nodes_version:
            return False
        counts = nodes.pod_counts
        for at, source in enumerate(sources):
            count = source.count(counts)
            if count is not self._followed[at]:
                return False
            if count.version != self._seen[at]:
                changes = count.changes_since(self._seen[at])
                if changes is None:
                    return False
                for change in changes:  # the last element is the weight of terms; for pods, it is their number
                    self.add(change[1], change[2], source.weight * change[-1])
                self._seen[at] = count.version
        return True

    def add(self, row: int, pods: int, amount: int) -> None:
        """Adds `pods` pods with a total weight of `amount` to the row."""
        if self._eligible is not None and not self._eligible[row]:
            return
        code = self.codes.item(row)
        if code == self._none:
            self.unlabelled += amount
            return
        if self._sparse is None:
            before = self._dense.item(code)
            self._dense[code] = before + amount
        else:
            before = self._sparse.get(code, 0)
            self._sparse[code] = before + amount
            if len(self._sparse) > SPARSE_MAX:
                self._dense, self._sparse = self.counts, None
        self.pods += pods
        if self.flipped is not None and not (before and before + amount):
            self.flipped.add(code)

    @property
    def counts(self) -> Int64:
        """int64[domains], read only: pods times weight. If there is a key, entry 0 means no domain and is always 0."""
        if self._sparse is None:
            return self._dense
        found = np.zeros(self._size, np.int64)
        for domain, amount in self._sparse.items():
            found[domain] = amount
        return found

    def rows_of(self, domains: Collection[int]) -> Rows:
        """Returns the rows of these domains, ascending."""
        if len(domains) == 1:
            (domain,) = domains
            held: Bools = self.codes == domain
        else:
            is_meant = np.zeros(self._size, np.bool_)
            is_meant[list(domains)] = True
            held = is_meant.take(self.codes)
        return held.nonzero()[0]

    def copy(self) -> DomainTally:
        """Returns an independent copy without sources to follow."""
        copied = object.__new__(DomainTally)
        copied.codes, copied._size, copied.pods = self.codes, self._size, self.pods
        copied._dense, copied._sparse = self._dense.copy(), None if self._sparse is None else dict(self._sparse)
        copied._eligible = self._eligible
        copied._none, copied.unlabelled = self._none, self.unlabelled
        copied._followed, copied._seen, copied.flipped = [], [], None
        return copied

    def _add_all(self, count: AnySum, weight: int) -> None:
        rows, pods, amounts = count.columns()
        if not len(rows):
            return
        if self._eligible is not None:
            there = self._eligible.take(rows)
            rows, pods, amounts = rows[there], pods[there], amounts[there]
        codes = self.codes.take(rows)
        is_in = codes != self._none
        self.unlabelled += weight * int(amounts[~is_in].sum())
        self._add_domains(codes[is_in], amounts[is_in] * weight)
        self.pods += int(pods[is_in].sum())

    def _add_domains(self, codes: Int32, amounts: Int64) -> None:
        if self._sparse is not None and len(self._sparse) + len(codes) > SPARSE_MAX:
            self._dense, self._sparse = self.counts, None
        if self._sparse is None:
            np.add.at(self._dense, codes, amounts)
            return
        for code, amount in zip(codes.tolist(), amounts.tolist(), strict=True):
            self._sparse[code] = self._sparse.get(code, 0) + amount


_NOTHING = no_sum(0)


def _own_codes(nodes: NodeView) -> Int32:
    return np.arange(len(nodes.taint_set), dtype=np.int32)


def versions(sources: Iterable[AnySource], counts: PodCountsView) -> tuple[int, ...]:
    """Returns the versions of the counts, as part of a cache key."""
    return tuple([source.version(counts) for source in sources])
