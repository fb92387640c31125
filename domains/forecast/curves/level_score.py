"""The arithmetic of PeakForecast's score: how even a placement keeps the load over the week.

The cost of a pod on a row is the growth of load^3, summed over slots and dimensions, where load = use / capacity. Full
slots of full dimensions count most, so services that peak at different hours share nodes, and services with much log
are kept apart. The growth at the fullest slot of each dimension is added, as if that slot lasted for WORST_SHARE of the
week.

The cost divided by three times the load that the pod adds is the square of a *level*: how full the row is in the
dimensions and slots that the pod uses. The score compares the level with the *anchor*: the level of a row of mean
capacity, loaded like the fleet, with the pod on it. So scores near 50, where they differ most, fall on typical rows,
for small and large pods. The fleet's level is rounded to an octave of its square (`FleetLevel`), so that cached scores
seldom become invalid.
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
LEVEL_MIN: Final = -8
"""Lowest fleet level, in octaves of the level squared: a fleet loaded below 6 % counts as loaded to 6 %."""
LEVEL_HYSTERESIS: Final = 0.75
"""Hysteresis: distance in octaves from the fleet level at which it changes. A change invalidates all cached scores."""
ROW_HYSTERESIS: Final = 0.25
"""Hysteresis: change of the mean row's capacity, in octaves, at which the new value is used."""
PODS_PER_UPDATE: Final = 16
"""The fleet level is updated when one in this many pods of the fleet was added or removed."""


class FleetLevel:
    """The fleet's level squared, rounded to octaves, and the capacity of its mean row; both with hysteresis."""

    __slots__ = ("number", "row", "version")

    def __init__(self) -> None:
        self.number = LEVEL_MIN
        self.row: Amounts = np.zeros((0, 1))
        """float64[dimensions, 1]: `peak_ledger.load_factor` of a row of mean capacity; 0 where no row states a capacity."""
        self.version = 0
        """Number of changes of either; cached scores of an earlier version are invalid."""

    def update(self, square: float, row: Amounts) -> None:
        """Updates level and mean row from the fleet, if they differ by more than the hysteresis."""
        octave = math.log2(square) if square > 0 else LEVEL_MIN
        if abs(octave - self.number) > LEVEL_HYSTERESIS:
            self.number = max(LEVEL_MIN, round(octave))
            self.version += 1
        if not _is_near(row, self.row):
            self.row = row
            self.version += 1

    def anchor(self, curve: Curve, weights: Amounts) -> float:
        """Returns the level squared that scores 50: that of a mean row, constantly loaded like the fleet, with the pod.

        It is ((level + height)^3 - level^3) / (3 height), where height is the mean of the pod's load, weighted by
        that load.
        """
        square, height = 2.0**self.number, _height(curve, self.row, weights)
        return square + math.sqrt(square) * height + height * height / 3


def _is_near(row: Amounts, before: Amounts) -> bool:
    if row.shape != before.shape or ((row > 0) != (before > 0)).any():
        return False
    stated = row > 0
    return bool((np.abs(np.log2(row[stated] / before[stated])) <= ROW_HYSTERESIS).all())


def _height(curve: Curve, row: Amounts, weights: Amounts) -> float:
    """Returns the pod's mean load, weighted by itself, as a share of the mean row's capacity; 0 if the pod uses nothing."""
    weighed = row * weights[:, None]
    used = float((weighed * curve.mass).sum())
    return float((weighed * row * curve.squares).sum()) / used if used > 0 else 0.0


def fleet_square(load: Amounts, weights: Amounts) -> float:
    """Returns the level squared of the mean row for a pod with the average curve. `load`: [dimensions, slots]."""
    third = (load**3).sum(axis=1) + WORST_SHARE * load.shape[1] * load.max(axis=1, initial=0.0) ** 3
    used = float((load.sum(axis=1) * weights).sum())
    return float((third * weights).sum()) / used if used > 0 else 0.0


def level_squares(outlook: Outlook, curve: Curve, factors: Amounts, weights: Amounts) -> NDArray[np.float64]:
    """Returns float64[rows]: cost of the pod / (3 * load that it adds); 0 for a pod that adds nothing.

    `factors`: `peak_ledger.load_factor`, [dimensions, rows]; `weights`: [dimensions]. The result for a row does not
    depend on the other rows.
    """
    worst = outlook.peak * outlook.peak * outlook.peak
    worst -= outlook.peak_before * outlook.peak_before * outlook.peak_before
    worst *= WORST_SHARE * curve.quanta.shape[1]
    worst += outlook.growth
    weighed = factors * weights[:, None]
    worst *= weighed * factors * factors
    added = weighed * (3.0 * curve.mass)
    # accumulate, because numpy sums a single column in another order than several.
    cost, all_added = np.add.accumulate(worst, axis=0)[-1], np.add.accumulate(added, axis=0)[-1]
    squares: NDArray[np.float64] = np.maximum(cost, 0.0) / np.where(all_added > 0, all_added, np.inf)
    return squares


def scores_of(squares: NDArray[np.float64], anchor: float) -> Scores:
    """Returns int64[rows], 0..MAX_SCORE: 100 / (1 + (level / anchor's level)^3), so 100 at no cost and 50 at the anchor."""
    ratio = squares / anchor
    found: Scores = (MAX_SCORE / (1.0 + ratio * np.sqrt(ratio))).astype(np.int64)
    return found
