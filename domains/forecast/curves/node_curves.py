"""NodeCurves: predicted use of every row over the week, as exact integers and as floats for scores.

int32[rows, dimensions, slots] is authoritative: adding and then subtracting a curve restores the previous sum exactly.
float32 tiles of TILE_ROWS rows are updated from it on read. Rows are the last axis of a tile, so a sum or maximum over
the slots is one vector operation per tile. Memory: 8 bytes per row, dimension and slot: 34 MB for 5,000 rows,
5 dimensions and 168 slots. Owned by `PeakLedger`.
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
"""Up to this many rows of a tile are computed one by one; for more, the whole tile is computed."""

PerRow = NDArray[np.float64]
"""float64[dimensions, len(rows)]"""


class Outlook(NamedTuple):
    """Loads of rows with a pod added, in units of quantum / FLOAT_QUANTA of each dimension."""

    growth: PerRow
    """Increase of the sum over the slots of load^3."""
    peak: PerRow
    """Load in the fullest slot with the pod."""
    peak_before: PerRow


class NodeCurves:
    """Predicted use of every row over the week, in exact integers."""

    def __init__(self, dimensions: int, slots: int) -> None:
        self._shape = (dimensions, slots)
        self._exact: NDArray[np.int32] = np.zeros((0, dimensions, slots), np.int32)
        self._tiles: list[Floats] = []
        self._powers: Floats = np.zeros((dimensions, 0), np.float32)
        self._peaks: Floats = np.zeros((dimensions, 0), np.float32)
        self._stale: set[int] = set()

    @property
    def nbytes(self) -> int:
        """Returns the bytes of all arrays."""
        parts = (self._exact, self._powers, self._peaks, *self._tiles)
        return sum(part.nbytes for part in parts)

    def add(self, row: int, curve: Curve, pods: int) -> None:
        """Adds `pods` pods with this curve to the row; removes them if negative."""
        self._grow(row + 1)
        if pods == 1:
            self._exact[row] += curve.quanta
        elif pods == -1:
            self._exact[row] -= curve.quanta
        else:
            self._exact[row] += curve.quanta * np.int32(pods)
        self._stale.add(row)

    def of(self, rows: Rows) -> NDArray[np.int32]:
        """Returns int32[len(rows), dimensions, slots], in quanta."""
        if len(rows):
            self._grow(int(rows.max()) + 1)
        return self._exact[rows]

    def peaks(self, rows: Rows) -> PerRow:
        """Returns the load in the fullest slot, scaled by FLOAT_QUANTA, without updating the tiles."""
        if len(rows):
            self._grow(int(rows.max()) + 1)
        found: PerRow = self._peaks[:, rows].astype(np.float64)
        stale = np.flatnonzero(np.isin(rows, np.fromiter(self._stale, np.intp, len(self._stale))))
        for begin in range(0, len(stale), TILE_ROWS):
            at = stale[begin : begin + TILE_ROWS]
            found[:, at] = self._exact[rows[at]].max(axis=2).T * FLOAT_QUANTA
        return found

    def at_slot(self, rows: Rows, slot: int) -> PerRow:
        """Returns the load in one slot, scaled by FLOAT_QUANTA."""
        if len(rows):
            self._grow(int(rows.max()) + 1)
        found: PerRow = self._exact[rows, :, slot].T * np.float64(FLOAT_QUANTA)
        return found

    def outlook(self, rows: Rows, curve: Curve) -> Outlook:
        """Returns the outlook of the rows (ascending) with a pod of this curve added."""
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

    # -- sums and maxima over the slots ------------------------------------------------------------------------------

    def _look_closely(self, rows: Rows, own: Floats) -> tuple[Floats, Floats]:
        """Returns (sums of third powers, peaks), each float32[dimensions, len(rows)], from the exact integers.

        `own`: the pod's curve, [dimensions, slots].
        """
        loads = self._exact[rows].astype(np.float32)
        loads *= np.float32(FLOAT_QUANTA)
        loads += own
        peaks = np.maximum.reduce(loads, axis=2)
        loads = loads * loads * loads
        # accumulate, because sum along the last axis adds in another order than the tiles do.
        return np.add.accumulate(loads, axis=2)[:, :, -1].T, peaks.T

    def _look_over(self, rows: Rows, own: Floats) -> tuple[Floats, Floats]:
        """Returns the same as `_look_closely`, computed a tile at a time."""
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
        """Updates the floats of up to `rows_max` changed rows ahead of the next read; returns True if more remain."""
        self._renew(sorted(self._stale)[:rows_max])
        return bool(self._stale)

    def _renew(self, changed: Sequence[int]) -> None:
        """Updates the floats of these rows (ascending)."""
        if not changed:
            return
        stale = np.array(changed, np.intp)
        if len(changed) == len(self._stale):
            self._stale.clear()  # a set emptied item by item keeps its large table, and iterating over it stays slow
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
    """Returns two float32[dimensions, TILE_ROWS]: the sum over the slots of (load + own)^3, and the largest load + own.

    Uses the same operations in the same order as `_look_closely`. `out`: scratch space, [slots, TILE_ROWS].
    """
    powers = np.empty((loads.shape[0], loads.shape[2]), np.float32)
    peaks = np.empty_like(powers)
    for dimension, load in enumerate(loads):
        np.add(load, own[dimension, :, None], out=out)
        np.maximum.reduce(out, axis=0, out=peaks[dimension])
        _sum_cubes(out, powers[dimension])
    return powers, peaks


def _sum_cubes(loads: Floats, out: Floats) -> None:
    """Writes the sum of load^3 over the first axis (slots) to `out`; in one pass if that gives bit-identical results."""
    if _ONE_PASS_IS_EXACT:
        np.einsum("sr,sr,sr->r", loads, loads, loads, out=out)
    else:
        np.add.reduce(loads * loads * loads, axis=0, out=out)


def _one_pass_is_exact() -> bool:
    """Reports whether einsum rounds like separate multiplications and additions; False if numpy uses fused multiply-add.

    With fused multiply-add, sums would differ in the last bit from those of `_look_closely`, and a row's score could
    depend on which other rows are scored with it.
    """
    loads = (np.arange(168 * 64, dtype=np.float32) % np.float32(97.3) / np.float32(31.7)).reshape(168, 64)
    exact = np.add.accumulate(loads * loads * loads, axis=0)[-1]
    return bool(np.einsum("sr,sr,sr->r", loads, loads, loads).tobytes() == exact.tobytes())


_ONE_PASS_IS_EXACT: Final = _one_pass_is_exact()


def worst_slots(loads: Quanta, own: Quanta) -> NDArray[np.intp]:
    """Returns intp[rows]: the slot with the highest load with the pod. `loads`: [rows, slots] and `own`: [slots] of one dimension."""
    found: NDArray[np.intp] = (loads + own).argmax(axis=1)
    return found
