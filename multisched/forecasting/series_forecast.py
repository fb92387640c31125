"""SeriesForecast: the expected value, the upper bound and the error of one series, from its samples. Pure.

For callers that have samples of named series and want values at moments. Callers with a grid, several dimensions or a
quantile of their own use `fit` and read `Profiles`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.forecasting.fit import VALUE_MAX, cleaned, fit, grid_of
from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.profiles import Profiles
from multisched.forecasting.season import means_of
from multisched.forecasting.time_units import DAY_S
from multisched.forecasting.usage import Samples, Usage

WINDOW_DAYS_DEFAULT: Final = 28.0
MEDIAN: Final = 0.5
DISTANCE_PER_LOSS: Final = 2.0
"""The pinball loss at the median is half the absolute distance."""


class SeriesForecast(msgspec.Struct, frozen=True):
    """Forecast of one series, in its unit. Values are constant within a slot of the week; NaN: too few samples."""

    profiles: Profiles
    """The profiles of all series that were fitted together."""
    number: int
    """Index of the series in the profiles."""
    error: float
    """Mean absolute error of the expected value on the held-out days (before shrinkage). NaN: the samples cover too few days
    for a backtest (fewer than 3.5 with the default settings)."""

    def expected(self, epoch_s: float) -> float:
        """Returns the median of the slot of that moment."""
        return self.profiles.peak.item(self.number, 0, self.profiles.slot_of(epoch_s))

    def upper(self, epoch_s: float) -> float:
        """Returns the upper bound: the share `confidence` of new samples is expected between `profiles.low` and it."""
        return self.profiles.high.item(self.number, 0, self.profiles.slot_of(epoch_s))


def forecast_series(
    samples: Mapping[str, Iterable[tuple[float, float]]],
    *,
    step_s: float,
    settings: FitSettings,
    now_s: float,
    window_days: float = WINDOW_DAYS_DEFAULT,
) -> dict[str, SeriesForecast]:
    """Returns name -> forecast. `samples`: name -> (epoch seconds, value) pairs, in any order.

    Samples of a step of `step_s` seconds are averaged; where a series was 0, it needs samples of 0. Samples outside the last
    `window_days`, negative ones, those above VALUE_MAX and NaN are skipped. `settings.quantile` is not used: the expected
    value is the median. Takes seconds for thousands of series. Raises ValueError for an invalid step or window.
    """
    if not 0 < step_s <= settings.slot_s:
        raise ValueError(f"step_s: {step_s} must be greater than 0 and at most slot_s, {settings.slot_s}")
    if not (window_days > 0 and math.isfinite(window_days)):
        raise ValueError(f"window_days: {window_days} must be greater than 0")
    settings = msgspec.structs.replace(settings, quantile=MEDIAN)
    steps = math.ceil(window_days * DAY_S / step_s)
    start_s = (math.ceil(now_s / step_s) - steps) * step_s
    grid = grid_of(start_s, step_s, steps, settings)
    values = np.full((len(samples), steps), np.nan, np.float32)
    for row, points in enumerate(samples.values()):
        values[row] = _means(points, start_s, step_s, steps, now_s)
    profiles = fit(Usage(start_s, step_s, tuple(samples), ("value",), values[:, None]), settings, 0, now_s)
    mean = means_of(cleaned(values, grid))
    error = DISTANCE_PER_LOSS * profiles.error[:, 0].astype(np.float64) * mean
    return {name: SeriesForecast(profiles, number, error.item(number)) for number, name in enumerate(samples)}


def _means(points: Iterable[tuple[float, float]], start_s: float, step_s: float, steps: int, now_s: float) -> Samples:
    """Returns float32[steps]: mean of the valid samples of each step; NaN without any."""
    table: NDArray[np.float64] = np.array(list(points), np.float64).reshape(-1, 2)
    moments, values = table.T
    is_good = (moments >= start_s) & (moments <= now_s) & (values >= 0) & (values <= VALUE_MAX)
    step = np.minimum(((moments[is_good] - start_s) / step_s).astype(np.int64), steps - 1)
    counts = np.bincount(step, minlength=steps)
    means = np.full(steps, np.nan)
    np.divide(np.bincount(step, values[is_good], steps), counts, out=means, where=counts > 0)
    return means.astype(np.float32)
