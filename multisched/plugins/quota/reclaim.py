"""Reclaim: which pods go for a claim that its quota entitles to room, and no more of them than it takes.

They go in the order of `reclaim_order`; first those whose going breaks no PodDisruptionBudget. Where this order leads to too
little, the largest of each leaf go first, or the smallest. At last all sets of a few are tried. Whoever turns out not to be
needed stays. A gang goes whole only where others that may go, its own members beyond its minimum among them, are too few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from multisched.model.objects import Pod
from multisched.plugins.quota.reclaim_order import KEYS, ReclaimOrder
from multisched.plugins.quota.reclaim_search import Anywhere, NodeRoom, Search, Site
from multisched.plugins.quota.reclaim_units import Unit

FEW: Final = 10
"""Of so many units all sets are tried, where no order leads to enough room."""


Accepts = Callable[[Sequence[Pod]], bool]
"""Whether these may be the victims, who are enough; else others are looked for."""


class Reclaim(ReclaimOrder):
    """The search for one claim, as things stand now."""

    @property
    def _ways(self) -> tuple[bool, ...]:
        """Whether gangs may go whole: what is tried, one after the other."""
        return (False, True) if self.gangs.are_any else (False,)

    # -- what is asked ---------------------------------------------------------------------------------------------

    def missing(self) -> dict[str, int]:
        """Resource -> by how much the claim would pass a max, at most."""
        found: dict[str, int] = {}
        for _, resource, amount in self.base.missing():
            found[resource] = max(found.get(resource, 0), amount)
        return found

    def anywhere(self, accepts: Accepts) -> list[Pod] | None:
        """Pods that go so that the claim passes no max; None where too few may go, or none that are accepted."""
        return self._first_of((), Anywhere(), self._ways, accepts)

    def on_node(self, pods: Iterable[Pod], room: NodeRoom, accepts: Accepts, *, whole: bool) -> list[Pod] | None:
        """The same where a node has to take the claim's pod besides. `pods`: those on the node.

        Those of them that are leaving are among the victims, if the pod needs their room. `whole`: gangs may go whole.
        """
        return self._first_of(tuple(pods), room, (whole,), accepts)

    def may_suffice(self, *, whole: bool | None = None) -> bool:
        """False where all that may go would leave a max passed: most pods over a max are turned away here."""
        ways = self._ways if whole is None else (whole,)
        return any(self._may_suffice(whole=one) for one in ways)

    # -- search ----------------------------------------------------------------------------------------------------

    def _first_of(
        self, here: Sequence[Pod], room: NodeRoom, ways: Iterable[bool], accepts: Accepts
    ) -> list[Pod] | None:
        sites = (Site(self, here, room, whole=whole) for whole in ways if self._may_suffice(whole=whole))
        return next((victims for site in sites for victims in self._found(site) if accepts(victims)), None)

    def _found(self, site: Site) -> Iterator[list[Pod]]:
        for key in range(KEYS):
            search = Search(site)
            if search.clear_node(key) and search.clear_quota(key):
                yield search.needed()
        yield from self._chosen(site)

    def _may_suffice(self, *, whole: bool) -> bool:
        for level, resource, amount in self.base.missing():
            left = amount
            for leaf in self.lenders:
                assert self.ledger.tree is not None
                if level.at in self.ledger.tree.paths[leaf]:
                    left -= self.most(leaf, resource, whole=whole)
                    if left <= 0:
                        break
            if left > 0:
                return False
        return True

    def _chosen(self, site: Site) -> Iterator[list[Pod]]:
        """The sets that do, of all sets of a few units."""
        units = [*site.units, *self._elsewhere(site)]
        open_sets = [(Search(site), 0)] if 0 < len(units) <= FEW else []
        while open_sets:
            search, at = open_sets.pop()
            if search.is_enough():
                yield search.needed()
                continue
            for following in range(len(units) - 1, at - 1, -1):
                branch = search.copy()
                if branch.take(units[following]):
                    open_sets.append((branch, following + 1))

    def _elsewhere(self, site: Site) -> list[Unit]:
        """At most one more than are few."""
        known, found = {unit.pods for unit in site.units}, list[Unit]()
        for leaf in self.lenders:
            units = self.ordered(leaf, 0, whole=site.whole)
            found += [unit for unit in units if unit.pods not in known][: FEW + 1 - len(found)]
            if len(found) > FEW:
                break
        return found
