"""Limits the number of binds of a domain in flight: additive increase, halving on 429 (AIMD, as in TCP)."""

from __future__ import annotations

import asyncio
from collections import deque

from multisched.framework.ports import BindAnswer

LIMIT_MIN = 2.0


class BindLimit:
    """A semaphore whose width adapts to the API server's answers. Never wider than `width_max`."""

    def __init__(self, width_max: int) -> None:
        self.width_max = float(width_max)
        self.width = min(16.0, self.width_max)
        self.in_flight = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._sent_before = 0
        """Binds in flight that were sent before the last halving."""

    def set_max(self, width_max: int) -> None:
        """Changes the maximum width. Binds already in flight beyond it are not cancelled."""
        self.width_max = float(width_max)
        self.width = min(self.width, self.width_max)

    async def enter(self) -> None:
        """Waits for a slot, first in, first out: a free slot is handed to the longest waiter."""
        if not self._waiters and self.in_flight < int(self.width):
            self.in_flight += 1
            return
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(slot)
        try:
            await slot
        except BaseException:
            if slot.done() and not slot.cancelled():
                self.leave()  # the slot was handed over just before this waiter was cancelled
            raise

    def leave(self) -> None:
        self.in_flight -= 1
        self._admit_waiters()

    def observe(self, answer: BindAnswer) -> None:
        """Widens by one slot per round of successes; halves on a throttled answer, at most once per round trip.

        Further throttled answers to binds that were sent before the halving are ignored: else sixteen of them would reduce
        the width to LIMIT_MIN.
        """
        was_sent_before = self._sent_before > 0
        self._sent_before -= was_sent_before
        if answer is BindAnswer.THROTTLED:
            if was_sent_before:
                return
            self._sent_before = max(0, self.in_flight - 1)
            self.width = max(min(LIMIT_MIN, self.width_max), self.width / 2)
        elif answer is BindAnswer.CREATED and self.width < self.width_max:
            self.width = min(self.width_max, self.width + 1 / self.width)
            self._admit_waiters()

    def _admit_waiters(self) -> None:
        while self._waiters and self.in_flight < int(self.width):
            slot = self._waiters.popleft()
            if not slot.done():
                self.in_flight += 1
                slot.set_result(None)
