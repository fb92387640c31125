"""CreateWindow: how many creates of one unit may be unsettled at once, so that a burst that meets an outage fails few pods.

An unsettled create was permitted, and has neither started, failed, nor gone SURVIVED_S without a failure since its bind. No I/O and no
clock: times are arguments, in seconds of a monotonic clock. As TCP's slow start (RFC 5681): each create that survives adds one, so the
window doubles in SURVIVED_S; a failure leaves half of the creates that were unsettled.
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
    """The unsettled creates of one unit. `settled`, `survived` and `failed` ignore creates that are settled."""

    def __init__(self) -> None:
        self._size = START
        self._is_timed = False
        self._unbound: set[Attempt] = set()
        """Their pods are being bound."""
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
        """Returns how many more creates may be permitted now. Without a limit until `settle` is called first: a copy of the cluster, in
        which no time passes, settles none.
        """
        if not self._is_timed:
            return sys.maxsize
        return max(0, self.size(now_s) - self.unsettled)

    def take(self, attempt: Attempt) -> None:
        self._unbound.add(attempt)

    def bound(self, attempt: Attempt, now_s: float) -> None:
        """Records that the pod of a create is bound; `settle` takes it for survived SURVIVED_S later."""
        if attempt in self._unbound:
            self._unbound.remove(attempt)
            self._bound[attempt] = now_s

    def settle(self, now_s: float) -> list[Attempt]:
        """Records, and returns, the creates that have survived SURVIVED_S. Called regularly."""
        self._is_timed = True
        found = list(takewhile(lambda one: self._bound[one] + SURVIVED_S <= now_s, self._bound))
        for attempt in found:
            self.survived(attempt, now_s)
        return found

    def survived(self, attempt: Attempt, now_s: float) -> None:
        if self.settled(attempt):
            self._size, self._known_s = self.size(now_s) + 1, now_s

    def failed(self, attempt: Attempt, now_s: float) -> None:
        """Halves the window, also if the create was taken for survived."""
        unsettled = self.unsettled
        self.settled(attempt)
        self._size, self._known_s = max(1, min(self.size(now_s), unsettled) // 2), now_s

    def settled(self, attempt: Attempt) -> bool:
        """Removes a create whose outcome says nothing, or that was not sent. Returns False if it is settled already."""
        if attempt in self._unbound:
            self._unbound.remove(attempt)
            return True
        return self._bound.pop(attempt, None) is not None
