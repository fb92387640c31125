"""DemandPlaces: the rows of each demander's pods in arrays, so that all of them are summed at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from multisched.framework.affinity_group import AffinityGroup
from multisched.framework.term_columns import Column, Int32

Int64 = NDArray[np.int64]
Amounts = Int64 | NDArray[np.float64]


class DemandPlaces:
    """One entry per demander and row. Owned by `PodDemands`."""

    __slots__ = ("_demander", "_pods", "_row")

    def __init__(self) -> None:
        self._demander, self._row, self._pods = Column(np.int32), Column(np.int32), Column(np.int32)

    def pods(self, place: int) -> int:
        return int(self._pods.array[place])

    def account(self, demanders: Sequence[AffinityGroup], demander: AffinityGroup, row: int, sign: int) -> None:
        """Adds one pod to the row or removes one. `demanders`: indexed by number."""
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

    def renumber(self, demander: AffinityGroup) -> None:
        """Updates the entries of a demander whose number changed."""
        for place in demander.places.values():
            self._demander.array[place] = demander.number

    def renumber_all(self, number: Int32) -> None:
        """Updates all entries. `number`: int32[demanders], the new number of each."""
        self._demander.replace(number.take(self._demander.view()))

    def summed(self, by_demander: Amounts) -> Int64:
        """Returns int64[rows]: the amount per pod of each demander, times its pods, by row. Exact: far below 2^53."""
        each = by_demander.take(self._demander.view()) * self._pods.view()
        return np.bincount(self._row.view(), each).astype(np.int64)

    def _clear(self, demanders: Sequence[AffinityGroup], demander: AffinityGroup, row: int, place: int) -> None:
        """Removes an entry; the last entry moves to its position."""
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
