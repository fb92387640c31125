"""A real event loop whose clock can be set ahead: for deadlines that must pass while sockets, threads and processes are real.

Deadlines are made so long that no machine is too slow for what comes before; when that has come the test leaps over the rest.
"""

from __future__ import annotations

import asyncio


class LeapingLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop; `leap` lets seconds pass at once."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        super().__init__()

    def time(self) -> float:
        return super().time() + self._ahead_s

    def leap(self, seconds: float) -> None:
        self._ahead_s += seconds


def leap(seconds: float) -> None:
    """On the running loop, which has to be a LeapingLoop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, LeapingLoop)
    loop.leap(seconds)
