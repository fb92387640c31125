"""DemandRows: the rows of each group's pods in arrays, so that all of them are summed at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from multisched.framework.affinity_group import AffinityGroup
from multisched.framework.term_columns import Column, Int32

Int64 = NDArray[np.int64]
Amounts = Int64 | NDArray[np.float64]


class DemandRows:
    """One entry per group and row. Owned by `PodDemands`."""

    __slots__ = ("_group", "_pods", "_row")

    def __init__(self) -> None:
        self._group, self._row, self._pods = Column(np.int32), Column(np.int32), Column(np.int32)

    def pods(self, position: int) -> int:
        return int(self._pods.array[position])

    def account(self, groups: Sequence[AffinityGroup], group: AffinityGroup, row: int, sign: int) -> None:
        """Adds one pod to the row or removes one. `groups`: indexed by number."""
        position = group.places.get(row)
        if position is None:
            group.places[row] = self._row.size
            self._group.append(group.number)
            self._row.append(row)
            self._pods.append(1)
            return
        pods = self._pods.array
        pods[position] += sign
        if not pods[position]:
            self._clear(groups, group, row, position)

    def renumber(self, group: AffinityGroup) -> None:
        """Updates the entries of a group whose number changed."""
        for position in group.places.values():
            self._group.array[position] = group.number

    def renumber_all(self, number: Int32) -> None:
        """Updates all entries. `number`: int32[groups], the new number of each."""
        self._group.replace(number.take(self._group.view()))

    def summed(self, by_group: Amounts) -> Int64:
        """Returns int64[rows]: per row, the sum over groups of amount per pod times pods there. Exact: far below 2^53."""
        each = by_group.take(self._group.view()) * self._pods.view()
        return np.bincount(self._row.view(), each).astype(np.int64)

    def _clear(self, groups: Sequence[AffinityGroup], group: AffinityGroup, row: int, position: int) -> None:
        """Removes an entry; the last entry moves to its position."""
        columns = (self._group, self._row, self._pods)
        last = self._row.size - 1
        if position != last:
            moved = groups[int(self._group.array[last])]
            moved.places[int(self._row.array[last])] = position
            for column in columns:
                column.array[position] = column.array[last]
        for column in columns:
            column.size = last
        del group.places[row]
