"""Removal of spikes: single implausible samples, caused for example by counter jumps or faulty collectors. Pure.

A spike is more than RATIO times as high as both neighbouring samples, and more than USUAL_RATIO times as high as the
series' usual level. High samples that recur are kept: those with a similar sample at the same time on many other days,
or a week before or after.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.forecasting.time_units import DAY_S
from multisched.forecasting.usage import Samples, Usage

RATIO: Final = 20.0
USUAL_RATIO: Final = 10.0
"""Lower than RATIO, because a spike at the quietest hour multiplies a sample that is far below the usual level."""
USUAL: Final = 0.9
"""Quantile that defines the usual level of a series. If it is zero, no sample counts as a spike."""
LOOKED_AT: Final = 512
"""Number of evenly spaced samples from which the quantile is computed."""
RECURS_DAILY: Final = 1 / 3
"""A high sample recurs if more than this share of the other days has a high sample at that time."""
ROWS: Final = 256
"""Series processed together."""


def without_spikes(usage: Usage) -> tuple[Usage, int]:
    """Returns the usage with spikes replaced by NaN (a copy if there are any), and the number of spikes."""
    series = usage.values.reshape(-1, usage.values.shape[2])
    cleaned: Samples | None = None
    count = 0
    for begin in range(0, len(series), ROWS):
        rows, steps = _spikes(series[begin : begin + ROWS], usage.step_s)
        if len(rows):
            cleaned = series.copy() if cleaned is None else cleaned
            cleaned[begin + rows, steps] = np.nan
            count += len(rows)
    if cleaned is None:
        return usage, 0
    return msgspec.structs.replace(usage, values=cleaned.reshape(usage.values.shape)), count


def _spikes(values: Samples, step_s: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Returns (rows, steps) of the spikes."""
    limit = (USUAL_RATIO * _usual(values)).astype(np.float32)
    highest = np.fmax.reduce(values, axis=1, initial=0)
    suspects = np.flatnonzero((highest > limit) & (limit > 0))
    if not len(suspects):
        return suspects, suspects
    own = values[suspects]
    is_high = own > limit[suspects, None]
    rows, steps = np.nonzero(is_high)
    last = own.shape[1] - 1
    neighbours = np.fmax(own[rows, np.maximum(steps - 1, 0)], 0) * (steps > 0)
    neighbours = np.fmax(neighbours, np.fmax(own[rows, np.minimum(steps + 1, last)], 0) * (steps < last))
    is_alone = own[rows, steps] > RATIO * neighbours
    rows, steps = rows[is_alone], steps[is_alone]
    recurs = _recurs(is_high, rows, steps, step_s)
    return suspects[rows[~recurs]], steps[~recurs]


def _usual(values: Samples) -> NDArray[np.float64]:
    """Returns float64[series]: the quantile USUAL; 0 for a series without samples."""
    seen = np.sort(values[:, :: max(1, values.shape[1] // LOOKED_AT)], axis=1)
    known = np.isfinite(seen).sum(axis=1)
    at = np.clip((USUAL * known).astype(np.intp), 0, np.maximum(known - 1, 0))
    found = seen[np.arange(len(seen)), at].astype(np.float64)
    return np.where(known > 0, np.maximum(found, 0.0), 0.0)


def _recurs(
    is_high: NDArray[np.bool_], rows: NDArray[np.intp], steps: NDArray[np.intp], step_s: float
) -> NDArray[np.bool_]:
    """Returns bool[suspects]: whether similar samples exist at that time of day (give or take a step) on more than
    RECURS_DAILY of the other days, or a week before or after."""
    day = round(DAY_S / step_s)
    size = is_high.shape[1]
    like, days = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    weekly = np.zeros(len(rows), np.bool_)
    near = is_high.copy()
    near[:, 1:] |= is_high[:, :-1]
    near[:, :-1] |= is_high[:, 1:]
    reach = (size - 1) // day if 0 < day < size else 0
    for offset in (*range(-reach, 0), *range(1, reach + 1)):
        at = steps + offset * day
        is_there = (at >= 0) & (at < size)
        found = is_there & near[rows, np.clip(at, 0, size - 1)]
        days += is_there
        like += found
        if abs(offset) == 7:
            weekly |= found
    return weekly | (like > RECURS_DAILY * np.maximum(days, 1))
