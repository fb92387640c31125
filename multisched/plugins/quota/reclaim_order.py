"""Which pods may be evicted for a claim, and in which order.

The leaf furthest over its min is first. In a leaf, the order is: lowest priority, latest start, smallest amount. A gang that
is evicted whole has the priority of its most important member, and comes after single pods of that priority.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from multisched.model.objects import Pod
from multisched.plugins.disruption_budgets import BudgetsInUse, DisruptionBudgets
from multisched.plugins.quota.quota_ledger import QuotaLedger
from multisched.plugins.quota.reclaim_units import GangUnits, Unit, unit_of_one
from multisched.plugins.quota.removal import NO_FLOORS, Claim, Floors, Removal

Key = tuple[float, ...]
"""Sort key of a unit: the lowest is evicted first."""
ORDERS: Final = 3
"""Number of orders within a leaf: the preferred one, the largest first, the smallest first."""


class ReclaimableLeaves(Mapping[int, float]):
    """Leaf -> how far it is over its min. Computed lazily, since most searches need few leaves."""

    def __init__(self, order: ReclaimOrder) -> None:
        self._order = order
        self._known: dict[int, float | None] = {}

    def __contains__(self, leaf: object) -> bool:
        return isinstance(leaf, int) and self._over_min(leaf) is not None

    def __getitem__(self, leaf: int) -> float:
        found = self._over_min(leaf)
        if found is None:
            raise KeyError(leaf)
        return found

    def __iter__(self) -> Iterator[int]:
        """Yields the leaves, the claim's own last."""
        order = self._order
        for leaf in order.ledger.leaves_with_pods() if order.claim.is_entitled else ():
            if leaf != order.own and self._over_min(leaf) is not None:
                yield leaf
        if self._over_min(order.own) is not None:
            yield order.own

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        """Stops at the first leaf, without computing all of them."""
        return any(True for _ in self)

    def _over_min(self, leaf: int) -> float | None:
        if leaf not in self._known:
            self._known[leaf] = self._order.over_min(leaf)
        return self._known[leaf]


