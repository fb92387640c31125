"""Reclaim: whom a pod may displace that its quota entitles to room, and which few of them are enough.

Terms. A pod is *entitled* at a level if what the level holds and the pod asks for stay within its min. The *reach* of a
pod goes from its leaf upward as long as it is entitled, and one level further. From below these levels it may take room
back. The *common level* of two leaves is the lowest one that both are below. A leaf *borrows* a resource if each level
from the leaf to just below the common one holds more of it than its min.

Who goes: pods of borrowing leaves, while they hold something that the leaf borrows and the pod asks for. Of the pod's own
leaf, pods with a lower priority go. The leaf furthest over its min gives first, and of its pods the lowest priority, then
the newest.

Why this never goes back and forth: whoever takes is within its min at each level below the common one. Only who is over
its min there gives. So no pod that went is entitled to what the taker got, and the taker's leaf can be asked for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from multisched.model.objects import Pod
from multisched.plugins.quota.quota_ledger import NO_AMOUNTS, NOTHING, Items, Level, QuotaLedger, account, items_of

Nominated = Mapping[int, Mapping[str, int]]

VICTIMS_MAX: Final = 1_000
"""Of one reclaim."""


class Claim(msgspec.Struct, frozen=True):
    """What one pod may take back, as things stand now."""

    pod: Pod
    items: Items
    levels: tuple[Level, ...]
    """Its leaf and what is above."""
    entitled: int
    """Levels from the leaf upward, without a gap, within whose min the pod stays."""
    nominated: Nominated
    """What pods that are nominated count on, by level; this one left out."""

    @property
    def is_entitled(self) -> bool:
        return self.entitled > 0


def claim_of(ledger: QuotaLedger, pod: Pod, nominated: Nominated = NOTHING) -> Claim:
    items, levels = items_of(pod), ledger.levels_of(pod)
    entitled = 0
    for level in levels:
        if not _stays_within_min(level, items, nominated.get(level.at, NO_AMOUNTS)):
            break
        entitled += 1
    return Claim(pod, items, levels, entitled, nominated)


def _stays_within_min(level: Level, items: Items, nominated: Mapping[str, int]) -> bool:
    return all(
        level.used.get(resource, 0) + nominated.get(resource, 0) + amount <= level.min.get(resource, 0)
        for resource, amount in items
        if amount and (resource in level.min or resource in level.max)
    )


class Giving:
    """The levels while pods are taken away in thought: who may go next, and what is still missing."""

    def __init__(self, ledger: QuotaLedger, claim: Claim) -> None:
        self._ledger = ledger
        self._claim = claim
        known = ledger.tree.resources if ledger.tree is not None else frozenset[str]()
        self._asked = [resource for resource, amount in claim.items if amount and resource in known]
        self._changed: dict[int, Level] = {}
        self._depth = {level.at: depth for depth, level in enumerate(claim.levels)}

    def take(self, pod: Pod, sign: int = 1) -> None:
        levels = [self._own(level) for level in self._ledger.levels_of(pod)]
        account(levels, items_of(pod), -sign, has_guarantees=self._ledger.has_guarantees)

    def _own(self, level: Level) -> Level:
        found = self._changed.get(level.at)
        if found is None:
            found = self._changed[level.at] = level.copy()
        return found

    def now(self, level: Level) -> Level:
        """The level without whom was taken away."""
        return self._changed.get(level.at, level)

    def used(self, level: Level, resource: str) -> int:
        return self.now(level).used.get(resource, 0)

    def missing(self) -> list[tuple[Level, str, int]]:
        """Level, resource and amount by which the pod would pass a max now."""
        found, items = [], self._claim.items
        for level in self._claim.levels:
            nominated, now = self._claim.nominated.get(level.at, NO_AMOUNTS), self.now(level)
            for resource, amount in items:
                most = level.max.get(resource)
                if most is not None and amount:
                    over = now.held(resource) + nominated.get(resource, 0) + amount - most
                    if over > 0:
                        found.append((level, resource, over))
            if self._ledger.has_guarantees:
                items = now.beyond(items, nominated)
        return found

    def may_go(self, pod: Pod) -> bool:
        """Whether the rules let this pod go next."""
        levels = self._ledger.levels_of(pod)
        if not levels:
            return False
        if levels[0] is self._claim.levels[0]:
            return pod.spec.priority < self._claim.pod.spec.priority
        held = dict(items_of(pod))
        return any(held.get(resource, 0) and self.borrows(levels, resource) for resource in self._asked)

    def borrows(self, levels: Sequence[Level], resource: str) -> bool:
        """Whether a leaf (with what is above it) holds more of the resource than its min, up to a level within the reach."""
        for level in levels:
            depth = self._depth.get(level.at)
            if depth is not None:
                return 0 < depth <= self._claim.entitled
            if self.used(level, resource) <= level.min.get(resource, 0):
                return False
        return False

    def lenders_leaves(self) -> dict[int, bool]:
        """Position of each leaf whose pods may go -> whether it is the claim's own."""
        found = {}
        tree = self._ledger.tree
        for leaf in tree.leaves() if tree is not None else ():
            levels = tuple(self._ledger.levels[at] for at in tree.paths[leaf]) if tree is not None else ()
            if levels[0] is self._claim.levels[0]:
                found[leaf] = True
            elif any(self.borrows(levels, resource) for resource in self._asked):
                found[leaf] = False
        return found

    def over_min(self, level: Level) -> float:
        """How far a leaf is over its min, in the worst of the resources that the pod asks for, as a share of the root's."""
        root = self._claim.levels[-1]
        wholes = ((resource, root.max.get(resource, root.min.get(resource))) for resource in self._asked)
        shares = (
            (self.used(level, resource) - level.min.get(resource, 0)) / max(whole, 1)
            for resource, whole in wholes
            if whole is not None
        )
        return max(shares, default=0.0)


