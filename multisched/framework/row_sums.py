"""Sums by row, sparse and dense. A reader can apply the changes since its last read instead of reading a whole sum.

No two states of the sums of one owner have the same `version`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

CHANGES_KEPT: Final = 256
"""Changes kept per sum; a reader that is further behind reads the whole sum."""

SPARSE_BELOW: Final = 16
"""A sum is created sparse if at most one row in this many has an entry. A sparse row takes the memory of 6 or 12 array rows,
and is read more slowly.
"""

_SPARSE_ROW_BYTES, _DENSE_ROW_BYTES = 100, 16

Int64 = NDArray[np.int64]
Rows = NDArray[np.intp]
Change = tuple[int, int, int, int]
"""Version, row, change of the number of pods or terms, change of their total weight."""
_NO_CHANGES: Sequence[Change] = ()


class _Followed:
    """The latest changes of a sum."""

    __slots__ = ("_changes", "_floor", "version")

    def __init__(self, version: int) -> None:
        self.version = self._floor = version
        self._changes: list[Change] = []

    def changes_since(self, version: int) -> Sequence[Change] | None:
        """Returns the changes after `version`; None if some of them were dropped."""
        if version == self.version:
            return _NO_CHANGES
        if version < self._floor:
            return None
        changes, at = self._changes, len(self._changes)
        while at and changes[at - 1][0] > version:
            at -= 1
        return changes[at:]

    def _changed(self, row: int, terms: int, weight: int, version: int) -> None:
        self.version = version
        changes = self._changes
        changes.append((version, row, terms, weight))
        if len(changes) >= 2 * CHANGES_KEPT:
            self._floor = changes[CHANGES_KEPT - 1][0]
            del changes[:CHANGES_KEPT]

    def _forget_changes(self) -> None:
        self._floor, self._changes = self.version, []


class SparseSum(_Followed):
    """Pods or terms by row, with their weights, in dictionaries without empty rows: for sums over few rows."""

    __slots__ = ("_weights", "held", "total")

    def __init__(self, version: int, held: dict[int, int] | None = None, weights: dict[int, int] | None = None) -> None:
        """`weights`: by row; None: each pod or term weighs 1."""
        self.held: dict[int, int] = {} if held is None else held
        """Row -> pods or terms, without rows that have none. Read only."""
        self._weights = self.held if weights is None else weights
        self.total = sum(self.held.values())
        super().__init__(version)

    def add(self, row: int, terms: int, weight: int, version: int) -> None:
        """Adds that many terms of that total weight to the row. Called by the owner only."""
        left = self.held.get(row, 0) + terms
        if self._weights is not self.held:
            self._weights[row] = self._weights.get(row, 0) + weight
        if left:
            self.held[row] = left
        else:
            del self.held[row]
            self._weights.pop(row, None)
        self.total += terms
        self._changed(row, terms, weight, version)

    def clear(self) -> None:
        """Empties the sum when its owner no longer updates it; readers may still hold it."""
        self.held = self._weights = {}
        self._forget_changes()

    def columns(self) -> tuple[Rows, Int64, Int64]:
        """Returns the rows with terms, their terms, and their weights."""
        count, held = len(self.held), self.held
        rows, terms = np.fromiter(held.keys(), np.intp, count), np.fromiter(held.values(), np.int64, count)
        if self._weights is held:
            return rows, terms, terms
        return rows, terms, np.fromiter(map(self._weights.__getitem__, held), np.int64, count)

    def copy(self) -> SparseSum:
        """Returns a copy that can be changed."""
        weights = None if self._weights is self.held else dict(self._weights)
        return SparseSum(self.version, dict(self.held), weights)

    @property
    def size_bytes(self) -> int:
        """Approximate."""
        return _SPARSE_ROW_BYTES * len(self.held) * (1 if self._weights is self.held else 2)


class DenseSum(_Followed):
    """Pods or terms by row, with their weights, in arrays: for sums over many rows."""

    __slots__ = ("terms", "total", "weights")

    def __init__(self, terms: Int64, weights: Int64, version: int) -> None:
        self.terms = terms
        """int64[rows, at least up to the last with a term]: terms of pods on the row. Read only, like `weights`."""
        self.weights = weights
        self.total = int(terms.sum())
        super().__init__(version)

    def add(self, row: int, terms: int, weight: int, version: int) -> None:
        """Adds that many terms of that total weight to the row. Called by the owner only."""
        if row >= len(self.terms):
            more = np.zeros(max(row + 1, 2 * len(self.terms)) - len(self.terms), np.int64)
            self.terms, self.weights = np.concatenate((self.terms, more)), np.concatenate((self.weights, more))
        self.terms[row] += terms
        self.weights[row] += weight
        self.total += terms
        self._changed(row, terms, weight, version)

    @property
    def held(self) -> dict[int, int]:
        """Returns row -> pods or terms, without rows that have none; a copy."""
        rows = self.terms.nonzero()[0]
        return dict(zip(rows.tolist(), self.terms.take(rows).tolist(), strict=True))

    def columns(self) -> tuple[Rows, Int64, Int64]:
        """Returns the rows with terms, their terms, and their weights."""
        rows = self.terms.nonzero()[0]
        return rows, self.terms.take(rows), self.weights.take(rows)

    def clear(self) -> None:
        """Empties the sum when its owner no longer updates it; readers may still hold it."""
        self.terms = self.weights = np.zeros(0, np.int64)
        self._forget_changes()

    def copy(self) -> DenseSum:
        """Returns a copy that can be changed."""
        return DenseSum(self.terms.copy(), self.weights.copy(), self.version)

    @property
    def size_bytes(self) -> int:
        """Approximate."""
        return _DENSE_ROW_BYTES * len(self.terms)


AnySum = SparseSum | DenseSum


def sum_of(terms: Int64, weights: Int64, version: int) -> AnySum:
    """Returns the sum of int64[rows] terms and weights: sparse if few rows have terms, else dense."""
    rows = terms.nonzero()[0]
    if len(rows) * SPARSE_BELOW > len(terms):
        return DenseSum(terms, weights, version)
    at, of_rows = rows.tolist(), (terms.take(rows).tolist(), weights.take(rows).tolist())
    return SparseSum(version, *(dict(zip(at, column, strict=True)) for column in of_rows))


def no_sum(version: int) -> SparseSum:
    """Returns an empty sum of terms with weights."""
    return SparseSum(version, {}, {})
