"""Durations: a histogram in plain numbers, for parts that are called tens of thousands of times a second.

Whoever measures owns one per label and observes what it samples; `observe.readings` renders a copy at a scrape.
"""

from __future__ import annotations

from bisect import bisect_left


class Durations:
    """Seconds, counted by bucket."""

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.bounds_s = bounds_s
        """Upper ends of the buckets, ascending; one more is for all above."""
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, other: Durations) -> None:
        """Counts what another one, of the same bounds, has counted."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s

    def copy(self) -> Durations:
        """As it is now; the original goes on counting."""
        copied = Durations(self.bounds_s)
        copied.counts, copied.sum_s = self.counts.copy(), self.sum_s
        return copied


def growing(first_s: float, factor: float, count: int) -> tuple[float, ...]:
    """Bounds of so many buckets, each `factor` times the one before."""
    return tuple(first_s * factor**i for i in range(count))
