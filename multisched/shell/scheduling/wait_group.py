"""Counts the binds and preemptions of a domain in flight. The domain's lease may be released only when there are none."""

from __future__ import annotations

import asyncio


class WaitGroup:
    """A counter of operations in flight, like Go's sync.WaitGroup."""

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
        """Waits until the counter is zero."""
        while self._count:
            self._empty.clear()
            await self._empty.wait()
