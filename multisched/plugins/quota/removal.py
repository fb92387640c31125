"""Removal: the quota tree after a simulated eviction of pods. Decides which further pods may be evicted, and what a claim lacks.

Terms. A resource *counts* at a level if the level names it in min or max, and if any level of the tree has a min of it.
A pod is *entitled* at a level if, for all resources that count there, the level's usage plus the pod's request stays within
its min. The *reach* of a pod extends from its leaf upward while it is entitled, and one level further. It may reclaim from
leaves below these levels. The *common level* of two leaves is the lowest level above both. A leaf *borrows* a resource if
each level from the leaf to just below the common level uses more of it than its min; the resource must count at all of them.

A set of pods may be evicted if, after all are evicted, adding back any one of them leaves each level from its leaf to just
below the common level above its min, for the resource for which it was evicted. So no victim is entitled to capacity
afterwards. Every subset of such a set may be evicted, too, in any order. For a gang that is evicted whole, this must hold
for its minimum. In the claim's own leaf, any number of pods of lower priority may be evicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from multisched.model.objects import Pod
from multisched.plugins.quota.pod_amounts import Items, PodAmounts
from multisched.plugins.quota.quota_ledger import NO_AMOUNTS, NO_NOMINATIONS, Level, QuotaLedger, add_usage
from multisched.plugins.quota.reclaim_units import Unit

Nominated = Mapping[int, Mapping[str, int]]
"""Position of a level -> resource -> amount of nominated pods."""


Floors = Mapping[tuple[int, str], int]
"""(position of a level, resource) -> the lowest amount with which a unit evicted for this resource could return."""
NO_FLOORS: Final[Floors] = {}


class Claim(msgspec.Struct, frozen=True):
    """The request of one pod, or of a gang that starts as one, and what it may reclaim in the current state."""

    pods: tuple[Pod, ...]
    """One pod, or the members of a gang that start together. All are of one leaf."""
    items: Items
    """Their total amounts."""
    guaranteed: tuple[str, ...]
    """Requested resources of which some level has a min."""
    reclaimable: tuple[str, ...]
    """Those of `guaranteed` that may be reclaimed: those that the leaf names, or all if it names none."""
    levels: tuple[Level, ...]
    """Its leaf and all levels above."""
    entitled_levels: int
    """Number of consecutive levels, from the leaf upward, at which the claim is entitled."""
    nominated: Nominated
    """Amounts of nominated pods by level, without the claim's own pods."""
    priority: int
    """The lowest priority of its pods."""

    @property
    def pod(self) -> Pod:
        """The first pod."""
        return self.pods[0]

    @property
    def is_entitled(self) -> bool:
        return self.entitled_levels > 0


def claim_of(ledger: QuotaLedger, *pods: Pod, nominated: Nominated = NO_NOMINATIONS) -> Claim:
    items, levels = _total_amounts(ledger.amounts, pods), ledger.levels_of(pods[0])
    guaranteed = tuple(resource for resource, amount in items if amount and resource in ledger.guaranteed)
    amounts, entitled_levels = dict(items), 0
    for level in levels:
        if not _stays_within_min(level, guaranteed, amounts, nominated.get(level.at, NO_AMOUNTS)):
            break
        entitled_levels += 1
    named = tuple(resource for resource in guaranteed if levels and levels[0].has_min_or_max(resource))
    priority = min(pod.spec.priority for pod in pods)
    return Claim(pods, items, guaranteed, named or guaranteed, levels, entitled_levels, nominated, priority)


def _total_amounts(of: PodAmounts, pods: tuple[Pod, ...]) -> Items:
    if len(pods) == 1:
        return of.items(pods[0])
    amounts: Counter[str] = Counter()
    for pod in pods:
        amounts.update(of.of(pod))
    return tuple(sorted(amounts.items()))


def _stays_within_min(
    level: Level, guaranteed: Iterable[str], amounts: Mapping[str, int], nominated: Mapping[str, int]
) -> bool:
    counted = [resource for resource in guaranteed if level.has_min_or_max(resource)]
    return bool(counted) and all(
        level.used.get(resource, 0) + nominated.get(resource, 0) + amounts[resource] <= level.min.get(resource, 0)
        for resource in counted
    )


