"""Scores of nodes by their cards."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from domains.gpu.card_arrays import MEMORY, SIZE, CardArrays
from domains.gpu.cards import CARD_MILLI, CARD_PERCENT
from domains.gpu.demand import GpuDemand, Part
from multisched.framework.node_view import Int64, Rows, Scores
from multisched.framework.normalize import MAX_SCORE

SHARED_POINTS, TIGHT_POINTS, FULL_POINTS = 50, 40, 10
"""Parts of a fraction's score: cards that are already shared, little left on them, utilization of the node.

Of the simple rules, filling used cards first and used nodes next leaves the fewest fragments (performance 2.1).
"""
_FULL: Final = np.iinfo(np.int64).max
POINTS_MILLI: Final = 1000


def score_cards(arrays: CardArrays, demand: GpuDemand, rows: Rows) -> Scores:
    """Returns int64[rows], 0..100, for rows whose mode serves the demand; 0 where it does not fit."""
    return _score_whole(arrays, demand, rows) if demand.is_whole else _score_fraction(arrays, demand, rows)


def _score_whole(arrays: CardArrays, demand: GpuDemand, rows: Rows) -> Scores:
    """Returns 100 / (1 + completely free cards left): prefers the fullest node that fits, and exact fits by far."""
    memory, size = arrays.layer(MEMORY, rows), arrays.layer(SIZE, rows)
    left = ((size > 0) & (memory == size)).sum(axis=0) - demand.count
    return np.where(left >= 0, MAX_SCORE // (1 + np.maximum(left, 0)), 0)


def _score_fraction(arrays: CardArrays, demand: GpuDemand, rows: Rows) -> Scores:
    """Returns points for the best-fitting cards of the first part: already shared, little left on them, on a full node."""
    part = demand.parts[0]
    memory, size = arrays.layer(MEMORY, rows), arrays.layer(SIZE, rows)
    if part.count > len(memory):
        return np.zeros(len(rows), np.int64)
    fits = arrays.fitting(demand, part, rows)
    order = _lowest(np.where(fits, memory, _FULL), part.count)
    chosen = np.take_along_axis(memory, order, axis=0)
    sizes = np.maximum(np.take_along_axis(size, order, axis=0), 1)
    needed = _needed(part, sizes, arrays.scales(rows))
    shared = (chosen < sizes).sum(axis=0)
    left = (POINTS_MILLI * (chosen - needed) // sizes).sum(axis=0)
    total = np.maximum(size, 0).sum(axis=0)
    free = np.where(size > 0, memory, 0).sum(axis=0)
    used_percent = 100 - 100 * free // np.maximum(total, 1)
    points = SHARED_POINTS * shared // part.count + FULL_POINTS * used_percent // 100
    points += TIGHT_POINTS * (part.count * POINTS_MILLI - left) // (part.count * POINTS_MILLI)
    return np.where(fits.sum(axis=0) >= part.count, points, 0)


def _lowest(amounts: Int64, count: int) -> NDArray[np.intp]:
    """Returns intp[count, rows]: the places of the lowest amounts of each column, the first ones of equal amounts."""
    if count == 1:
        return np.expand_dims(amounts.argmin(axis=0), 0)
    return np.argsort(amounts, axis=0, kind="stable")[:count]


def _needed(part: Part, sizes: Int64, scales: Int64) -> Int64:
    """Returns int64 in the shape of `sizes`: memory that the part needs of cards of these sizes, see `Amount.of`."""
    amount = part.amount
    if amount.milli:
        return amount.milli * sizes // CARD_MILLI
    if amount.percent:
        return amount.percent * sizes // CARD_PERCENT
    return np.broadcast_to(amount.memory * scales, sizes.shape)
