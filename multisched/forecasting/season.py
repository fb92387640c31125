"""The seasonal regression: closed-form ridge regression on Fourier terms of day and week, many series at once. Pure.

A series is first reduced to the means of its bins (an hour of one date). All series use the same design matrix; series
that begin and end on the same days share a factorisation. Missing bins in between are iteratively filled with fitted
values, which converges to the fit that ignores them. Outliers are clipped to a limit around the fit, and the series is
fitted again (modified residuals of Huber and Dutter), so all passes use the same matrix. The peak is the mean plus a quantile of the
residuals at that time of day, because evenings vary more than nights.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.quantiles import Series, flat_quantiles, grouped_quantiles
from multisched.forecasting.slot_grid import Numbers, SlotGrid
from multisched.forecasting.time_units import HOUR_S

CLIP_DEVIATIONS: Final = 3.0
"""Residuals of bins beyond this many robust standard deviations are clipped as outliers."""
REJECT_RATIO: Final = 4.0
"""Residuals beyond this multiple of the clipping limit are ignored, like missing bins."""
CLIP_PASSES: Final = 5
ABSURD_DEVIATIONS: Final = 10.0
ABSURD_RATIO: Final = 4.0
"""Bins more than this factor above or below the usual value, and more than ABSURD_DEVIATIONS away, are excluded from the
first fit."""
DEVIATION_PER_MEDIAN: Final = 1.4826
"""Standard deviation of a normal distribution / its median absolute deviation."""
QUIET_SHARE: Final = 0.5
"""Lower limit of the noise at a time of day, as a share of the noise of the series: a few equal samples do not prove low noise."""
LEVEL_PENALTY: Final = 1e-6
SIDEBAND_PENALTIES: Final = (0.1, 3.0, 300.0, 1000.0)
"""Ridge penalties by distance from the daily harmonic, for bins of one hour. The high ones let differences between weekdays
appear only after several weeks."""
FEW_HOLES: Final = 0.05
"""Up to this share of missing bins, the clipping passes fill them well enough."""
MANY_HOLES: Final = 0.5
"""Above this share of missing bins, a series gets its own factorisation, because each filling leaves that share of the error."""
FILL_PASSES: Final = 1
"""Extra fillings per clipping pass, for shares between FEW_HOLES and MANY_HOLES. Eleven fits in total leave at most 0.5^11 of
the error."""
REST_HARMONICS: Final = 6
REST_PENALTY: Final = 3.0
PENALTY_HARMONIC: Final = 4.0
"""The harmonic of the day at which the penalty doubles; it grows with the square of the harmonic."""


class Design(msgspec.Struct, frozen=True):
    """The terms of the regression, one row for each slot of the week."""

    terms: NDArray[np.float64]
    """float64[slots, terms]"""
    penalty: NDArray[np.float64]
    """float64[terms]: ridge penalties."""


@lru_cache(maxsize=8)
def season_design(slots: int, slots_per_day: int, settings: FitSettings) -> Design:
    """Returns the design: cosines and sines of the week's harmonics within the sidebands of the day's harmonics.

    The day's first harmonics occur a second time, for rest days only: few harmonics of the week cannot follow an abrupt weekend.
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
    """Returns float32[levels, series, slots]: quantiles by the regression, at least 0. Each series needs a sample."""
    values, unit = _in_own_units(values)
    mean = season_mean(values, grid, settings)
    residual = values - np.take(mean, grid.slot, axis=1)
    spread = _residual_quantiles(residual, grid, levels)
    week = np.tile(spread, (1, 1, grid.slots // grid.slots_per_day))
    curves: NDArray[np.float32] = np.maximum(mean + week, 0) * unit[:, None]
    return curves


def season_mean(values: Series, grid: SlotGrid, settings: FitSettings) -> NDArray[np.float32]:
    """Returns float32[series, slots]: the robust mean by the regression."""
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
    """Returns the bins to which each series is fitted, bool[series, bins], and the share of them that is missing.

    The bins are those from the first to the last one with samples, without incomplete days at both ends (days are counted
    back from the end of the grid); for short series, without incomplete quarter days. So there are few distinct spans. A
    series with many missing bins is fitted to its existing bins only.
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
    """Returns series / means, and the means, so that squares of large values fit into float32."""
    mean = means_of(values)
    unit: NDArray[np.float32] = np.where(mean > 0, mean, np.float32(1))
    own: Series = values / unit[:, None]
    return own, unit


def means_of(values: Series) -> NDArray[np.float32]:
    """Returns float32[series]: mean of the known samples; 0 without samples."""
    is_known = values == values
    sums = np.where(is_known, values, np.float32(0)).sum(axis=1, dtype=np.float64)
    means: NDArray[np.float64] = sums / np.maximum(is_known.sum(axis=1), 1)
    return means.astype(np.float32)


def _fit_bins(
    bins: Series, known: NDArray[np.intp], fills: int, grid: SlotGrid, settings: FitSettings
) -> NDArray[np.float32]:
    """Returns float32[series, slots] fitted to `bins`, float32[series, bins]; fills NaN bins `fills` extra times per pass."""
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
    """Returns the bins with missing and absurd ones replaced by the median of the same time on the same kind of day.

    Used by the first fit only: a single spike of a hundred times the usual value would distort it too much.
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
    """Returns float32[bins, slots]: the matrix that maps bins to fitted slots (bins @ matrix)."""
    design = season_design(grid.slots, grid.slots_per_day, settings)
    weight = 0.5 ** (age_days / settings.half_life_days)
    per_slot = np.bincount(slot, weight, grid.slots)
    normal = (design.terms.T * per_slot) @ design.terms
    normal[np.diag_indices_from(normal)] += design.penalty
    by_slot = design.terms @ np.linalg.solve(normal, design.terms.T)
    return (weight[:, None] * by_slot[slot]).astype(np.float32)


def _residual_quantiles(residual: Series, grid: SlotGrid, levels: Sequence[float]) -> NDArray[np.float32]:
    """Returns float32[levels, series, slots per day]: quantiles of residuals, smoothed over neighbouring hours.

    A slot without residuals gets the quantile of all residuals.
    """
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
