"""Removal: a tree of quotas while pods are taken away in thought. Who may go besides, and what a pod still lacks.

Terms. A resource counts at a level that names it in min or max, if any level of the tree is sure of some of it. A pod is
*entitled* at a level if what the level holds and the pod asks for stay within its min. That is asked of all that counts
there. The *reach* of a pod goes from its leaf upward as long as it is entitled, and one level further. From below these
levels it may take room back. The *common level* of two leaves is the lowest one that both are below. A leaf *borrows* a
resource if each level from the leaf to just below the common one holds more of it than its min. It has to count at all of
them.

A set of pods may go if each of them, alone of the set, could come back only to borrow. So no pod that goes is entitled
to room afterwards. Each subset of such a set may go, too, whatever the order. A gang that goes whole comes back as one: its
minimum could do so only to borrow. Of the pod's own leaf, pods of a lower priority may go in any number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from multisched.model.objects import Pod
from multisched.plugins.quota.pod_amounts import Items, PodAmounts
from multisched.plugins.quota.quota_ledger import NO_AMOUNTS, NOTHING, Level, QuotaLedger, account
from multisched.plugins.quota.reclaim_units import Unit

Nominated = Mapping[int, Mapping[str, int]]
"""Position of a level -> resource -> what pods that are nominated count on there."""


Floors = Mapping[tuple[int, str], int]
"""(position of a level, resource) -> the least that a unit which went by this resource asks for to come back."""
NO_FLOORS: Final[Floors] = {}


class Claim(msgspec.Struct, frozen=True):
    """What one pod, or a gang that starts as one, may take back, as things stand now."""

    pods: tuple[Pod, ...]
    """One, or those of a gang that start together. All are of one leaf."""
    items: Items
    """What they ask for together."""
    asked: tuple[str, ...]
    """Resources that it asks for, and of which some level is sure."""
    taken_back: tuple[str, ...]
    """Those of them for which others may go: what its leaf names, or all where that names none."""
    levels: tuple[Level, ...]
    """Its leaf and what is above."""
    entitled: int
    """Levels from the leaf upward, without a gap, within whose min the pod stays."""
    nominated: Nominated
    """What pods that are nominated count on, by level; the claim's own left out."""
    priority: int
    """Of the least important one."""

    @property
    def pod(self) -> Pod:
        """The first one."""
        return self.pods[0]

    @property
    def is_entitled(self) -> bool:
        return self.entitled > 0


def claim_of(ledger: QuotaLedger, *pods: Pod, nominated: Nominated = NOTHING) -> Claim:
    items, levels = _together(ledger.amounts, pods), ledger.levels_of(pods[0])
    asked = tuple(resource for resource, amount in items if amount and resource in ledger.guaranteed)
    amounts, entitled = dict(items), 0
    for level in levels:
        if not _stays_within_min(level, asked, amounts, nominated.get(level.at, NO_AMOUNTS)):
            break
        entitled += 1
    named = tuple(resource for resource in asked if levels and levels[0].names(resource))
    priority = min(pod.spec.priority for pod in pods)
    return Claim(pods, items, asked, named or asked, levels, entitled, nominated, priority)


def _together(of: PodAmounts, pods: tuple[Pod, ...]) -> Items:
    if len(pods) == 1:
        return of.items(pods[0])
    amounts: Counter[str] = Counter()
    for pod in pods:
        amounts.update(of.of(pod))
    return tuple(sorted(amounts.items()))


def _stays_within_min(
    level: Level, asked: Iterable[str], amounts: Mapping[str, int], nominated: Mapping[str, int]
) -> bool:
    counted = [resource for resource in asked if level.names(resource)]
    return bool(counted) and all(
        level.used.get(resource, 0) + nominated.get(resource, 0) + amounts[resource] <= level.min.get(resource, 0)
        for resource in counted
    )


