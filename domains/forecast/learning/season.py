"""The seasonal regression: Fourier terms of the day and the week, ridge, in closed form, many series at once.

Pure functions. A series is first reduced to the means of its bins (an hour of a certain day). One design matrix holds
for all series; those that begin and end on the same days share one factorisation. Bins missing in between are filled
with what is fitted, again and again. That comes to the same as leaving them out. Outliers are clipped to what the fit
can explain and fitted again (the modified residuals of Huber and Dutter), which leaves the matrix alone. The peak is
the mean plus the quantile of the samples' own residuals at that time of day: evenings vary more than nights.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.slot_grid import Numbers, SlotGrid
from domains.forecast.learning.quantiles import Series, flat_quantiles, grouped_quantiles
from domains.forecast.settings.fit import FitSettings
from domains.forecast.units import HOUR_S

CLIP_DEVIATIONS: Final = 3.0
"""Residuals of bins beyond so many robust standard deviations are outliers."""
REJECT_RATIO: Final = 4.0
"""Residuals so many times beyond that are mistakes, and say nothing: as if the bin were missing."""
CLIP_PASSES: Final = 5
ABSURD_DEVIATIONS: Final = 10.0
ABSURD_RATIO: Final = 4.0
"""So many times more or less than usual, and so many deviations away: left out of the first fit."""
DEVIATION_PER_MEDIAN: Final = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
QUIET_SHARE: Final = 0.5
"""A time of day counts as at least so noisy, of the noise of the whole series: a few equal samples are no certainty."""
LEVEL_PENALTY: Final = 1e-6
SIDEBAND_PENALTIES: Final = (0.1, 3.0, 300.0, 1000.0)
"""By distance from the daily harmonic, in bins of one hour: what differs from day to day must be shown by more than a week."""
FEW_HOLES: Final = 0.05
"""Of a series' bins: so few missing are filled well enough by the passes against outliers."""
MANY_HOLES: Final = 0.5
"""With more missing a series is fitted by a factorisation of its own: each filling leaves that share of the error."""
FILL_PASSES: Final = 1
"""Fillings more in each pass, where more than few bins are missing: eleven in all, which leave 5e-4 of half."""
REST_HARMONICS: Final = 6
REST_PENALTY: Final = 3.0
PENALTY_HARMONIC: Final = 4.0
"""The harmonic of the day at which the penalty is doubled; it grows with the square."""


class Design(msgspec.Struct, frozen=True):
    """The terms of the regression, one row for each slot of the week."""

    terms: NDArray[np.float64]
    """float64[slots, terms]"""
    penalty: NDArray[np.float64]
    """float64[terms]: ridge."""


