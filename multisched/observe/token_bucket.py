"""A rate limit with a burst."""

from __future__ import annotations

from collections.abc import Callable


class TokenBucket:
    """Refilled with `rate` tokens a second, up to `burst`."""

    def __init__(self, monotonic: Callable[[], float], *, rate: float, burst: float) -> None:
        assert rate > 0
        assert burst >= 1
        self._monotonic = monotonic
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._filled_at = monotonic()

    def take(self) -> float:
        """Takes a token, on credit if there is none; returns the seconds until it is available."""
        self._refill()
        self._tokens -= 1
        return max(0.0, -self._tokens / self._rate)

    def try_take(self) -> bool:
        """Takes a token if there is one; returns whether it did."""
        self._refill()
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _refill(self) -> None:
        now = self._monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