class Removal:
    """Levels of a ledger without some pods, for the sake of one claim."""

    def __init__(self, ledger: QuotaLedger, claim: Claim, floors: Floors = NO_FLOORS) -> None:
        """`floors`: of those that went before, and are not in the ledger any more."""
        self.ledger = ledger
        self.claim = claim
        self._changed: dict[int, Level] = {}
        self._frozen: list[Level] = []
        """By position, once frozen; never changed."""
        self.floors: dict[tuple[int, str], int] = dict(floors)
        self._depth = {level.at: depth for depth, level in enumerate(claim.levels)}
        self._below: dict[int, tuple[Level, ...] | None] = {}

    def copy(self) -> Removal:
        """One that goes on alone."""
        other = Removal(self.ledger, self.claim)
        other._below, other._frozen = self._below, self._frozen
        other._changed = {at: level.copy() for at, level in self._changed.items()}
        other.floors = dict(self.floors)
        return other

    def freeze(self) -> None:
        """What comes and goes in the ledger from now on makes no difference."""
        self._frozen = [self._now(level).copy() for level in self.ledger.levels]

    # -- changes ---------------------------------------------------------------------------------------------------

    def take(self, pod: Pod) -> None:
        """It goes anyway."""
        self._account(pod, -1)

    def give_back(self, pod: Pod) -> None:
        """It may stay."""
        self._account(pod, 1)

    def displace(self, unit: Unit) -> bool:
        """Takes the unit if it may go beside those that were displaced before; else False, and nothing changes."""
        by = self._borrowed_by(unit)
        if by is None:
            return False
        for level in self.levels_below(self.ledger.levels_of(unit.pods[0])) or ():
            known, least = self.floors.get((level.at, by)), unit.least[by]
            self.floors[level.at, by] = least if known is None else min(known, least)
        for pod in unit.pods:
            self._account(pod, -1)
        return True

    def _account(self, pod: Pod, sign: int) -> None:
        levels = [self._own(level) for level in self.ledger.levels_of(pod)]
        account(levels, self.ledger.amounts.items(pod), sign, has_guarantees=self.ledger.has_guarantees)

    def _own(self, level: Level) -> Level:
        found = self._changed.get(level.at)
        if found is None:
            found = self._changed[level.at] = self._now(level).copy()
        return found

    def _now(self, level: Level) -> Level:
        """As it is without those that go."""
        found = self._changed.get(level.at)
        if found is None:
            return self._frozen[level.at] if self._frozen else level
        return found

    # -- who may go ------------------------------------------------------------------------------------------------

    def may_go(self, unit: Unit) -> bool:
        """Whether the unit may go beside those that were displaced before."""
        return self._borrowed_by(unit) is not None

    def _borrowed_by(self, unit: Unit) -> str | None:
        """The resource by which the unit may go; empty for one of the claim's own leaf; None for one that may not."""
        below = self.levels_below(self.ledger.levels_of(unit.pods[0]))
        if below is None:
            return None
        if not below:
            return "" if unit.priority < self.claim.priority else None
        held, least = unit.held, unit.least
        if not all(self._leaves_others_over(level, held) for level in below):
            return None
        for resource in self.claim.taken_back:
            if least.get(resource, 0) and self.are_over(below, resource, held.get(resource, 0) - least[resource]):
                return resource
        return None

    def borrows(self, leaf: int) -> bool:
        """Whether pods of this leaf may go, of all that are not the claim's own."""
        path = self.ledger.paths[leaf]
        if not any(self.are_over(path[:1], resource) for resource in self.claim.taken_back):
            return False  # as of most leaves, and what is above them need not be looked at
        below = self.levels_below(path)
        return bool(below) and any(self.are_over(below or (), resource) for resource in self.claim.taken_back)

    def levels_below(self, levels: tuple[Level, ...]) -> tuple[Level, ...] | None:
        """From a leaf to just below the common level; empty for the claim's own leaf; None beyond its reach."""
        if not levels:
            return None
        leaf = levels[0].at
        if leaf not in self._below:
            common = 0
            while levels[common].at not in self._depth:
                common += 1
            is_reached = self._depth[levels[common].at] <= self.claim.entitled
            self._below[leaf] = levels[:common] if is_reached else None
        return self._below[leaf]

    def are_over(self, below: Iterable[Level], resource: str, less: int = 0) -> bool:
        """Whether each of the levels holds more than its min, even with so much less."""
        return all(
            level.names(resource) and self.used(level, resource) - less > level.min.get(resource, 0) for level in below
        )

    def _leaves_others_over(self, level: Level, held: Mapping[str, int]) -> bool:
        """Each that went before could still come back only to borrow, if so much goes, too."""
        for resource in self.claim.taken_back:
            floor = self.floors.get((level.at, resource))
            if floor is not None:
                left = self.used(level, resource) - held.get(resource, 0) + floor
                if left <= level.min.get(resource, 0):
                    return False
        return True

    # -- amounts ---------------------------------------------------------------------------------------------------

    def used(self, level: Level, resource: str) -> int:
        """What is left of it without those that go."""
        return self._now(level).used.get(resource, 0)

    def missing(self) -> list[tuple[Level, str, int]]:
        """Level, resource and amount by which the pod would pass a max now."""
        found, items = [], self.claim.items
        for level in self.claim.levels:
            nominated, now = self.claim.nominated.get(level.at, NO_AMOUNTS), self._now(level)
            for resource, amount in items:
                most = level.max.get(resource)
                if most is not None and amount:
                    over = now.held(resource) + nominated.get(resource, 0) + amount - most
                    if over > 0:
                        found.append((level, resource, over))
            if self.ledger.has_guarantees:
                items = now.beyond(items, nominated)
        return found

    def over_min(self, leaf: int) -> float:
        """How far a leaf is over its min, in the worst of the resources that the pod asks for, as a share of the root's."""
        level, root = self.ledger.levels[leaf], self.claim.levels[-1]
        wholes = ((resource, root.max.get(resource, root.min.get(resource))) for resource in self.claim.taken_back)
        return max(
            (
                (self.used(level, resource) - level.min.get(resource, 0)) / max(whole, 1)
                for resource, whole in wholes
                if whole is not None
            ),
            default=0.0,
        )


