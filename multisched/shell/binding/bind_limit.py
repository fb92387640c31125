"""How many binds a domain has in flight: additive increase, halving on 429, as TCP does with packets."""

from __future__ import annotations

import asyncio
from collections import deque

from multisched.framework.ports import BindAnswer

LIMIT_MIN = 2.0


class BindLimit:
    """A gate whose width follows what the API server bears. Never wider than `width_max`."""

    def __init__(self, width_max: int) -> None:
        self.width_max = float(width_max)
        self.width = min(16.0, self.width_max)
        self.in_flight = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._sent_before = 0
        """Binds still under way that were sent at the width before the last halving."""

    def set_max(self, width_max: int) -> None:
        """Binds under way beyond a narrower limit end as they would."""
        self.width_max = float(width_max)
        self.width = min(self.width, self.width_max)

    async def enter(self) -> None:
        """Waits for a place, first come first served: a place that becomes free is handed to whoever waits longest."""
        if not self._waiters and self.in_flight < int(self.width):
            self.in_flight += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(place)
        try:
            await place
        except BaseException:
            if place.done() and not place.cancelled():
                self.leave()  # it was handed to a waiter that has been cancelled since
            raise

    def leave(self) -> None:
        self.in_flight -= 1
        self._hand_over()

    def observe(self, answer: BindAnswer) -> None:
        """A definite success widens by one place per round; a throttled answer halves, once per round trip.

        The other refusals of binds that were sent at the same width tell the same thing again: sixteen at once would
        otherwise leave two places.
        """
        is_old_news = self._sent_before > 0
        self._sent_before -= is_old_news
        if answer is BindAnswer.THROTTLED:
            if is_old_news:
                return
            self._sent_before = max(0, self.in_flight - 1)
            self.width = max(min(LIMIT_MIN, self.width_max), self.width / 2)
        elif answer is BindAnswer.CREATED and self.width < self.width_max:
            self.width = min(self.width_max, self.width + 1 / self.width)
            self._hand_over()

    def _hand_over(self) -> None:
        while self._waiters and self.in_flight < int(self.width):
            place = self._waiters.popleft()
            if not place.done():
                self.in_flight += 1
                place.set_result(None)
