"""Evictions that would violate a PodDisruptionBudget, for many nodes at once.

On each node, each victim takes one disruption from each budget that selects it, the most important victim first. A pod
that the budget's status already counts as disrupted takes none. Pods that this process has already chosen as victims
count as disrupted, even if the status does not show them yet.
Source: kube-scheduler 1.36, plugins/defaultpreemption, filterPodsWithPDBViolation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import Bools, Int64, Rows
from multisched.framework.objects_view import ObjectsView
from multisched.framework.preemption import LabelSet, NoVictims, PlacedPods, Victims
from multisched.model.cluster_objects import PodDisruptionBudget
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.model.selectors import LabelSelector, Operator

KNOWN_MAX = 4_096
"""Budgets whose matches are cached, or twice the number of budgets if that is more."""
LABEL_SETS_AT_ONCE = 2_048
"""Label sets that are compared in one part: about 5 ms."""
PER_BUDGET = 8
"""Label sets that take as long to compare as the rest of the work for one budget."""

MANY = 256
"""Label sets, or pods, of one budget from which on they are compared in one pass over all pods."""


class DisruptionBudgets:
    """The cluster's budgets. Caches which label sets each budget selects, since most pods share their label set with others."""

    def __init__(self, objects: ObjectsView, victims: Victims | None = None) -> None:
        """`victims`: the victims of this process; None if it evicts no pods."""
        self._objects = objects
        self._victims = NoVictims() if victims is None else victims
        self._used_mark: Hashable = None
        self._used: Mapping[str, frozenset[str]] = {}
        self._matches = _Matches()

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
        """Returns bool[k, rows]: victims whose eviction, after that of the more important ones, violates a budget. May pause."""
        violating = np.zeros_like(victims)
        budgets: Collection[object] = self._objects.all(ObjectKind.POD_DISRUPTION_BUDGET)
        if not budgets:
            return violating
        self._matches.renew(pods, len(budgets))
        used, limits = self._used_by_victims(), list[_Limit]()
        for budget in budgets:
            assert isinstance(budget, PodDisruptionBudget)
            selected = self._matches.of(budget, pods)
            if len(selected):
                ours = used.get(budget.key, frozenset())
                allowed = max(0, budget.disruptions_allowed - len(ours))
                limits.append(_Limit(allowed, selected, budget.disrupted_pods | ours))
        if limits:
            pods.pause()
            _PlacedVictims(pods, victims, limits).mark_beyond(violating)
        return violating


class _Limit(NamedTuple):
    """The evictions that one budget allows on any row."""

    allowed: int
    """Number of pods that may be evicted."""
    label_sets: Int64
    """Numbers of the label sets that it selects, ascending; at least one."""
    counted: frozenset[str]
    """Names of pods that take no disruption from it, as they have taken one."""


class _Selected(msgspec.Struct):
    """The label sets that one budget selects, as far as they were compared."""

    selector: LabelSelector | None
    compared: int = 0
    """Number of label sets that were compared, of those that the budget may select."""
    complete_at: int = -1
    """Number of all label sets when all of those were compared."""
    numbers: Int64 = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))


class _ByValue(msgspec.Struct):
    """The label sets of one namespace by their value of one label."""

    known: int = 0
    """Number of label sets of the namespace that are in it."""
    numbers: dict[str, list[int]] = msgspec.field(default_factory=dict)


