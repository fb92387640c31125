"""Victims in units, and the search for the few that are needed.

A pod without a gang is a unit. A gang loses the surplus over its minimum pod by pod; the rest is one unit, which is evicted
whole, on all nodes of its members. Owns no mutable state; the caller decides what the victims make room for (`VictimTrial`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from itertools import combinations, islice
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np

from multisched.framework.placed_gang_members import PlacedGangMembers
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache, PlacedPod

SUBSETS_MAX: Final = 64
"""Sets of members of one gang that are tried instead of the whole gang. Beyond them it is evicted whole."""

R = TypeVar("R")

Members = Sequence[PlacedPod]
Search = Generator[None, None, R]
"""Yields where the event loop may run, and returns a result."""


class Unit(msgspec.Struct, frozen=True):
    """Pods that are evicted together."""

    members: tuple[PlacedPod, ...]
    """The most important first."""
    gang: str = ""
    """The gang, if these are all its placed members; empty for a pod that may be evicted alone."""
    surplus: int = 0
    """Members that may be evicted without the others."""
    can_evict_whole: bool = True
    """False if the gang has members that must not be evicted. Then at most its surplus is evicted."""
    is_first: bool = False
    """True if evicting the unit violates a disruption budget. Such units are restored before the others."""
    order: tuple[float, ...] = ()
    """If not empty, only this value decides the order: the unit with the smallest value is restored first."""

    @property
    def importance(self) -> tuple[float, ...]:
        """The order of restoring, ascending.

        Units with `is_first` come first. Then the order is by priority, gangs before pods, larger gangs before smaller ones, and
        earliest start (source: kube-scheduler 1.37, pod group preemption).
        """
        if self.order:
            return self.order
        started_s = min(one.pod.started_s or np.inf for one in self.members)
        highest = max(one.pod.spec.priority for one in self.members)
        return (not self.is_first, -highest, not self.gang, -len(self.members) if self.gang else 0, started_s)


class VictimTrial(Protocol):
    """Rows from which all units were removed, and the pods that need room there."""

    def restore(self, members: Members) -> Search[bool]:
        """Restores the members if the pods that need room still fit. If not, changes nothing and returns False."""
        ...

    def remove(self, members: Members) -> None:
        """Removes the members again."""
        ...

    def may_affect(self, member: PlacedPod) -> bool:
        """Returns False if removing the unit frees no capacity where capacity is needed now."""
        ...

    def can_free_room(self, member: PlacedPod) -> bool:
        """Returns False if removing the unit can never free capacity for the pods that need it."""
        ...


class Needed(NamedTuple):
    """The victims that remain of the units after all unneeded pods were restored."""

    victims: list[PlacedPod]
    whole_gangs: int
    """Gangs without a remaining member."""


def run_unpaused(search: Search[R]) -> R:
    """Returns the result of a search that never pauses."""
    try:
        next(search)
    except StopIteration as ended:
        result: R = ended.value
        return result
    raise AssertionError("a search paused that has to end in one step")


def needed(units: Iterable[Unit], trial: VictimTrial) -> Search[Needed | None]:
    """Restores whatever is not needed, unit by unit, the most important first. Raises what the trial raises.

    Gangs that must not be evicted whole come first. Returns None if more of one of them would have to be evicted than allowed.
    No proper subset of the result suffices, provided that more room never prevents a placement.
    """
    victims: list[PlacedPod] = []
    whole_gangs = 0
    for unit in sorted(units, key=lambda unit: (unit.can_evict_whole, *unit.importance)):
        if (yield from trial.restore(unit.members)):
            continue
        evicted = yield from _few_of(unit, trial)
        if len(evicted) > unit.surplus and not unit.can_evict_whole:
            return None
        victims += evicted
        whole_gangs += bool(unit.gang) and unit.can_evict_whole and len(evicted) == len(unit.members)
    return Needed(victims, whole_gangs)


def _few_of(unit: Unit, trial: VictimTrial) -> Search[Members]:
    """Returns members that the gang can spare, if they suffice, and restores the others. Else returns all, none restored."""
    if not unit.surplus:
        return unit.members
    far = [one for one in unit.members if not trial.may_affect(one)]
    near = [one for one in unit.members if trial.may_affect(one)]
    given = far if far and (yield from trial.restore(far)) else []
    left = list[PlacedPod]()
    for one in near if given else unit.members:
        (given if (yield from trial.restore((one,))) else left).append(one)
    if len(left) <= unit.surplus:
        return left
    trial.remove(given)
    helping = [one for one in (*near, *far) if trial.can_free_room(one)]
    subsets = (some for size in range(1, unit.surplus + 1) for some in combinations(helping, size))
    for some in islice(subsets, SUBSETS_MAX):
        uids = {one.pod.uid for one in some}
        if (yield from trial.restore([one for one in unit.members if one.pod.uid not in uids])):
            return some
    return unit.members


def units_of(
    pods: Iterable[PlacedPod],
    gangs: PlacedGangMembers,
    cache: ClusterCache,
    may_evict: Callable[[Sequence[Pod]], bool],
    own: Collection[str],
) -> list[Unit]:
    """Groups pods into units as far as their gangs can spare them.

    `may_evict`: reports whether all of these may be evicted. `own`: gangs of the preemptors, which are never evicted whole.
    """
    units, by_gang = list[Unit](), dict[str, list[PlacedPod]]()
    for one in pods:
        gang = None if one.pod.is_leaving else gangs.key_of(one.pod.uid)
        if gang is None:
            units.append(Unit((one,)))
        else:
            by_gang.setdefault(gang, []).append(one)
    for gang, some in by_gang.items():
        surplus = gangs.surplus(gang)
        if len(some) <= surplus:
            units += [Unit((one,)) for one in some]
            continue
        members = placed_members_of(gang, gangs, cache)
        if gang not in own and may_evict([one.pod for one in members]):
            units.append(Unit(members, gang, surplus))
        elif surplus:
            units.append(Unit(tuple(by_importance(some)), gang, surplus, can_evict_whole=False))
    return units


def own_gangs(preemptors: Iterable[Pod], gangs: PlacedGangMembers) -> frozenset[str]:
    """Returns the gangs of the preemptors. Evicting such a gang whole, for one of its own members, would only restart the gang."""
    return frozenset(key for pod in preemptors if (key := gangs.key_of(pod.uid)) is not None)


def gangs_are_spared(victims: Iterable[Pod], gangs: PlacedGangMembers) -> bool:
    """Reports whether each gang that loses pods keeps its minimum or is evicted whole, as of now."""
    by_gang: dict[str, set[str]] = {}
    for pod in victims:
        key = gangs.key_of(pod.uid)
        if key is not None:
            by_gang.setdefault(key, set()).add(pod.uid)
    for key, some in by_gang.items():
        staying = set(gangs.placed_members(key))
        if len(some & staying) > gangs.surplus(key) and not staying <= some:
            return False
    return True


def placed_members_of(gang: str, gangs: PlacedGangMembers, cache: ClusterCache) -> tuple[PlacedPod, ...]:
    """Returns all placed members of a gang, the most important first."""
    entries = (cache.placed(uid) for uid in gangs.placed_members(gang))
    return tuple(by_importance(entry for entry in entries if entry is not None))


def by_importance(pods: Iterable[PlacedPod]) -> list[PlacedPod]:
    """Sorts the most important first. Source: kube-scheduler 1.36, util.MoreImportantPod."""
    return sorted(pods, key=lambda one: (-one.pod.spec.priority, one.pod.started_s or np.inf, one.pod.uid))


def with_first(units: Iterable[Unit], first: Collection[str]) -> list[Unit]:
    """Sets `is_first` of the units. `first`: uids of pods whose eviction violates a disruption budget."""
    return [msgspec.structs.replace(unit, is_first=any(one.pod.uid in first for one in unit.members)) for unit in units]


def by_node(victims: Iterable[PlacedPod], node: str = "") -> dict[str, tuple[Pod, ...]]:
    """Groups the victims by node, the most important first. `node`: the node that comes first."""
    found: dict[str, tuple[Pod, ...]] = {}
    for one in sorted(by_importance(victims), key=lambda one: (one.node != node, one.node)):
        found[one.node] = (*found.get(one.node, ()), one.pod)
    return found
