"""Shares the event loop between decisions and what the watches bring: half and half where both have work.

The loop reads no more than some 64 KiB of a watch per turn. Decisions of five milliseconds a turn would leave its
events waiting for seconds. A watch is one line of all tenants: whoever posts large pods would hold up everybody's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TURNS_PER_READ = 2
"""Of the loop: in the first a chunk is read, in the second its events are handled."""

READS_MAX = 64
"""Chunks after which decisions go on, whatever the clock says."""


class NewsShare:
    """One for the program; every cycle that has decided for a while asks it for a pause."""

    def __init__(self, handled: Callable[[], int], monotonic: Callable[[], float]) -> None:
        """`handled`: how many events of watches have been handled since the start."""
        self._handled = handled
        self._monotonic = monotonic

    async def pause(self, seconds: float) -> None:
        """Lets the loop run: once, and on as long as events keep coming, up to so many seconds."""
        ends_s = self._monotonic() + seconds
        for _ in range(READS_MAX):
            handled = self._handled()
            for _ in range(TURNS_PER_READ):
                await asyncio.sleep(0)
            if self._handled() == handled or self._monotonic() >= ends_s:
                return
