"""NodeCurves: what every row is predicted to use over the week: exact whole numbers, and floats of them to score by.

int32[rows, dimensions, slots] is the truth: adding a curve and taking it away again leaves no trace. float32 tiles of
TILE_ROWS rows follow it when someone reads. Rows stand side by side in them, so a sum or a maximum over the slots is
one vector operation per tile. Memory: 8 bytes per row, dimension and slot: 34 MB for 5,000 rows, 5 dimensions and 168
slots. Owned by `PeakLedger`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.quantized_profiles import FLOAT_QUANTA, Curve, Floats, Quanta
from multisched.framework.node_view import Rows

TILE_ROWS: Final = 512
FEW_ROWS: Final = 64
"""So many rows of a tile are looked at one by one; of more the whole tile is."""

PerRow = NDArray[np.float64]
"""float64[dimensions, len(rows)]"""


class Outlook(NamedTuple):
    """Rows with a pod added. In FLOAT_QUANTA of each dimension's quantum."""

    growth: PerRow
    """By how much the sum of the third powers over the slots rises."""
    peak: PerRow
    """The fullest slot with the pod."""
    peak_before: PerRow


class NodeCurves:
    """The predicted use of every row over the week, in exact whole numbers."""

    def __init__(self, dimensions: int, slots: int) -> None:
        self._shape = (dimensions, slots)
        self._exact: NDArray[np.int32] = np.zeros((0, dimensions, slots), np.int32)
        self._tiles: list[Floats] = []
        self._powers: Floats = np.zeros((dimensions, 0), np.float32)
        self._peaks: Floats = np.zeros((dimensions, 0), np.float32)
        self._stale: set[int] = set()

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        parts = (self._exact, self._powers, self._peaks, *self._tiles)
        return sum(part.nbytes for part in parts)

    def add(self, row: int, curve: Curve, pods: int) -> None:
        """So many pods of this curve more on the row; fewer, below zero."""
        self._grow(row + 1)
        if pods == 1:
            self._exact[row] += curve.quanta
        elif pods == -1:
            self._exact[row] -= curve.quanta
        else:
            self._exact[row] += curve.quanta * np.int32(pods)
        self._stale.add(row)

    def of(self, rows: Rows) -> NDArray[np.int32]:
        """int32[len(rows), dimensions, slots]"""
        if len(rows):
            self._grow(int(rows.max()) + 1)
        return self._exact[rows]

    def peaks(self, rows: Rows) -> PerRow:
        """In FLOAT_QUANTA: the fullest slot, without bringing floats up to date."""
        if len(rows):
            self._grow(int(rows.max()) + 1)
        found: PerRow = self._peaks[:, rows].astype(np.float64)
        stale = np.flatnonzero(np.isin(rows, np.fromiter(self._stale, np.intp, len(self._stale))))
        for begin in range(0, len(stale), TILE_ROWS):
            at = stale[begin : begin + TILE_ROWS]
            found[:, at] = self._exact[rows[at]].max(axis=2).T * FLOAT_QUANTA
        return found

    def at_slot(self, rows: Rows, slot: int) -> PerRow:
        """In FLOAT_QUANTA: what they use then."""
        if len(rows):
            self._grow(int(rows.max()) + 1)
        found: PerRow = self._exact[rows, :, slot].T * np.float64(FLOAT_QUANTA)
        return found

    def outlook(self, rows: Rows, curve: Curve) -> Outlook:
        """What comes of the rows (ascending) if the pod comes there."""
        if len(rows):
            self._grow(rows.item(-1) + 1)
        self._renew(sorted(self._stale))
        own = curve.floats
        if len(rows) <= FEW_ROWS:
            powers, peaks = self._look_closely(rows, own)
        else:
            powers, peaks = self._look_over(rows, own)
        before = self._powers[:, rows]
        growth = np.subtract(powers, before, dtype=np.float64)
        return Outlook(growth, peaks.astype(np.float64), self._peaks[:, rows].astype(np.float64))

    # -- looking ---------------------------------------------------------------------------------------------------

    def _look_closely(self, rows: Rows, own: Floats) -> tuple[Floats, Floats]:
        """(third powers, peaks), float32[dimensions, len(rows)], from the exact numbers. `own`: [dimensions, slots]."""
        loads = self._exact[rows].astype(np.float32)
        loads *= np.float32(FLOAT_QUANTA)
        loads += own
        peaks = np.maximum.reduce(loads, axis=2)
        loads = loads * loads * loads
        # Accumulated, since a sum along the last axis would add in another order than the tiles are added in.
        return np.add.accumulate(loads, axis=2)[:, :, -1].T, peaks.T

    def _look_over(self, rows: Rows, own: Floats) -> tuple[Floats, Floats]:
        """The same, a tile at a time."""
        powers = np.empty((self._shape[0], len(rows)), np.float32)
        peaks = np.empty_like(powers)
        out = np.empty((self._shape[1], TILE_ROWS), np.float32)
        bounds = np.searchsorted(rows, np.arange(len(self._tiles) + 1) * TILE_ROWS).tolist()
        for tile, (begin, end) in enumerate(pairwise(bounds)):
            if begin == end:
                continue
            asked = slice(begin, end)
            if end - begin <= FEW_ROWS:
                powers[:, asked], peaks[:, asked] = self._look_closely(rows[asked], own)
                continue
            power, peak = _look_at_tile(self._tiles[tile], own, out)
            if end - begin == TILE_ROWS:
                powers[:, asked], peaks[:, asked] = power, peak
            else:
                at = rows[asked] - tile * TILE_ROWS
                powers[:, asked], peaks[:, asked] = power[:, at], peak[:, at]
        return powers, peaks

    def renew(self, rows_max: int) -> bool:
        """Brings the floats of so many changed rows up to date, ahead of whoever looks; True if there are more."""
        self._renew(sorted(self._stale)[:rows_max])
        return bool(self._stale)

    def _renew(self, changed: Sequence[int]) -> None:
        """Brings the floats of these rows (ascending) up to date."""
        if not changed:
            return
        stale = np.array(changed, np.intp)
        if len(changed) == len(self._stale):
            self._stale.clear()  # a set that is emptied one by one is walked at its old size ever after
        else:
            self._stale.difference_update(changed)
        nothing = np.zeros(self._shape, np.float32)
        for start in range(0, len(stale), TILE_ROWS):
            rows = stale[start : start + TILE_ROWS]
            self._powers[:, rows], self._peaks[:, rows] = self._look_closely(rows, nothing)
        tiles, begins = (
            np.unique(stale // TILE_ROWS, return_index=True) if len(stale) > 1 else (stale // TILE_ROWS, [0])
        )
        for tile, begin, end in zip(tiles.tolist(), begins, (*begins[1:], len(stale)), strict=True):
            rows = stale[begin:end]
            floats = self._exact[rows].astype(np.float32) * np.float32(FLOAT_QUANTA)
            self._tiles[tile][:, :, rows - tile * TILE_ROWS] = floats.transpose(1, 2, 0)

    def _grow(self, needed: int) -> None:
        size = len(self._exact)
        if needed <= size:
            return
        tiles = -(-max(needed, size + size // 4) // TILE_ROWS)
        more = tiles * TILE_ROWS - size
        grown = np.zeros((size + more, *self._shape), np.int32)
        grown[:size] = self._exact
        self._exact = grown
        self._tiles += [
            np.zeros((*self._shape, TILE_ROWS), np.float32) for _ in range(tiles - len(self._tiles))
        ]  # fmt: skip
        self._powers = np.pad(self._powers, ((0, 0), (0, more)))
        self._peaks = np.pad(self._peaks, ((0, 0), (0, more)))


def _look_at_tile(loads: Floats, own: Floats, out: Floats) -> tuple[Floats, Floats]:
    """float32[dimensions, TILE_ROWS] each: the sum over the slots of (load + own)^3, and the largest load + own.

    Each row is computed by the same operations in the same order as one by one. `out`: [slots, TILE_ROWS], written to.
    """
    powers = np.empty((loads.shape[0], loads.shape[2]), np.float32)
    peaks = np.empty_like(powers)
    for dimension, load in enumerate(loads):
        np.add(load, own[dimension, :, None], out=out)
        np.maximum.reduce(out, axis=0, out=peaks[dimension])
        _sum_cubes(out, powers[dimension])
    return powers, peaks


def _sum_cubes(loads: Floats, out: Floats) -> None:
    """The sum along the first axis, slot by slot: in one pass where that adds as several would."""
    if _ONE_PASS_IS_EXACT:
        np.einsum("sr,sr,sr->r", loads, loads, loads, out=out)
    else:
        np.add.reduce(loads * loads * loads, axis=0, out=out)


def _one_pass_is_exact() -> bool:
    """False on a machine whose numpy was compiled to multiply and add with one rounding.

    Sums would differ there in the last bit from those of single rows. A row's score could depend on which rows are
    asked about with it.
    """
    loads = (np.arange(168 * 64, dtype=np.float32) % np.float32(97.3) / np.float32(31.7)).reshape(168, 64)
    exact = np.add.accumulate(loads * loads * loads, axis=0)[-1]
    return bool(np.einsum("sr,sr,sr->r", loads, loads, loads).tobytes() == exact.tobytes())


_ONE_PASS_IS_EXACT: Final = _one_pass_is_exact()


def worst_slots(loads: Quanta, own: Quanta) -> NDArray[np.intp]:
    """intp[rows]: for each row's loads in one dimension the slot in which it is fullest with the pod."""
    found: NDArray[np.intp] = (loads + own).argmax(axis=1)
    return found
