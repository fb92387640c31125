"""Wakes idle tasks one at a time. An `asyncio.Event` would wake all of them for one piece of work."""

from __future__ import annotations

import asyncio
from collections import deque


class IdleWorkers:
    """The idle tasks of one kind. A task without work calls `sleep`; the producer of work calls `wake_one`.

    No work is lost: a task checks for work right before it sleeps, without an await in between.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    async def sleep(self) -> None:
        """Waits until woken; tasks are woken in FIFO order. Another task may have taken the work by then."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(woken)
        await woken

    def wake_one(self) -> None:
        """Wakes the task that has slept longest; does nothing if none sleeps."""
        while self._waiting:
            woken = self._waiting.popleft()
            if not woken.done():  # done means that the sleeping task was cancelled
                woken.set_result(None)
                return
