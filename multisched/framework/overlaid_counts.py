"""OverlaidCounts: the pod counts of a table with the pods of an overlay added and removed. Each overlay owns one.

Nothing is cached per query: an overlay exists for one synchronous step and changes few pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from multisched.framework.pod_counts import PodCountsView
from multisched.framework.pod_demands import AffinityIndexEntry, Effect
from multisched.framework.row_sums import AnySum, SparseSum
from multisched.framework.term_columns import IncomingPod
from multisched.model.objects import Pod
from multisched.model.placement import PodAffinity, PodQuery


class OverlaidCounts:
    """Pod counts of a table, with pods added or removed by an overlay. A `PodCountsView`."""

    __slots__ = ("_base", "_changes")

    def __init__(self, base: PodCountsView) -> None:
        self._base = base
        self._changes: list[tuple[int, Pod, int]] = []

    def account(self, row: int, pod: Pod, sign: int) -> None:
        """Adds a pod to the row (`sign` 1) or removes it (-1)."""
        self._changes.append((row, pod, sign))

    @property
    def has_demands(self) -> bool:
        return self._base.has_demands or any(pod.spec.pod_affinity is not None for _, pod, _ in self._changes)

    def matching(self, query: PodQuery) -> AnySum:
        changes = [
            (row, sign)
            for row, pod, sign in self._changes
            if (query.counts_deleting or not pod.is_deleting) and query.has(pod.namespace, pod.labels)
        ]
        return _changed(self._base.matching(query), changes)

    def affinity_entry(
        self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]
    ) -> AffinityIndexEntry:
        incoming = IncomingPod(namespace, labels, namespace_labels)
        demanding = [
            (row, pod.spec.pod_affinity, pod.namespace, sign)
            for row, pod, sign in self._changes
            if pod.spec.pod_affinity is not None
        ]
        effects = [
            (row, self._base.effect(incoming, affinity, space), sign) for row, affinity, space, sign in demanding
        ]
        return self._base.affinity_entry(*incoming).with_changes(effects)

    def effect(self, incoming: IncomingPod, affinity: PodAffinity, namespace: str) -> Effect:
        return self._base.effect(incoming, affinity, namespace)


def _changed(base: AnySum, changes: Sequence[tuple[int, int]]) -> AnySum:
    if not changes:
        return base
    held = dict(base.held)
    for row, sign in changes:
        held[row] = held.get(row, 0) + sign
    return SparseSum(base.version, {row: pods for row, pods in held.items() if pods})
