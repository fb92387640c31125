"""Pods that go together in a reclaim: one alone, or all that stand of a gang.

A gang loses what it has beyond its minimum pod by pod. Beyond that it goes whole or not at all: below its minimum it is of no
use to anybody. Owns nothing that changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from multisched.framework.standing_gangs import StandingGangs
from multisched.model.objects import Pod
from multisched.plugins.quota.pod_amounts import PodAmounts
from multisched.plugins.quota.quota_ledger import QuotaLedger


class Unit(msgspec.Struct, frozen=True):
    """Pods of one leaf that go together."""

    pods: tuple[Pod, ...]
    held: Mapping[str, int]
    """Resource -> what they hold together; one pod each among them."""
    least: Mapping[str, int]
    """Resource -> what they ask for at least when they come back: all of one pod, the smallest members of a gang that may start."""
    gang: str = ""
    """The gang that they are, all that stand of it; empty for a pod that goes alone."""

    @property
    def priority(self) -> int:
        """Of the most important one."""
        return max(pod.spec.priority for pod in self.pods)

    @property
    def started_s(self) -> float:
        """Of the one that has run for longest."""
        return min(pod.started_s or pod.created_s for pod in self.pods)

    @property
    def last_uid(self) -> str:
        """For an order among equals."""
        return max(pod.uid for pod in self.pods)


def unit_of_one(pod: Pod, amounts: PodAmounts) -> Unit:
    held = amounts.of(pod)
    return Unit((pod,), held, held)


class GangUnits:
    """Which pods are members of gangs, and the gangs as units. As things stand at one moment."""

    def __init__(
        self,
        gangs: StandingGangs,
        ledger: QuotaLedger,
        find: Callable[[str], Pod | None],
        gone: Collection[str] = (),
    ) -> None:
        """`find`: a placed pod by its uid. `gone`: uids of pods that count as gone already."""
        self._gangs = gangs
        self._ledger = ledger
        self._find = find
        self._gone = gone
        self._whole: dict[str, Unit | None] = {}
        self._surplus: dict[str, int] = {}
        self.are_any = bool(len(gangs))
        """Some gang is there; else nobody need be asked."""

    def key_of(self, pod: Pod) -> str:
        """The gang of a pod; empty for one without a gang, and for one that is leaving."""
        return "" if not self.are_any or pod.is_leaving else self._gangs.key_of(pod.uid) or ""

    def surplus(self, gang: str) -> int:
        """How many of its members may go alone."""
        found = self._surplus.get(gang)
        if found is None:
            gone = sum(uid in self._gone for uid in self._gangs.standing(gang)) if self._gone else 0
            found = self._surplus[gang] = max(self._gangs.surplus(gang) - gone, 0)
        return found

    def whole(self, gang: str) -> Unit | None:
        """All that stand of the gang; None where it cannot go as one: its members are of several leaves, or all may go alone."""
        if gang not in self._whole:
            self._whole[gang] = self._made(gang)
        return self._whole[gang]

    def wholes(self, pods: Iterable[Pod]) -> list[Unit]:
        """The gangs that these are of, in the order of their names."""
        keys = {key for pod in pods if (key := self.key_of(pod))} if self.are_any else ()
        return [unit for key in sorted(keys) if (unit := self.whole(key)) is not None]

    def _made(self, gang: str) -> Unit | None:
        standing = [self._find(uid) for uid in sorted(self._gangs.standing(gang))]
        found = [pod for pod in standing if pod is not None]
        leaves = {levels[0].at if (levels := self._ledger.levels_of(pod)) else -1 for pod in found}
        least = len(found) - self._gangs.surplus(gang)
        pods = tuple(pod for pod in found if pod.uid not in self._gone)
        if least <= 0 or len(leaves) != 1 or len(found) < len(standing) or not pods:
            return None
        columns = _columns(found, self._ledger.amounts)
        return Unit(
            pods,
            {resource: sum(column) for resource, column in _columns(pods, self._ledger.amounts).items()},
            {resource: sum(sorted(column)[:least]) for resource, column in columns.items()},
            gang,
        )


def _columns(pods: Sequence[Pod], of: PodAmounts) -> dict[str, list[int]]:
    """Resource -> what each holds of it."""
    amounts = [of.of(pod) for pod in pods]
    resources = sorted({resource for one in amounts for resource in one})
    return {resource: [one.get(resource, 0) for one in amounts] for resource in resources}
