"""Jittered exponential delays between attempts. Owned by whoever retries; draws from the `random.Random` handed in."""

from __future__ import annotations

import random
from typing import Final

BACKOFF_BASE_S: Final = 0.8
BACKOFF_CAP_S: Final = 30.0


class Backoff:
    """0.8 s doubling, each delay jittered by up to its own length, never past 30 s (client-go's reflector, capped after jitter).

    The jitter stays full at the cap (15-30 s), so that many clients do not come back in step.
    """

    def __init__(self, rng: random.Random, *, base_s: float = BACKOFF_BASE_S, cap_s: float = BACKOFF_CAP_S) -> None:
        self._rng = rng
        self._base_s = base_s
        self._cap_s = cap_s
        self._floor_s = base_s

    def next_s(self, at_least_s: float = 0.0) -> float:
        """Seconds to wait before the next attempt; `at_least_s` is a server's Retry-After."""
        floor = self._floor_s
        self._floor_s = min(floor * 2, self._cap_s / 2)
        return max(min(floor * (1 + self._rng.random()), self._cap_s), at_least_s)

    def reset(self) -> None:
        self._floor_s = self._base_s
