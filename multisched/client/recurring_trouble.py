"""When a trouble that lasts is to be logged: once for each cause, then again after pauses that double.

Owns what was said, and when. Pure but for the clock; whoever logs asks first. One per trouble.
"""

from __future__ import annotations

import math
from typing import Final

from multisched.framework.ports import Clock

PAUSE_MIN_S: Final = 2.0
PAUSE_MAX_S: Final = 300.0


class RecurringTrouble:
    """A line is due when the cause is another one than last time. With the same cause pauses double, up to 5 min."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cause: str | None = None
        self._since_s = 0.0
        self._due_s = -math.inf
        self._pause_s = PAUSE_MIN_S

    @property
    def lasts_s(self) -> int:
        """Whole seconds since the present cause was met first."""
        return int(self._clock.monotonic() - self._since_s)

    def is_due(self, cause: str) -> bool:
        """True if the trouble that was just met is to be logged; it then counts as said."""
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
        """The next one is a new one."""
        self._cause = None
