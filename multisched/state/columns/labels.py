"""Labels of nodes, by key: a column of codes for each key in use.

Owns the columns, and the number of nodes with each key. Keys that only pods name get no column: their authors are not
trusted. Used by `NodeTable` only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from multisched.model.objects import Node
from multisched.state.columns.arrays import grown

LABEL_COLUMNS_MAX = 512
"""Label keys with a column; beyond this the least recently used column is dropped (and rebuilt at its next use)."""


class LabelColumn:
    """Codes of one label key over all rows; 0 means that the label is absent."""

    __slots__ = ("_index", "codes", "values")

    def __init__(self, capacity: int) -> None:
        self.codes = np.zeros(capacity, np.int32)
        self.values: list[str] = [""]
        self._index: dict[str, int] = {}

    def set(self, row: int, value: str | None) -> None:
        if value is None:
            self.codes[row] = 0
            return
        code = self._index.get(value)
        if code is None:
            code = self._index[value] = len(self.values)
            self.values.append(value)
        self.codes[row] = code

    def code(self, value: str) -> int:
        return self._index.get(value, 0)

    def grow(self, capacity: int) -> None:
        self.codes = grown(self.codes, capacity)


class LabelColumns:
    """Label key -> its column."""

    __slots__ = ("_capacity", "_columns", "_nodes", "_nodes_with", "_nowhere")

    def __init__(self, nodes: Sequence[Node | None], capacity: int) -> None:
        """`nodes`: the table's, by row; a live view."""
        self._nodes = nodes
        self._capacity = capacity
        self._columns: dict[str, LabelColumn] = {}
        self._nodes_with: Counter[str] = Counter()
        """Label key -> number of nodes that have it."""
        self._nowhere = LabelColumn(capacity)
        """The column of every label that no node has."""

    def column(self, key: str) -> LabelColumn:
        column = self._columns.pop(key, None)
        if column is None:
            if key not in self._nodes_with:
                return self._nowhere
            if len(self._columns) >= LABEL_COLUMNS_MAX:
                del self._columns[next(iter(self._columns))]
            column = LabelColumn(self._capacity)
            for row, node in enumerate(self._nodes):
                if node is not None:
                    column.set(row, node.labels.get(key))
        self._columns[key] = column
        return column

    def columns(self) -> Iterable[tuple[str, LabelColumn]]:
        """Returns the keys in use, with their columns."""
        return self._columns.items()

    def is_on_nodes(self, key: str) -> bool:
        """Reports whether any node has this key."""
        return key in self._nodes_with

    def write(self, row: int, before: Node | None, after: Node | None) -> bool:
        """Replaces the row's node object; returns True if it has a key that no node had before."""
        for key, column in self._columns.items():
            column.set(row, None if after is None else after.labels.get(key))
        old, new = (node.labels.keys() if node else set() for node in (before, after))
        for key in old - new:
            self._nodes_with[key] -= 1
            if not self._nodes_with[key]:
                del self._nodes_with[key]
                self._columns.pop(key, None)
        is_news = bool(new - self._nodes_with.keys())
        for key in new - old:
            self._nodes_with[key] += 1
        return is_news

    def grow(self, capacity: int) -> None:
        self._capacity = capacity
        for column in (*self._columns.values(), self._nowhere):
            column.grow(capacity)
