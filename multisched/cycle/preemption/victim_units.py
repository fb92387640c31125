"""Victims in units, and which few of them are needed.

A pod is a unit of one. A gang loses the surplus over its minimum pod by pod. Beyond that it is one unit, which goes whole,
on whatever nodes its members stand. Owns nothing that changes; what the victims make room for is the
caller's (`Ground`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from itertools import combinations, islice
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np

from multisched.framework.standing_gangs import StandingGangs
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache, PlacedPod

SUBSETS_MAX: Final = 64
"""Sets of members of one gang that are tried in place of the whole gang. Beyond them it goes whole."""

R = TypeVar("R")

Members = Sequence[PlacedPod]
Search = Generator[None, None, R]
"""Yields where the event loop may run, and ends with a result."""


class Unit(msgspec.Struct, frozen=True):
    """Pods that go together."""

    members: tuple[PlacedPod, ...]
    """The most important first."""
    gang: str = ""
    """The gang that they are, all that stand of it; empty for a pod that may go alone."""
    surplus: int = 0
    """As many of them may go without the others."""
    may_go_whole: bool = True
    """False for some of a gang that has members who may not go: never more than the surplus goes."""
    is_first: bool = False
    """It is given back before those that are not, as its removal breaks a budget."""
    order: tuple[float, ...] = ()
    """Where it is not empty, it decides alone: the least is given back first."""

    @property
    def importance(self) -> tuple[float, ...]:
        """Ascending: the first is given back first.

        By priority, then gangs before pods, larger gangs before smaller ones, then by the earliest start (source:
        kube-scheduler 1.37, pod group preemption).
        """
        if self.order:
            return self.order
        started_s = min(one.pod.started_s or np.inf for one in self.members)
        highest = max(one.pod.spec.priority for one in self.members)
        return (not self.is_first, -highest, not self.gang, -len(self.members) if self.gang else 0, started_s)


class Ground(Protocol):
    """Rows from which all units are gone at first, and what is to find room there."""

    def give_back(self, members: Members) -> Search[bool]:
        """They stand again if all that is to be placed finds room beside them. False: it does not, and all is as before."""
        ...

    def take_away(self, members: Members) -> None:
        """They are gone again."""
        ...

    def is_near(self, member: PlacedPod) -> bool:
        """False for one whose leaving makes no room where room is wanted at this moment."""
        ...

    def could_help(self, member: PlacedPod) -> bool:
        """False for one whose leaving never makes room for what is to be placed."""
        ...


class Needed(NamedTuple):
    """What is left of the units once all that can be spared are given back."""

    victims: list[PlacedPod]
    whole_gangs: int
    """Gangs of which nobody is left."""


def at_once(search: Search[R]) -> R:
    """The result of a search that never pauses."""
    try:
        next(search)
    except StopIteration as ended:
        result: R = ended.value
        return result
    raise AssertionError("a search paused that has to end in one step")


def needed(units: Iterable[Unit], ground: Ground) -> Search[Needed | None]:
    """Gives back unit by unit, the most important first, whatever is not needed. Raises what the ground raises.

    Before all others come gangs that may not go whole. None: more of one of them would have to go than may. No proper subset
    of what it returns would do, as long as more room never hinders what is to be placed.
    """
    victims: list[PlacedPod] = []
    whole_gangs = 0
    for unit in sorted(units, key=lambda unit: (unit.may_go_whole, *unit.importance)):
        if (yield from ground.give_back(unit.members)):
            continue
        going = yield from _few_of(unit, ground)
        if len(going) > unit.surplus and not unit.may_go_whole:
            return None
        victims += going
        whole_gangs += bool(unit.gang) and unit.may_go_whole and len(going) == len(unit.members)
    return Needed(victims, whole_gangs)


def _few_of(unit: Unit, ground: Ground) -> Search[Members]:
    """Members that the gang can spare, if those are enough: the others stand again. Else all, who are gone as before."""
    if not unit.surplus:
        return unit.members
    far = [one for one in unit.members if not ground.is_near(one)]
    near = [one for one in unit.members if ground.is_near(one)]
    given = far if far and (yield from ground.give_back(far)) else []
    left = list[PlacedPod]()
    for one in near if given else unit.members:
        (given if (yield from ground.give_back((one,))) else left).append(one)
    if len(left) <= unit.surplus:
        return left
    ground.take_away(given)
    helping = [one for one in (*near, *far) if ground.could_help(one)]
    subsets = (some for size in range(1, unit.surplus + 1) for some in combinations(helping, size))
    for some in islice(subsets, SUBSETS_MAX):
        uids = {one.pod.uid for one in some}
        if (yield from ground.give_back([one for one in unit.members if one.pod.uid not in uids])):
            return some
    return unit.members


def units_of(
    pods: Iterable[PlacedPod],
    gangs: StandingGangs,
    cache: ClusterCache,
    may_go: Callable[[Sequence[Pod]], bool],
) -> list[Unit]:
    """The units of these pods, each of which may go as far as its gang can spare it. `may_go`: whether all of these may."""
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
        members = standing_members(gang, gangs, cache)
        if may_go([one.pod for one in members]):
            units.append(Unit(members, gang, surplus))
        elif surplus:
            units.append(Unit(tuple(by_importance(some)), gang, surplus, may_go_whole=False))
    return units


def gangs_are_spared(victims: Iterable[Pod], gangs: StandingGangs) -> bool:
    """Whether each gang that loses pods here keeps its minimum or goes whole, as things stand now."""
    by_gang: dict[str, set[str]] = {}
    for pod in victims:
        key = gangs.key_of(pod.uid)
        if key is not None:
            by_gang.setdefault(key, set()).add(pod.uid)
    for key, some in by_gang.items():
        staying = set(gangs.standing(key))
        if len(some & staying) > gangs.surplus(key) and not staying <= some:
            return False
    return True


def standing_members(gang: str, gangs: StandingGangs, cache: ClusterCache) -> tuple[PlacedPod, ...]:
    """All that stand of a gang, the most important first."""
    entries = (cache.placed(uid) for uid in gangs.standing(gang))
    return tuple(by_importance(entry for entry in entries if entry is not None))


def by_importance(pods: Iterable[PlacedPod]) -> list[PlacedPod]:
    """Source: kube-scheduler 1.36, util.MoreImportantPod."""
    return sorted(pods, key=lambda one: (-one.pod.spec.priority, one.pod.started_s or np.inf, one.pod.uid))


def with_first(units: Iterable[Unit], first: Collection[str]) -> list[Unit]:
    """`first`: uids of pods whose removal breaks a budget."""
    return [msgspec.structs.replace(unit, is_first=any(one.pod.uid in first for one in unit.members)) for unit in units]


def by_node(victims: Iterable[PlacedPod], node: str = "") -> dict[str, tuple[Pod, ...]]:
    """The victims of each node, the most important first. `node`: comes first of all."""
    found: dict[str, tuple[Pod, ...]] = {}
    for one in sorted(by_importance(victims), key=lambda one: (one.node != node, one.node)):
        found[one.node] = (*found.get(one.node, ()), one.pod)
    return found
