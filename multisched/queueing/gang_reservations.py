"""Turns to reserve capacity: of the gangs of one queue that have waited too long, one at a time, each for a limited time.

After an unsuccessful turn no gang reserves for as long as a turn may take. So capacity is kept idle for at most half of
the time, however many gangs wait. A turn ends when its gang has started, or can no longer be tried. This class only
decides. `PodQueue` requeues the gang when its turn begins or ends, and that attempt nominates its members, or drops the
nominations.
"""

from __future__ import annotations

from typing import Final

from multisched.framework.gangs import ReservePolicy, Reserving
from multisched.queueing.gang_entries import GangEntries

LOOK_S: Final = 1.0
"""Interval between checks of the waiting gangs."""


class GangReservations:
    """The turns of one queue's gangs."""

    def __init__(self, gangs: GangEntries) -> None:
        self.policy: ReservePolicy | None = None
        """None: no gang reserves capacity."""
        self._gangs = gangs
        self._until_s = 0.0
        self._next_s = 0.0
        """No turn begins before this time."""

    def change(self, now_s: float) -> str:
        """Returns the gang whose turn begins or ends now and which must be tried; empty: no change."""
        gangs, turns = self._gangs, self._gangs.turns
        if turns.holder:
            return self._end(turns.holder, now_s)
        if self.policy is None or now_s < self._next_s:
            return ""
        self._next_s = now_s + LOOK_S
        key = gangs.next_turn(now_s - self.policy.after_s)
        if key:
            turns.holder, self._until_s = key, now_s + self.policy.for_s
            turns.begun += 1
            gangs.note_reserving(key, Reserving.NOW)
        return key

    def _end(self, key: str, now_s: float) -> str:
        gangs, turns = self._gangs, self._gangs.turns
        is_led = gangs.is_led(key)
        if not is_led and gangs.has_started(key):
            turns.holder, self._next_s = "", now_s
            gangs.note_reserving(key, Reserving.NO)
            return ""
        if self.policy is not None and now_s < self._until_s and is_led:
            return ""
        turns.holder, self._next_s = "", now_s + (0.0 if self.policy is None else self.policy.for_s)
        turns.expired += 1
        gangs.note_reserving(key, Reserving.ENDED)
        return key

    def next_s(self) -> float | None:
        """Returns the next time at which `change` may have something to do; None: never."""
        if self._gangs.turns.holder:
            return self._until_s
        return None if self.policy is None or not self._gangs.are_any else self._next_s
