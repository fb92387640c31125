"""CostMeter: what sandboxes cost that run now or have run, from the sum of their prices per hour. Pure."""

from __future__ import annotations

from domains.job.providers.sizes import SECONDS_PER_HOUR


class CostMeter:
    """Adds up prices over time. Times are monotonic seconds, which never decrease from one call to the next."""

    __slots__ = ("_at_s", "_per_hour", "_running", "_total")

    def __init__(self) -> None:
        self._total = self._per_hour = self._at_s = 0.0
        self._running = 0

    def start(self, per_hour: float, now_s: float) -> None:
        """Starts a sandbox with this price per hour."""
        self._settle(now_s)
        self._per_hour += per_hour
        self._running += 1

    def stop(self, per_hour: float, now_s: float) -> None:
        """Ends a sandbox that was started with this price per hour."""
        self._settle(now_s)
        self._running -= 1
        self._per_hour = self._per_hour - per_hour if self._running else 0.0  # no rounding error stays

    def add(self, cost: float) -> None:
        """Adds the cost of a sandbox whose run became known when it had ended."""
        self._total += cost

    def total(self, now_s: float) -> float:
        """Returns the cost until now."""
        return self._total + self._per_hour * max(0.0, now_s - self._at_s) / SECONDS_PER_HOUR

    def _settle(self, now_s: float) -> None:
        self._total, self._at_s = self.total(now_s), max(self._at_s, now_s)
