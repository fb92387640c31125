"""Shares the event loop between scheduling and watch events: half of the time each if both have work.

One turn of the loop reads at most about 64 KiB of a watch. If scheduling took 5 ms in every turn, watch events would wait for
seconds. One watch serves all tenants, so large pods of one tenant would delay the events of all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TURNS_PER_READ = 2
"""Turns of the event loop per chunk: the first reads it, the second handles its events."""

READS_MAX = 64
"""Maximum number of chunks after which scheduling continues, even if the time is not over."""


class EventTimeShare:
    """Pauses of scheduling tasks for watch events. One per program; each scheduling task calls `pause` after a slice of work."""

    def __init__(self, handled: Callable[[], int], monotonic: Callable[[], float]) -> None:
        """`handled`: returns the number of watch events handled since the start."""
        self._handled = handled
        self._monotonic = monotonic

    async def pause(self, seconds: float) -> None:
        """Yields to the event loop once, and again while watch events are being handled, for at most `seconds`."""
        ends_s = self._monotonic() + seconds
        for _ in range(READS_MAX):
            handled = self._handled()
            for _ in range(TURNS_PER_READ):
                await asyncio.sleep(0)
            if self._handled() == handled or self._monotonic() >= ends_s:
                return
