"""How even a placement keeps the week: the arithmetic of PeakForecast's score.

What a pod costs on a row is the growth of load^3, summed over slots and dimensions, where load is use over capacity.
Full slots of full dimensions count most. So services that peak at different hours meet, and log-heavy ones part. Added
to that is the growth at the fullest slot of each dimension, as if it lasted for WORST_SHARE of the week. The cost,
divided by what the pod itself adds, is the square of a *level*. The level says how high the row is filled in what the
pod uses. Each level is compared with that of the fleet's mean row with the pod on it; the fleet's is on a coarse ladder.
So the finest steps of the score are where the rows are, for small pods and for large ones.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.flat_peaks import Amounts
from domains.forecast.curves.node_curves import Outlook
from domains.forecast.curves.quantized_profiles import Curve
from multisched.framework.node_view import Scores
from multisched.framework.normalize import MAX_SCORE

WORST_SHARE: Final = 0.1
RUNG_MIN: Final = -8
"""Of the fleet's level squared, in octaves: a fleet that uses less than 6 % everywhere counts as one that uses 6 %."""
RUNG_STICKS: Final = 0.75
"""So many octaves from its rung the fleet is before it gets another: every cached score is renewed then."""
ROW_STICKS: Final = 0.25
"""So many octaves the capacity of the mean row is off before it counts anew."""
PODS_PER_LOOK: Final = 16
"""The fleet is looked at again when one in so many of its pods has come or gone."""


class Rung:
    """Where the fleet is on the ladder, octave by octave of its level squared, and how large its mean row is."""

    __slots__ = ("number", "row", "turn")

    def __init__(self) -> None:
        self.number = RUNG_MIN
        self.row: Amounts = np.zeros((0, 1))
        """float64[dimensions, 1]: as `peak_ledger.load_factor`, of a row of mean capacity; 0 where none states any."""
        self.turn = 0
        """How often either has changed: scores of before have another anchor."""

    def follow(self, square: float, row: Amounts) -> None:
        """Goes where the fleet is, unless that is near."""
        octave = math.log2(square) if square > 0 else RUNG_MIN
        if abs(octave - self.number) > RUNG_STICKS:
            self.number = max(RUNG_MIN, round(octave))
            self.turn += 1
        if not _is_near(row, self.row):
            self.row = row
            self.turn += 1

    def anchor(self, curve: Curve, weights: Amounts) -> float:
        """The level squared that scores 50: of a mean row, filled all week as the fleet is, with the pod on it.

        That is ((level + height)^3 - level^3) / (3 height), where the height of the pod is the mean of what it uses,
        weighed by what it uses.
        """
        square, height = 2.0**self.number, _height(curve, self.row, weights)
        return square + math.sqrt(square) * height + height * height / 3


def _is_near(row: Amounts, before: Amounts) -> bool:
    if row.shape != before.shape or ((row > 0) != (before > 0)).any():
        return False
    stated = row > 0
    return bool((np.abs(np.log2(row[stated] / before[stated])) <= ROW_STICKS).all())


def _height(curve: Curve, row: Amounts, weights: Amounts) -> float:
    """A share of the mean row's capacity; 0 for a pod that uses nothing of what rows state."""
    weighed = row * weights[:, None]
    used = float((weighed * curve.mass).sum())
    return float((weighed * row * curve.squares).sum()) / used if used > 0 else 0.0


def fleet_square(load: Amounts, weights: Amounts) -> float:
    """The level squared of the mean row, for a pod that uses what all pods use on average. `load`: [dimensions, slots]."""
    third = (load**3).sum(axis=1) + WORST_SHARE * load.shape[1] * load.max(axis=1, initial=0.0) ** 3
    used = float((load.sum(axis=1) * weights).sum())
    return float((third * weights).sum()) / used if used > 0 else 0.0


def level_squares(outlook: Outlook, curve: Curve, factors: Amounts, weights: Amounts) -> NDArray[np.float64]:
    """float64[rows]: what the pod costs on each row over what it adds; 0 for a pod that adds nothing.

    `factors`: as `peak_ledger.load_factor`, [dimensions, rows]; `weights`: [dimensions]. A row's answer does not depend
    on how many are asked about.
    """
    worst = outlook.peak * outlook.peak * outlook.peak
    worst -= outlook.peak_before * outlook.peak_before * outlook.peak_before
    worst *= WORST_SHARE * curve.quanta.shape[1]
    worst += outlook.growth
    weighed = factors * weights[:, None]
    worst *= weighed * factors * factors
    added = weighed * (3.0 * curve.mass)
    # Accumulated, since numpy sums one column in another order than many.
    cost, all_added = np.add.accumulate(worst, axis=0)[-1], np.add.accumulate(added, axis=0)[-1]
    squares: NDArray[np.float64] = np.maximum(cost, 0.0) / np.where(all_added > 0, all_added, np.inf)
    return squares


def scores_of(squares: NDArray[np.float64], anchor: float) -> Scores:
    """int64[rows], 0..MAX_SCORE: 100 on rows that cost nothing, 50 where the level is the anchor's, and ever less above:
    100 / (1 + (level / anchor's level)^3)."""
    ratio = squares / anchor
    found: Scores = (MAX_SCORE / (1.0 + ratio * np.sqrt(ratio))).astype(np.int64)
    return found
