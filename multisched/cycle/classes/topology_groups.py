"""Groups of rows that a plugin treats the same: rows with equal values of the node labels that it reads.

Such a plugin gives the same result for all rows of a topology domain, so it is evaluated on one row of each domain instead of
on thousands. If a pod is placed in one of ten zones, only that zone's results are renewed. Owned by a class cache; called by
it only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import Bools, Rows
from multisched.state.domain_rows import DomainRows
from multisched.state.node_table import NodeTable

ROWS_PER_GROUP_MIN = 4
"""With fewer rows per group, evaluating every row costs no more than using groups."""

GROUPINGS_MAX = 256
"""Combinations of labels that are cached; beyond that the cache is cleared, which costs only time."""


class RowGroups:
    """The rows of a domain by group. Groups are numbered by their first rows, ascending."""

    __slots__ = ("count", "firsts", "of")

    def __init__(self, of: NDArray[np.intp], firsts: Rows) -> None:
        self.of = of
        """intp[rows]: the row's group."""
        self.firsts = firsts
        """Position of the first row of each group."""
        self.count = len(firsts)

    def rows_in(self, groups: Bools) -> Rows:
        """Returns positions of the rows of these groups (bool[groups])."""
        numbers = groups.nonzero()[0]
        held = self.of == numbers.item(0) if len(numbers) == 1 else groups.take(self.of)
        return held.nonzero()[0]

    def firsts_among(self, mask: Bools) -> Rows:
        """Returns the position of the first row in the mask of each group that has one, ascending."""
        at = mask.nonzero()[0][::-1]
        firsts = np.full(self.count, -1, np.intp)
        firsts[self.of.take(at)] = at  # in reverse order, so that the first row of a group is written last
        return np.sort(firsts[firsts >= 0])


class RowGroupCache:
    """Builds the groups once for all classes, and again after a node object changed."""

    def __init__(self, table: NodeTable, rows: DomainRows) -> None:
        self._table = table
        self._rows = rows
        self._mark = (-1, -1)
        self._known: dict[tuple[str, ...], RowGroups | None] = {}

    def by_labels(self, keys: tuple[str, ...]) -> RowGroups | None:
        """Returns the domain's rows grouped by their values of these labels; None if there would be too many groups."""
        mark = (self._rows.generation, self._table.nodes_version)
        if mark != self._mark:
            self._known.clear()
            self._mark = mark
        if keys not in self._known:
            if len(self._known) >= GROUPINGS_MAX:
                self._known.clear()
            self._known[keys] = self._made(keys)
        return self._known[keys]

    def _made(self, keys: tuple[str, ...]) -> RowGroups | None:
        rows = self._rows.rows
        of, firsts = np.zeros(len(rows), np.intp), np.zeros(min(len(rows), 1), np.intp)
        for key in keys:  # renumbered from 0 after each key, so that the product of sizes does not overflow
            codes = self._table.label_codes(key).take(rows)
            _, firsts, of = np.unique(
                of * len(self._table.label_values(key)) + codes, return_index=True, return_inverse=True
            )
            if len(firsts) * ROWS_PER_GROUP_MIN > len(rows):
                return None
        order = firsts.argsort()
        number = np.empty(len(order), np.intp)
        number[order] = np.arange(len(order))
        return RowGroups(number.take(of), firsts.take(order))
