"""The backtest: how well each kind of profile would have foretold the last days, had it been made before them.

Pure functions; the fit asks them which kind a series gets, the command line shows them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.profiles import Backtest
from domains.forecast.curves.slot_grid import Numbers, SlotGrid
from domains.forecast.learning.quantiles import Series
from domains.forecast.learning.season import means_of, season_curves
from domains.forecast.learning.slot_quantiles import flat_curves, slot_curves
from domains.forecast.settings.fit import FitSettings
from domains.forecast.units import DAY_S

HOLDOUT_DAYS_MIN = 1.0


def known_days(values: Series, step_s: float) -> NDArray[np.float64]:
    """float64[series]: days of samples."""
    days: NDArray[np.float64] = np.count_nonzero(values == values, axis=1) * np.float64(step_s / DAY_S)
    return days


def pinball(truth: Series, curve: NDArray[np.float32], slot: Numbers, quantile: float) -> NDArray[np.float64]:
    """float64[series]: mean loss of the curve over the known samples; NaN without any."""
    above = truth - np.take(curve, slot, axis=1)
    loss = np.maximum(quantile * above, (quantile - 1) * above)
    is_known = loss == loss
    count = np.count_nonzero(is_known, axis=1)
    total = np.where(is_known, loss, 0).sum(axis=1, dtype=np.float64)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def backtest(values: Series, step_s: float, grid: SlotGrid, settings: FitSettings) -> Backtest:
    """Of float32[series, steps] on that grid, samples of holidays already NaN.

    Each series is judged on `holdout_days`, halved until it has as many days before them.
    """
    count = len(values)
    regression, slot_quantile, flat_quantile, held = (np.full(count, np.nan, np.float32) for _ in range(4))
    days = known_days(values, step_s)
    holdout, untested = settings.holdout_days, np.ones(count, np.bool_)
    while holdout >= HOLDOUT_DAYS_MIN and untested.any():
        chosen = np.flatnonzero(untested & (days >= 2 * holdout))
        cut = values.shape[1] - round(holdout * DAY_S / step_s)
        if len(chosen) and cut > 0:
            rows = _rows(values, chosen)
            judged = _judge(rows, days[chosen], cut, step_s, grid, settings)
            regression[chosen], slot_quantile[chosen], flat_quantile[chosen] = judged
            held[chosen] = np.where(np.isnan(judged[2]), np.nan, holdout)
            untested[chosen] = False
        holdout /= 2
    return Backtest(regression, slot_quantile, flat_quantile, held)


def _rows(values: Series, chosen: NDArray[np.intp]) -> Series:
    return values if len(chosen) == len(values) else values[chosen]


def _judge(
    values: Series, days: NDArray[np.float64], cut: int, step_s: float, grid: SlotGrid, settings: FitSettings
) -> NDArray[np.float64]:
    """float64[3, series]: errors of the regression, of slot quantiles and of one quantile, made before the cut."""
    before, known, truth, slot = values[:, :cut], grid.until(cut), values[:, cut:], grid.slot[cut:]
    level = (settings.quantile,)
    known_before = known_days(before, step_s)
    mean = means_of(values)
    errors = np.full((3, len(values)), np.nan)
    fits = np.flatnonzero((days >= settings.regression_days_min) & (known_before > 0))
    if len(fits):
        curves = season_curves(_rows(before, fits), known, settings, level)[0]
        errors[0, fits] = pinball(_rows(truth, fits), curves, slot, settings.quantile)
    errors[1] = pinball(truth, slot_curves(before, known_before, known, settings, level)[0], slot, settings.quantile)
    errors[2] = pinball(truth, flat_curves(before, grid.slots, level)[0], slot, settings.quantile)
    is_idle = mean <= 0
    return np.where(is_idle, np.where(np.isnan(errors), np.nan, 0), errors / np.where(is_idle, 1, mean))