@lru_cache(maxsize=8)
def season_design(slots: int, slots_per_day: int, settings: FitSettings) -> Design:
    """Cosines and sines of the harmonics of the week that lie within the sidebands of a harmonic of the day.

    Those of the day once more for rest days alone: a weekend begins at once, which few harmonics of the week can follow.
    """
    day_harmonics, week_sidebands, rest_days = settings.day_harmonics, settings.week_sidebands, settings.rest_days
    harmonic = np.arange(1, (slots + 1) // 2)
    day = np.rint(harmonic / 7).astype(np.int64)
    distance = np.abs(harmonic - 7 * day)
    is_used = (day <= day_harmonics) & (distance <= week_sidebands)
    harmonic, day, distance = harmonic[is_used], day[is_used], distance[is_used]
    phase = 2 * np.pi * (np.arange(slots)[:, None] + 0.5) / slots * harmonic
    waves, penalty = np.concatenate([np.cos(phase), np.sin(phase)], axis=1), np.array(SIDEBAND_PENALTIES)[distance]
    penalty = np.tile(penalty * (1 + (day / PENALTY_HARMONIC) ** 2), 2)
    rest = np.isin(np.arange(slots) // slots_per_day, rest_days)[:, None]
    of_rest = np.tile((distance == 0) & (day <= REST_HARMONICS), 2)
    rest_penalty = REST_PENALTY * np.concatenate([[1.0], penalty[of_rest] / SIDEBAND_PENALTIES[0]])
    return Design(
        terms=np.concatenate([np.ones((slots, 1)), waves, rest, rest * waves[:, of_rest]], axis=1),
        penalty=np.concatenate([[LEVEL_PENALTY], penalty, rest_penalty]) * (slots_per_day * HOUR_S / 86_400),
    )


def season_curves(
    values: Series, grid: SlotGrid, settings: FitSettings, levels: Sequence[float]
) -> NDArray[np.float32]:
    """float32[levels, series, slots]: quantiles by the regression, never below 0. Each series needs a sample."""
    values, unit = _in_own_units(values)
    mean = season_mean(values, grid, settings)
    residual = values - np.take(mean, grid.slot, axis=1)
    spread = _residual_quantiles(residual, grid, levels)
    week = np.tile(spread, (1, 1, grid.slots // grid.slots_per_day))
    curves: NDArray[np.float32] = np.maximum(mean + week, 0) * unit[:, None]
    return curves


def season_mean(values: Series, grid: SlotGrid, settings: FitSettings) -> NDArray[np.float32]:
    """float32[series, slots]: the robust mean by the regression."""
    is_known = values == values
    counts = np.add.reduceat(is_known, grid.bin_begin, axis=1, dtype=np.float32)
    sums = np.add.reduceat(np.where(is_known, values, np.float32(0)), grid.bin_begin, axis=1)
    has_samples = counts > 0
    means = np.where(has_samples, sums / np.maximum(counts, 1), np.nan).astype(np.float32)
    fitted = np.empty((len(values), grid.slots), np.float32)
    has_bin, share = _spans(has_samples, grid.slots_per_day)
    fills = np.where((share > FEW_HOLES) & (share <= MANY_HOLES), FILL_PASSES, 0)
    keys = np.concatenate([np.packbits(has_bin, axis=1), fills[:, None].astype(np.uint8)], axis=1)
    _, first, member_of = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    for number, example in enumerate(first.tolist()):
        members = np.flatnonzero(member_of.ravel() == number)
        bins = np.flatnonzero(has_bin[example])
        fitted[members] = _fit_bins(means[np.ix_(members, bins)], bins, int(fills[example]), grid, settings)
    return fitted


def _spans(has_samples: NDArray[np.bool_], day: int) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """The bins that each series is fitted to, and the share of them that is missing: those from its first to its last.

    A series that begins or ends within a day (days end with the grid) gives that day's bins up. Where less than a week
    is left, it gives up those of a quarter day. So few spans differ. A series with many bins missing is fitted to those
    it has.
    """
    bins = has_samples.shape[1]
    first = has_samples.argmax(axis=1)
    last = bins - has_samples[:, ::-1].argmax(axis=1)
    unit = np.where(last - first >= 9 * day, day, max(1, day // 4))
    whole_first, whole_last = bins - (bins - first) // unit * unit, bins - -(-(bins - last) // unit) * unit
    is_long = whole_last - whole_first >= 2 * day
    first = np.where((first > 0) & is_long, whole_first, first)
    last = np.where((last < bins) & is_long, whole_last, last)
    span = (np.arange(bins) >= first[:, None]) & (np.arange(bins) < last[:, None])
    share = 1 - (has_samples & span).sum(axis=1) / np.maximum(last - first, 1)
    return np.where((share <= MANY_HOLES)[:, None], span, has_samples), share


def _in_own_units(values: Series) -> tuple[Series, NDArray[np.float32]]:
    """Series over their means, so that squares of bytes per second stay within float32; and the means."""
    mean = means_of(values)
    unit: NDArray[np.float32] = np.where(mean > 0, mean, np.float32(1))
    own: Series = values / unit[:, None]
    return own, unit


def means_of(values: Series) -> NDArray[np.float32]:
    """float32[series]: of the samples that are known; 0 where none is."""
    is_known = values == values
    sums = np.where(is_known, values, np.float32(0)).sum(axis=1, dtype=np.float64)
    means: NDArray[np.float64] = sums / np.maximum(is_known.sum(axis=1), 1)
    return means.astype(np.float32)


def _fit_bins(
    bins: Series, known: NDArray[np.intp], fills: int, grid: SlotGrid, settings: FitSettings
) -> NDArray[np.float32]:
    """float32[series, slots] of series[series, bins]; NaN where a bin is a hole, which is filled `fills` times more a pass."""
    slot = grid.bin_slot[known]
    smoother = _smoother(slot, grid.bin_age_days[known], grid, settings)
    hour = slot % grid.slots_per_day
    kind = hour + grid.slots_per_day * grid.is_rest_day[slot]
    is_hole = np.isnan(bins)
    fitted = _without_absurd(bins, kind, 2 * grid.slots_per_day) @ smoother
    for _ in range(CLIP_PASSES):
        at_bins = np.take(fitted, slot, axis=1)
        residual = bins - at_bins
        size = np.abs(residual)
        middle = flat_quantiles(size, (0.5,))[0]
        by_hour = grouped_quantiles(size, hour, grid.slots_per_day, (0.5,))[0]
        by_hour = np.fmax(by_hour, QUIET_SHARE * middle[:, None]) * np.float32(CLIP_DEVIATIONS * DEVIATION_PER_MEDIAN)
        limit = np.take(by_hour, hour, axis=1)
        clipped = np.where(size <= REJECT_RATIO * limit, np.clip(residual, -limit, limit), np.float32(0))
        fitted = (at_bins + clipped) @ smoother
        for _ in range(fills):
            fitted = np.where(is_hole, np.take(fitted, slot, axis=1), at_bins + clipped) @ smoother
    return fitted


def _without_absurd(bins: Series, kind: Numbers, kinds: int) -> Series:
    """The same bins, holes and those far from what is usual at their time of working or rest days replaced by the usual.

    Only the first fit reads this: from the bins themselves, one spike of a hundred times would bend it beyond repair.
    """
    by_kind = grouped_quantiles(bins, kind, kinds, (0.5,))[0]
    by_kind = np.where(np.isnan(by_kind), flat_quantiles(bins, (0.5,))[0][:, None], by_kind)
    usual = np.take(by_kind, kind, axis=1)
    distance = np.abs(bins - usual)
    deviation = np.take(grouped_quantiles(distance, kind, kinds, (0.5,))[0], kind, axis=1)
    is_far = distance > np.float32(ABSURD_DEVIATIONS * DEVIATION_PER_MEDIAN) * deviation
    is_far &= (bins > ABSURD_RATIO * usual) | (bins * ABSURD_RATIO < usual)
    return np.where(is_far | np.isnan(bins), usual, bins)


def _smoother(
    slot: NDArray[np.int64], age_days: NDArray[np.float64], grid: SlotGrid, settings: FitSettings
) -> NDArray[np.float32]:
    """float32[bins, slots]: bins times this are the fitted slots."""
    design = season_design(grid.slots, grid.slots_per_day, settings)
    weight = 0.5 ** (age_days / settings.half_life_days)
    per_slot = np.bincount(slot, weight, grid.slots)
    normal = (design.terms.T * per_slot) @ design.terms
    normal[np.diag_indices_from(normal)] += design.penalty
    by_slot = design.terms @ np.linalg.solve(normal, design.terms.T)
    return (weight[:, None] * by_slot[slot]).astype(np.float32)


def _residual_quantiles(residual: Series, grid: SlotGrid, levels: Sequence[float]) -> NDArray[np.float32]:
    """float32[levels, series, slots of a day], smoothed over the neighbouring hour; by all residuals where a slot has none."""
    spread = grouped_quantiles(residual, grid.slot_of_day(), grid.slots_per_day, levels)
    is_missing = np.isnan(spread[0])
    if is_missing.any():
        spread = np.where(is_missing, flat_quantiles(residual, levels)[:, :, None], spread)
    reach = max(1, round(grid.slots_per_day / 24))
    if grid.slots_per_day <= 2 * reach:
        return spread
    shifts = range(-reach, reach + 1)
    parts = [
        np.float32((reach + 1 - abs(shift)) / (reach + 1) ** 2) * np.roll(spread, shift, axis=2) for shift in shifts
    ]
    smoothed: NDArray[np.float32] = np.sum(parts, axis=0, dtype=np.float32)
    return smoothed