def helps_by_coming(ledger: QuotaLedger, claim: Claim, came: Pod) -> bool:
    """Whether pods may go for the claim that might not before this pod has come: its leaf borrows now, or what is above it."""
    removal, tree = Removal(ledger, claim), ledger.tree
    below = removal.levels_below(ledger.levels_of(came)) if claim.is_entitled else None
    if not below or tree is None:
        return False
    waiting = [below[-1].at]
    while waiting:
        at = waiting.pop()
        waiting += tree.nodes[at].children
        if not tree.nodes[at].children and removal.borrows(at):
            return True
    return False


def helps_by_leaving(ledger: QuotaLedger, claim: Claim, gone: Pod) -> bool:
    """Whether a pod that has left made room for the claim: below a max that held it, or below a min that entitles it now.

    Only levels that both are below have more room than before. What has left since this pod counts with it: where several
    leave at once, each event comes when all have left.
    """
    freed, shared = ledger.amounts.of(gone), {level.at for level in ledger.levels_of(gone)}
    sure = min(claim.entitled, len(claim.levels) - 1)  # at the root it makes no difference: nobody stands beside it
    for depth, level in enumerate(claim.levels):
        if level.at not in shared:
            continue
        nominated = claim.nominated.get(level.at, NO_AMOUNTS)
        for resource, amount in claim.items:
            if not amount or not freed.get(resource, 0):
                continue
            others = nominated.get(resource, 0) + amount + ledger.left_since(gone, level, resource)
            most = level.max.get(resource)
            if most is not None and level.held(resource) + others > most:
                return True
            is_sure = depth < sure and resource in claim.asked and level.names(resource)
            if is_sure and level.used.get(resource, 0) + others > level.min.get(resource, 0):
                return True
    return False
