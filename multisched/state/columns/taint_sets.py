"""The taints of nodes as codes: nodes with equal taints have equal codes. Used by `NodeTable` only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multisched.framework.node_view import Int32
from multisched.model.selectors import Taint
from multisched.state.columns.arrays import frozen, grown


class TaintSets:
    """Owns the code of each row, and the distinct tuples of taints by code."""

    __slots__ = ("_codes", "_index", "_sets")

    def __init__(self, capacity: int) -> None:
        self._codes = np.zeros(capacity, np.int32)
        self._sets: list[tuple[Taint, ...]] = [()]
        self._index: dict[tuple[Taint, ...], int] = {(): 0}

    @property
    def codes(self) -> Int32:
        """int32[all rows], read-only: index into `sets`."""
        return frozen(self._codes)

    @property
    def sets(self) -> Sequence[tuple[Taint, ...]]:
        """The distinct tuples of taints by code. Only grows."""
        return self._sets

    def write(self, row: int, taints: tuple[Taint, ...]) -> None:
        code = self._index.get(taints)
        if code is None:
            code = self._index[taints] = len(self._sets)
            self._sets.append(taints)
        self._codes[row] = code

    def grow(self, capacity: int) -> None:
        self._codes = grown(self._codes, capacity)
