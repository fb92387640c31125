"""Counts of requests to an API server by result, and their durations: the values of client-go's `rest_client_…`
metrics.

One thread writes to one RequestCounts; readers take a copy, also from other threads.
"""

from __future__ import annotations

from typing import Final

from multisched.framework.durations import Durations

NO_ANSWER: Final = 0
"""Used instead of a status."""
BOUNDS_S: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""The buckets of component-base/metrics/prometheus/restclient."""


class RequestCounts:
    """Counts since start."""

    def __init__(self) -> None:
        self.results: dict[tuple[str, int], int] = {}
        """(method, status or NO_ANSWER) -> requests; a watch counts when it begins."""
        self.durations: dict[str, Durations] = {}
        """Method -> seconds until the response was complete or the request failed; without watches."""

    def began(self, method: str, status: int) -> None:
        """Counts the response to a watch request."""
        self.results[method, status] = self.results.get((method, status), 0) + 1

    def ended(self, method: str, status: int, seconds: float) -> None:
        self.results[method, status] = self.results.get((method, status), 0) + 1
        found = self.durations.get(method)
        if found is None:
            found = self.durations[method] = Durations(BOUNDS_S)
        found.observe(seconds)

    def copy(self) -> RequestCounts:
        """Returns the current counts."""
        copied = RequestCounts()
        copied.results = self.results.copy()
        copied.durations = {method: one.copy() for method, one in self.durations.copy().items()}
        return copied

    def add(self, other: RequestCounts) -> None:
        """Adds the counts of `other`."""
        for key, count in other.results.items():
            self.results[key] = self.results.get(key, 0) + count
        for method, durations in other.durations.items():
            self.durations.setdefault(method, Durations(BOUNDS_S)).add(durations)
