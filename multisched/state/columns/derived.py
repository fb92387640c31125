"""Columns that plugins compute from each row, cached and renewed for changed rows. Used by `NodeTable` only."""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

import numpy as np

from multisched.framework.node_view import Derive, Int64, NodeView, Rows, columns_at
from multisched.state.change_log import ChangeLog

DERIVED_MAX = 16
"""Derived columns kept; 8 bytes per row each."""

_NO_COLUMN: Int64 = np.zeros(0, np.int64)


class DerivedColumns:
    """Owns key -> (log position up to which the column is valid, column)."""

    __slots__ = ("_columns", "_row_log")

    def __init__(self, row_log: ChangeLog) -> None:
        """`row_log`: the table's; read only."""
        self._row_log = row_log
        self._columns: dict[Hashable, tuple[int, Int64]] = {}

    def at(self, key: Hashable, derive: Derive, nodes: NodeView, size: int, rows: Rows) -> Int64:
        """Returns int64[rows], read-only. `nodes`: the table, passed to `derive`; `size`: its rows."""
        at, column = self._columns.get(key, (0, _NO_COLUMN))
        changed = self._row_log.since(at) if len(column) == size else None
        if changed is None:
            if len(self._columns) >= DERIVED_MAX:
                self._columns.clear()
            column = derive(nodes, np.arange(size))
        elif len(changed):
            column[changed] = derive(nodes, changed)
        self._columns[key] = (self._row_log.sequence, column)
        return cast(Int64, columns_at(column[None], rows)[0])
