"""Sums by row that readers follow by their changes: sparse and dense.

`version` is never the same for two states of two sums of one owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

CHANGES_KEPT: Final = 256
"""Changes of one sum that readers can catch up with; who misses more reads it anew."""

Int64 = NDArray[np.int64]
Rows = NDArray[np.intp]
_NONE: Sequence[tuple[int, int, int]] = ()
_NO_CHANGES: Sequence[tuple[int, int, int, int]] = ()


class PodCount:
    """Pods by row, those rows only that have any."""

    __slots__ = ("_floor", "_recent", "held", "version")

    def __init__(self, version: int, held: dict[int, int] | None = None) -> None:
        self.held: dict[int, int] = {} if held is None else held
        """Row -> pods, rows without any left out. Read only."""
        self.version = version
        self._floor = version
        self._recent: list[tuple[int, int, int]] = []

    def add(self, row: int, change: int, version: int) -> None:
        """For the owner: so many more pods on the row."""
        left = self.held.get(row, 0) + change
        if left:
            self.held[row] = left
        else:
            del self.held[row]
        self.version = version
        recent = self._recent
        recent.append((version, row, change))
        if len(recent) >= 2 * CHANGES_KEPT:
            self._floor = recent[CHANGES_KEPT - 1][0]
            del recent[:CHANGES_KEPT]

    def clear(self) -> None:
        """For the owner, who keeps it true no more: readers may refer to it still."""
        self.held = {}
        self._recent = []

    def columns(self) -> tuple[Rows, Int64, Int64]:
        """Rows with pods, the pods, and what they amount to: as many."""
        rows = np.fromiter(self.held.keys(), np.intp, len(self.held))
        pods = np.fromiter(self.held.values(), np.int64, len(self.held))
        return rows, pods, pods

    def changes_since(self, version: int) -> Sequence[tuple[int, int, int]] | None:
        """(version, row, more pods) of each change after `version`; None when that is too long ago to know."""
        if version == self.version:
            return _NONE
        if version < self._floor:
            return None
        recent, at = self._recent, len(self._recent)
        while at and recent[at - 1][0] > version:
            at -= 1
        return recent[at:]


class DenseSum:
    """Pods or terms, and what they weigh together, in an array by row: for sums over many rows."""

    __slots__ = ("_floor", "_recent", "terms", "total", "version", "weights")

    def __init__(self, terms: Int64, weights: Int64, version: int) -> None:
        self.terms = terms
        """int64[rows, at least as far as any is held]: terms of pods on the row. Read only, as `weights`."""
        self.weights = weights
        self.total = int(terms.sum())
        self.version = version
        self._floor = version
        self._recent: list[tuple[int, int, int, int]] = []

    def add(self, row: int, terms: int, weight: int, version: int) -> None:
        """For the owner: so many more terms on the row, of that weight together."""
        if row >= len(self.terms):
            more = np.zeros(max(row + 1, 2 * len(self.terms)) - len(self.terms), np.int64)
            self.terms, self.weights = np.concatenate((self.terms, more)), np.concatenate((self.weights, more))
        self.terms[row] += terms
        self.weights[row] += weight
        self.total += terms
        self.version = version
        recent = self._recent
        recent.append((version, row, terms, weight))
        if len(recent) >= 2 * CHANGES_KEPT:
            self._floor = recent[CHANGES_KEPT - 1][0]
            del recent[:CHANGES_KEPT]

    def changes_since(self, version: int) -> Sequence[tuple[int, int, int, int]] | None:
        """(version, row, more terms, more weight) of each change after `version`; None when that is too long ago to know."""
        if version == self.version:
            return _NO_CHANGES
        if version < self._floor:
            return None
        recent, at = self._recent, len(self._recent)
        while at and recent[at - 1][0] > version:
            at -= 1
        return recent[at:]

    @property
    def held(self) -> dict[int, int]:
        """Row -> pods, rows without any left out: a copy."""
        rows = self.terms.nonzero()[0]
        return dict(zip(rows.tolist(), self.terms.take(rows).tolist(), strict=True))

    def columns(self) -> tuple[Rows, Int64, Int64]:
        """Rows with terms, the terms, and their weights."""
        rows = self.terms.nonzero()[0]
        return rows, self.terms.take(rows), self.weights.take(rows)

    def clear(self) -> None:
        """For the owner, who keeps it true no more: readers may refer to it still."""
        self.terms = self.weights = np.zeros(0, np.int64)
        self._recent = []

    def copy(self) -> DenseSum:
        """For who changes it in thought."""
        return DenseSum(self.terms.copy(), self.weights.copy(), self.version)


def no_sum(version: int) -> DenseSum:
    return DenseSum(np.zeros(0, np.int64), np.zeros(0, np.int64), version)


AnySum = PodCount | DenseSum
