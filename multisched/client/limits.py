"""One limiter for all writes of a process: binds first; background writes wait while there are many binds.

Owns the token bucket, the count of binds in flight and the pause of background writes after a 429. A bind is delayed
only by the bucket. While there are many binds, background writes (events, conditions) get a small fixed rate. Used by
the binder and the background writers on one event loop; the shell adapts the concurrency of binds.
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
"""Up to this many binds in flight do not delay background writes: a few single pods must not delay their own events."""
TRICKLE_INTERVAL_S: Final = 0.05
"""With more binds in flight one background write is sent per interval: 20/s next to about 1,000 binds/s."""
PAUSE_MIN_S: Final = 0.02
"""Minimum between two checks of a waiting background write: its checks must not slow binds."""


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
        reserve = 1 + self._burst / 10
        self._background_least = reserve if self._burst > reserve else 1.0
        """Tokens with which a background write may be sent: a tenth of the bucket is kept for binds."""
        self._tokens = self._burst
        self._filled_at = clock.monotonic()
        self._background_paused_until = self._filled_at
        self._next_trickle_at = self._filled_at
        self._counters = LimiterStatistics()

    async def enter_bind(self) -> bool:
        """Counts a bind and waits for its token, first come first served; returns whether it had to wait. Each call
        needs a call of `leave_bind`.
        """
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
        self._count_background(1)
        self._counters.background_delayed += is_delayed

    def admit_more_background(self, most: int) -> int:
        """Admits up to `most` further writes as long as none has to wait; none if a bind is in flight. Returns how many."""
        if most < 1 or self._counters.binds_in_flight or self._background_wait_s() > 0:
            return 0
        count = min(most, int(self._tokens - self._background_least) + 1)
        self._count_background(count)
        return count

    def _count_background(self, count: int) -> None:
        self._tokens -= count
        self._counters.writes += count

    def note_throttled(self, retry_after_s: float) -> None:
        """Records a 429: pauses background writes. The shell slows binds itself when it gets THROTTLED."""
        self._counters.throttled += 1
        until = self._clock.monotonic() + retry_after_s
        self._background_paused_until = max(self._background_paused_until, until)

    def statistics(self) -> LimiterStatistics:
        return replace(self._counters)

    def _background_wait_s(self) -> float:
        """Returns the seconds until a background write may be sent; 0: now."""
        now = self._refill()
        if now < self._background_paused_until:
            return self._background_paused_until - now
        if self._tokens < self._background_least:
            return max((self._background_least - self._tokens) / self._rate, PAUSE_MIN_S)
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
