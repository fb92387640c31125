"""Reclaim: which pods go for one that its quota entitles to room, and no more of them than it takes.

The leaf furthest over its min gives first. Of its pods those go first whose going breaks no PodDisruptionBudget, then the
lowest priority, the newest, the smallest. Where this order leads to too little, the largest pods of each leaf go first,
or the smallest. At last all sets of a few pods are tried. Whoever turns out not to be needed stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from multisched.model.objects import PODS, Pod
from multisched.plugins.disruption_budgets import BudgetsInUse, DisruptionBudgets
from multisched.plugins.quota.quota_ledger import Level, QuotaLedger
from multisched.plugins.quota.removal import Claim, Removal

VICTIMS_MAX: Final = 1_000
"""Of one reclaim."""
FEW: Final = 10
"""Of so many pods all sets are tried, where no order leads to enough room."""

Key = tuple[float, ...]
"""Of a pod that may go: the least goes first."""
Missing = Sequence[tuple[Level, str, int]]


class NodeRoom(Protocol):
    """A node while some of its pods are gone."""

    def lacking(self, gone: Sequence[Pod]) -> frozenset[str]:
        """Resources of which the node has too little for the pod."""
        ...

    def fits(self, gone: Sequence[Pod]) -> bool: ...


class Anywhere:
    """`NodeRoom` where some node takes the pod as it is."""

    def lacking(self, gone: Sequence[Pod]) -> frozenset[str]:
        return frozenset()

    def fits(self, gone: Sequence[Pod]) -> bool:
        return True


class Reclaim:
    """The search for one claim, as things stand now."""

    def __init__(
        self, ledger: QuotaLedger, claim: Claim, find: Callable[[str], Pod | None], budgets: DisruptionBudgets
    ) -> None:
        """`find`: a placed pod by its uid. Pods that are being deleted count as gone."""
        self.ledger = ledger
        self.claim = claim
        self.budgets = budgets
        self.base = Removal(ledger, claim)
        self._find = find
        self._own = claim.levels[0].at
        self._of_leaf: dict[tuple[int, int], list[Pod]] = {}
        for pod in filter(None, map(find, sorted(ledger.going))):
            self.base.take(pod)
        self.lenders = self._lenders()
        """Position of each leaf whose pods may go, the claim's own among them -> how far it is over its min."""

    def _lenders(self) -> Mapping[int, float]:
        found = {}
        if self.claim.is_entitled:
            others = (leaf for leaf in self.ledger.occupied() if leaf != self._own and self.base.borrows(leaf))
            found = {leaf: self.base.over_min(leaf) for leaf in others}
        if any(pod.spec.priority < self.claim.pod.spec.priority for pod in self._below(self._own)):
            found[self._own] = 0.0
        return found

    def _below(self, leaf: int) -> Iterator[Pod]:
        return filter(None, map(self._find, self.ledger.uids_below(leaf)))

    # -- what is asked ---------------------------------------------------------------------------------------------

    def anywhere(self) -> list[Pod] | None:
        """Pods that go so that the pod passes no max; None where too few may go."""
        return self._found((), Anywhere())

    def on_node(self, pods: Iterable[Pod], room: NodeRoom) -> list[Pod] | None:
        """The same where a node has to take the pod besides. `pods`: those on the node.

        Those of them that are being deleted are among the victims, if the pod needs their room.
        """
        return self._found([pod for pod in pods if pod.is_deleting or self.may_go(pod)], room)

    def cost(self, victims: Sequence[Pod]) -> Key:
        """Less is better: broken budgets, then who goes last of those that go, then how many."""
        in_use = BudgetsInUse(self.budgets)
        ordered = sorted((pod for pod in victims if not pod.is_deleting), key=self.rank)
        broken = sum(in_use.take(pod) for pod in ordered)
        worst = (1.0, *self.rank(ordered[-1])) if ordered else (0.0,)
        return (broken, *worst, len(ordered))

    # -- who may go, and in which order ----------------------------------------------------------------------------

    def may_go(self, pod: Pod) -> bool:
        """Whether it may go alone."""
        levels = self.ledger.levels_of(pod)
        return bool(levels) and levels[0].at in self.lenders and not pod.is_deleting and self.base.may_go(pod)

    def rank(self, pod: Pod, key: int = 0) -> Key:
        """Over all leaves; the claim's own gives last. `key`: as in `keys`."""
        leaf = self.ledger.levels_of(pod)[0].at
        return (leaf == self._own, -self.lenders[leaf], leaf, *self.keys(pod)[key])

    def keys(self, pod: Pod) -> tuple[Key, Key, Key]:
        """Within a leaf: as it should be, the largest first, the smallest first."""
        held = pod.requests
        size = sum(1 if resource == PODS else held.get(resource, 0) for resource in self.claim.asked)
        best = (pod.spec.priority, -(pod.started_s or pod.created_s), size)
        return best, (-size, *best), (size, *best)

    def ordered(self, leaf: int, key: int) -> list[Pod]:
        """The pods of a leaf that may go, each alone."""
        known = self._of_leaf.get((leaf, key))
        if known is None:
            # A uid last: sets have no order, and equal clusters must decide alike.
            pods = filter(self.may_go, self._below(leaf))
            known = sorted(pods, key=lambda pod: (self.keys(pod)[key], pod.uid))
            self._of_leaf[leaf, key] = known
        return known

    # -- search ----------------------------------------------------------------------------------------------------

    def _found(self, here: Sequence[Pod], room: NodeRoom) -> list[Pod] | None:
        if not self.may_suffice():
            return None
        for key in range(3):
            search = _Search(self, here, room)
            if search.clear_node(key) and search.clear_quota(key):
                return search.needed()
        return self._chosen(here, room)

    def may_suffice(self) -> bool:
        """False where all that may go would leave a max passed: most pods over a max are turned away here."""
        sums: dict[int, int] = {}
        for level, resource, amount in self.base.missing():
            sums[level.at] = 0
            for leaf in self.lenders:
                assert self.ledger.tree is not None
                if level.at in self.ledger.tree.paths[leaf]:
                    sums[level.at] += self._most(leaf, resource)
            if sums[level.at] < amount:
                return False
        return True

    def _most(self, leaf: int, resource: str) -> int:
        """No set of pods that may go from this leaf holds more."""
        level = self.ledger.levels[leaf]
        used = self.base.used(level, resource)
        borrowed = [one for one in self.claim.asked if self.base.are_over((level,), one)]
        if leaf == self._own or borrowed != [resource]:
            return used
        return min(used, used - level.min.get(resource, 0) + self.ledger.largest(leaf, resource))

    def _chosen(self, here: Sequence[Pod], room: NodeRoom) -> list[Pod] | None:
        """The first set that does, of all sets of a few pods."""
        elsewhere = self._elsewhere(here)
        pods = [*(pod for pod in here if not pod.is_deleting), *elsewhere]
        if len(pods) > FEW or not pods:
            return None
        open_sets = [(_Search(self, here, room), 0)]
        while open_sets:
            search, at = open_sets.pop()
            if search.is_enough():
                return search.needed()
            for following in range(len(pods) - 1, at - 1, -1):
                branch = search.copy()
                if branch.take(pods[following], is_here=following < len(pods) - len(elsewhere)):
                    open_sets.append((branch, following + 1))
        return None

    def _elsewhere(self, here: Sequence[Pod]) -> list[Pod]:
        """At most one more than are few."""
        known, found = {pod.uid for pod in here}, list[Pod]()
        for leaf in self.lenders:
            found += [pod for pod in self.ordered(leaf, 0) if pod.uid not in known][: FEW + 1 - len(found)]
            if len(found) > FEW:
                break
        return found


