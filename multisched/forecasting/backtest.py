"""The backtest: fits each kind of profile without the last days, and measures how well it predicts them. Pure.

`fit` chooses the kind of profile of each series by these errors; the command line shows them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multisched.forecasting.day_wave import wave_curves
from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.pinball import pinball
from multisched.forecasting.profiles import Backtest
from multisched.forecasting.quantiles import Series
from multisched.forecasting.season import means_of, season_curves
from multisched.forecasting.shrinkage import Shares, kept_shares, mixture_losses
from multisched.forecasting.slot_grid import SlotGrid
from multisched.forecasting.slot_quantiles import flat_curves, slot_curves
from multisched.forecasting.time_units import DAY_S

HOLDOUT_DAYS_MIN = 1.0


class Judged(NamedTuple):
    """Results of the backtest for each series."""

    errors: Backtest
    regression_share: Shares
    """Share of the regression curve that is kept; see `shrinkage`."""
    slot_share: Shares
    """Share of the slot quantiles that is kept."""


def known_days(values: Series, step_s: float) -> NDArray[np.float64]:
    """Returns float64[series]: number of days of samples."""
    days: NDArray[np.float64] = np.count_nonzero(values == values, axis=1) * np.float64(step_s / DAY_S)
    return days


def backtest(values: Series, step_s: float, grid: SlotGrid, settings: FitSettings) -> Judged:
    """Tests all kinds of profiles. `values`: float32[series, steps] on the grid, with NaN on holidays.

    Holds out the last `holdout_days` of the grid. For a series with samples of less than twice that time, the held-out time
    is halved until it has enough, down to HOLDOUT_DAYS_MIN; else its errors are NaN and its shares 1.
    """
    count = len(values)
    errors, shares = np.full((3, count), np.nan, np.float32), np.ones((2, count), np.float32)
    held = np.full(count, np.nan, np.float32)
    days = known_days(values, step_s)
    holdout, untested = settings.holdout_days, np.ones(count, np.bool_)
    while holdout >= HOLDOUT_DAYS_MIN and untested.any():
        chosen = np.flatnonzero(untested & (days >= 2 * holdout))
        cut = values.shape[1] - round(holdout * DAY_S / step_s)
        if len(chosen) and cut > 0:
            rows = _rows(values, chosen)
            errors[:, chosen], shares[:, chosen] = _judge(rows, days[chosen], cut, step_s, grid, settings)
            held[chosen] = np.where(np.isnan(errors[2, chosen]), np.nan, holdout)
            untested[chosen] = False
        holdout /= 2
    regression, slotted, flat = errors
    return Judged(Backtest(regression, slotted, flat, held), shares[0], shares[1])


def _rows(values: Series, chosen: NDArray[np.intp]) -> Series:
    return values if len(chosen) == len(values) else values[chosen]


def _judge(
    values: Series, days: NDArray[np.float64], cut: int, step_s: float, grid: SlotGrid, settings: FitSettings
) -> tuple[NDArray[np.float64], Shares]:
    """Returns float64[3, series]: errors (mean pinball loss / mean of the series) of regression, slot quantiles and flat
    quantile, fitted to the steps before `cut`; and float32[2, series]: kept shares of the first two."""
    before, known, truth, slot = values[:, :cut], grid.until(cut), values[:, cut:], grid.slot[cut:]
    level = (settings.quantile,)
    known_before = known_days(before, step_s)
    mean = means_of(values)
    regression = np.full((len(values), grid.slots), np.nan, np.float32)
    fits = np.flatnonzero((days >= settings.regression_days_min) & (known_before > 0))
    if len(fits):
        regression[fits] = season_curves(_rows(before, fits), known, settings, level)[0]
    # With the days of the whole series, the slot quantiles have the form that the final fit will use.
    slotted = slot_curves(before, days, known, settings, level)[0]
    flat = flat_curves(before, grid.slots, level)[0]
    plain = wave_curves(before, known, level)[0]
    above_regression, above_slots, above_flat, above_plain = (
        truth - np.take(curve, slot, axis=1) for curve in (regression, slotted, flat, plain)
    )
    of_regression, of_slots = (
        mixture_losses(above, above_plain, settings.quantile) for above in (above_regression, above_slots)
    )
    errors = np.stack([of_regression[0], of_slots[0], pinball(above_flat, settings.quantile)])
    shares = np.stack([kept_shares(of_regression, above_regression), kept_shares(of_slots, above_slots)])
    is_idle = mean <= 0
    return np.where(is_idle, np.where(np.isnan(errors), np.nan, 0), errors / np.where(is_idle, 1, mean)), shares
