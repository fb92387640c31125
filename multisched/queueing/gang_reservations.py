"""Whose turn it is to reserve room: of the gangs of one queue that wait too long, one at a time, each for a bounded time.

After a turn that led to nothing nobody reserves for as long as a turn may be. So no room is kept idle for more than half
of the time, however many gangs wait. A turn ends when its gang has started, or may not be tried any more.
Decides only. `PodQueue` has the gang tried when its turn begins or ends, and that attempt nominates its members, or takes
the nominations back.
"""

from __future__ import annotations

from typing import Final

from multisched.framework.gangs import ReservePolicy, Reserving
from multisched.queueing.gang_entries import GangEntries

LOOK_S: Final = 1.0
"""Between two looks at the gangs that wait."""


class GangReservations:
    """Of one queue."""

    def __init__(self, gangs: GangEntries) -> None:
        self.policy: ReservePolicy | None = None
        """None: no gang reserves anything."""
        self._gangs = gangs
        self._until_s = 0.0
        self._next_s = 0.0
        """Before then no turn begins."""

    def change(self, now_s: float) -> str:
        """The gang whose turn begins or ends now, which is to be tried; empty: nothing changes."""
        gangs, turns = self._gangs, self._gangs.turns
        if turns.holder:
            return self._end(turns.holder, now_s)
        if self.policy is None or now_s < self._next_s:
            return ""
        self._next_s = now_s + LOOK_S
        key = gangs.longest_waiting(now_s - self.policy.after_s)
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
        """When `change` will have something to do; None: never, as things stand."""
        if self._gangs.turns.holder:
            return self._until_s
        return None if self.policy is None or not self._gangs.are_any else self._next_s
