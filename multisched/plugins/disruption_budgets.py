"""Which pods' removal would violate a PodDisruptionBudget, for many nodes at once.

On each node, from the most important victim down, a budget is used up pod by pod. A pod that a budget already counts as
disrupted uses none of it.
Source: kube-scheduler 1.36, plugins/defaultpreemption, filterPodsWithPDBViolation.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from multisched.framework.node_view import Bools
from multisched.framework.objects_view import ObjectsView
from multisched.framework.preemption import LabelSet, PlacedPods
from multisched.model.cluster_objects import PodDisruptionBudget
from multisched.model.object_kinds import ObjectKind

KNOWN_MAX = 4_096
"""Budgets whose matches are remembered."""


class DisruptionBudgets:
    """The cluster's budgets. Keeps, for each, which label sets it selects: most pods share theirs with others."""

    def __init__(self, objects: ObjectsView) -> None:
        self._objects = objects
        self._known: dict[tuple[str, str], tuple[PodDisruptionBudget, Sequence[LabelSet], Bools]] = {}

    @property
    def version(self) -> int:
        """Raised at each change of any budget."""
        return self._objects.version(ObjectKind.POD_DISRUPTION_BUDGET)

    def violating(self, pods: PlacedPods, victims: Bools) -> Bools:
        """bool[k, rows]: those of the victims whose removal, after that of the more important ones, breaks a budget."""
        violating = np.zeros_like(victims)
        budgets: Collection[object] = self._objects.all(ObjectKind.POD_DISRUPTION_BUDGET)
        for budget in budgets:
            assert isinstance(budget, PodDisruptionBudget)
            selected = self._selected(budget, pods.label_sets)
            if not selected.any():
                continue
            counted = victims & selected[pods.label_set]
            if budget.disrupted_pods:
                self._leave_out(counted, pods, budget.disrupted_pods)
            violating |= counted & (counted.cumsum(axis=0) > budget.disruptions_allowed)
        return violating

    def _selected(self, budget: PodDisruptionBudget, label_sets: Sequence[LabelSet]) -> Bools:
        """bool[label sets]. A budget without a selector, or with an empty one, selects nobody, and nor do pods have to
        without labels."""
        key = (budget.namespace, budget.name)
        known = self._known.get(key)
        is_same = known is not None and known[0].selector == budget.selector and known[1] is label_sets
        before = known[2] if known is not None and is_same else np.zeros(0, np.bool_)
        if len(before) < len(label_sets):
            more = [_is_selected(budget, one) for one in label_sets[len(before) :]]
            before = np.concatenate((before, np.array(more, np.bool_)))
        if len(self._known) >= KNOWN_MAX and key not in self._known:
            self._known.clear()
        self._known[key] = (budget, label_sets, before)
        return before

    @staticmethod
    def _leave_out(counted: Bools, pods: PlacedPods, names: frozenset[str]) -> None:
        for k, i in np.argwhere(counted).tolist():
            if pods.pod(k, i).name in names:
                counted[k, i] = False


def _is_selected(budget: PodDisruptionBudget, label_set: LabelSet) -> bool:
    selector = budget.selector
    if selector is None or not selector.requirements or not label_set.labels:
        return False
    return label_set.namespace == budget.namespace and selector.matches(label_set.labels)
