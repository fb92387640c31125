"""The fit: computes profiles from usage. Pure; takes seconds for large fleets, so callers run it off the event loop.

Invalid values (NaN, negative, infinite, too large) are skipped. A series without enough samples gets the origin NONE
and NaN, never zeros. `Profiles.origin` says how each curve was computed. Extra memory is limited to CHUNK series.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.forecasting.backtest import backtest, known_days
from multisched.forecasting.day_wave import wave_curves
from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.profiles import Backtest, Origin, Profiles
from multisched.forecasting.quantiles import Series
from multisched.forecasting.season import season_curves
from multisched.forecasting.shrinkage import Shares, shrunk
from multisched.forecasting.slot_grid import SlotGrid, slot_grid
from multisched.forecasting.slot_quantiles import flat_curves, slot_curves
from multisched.forecasting.time_units import DAY_S, WEEK_S
from multisched.forecasting.usage import Usage

CHUNK: Final = 256
"""Series fitted together, so that their arrays fit into the CPU cache."""
VALUE_MAX: Final = 1e18
"""Largest accepted sample; larger ones are skipped as mistakes."""

_Scalar = TypeVar("_Scalar", bound=np.generic)


def fit(usage: Usage, settings: FitSettings, version: int, now_s: float) -> Profiles:
    """Computes the profiles of all services. Raises ValueError for an invalid grid or shape of the usage."""
    _check(usage)
    series, step_s = _series(usage, settings)
    grid = grid_of(usage.start_s, step_s, series.shape[1], settings)
    shape = (len(usage.services), len(usage.dimensions))
    curves = np.empty((3, len(series), grid.slots), np.float32)
    origin, error = np.empty(len(series), np.uint8), np.empty(len(series), np.float32)
    tested = np.empty((4, len(series)), np.float32)
    # Series with the same first step are fitted together, because they share factorisations (`season`).
    order = np.argsort((series == series).argmax(axis=1) if series.size else np.zeros(len(series)), kind="stable")
    for begin in range(0, len(series), CHUNK):
        part = order[begin : begin + CHUNK]
        curves[:, part], origin[part], error[part], judged = _fit_chunk(
            cleaned(series[part], grid), step_s, grid, settings
        )
        tested[:, part] = msgspec.structs.astuple(judged)
    low, peak, high = (_frozen(curve.reshape(*shape, grid.slots)) for curve in curves)
    return Profiles(
        version=version,
        made_s=now_s,
        newest_s=_newest_s(usage),
        services=usage.services,
        dimensions=usage.dimensions,
        peak=peak,
        low=low,
        high=high,
        origin=_frozen(origin.reshape(shape)),
        error=_frozen(error.reshape(shape)),
        zone=settings.zone,
        slot_s=settings.slot_s,
        tested=Backtest(*_frozen(tested.reshape(4, *shape))),
    )


def _check(usage: Usage) -> None:
    shape = (len(usage.services), len(usage.dimensions))
    if usage.values.ndim != 3 or usage.values.shape[:2] != shape:
        raise ValueError(f"usage.values: {usage.values.shape} in place of {(*shape, 'steps')}")
    if not usage.step_s > 0 or usage.step_s > WEEK_S:
        raise ValueError(f"usage.step_s: {usage.step_s} must be more than 0 and at most a week")


def _series(usage: Usage, settings: FitSettings) -> tuple[Series, float]:
    """Returns float32[services * dimensions, steps] and the step length; divides steps longer than a slot."""
    values = usage.values.reshape(len(usage.services) * len(usage.dimensions), usage.values.shape[2]).astype(
        np.float32, copy=False
    )
    parts = int(np.ceil(usage.step_s / settings.slot_s))
    return (np.repeat(values, parts, axis=1) if parts > 1 else values), usage.step_s / parts


def grid_of(start_s: float, step_s: float, steps: int, settings: FitSettings) -> SlotGrid:
    return slot_grid(
        start_s=start_s,
        step_s=step_s,
        steps=steps,
        zone=settings.zone,
        slot_s=settings.slot_s,
        holidays=settings.holidays,
        rest_days=settings.rest_days,
    )


def cleaned(values: Series, grid: SlotGrid) -> Series:
    """Returns a copy with NaN for invalid samples and on holidays."""
    is_good = (values >= 0) & (values <= VALUE_MAX)
    if not grid.is_kept.all():
        is_good &= grid.is_kept
    return np.where(is_good, values, np.float32(np.nan))


def _newest_s(usage: Usage) -> float:
    """Returns the start of the newest step with a sample; the start of the grid if there is none."""
    steps = np.flatnonzero(np.isfinite(usage.values).any(axis=(0, 1)))
    return usage.start_s + usage.step_s * (int(steps[-1]) if len(steps) else 0)


def _frozen(values: NDArray[_Scalar]) -> NDArray[_Scalar]:
    values.flags.writeable = False
    return values


def _fit_chunk(
    values: Series, step_s: float, grid: SlotGrid, settings: FitSettings
) -> tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.float32], Backtest]:
    """Returns curves (low, peak, high; float32[3, series, slots]), origins, errors, and the backtest of all kinds of profiles."""
    days = known_days(values, step_s)
    judged = backtest(values, step_s, grid, settings)
    errors, levels = judged.errors, settings.levels
    origin = np.full(len(values), Origin.SLOT_QUANTILE, np.uint8)
    origin[errors.regression <= errors.slot_quantile] = Origin.SEASONAL
    origin[days < settings.slot_days_min] = Origin.QUANTILE
    origin[days * (DAY_S / 3_600) < settings.known_hours_min] = Origin.NONE
    choices = [origin == kind for kind in (Origin.QUANTILE, Origin.SLOT_QUANTILE, Origin.SEASONAL)]
    error = np.select(choices, [errors.flat_quantile, errors.slot_quantile, errors.regression], np.nan)
    curves = np.full((3, len(values), grid.slots), np.nan, np.float32)
    flat, slotted, seasonal = (np.flatnonzero(choice) for choice in choices)
    if len(flat):
        curves[:, flat] = flat_curves(values[flat], grid.slots, levels)
    if len(slotted):
        own = slot_curves(values[slotted], days[slotted], grid, settings, levels)
        curves[:, slotted] = _shrunk(own, values[slotted], judged.slot_share[slotted], grid, levels)
    if len(seasonal):
        own = season_curves(values[seasonal], grid, settings, levels)
        curves[:, seasonal] = _shrunk(own, values[seasonal], judged.regression_share[seasonal], grid, levels)
    return curves, origin, error.astype(np.float32), errors


def _shrunk(
    curves: NDArray[np.float32], values: Series, kept: Shares, grid: SlotGrid, levels: Sequence[float]
) -> NDArray[np.float32]:
    """Returns float32[levels, series, slots]: see `shrinkage.shrunk`; computes day waves only for series that need them."""
    some = np.flatnonzero(kept < 1)
    if len(some):
        curves[:, some] = shrunk(curves[:, some], wave_curves(values[some], grid, levels), kept[some])
    return curves
