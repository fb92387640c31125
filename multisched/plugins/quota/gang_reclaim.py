"""One reclaim for a gang that starts as one: victims are found for one member after another, given the previous ones' victims.

Entitlement is checked for all members together. Victims of different members must be evictable together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from math import inf
from typing import Final

from msgspec.structs import replace

from multisched.framework.node_view import NO_ROWS, NodeView
from multisched.framework.preemption import DryRun
from multisched.model.objects import Pod
from multisched.plugins.disruption_budgets import BudgetsInUse
from multisched.plugins.quota.evicted_over_needed import EvictionLimit
from multisched.plugins.quota.node_search import ROWS_COMPARED_MAX, Borrowers, LabelSetLeaves, NodeSearch
from multisched.plugins.quota.reclaim import Reclaim
from multisched.plugins.quota.reclaim_order import Key
from multisched.plugins.quota.removal import NO_FLOORS, Claim, Floors, Nominated, Removal, claim_of

Again = Callable[[Claim, Collection[str], Floors], Reclaim]
"""(claim, uids of pods that count as evicted, their floors) -> a reclaim from the current state."""

ROWS_TOGETHER: Final = 64
"""Total number of suitable nodes that all members compare."""
ROWS_COMPARED_MIN: Final = 2
"""Minimum number of suitable nodes per member; a low one is enough, since likely nodes are examined first."""


class GangReclaim:
    """Implements `framework.preemption.MemberVictims`."""

    def __init__(
        self,
        nodes: NodeView,
        reclaim: Reclaim,
        again: Again,
        terminating: Callable[[], Sequence[str]],
        nominated: Callable[[], Nominated],
        leaves: LabelSetLeaves,
    ) -> None:
        """`reclaim`: for all members together, before any is placed. `terminating`: returns nodes on which pods are terminating.

        `nominated`: returns the amounts of other nominated pods. A pod that is placed during a pause is in the ledger from
        then on, and no longer in these.
        """
        self._nodes = nodes
        self._whole = reclaim
        self._again = again
        self._terminating = terminating
        self._nominated = nominated
        self.rule = Borrowers(reclaim, leaves)
        self._compared = min(max(ROWS_TOGETHER // len(reclaim.claim.pods), ROWS_COMPARED_MIN), ROWS_COMPARED_MAX)
        self._taken: dict[str, Pod] = {}
        reclaim.base.freeze()  # the dry run adds members to the ledger and removes victims from it
        self._removal = reclaim.base
        """The quota levels without the victims chosen so far."""

    def victims(self, pod: Pod, dry_run: DryRun) -> Sequence[Pod]:
        for removal in self._removals():
            found = self._found(pod, dry_run, NO_FLOORS if removal is None else removal.floors)
            after = self._after(found) if found else None
            if after is not None:
                self._removal = after
                self._taken.update((one.uid, one) for one in found)
                return found
        return ()

    def _after(self, found: Sequence[Pod]) -> Removal | None:
        """Returns the removal of these pods in addition; None if not all of them may be evicted together."""
        if any(
            map(self._is_member, found)
        ):  # other members of that gang may be victims already, and form one unit with these
            return self._whole.without((*self._taken.values(), *found))
        return self._whole.without(found, self._removal)

    def _removals(self) -> Iterator[Removal | None]:
        """Yields the removals from which the next search may start.

        The first one has all victims so far. The second leaves out gang members that were evicted alone, since their whole
        gang may be evicted next.
        """
        yield self._removal
        whole = [
            unit
            for unit in self._whole.together(self._taken.values())
            if unit.gang or not self._is_member(unit.pods[0])
        ]
        left = [pod for unit in whole for pod in unit.pods]
        if len(left) < sum(not pod.is_leaving for pod in self._taken.values()):
            yield self._whole.without(left)

    def _is_member(self, pod: Pod) -> bool:
        return bool(self._whole.gangs.key_of(pod))

    def _found(self, pod: Pod, dry_run: DryRun, floors: Floors) -> Sequence[Pod]:
        whole, ledger = self._whole.claim, self._whole.ledger
        own = claim_of(ledger, pod, nominated=self._nominated())
        claim = replace(own, entitled_levels=whole.entitled_levels, priority=whole.priority)
        reclaim = self._again(claim, self._taken.keys(), floors)
        no_cap = EvictionLimit(inf)  # the caller applies the limit to the victims of all members together
        search = NodeSearch(self._nodes, reclaim, dry_run, self._terminating(), self.rule, no_cap, self._compared)
        rows = dry_run.fitting().rows if ledger.refusal(pod, claim.nominated) else NO_ROWS
        way = search.anywhere(rows) if len(rows) else search.on_a_node()
        return () if way is None else way.victims

    def importance(self, units: Sequence[Sequence[Pod]]) -> list[Key]:
        ranks = [max(map(self._rank, pods)) for pods in units]
        in_use, broken = BudgetsInUse(self._whole.budgets), set[int]()
        for at in sorted(range(len(units)), key=lambda at: ranks[at]):
            if sum(in_use.take(pod) for pod in units[at] if not pod.is_leaving):
                broken.add(at)
        return [(at in broken, *rank) for at, rank in enumerate(ranks)]

    def _rank(self, pod: Pod) -> Key:
        """Returns the rank of a pod; the empty key for a terminating one, so that it is the last to be reprieved."""
        return () if pod.is_leaving else self._whole.rank(self._whole.alone(pod))

    def cost(self, victims: Sequence[Pod]) -> Key:
        return self._whole.cost(victims)
