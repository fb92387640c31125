"""Slot quantiles: profiles without a model, the baseline for the regression.

With enough weeks of samples, quantiles by slot of the week; else by time of day, separately for working and rest days. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.quantiles import Series, flat_quantiles, grouped_quantiles
from multisched.forecasting.slot_grid import SlotGrid


def flat_curves(values: Series, slots: int, levels: Sequence[float]) -> NDArray[np.float32]:
    """Returns float32[levels, series, slots]: one quantile for the whole week; NaN without samples."""
    return np.repeat(flat_quantiles(values, levels)[:, :, None], slots, axis=2)


def slot_curves(
    values: Series, days: NDArray[np.float64], grid: SlotGrid, settings: FitSettings, levels: Sequence[float]
) -> NDArray[np.float32]:
    """Returns float32[levels, series, slots]. `days`: number of days of samples of each series.

    A slot without samples gets the quantile of its time of day over working or rest days, whichever it is on; without those,
    over all days; without those, the quantile of all samples.
    """
    curves = _pooled(values, grid, levels)
    has_weeks = days >= 7 * settings.hour_of_week_weeks_min
    if has_weeks.any():
        own = grouped_quantiles(values[has_weeks], grid.slot, grid.slots, levels)
        curves[:, has_weeks] = np.where(np.isnan(own), curves[:, has_weeks], own)
    return curves


def _pooled(values: Series, grid: SlotGrid, levels: Sequence[float]) -> NDArray[np.float32]:
    """Returns quantiles by time of day, separately for working and rest days; a series with any sample has all slots filled."""
    per_day = grid.slots_per_day
    by_kind = grouped_quantiles(values, grid.kind_of_day(), 2 * per_day, levels)
    kind = np.arange(grid.slots) % per_day + per_day * grid.is_rest_day
    curves = np.take(by_kind, kind, axis=2)
    is_open = np.isnan(curves[0])
    if is_open.any():
        by_time = grouped_quantiles(values, grid.slot_of_day(), per_day, levels)
        by_time = np.tile(by_time, (1, 1, grid.slots // per_day))
        by_time = np.where(np.isnan(by_time), flat_quantiles(values, levels)[:, :, None], by_time)
        curves = np.where(is_open, by_time, curves)
    return curves
