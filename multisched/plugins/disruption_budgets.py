"""Evictions that would violate a PodDisruptionBudget, for many nodes at once.

On each node, each victim takes one disruption from each budget that selects it, the most important victim first. A pod
that the budget's status already counts as disrupted takes none. Pods that this process has already chosen as victims
count as disrupted, even if the status does not show them yet.
Source: kube-scheduler 1.36, plugins/defaultpreemption, filterPodsWithPDBViolation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence

import numpy as np

from multisched.framework.node_view import Bools
from multisched.framework.objects_view import ObjectsView
from multisched.framework.preemption import LabelSet, NoVictims, PlacedPods, Victims
from multisched.model.cluster_objects import PodDisruptionBudget
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod

KNOWN_MAX = 4_096
"""Maximum number of budgets whose matches are cached."""


class DisruptionBudgets:
    """The cluster's budgets. Caches which label sets each budget selects, since most pods share their label set with others."""

    def __init__(self, objects: ObjectsView, victims: Victims | None = None) -> None:
        """`victims`: the victims of this process; None if it evicts no pods."""
        self._objects = objects
        self._victims = NoVictims() if victims is None else victims
        self._used_mark: Hashable = None
        self._used: Mapping[str, frozenset[str]] = {}
        self._known: dict[tuple[str, str], tuple[PodDisruptionBudget, Sequence[LabelSet], Bools]] = {}

    @property
    def version(self) -> Hashable:
        """Changes whenever a budget, or the disruptions that victims take from it, change."""
        return self._objects.version(ObjectKind.POD_DISRUPTION_BUDGET), frozenset(self._used_by_victims().items())

    def of(self, pod: Pod) -> list[PodDisruptionBudget]:
        """Returns the budgets from which an eviction of the pod would take a disruption."""
        return [] if pod.is_victim else self._selecting(pod)

    def allowed(self, budget: PodDisruptionBudget) -> int:
        """Returns how many more pods may be evicted without violating the budget."""
        return budget.disruptions_allowed - len(self._used_by_victims().get(budget.key, ()))

    def _selecting(self, pod: Pod) -> list[PodDisruptionBudget]:
        found = self._objects.disruption_budgets(pod.namespace)
        return [one for one in found if pod.name not in one.disrupted_pods and _is_selected(one, pod)]

    def _used_by_victims(self) -> Mapping[str, frozenset[str]]:
        """Returns the key of a budget -> names of its victims that its status does not count yet."""
        mark = self._objects.version(ObjectKind.POD_DISRUPTION_BUDGET), self._victims.version
        if mark != self._used_mark:
            names: dict[str, set[str]] = {}
            for victim in self._victims.pods():
                for budget in self._selecting(victim):
                    names.setdefault(budget.key, set()).add(victim.name)
            self._used_mark, self._used = mark, {key: frozenset(some) for key, some in names.items()}
        return self._used

    def violating(self, pods: PlacedPods, victims: Bools) -> Bools:
        """Returns bool[k, rows]: victims whose eviction, after that of the more important ones, violates a budget."""
        violating = np.zeros_like(victims)
        budgets: Collection[object] = self._objects.all(ObjectKind.POD_DISRUPTION_BUDGET)
        for budget in budgets:
            assert isinstance(budget, PodDisruptionBudget)
            selected = self._selected(budget, pods.label_sets)
            if not selected.any():
                continue
            counted = victims & selected[pods.label_set]
            counted_already = budget.disrupted_pods | self._used_by_victims().get(budget.key, frozenset())
            if counted_already:
                self._leave_out(counted, pods, counted_already)
            violating |= counted & (counted.cumsum(axis=0) > self.allowed(budget))
        return violating

    def _selected(self, budget: PodDisruptionBudget, label_sets: Sequence[LabelSet]) -> Bools:
        """Returns bool[label sets]: those that the budget selects.

        A budget without a selector or with an empty one selects no pod, and no budget selects a pod without labels.
        """
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


class BudgetsInUse:
    """The budgets during one search for victims, in which pods are evicted one after another from any node."""

    def __init__(self, budgets: DisruptionBudgets) -> None:
        self._budgets = budgets
        self._gone: Counter[str] = Counter()
        """Key of a budget -> number of pods evicted from it in this search."""

    def copy(self) -> BudgetsInUse:
        """Returns an independent copy."""
        other = BudgetsInUse(self._budgets)
        other._gone = self._gone.copy()
        return other

    def breaks(self, pod: Pod) -> bool:
        """Reports whether a budget would be violated if the pod were evicted, too."""
        return any(self._gone[one.key] >= self._budgets.allowed(one) for one in self._budgets.of(pod))

    def take(self, pod: Pod) -> bool:
        """Counts the pod as evicted. Reports whether that violates a budget."""
        is_broken = self.breaks(pod)
        self._gone.update(one.key for one in self._budgets.of(pod))
        return is_broken


def _is_selected(budget: PodDisruptionBudget, one: LabelSet | Pod) -> bool:
    selector = budget.selector
    if selector is None or not selector.requirements or not one.labels:
        return False
    return one.namespace == budget.namespace and selector.matches(one.labels)
