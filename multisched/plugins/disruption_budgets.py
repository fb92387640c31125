"""Which pods' removal would violate a PodDisruptionBudget, for many nodes at once.

On each node, from the most important victim down, a budget is used up pod by pod. A pod that a budget already counts as
disrupted uses none of it. Pods that this process has decided to remove have used it up, although no status says so yet.
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
"""Budgets whose matches are remembered."""


class DisruptionBudgets:
    """The cluster's budgets. Keeps, for each, which label sets it selects: most pods share theirs with others."""

    def __init__(self, objects: ObjectsView, victims: Victims | None = None) -> None:
        """`victims`: None where nothing is removed."""
        self._objects = objects
        self._victims = NoVictims() if victims is None else victims
        self._used_mark: Hashable = None
        self._used: Mapping[str, frozenset[str]] = {}
        self._known: dict[tuple[str, str], tuple[PodDisruptionBudget, Sequence[LabelSet], Bools]] = {}

    @property
    def version(self) -> Hashable:
        """Another one after each change of any budget, or of what victims use of one."""
        return self._objects.version(ObjectKind.POD_DISRUPTION_BUDGET), frozenset(self._used_by_victims().items())

    def of(self, pod: Pod) -> list[PodDisruptionBudget]:
        """The budgets that the pod would use up some of."""
        return [] if pod.is_victim else self._selecting(pod)

    def allowed(self, budget: PodDisruptionBudget) -> int:
        """How many more pods may go without breaking the budget."""
        return budget.disruptions_allowed - len(self._used_by_victims().get(budget.key, ()))

    def _selecting(self, pod: Pod) -> list[PodDisruptionBudget]:
        found = self._objects.disruption_budgets(pod.namespace)
        return [one for one in found if pod.name not in one.disrupted_pods and _is_selected(one, pod)]

    def _used_by_victims(self) -> Mapping[str, frozenset[str]]:
        """Key of a budget -> names of the victims that use it up, and which its status does not count yet."""
        mark = self._objects.version(ObjectKind.POD_DISRUPTION_BUDGET), self._victims.version
        if mark != self._used_mark:
            names: dict[str, set[str]] = {}
            for victim in self._victims.pods():
                for budget in self._selecting(victim):
                    names.setdefault(budget.key, set()).add(victim.name)
            self._used_mark, self._used = mark, {key: frozenset(some) for key, some in names.items()}
        return self._used

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
            counted_already = budget.disrupted_pods | self._used_by_victims().get(budget.key, frozenset())
            if counted_already:
                self._leave_out(counted, pods, counted_already)
            violating |= counted & (counted.cumsum(axis=0) > self.allowed(budget))
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


class BudgetsInUse:
    """The budgets while pods go one after another, wherever they stand. Of one search for victims."""

    def __init__(self, budgets: DisruptionBudgets) -> None:
        self._budgets = budgets
        self._gone: Counter[str] = Counter()
        """Key of a budget -> pods that it has paid for."""

    def copy(self) -> BudgetsInUse:
        """One that goes on alone."""
        other = BudgetsInUse(self._budgets)
        other._gone = self._gone.copy()
        return other

    def breaks(self, pod: Pod) -> bool:
        """Whether a budget would be broken if the pod went, too."""
        return any(self._gone[one.key] >= self._budgets.allowed(one) for one in self._budgets.of(pod))

    def take(self, pod: Pod) -> bool:
        """The pod goes; whether that breaks a budget."""
        is_broken = self.breaks(pod)
        self._gone.update(one.key for one in self._budgets.of(pod))
        return is_broken


def _is_selected(budget: PodDisruptionBudget, one: LabelSet | Pod) -> bool:
    selector = budget.selector
    if selector is None or not selector.requirements or not one.labels:
        return False
    return one.namespace == budget.namespace and selector.matches(one.labels)