class ReclaimOrder:
    """The evictable units for one claim, in the current state.

    `whole` in its methods: gangs may be evicted whole; if False, only members beyond a gang's minimum.
    """

    def __init__(
        self,
        ledger: QuotaLedger,
        claim: Claim,
        find: Callable[[str], Pod | None],
        budgets: DisruptionBudgets,
        gangs: GangUnits,
        floors: Floors = NO_FLOORS,
    ) -> None:
        """`find`: returns a placed pod by its uid. Terminating pods count as evicted. `floors`: see `Removal`."""
        self.ledger = ledger
        self.claim = claim
        self.budgets = budgets
        self.gangs = gangs
        self.base = Removal(ledger, claim, floors)
        self._find = find
        self.own = claim.levels[0].at
        """Position of the claim's own leaf."""
        self._of_leaf: dict[tuple[int, int, bool], list[Unit]] = {}
        for pod in filter(None, map(find, sorted(ledger.terminating))):
            self.base.remove(pod)
        self.reclaimable_leaves: Mapping[int, float] = ReclaimableLeaves(self)
        """Position of each leaf with evictable pods, including the claim's own -> how far it is over its min."""

    def over_min(self, leaf: int) -> float | None:
        """Returns how far a leaf is over its min; None if its pods may not be evicted; 0 for the claim's own leaf."""
        if leaf == self.own:
            return 0.0 if any(pod.spec.priority < self.claim.priority for pod in self._below(leaf)) else None
        return self.base.over_min(leaf) if self.claim.is_entitled and self.base.borrows(leaf) else None

    def _below(self, leaf: int) -> Iterator[Pod]:
        return filter(None, map(self._find, self.ledger.uids_of(leaf)))

    # -- candidates ------------------------------------------------------------------------------------------------

    def alone(self, pod: Pod) -> Unit:
        """Returns a unit of just this pod."""
        return unit_of_one(pod, self.ledger.amounts)

    def units(self, pods: Iterable[Pod], *, whole: bool) -> Iterator[Unit]:
        """Yields the units of these pods that are evictable individually.

        Members of a gang with surplus members are units; with `whole`, each gang is one unit, too.
        """
        pods = list(pods)
        for pod in pods:
            levels = self.ledger.levels_of(pod)
            if not levels or levels[0].at not in self.reclaimable_leaves or pod.is_leaving:
                continue
            gang = self.gangs.key_of(pod)
            if gang and not self.gangs.surplus(gang):
                continue
            unit = self.alone(pod)
            if self.base.is_evictable(unit):
                yield unit
        if whole:
            yield from filter(self.base.is_evictable, self.gangs.wholes(pods))

    def ordered(self, leaf: int, order_number: int, *, whole: bool) -> list[Unit]:
        """Returns the units of a leaf in the order with this number, below `ORDERS`."""
        known = self._of_leaf.get((leaf, order_number, whole))
        if known is None:
            # The uid is the tie-breaker: iteration over sets is unordered, and equal clusters must give equal decisions.
            units = self.units(self._below(leaf), whole=whole)
            known = sorted(units, key=lambda unit: (self._keys(unit)[order_number], unit.last_uid))
            self._of_leaf[leaf, order_number, whole] = known
        return known

    def most(self, leaf: int, resource: str, *, whole: bool) -> int:
        """Returns an upper bound on the amount held by evictable units of the leaf."""
        level = self.ledger.levels[leaf]
        used = self.base.used(level, resource)
        borrowed = [one for one in self.claim.guaranteed if self.base.exceed_min((level,), one)]
        if leaf == self.own or borrowed != [resource]:
            return used
        largest = self.ledger.largest_amount(leaf, resource)
        if whole:
            wholes = self.gangs.wholes(self._below(leaf))
            largest = max((largest, *(unit.least.get(resource, 0) for unit in wholes)))
        return min(used, used - level.min.get(resource, 0) + largest)

    def together(self, victims: Iterable[Pod]) -> list[Unit]:
        """Groups victims into units: a gang that loses more than its surplus is one unit."""
        units, of_gang = list[Unit](), dict[str, list[Pod]]()
        for pod in victims:
            if not pod.is_leaving:
                of_gang.setdefault(self.gangs.key_of(pod), []).append(pod)
        for gang, pods in of_gang.items():
            whole = self.gangs.whole(gang) if gang and len(pods) > self.gangs.surplus(gang) else None
            units += [whole] if whole is not None else map(self.alone, pods)
        return units

    def without(self, victims: Iterable[Pod], before: Removal | None = None) -> Removal | None:
        """Returns the removal of all victims; None if they may not be evicted together. `before`: earlier victims, of other gangs."""
        removal = (before or self.base).copy()
        return removal if all(map(removal.remove_if_evictable, self.together(victims))) else None

    # -- order -----------------------------------------------------------------------------------------------------

    def rank(self, unit: Unit, order_number: int = 0) -> Key:
        """Returns the sort key over all leaves; the claim's own leaf is last. `order_number`: as for `ordered`."""
        leaf = self.ledger.levels_of(unit.pods[0])[0].at
        return (leaf == self.own, -self.reclaimable_leaves[leaf], leaf, *self._keys(unit)[order_number])

    def _keys(self, unit: Unit) -> tuple[Key, Key, Key]:
        size = sum(unit.held.get(resource, 0) for resource in self.claim.guaranteed)
        members = len(unit.pods) if unit.gang else 0
        best = (unit.priority, members, -unit.started_s, size)
        return best, (-size, *best), (size, *best)

    def cost(self, victims: Sequence[Pod]) -> Key:
        """Returns the cost: violated budgets, whole gangs, the highest rank of a victim, the number of victims. Lower is better."""
        in_use = BudgetsInUse(self.budgets)
        evicted = [pod for pod in victims if not pod.is_leaving]
        ranked = sorted((self.rank(self.alone(pod)), at) for at, pod in enumerate(evicted))
        broken = sum(in_use.take(evicted[at]) for _, at in ranked)
        whole = sum(bool(unit.gang) for unit in self.together(evicted))
        worst = (1.0, *ranked[-1][0]) if ranked else (0.0,)
        return (broken, whole, *worst, len(ranked))
