"""How much more a reclaim evicts than is needed: what its victims hold of the scarcest resource, by what is missing of it.

Missing is what nodes and quotas have too little of for the claim, as things stand; the larger of both. Of the resources that
are missing the scarcest one is that of which most of what the claim asks for is.
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
"""Of the metric; more than the last is +Inf."""
TEXT: Final = (
    "Reclaims by how much more went than was needed: of the resource of which most of the request was missing, what the"
    " victims held by what was missing; at most `up_to`"
)


class Excess(NamedTuple):
    """Of one reclaim."""

    resource: str
    """The scarcest; empty where nothing is missing but what filters ask for besides room."""
    ratio: float


def excess(asked: Items, missing: Mapping[str, int], victims: Iterable[Mapping[str, int]]) -> Excess:
    """`victims`: what each holds, without those that are leaving already. `missing`: resource -> amount."""
    shares = [(missing[name] / amount, name) for name, amount in asked if amount and missing.get(name, 0) > 0]
    if not shares:
        return Excess("", 0.0)
    _, scarcest = max(shares, key=lambda one: one[0])
    evicted = sum(held.get(scarcest, 0) for held in victims)
    return Excess(scarcest, evicted / missing[scarcest])


def missing_on_nodes(nodes: NodeView, nominations: Sequence[Nomination]) -> tuple[dict[str, int], int]:
    """Resource -> what the nominated nodes have too little of, all together; and how many nodes have too little of something.

    In the units of quotas, and by resource requests alone: nodes show no other demand. What leaving pods hold counts as free.
    """
    found: Counter[str] = Counter()
    asked: dict[str, Counter[str]] = {}
    for pod, node in nominations:
        asked.setdefault(node, Counter()).update(_requests(pod))
    short_nodes = 0
    for node, amounts in asked.items():
        row = nodes.row_of(node)
        assert row is not None, "a node of the table is nominated"
        going = [_requests(pod) for pod in nodes.pods_on(row) if pod.is_leaving]
        is_short = False
        for resource, amount in amounts.items():
            idle = int(nodes.allocatable(resource)[row]) - int(nodes.requested(resource)[row])
            short = amount - idle - sum(held.get(resource, 0) for held in going)
            if short > 0:
                found[resource] += quota_amount(resource, short)
                is_short = True
        short_nodes += is_short
    return dict(found), short_nodes


def _requests(pod: Pod) -> Mapping[str, int]:
    return {**pod.requests, PODS: 1}


def larger(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Resource -> the larger amount of both."""
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in (*one, *other)}


class Cap:
    """Of one attempt."""

    def __init__(self, most: float) -> None:
        self._most = most
        self.over: Excess | None = None
        """The least that was over it."""

    def allows(self, found: Excess, units: int, places: int = 1) -> bool:
        """One unit in each place may always go: nothing smaller makes room there, and a min is a promise."""
        if units <= places or found.ratio <= self._most:
            return True
        if self.over is None or found.ratio < self.over.ratio:
            self.over = found
        return False


class ReclaimCounts:
    """What became of reclaims, for metrics."""

    def __init__(self) -> None:
        self._by_bound = [0] * (len(BOUNDS) + 1)
        self._stopped = 0

    def decided(self, found: Excess) -> None:
        self._by_bound[bisect_left(BOUNDS, found.ratio)] += 1

    def stopped(self) -> None:
        """What would have gone was too much."""
        self._stopped += 1

    def metrics(self) -> Sequence[PluginMetric]:
        bounds, sums = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"], self._by_bound
        reclaims: dict[tuple[str, ...], float] = {
            (bound,): float(sum(sums[: at + 1])) for at, bound in enumerate(bounds)
        }
        stopped = "Attempts at which all that could go was over maxEvictedOverNeeded."
        return (
            PluginMetric("quota_reclaims", f"{TEXT}.", reclaims, ("up_to",), is_counter=True),
            PluginMetric("quota_reclaims_stopped", stopped, {(): float(self._stopped)}, is_counter=True),
        )
