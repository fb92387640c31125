"""Rows that are alike to a plugin: those with the same values of the node labels it goes by, its topology domains.

A plugin that goes by labels says the same of all rows of a domain. Asked about one row of each domain, it answers for
thousands. When a pod comes to one of ten zones, only that zone's answers are renewed. Owned by a class cache, which
alone calls it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import Bools, Rows
from multisched.state.domain_rows import DomainRows
from multisched.state.node_table import NodeTable

ROWS_PER_GROUP_MIN = 4
"""With fewer rows to a group, asking about every row costs no more than dealing in groups."""

GROUPINGS_MAX = 256
"""Combinations of labels that are remembered; past it all are forgotten, which costs time alone."""


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
        """Positions of the rows of these groups (bool[groups])."""
        numbers = groups.nonzero()[0]
        held = self.of == numbers.item(0) if len(numbers) == 1 else groups.take(self.of)
        return held.nonzero()[0]

    def firsts_among(self, mask: Bools) -> Rows:
        """The position of one row of each group that has any in the mask, ascending."""
        at = mask.nonzero()[0][::-1]
        firsts = np.full(self.count, -1, np.intp)
        firsts[self.of.take(at)] = at  # of several for one group the last counts, which is the first of its rows
        return np.sort(firsts[firsts >= 0])


class RowGroupCache:
    """Makes the groups, once for all classes, and anew when a node object changed."""

    def __init__(self, table: NodeTable, rows: DomainRows) -> None:
        self._table = table
        self._rows = rows
        self._mark = (-1, -1)
        self._known: dict[tuple[str, ...], RowGroups | None] = {}

    def by_labels(self, keys: tuple[str, ...]) -> RowGroups | None:
        """The domain's rows by their values of these labels; None where that makes too many groups to be of use."""
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
        for key in keys:  # numbered from 0 again at each key, so that no product of sizes overflows
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
