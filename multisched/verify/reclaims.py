"""Reclaims judged by the rules of quotas alone: who may reclaim, from whom, how much, and whether one undoes another.

A leaf under its min takes back what others have borrowed. `reclaim_faults` judges one reclaim by the state before it.
`ReclaimHistory` judges the reclaims of a run against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from multisched.verify.demands import Requests
from multisched.verify.quota_tree import Level, Usage

SUBSETS_MAX: Final = 10
"""Victims, or gangs of victims, of which every subset is tried; of more, each is left out by itself."""


class QuotaClaim(NamedTuple):
    """A pending pod, or a gang that starts as one, which takes room back."""

    key: str
    namespace: str
    requests: Requests
    """Of all its pods together."""


class Victim(NamedTuple):
    """A pod that is to go."""

    key: str
    namespace: str
    requests: Requests
    gang: str = ""
    """Victims of one gang go together."""


Suffices = Callable[[Collection[Victim]], bool]
"""Whether the claim has room on nodes if these go."""


def no_matter(victims: Collection[Victim]) -> bool:
    """Room on nodes is judged elsewhere."""
    return True


def reclaim_faults(
    usage: Usage, claim: QuotaClaim, victims: Sequence[Victim], suffices: Suffices = no_matter
) -> list[str]:
    """What speaks against a reclaim; nothing for victims of the claim's own leaf alone.

    `usage`: before it, with all victims and without the claim. `suffices` leaves the test of room to the caller.
    """
    own = usage.tree.leaf_of(claim.namespace)
    others = [victim for victim in victims if usage.tree.leaf_of(victim.namespace) is not own]
    faults = []
    if own is not None and others and not usage.is_entitled(claim.namespace, claim.requests):
        faults.append(f"{claim.key} is not entitled to more in {own.path}, and takes {others[0].key}")
    faults += _deprived(usage, claim, others)
    faults += _undone(usage, claim, others)
    if not faults:
        faults += _needless(usage, claim, victims, suffices)
    return faults


def _after(usage: Usage, victims: Collection[Victim]) -> Usage:
    after = usage.copy()
    for victim in victims:
        after.add(victim.namespace, victim.requests, -1)
    return after


def _deprived(usage: Usage, claim: QuotaClaim, others: Sequence[Victim]) -> Iterator[str]:
    """No leaf has less than its min afterwards of what the claim asks for, where it had that much."""
    after = _after(usage, others)
    for leaf in _leaves(usage, others):
        for resource in sorted(resource for resource, amount in claim.requests.items() if amount > 0):
            least = leaf.min.get(resource, 0)
            if after.of(leaf)[resource] < min(least, usage.of(leaf)[resource]):
                has = after.of(leaf)[resource]
                yield f"{leaf.path} is left with {has} {resource} of its min {least} for {claim.key}"


def _undone(usage: Usage, claim: QuotaClaim, others: Sequence[Victim]) -> Iterator[str]:
    """Nobody who goes would be entitled to come back while the claim's leaf has more than its min."""
    own, after = usage.tree.leaf_of(claim.namespace), _after(usage, others)
    after.add(claim.namespace, claim.requests)
    for victim in others:
        gives = own is not None and any(after.over_min(own, r) > 0 for r, n in victim.requests.items() if n > 0)
        if gives and after.is_entitled(victim.namespace, victim.requests):
            yield f"{victim.key} goes for {claim.key}, and is entitled to come back for it"


def _needless(usage: Usage, claim: QuotaClaim, victims: Sequence[Victim], suffices: Suffices) -> Iterator[str]:
    """A proper subset that leaves every level within its max, and room on nodes."""
    units = _units(victims)
    sizes = range(len(units)) if len(units) <= SUBSETS_MAX else (len(units) - 1,)
    for size in sizes:
        for chosen in combinations(units, size):
            going = [victim for unit in chosen for victim in unit]
            if not _after(usage, going).excesses_with(claim.namespace, claim.requests) and suffices(going):
                named = ", ".join(victim.key for victim in going) or "nobody"
                yield f"{len(victims)} pods go for {claim.key}, and {named} would do"
                return


def _units(victims: Sequence[Victim]) -> list[list[Victim]]:
    """Each victim by itself, those of a gang together."""
    units: dict[str, list[Victim]] = {}
    for victim in victims:
        units.setdefault(f"gang {victim.namespace}/{victim.gang}" if victim.gang else victim.key, []).append(victim)
    return list(units.values())


def _leaves(usage: Usage, victims: Sequence[Victim]) -> list[Level]:
    found = {leaf.path: leaf for one in victims if (leaf := usage.tree.leaf_of(one.namespace)) is not None}
    return list(found.values())


class ReclaimHistory:
    """The reclaims of one cluster since the last news.

    News is an arrival, a departure or a change of the tree. The replacement of a victim is no arrival, and the
    departure of a victim is none.
    """

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], str] = {}
        """(leaf that took, leaf that gave) -> the claim."""
        self._owed: dict[str, int] = {}
        """Owner -> pods of it that went as victims and have not been replaced."""

    def changed(self) -> None:
        """Something came, went or was edited: who is entitled to what may be otherwise now."""
        self._taken.clear()

    def arrived(self, owner: str) -> None:
        """A pod of this owner was made; empty for a pod that nobody replaces."""
        if owner and self._owed.get(owner, 0):
            self._owed[owner] -= 1
        else:
            self.changed()

    def evicted(self, owner: str) -> None:
        """A victim has this owner, which replaces it."""
        if owner:
            self._owed[owner] = self._owed.get(owner, 0) + 1

    def reclaimed(self, leaf: str, victims_leaf: str, claim: str) -> str:
        """Notes that `leaf` took from `victims_leaf`; what speaks against it, empty for nothing."""
        if leaf == victims_leaf:
            return ""
        before = self._taken.get((victims_leaf, leaf))
        self._taken[leaf, victims_leaf] = claim
        return f"{leaf} reclaims from {victims_leaf} for {claim} what that reclaimed for {before}" if before else ""
