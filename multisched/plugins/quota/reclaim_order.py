"""Who may go for a claim, and in which order.

The leaf furthest over its min gives first. Of its pods those go first that have the lowest priority, then the newest, the
smallest. A gang that goes whole counts as its most important member, and comes behind pods of that priority.
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
"""Of a unit that may go: the least goes first."""
KEYS: Final = 3
"""Orders within a leaf: as it should be, the largest first, the smallest first."""


class Lenders(Mapping[int, float]):
    """Leaf -> how far it is over its min. Each is looked at when it is asked about: most searches ask about few of them."""

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
        """The claim's own last."""
        order = self._order
        for leaf in order.ledger.occupied() if order.claim.is_entitled else ():
            if leaf != order.own and self._over_min(leaf) is not None:
                yield leaf
        if self._over_min(order.own) is not None:
            yield order.own

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        """Without looking at all of them."""
        return any(True for _ in self)

    def _over_min(self, leaf: int) -> float | None:
        if leaf not in self._known:
            self._known[leaf] = self._order.over_min(leaf)
        return self._known[leaf]


class ReclaimOrder:
    """For one claim, as things stand now. `whole`: gangs may go whole; else what each has beyond its minimum at most."""

    def __init__(
        self,
        ledger: QuotaLedger,
        claim: Claim,
        find: Callable[[str], Pod | None],
        budgets: DisruptionBudgets,
        gangs: GangUnits,
        floors: Floors = NO_FLOORS,
    ) -> None:
        """`find`: a placed pod by its uid. Pods that are leaving count as gone. `floors`: as `Removal` has them."""
        self.ledger = ledger
        self.claim = claim
        self.budgets = budgets
        self.gangs = gangs
        self.base = Removal(ledger, claim, floors)
        self._find = find
        self.own = claim.levels[0].at
        """Position of the claim's own leaf."""
        self._of_leaf: dict[tuple[int, int, bool], list[Unit]] = {}
        for pod in filter(None, map(find, sorted(ledger.going))):
            self.base.take(pod)
        self.lenders: Mapping[int, float] = Lenders(self)
        """Position of each leaf whose pods may go, the claim's own among them -> how far it is over its min."""

    def over_min(self, leaf: int) -> float | None:
        """How far a leaf is over its min; None for one whose pods may not go. The claim's own leaf counts as at its min."""
        if leaf == self.own:
            return 0.0 if any(pod.spec.priority < self.claim.priority for pod in self._below(leaf)) else None
        return self.base.over_min(leaf) if self.claim.is_entitled and self.base.borrows(leaf) else None

    def _below(self, leaf: int) -> Iterator[Pod]:
        return filter(None, map(self._find, self.ledger.uids_below(leaf)))

    # -- who may go ------------------------------------------------------------------------------------------------

    def alone(self, pod: Pod) -> Unit:
        """Returns the pod as a unit of its own."""
        return unit_of_one(pod, self.ledger.amounts)

    def units(self, pods: Iterable[Pod], *, whole: bool) -> Iterator[Unit]:
        """The units of these pods that may go, each alone. A gang's members beyond the minimum are units, and the gang is one."""
        pods = list(pods)
        for pod in pods:
            levels = self.ledger.levels_of(pod)
            if not levels or levels[0].at not in self.lenders or pod.is_leaving:
                continue
            gang = self.gangs.key_of(pod)
            if gang and not self.gangs.surplus(gang):
                continue
            unit = self.alone(pod)
            if self.base.may_go(unit):
                yield unit
        if whole:
            yield from filter(self.base.may_go, self.gangs.wholes(pods))

    def ordered(self, leaf: int, key: int, *, whole: bool) -> list[Unit]:
        """The units of a leaf."""
        known = self._of_leaf.get((leaf, key, whole))
        if known is None:
            # A uid last: sets have no order, and equal clusters must decide alike.
            units = self.units(self._below(leaf), whole=whole)
            known = sorted(units, key=lambda unit: (self._keys(unit)[key], unit.last_uid))
            self._of_leaf[leaf, key, whole] = known
        return known

    def most(self, leaf: int, resource: str, *, whole: bool) -> int:
        """No set of units that may go from this leaf holds more."""
        level = self.ledger.levels[leaf]
        used = self.base.used(level, resource)
        borrowed = [one for one in self.claim.asked if self.base.are_over((level,), one)]
        if leaf == self.own or borrowed != [resource]:
            return used
        largest = self.ledger.largest(leaf, resource)
        if whole:
            wholes = self.gangs.wholes(self._below(leaf))
            largest = max((largest, *(unit.least.get(resource, 0) for unit in wholes)))
        return min(used, used - level.min.get(resource, 0) + largest)

    def together(self, victims: Iterable[Pod]) -> list[Unit]:
        """The units that these make: a gang that loses more than it can spare is one."""
        units, of_gang = list[Unit](), dict[str, list[Pod]]()
        for pod in victims:
            if not pod.is_leaving:
                of_gang.setdefault(self.gangs.key_of(pod), []).append(pod)
        for gang, pods in of_gang.items():
            whole = self.gangs.whole(gang) if gang and len(pods) > self.gangs.surplus(gang) else None
            units += [whole] if whole is not None else map(self.alone, pods)
        return units

    def without(self, victims: Iterable[Pod], before: Removal | None = None) -> Removal | None:
        """With all of these gone; None if they may not go together. `before`: others gone already, of gangs of their own."""
        removal = (before or self.base).copy()
        return removal if all(map(removal.displace, self.together(victims))) else None

    # -- in which order --------------------------------------------------------------------------------------------

    def rank(self, unit: Unit, key: int = 0) -> Key:
        """Over all leaves; the claim's own gives last. `key`: one of `KEYS`."""
        leaf = self.ledger.levels_of(unit.pods[0])[0].at
        return (leaf == self.own, -self.lenders[leaf], leaf, *self._keys(unit)[key])

    def _keys(self, unit: Unit) -> tuple[Key, Key, Key]:
        size = sum(unit.held.get(resource, 0) for resource in self.claim.asked)
        members = len(unit.pods) if unit.gang else 0
        best = (unit.priority, members, -unit.started_s, size)
        return best, (-size, *best), (size, *best)

    def cost(self, victims: Sequence[Pod]) -> Key:
        """Less is better: broken budgets, then whole gangs, then who goes last of those that go, then how many."""
        in_use = BudgetsInUse(self.budgets)
        going = [pod for pod in victims if not pod.is_leaving]
        ranked = sorted((self.rank(self.alone(pod)), at) for at, pod in enumerate(going))
        broken = sum(in_use.take(going[at]) for _, at in ranked)
        whole = sum(bool(unit.gang) for unit in self.together(going))
        worst = (1.0, *ranked[-1][0]) if ranked else (0.0,)
        return (broken, whole, *worst, len(ranked))
