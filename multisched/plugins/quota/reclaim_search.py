"""One search of a reclaim: takes units one by one until they are enough, then reprieves those that are not needed.

A unit is a pod, or a gang that is evicted whole (`reclaim_units`). The claim is the request for which they are evicted (`removal.Claim`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations, islice
from typing import Final, Protocol

from multisched.model.objects import Pod
from multisched.plugins.disruption_budgets import BudgetsInUse
from multisched.plugins.quota.quota_ledger import Level
from multisched.plugins.quota.reclaim_order import ReclaimOrder
from multisched.plugins.quota.reclaim_units import Unit
from multisched.plugins.quota.removal import Removal

VICTIMS_MAX: Final = 1_000
"""Maximum number of victims of one reclaim."""
SUBSETS_MAX: Final = 64
"""Maximum number of subsets of a gang's members that are tried in place of the whole gang."""

Missing = Sequence[tuple[Level, str, int]]
"""See `Removal.missing`."""


class NodeRoom(Protocol):
    """A test of whether the claim's pod fits on a node once victims there are removed."""

    def lacking(self, victims: Sequence[Pod]) -> frozenset[str]:
        """Returns the resources of which the node still has too little."""
        ...

    def fits(self, victims: Sequence[Pod]) -> bool: ...


class Anywhere:
    """A `NodeRoom` for a pod that fits on some node without evictions."""

    def lacking(self, victims: Sequence[Pod]) -> frozenset[str]:
        return frozenset()

    def fits(self, victims: Sequence[Pod]) -> bool:
        return True


class ReclaimTarget:
    """The node for the claim's pod, and the units with pods on it. Shared by all searches for that node."""

    def __init__(self, order: ReclaimOrder, pods: Sequence[Pod], room: NodeRoom, *, whole: bool) -> None:
        """`pods`: the pods on the node. `whole`: see `ReclaimOrder`."""
        self.order = order
        self.room = room
        self.whole = whole
        self.units = list(order.units(pods, whole=whole))
        """The units of these pods that are evictable, each tested alone."""
        self.uids = frozenset(pod.uid for pod in pods)
        self.terminating = [pod for pod in pods if pod.is_leaving]


