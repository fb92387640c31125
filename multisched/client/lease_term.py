"""The time during which this process may bind by a lease, measured by the local monotonic clock only.

Owns the lease's local deadlines. `may_bind` turns false before another replica can rightly hold the lease (I9). Written
by the `LeaseKeeper` of the lease; read by the code that binds, also from another thread.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import Final

import msgspec

from multisched.framework.ports import Clock

RETRY_JITTER: Final = 1.2


class LeaseSettings(msgspec.Struct, frozen=True):
    """client-go's defaults and checks; `bind_deadline_s` is how long a bind of the former leader may still be in flight."""

    duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_period_s: float = 2.0
    bind_deadline_s: float = 5.0

    def __post_init__(self) -> None:
        if self.duration_s < 1 or self.duration_s != int(self.duration_s):
            raise ValueError(f"the lease duration is whole seconds, at least 1, got {self.duration_s}")
        if self.duration_s <= self.renew_deadline_s:
            raise ValueError(
                f"lease duration {self.duration_s} s must exceed the renew deadline {self.renew_deadline_s} s"
            )
        if self.retry_period_s <= 0 or self.renew_deadline_s <= RETRY_JITTER * self.retry_period_s:
            raise ValueError(
                f"the renew deadline {self.renew_deadline_s} s must exceed {RETRY_JITTER} x the retry period {self.retry_period_s} s"
            )
        if not 0 <= self.bind_deadline_s <= self.duration_s - self.renew_deadline_s:
            raise ValueError(
                f"the bind deadline {self.bind_deadline_s} s must fit between renew deadline and lease duration"
            )


class LeaseState(Enum):
    """State of the keeper."""

    STANDBY = auto()
    """Another process leads, or the holder is unknown."""
    LEADING = auto()
    """This process holds the lease."""
    RELEASED = auto()
    """Stopped; final."""


class LeaseTerm:
    """`ports.LeaseHolder` for one lease: the current or the last holding."""

    def __init__(self, clock: Clock, settings: LeaseSettings) -> None:
        self.state = LeaseState.STANDBY
        self.number = 0
        """Number of the current or last holding, from 1."""
        self._clock = clock
        self._settings = settings
        self._renewed_at = -math.inf
        self._bind_from = math.inf
        self._unrecorded_holder_until = -math.inf
        """Time from which no other process can bind by a lease that our first read did not find: it may have been deleted
        before, while its holder still binds.
        """

    @property
    def is_leading(self) -> bool:
        return self.state is LeaseState.LEADING

    def may_bind(self) -> bool:
        """Returns whether binds may be sent: from the end of the wait after an expired lease until `renew_deadline_s`
        after the last renewal *began*.

        The difference to the lease's duration is the margin for binds that are sent at the last moment (I9). May be
        called from another thread than the keeper's: the fields it reads are set before the state becomes LEADING.
        """
        return self.may_bind_if_new() and self._unrecorded_holder_until <= self._clock.monotonic()

    def may_bind_if_new(self) -> bool:
        """Returns `may_bind` on the assumption that a lease which the first read did not find never existed."""
        now = self._clock.monotonic()
        return (
            self.state is LeaseState.LEADING
            and self._bind_from <= now < self._renewed_at + self._settings.renew_deadline_s
        )

    def may_bind_in_s(self) -> float:
        """Returns the seconds until `may_bind` becomes true by itself; 0 if it is true, infinite while not leading."""
        if self.state is not LeaseState.LEADING:
            return math.inf
        return max(self._bind_from - self._clock.monotonic(), self.unrecorded_holder_wait_s(), 0.0)

    def unrecorded_holder_wait_s(self) -> float:
        """Returns the seconds until no process can bind by a lease that was deleted before our first read; negative if
        that is past.
        """
        return self._unrecorded_holder_until - self._clock.monotonic()

    @property
    def creation_began_at(self) -> float:
        """The time at which the creation of a lease that was not found began; minus infinity for any other."""
        return self._unrecorded_holder_until - self._settings.duration_s

    def count_as_new(self) -> None:
        """Records that no process held the lease before this one created it."""
        self._unrecorded_holder_until = -math.inf

    # -- called by the keeper --------------------------------------------------------------------------------------

    def remaining_s(self) -> float:
        """Returns the seconds until the renew deadline."""
        return self._renewed_at + self._settings.renew_deadline_s - self._clock.monotonic()

    def note_creation(self, started: float) -> None:
        """Records that a request of time `started` creates a lease that was not found."""
        self._unrecorded_holder_until = started + self._settings.duration_s

    def begin(self, *, after_expiry: bool, started: float) -> None:
        """Starts a holding, except for the state. If an expired lease was lost and is taken again, the wait for its
        last holder's binds still applies.
        """
        wait_s = self._settings.bind_deadline_s if after_expiry else 0.0
        former_s = self._bind_from if self.number else -math.inf
        self._bind_from = max(self._clock.monotonic() + wait_s, former_s)
        self.number += 1
        self._renewed_at = started

    def renewed(self, started: float) -> None:
        """Records a renewal by a request of time `started`."""
        self._renewed_at = started

    def close(self) -> None:
        """Stops all binds by the lease."""
        self._bind_from = math.inf

    def enter(self, state: LeaseState) -> None:
        assert self.state is not LeaseState.RELEASED, "a released lease is not taken up again"
        self.state = state
