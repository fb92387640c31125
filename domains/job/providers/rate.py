"""SandboxRate: a token bucket for the creates of one serverless unit, at the configured rate or a lower one learned from throttling.

No I/O and no clock: times are arguments, in seconds of a monotonic clock. A token is taken before a bind, and returned if the bind is
not sent; the outcome of the create changes the rate. Learning is AIMD (additive increase, multiplicative decrease) below the
configured rate. Throttling shows that the provider's bucket is empty; the creates per second that it accepts from then until the next
throttling are its rate. This remembered rate is approached slowly. The burst is learned, too: it is halved if a create
that did not wait for its token is throttled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

BURST_KEPT: Final = 0.05
KEPT_S: Final = 0.25
"""Share of the burst, and seconds of the rate, whose tokens are not used: creates arrive less evenly than they were sent."""
FAST_GAIN, SLOW_GAIN = 0.1, 0.01
"""Increase of the rate in one second, below and near the remembered rate, as a share of it; without one, of the configured rate."""
NEAR: Final = 0.95
"""Share of the remembered rate from which on it is approached slowly."""
OUTDATED: Final = 1.05
"""The remembered rate is dropped once the provider has accepted this much of it."""
BURST_GAIN: Final = 0.0002
"""Increase of the burst with each success, as a share of the configured burst."""
MEASURED_S: Final = 2.0
"""Least time in which accepted creates measure a rate."""
LEAST_SHARE: Final = 1 / 256
"""The learned rate is at least this share of the configured one."""
_EPSILON: Final = 1e-9


@dataclass(slots=True, eq=False)
class Token:
    """Permission for one create."""

    sent_s: float
    was_awaited: bool
    """The rate was the limit: a token was refused before, and since then no token was lost in a full bucket."""
    decreases: int
    """Number of decreases before it."""
    window: int
    is_open: bool = True
    """It was neither given back nor reported."""


class SandboxRate:
    """The creates of one unit. Report each token once: `give_back`, `on_success`, `on_throttled` or `on_failed`."""

    def __init__(self, burst: int, per_second: float, now_s: float) -> None:
        """`burst`, `per_second`: the provider's configured rate, a ceiling. Raises ValueError unless both are positive."""
        if burst < 1 or not 0 < per_second < math.inf:
            raise ValueError(f"burst must be >= 1 and per_second > 0, got {burst} and {per_second}")
        self._most = max(1, burst - math.floor(max(burst * BURST_KEPT, per_second * KEPT_S)))
        self.burst = float(self._most)
        """Maximum number of tokens, as learned."""
        self.ceiling = per_second
        self.per_second = per_second
        """The learned rate, in creates per second."""
        self.remembered: float | None = None
        """The rate at which the provider throttled."""
        self.throttled = self.decreases = 0
        """Counts since the start."""
        self._tokens = self.burst
        self._at_s = now_s
        self._is_awaited = False
        self._window = 0
        """Number of the window in which accepted creates are counted: it begins with a decrease, or when tokens are lost."""
        self._window_s = now_s
        self._window_stock = float(self._most)
        """Tokens that the provider may have had at the begin of the window."""
        self._sent = self._accepted = 0
        """Creates of the window: not known to be throttled, and accepted."""

    def take(self, now_s: float) -> Token | None:
        """Takes a token; None if there is none (see `ready_in_s`)."""
        self._refill(now_s)
        if self._tokens < 1 - _EPSILON:
            self._is_awaited = True
            return None
        self._tokens = max(0.0, self._tokens - 1)
        self._sent += 1
        return Token(now_s, self._is_awaited, self.decreases, self._window)

    def ready_in_s(self, now_s: float) -> float:
        """Returns the seconds until a token exists; 0 if there is one."""
        self._refill(now_s)
        return max(0.0, 1 - self._tokens - _EPSILON) / self.per_second

    def available(self, now_s: float) -> int:
        """Returns the number of tokens that exist."""
        self._refill(now_s)
        return math.floor(self._tokens + _EPSILON)

    def give_back(self, token: Token, now_s: float) -> None:
        """Returns a token whose create was never sent. Does nothing for one that was already given back or reported."""
        if not self._closes(token):
            return
        self._refill(now_s)
        self._tokens = min(self.burst, self._tokens + 1)
        self._forget(token)

    def on_failed(self, token: Token) -> None:
        """Records a create that failed for another reason than throttling, which gives no information on the rate."""
        if self._closes(token):
            self._forget(token)

    def on_success(self, token: Token) -> None:
        """Records a sandbox; increases the rate if the rate was the limit. Creates before the last decrease do not count."""
        if not self._closes(token) or token.decreases < self.decreases:
            return
        self.burst = min(float(self._most), self.burst + BURST_GAIN * self._most)
        if token.window == self._window:
            self._accepted += 1
            self._check_remembered(token.sent_s - self._window_s)
        if token.was_awaited:
            is_near = self.remembered is not None and self.per_second >= NEAR * self.remembered
            gain = (SLOW_GAIN if is_near else FAST_GAIN) * (self.remembered or self.ceiling)
            self.per_second = min(self.ceiling, self.per_second + gain / self.per_second)

    def on_throttled(self, token: Token, now_s: float) -> bool:
        """Records a throttled create; halves the rate, unless it was sent before the last decrease. Returns whether it did."""
        if not self._closes(token):
            return False
        self._forget(token)
        self.throttled += 1
        if token.decreases < self.decreases:
            return False
        self._refill(now_s)
        least = LEAST_SHARE * self.ceiling
        self.remembered = max(least, min(self.per_second, self._measured(now_s)))
        self.per_second = max(least, self.per_second / 2)
        if not token.was_awaited:
            self.burst = max(1.0, self.burst / 2)
        self.decreases += 1
        self._tokens = 0.0
        self._open_window(now_s, stock=0.0)
        return True

    def _measured(self, now_s: float) -> float:
        """Returns the provider's rate between two moments at which its bucket was empty; infinite if that is not known."""
        elapsed_s = now_s - self._window_s
        return self._sent / elapsed_s if self._window_stock == 0 and elapsed_s >= MEASURED_S else math.inf

    def _check_remembered(self, elapsed_s: float) -> None:
        """Drops the remembered rate if the provider has accepted more creates than this rate allows."""
        if self.remembered is None or elapsed_s < MEASURED_S:
            return
        if self._accepted > OUTDATED * self.remembered * elapsed_s + self._window_stock + 1:
            self.remembered = None

    def _open_window(self, now_s: float, stock: float) -> None:
        self._window += 1
        self._window_s, self._window_stock = now_s, stock
        self._sent = self._accepted = 0

    def _forget(self, token: Token) -> None:
        if token.window == self._window:
            self._sent -= 1

    def _closes(self, token: Token) -> bool:
        was_open, token.is_open = token.is_open, False
        return was_open

    def _refill(self, now_s: float) -> None:
        self._tokens += max(0.0, now_s - self._at_s) * self.per_second
        self._at_s = max(self._at_s, now_s)
        if self._tokens >= self.burst + 1:
            self._is_awaited = False
            self._open_window(now_s, stock=float(self._most))
        self._tokens = min(self.burst, self._tokens)