def room_for(ledger: QuotaLedger, claim: Claim, standing: Iterable[Pod], first: Sequence[Pod] = ()) -> list[Pod] | None:
    """Pods that must go so that no max is passed, `first` among them; None where the rules let too few go.

    `first`: go in any case, for their node's room; None is returned where the rules do not let one of them go. Pods that are going
    already count as gone. No pod but those of `first` could be left out.
    """
    giving = Giving(ledger, claim)
    leaves = giving.lenders_leaves()
    chosen = {pod.uid for pod in first}
    by_leaf: dict[int, list[Pod]] = {}
    for pod in standing:
        levels = ledger.levels_of(pod)
        if not levels or pod.uid in chosen:
            continue
        if pod.is_deleting:
            giving.take(pod)
        elif levels[0].at in leaves and (not leaves[levels[0].at] or pod.spec.priority < claim.pod.spec.priority):
            by_leaf.setdefault(levels[0].at, []).append(pod)
    if not _take_all(giving, first):
        return None
    for is_small_first in (False, True):
        attempt = _Attempt(ledger, claim, giving, by_leaf)
        found = attempt.found(is_small_first=is_small_first)
        if found is not None:
            return [*first, *found]
    return None


def _take_all(giving: Giving, pods: Sequence[Pod]) -> bool:
    """Takes pods away in an order that the rules allow; False, and nothing taken, where there is none."""
    left, taken = sorted(pods, key=lambda pod: sum(amount for _, amount in items_of(pod))), list[Pod]()
    while left:
        at = next((i for i, pod in enumerate(left) if pod.is_deleting or giving.may_go(pod)), None)
        if at is None:
            for pod in taken:
                giving.take(pod, -1)
            return False
        giving.take(left[at])
        taken.append(left.pop(at))
    return True


class _Attempt:
    """One search: greedy, then without whom it does not need."""

    def __init__(self, ledger: QuotaLedger, claim: Claim, giving: Giving, by_leaf: Mapping[int, Sequence[Pod]]) -> None:
        self._ledger = ledger
        self._claim = claim
        self._giving = giving
        self._by_leaf = by_leaf

    def found(self, *, is_small_first: bool) -> list[Pod] | None:
        taken: list[Pod] = []
        left = {leaf: iter(self._ordered(pods, is_small_first)) for leaf, pods in self._by_leaf.items()}
        upcoming = {leaf: pod for leaf, pods in left.items() if (pod := next(pods, None)) is not None}
        while missing := self._giving.missing():
            leaf = self._next_leaf(upcoming, missing)
            if leaf is None or len(taken) >= VICTIMS_MAX:
                self._undo(taken)
                return None
            pod = upcoming[leaf]
            following = next(left[leaf], None)
            if following is None:
                del upcoming[leaf]
            else:
                upcoming[leaf] = following
            if self._giving.may_go(pod) and _helps(self._ledger, pod, missing):
                self._giving.take(pod)
                taken.append(pod)
        needed = self._without_needless(taken)
        self._undo(needed)
        return needed

    def _ordered(self, pods: Sequence[Pod], is_small_first: bool) -> list[Pod]:
        asked = {resource for resource, amount in self._claim.items if amount}
        if is_small_first:  # all that is over the min can then go, and the largest last
            return sorted(pods, key=lambda pod: (sum(a for r, a in items_of(pod) if r in asked), pod.uid))
        return sorted(pods, key=lambda pod: (pod.spec.priority, -_started_s(pod), pod.uid))

    def _next_leaf(self, upcoming: Mapping[int, Pod], missing: Sequence[tuple[Level, str, int]]) -> int | None:
        """The one furthest over its min gives next; the claim's own leaf last."""
        own = self._claim.levels[0].at
        return min(
            upcoming,
            key=lambda leaf: (leaf == own, -self._giving.over_min(self._ledger.levels[leaf]), leaf),
            default=None,
        )

    def _without_needless(self, taken: list[Pod]) -> list[Pod]:
        """Gives back, the most important first, whoever is not needed."""
        needed = list(taken)
        for pod in sorted(taken, key=lambda pod: (-pod.spec.priority, _started_s(pod))):
            self._giving.take(pod, -1)
            if self._giving.missing():
                self._giving.take(pod)
            else:
                needed.remove(pod)
        return needed

    def _undo(self, taken: Iterable[Pod]) -> None:
        for pod in taken:
            self._giving.take(pod, -1)


def _helps(ledger: QuotaLedger, pod: Pod, missing: Sequence[tuple[Level, str, int]]) -> bool:
    levels, held = ledger.levels_of(pod), dict(items_of(pod))
    return any(held.get(resource, 0) and level in levels for level, resource, _ in missing)


def _started_s(pod: Pod) -> float:
    return pod.started_s or pod.created_s


def standing_in(ledger: QuotaLedger, pods: Iterable[Pod]) -> Iterator[Pod]:
    """Those that count for some quota."""
    return (pod for pod in pods if ledger.levels_of(pod))
