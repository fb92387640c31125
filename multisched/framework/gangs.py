"""The view of gangs for plugins and queues."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import Final, Protocol, runtime_checkable

import msgspec

from multisched.framework.placed_gang_members import PlacedGangMembers

GANG_PLUGIN: Final = "GangScheduling"
"""The plugin whose events requeue gangs, even if no plugin refused a member. A profile without it has no gangs."""


class Reserving(Enum):
    """Whether a gang may reserve capacity that becomes free."""

    NO = "no"
    NOW = "now"
    ENDED = "ended"
    """Its time for reserving is over: its next attempt drops the nominations of its members."""


class ReservePolicy(msgspec.Struct, frozen=True):
    """When gangs may reserve capacity."""

    after_s: float
    """Time that a gang must have waited since it could first be tried."""
    for_s: float
    """Longest time for which a gang may reserve, and length of the pause after that."""


@runtime_checkable
class ReservingPlugin(Protocol):
    """A plugin that lets gangs reserve capacity."""

    name: str
    reserve_policy: ReservePolicy


class GangCounts(msgspec.Struct, frozen=True):
    """Counts and state of one gang."""

    least: int
    """Minimum members to start; 0 if none is declared."""
    present: int
    """Members that are placed, can be tried, or have finished."""
    bound: int
    """Members that have nodes and are not being deleted."""
    running: int
    """Bound members that are running."""
    finished: int
    """Members that succeeded and still count: they have the same owner as a living member."""
    has_started: bool
    """Its minimum was bound once, and since then it always had a placed or finished member."""
    is_overdue: bool
    """Its members have waited for each other longer than its timeout."""
    refusal: str
    """Why its members found no nodes in the last attempt; empty if there was none, or if enough members have nodes."""
    problem: str
    """Why the gang is invalid; empty for a valid one."""
    why: str
    """Why its members cannot be tried now; empty if they can."""
    waiting: tuple[str, ...]
    """Names of unbound members; a sample if there are many."""
    owners: tuple[str, ...]
    """Names of workloads that own its members; a sample."""
    schedulers: frozenset[str]
    """schedulerNames of its members; if all have finished, of the latest."""


class KnownGang(Protocol):
    """A gang of the roster."""

    @property
    def key(self) -> str: ...


class GangView(PlacedGangMembers, Protocol):
    """Read access to the gang roster. A key is namespace/name."""

    def gangs(self) -> Iterable[KnownGang]:
        """Returns all gangs. A live view: copy it before gangs are added."""
        ...

    def together_with(self, key: str) -> Sequence[str]:
        """Returns the gangs that start together with this one, including itself."""
        ...

    def why_not_yet(self, key: str) -> str:
        """Returns why members of the gang cannot be tried now; empty: they can, or the gang has started."""
        ...

    def counts(self, key: str) -> GangCounts | None:
        """Returns the counts of the gang; None for an unknown one. O(members)."""
        ...

    def reserving(self, key: str) -> Reserving:
        """Returns whether the gang may reserve capacity; NO for an unknown one."""
        ...


class NoGangs:
    """An empty `GangView`."""

    version = 0

    def __len__(self) -> int:
        return 0

    def key_of(self, uid: str) -> str | None:
        return None

    def gangs(self) -> Iterable[KnownGang]:
        return ()

    def together_with(self, key: str) -> Sequence[str]:
        return (key,)

    def why_not_yet(self, key: str) -> str:
        return ""

    def counts(self, key: str) -> GangCounts | None:
        return None

    def reserving(self, key: str) -> Reserving:
        return Reserving.NO

    def placed_members(self, key: str) -> Collection[str]:
        return ()

    def surplus(self, key: str) -> int:
        return 0

    def needs(self, key: str) -> int:
        return 0
