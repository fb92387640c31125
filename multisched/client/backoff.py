"""Jittered exponential delays between attempts. Owned by the caller that retries; draws from the given `random.Random`."""

from __future__ import annotations

import random
from typing import Final

BACKOFF_BASE_S: Final = 0.8
BACKOFF_CAP_S: Final = 30.0


class Backoff:
    """Delays from 0.8 s, doubling, each jittered by up to its own length and capped at 30 s (client-go's reflector,
    capped after jitter).

    The jitter stays at 100% at the cap (15-30 s), so that many clients do not retry at the same time.
    """

    def __init__(self, rng: random.Random, *, base_s: float = BACKOFF_BASE_S, cap_s: float = BACKOFF_CAP_S) -> None:
        self._rng = rng
        self._base_s = base_s
        self._cap_s = cap_s
        self._floor_s = base_s

    def next_s(self, at_least_s: float = 0.0) -> float:
        """Returns the seconds to wait before the next attempt; `at_least_s` is a server's Retry-After."""
        floor = self._floor_s
        self._floor_s = min(floor * 2, self._cap_s / 2)
        return max(min(floor * (1 + self._rng.random()), self._cap_s), at_least_s)

    def reset(self) -> None:
        self._floor_s = self._base_s
