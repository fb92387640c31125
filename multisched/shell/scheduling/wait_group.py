"""What has begun in a domain and has not ended: its lease may be given back once that is nothing."""

from __future__ import annotations

import asyncio


class WaitGroup:
    """Counts binds and preemptions under way, as Go's sync.WaitGroup does."""

    def __init__(self) -> None:
        self._count = 0
        self._empty = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        return not self._count

    def add(self) -> None:
        self._count += 1

    def done(self) -> None:
        self._count -= 1
        if not self._count:
            self._empty.set()

    async def wait(self) -> None:
        """Returns while nothing is under way."""
        while self._count:
            self._empty.clear()
            await self._empty.wait()
