"""Slot quantiles: the plain profile of a series, without a model; what the regression has to beat.

Pure functions. By the slot of the week where there are weeks enough, else by the time of working days and of rest days.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.slot_grid import SlotGrid
from domains.forecast.learning.quantiles import Series, flat_quantiles, grouped_quantiles
from domains.forecast.settings.fit import FitSettings


def flat_curves(values: Series, slots: int, levels: Sequence[float]) -> NDArray[np.float32]:
    """float32[levels, series, slots]: one quantile for the whole week; NaN without a sample."""
    return np.repeat(flat_quantiles(values, levels)[:, :, None], slots, axis=2)


def slot_curves(
    values: Series, days: NDArray[np.float64], grid: SlotGrid, settings: FitSettings, levels: Sequence[float]
) -> NDArray[np.float32]:
    """float32[levels, series, slots]: `days` says how many days of samples each series has.

    A slot without a sample takes the quantile of its time on the other kind of day, else that of all samples.
    """
    curves = _pooled(values, grid, levels)
    has_weeks = days >= 7 * settings.hour_of_week_weeks_min
    if has_weeks.any():
        own = grouped_quantiles(values[has_weeks], grid.slot, grid.slots, levels)
        curves[:, has_weeks] = np.where(np.isnan(own), curves[:, has_weeks], own)
    return curves


def _pooled(values: Series, grid: SlotGrid, levels: Sequence[float]) -> NDArray[np.float32]:
    """By the time of working days and of rest days, no slot left open where a series has a sample at all."""
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
