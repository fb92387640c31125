"""Breaker: stops binds to a serverless unit whose sandboxes fail, and admits single pods as probes until one starts.

No I/O and no clock: times are arguments, in seconds of a monotonic clock. The caller classifies outcomes (`messages`):
throttling, and permanent errors of one template, give no information on the unit, so they are reported with `on_neutral`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

FAILURES_TO_OPEN: Final = 3
SURVIVED_TO_FORGET: Final = 5
"""A row of failures ends after this number of later creates that survive (`CreateWindow`): the start of a sandbox is known too late."""
PROBE_FIRST_S, PROBE_S = 5.0, 20.0
"""Time from the opening to the first probe, and from each probe to the next one."""


class BreakerState(Enum):
    """Whether a unit gets pods."""

    CLOSED = "closed"
    OPEN = "open"
    """No pod until the next probe is due."""
    HALF_OPEN = "half-open"
    """One pod is in flight as a probe."""


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """Permission for one create."""

    period: int
    """Number of changes between open and closed before it."""
    number: int = 0
    """Increases with each attempt."""


class Breaker:
    """The state of one unit. Report each attempt: `on_success`, `on_failure`, `on_neutral`, or `give_back` if there was no create.

    Outcomes of attempts from before the last change between open and closed are ignored: they describe the time before it. A success
    gives no information on attempts that were sent after it, so it ends a row of failures only if it was sent after them. A probe without
    an outcome is
    replaced when the next one is due. So after a recovery, the breaker closes within PROBE_S and the time that the provider needs to
    start a sandbox.
    """

    def __init__(self) -> None:
        self.openings = 0
        """Count since the start."""
        self._period = 0
        self._sent = 0
        self._failures = self._survived = 0
        """In a row, and attempts that survived since the last failure."""
        self._failed = 0
        """Number of the last attempt that failed."""
        self._probe_due_s: float | None = None
        """Time of the next probe; set while the breaker is not closed."""
        self._probe: Attempt | None = None

    @property
    def state(self) -> BreakerState:
        if self._probe_due_s is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self._probe is None else BreakerState.HALF_OPEN

    def ready_in_s(self, now_s: float) -> float:
        """Returns the seconds until `take` returns an attempt; 0 if it does now."""
        return 0.0 if self._probe_due_s is None else max(0.0, self._probe_due_s - now_s)

    def take(self, now_s: float) -> Attempt | None:
        """Returns permission for one create, None while the unit gets no pod. If the breaker is open, this is the probe."""
        if self._probe_due_s is not None and now_s < self._probe_due_s:
            return None
        self._sent += 1
        attempt = Attempt(self._period, self._sent)
        if self._probe_due_s is None:
            return attempt
        self._probe = attempt
        self._probe_due_s = now_s + PROBE_S
        return self._probe

    def give_back(self, attempt: Attempt, now_s: float) -> None:
        """Returns an attempt whose create was never sent; if it was the probe, another pod may be it at once."""
        if attempt is self._probe:
            self._probe, self._probe_due_s = None, now_s

    def on_neutral(self, attempt: Attempt, now_s: float) -> None:
        """Records an outcome that says nothing about the unit: it was throttled, or the template cannot run there."""
        self.give_back(attempt, now_s)

    def on_success(self, attempt: Attempt) -> None:
        """Records a sandbox; that of a probe closes the breaker."""
        if attempt.period != self._period:
            return
        if self._probe_due_s is not None:
            self._period += 1
            self._failures, self._probe, self._probe_due_s = 0, None, None
        elif attempt.number > self._failed:
            self._failures = 0

    def on_survived(self, attempt: Attempt) -> None:
        """Records an attempt that has not failed for so long that most failures would be known; its outcome is still reported."""
        if attempt.period == self._period and attempt.number > self._failed:
            self._survived += 1
            if self._probe_due_s is None and self._survived >= SURVIVED_TO_FORGET:
                self._failures = 0

    def on_failure(self, attempt: Attempt, now_s: float) -> None:
        """Records an error of the unit; the third in a row opens the breaker."""
        if attempt.period != self._period:
            return
        if self._probe_due_s is not None:
            if attempt is self._probe:
                self._probe = None
            return
        self._failures, self._survived = self._failures + 1, 0
        self._failed = max(self._failed, attempt.number)
        if self._failures >= FAILURES_TO_OPEN:
            self.openings += 1
            self._period += 1
            self._probe_due_s = now_s + PROBE_FIRST_S
