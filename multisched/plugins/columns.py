"""Selection of the requested rows from columns, and constants for fast computation with numpy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import Rows

A = TypeVar("A", bound=NDArray[Any])


class Selection:
    """The rows of one call. Rows ascend, so they are contiguous exactly if last - first == count - 1."""

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
        """Returns the column's values at the rows. The result may be a view: do not write to it."""
        if self._run is not None:
            return column[self._run]  # type: ignore[return-value]
        return column.take(self._rows)  # type: ignore[return-value]


FEW_ROWS = 4
"""Up to this many rows are computed one by one in Python: one call of numpy takes longer than the formula for one row."""

EXACT_BELOW = 1 << 53
"""Below this, a correctly rounded float64 quotient of two integers is never rounded up to the next integer."""


NOUGHT, ONE, HUNDRED, HALF = np.array(0), np.array(1), np.array(100.0), np.array(0.5)
"""Numbers as arrays, so that numpy need not convert a Python number at each call, which costs as much as adding a few rows."""


def zeros(rows: Rows) -> NDArray[np.uint8]:
    """Returns uint8[len(rows)] of zeros: every row passes."""
    return np.zeros(len(rows), np.uint8)


def positions(rows: Rows, wanted: Iterable[int]) -> Rows:
    """Returns the positions of the wanted rows in `rows` (ascending); wanted rows that are not in `rows` are left out."""
    held = np.array(sorted(wanted), np.intp)
    if not len(rows) or not len(held):
        return held[:0]
    at = rows.searchsorted(held)
    at[at == len(rows)] = 0
    found: Rows = at[rows[at] == held]
    return found