class Search:
    """One search on a target, with the victims taken so far."""

    def __init__(self, target: ReclaimTarget) -> None:
        self._target = target
        self._order = target.order
        self._room = target.room
        self._removal = target.order.base.copy()
        self._budgets = BudgetsInUse(target.order.budgets)
        self._units: list[Unit] = []
        """The victims that are not terminating."""
        self._taken: set[str] = set()
        self._here: list[Pod] = list(target.terminating)
        """All victims on the node."""
        self._alone: Counter[str] = Counter()
        """Gang -> number of members evicted individually."""

    def copy(self) -> Search:
        other = Search(self._target)
        other._removal, other._budgets = self._removal.copy(), self._budgets.copy()
        other._units, other._taken, other._here = list(self._units), set(self._taken), list(self._here)
        other._alone = self._alone.copy()
        return other

    def is_enough(self) -> bool:
        return not self._removal.missing() and self._fits()

    def _fits(self) -> bool:
        return not self._room.lacking(self._here) and self._room.fits(self._here)

    # -- taking ----------------------------------------------------------------------------------------------------

    def take(self, unit: Unit) -> bool:
        """Takes the unit if it is evictable together with the others. Reports whether it was taken.

        A whole gang replaces its members that were taken individually.
        """
        if len(self._taken) + len(unit.pods) > VICTIMS_MAX:
            return False
        gang = unit.gang or self._order.gangs.key_of(unit.pods[0])
        if unit.gang and self._alone[gang]:
            if not self._replace_alone(unit):
                return False
        else:
            is_allowed_by_gang = not gang or bool(unit.gang) or self._alone[gang] < self._order.gangs.surplus(gang)
            if not is_allowed_by_gang or not self._removal.remove_if_evictable(unit):
                return False
        self._units.append(unit)
        self._alone[gang] += bool(gang) and not unit.gang
        for pod in unit.pods:
            if pod.uid not in self._taken:
                self._taken.add(pod.uid)
                self._budgets.take(pod)
                if pod.uid in self._target.uids:
                    self._here.append(pod)
        return True

    def _replace_alone(self, unit: Unit) -> bool:
        """Replaces individually taken members by the whole gang, if that is evictable. Reports whether they were replaced."""
        members = {pod.uid for pod in unit.pods}
        others = [one for one in self._units if one.pods[0].uid not in members]
        removal = self._removal_of((*others, unit))
        if removal is not None:
            self._removal, self._units, self._alone[unit.gang] = removal, others, 0
        return removal is not None

    def _removal_of(self, units: Iterable[Unit]) -> Removal | None:
        """Returns the removal of exactly these units; None if they may not be evicted together."""
        removal = self._order.base.copy()
        return removal if all(map(removal.remove_if_evictable, units)) else None

    def _breaks(self, unit: Unit) -> bool:
        """Reports whether evicting the unit would violate a budget."""
        if not unit.gang:
            return self._budgets.breaks(unit.pods[0])
        in_use = self._budgets.copy()
        return sum(in_use.take(pod) for pod in unit.pods if pod.uid not in self._taken) > 0

    def _is_taken(self, unit: Unit) -> bool:
        return all(pod.uid in self._taken for pod in unit.pods)

    # -- clearing --------------------------------------------------------------------------------------------------

    def clear_node(self, order_number: int) -> bool:
        """Takes units on the node, in one of the `ORDERS` of `ReclaimOrder`, until the claim's pod fits. Reports whether it fits."""
        if self._fits():
            return True
        ordered = sorted(self._target.units, key=lambda unit: (self._order.rank(unit, order_number), unit.last_uid))
        for may_break in (False, True):
            for unit in ordered:
                if self._is_taken(unit) or (not may_break and self._breaks(unit)):
                    continue
                lacking = self._room.lacking(self._here)
                if (not lacking or self._frees(unit, lacking)) and self.take(unit) and self._fits():
                    return True
        return False

    def clear_quota(self, order_number: int) -> bool:
        """Takes units on any node, per leaf in one of the `ORDERS`, until the claim exceeds no max. Reports whether that succeeded."""
        missing = self._removal.missing()
        for may_break in (False, True):
            left: dict[int, Iterator[Unit]] = {}
            leaves = [self._urgency(leaf) for leaf in self._order.reclaimable_leaves] if missing else []
            heapify(leaves)
            while missing and leaves:
                leaf = heappop(leaves)[-1]
                if leaf not in left:  # sorted lazily: few leaves are reached, and some have very many pods
                    left[leaf] = iter(self._order.ordered(leaf, order_number, whole=self._target.whole))
                if self._take_next(left[leaf], missing, may_break=may_break):
                    heappush(leaves, self._urgency(leaf))
                    missing = self._removal.missing()
            if not missing:
                return True
        return False

    def _urgency(self, leaf: int) -> tuple[bool, float, int]:
        """Returns the heap key of a leaf: the one furthest over its min is first, the claim's own is last."""
        return leaf == self._order.own, -self._removal.over_min(leaf), leaf

    def _take_next(self, units: Iterator[Unit], missing: Missing, *, may_break: bool) -> bool:
        """Takes the next unit that helps and is evictable. Reports whether there was one.

        Skipped units need not be tried again: each step only reduces what is missing and what is evictable.
        """
        for unit in units:
            if self._is_taken(unit) or not self._helps(unit, missing) or (not may_break and self._breaks(unit)):
                continue
            if self.take(unit):
                return True
        return False

    def _helps(self, unit: Unit, missing: Missing) -> bool:
        levels = self._order.ledger.levels_of(unit.pods[0])
        return any(unit.held.get(resource, 0) and level in levels for level, resource, _ in missing)

    def _frees(self, unit: Unit, resources: Iterable[str]) -> bool:
        """Reports whether the unit's pods on the node hold any of these resources."""
        if not unit.gang:
            return any(unit.held.get(resource, 0) for resource in resources)
        here = [self._order.alone(pod).held for pod in unit.pods if pod.uid in self._target.uids]
        return any(held.get(resource, 0) for resource in resources for held in here)

    # -- reprieve --------------------------------------------------------------------------------------------------

    def needed(self) -> list[Pod]:
        """Reprieves victims that are not needed, in reverse order of eviction; those that violate budgets first. Returns the others."""
        in_use, broken, rank = BudgetsInUse(self._order.budgets), set[tuple[Pod, ...]](), self._order.rank
        units = sorted(self._units, key=rank)
        for unit in units:
            if sum(map(in_use.take, unit.pods)):
                broken.add(unit.pods)
        for unit in sorted(units, key=lambda unit: (unit.pods in broken, rank(unit)), reverse=True):
            if not self._reprieve(unit) and unit.gang:
                self._reprieve_all_but_few(unit)
        for pod in self._target.terminating:
            self._reprieve_terminating(pod)
        uids = {pod.uid for pod in self._here}
        return [*self._here, *(pod for unit in self._units for pod in unit.pods if pod.uid not in uids)]

    def _reprieve(self, unit: Unit) -> bool:
        units, here = self._units, self._here
        evicted = {pod.uid for pod in unit.pods}
        self._units = [one for one in units if one is not unit]
        self._here = [one for one in here if one.uid not in evicted]
        for pod in unit.pods:
            self._removal.restore(pod)
        if not self._removal.missing() and (len(self._here) == len(here) or self._fits()):
            return True
        self._units, self._here = units, here
        for pod in unit.pods:
            self._removal.remove(pod)
        return False

    def _reprieve_all_but_few(self, unit: Unit) -> None:
        """Replaces the whole gang by a sufficient subset of its members, at most as many as its surplus, if there is one."""
        surplus, before = self._order.gangs.surplus(unit.gang), (self._units, self._here, self._removal)
        others = [one for one in self._units if one is not unit]
        uids = {pod.uid for pod in unit.pods}
        here = [pod for pod in self._here if pod.uid not in uids]
        ordered = sorted(map(self._order.alone, unit.pods), key=self._order.rank)
        sets = (some for size in range(1, surplus + 1) for some in combinations(ordered, size))
        for some in islice(sets, SUBSETS_MAX):
            removal = self._removal_of((*others, *some))
            if removal is None:
                continue
            more = [one.pods[0] for one in some if one.pods[0].uid in self._target.uids]
            self._units, self._here, self._removal = [*others, *some], [*here, *more], removal
            if self.is_enough():
                return
        self._units, self._here, self._removal = before

    def _reprieve_terminating(self, pod: Pod) -> None:
        here = self._here
        self._here = [one for one in here if one is not pod]
        if not self._fits():
            self._here = here