class _Search:
    """Who goes, so far."""

    def __init__(self, reclaim: Reclaim, here: Sequence[Pod], room: NodeRoom) -> None:
        self._reclaim = reclaim
        self._room = room
        self._removal = reclaim.base.copy()
        self._budgets = BudgetsInUse(reclaim.budgets)
        self._candidates = [pod for pod in here if not pod.is_deleting]
        self._here = [pod for pod in here if pod.is_deleting]
        """Pods of the node that go; at first those that are going already."""
        self._elsewhere: list[Pod] = []
        self._taken: set[str] = set()

    def copy(self) -> _Search:
        other = _Search(self._reclaim, (), self._room)
        other._removal, other._budgets = self._removal.copy(), self._budgets.copy()
        other._here, other._elsewhere, other._taken = list(self._here), list(self._elsewhere), set(self._taken)
        return other

    def is_enough(self) -> bool:
        return not self._removal.missing() and self._fits()

    def _fits(self) -> bool:
        return not self._room.lacking(self._here) and self._room.fits(self._here)

    def take(self, pod: Pod, *, is_here: bool) -> bool:
        """Whether the pod may go beside the others; if so it does."""
        if len(self._taken) >= VICTIMS_MAX or not self._removal.displace(pod):
            return False
        (self._here if is_here else self._elsewhere).append(pod)
        self._taken.add(pod.uid)
        self._budgets.take(pod)
        return True

    def clear_node(self, key: int) -> bool:
        """Takes pods of the node until it has room for the claim's."""
        if self._fits():
            return True
        ordered = sorted(self._candidates, key=lambda pod: (self._reclaim.rank(pod, key), pod.uid))
        for may_break in (False, True):
            for pod in ordered:
                if pod.uid in self._taken or (not may_break and self._budgets.breaks(pod)):
                    continue
                lacking = self._room.lacking(self._here)
                if (not lacking or _holds(pod, lacking)) and self.take(pod, is_here=True) and self._fits():
                    return True
        return False

    def clear_quota(self, key: int) -> bool:
        """Takes pods from wherever they stand until the claim's passes no max."""
        for may_break in (False, True):
            left = {leaf: iter(self._reclaim.ordered(leaf, key)) for leaf in self._reclaim.lenders}
            leaves = [self._urgency(leaf) for leaf in left]
            heapify(leaves)
            missing = self._removal.missing()
            while missing and leaves:
                leaf = heappop(leaves)[-1]
                if self._take_next(left[leaf], missing, may_break=may_break):
                    heappush(leaves, self._urgency(leaf))
                    missing = self._removal.missing()
            if not missing:
                return True
        return False

    def _urgency(self, leaf: int) -> tuple[bool, float, int]:
        """The leaf furthest over its min is the least; the claim's own comes last."""
        return leaf == self._reclaim.claim.levels[0].at, -self._removal.over_min(leaf), leaf

    def _take_next(self, pods: Iterator[Pod], missing: Missing, *, may_break: bool) -> bool:
        """The next pod that helps and may go. One that does not now never will: of both, less is left each time."""
        here = {pod.uid for pod in self._candidates}
        for pod in pods:
            if pod.uid in self._taken or not self._helps(pod, missing) or (not may_break and self._budgets.breaks(pod)):
                continue
            if self.take(pod, is_here=pod.uid in here):
                return True
        return False

    def _helps(self, pod: Pod, missing: Missing) -> bool:
        levels = self._reclaim.ledger.levels_of(pod)
        return any(_holds(pod, (resource,)) and level in levels for level, resource, _ in missing)

    def needed(self) -> list[Pod]:
        """Without whom it does not need; who should go last is given back first."""
        in_use, broken = BudgetsInUse(self._reclaim.budgets), set[str]()
        live = sorted((p for p in (*self._here, *self._elsewhere) if not p.is_deleting), key=self._reclaim.rank)
        for pod in live:
            if in_use.take(pod):
                broken.add(pod.uid)
        for pod in sorted(live, key=lambda pod: (pod.uid in broken, self._reclaim.rank(pod)), reverse=True):
            self._spare(pod)
        for pod in [pod for pod in self._here if pod.is_deleting]:
            self._spare(pod)
        return [*self._here, *self._elsewhere]

    def _spare(self, pod: Pod) -> None:
        here, elsewhere = list(self._here), list(self._elsewhere)
        self._here = [one for one in here if one is not pod]
        self._elsewhere = [one for one in elsewhere if one is not pod]
        if not pod.is_deleting:
            self._removal.give_back(pod)
        if self._removal.missing() or (len(self._here) < len(here) and not self._fits()):
            self._here, self._elsewhere = here, elsewhere
            if not pod.is_deleting:
                self._removal.take(pod)


def _holds(pod: Pod, resources: Iterable[str]) -> bool:
    return any(resource == PODS or pod.requests.get(resource, 0) for resource in resources)
