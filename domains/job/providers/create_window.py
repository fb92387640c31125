"""CreateWindow: how many creates of one unit may be unsettled at once, so that a burst that meets an outage fails few pods.

A create is unsettled from its permission until it has started, has failed, or has been bound for SURVIVED_S without a failure. The window
works like TCP's slow start (RFC 5681): each create that survives adds one, so the window doubles within SURVIVED_S; a failure sets it to
half of the unsettled creates. No I/O and no clock: times are arguments, in seconds of a monotonic clock.
"""

from __future__ import annotations

import sys
from itertools import takewhile
from typing import Final

from domains.job.providers.breaker import FAILURES_TO_OPEN, Attempt

START: Final = FAILURES_TO_OPEN
"""Creates at once of a unit that has not been used lately: if all fail, its breaker opens."""
SURVIVED_S: Final = 1.5
"""Providers report most failures of a create earlier than this after the bind."""
TRUSTED_S: Final = 60.0
"""The window begins at START again if no create has survived or failed for this long."""


class CreateWindow:
    """The window of one unit. `settled`, `survived` and `failed` have no effect on creates that are already settled."""

    def __init__(self) -> None:
        self._size = START
        self._is_timed = False
        self._unbound: set[Attempt] = set()
        """Creates whose pods are not bound yet."""
        self._bound: dict[Attempt, float] = {}
        """Create -> when its pod was bound, ascending."""
        self._known_s = 0.0
        """When the last create survived or failed."""

    @property
    def unsettled(self) -> int:
        return len(self._unbound) + len(self._bound)

    def size(self, now_s: float) -> int:
        return self._size if now_s - self._known_s <= TRUSTED_S else START

    def room(self, now_s: float) -> int:
        """Returns how many more creates may be permitted now.

        There is no limit before the first call of `settle`. So copies of the cluster, in which no time passes, have no limit.
        """
        if not self._is_timed:
            return sys.maxsize
        return max(0, self.size(now_s) - self.unsettled)

    def take(self, attempt: Attempt) -> None:
        self._unbound.add(attempt)

    def bound(self, attempt: Attempt, now_s: float) -> None:
        """Records that the pod of a create is bound. SURVIVED_S later, `settle` counts it as survived."""
        if attempt in self._unbound:
            self._unbound.remove(attempt)
            self._bound[attempt] = now_s

    def settle(self, now_s: float) -> list[Attempt]:
        """Records and returns the creates that have survived for SURVIVED_S. The caller calls it regularly."""
        self._is_timed = True
        found = list(takewhile(lambda one: self._bound[one] + SURVIVED_S <= now_s, self._bound))
        for attempt in found:
            self.survived(attempt, now_s)
        return found

    def survived(self, attempt: Attempt, now_s: float) -> None:
        if self.settled(attempt):
            self._size, self._known_s = self.size(now_s) + 1, now_s

    def failed(self, attempt: Attempt, now_s: float) -> None:
        """Halves the window, even if the create was already counted as survived."""
        unsettled = self.unsettled
        self.settled(attempt)
        self._size, self._known_s = max(1, min(self.size(now_s), unsettled) // 2), now_s

    def settled(self, attempt: Attempt) -> bool:
        """Removes a create that was not sent, or whose outcome is unrelated to the window. Returns False if it is already settled."""
        if attempt in self._unbound:
            self._unbound.remove(attempt)
            return True
        return self._bound.pop(attempt, None) is not None
