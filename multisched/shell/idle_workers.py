"""Tasks of one kind that wait for work, woken one by one: an event would wake all sixty-four for one bind."""

from __future__ import annotations

import asyncio
from collections import deque


class IdleWorkers:
    """Whoever finds no work sleeps here; whoever brings some wakes one.

    No work is left lying. A task looks for work right before it sleeps, with no await in between. Tasks that are awake
    look again before they sleep.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    async def sleep(self) -> None:
        """Until woken, first come, first served. May wake to find that somebody else was faster."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(woken)
        await woken

    def wake_one(self) -> None:
        """Nobody, if nobody sleeps."""
        while self._waiting:
            woken = self._waiting.popleft()
            if not woken.done():  # else it was cancelled in its sleep
                woken.set_result(None)
                return
