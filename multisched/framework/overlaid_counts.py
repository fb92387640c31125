"""OverlaidCounts: the pod counts of a table with some pods added and removed in thought. An overlay owns one.

Nothing is kept for queries: an overlay lives for one synchronous step, and is about few pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from multisched.framework.pod_counts import PodCount, PodCountsView, demands_of_pod
from multisched.model.objects import Pod
from multisched.model.placement import PodDemand, PodQuery


class OverlaidCounts:
    """See the module. A `PodCountsView`."""

    __slots__ = ("_base", "_changes")

    def __init__(self, base: PodCountsView) -> None:
        self._base = base
        self._changes: list[tuple[int, Pod, int]] = []

    def account(self, row: int, pod: Pod, sign: int) -> None:
        """A pod comes to the row (1) or leaves it (-1)."""
        self._changes.append((row, pod, sign))

    @property
    def demands_version(self) -> int:
        return self._base.demands_version

    @property
    def has_demands(self) -> bool:
        return self._base.has_demands or any(pod.spec.pod_affinity is not None for _, pod, _ in self._changes)

    def matching(self, query: PodQuery) -> PodCount:
        changes = [
            (row, sign)
            for row, pod, sign in self._changes
            if (query.counts_deleting or not pod.is_deleting) and query.has(pod.namespace, pod.labels)
        ]
        return _changed(self._base.matching(query), changes)

    def demanding(self, demand: PodDemand) -> PodCount:
        changes = [(row, sign) for row, pod, sign in self._changes for own in demands_of_pod(pod) if own == demand]
        return _changed(self._base.demanding(demand), changes)

    def demands_on(
        self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]
    ) -> list[PodDemand]:
        found = dict.fromkeys(self._base.demands_on(namespace, labels, namespace_labels))
        for _, pod, _ in self._changes:
            for demand in demands_of_pod(pod):
                if demand.concerns(namespace, labels, namespace_labels):
                    found[demand] = None
        return list(found)


def _changed(base: PodCount, changes: Sequence[tuple[int, int]]) -> PodCount:
    if not changes:
        return base
    held = dict(base.held)
    for row, sign in changes:
        held[row] = held.get(row, 0) + sign
    return PodCount(base.version, {row: pods for row, pods in held.items() if pods})