class _Matches:
    """Which label sets each budget selects; kept as long as their numbers are."""

    def __init__(self) -> None:
        self._label_sets: Sequence[LabelSet] = ()
        self._known = 0
        """Number of label sets that are in `_by_namespace`."""
        self._by_namespace: dict[str, list[int]] = {}
        self._by_value: dict[tuple[str, str], _ByValue] = {}
        """(namespace, label key) -> label sets, for keys of which some budget names the value."""
        self._selected: dict[tuple[str, str], _Selected] = {}
        self._since_pause = LABEL_SETS_AT_ONCE
        """Label sets that were compared since the latest call of `pause`."""

    def renew(self, pods: PlacedPods, budget_count: int) -> None:
        """Sorts new label sets by namespace. May pause."""
        label_sets = pods.label_sets
        if label_sets is not self._label_sets:
            self._label_sets, self._known, self._by_namespace = label_sets, 0, {}
            self._by_value.clear()
            self._selected.clear()
        if len(self._selected) > max(KNOWN_MAX, 2 * budget_count):
            self._selected.clear()
            self._by_value.clear()
        while self._known < len(label_sets):
            self._note(LABEL_SETS_AT_ONCE, pods)
            part = label_sets[self._known : self._known + LABEL_SETS_AT_ONCE]
            for number, one in enumerate(part, self._known):
                self._by_namespace.setdefault(one.namespace, []).append(number)
            self._known += len(part)

    def of(self, budget: PodDisruptionBudget, pods: PlacedPods) -> Int64:
        """Returns the numbers of label sets that the budget selects, ascending. May pause.

        A budget without a selector or with an empty one selects no pod, and no budget selects a pod without labels.
        """
        key, total = (budget.namespace, budget.name), len(self._label_sets)
        found = self._selected.get(key)
        if found is None or found.selector != budget.selector:
            found = self._selected[key] = _Selected(budget.selector)
        if found.complete_at == total:
            return found.numbers
        here = self._may_select(budget, pods)
        while found.compared < len(here):
            part = here[found.compared : found.compared + LABEL_SETS_AT_ONCE]
            self._note(len(part) + PER_BUDGET, pods)
            more = [number for number in part if _is_selected(budget, self._label_sets[number])]
            if more:
                found.numbers = np.concatenate((found.numbers, np.array(more, np.int64)))
            found.compared += len(part)
        found.complete_at = total
        return found.numbers

    def _may_select(self, budget: PodDisruptionBudget, pods: PlacedPods) -> Sequence[int]:
        """Returns the label sets of the budget's namespace; if it names one value of a label, those with that value. May pause."""
        here = self._by_namespace.get(budget.namespace, ())
        named = () if budget.selector is None else budget.selector.requirements
        one = next((one for one in named if one.operator is Operator.IN and len(one.values) == 1), None)
        if one is None or not here:
            return here
        by_value = self._by_value.setdefault((budget.namespace, one.key), _ByValue())
        while by_value.known < len(here):
            part = here[by_value.known : by_value.known + LABEL_SETS_AT_ONCE]
            self._note(len(part), pods)
            for number in part:
                value = self._label_sets[number].labels.get(one.key)
                if value is not None:
                    by_value.numbers.setdefault(value, []).append(number)
            by_value.known += len(part)
        return by_value.numbers.get(one.values[0], ())

    def _note(self, count: int, pods: PlacedPods) -> None:
        """Counts label sets that are compared next; pauses before them if many were compared before."""
        self._since_pause += count
        if self._since_pause > LABEL_SETS_AT_ONCE:
            self._since_pause = count
            pods.pause()


