"""One reclaim for a gang that starts as one: its members find room one after the other, by what those before have left.

What each of them takes, all of them together are entitled to. Those who go for different members may go together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from math import inf

from msgspec.structs import replace

from multisched.framework.node_view import NO_ROWS, NodeView
from multisched.framework.preemption import DryRun
from multisched.model.objects import Pod
from multisched.plugins.disruption_budgets import BudgetsInUse
from multisched.plugins.quota.evicted_over_needed import Cap
from multisched.plugins.quota.node_search import Borrowers, NodeSearch
from multisched.plugins.quota.reclaim import Reclaim
from multisched.plugins.quota.reclaim_order import Key
from multisched.plugins.quota.reclaim_units import unit_of_one
from multisched.plugins.quota.removal import NO_FLOORS, Claim, Floors, claim_of

Again = Callable[[Claim, Collection[str], Floors], Reclaim]
"""(claim, uids of pods that count as gone, what those have left) -> the reclaim as things stand at this moment."""


class GangReclaim:
    """`framework.preemption.MemberVictims`"""

    def __init__(self, nodes: NodeView, reclaim: Reclaim, again: Again, going: Callable[[], Sequence[str]]) -> None:
        """`reclaim`: of all members together, before any of them stands. `going`: nodes from which pods are going."""
        self._nodes = nodes
        self._whole = reclaim
        self._again = again
        self._going = going
        self._rule = Borrowers(reclaim)
        self._taken: list[Pod] = []
        reclaim.base.freeze()  # members come and victims go in the ledger while all this is tried

    def victims(self, pod: Pod, dry_run: DryRun) -> Sequence[Pod]:
        for taken in self._ways():
            found = self._found(pod, dry_run, self._whole.may_all_go(taken) or NO_FLOORS)
            if found and self._whole.may_all_go((*self._taken, *found)) is not None:
                self._taken += found
                return found
        return ()

    def _ways(self) -> Iterator[Sequence[Pod]]:
        """Those beside whom the next may go: all that have gone; then without members that went alone, as their gang may follow."""
        yield self._taken
        whole = [unit for unit in self._whole.together(self._taken) if unit.gang or not self._is_member(unit.pods[0])]
        left = [pod for unit in whole for pod in unit.pods]
        if len(left) < sum(not pod.is_deleting for pod in self._taken):
            yield left

    def _is_member(self, pod: Pod) -> bool:
        return bool(self._whole.gangs.key_of(pod))

    def _found(self, pod: Pod, dry_run: DryRun, floors: Floors) -> Sequence[Pod]:
        whole, ledger = self._whole.claim, self._whole.ledger
        own = claim_of(ledger, pod, nominated=whole.nominated)
        claim = replace(own, entitled=whole.entitled, priority=whole.priority)
        reclaim = self._again(claim, {one.uid for one in self._taken}, floors)
        no_cap = Cap(inf)  # the victims of all members are looked at together
        search = NodeSearch(self._nodes, reclaim, dry_run, self._going(), self._rule, no_cap)
        rows = dry_run.fitting().rows if ledger.refusal(pod, claim.nominated) else NO_ROWS
        way = search.anywhere(rows) if len(rows) else search.on_a_node()
        return () if way is None else way.victims

    def importance(self, units: Sequence[Sequence[Pod]]) -> list[Key]:
        ranks = [max(map(self._rank, pods)) for pods in units]
        in_use, broken = BudgetsInUse(self._whole.budgets), set[int]()
        for at in sorted(range(len(units)), key=lambda at: ranks[at]):
            if sum(in_use.take(pod) for pod in units[at] if not pod.is_deleting):
                broken.add(at)
        return [(at in broken, *rank) for at, rank in enumerate(ranks)]

    def _rank(self, pod: Pod) -> Key:
        """Pods that are going anyway come back last."""
        return () if pod.is_deleting else self._whole.rank(unit_of_one(pod))

    def cost(self, victims: Sequence[Pod]) -> Key:
        return self._whole.cost(victims)