class Removal:
    """Usage of a ledger's levels without some pods, for one claim."""

    def __init__(self, ledger: QuotaLedger, claim: Claim, floors: Floors = NO_FLOORS) -> None:
        """`floors`: of earlier victims that are no longer in the ledger."""
        self.ledger = ledger
        self.claim = claim
        self._changed: dict[int, Level] = {}
        self._frozen: list[Level] = []
        """Copies of all levels by position, once frozen."""
        self.floors: dict[tuple[int, str], int] = dict(floors)
        self._depth = {level.at: depth for depth, level in enumerate(claim.levels)}
        self._below: dict[int, tuple[Level, ...] | None] = {}

    def copy(self) -> Removal:
        """Returns an independent copy."""
        other = Removal(self.ledger, self.claim)
        other._below, other._frozen = self._below, self._frozen
        other._changed = {at: level.copy() for at, level in self._changed.items()}
        other.floors = dict(self.floors)
        return other

    def freeze(self) -> None:
        """Copies the levels, so that later changes of the ledger have no effect."""
        self._frozen = [self._current(level).copy() for level in self.ledger.levels]

    # -- changes ---------------------------------------------------------------------------------------------------

    def remove(self, pod: Pod) -> None:
        """Subtracts a pod without checks."""
        self._account(pod, -1)

    def restore(self, pod: Pod) -> None:
        """Adds a pod back."""
        self._account(pod, 1)

    def remove_if_evictable(self, unit: Unit) -> bool:
        """Removes the unit if it is evictable in addition to those removed by earlier calls. Reports whether it was removed."""
        by = self._reclaim_resource(unit)
        if by is None:
            return False
        for level in self.levels_below(self.ledger.levels_of(unit.pods[0])) or ():
            known, least = self.floors.get((level.at, by)), unit.least[by]
            self.floors[level.at, by] = least if known is None else min(known, least)
        for pod in unit.pods:
            self._account(pod, -1)
        return True

    def _account(self, pod: Pod, sign: int) -> None:
        levels = [self._changeable(level) for level in self.ledger.levels_of(pod)]
        add_usage(levels, self.ledger.amounts.items(pod), sign, has_guarantees=self.ledger.has_guarantees)

    def _changeable(self, level: Level) -> Level:
        """Returns this removal's own copy of the level."""
        found = self._changed.get(level.at)
        if found is None:
            found = self._changed[level.at] = self._current(level).copy()
        return found

    def _current(self, level: Level) -> Level:
        """Returns the level without the removed pods."""
        found = self._changed.get(level.at)
        if found is None:
            return self._frozen[level.at] if self._frozen else level
        return found

    # -- candidates ------------------------------------------------------------------------------------------------

    def is_evictable(self, unit: Unit) -> bool:
        """Reports whether the unit is evictable in addition to those removed by `remove_if_evictable`."""
        return self._reclaim_resource(unit) is not None

    def _reclaim_resource(self, unit: Unit) -> str | None:
        """Returns the borrowed resource for which the unit is evictable; empty in the claim's own leaf; None if not evictable."""
        below = self.levels_below(self.ledger.levels_of(unit.pods[0]))
        if below is None:
            return None
        if not below:
            return "" if unit.priority < self.claim.priority else None
        held, least = unit.held, unit.least
        if not all(self._keeps_victims_over_min(level, held) for level in below):
            return None
        for resource in self.claim.reclaimable:
            if least.get(resource, 0) and self.exceed_min(below, resource, held.get(resource, 0) - least[resource]):
                return resource
        return None

    def borrows(self, leaf: int) -> bool:
        """Reports whether a leaf other than the claim's own borrows, within the claim's reach."""
        path = self.ledger.paths[leaf]
        if not any(self.exceed_min(path[:1], resource) for resource in self.claim.reclaimable):
            return False  # true of most leaves; skips the levels above
        below = self.levels_below(path)
        return bool(below) and any(self.exceed_min(below or (), resource) for resource in self.claim.reclaimable)

    def levels_below(self, levels: tuple[Level, ...]) -> tuple[Level, ...] | None:
        """Returns the levels from a leaf to just below the common level; empty for the claim's own leaf; None beyond the reach."""
        if not levels:
            return None
        leaf = levels[0].at
        if leaf not in self._below:
            common = 0
            while levels[common].at not in self._depth:
                common += 1
            is_reached = self._depth[levels[common].at] <= self.claim.entitled_levels
            self._below[leaf] = levels[:common] if is_reached else None
        return self._below[leaf]

    def exceed_min(self, levels: Iterable[Level], resource: str, less: int = 0) -> bool:
        """Reports whether each level would still use more than its min if `less` were subtracted."""
        return all(
            level.has_min_or_max(resource) and self.used(level, resource) - less > level.min.get(resource, 0)
            for level in levels
        )

    def _keeps_victims_over_min(self, level: Level, held: Mapping[str, int]) -> bool:
        """Reports whether the level would still be over its min with any one earlier victim added back if `held` is removed, too."""
        for resource in self.claim.reclaimable:
            floor = self.floors.get((level.at, resource))
            if floor is not None:
                left = self.used(level, resource) - held.get(resource, 0) + floor
                if left <= level.min.get(resource, 0):
                    return False
        return True

    # -- amounts ---------------------------------------------------------------------------------------------------

    def used(self, level: Level, resource: str) -> int:
        """Returns the usage without the removed pods."""
        return self._current(level).used.get(resource, 0)

    def missing(self) -> list[tuple[Level, str, int]]:
        """Returns (level, resource, amount) for each max that the claim would exceed, with the excess amount."""
        found, items = [], self.claim.items
        for level in self.claim.levels:
            nominated, now = self.claim.nominated.get(level.at, NO_AMOUNTS), self._current(level)
            for resource, amount in items:
                most = level.max.get(resource)
                if most is not None and amount:
                    over = now.used_and_reserved(resource) + nominated.get(resource, 0) + amount - most
                    if over > 0:
                        found.append((level, resource, over))
            if self.ledger.has_guarantees:
                items = now.counted_at_parent(items, nominated)
        return found

    def over_min(self, leaf: int) -> float:
        """Returns how far a leaf is over its min, as a fraction of the root's max, or of its min if it has no max; the largest over the
        reclaimable resources."""
        level, root = self.ledger.levels[leaf], self.claim.levels[-1]
        wholes = ((resource, root.max.get(resource, root.min.get(resource))) for resource in self.claim.reclaimable)
        return max(
            (
                (self.used(level, resource) - level.min.get(resource, 0)) / max(whole, 1)
                for resource, whole in wholes
                if whole is not None
            ),
            default=0.0,
        )


