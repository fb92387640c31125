"""An asyncio loop whose time is virtual and whose task order is drawn from a seed.

When nothing is ready, time jumps to the next timer: an hour of backoff costs microseconds. What is ready runs in a
seeded random order, so that every seed is another interleaving and the same seed is the same run (I12). It drives
unchanged asyncio and anyio code; it uses the private `_run_once`, `_ready` and `_scheduled` of CPython's base loop.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
STEPS_MAX = 20_000_000
"""Loop iterations after which a run counts as stuck."""

T = TypeVar("T")


class StuckError(Exception):
    """The simulated program went on for ever, or waits for something that cannot come."""


class SimLoop(asyncio.SelectorEventLoop):
    """See the module. `time()` starts at 0."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._virtual_s = 0.0
        self._order = random.Random(seed)  # noqa: S311 - an interleaving, not a secret
        self._steps = 0

    def time(self) -> float:
        return self._virtual_s

    def _run_once(self) -> None:
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise StuckError(f"{STEPS_MAX} loop iterations")
        ready: Any = self._ready  # type: ignore[attr-defined]
        scheduled: Any = self._scheduled  # type: ignore[attr-defined]
        if len(ready) > 1:
            shuffled = list(ready)
            self._order.shuffle(shuffled)
            ready.clear()
            ready.extend(shuffled)
        while scheduled and scheduled[0]._cancelled:  # noqa: SLF001 - as the base loop does
            heapq.heappop(scheduled)._scheduled = False  # noqa: SLF001
        if not ready:
            if not scheduled:
                raise StuckError("nothing is ready and no timer is set")
            self._virtual_s = max(self._virtual_s, scheduled[0]._when)  # noqa: SLF001
        super()._run_once()  # type: ignore[misc]


class SimClock:
    """The loop's virtual time as a Clock."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._loop.time())


def simulate(main: Coroutine[Any, Any, T], loop: SimLoop) -> T:
    """Runs a coroutine to its end under virtual time and closes the loop."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)
