"""Decides when a persistent problem is logged: once for each cause, then again at intervals that double.

Owns the last logged cause and its time. Pure but for the clock; callers ask before they log. One instance per problem.
"""

from __future__ import annotations

import math
from typing import Final

from multisched.framework.ports import Clock

PAUSE_MIN_S: Final = 2.0
PAUSE_MAX_S: Final = 300.0


class RecurringTrouble:
    """A line is due if the cause differs from the last one. With the same cause the intervals double, up to 5 min."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cause: str | None = None
        self._since_s = 0.0
        self._due_s = -math.inf
        self._pause_s = PAUSE_MIN_S

    @property
    def lasts_s(self) -> int:
        """Whole seconds since the current cause first occurred."""
        return int(self._clock.monotonic() - self._since_s)

    def is_due(self, cause: str) -> bool:
        """Returns whether the problem is to be logged now; if so, it counts as logged."""
        now_s = self._clock.monotonic()
        if cause != self._cause:
            self._cause, self._since_s, self._pause_s = cause, now_s, PAUSE_MIN_S
        elif now_s < self._due_s:
            return False
        else:
            self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
        self._due_s = now_s + self._pause_s
        return True

    def over(self) -> None:
        """Ends the problem: its next occurrence counts as new."""
        self._cause = None