def added_pod_helps(ledger: QuotaLedger, claim: Claim, added: Pod) -> bool:
    """Reports whether the claim may have new candidates: a leaf in the added pod's subtree, below the common level, borrows now."""
    removal, tree = Removal(ledger, claim), ledger.tree
    below = removal.levels_below(ledger.levels_of(added)) if claim.is_entitled else None
    if not below or tree is None:
        return False
    waiting = [below[-1].at]
    while waiting:
        at = waiting.pop()
        waiting += tree.nodes[at].children
        if not tree.nodes[at].children and removal.borrows(at):
            return True
    return False


def removed_pod_helps(ledger: QuotaLedger, claim: Claim, removed: Pod) -> bool:
    """Reports whether the removal lets the claim stay within a max that it exceeded, or entitles it at a level where it was not.

    Only levels above both pods are checked. Amounts removed since then count, too: if several pods are removed at once, each
    event is handled after all of them were removed.
    """
    freed, shared = ledger.amounts.of(removed), {level.at for level in ledger.levels_of(removed)}
    # Entitlement at the root has no effect: it has no siblings.
    entitled_below_root = min(claim.entitled_levels, len(claim.levels) - 1)
    for depth, level in enumerate(claim.levels):
        if level.at not in shared:
            continue
        nominated = claim.nominated.get(level.at, NO_AMOUNTS)
        for resource, amount in claim.items:
            if not amount or not freed.get(resource, 0):
                continue
            others = nominated.get(resource, 0) + amount + ledger.removed_since(removed, level, resource)
            most = level.max.get(resource)
            if most is not None and level.used_and_reserved(resource) + others > most:
                return True
            is_entitled_here = (
                depth < entitled_below_root and resource in claim.guaranteed and level.has_min_or_max(resource)
            )
            if is_entitled_here and level.used.get(resource, 0) + others > level.min.get(resource, 0):
                return True
    return False
