"""The ratio of evicted to needed: what a reclaim's victims hold of the scarcest resource, divided by what is missing of it.

The missing amount is what the claim currently lacks on nodes or in quotas, whichever is larger. The scarcest resource is the
one of which the largest fraction of the request is missing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from multisched.framework.introspection import PluginMetric
from multisched.framework.node_view import NodeView
from multisched.framework.preemption import Nomination
from multisched.model.objects import PODS, Pod
from multisched.model.quota_tree import quota_amount
from multisched.plugins.quota.pod_amounts import Items

BOUNDS: Final = (1.0, 1.25, 1.5, 2.0, 4.0, 8.0, 16.0)
"""Bucket bounds of the metric; ratios above the last one are in +Inf."""
TEXT: Final = (
    "Reclaims by the ratio of evicted to needed, at most `up_to`: what the victims held of the scarcest resource, divided"
    " by the amount of it that was missing"
)


class Excess(NamedTuple):
    """The ratio of one reclaim."""

    resource: str
    """The scarcest resource; empty if no resource is missing, but a filter refused the pod for another reason."""
    ratio: float


def excess(asked: Items, missing: Mapping[str, int], victims: Iterable[Mapping[str, int]]) -> Excess:
    """Returns the ratio. `victims`: amounts of each, without terminating ones. `missing`: resource -> amount."""
    shares = [(missing[name] / amount, name) for name, amount in asked if amount and missing.get(name, 0) > 0]
    if not shares:
        return Excess("", 0.0)
    _, scarcest = max(shares, key=lambda one: one[0])
    evicted = sum(held.get(scarcest, 0) for held in victims)
    return Excess(scarcest, evicted / missing[scarcest])


def missing_on_nodes(nodes: NodeView, nominations: Sequence[Nomination]) -> tuple[dict[str, int], int]:
    """Returns resource -> the amount that the nominated nodes lack in total, and the number of nodes that lack any.

    In quota units, and by resource requests only: nodes have no columns for other demands. Terminating pods count as deleted.
    """
    found: Counter[str] = Counter()
    asked: dict[str, Counter[str]] = {}
    for pod, node in nominations:
        asked.setdefault(node, Counter()).update(_requests(pod))
    short_nodes = 0
    for node, amounts in asked.items():
        row = nodes.row_of(node)
        assert row is not None, "a node of the table is nominated"
        terminating = [_requests(pod) for pod in nodes.pods_on(row) if pod.is_leaving]
        is_short = False
        for resource, amount in amounts.items():
            idle = int(nodes.allocatable(resource)[row]) - int(nodes.requested(resource)[row])
            short = amount - idle - sum(held.get(resource, 0) for held in terminating)
            if short > 0:
                found[resource] += quota_amount(resource, short)
                is_short = True
        short_nodes += is_short
    return dict(found), short_nodes


def _requests(pod: Pod) -> Mapping[str, int]:
    return {**pod.requests, PODS: 1}


def larger(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Returns resource -> the larger of both amounts."""
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in (*one, *other)}


class EvictionLimit:
    """Applies the limit during one attempt."""

    def __init__(self, most: float) -> None:
        self._most = most
        self.over: Excess | None = None
        """The lowest ratio that exceeded the limit."""

    def allows(self, found: Excess, units: int, places: int = 1) -> bool:
        """Reports whether the limit allows the evictions. It always allows one unit per node, because no smaller one would suffice."""
        if units <= places or found.ratio <= self._most:
            return True
        if self.over is None or found.ratio < self.over.ratio:
            self.over = found
        return False


class ReclaimCounts:
    """Counts of reclaims, for metrics."""

    def __init__(self) -> None:
        self._by_bound = [0] * (len(BOUNDS) + 1)
        self._stopped = 0

    def decided(self, found: Excess) -> None:
        self._by_bound[bisect_left(BOUNDS, found.ratio)] += 1

    def stopped(self) -> None:
        """Counts an attempt whose only possible reclaims exceeded the limit."""
        self._stopped += 1

    def metrics(self) -> Sequence[PluginMetric]:
        bounds, sums = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"], self._by_bound
        reclaims: dict[tuple[str, ...], float] = {
            (bound,): float(sum(sums[: at + 1])) for at, bound in enumerate(bounds)
        }
        stopped = "Attempts at which every possible reclaim exceeded maxEvictedOverNeeded."
        return (
            PluginMetric("quota_reclaims", f"{TEXT}.", reclaims, ("up_to",), is_counter=True),
            PluginMetric("quota_reclaims_stopped", stopped, {(): float(self._stopped)}, is_counter=True),
        )
