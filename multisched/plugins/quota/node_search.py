"""Search for a node on which a pod fits after borrowing pods are evicted: first all nodes vectorised, then one by one.

Chooses the node with the lowest cost. Evicts whole gangs only if no node suffices without.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from multisched.framework.node_view import Bools, Float64, Int64, NodeView, Rows
from multisched.framework.preemption import ABOVE_EVERY_PRIORITY, Costs, DryRun, LabelSet, Nomination, PlacedPods
from multisched.model.objects import CPU, PODS, Pod
from multisched.plugins.default_preemption import LowerPriority
from multisched.plugins.quota.evicted_over_needed import EvictionLimit, Excess, excess, larger, missing_on_nodes
from multisched.plugins.quota.quota_ledger import QuotaLedger
from multisched.plugins.quota.reclaim import Reclaim
from multisched.plugins.quota.reclaim_order import Key, ReclaimOrder

NOT_EVICTABLE: Final = np.inf
ROWS_COMPARED_MAX: Final = 8
"""Number of suitable nodes from which the one with the lowest cost is chosen; likely nodes are examined first."""
LABEL_SETS_AT_ONCE: Final = 8_192
"""Label sets whose leaves are looked up in one part."""
PODS_LOOKED_AT_MAX: Final = 20_000
"""Maximum number of pods on the nodes that one attempt examines."""


class ReclaimPlan(NamedTuple):
    """A node and the evictions that make a pod fit on it."""

    row: int
    victims: Sequence[Pod]
    """Empty if the required pods are terminating already, or if none has to be evicted."""
    excess: Excess


class Borrowers(LowerPriority):
    """`DisplacementRule`: borrowing pods of any priority may be evicted, and pods of lower priority in the claim's own leaf.

    Judges each pod separately, not which pods may be evicted together: its result is a preselection of nodes.
    """

    def __init__(self, reclaim: ReclaimOrder, leaves: LabelSetLeaves) -> None:
        claim = reclaim.claim
        super().__init__(claim.priority, reclaim.budgets)
        self._priority = claim.priority
        self._ledger = reclaim.ledger
        self._own = claim.levels[0].at
        self._leaves = leaves
        self.below = ABOVE_EVERY_PRIORITY
        lenders = tuple(reclaim.reclaimable_leaves.items())
        self._urgency: Float64 = np.full(len(self._ledger.levels) + 1, NOT_EVICTABLE)
        """Position of a leaf -> its urgency; the last entry is for pods without a leaf."""
        for leaf, over_min in lenders:
            self._urgency[leaf] = 0.0 if leaf == self._own else -max(over_min, 1e-12)
        self.mark = (reclaim.budgets.version, self._ledger.generation, self._own, self._priority, lenders)

    def displaceable(self, pods: PlacedPods) -> Bools:
        urgency = self._urgencies(pods)
        if not len(urgency):
            return np.zeros(pods.priority.shape, np.bool_)
        of_pods = urgency[pods.label_set]
        is_less: Bools = (of_pods < 0) | (pods.priority < self._priority)
        return is_less & (of_pods < NOT_EVICTABLE) & (pods.priority < ABOVE_EVERY_PRIORITY)

    def costs(self, pods: PlacedPods, victims: Bools, first: Bools, whole_gangs: Int64) -> Costs:
        """Returns the costs: violated budgets, then the victim leaf that is least over its min, then the costs by priority."""
        by_priority = super().costs(pods, victims, first, whole_gangs)
        last = np.max(self._urgencies(pods)[pods.label_set], axis=0, where=victims, initial=-np.inf)
        return np.concatenate((by_priority[:1], last[None], by_priority[1:]))

    def _urgencies(self, pods: PlacedPods) -> Float64:
        """Returns float64[label sets]: lower values are evicted first; 0 for the claim's own leaf; infinite if not evictable."""
        return self._urgency[self._leaves.of(pods)]


class LabelSetLeaves:
    """The leaf of each label set; kept as long as the numbers of label sets and the tree are."""

    def __init__(self, ledger: QuotaLedger) -> None:
        self._ledger = ledger
        self._generation = -1
        self._label_sets: Sequence[LabelSet] = ()
        self._leaves: Int64 = np.zeros(0, np.int64)

    def of(self, pods: PlacedPods) -> Int64:
        """Returns int64[label sets]: the position of the leaf; -1 for none. May pause."""
        label_sets, ledger = pods.label_sets, self._ledger
        if label_sets is not self._label_sets or self._generation != ledger.generation:
            self._label_sets, self._generation, self._leaves = label_sets, ledger.generation, self._leaves[:0]
        while (count := len(self._leaves)) < len(label_sets):
            pods.pause()
            part = map(ledger.levels_of, label_sets[count : count + LABEL_SETS_AT_ONCE])
            more = [levels[0].at if levels else -1 for levels in part]
            self._leaves = np.concatenate((self._leaves, np.array(more, np.int64)))
        return self._leaves


