"""Units of eviction in a reclaim: one pod, or all placed members of a gang.

Members beyond a gang's minimum can be evicted one by one. Beyond that, only the whole gang is evicted, because a gang below its
minimum is useless. Keeps no state between reclaims.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from multisched.framework.placed_gang_members import PlacedGangMembers
from multisched.model.objects import Pod
from multisched.plugins.quota.pod_amounts import PodAmounts
from multisched.plugins.quota.quota_ledger import QuotaLedger


class Unit(msgspec.Struct, frozen=True):
    """Pods of one leaf that are evicted together."""

    pods: tuple[Pod, ...]
    held: Mapping[str, int]
    """Resource -> total amount that they hold, including `pods`."""
    least: Mapping[str, int]
    """Resource -> smallest amount with which they can start again: that of the pod, or of a gang's smallest members up to its minimum."""
    gang: str = ""
    """The gang, if the unit is all its placed members; empty for a single pod."""

    @property
    def priority(self) -> int:
        """The highest priority of a member."""
        return max(pod.spec.priority for pod in self.pods)

    @property
    def started_s(self) -> float:
        """The earliest start of a member."""
        return min(pod.started_s or pod.created_s for pod in self.pods)

    @property
    def last_uid(self) -> str:
        """The greatest uid: the tie-breaker of orders."""
        return max(pod.uid for pod in self.pods)


def unit_of_one(pod: Pod, amounts: PodAmounts) -> Unit:
    held = amounts.of(pod)
    return Unit((pod,), held, held)


class GangUnits:
    """The gangs of the current state as units. Created for one reclaim."""

    def __init__(
        self,
        gangs: PlacedGangMembers,
        ledger: QuotaLedger,
        find: Callable[[str], Pod | None],
        evicted: Collection[str] = (),
        own: Collection[str] = (),
    ) -> None:
        """`find`: returns a placed pod by its uid. `evicted`: uids of pods that count as evicted.

        `own`: gangs of the pods for which quota is reclaimed. These are not evicted whole: that would only restart them.
        """
        self._gangs = gangs
        self._ledger = ledger
        self._find = find
        self._evicted = evicted
        self._own = own
        self._whole: dict[str, Unit | None] = {}
        self._surplus: dict[str, int] = {}
        self.has_gangs = bool(len(gangs))
        """Whether there are gangs; if not, lookups are skipped."""
        self.has_evicted = bool(evicted)

    def key_of(self, pod: Pod) -> str:
        """Returns the gang of a pod; empty for a pod without a gang or a terminating one."""
        return "" if not self.has_gangs or pod.is_leaving else self._gangs.key_of(pod.uid) or ""

    def surplus(self, gang: str) -> int:
        """Returns how many members of the gang can be evicted one by one."""
        found = self._surplus.get(gang)
        if found is None:
            evicted = sum(uid in self._evicted for uid in self._gangs.placed_members(gang)) if self._evicted else 0
            found = self._surplus[gang] = max(self._gangs.surplus(gang) - evicted, 0)
        return found

    def whole(self, gang: str) -> Unit | None:
        """Returns the whole gang as a unit.

        None if its members are in several leaves, if all can be evicted one by one, or if it is in `own`.
        """
        if gang not in self._whole:
            self._whole[gang] = None if gang in self._own else self._unit_of(gang)
        return self._whole[gang]

    def wholes(self, pods: Iterable[Pod]) -> list[Unit]:
        """Returns the whole gangs of these pods, sorted by gang."""
        keys = {key for pod in pods if (key := self.key_of(pod))} if self.has_gangs else ()
        return [unit for key in sorted(keys) if (unit := self.whole(key)) is not None]

    def _unit_of(self, gang: str) -> Unit | None:
        members = [self._find(uid) for uid in sorted(self._gangs.placed_members(gang))]
        found = [pod for pod in members if pod is not None]
        leaves = {levels[0].at if (levels := self._ledger.levels_of(pod)) else -1 for pod in found}
        least = len(found) - self._gangs.surplus(gang)
        pods = tuple(pod for pod in found if pod.uid not in self._evicted)
        if least <= 0 or len(leaves) != 1 or len(found) < len(members) or not pods:
            return None
        columns = _columns(found, self._ledger.amounts)
        return Unit(
            pods,
            {resource: sum(column) for resource, column in _columns(pods, self._ledger.amounts).items()},
            {resource: sum(sorted(column)[:least]) for resource, column in columns.items()},
            gang,
        )


def _columns(pods: Sequence[Pod], of: PodAmounts) -> dict[str, list[int]]:
    """Returns resource -> amounts, one per pod."""
    amounts = [of.of(pod) for pod in pods]
    resources = sorted({resource for one in amounts for resource in one})
    return {resource: [one.get(resource, 0) for one in amounts] for resource in resources}
