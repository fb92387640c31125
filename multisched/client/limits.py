"""One limiter for all writes of a process: binds go first, background writes wait for calm.

Owns the token bucket, the count of binds in flight and the background pause after a 429. Only the bucket itself holds
up a bind. While binds are many, background writes (events, conditions) take at most a trickle. Used by the binder and
the background writers on one event loop; the adaptive bind concurrency is the shell's.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from msgspec.structs import replace

from multisched.framework.ports import Clock

WRITES_PER_S: Final = 5_000.0
"""High on purpose: the API server's own fairness (429 + Retry-After) is the real limit; this one stops runaway loops."""
CALM_BINDS_MAX: Final = 2
"""Up to so many binds in flight count as calm: a trickle of single pods must not starve its own events."""
TRICKLE_INTERVAL_S: Final = 0.05
"""While binds are many, one background write per interval: 20/s next to about 1,000 binds/s."""
PAUSE_MIN_S: Final = 0.02
"""Between two looks of a background write: the last thing that may cost binds anything."""


class LimiterStatistics(msgspec.Struct):
    """Counters since start."""

    binds_in_flight: int = 0
    writes: int = 0
    binds_delayed: int = 0
    background_delayed: int = 0
    throttled: int = 0


class WriteLimiter:
    """A token bucket of `writes_per_s` with one second of burst."""

    def __init__(self, clock: Clock, *, writes_per_s: float = WRITES_PER_S) -> None:
        if writes_per_s <= 0:
            raise ValueError(f"writes_per_s must be positive, got {writes_per_s}")
        self._clock = clock
        self._rate = writes_per_s
        self._burst = max(writes_per_s, 1.0)
        self._tokens = self._burst
        self._filled_at = clock.monotonic()
        self._background_paused_until = self._filled_at
        self._next_trickle_at = self._filled_at
        self._counters = LimiterStatistics()

    async def enter_bind(self) -> bool:
        """Counts a bind in and waits for its token, first come first served; True if it had to wait. Each call needs its
        `leave_bind`."""
        self._counters.binds_in_flight += 1
        self._counters.writes += 1
        self._refill()
        self._tokens -= 1
        if self._tokens >= 0:
            return False
        self._counters.binds_delayed += 1
        try:
            await asyncio.sleep(-self._tokens / self._rate)
        except BaseException:
            self.leave_bind()
            raise
        return True

    def leave_bind(self) -> None:
        self._counters.binds_in_flight -= 1
        assert self._counters.binds_in_flight >= 0, "leave_bind without enter_bind"

    async def admit_background(self) -> None:
        """Waits until an event or condition may be written."""
        is_delayed = False
        while (wait_s := self._background_wait_s()) > 0:
            is_delayed = True
            await asyncio.sleep(wait_s)
        self._tokens -= 1
        self._counters.writes += 1
        self._counters.background_delayed += is_delayed

    def note_throttled(self, retry_after_s: float) -> None:
        """A 429 was answered. Background writes pause; binds are slowed by the shell, which sees THROTTLED itself."""
        self._counters.throttled += 1
        until = self._clock.monotonic() + retry_after_s
        self._background_paused_until = max(self._background_paused_until, until)

    def statistics(self) -> LimiterStatistics:
        return replace(self._counters)

    def _background_wait_s(self) -> float:
        """Zero admits now. A tenth of the bucket is kept for binds."""
        now = self._refill()
        if now < self._background_paused_until:
            return self._background_paused_until - now
        reserve = 1 + self._burst / 10
        if self._burst > reserve and self._tokens < reserve:
            return max((reserve - self._tokens) / self._rate, PAUSE_MIN_S)
        if self._tokens < 1:
            return max((1 - self._tokens) / self._rate, PAUSE_MIN_S)
        if self._counters.binds_in_flight > CALM_BINDS_MAX:
            if now < self._next_trickle_at:
                return max(self._next_trickle_at - now, PAUSE_MIN_S)
            self._next_trickle_at = now + TRICKLE_INTERVAL_S
        return 0.0

    def _refill(self) -> float:
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        return now
