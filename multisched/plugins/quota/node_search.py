"""Nodes that could take a pod if pods gave back what they borrow: many looked at at once, and one at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multisched.framework.node_view import Bools, Float64, Int64, NodeView
from multisched.framework.preemption import NOBODY, Costs, DryRun, LabelSet, PlacedPods
from multisched.model.objects import PODS, Pod
from multisched.plugins.default_preemption import LowerPriority
from multisched.plugins.quota.reclaim_order import ReclaimOrder

NEVER_GOES = np.inf


class Borrowers(LowerPriority):
    """`DisplacementRule`: who borrows may go whatever its priority; of the pod's own leaf, who is less important.

    What all of a node's pods together may give back is not known here: it finds nodes that are worth a closer look.
    """

    def __init__(self, reclaim: ReclaimOrder) -> None:
        claim = reclaim.claim
        super().__init__(claim.priority, reclaim.budgets)
        self._priority = claim.priority
        self._ledger = reclaim.ledger
        self._lenders = reclaim.lenders
        self._own = claim.levels[0].at
        self._urgency: Float64 = np.zeros(0)
        self.below = NOBODY
        lenders = tuple(reclaim.lenders.items())
        self.mark = (reclaim.budgets.version, self._ledger.generation, self._own, self._priority, lenders)

    def displaceable(self, pods: PlacedPods) -> Bools:
        urgency = self._urgencies(pods)
        if not len(urgency):
            return np.zeros(pods.priority.shape, np.bool_)
        of_pods = urgency[pods.label_set]
        is_less: Bools = (of_pods < 0) | (pods.priority < self._priority)
        return is_less & (of_pods < NEVER_GOES) & (pods.priority < NOBODY)

    def costs(self, pods: PlacedPods, victims: Bools, first: Bools, whole_gangs: Int64) -> Costs:
        """Broken budgets, then whose leaf is least over its min, then as by priority."""
        by_priority = super().costs(pods, victims, first, whole_gangs)
        last = np.max(self._urgencies(pods)[pods.label_set], axis=0, where=victims, initial=-np.inf)
        return np.concatenate((by_priority[:1], last[None], by_priority[1:]))

    def _urgencies(self, pods: PlacedPods) -> Float64:
        """float64[label sets]: the less, the sooner a pod goes; 0 in the claim's own leaf; infinite for who stays."""
        known = len(self._urgency)
        if known < len(pods.label_sets):
            more = np.array([self._urgency_of(one) for one in pods.label_sets[known:]])
            self._urgency = np.concatenate((self._urgency, more))
        return self._urgency

    def _urgency_of(self, one: LabelSet) -> float:
        levels = self._ledger.levels_of(one)
        leaf = levels[0].at if levels else -1
        if leaf not in self._lenders:
            return NEVER_GOES
        return 0.0 if leaf == self._own else -max(self._lenders[leaf], 1e-12)


class Room:
    """`reclaim_search.NodeRoom` of one row."""

    def __init__(self, nodes: NodeView, row: int, pod: Pod, dry_run: DryRun) -> None:
        asked = {**{resource: amount for resource, amount in pod.requests.items() if amount}, PODS: 1}
        self._short = {
            resource: amount - int(nodes.allocatable(resource)[row]) + int(nodes.requested(resource)[row])
            for resource, amount in asked.items()
        }
        """Resource -> how much of it has to be given back at least; no more than 0 where there is enough."""
        self._row = row
        self._dry_run = dry_run

    def lacking(self, gone: Sequence[Pod]) -> frozenset[str]:
        return frozenset(
            resource
            for resource, short in self._short.items()
            if short > 0 and sum(1 if resource == PODS else pod.requests.get(resource, 0) for pod in gone) < short
        )

    def fits(self, gone: Sequence[Pod]) -> bool:
        return self._dry_run.fits_without(self._row, gone)
