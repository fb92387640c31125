"""What plugins and queues see of gangs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import Final, Protocol, runtime_checkable

import msgspec

from multisched.framework.standing_gangs import StandingGangs

GANG_PLUGIN: Final = "GangScheduling"
"""The plugin by whose events gangs are woken, also where no plugin refused a member. Profiles without it know no gangs."""


class Reserving(Enum):
    """Whether a gang may reserve room that becomes free."""

    NO = "no"
    NOW = "now"
    ENDED = "ended"
    """It was its turn until now: what its members are nominated to is taken back in its next attempt."""


class ReservePolicy(msgspec.Struct, frozen=True):
    """When gangs may reserve room."""

    after_s: float
    """So long a gang must have waited since it could first be tried."""
    for_s: float
    """One turn takes so long at most, and the pause after it as long."""


@runtime_checkable
class ReservingPlugin(Protocol):
    """Has gangs reserve room."""

    name: str
    reserve_policy: ReservePolicy


class GangCounts(msgspec.Struct, frozen=True):
    """One gang in numbers."""

    least: int
    """Fewer do not start; 0 where nobody says."""
    present: int
    """Members that stand, could be tried, or have finished."""
    bound: int
    """Members that have nodes and are not being deleted."""
    running: int
    """Of those."""
    finished: int
    """Members that ended well and count: they have the same owner as a living member."""
    has_started: bool
    """Its minimum was bound, and since then there was always a member that stays or has finished."""
    is_overdue: bool
    """Its members have waited for one another longer than it lets them."""
    refusal: str
    """Why its members found no nodes when they were last tried; empty where they were not, or enough have."""
    problem: str
    """What is wrong with it; empty for a good one."""
    why: str
    """Why its members cannot be tried now; empty where they can."""
    waiting: tuple[str, ...]
    """Names of members that are not bound: some of them, where they are many."""
    owners: tuple[str, ...]
    """Names of workloads that its members are of: some of them."""
    schedulers: frozenset[str]
    """schedulerNames of its members; of the latest, where all have finished."""


class GangView(StandingGangs, Protocol):
    """Read access to the roster of gangs. A key is namespace/name."""

    def together_with(self, key: str) -> Sequence[str]:
        """Gangs that start with this one, itself among them."""
        ...

    def why_not_yet(self, key: str) -> str:
        """Why members of the gang cannot be tried now; empty: they can, or it has started."""
        ...

    def counts(self, key: str) -> GangCounts | None:
        """The gang in numbers; None for an unknown one. O(members)."""
        ...

    def reserving(self, key: str) -> Reserving:
        """Whether the gang may reserve room; NO for an unknown one."""
        ...


class NoGangs:
    """Where nobody belongs to a gang."""

    version = 0

    def __len__(self) -> int:
        return 0

    def key_of(self, uid: str) -> str | None:
        return None

    def together_with(self, key: str) -> Sequence[str]:
        return (key,)

    def why_not_yet(self, key: str) -> str:
        return ""

    def counts(self, key: str) -> GangCounts | None:
        return None

    def reserving(self, key: str) -> Reserving:
        return Reserving.NO

    def standing(self, key: str) -> Collection[str]:
        return ()

    def surplus(self, key: str) -> int:
        return 0
