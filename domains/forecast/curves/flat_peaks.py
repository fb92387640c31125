"""FlatPeaks: predicted use of every row without profiles: one exact number per dimension.

Sums are Python integers, so adding and then removing a pod restores the previous sum exactly. Arrays over rows are
updated from them on read. Owned by `PeakLedger`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import Rows, columns_at

Amounts = NDArray[np.float64]
"""Milli-units, read by scores. Floats, because division is five times faster; they only rank rows, and no Filter reads them."""
ROWS_FIRST = 64


class FlatPeaks:
    """The predicted use of every row by requests alone, one number per dimension."""

    def __init__(self, dimensions: int) -> None:
        self._sums: dict[int, list[int]] = {}
        self._stale: set[int] = set()
        self._nothing = (0,) * dimensions
        self._peak: Amounts = np.zeros((dimensions, ROWS_FIRST))

    def add(self, row: int, peaks: tuple[int, ...], sign: int) -> None:
        """Adds a pod to the row (sign 1) or removes it (-1). `peaks`: milli-units per dimension."""
        sums = self._sums.get(row)
        if sums is None:
            sums = self._sums[row] = [0] * len(peaks)
        for dimension, amount in enumerate(peaks):
            sums[dimension] += sign * amount
        self._stale.add(row)

    def of(self, rows: Rows) -> Amounts:
        """Returns float64[dimensions, len(rows)] in milli-units. `rows` must ascend."""
        if self._stale:
            self._grow(max(self._stale) + 1)
            for row in self._stale:
                self._peak[:, row] = self._sums[row]
            self._stale.clear()
        if len(rows):
            self._grow(rows.item(-1) + 1)
        return columns_at(self._peak, rows)

    def of_row(self, row: int) -> Sequence[int]:
        """Returns the sums of one row in milli-units."""
        sums = self._sums.get(row)
        return self._nothing if sums is None else sums

    def _grow(self, needed: int) -> None:
        size = more = self._peak.shape[1]
        if needed <= size:
            return
        while more < needed:
            more *= 2
        self._peak = np.pad(self._peak, ((0, 0), (0, more - size)))
