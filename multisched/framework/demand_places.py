"""DemandPlaces: on which rows the pods of each demander stand, side by side in arrays, so that they are summed at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from multisched.framework.demander import Demander
from multisched.framework.term_columns import Column, Int32

Int64 = NDArray[np.int64]
Amounts = Int64 | NDArray[np.float64]


class DemandPlaces:
    """A place for each demander and row. Owned by `PodDemands`."""

    __slots__ = ("_demander", "_pods", "_row")

    def __init__(self) -> None:
        self._demander, self._row, self._pods = Column(np.int32), Column(np.int32), Column(np.int32)

    def pods(self, place: int) -> int:
        return int(self._pods.array[place])

    def account(self, demanders: Sequence[Demander], demander: Demander, row: int, sign: int) -> None:
        """One pod more on the row, or one less. `demanders`: by number."""
        place = demander.places.get(row)
        if place is None:
            demander.places[row] = self._row.size
            self._demander.append(demander.number)
            self._row.append(row)
            self._pods.append(1)
            return
        pods = self._pods.array
        pods[place] += sign
        if not pods[place]:
            self._clear(demanders, demander, row, place)

    def renumber(self, demander: Demander) -> None:
        """The demander has another number now."""
        for place in demander.places.values():
            self._demander.array[place] = demander.number

    def renumber_all(self, number: Int32) -> None:
        """int32[demanders]: the number that each has now."""
        self._demander.replace(number.take(self._demander.view()))

    def summed(self, by_demander: Amounts) -> Int64:
        """int64[rows]: what one pod of each demander amounts to, times its pods, by row. Exact: far below 2^53."""
        each = by_demander.take(self._demander.view()) * self._pods.view()
        return np.bincount(self._row.view(), each).astype(np.int64)

    def _clear(self, demanders: Sequence[Demander], demander: Demander, row: int, place: int) -> None:
        """The last place comes in its stead."""
        columns = (self._demander, self._row, self._pods)
        last = self._row.size - 1
        if place != last:
            moved = demanders[int(self._demander.array[last])]
            moved.places[int(self._row.array[last])] = place
            for column in columns:
                column.array[place] = column.array[last]
        for column in columns:
            column.size = last
        del demander.places[row]
