"""The plainest day: one quantile for the whole week, on a single wave of 24 hours.

What shrinkage goes towards. It has two numbers besides the quantile, which samples of few days say well. A weak day
keeps its evening, and noise gets next to none. The wave goes through the medians of the times of day, which few absurd
samples do not move. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.slot_grid import SlotGrid
from domains.forecast.learning.quantiles import Series, flat_quantiles, grouped_quantiles

SLOTS_MIN: Final = 3
"""Of a day: fewer show no wave."""


def wave_curves(values: Series, grid: SlotGrid, levels: Sequence[float]) -> NDArray[np.float32]:
    """float32[levels, series, slots]: the quantile of all samples less the wave, plus the wave; never below 0."""
    wave = _wave(values, grid)
    rest = values - np.take(wave, grid.slot_of_day(), axis=1)
    week = np.tile(wave, (1, grid.slots // grid.slots_per_day))
    curves: NDArray[np.float32] = np.maximum(flat_quantiles(rest, levels)[:, :, None] + week, np.float32(0))
    return curves


def _wave(values: Series, grid: SlotGrid) -> NDArray[np.float32]:
    """float32[series, slots of a day], around 0."""
    per_day = grid.slots_per_day
    if per_day < SLOTS_MIN:
        return np.zeros((len(values), per_day), np.float32)
    usual = grouped_quantiles(values, grid.slot_of_day(), per_day, (0.5,))[0]
    usual = np.where(np.isnan(usual), flat_quantiles(values, (0.5,))[0][:, None], usual)
    phase = 2 * np.pi * (np.arange(per_day) + 0.5) / per_day
    waves = np.stack([np.cos(phase), np.sin(phase)])
    wave: NDArray[np.float64] = (2 / per_day) * (usual.astype(np.float64) @ waves.T) @ waves
    return wave.astype(np.float32)