class NodeFit:
    """`reclaim_search.NodeRoom` for one row."""

    def __init__(self, nodes: NodeView, row: int, pod: Pod, dry_run: DryRun) -> None:
        asked = {**{resource: amount for resource, amount in pod.requests.items() if amount}, PODS: 1}
        self._short = {
            resource: amount - int(nodes.allocatable(resource)[row]) + int(nodes.requested(resource)[row])
            for resource, amount in asked.items()
        }
        """Resource -> amount that must be freed at least; 0 or less if there is enough."""
        self._row = row
        self._dry_run = dry_run

    def lacking(self, victims: Sequence[Pod]) -> frozenset[str]:
        return frozenset(
            resource
            for resource, short in self._short.items()
            if short > 0 and sum(1 if resource == PODS else pod.requests.get(resource, 0) for pod in victims) < short
        )

    def fits(self, victims: Sequence[Pod]) -> bool:
        return self._dry_run.fits_without(self._row, victims)


class NodeSearch:
    """The search for one pod, with one dry run."""

    def __init__(
        self,
        nodes: NodeView,
        reclaim: Reclaim,
        dry_run: DryRun,
        terminating: Sequence[str],
        rule: Borrowers,
        limit: EvictionLimit,
        compared: int = ROWS_COMPARED_MAX,
    ) -> None:
        """`terminating`: nodes on which pods are terminating. `limit`: of evictions. `compared`: number of suitable nodes to compare."""
        self._nodes = nodes
        self._reclaim = reclaim
        self._dry_run = dry_run
        self._pod = reclaim.claim.pod
        self._own = nodes.row_of(self._pod.nominated_node)
        self._rule = rule
        self._limit = limit
        self._compared = compared
        rows = [row for row in map(nodes.row_of, terminating) if row is not None]
        self._likely = [row for row in (self._own, *rows) if row is not None]

    def anywhere(self, rows: Rows) -> ReclaimPlan | None:
        """Returns the plan that frees quota only; the pod fits on any of these rows. None if there is none."""
        if self._own is not None and self._own in rows:
            row = self._own
        else:
            idle = self._nodes.allocatable(CPU)[rows] - self._nodes.requested(CPU)[rows]
            row = int(rows[int(idle.argmax())])
        victims = self._reclaim.anywhere(partial(self._accepts, row))
        return None if victims is None else self._plan(row, victims)

    def _plan(self, row: int, victims: Sequence[Pod]) -> ReclaimPlan:
        return ReclaimPlan(row, victims, self._excess(row, victims))

    def _accepts(self, row: int, victims: Sequence[Pod]) -> bool:
        return self._limit.allows(self._excess(row, victims), len(self._reclaim.together(victims)))

    def _excess(self, row: int, victims: Sequence[Pod]) -> Excess:
        node = self._nodes.node(row).name
        short, _ = missing_on_nodes(self._nodes, (Nomination(self._pod, node),))
        amounts = self._reclaim.ledger.amounts
        evicted = (amounts.of(pod) for pod in victims if not pod.is_leaving)
        return excess(self._reclaim.claim.items, larger(short, self._reclaim.missing()), evicted)

    def on_a_node(self) -> ReclaimPlan | None:
        """Returns the cheapest node, with the victims on it and those on other nodes that free quota. None if there is none."""
        reclaim = self._reclaim
        if not reclaim.reclaimable_leaves and not reclaim.ledger.terminating:
            return None
        found = self._dry_run.displace_sparing(self._rule)
        by_cost: list[int] = found.rows[np.lexsort(found.costs[::-1])].tolist() if len(found.rows) else []
        plan = self._best(by_cost, whole=False)
        if plan is None and reclaim.gangs.has_gangs:
            rows = self._dry_run.rows_of_gangs(self._rule)
            # To the dry run, a gang whose surplus other members of the claim evict can still spare members.
            plan = self._best([*rows, *by_cost] if reclaim.gangs.has_evicted else rows, whole=True)
        return plan

    def _best(self, by_cost: Sequence[int], *, whole: bool) -> ReclaimPlan | None:
        """Returns the cheapest plan. The pod's nominated node is preferred: its victims may be terminating already."""
        best: tuple[Key, int, list[Pod]] | None = None
        compared = looked_at = 0
        for row in self._likely_first(by_cost):
            placed_pods = self._nodes.pods_on(row)
            looked_at += len(placed_pods)
            room = NodeFit(self._nodes, row, self._pod, self._dry_run)
            victims = self._reclaim.on_node(placed_pods, room, partial(self._accepts, row), whole=whole)
            if victims is not None:
                cost = (row != self._own, *self._reclaim.cost(victims))
                best = (cost, row, victims) if best is None or cost < best[0] else best
                compared += 1
            if compared >= self._compared or (row == self._own and best) or looked_at > PODS_LOOKED_AT_MAX:
                break
        return None if best is None else self._plan(*best[1:])

    def _likely_first(self, by_cost: Sequence[int]) -> Iterable[int]:
        """Returns each row once: the nominated node's, rows with terminating pods, then the others by estimated cost."""
        likely, candidates = np.array(self._likely, np.intp), self._dry_run.candidates()
        return dict.fromkeys((*likely[np.isin(likely, candidates)].tolist(), *by_cost))
