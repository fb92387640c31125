"""Judges reclaims by the rules of quotas alone: claims, victims, amounts, and whether one reclaim undoes another.

A leaf under its min reclaims what others have borrowed. A pod counts as borrowed as a whole, and so does a gang that is evicted
whole, so a leaf may end below its min after its last borrowed pod was evicted. `reclaim_faults` judges one reclaim by the state
before it. `ReclaimHistory` compares the reclaims of a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from multisched.verify.demands import Requests
from multisched.verify.quota_tree import Level, Usage

SUBSETS_MAX: Final = 10
"""Up to this many victims (or gangs of victims) all subsets are tried; with more, only those that leave out one."""


class QuotaClaim(NamedTuple):
    """A pending pod, or a gang that starts as one, that reclaims resources."""

    key: str
    namespace: str
    requests: Requests
    """The sum over all its pods."""


class Victim(NamedTuple):
    """A pod to be evicted."""

    key: str
    namespace: str
    requests: Requests
    gang: str = ""
    """Victims of one gang are evicted together."""


Suffices = Callable[[Collection[Victim]], bool]
"""Reports whether the claim fits on nodes once these are evicted."""


def no_matter(victims: Collection[Victim]) -> bool:
    """Returns True: room on nodes is judged by other code."""
    return True


def reclaim_faults(
    usage: Usage, claim: QuotaClaim, victims: Sequence[Victim], suffices: Suffices = no_matter
) -> list[str]:
    """Returns the faults of a reclaim; none for victims of the claim's own leaf alone.

    `usage`: before the reclaim, with all victims and without the claim. `suffices`: tests room on nodes.
    """
    own = usage.tree.leaf_of(claim.namespace)
    others = [victim for victim in victims if usage.tree.leaf_of(victim.namespace) is not own]
    faults = [*_beyond_min(usage, claim, others), *_not_lent(usage, claim, others), *_undone(usage, claim, others)]
    return (
        faults
        or list(_insufficient(usage, claim, victims, suffices))
        or list(_needless(usage, claim, victims, suffices))
    )


def may_be_reclaimed(usage: Usage, claim: QuotaClaim, pods: Sequence[Victim]) -> list[Victim]:
    """Returns as many of these pods as the rules allow the claim to reclaim, one after the other; none if it is not entitled."""
    left, now, going = list(pods), usage.copy(), list[Victim]()
    while (
        victim := next((one for one in _small_first(left) if _may_be_evicted(usage, now, claim, one)), None)
    ) is not None:
        left.remove(victim)
        going.append(victim)
        now.add(victim.namespace, victim.requests, -1)
    return going


def _may_be_evicted(usage: Usage, now: Usage, claim: QuotaClaim, victim: Victim) -> bool:
    levels = _apart(usage, claim.namespace, victim.namespace)
    has_right = all(usage.stays_within_min(level, claim.requests) for level in levels)
    return bool(levels) and has_right and _is_lent(now, claim, victim)


def _after(usage: Usage, victims: Collection[Victim]) -> Usage:
    after = usage.copy()
    for victim in victims:
        after.add(victim.namespace, victim.requests, -1)
    return after


def _apart(usage: Usage, namespace: str, other: str) -> list[Level]:
    """Returns the levels above a namespace, from its leaf up, that are not above the other namespace."""
    shared = usage.tree.levels_of(other)
    return [level for level in usage.tree.levels_of(namespace) if level not in shared]


def _beyond_min(usage: Usage, claim: QuotaClaim, others: Sequence[Victim]) -> Iterator[str]:
    """Checks that the claim stays within min at each level that it does not share with the victim."""
    for victim in others:
        for level in _apart(usage, claim.namespace, victim.namespace):
            if not usage.stays_within_min(level, claim.requests):
                yield f"{claim.key} is not entitled to more in {level.path}, and takes {victim.key}"
                return


def _not_lent(usage: Usage, claim: QuotaClaim, others: Sequence[Victim]) -> Iterator[str]:
    """Checks that the victims can be evicted in an order in which each belongs to levels that have borrowed at that moment.

    Victims of a gang are evicted together.
    """
    turns, now = {unit[0].key: _as_one(unit) for unit in _units(others)}, usage.copy()
    while turns:
        ordered = _small_first(list(turns.values()))
        victim = next((one for one in ordered if _is_lent(now, claim, one)), None)
        if victim is None:
            leaf, key = usage.tree.leaf_of(ordered[0].namespace), ordered[0].key
            yield f"{key} is evicted for {claim.key}, but {leaf.path if leaf else 'its leaf'} has borrowed none of its resources"
            return
        del turns[victim.key]
        now.add(victim.namespace, victim.requests, -1)


def _as_one(unit: Sequence[Victim]) -> Victim:
    requests: Counter[str] = Counter()
    for one in unit:
        requests.update(one.requests)
    return unit[0]._replace(requests=dict(requests))


def _small_first(victims: Sequence[Victim]) -> list[Victim]:
    """Sorts large victims last: after a small one, more of what others have borrowed is left."""
    return sorted(victims, key=lambda one: (sorted(one.requests.values(), reverse=True), one.key))


def _is_lent(usage: Usage, claim: QuotaClaim, victim: Victim) -> bool:
    """Reports whether a resource of both claim and victim is borrowed at each of the victim's levels not shared with the claim.

    A level that does not name the resource lends nothing of it.
    """
    asked = [r for r, n in claim.requests.items() if n > 0 and victim.requests.get(r, 0) > 0]
    levels = _apart(usage, victim.namespace, claim.namespace)
    return any(all(_names(level, r) and usage.over_min(level, r) > 0 for level in levels) for r in asked)


def _names(level: Level, resource: str) -> bool:
    return resource in level.min or resource in level.max


def _undone(usage: Usage, claim: QuotaClaim, others: Sequence[Victim]) -> Iterator[str]:
    """Checks that no victim could reclaim quota from the claim: it is not entitled to its requests while the claim's leaf is over its min.

    The members of a gang are counted together."""
    own, after = usage.tree.leaf_of(claim.namespace), _after(usage, others)
    after.add(claim.namespace, claim.requests)
    for victim in map(_as_one, _units(others)):
        gives = own is not None and any(after.over_min(own, r) > 0 for r, n in victim.requests.items() if n > 0)
        if gives and after.is_entitled(victim.namespace, victim.requests):
            yield f"{victim.key} is evicted for {claim.key}, but could then reclaim quota from it"


def _insufficient(usage: Usage, claim: QuotaClaim, victims: Sequence[Victim], suffices: Suffices) -> Iterator[str]:
    """Checks that the evictions suffice: every level stays within max, and the claim has room."""
    excesses = _after(usage, victims).excesses_with(claim.namespace, claim.requests)
    if excesses or not suffices(victims):
        yield f"evictions of {len(victims)} pods for {claim.key} do not suffice: {excesses[0] if excesses else 'there is no room for it'}"


def _needless(usage: Usage, claim: QuotaClaim, victims: Sequence[Victim], suffices: Suffices) -> Iterator[str]:
    """Checks that no proper subset of the victims suffices."""
    units = _units(victims)
    sizes = range(len(units)) if len(units) <= SUBSETS_MAX else (len(units) - 1,)
    for size in sizes:
        for chosen in combinations(units, size):
            going = [victim for unit in chosen for victim in unit]
            if not _after(usage, going).excesses_with(claim.namespace, claim.requests) and suffices(going):
                named = ", ".join(victim.key for victim in going) or "nobody"
                yield f"{len(victims)} pods are evicted for {claim.key}; needed: {named}"
                return


def _units(victims: Sequence[Victim]) -> list[list[Victim]]:
    """Groups victims of a gang; each other victim is alone."""
    units: dict[str, list[Victim]] = {}
    for victim in victims:
        units.setdefault(f"gang {victim.namespace}/{victim.gang}" if victim.gang else victim.key, []).append(victim)
    return list(units.values())


class ReclaimHistory:
    """The reclaims of one cluster since its last change.

    A change is a new pod, a deleted pod or a changed tree; evictions of victims and their replacements are not changes.
    """

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], str] = {}
        """(reclaiming leaf, victims' leaf) -> the claim."""
        self._shortfalls: dict[tuple[str, str], Requests] = {}
        """The same keys -> the amount that the victims' leaf may reclaim in return."""
        self._owed: dict[str, int] = {}
        """Owner -> evicted pods of it that have not been replaced."""

    def changed(self) -> None:
        """Clears the history after a change, which may change entitlements."""
        self._taken.clear()
        self._shortfalls.clear()

    def arrived(self, owner: str) -> None:
        """Notes a new pod of this owner; empty if it has none."""
        if owner and self._owed.get(owner, 0):
            self._owed[owner] -= 1
        else:
            self.changed()

    def evicted(self, owner: str) -> None:
        """Notes an evicted pod of this owner, which will replace it; empty if it has none."""
        if owner:
            self._owed[owner] = self._owed.get(owner, 0) + 1

    def reclaimed(self, leaf: str, victims_leaf: str, claim: QuotaClaim, shortfall: Requests) -> str:
        """Notes that `leaf` reclaimed from `victims_leaf`. Returns a fault if this undoes an earlier reclaim; else "".

        `shortfall`: for each resource that the victims' leaf names, the amount by which it is below its min afterwards, because
        its last victim was larger than what it had borrowed. If the other leaf borrows this, the victims' leaf may reclaim it.
        """
        if leaf == victims_leaf:
            return ""
        before, left = self._taken.get((victims_leaf, leaf)), self._shortfalls.get((victims_leaf, leaf), {})
        self._taken[leaf, victims_leaf] = claim.key
        self._shortfalls[leaf, victims_leaf] = {resource: max(amount, 0) for resource, amount in shortfall.items()}
        if before is None:
            return ""
        left = {resource: amount - claim.requests.get(resource, 0) for resource, amount in left.items()}
        if left and min(left.values()) >= 0:
            self._shortfalls[victims_leaf, leaf] = left
            return ""
        return f"{leaf} reclaims from {victims_leaf} for {claim.key}, which undoes the reclaim for {before}"
