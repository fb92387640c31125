"""Limits the number of binds of a domain in flight; `AdaptiveWidth` decides how many."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from multisched.framework.ports import BindAnswer
from multisched.shell.adaptive_width import AdaptiveWidth, Bounds

CALM_BINDS: Final = 16
"""Number of binds in flight whose latency counts as unloaded."""
_OVERLOAD: Final = frozenset({BindAnswer.THROTTLED, BindAnswer.UNKNOWN})
_ANSWERS: Final = frozenset({BindAnswer.CREATED, BindAnswer.CONFLICT, BindAnswer.NOT_FOUND})


class BindLimit:
    """A semaphore whose number of slots adapts to the API server's answers."""

    def __init__(self, bounds: Bounds) -> None:
        self.in_flight = 0
        self._adaptive = AdaptiveWidth(bounds, CALM_BINDS)
        self.width = int(self._adaptive.width)
        """Number of binds that may be in flight now."""
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def bounds(self) -> Bounds:
        """The range of `width`."""
        return self._adaptive.bounds

    @property
    def unloaded_s(self) -> float:
        """See `AdaptiveWidth`."""
        return self._adaptive.unloaded_s

    def set_bounds(self, bounds: Bounds) -> None:
        """Changes the range of the width. Binds already in flight beyond it are not cancelled."""
        self._adaptive.limit(bounds)
        self.width = int(self._adaptive.width)
        self._admit_waiters()

    async def enter(self) -> None:
        """Waits for a slot, first in, first out: a free slot is handed to the longest waiter."""
        if not self._waiters and self.in_flight < self.width:
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
        if self._waiters:
            self._admit_waiters()

    def observe(self, answer: BindAnswer, sent_s: float, now_s: float) -> None:
        """Adapts the width to the answer to one POST, which was sent at `sent_s` (monotonic seconds)."""
        if answer in _OVERLOAD:
            self._adaptive.refused(sent_s, now_s)
        elif answer in _ANSWERS:
            self._adaptive.answered(sent_s, now_s, self.in_flight)
        self.width = int(self._adaptive.width)
        if self._waiters:
            self._admit_waiters()

    def _admit_waiters(self) -> None:
        while self._waiters and self.in_flight < self.width:
            slot = self._waiters.popleft()
            if not slot.done():
                self.in_flight += 1
                slot.set_result(None)
