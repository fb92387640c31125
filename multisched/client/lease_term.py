"""How long this process may bind by a lease: its holding of it, judged by the local monotonic clock only.

Owns the lease's local deadlines. Promises that `may_bind` turns false before another replica can rightly hold the lease (I9).
Written by the `LeaseKeeper` whose lease it is; read by whoever binds, from another thread too.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import Final

import msgspec

from multisched.framework.ports import Clock

RETRY_JITTER: Final = 1.2


class LeaseSettings(msgspec.Struct, frozen=True):
    """client-go's defaults and checks; `bind_deadline_s` is how long a bind of the former leader may still be on its way."""

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
    """Where the keeper stands."""

    STANDBY = auto()
    """Somebody else leads, or nobody knows."""
    LEADING = auto()
    """We hold the lease."""
    RELEASED = auto()
    """Stopped for good."""


class LeaseTerm:
    """`ports.LeaseHolder` for one lease: the present holding, or the last one."""

    def __init__(self, clock: Clock, settings: LeaseSettings) -> None:
        self.state = LeaseState.STANDBY
        self.number = 0
        """Of the present or last holding, from 1."""
        self._clock = clock
        self._settings = settings
        self._renewed_at = -math.inf
        self._bind_from = math.inf
        self._alone_from = -math.inf
        """From then on nobody else binds by a lease that somebody deleted before we looked: we found none, and cannot know."""

    @property
    def is_leading(self) -> bool:
        return self.state is LeaseState.LEADING

    def may_bind(self) -> bool:
        """True from the end of the waiting after an expired lease until `renew_deadline_s` after the last renewal *began*.

        The difference to the lease's duration is the margin for the binds that are sent in the last moment (I9). May be called from
        another thread than the keeper's: what it reads is set before the state says that we lead.
        """
        return self.may_bind_if_new() and self._alone_from <= self._clock.monotonic()

    def may_bind_if_new(self) -> bool:
        """`may_bind`, if a lease that was not there when we first looked never was."""
        now = self._clock.monotonic()
        return (
            self.state is LeaseState.LEADING
            and self._bind_from <= now < self._renewed_at + self._settings.renew_deadline_s
        )

    def may_bind_in_s(self) -> float:
        """Seconds until `may_bind` turns true by itself; 0 if it is, infinite while another leads."""
        if self.state is not LeaseState.LEADING:
            return math.inf
        return max(self._bind_from - self._clock.monotonic(), self.unseen_in_s(), 0.0)

    def unseen_in_s(self) -> float:
        """Seconds until nobody can bind any more by a lease that was deleted before we first looked; negative if nobody can."""
        return self._alone_from - self._clock.monotonic()

    @property
    def made_unseen_at(self) -> float:
        """When we began to make a lease that we had not found; minus infinite for any other."""
        return self._alone_from - self._settings.duration_s

    def count_as_new(self) -> None:
        """Nobody held the lease before it was made by us."""
        self._alone_from = -math.inf

    # -- called by the keeper --------------------------------------------------------------------------------------

    def remaining_s(self) -> float:
        """Until the renew deadline."""
        return self._renewed_at + self._settings.renew_deadline_s - self._clock.monotonic()

    def began_to_make(self, started: float) -> None:
        """A lease that we had not found is being made, by a request of that moment."""
        self._alone_from = started + self._settings.duration_s

    def begin(self, *, after_expiry: bool, started: float) -> None:
        """All but the state. Who loses an expired lease and takes it back waits for its last holder's binds all the same."""
        wait_s = self._settings.bind_deadline_s if after_expiry else 0.0
        former_s = self._bind_from if self.number else -math.inf
        self._bind_from = max(self._clock.monotonic() + wait_s, former_s)
        self.number += 1
        self._renewed_at = started

    def renewed(self, started: float) -> None:
        """By a request of that moment."""
        self._renewed_at = started

    def close(self) -> None:
        """Nothing is bound by the lease from now on."""
        self._bind_from = math.inf

    def enter(self, state: LeaseState) -> None:
        assert self.state is not LeaseState.RELEASED, "a released lease is not taken up again"
        self.state = state
