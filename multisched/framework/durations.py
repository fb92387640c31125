"""Durations: a histogram of plain numbers, for code that is called tens of thousands of times a second.

The measuring component owns one per label; `observe.readings` renders a copy at a scrape.
"""

from __future__ import annotations

from bisect import bisect_left


class Durations:
    """Durations in seconds, counted by bucket."""

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.bounds_s = bounds_s
        """Upper bounds of the buckets, ascending; one more bucket counts all longer durations."""
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, other: Durations) -> None:
        """Adds the counts of another one with the same bounds."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s

    def copy(self) -> Durations:
        """Returns a copy that later observations do not change."""
        copied = Durations(self.bounds_s)
        copied.counts, copied.sum_s = self.counts.copy(), self.sum_s
        return copied


def growing(first_s: float, factor: float, count: int) -> tuple[float, ...]:
    """Returns the bounds of `count` buckets, each `factor` times the one before."""
    return tuple(first_s * factor**i for i in range(count))
