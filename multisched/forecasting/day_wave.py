"""Day wave: one quantile for the whole week plus a single sine wave with a period of 24 hours; the target of shrinkage.

The wave has only two parameters, which few days of samples determine well: a weak daily pattern is kept, and
noise yields almost no wave. The wave is fitted to the medians by time of day, so outliers have little influence. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from multisched.forecasting.quantiles import Series, flat_quantiles, grouped_quantiles
from multisched.forecasting.slot_grid import SlotGrid

SLOTS_MIN: Final = 3
"""Smallest number of slots per day for which a wave is fitted."""


def wave_curves(values: Series, grid: SlotGrid, levels: Sequence[float]) -> NDArray[np.float32]:
    """Returns float32[levels, series, slots]: wave + quantile of (samples - wave), at least 0."""
    wave = _wave(values, grid)
    rest = values - np.take(wave, grid.slot_of_day(), axis=1)
    week = np.tile(wave, (1, grid.slots // grid.slots_per_day))
    curves: NDArray[np.float32] = np.maximum(flat_quantiles(rest, levels)[:, :, None] + week, np.float32(0))
    return curves


def _wave(values: Series, grid: SlotGrid) -> NDArray[np.float32]:
    """Returns float32[series, slots per day]: the wave, with mean 0."""
    per_day = grid.slots_per_day
    if per_day < SLOTS_MIN:
        return np.zeros((len(values), per_day), np.float32)
    usual = grouped_quantiles(values, grid.slot_of_day(), per_day, (0.5,))[0]
    usual = np.where(np.isnan(usual), flat_quantiles(values, (0.5,))[0][:, None], usual)
    phase = 2 * np.pi * (np.arange(per_day) + 0.5) / per_day
    waves = np.stack([np.cos(phase), np.sin(phase)])
    wave: NDArray[np.float64] = (2 / per_day) * (usual.astype(np.float64) @ waves.T) @ waves
    return wave.astype(np.float32)
