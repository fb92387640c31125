"""Reclaim: the search for a minimal set of victims for a claim.

Victims are taken in the order of `reclaim_order`, first those that violate no PodDisruptionBudget. If this order does not
free enough, the largest units of each leaf are tried first, then the smallest. If there are only a few units, all subsets are
tried at last. Victims that turn out not to be needed are reprieved. A gang is evicted whole only if the other candidates,
including its own members beyond its minimum, are not enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from multisched.model.objects import Pod
from multisched.plugins.quota.reclaim_order import ORDERS, ReclaimOrder
from multisched.plugins.quota.reclaim_search import Anywhere, NodeRoom, ReclaimTarget, Search
from multisched.plugins.quota.reclaim_units import Unit

FEW: Final = 10
"""Up to this many units, all subsets are tried if no order succeeds."""


Accepts = Callable[[Sequence[Pod]], bool]
"""Reports whether a sufficient set of victims is acceptable; if not, the search continues."""


class Reclaim(ReclaimOrder):
    """The search for one claim, in the current state."""

    @property
    def _whole_options(self) -> tuple[bool, ...]:
        """The values of `whole` (gangs may be evicted whole) to try, in this order."""
        return (False, True) if self.gangs.has_gangs else (False,)

    # -- queries ---------------------------------------------------------------------------------------------------

    def missing(self) -> dict[str, int]:
        """Returns resource -> the largest amount by which the claim would exceed a max."""
        found: dict[str, int] = {}
        for _, resource, amount in self.base.missing():
            found[resource] = max(found.get(resource, 0), amount)
        return found

    def anywhere(self, accepts: Accepts) -> list[Pod] | None:
        """Returns victims after which the claim exceeds no max; None if there is no sufficient, accepted set."""
        return self._first_of((), Anywhere(), self._whole_options, accepts)

    def on_node(self, pods: Iterable[Pod], room: NodeRoom, accepts: Accepts, *, whole: bool) -> list[Pod] | None:
        """Returns victims after which the pod also fits on the node; None if there is no such set.

        `pods`: the pods on the node. Terminating ones are among the victims if the pod needs their resources.
        `whole`: gangs may be evicted whole.
        """
        return self._first_of(tuple(pods), room, (whole,), accepts)

    def may_suffice(self, *, whole: bool | None = None) -> bool:
        """Reports whether evicting all candidates could be enough. A cheap check that rejects most pods over a max."""
        whole_options = self._whole_options if whole is None else (whole,)
        return any(self._may_suffice(whole=one) for one in whole_options)

    # -- search ----------------------------------------------------------------------------------------------------

    def _first_of(
        self, here: Sequence[Pod], room: NodeRoom, whole_options: Iterable[bool], accepts: Accepts
    ) -> list[Pod] | None:
        targets = (
            ReclaimTarget(self, here, room, whole=whole) for whole in whole_options if self._may_suffice(whole=whole)
        )
        return next((victims for target in targets for victims in self._found(target) if accepts(victims)), None)

    def _found(self, target: ReclaimTarget) -> Iterator[list[Pod]]:
        for order_number in range(ORDERS):
            search = Search(target)
            if search.clear_node(order_number) and search.clear_quota(order_number):
                yield search.needed()
        yield from self._chosen(target)

    def _may_suffice(self, *, whole: bool) -> bool:
        for level, resource, amount in self.base.missing():
            left = amount
            for leaf in self.reclaimable_leaves:
                assert self.ledger.tree is not None
                if level.at in self.ledger.tree.paths[leaf]:
                    left -= self.most(leaf, resource, whole=whole)
                    if left <= 0:
                        break
            if left > 0:
                return False
        return True

    def _chosen(self, target: ReclaimTarget) -> Iterator[list[Pod]]:
        """Yields sufficient sets among all subsets of a few units."""
        units = [*target.units, *self._elsewhere(target)]
        open_sets = [(Search(target), 0)] if 0 < len(units) <= FEW else []
        while open_sets:
            search, at = open_sets.pop()
            if search.is_enough():
                yield search.needed()
                continue
            for following in range(len(units) - 1, at - 1, -1):
                branch = search.copy()
                if branch.take(units[following]):
                    open_sets.append((branch, following + 1))

    def _elsewhere(self, target: ReclaimTarget) -> list[Unit]:
        """Returns units without pods on the node, at most FEW + 1."""
        known, found = {unit.pods for unit in target.units}, list[Unit]()
        for leaf in self.reclaimable_leaves:
            units = self.ordered(leaf, 0, whole=target.whole)
            found += [unit for unit in units if unit.pods not in known][: FEW + 1 - len(found)]
            if len(found) > FEW:
                break
        return found