class _PlacedVictims:
    """Victims on some rows, found by their label sets."""

    def __init__(self, pods: PlacedPods, victims: Bools, limits: Sequence[_Limit]) -> None:
        self._pods = pods
        self._victims = victims
        self._limits = limits

    def mark_beyond(self, violating: Bools) -> None:
        """Sets `violating` for victims beyond a limit: on each row, all but the most important ones that it allows.

        Victims of limits that select few are found by their label sets, for all these limits at once; for each of the other limits
        all rows are read.
        """
        few = [one for one in self._limits if len(one.label_sets) <= MANY]
        for one in (*(one for one in self._limits if len(one.label_sets) > MANY), *self._mark_few(violating, few)):
            self._mark_many(violating, one)

    def _mark_many(self, violating: Bools, limit: _Limit) -> None:
        is_selected = np.zeros(len(self._pods.label_sets), np.bool_)
        is_selected[limit.label_sets] = True
        chosen = self._victims & is_selected.take(self._pods.label_set, mode="clip")  # other entries have any number
        for name in limit.counted:
            for k, row in self._named.get(name, ()):
                chosen[k, row] = False
        violating |= chosen & (chosen.cumsum(axis=0, dtype=np.int32) > limit.allowed) if limit.allowed else chosen

    def _mark_few(self, violating: Bools, limits: Sequence[_Limit]) -> Sequence[_Limit]:
        """Returns the limits that select more than MANY victims; they are left out."""
        if not limits:
            return ()
        ks, rows, order, numbers = self._sorted
        label_sets = np.concatenate([one.label_sets for one in limits])
        which = np.repeat(np.arange(len(limits)), [len(one.label_sets) for one in limits])
        starts = numbers.searchsorted(label_sets, "left")
        counts = numbers.searchsorted(label_sets, "right") - starts
        totals = np.bincount(which, counts, len(limits))
        allowed = np.array([one.allowed for one in limits])
        counts[((totals > MANY) | (totals <= allowed))[which]] = 0
        which = np.repeat(which, counts)
        victim = order[np.arange(len(which)) + np.repeat(starts - counts.cumsum() + counts, counts)]
        by_row = np.lexsort((victim, which))
        which, victim = which[by_row], victim[by_row]
        has_counted = np.array([bool(one.counted) for one in limits])[which]
        if has_counted.any():
            is_left = np.ones(len(which), np.bool_)
            for at in np.flatnonzero(has_counted).tolist():
                name = self._pods.pod(int(ks[victim[at]]), int(rows[victim[at]])).name
                is_left[at] = name not in limits[which[at]].counted
            which, victim = which[is_left], victim[is_left]
        beyond = victim[_numbers_within(which, rows[victim]) >= allowed[which]]
        violating[ks[beyond], rows[beyond]] = True
        return [limits[at] for at in np.flatnonzero(totals > MANY).tolist()]

    @cached_property
    def _sorted(self) -> tuple[Rows, Rows, Rows, Int64]:
        """k and row of each victim by row, the most important first; their order by label set; and the label sets in this order."""
        rows, ks = np.nonzero(self._victims.T)
        label_set = self._pods.label_set[ks, rows].astype(np.int64)
        order = label_set.argsort(kind="stable")
        return ks, rows, order, label_set[order]

    @cached_property
    def _named(self) -> Mapping[str, Sequence[tuple[int, int]]]:
        """Name -> k and row of the victims with that name, for the names that some budget does not count."""
        names = frozenset[str]().union(*(one.counted for one in self._limits))
        found: dict[str, list[tuple[int, int]]] = {}
        for i in np.flatnonzero(self._victims.any(axis=0)).tolist():
            for k in np.flatnonzero(self._victims[:, i]).tolist():
                name = self._pods.pod(k, i).name
                if name in names:
                    found.setdefault(name, []).append((k, i))
        return found


def _numbers_within(*keys: NDArray[np.intp]) -> NDArray[np.intp]:
    """Returns, for entries that are sorted by these keys, how many earlier entries have the same keys."""
    at = np.arange(len(keys[0]))
    begins = np.ones(len(at), np.bool_)
    begins[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return at - np.maximum.accumulate(np.where(begins, at, 0))


class BudgetsInUse:
    """The budgets during one search for victims, in which pods are evicted one after another from any node."""

    def __init__(self, budgets: DisruptionBudgets) -> None:
        self._budgets = budgets
        self._removed: Counter[str] = Counter()
        """Key of a budget -> number of its pods that are evicted in this search."""

    def copy(self) -> BudgetsInUse:
        """Returns an independent copy."""
        other = BudgetsInUse(self._budgets)
        other._removed = self._removed.copy()
        return other

    def breaks(self, pod: Pod) -> bool:
        """Reports whether a budget would be violated if the pod were evicted, too."""
        return any(self._removed[one.key] >= self._budgets.allowed(one) for one in self._budgets.of(pod))

    def take(self, pod: Pod) -> bool:
        """Counts the pod as evicted. Reports whether that violates a budget."""
        is_broken = self.breaks(pod)
        self._removed.update(one.key for one in self._budgets.of(pod))
        return is_broken


def _is_selected(budget: PodDisruptionBudget, one: LabelSet | Pod) -> bool:
    selector = budget.selector
    if one.namespace != budget.namespace or selector is None or not selector.requirements or not one.labels:
        return False
    return selector.matches(one.labels)
