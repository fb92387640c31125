"""How plugins take the asked-for rows out of columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import Rows

A = TypeVar("A", bound=NDArray[Any])


class Selection:
    """The rows of one call. Rows ascend, so they are a run exactly when the ends are as far apart as there are rows."""

    __slots__ = ("_rows", "_run", "count")

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.count = len(rows)
        self._run: slice | None = None
        if self.count:
            first, last = rows.item(0), rows.item(-1)
            if last - first == self.count - 1:
                self._run = slice(first, last + 1)

    def of(self, column: A) -> A:
        """The column's values at the rows: a view or a copy, so read only."""
        if self._run is not None:
            return column[self._run]  # type: ignore[return-value]
        return column.take(self._rows)  # type: ignore[return-value]


FEW_ROWS = 4
"""Up to so many rows are computed one by one in Python: a call of numpy takes longer than the whole formula for a row."""

EXACT_BELOW = 1 << 53
"""Up to here a correctly rounded float64 quotient of integers never reaches the next integer."""


NOUGHT, ONE, HUNDRED, HALF = np.array(0), np.array(1), np.array(100.0), np.array(0.5)
"""Numbers as arrays: numpy need not find out anew what a Python number is, which takes as long as the sum of a few rows."""


def zeros(rows: Rows) -> NDArray[np.uint8]:
    """uint8[len(rows)]: every row passes."""
    return np.zeros(len(rows), np.uint8)


def positions(rows: Rows, wanted: Iterable[int]) -> Rows:
    """Where the wanted rows stand among `rows` (ascending); those that are not there are left out."""
    held = np.array(sorted(wanted), np.intp)
    if not len(rows) or not len(held):
        return held[:0]
    at = rows.searchsorted(held)
    at[at == len(rows)] = 0
    found: Rows = at[rows[at] == held]
    return found
