"""From samples of named series to expected value, upper bound and error."""

from __future__ import annotations

import math
from datetime import date

import numpy as np
import pytest

from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.series_forecast import SeriesForecast, forecast_series
from multisched.forecasting.time_units import DAY_S, HOUR_S
from tests.unit.forecasting.weeks import MONDAY_S

DAYS = 28
NOW_S = MONDAY_S + DAYS * DAY_S
STEP_S = 300.0
NOISE = 2.0

Points = list[tuple[float, float]]


def cards(night: float, day: float, *, noise: float = NOISE, scale: float = 1.0) -> Points:
    """Samples every five minutes: `day` from 08:00 to 20:00 UTC, else `night`, with uniform noise of +- `noise`."""
    rng = np.random.default_rng(4)
    moments = MONDAY_S + np.arange(0, DAYS * DAY_S, STEP_S)
    is_day = (moments % DAY_S >= 8 * HOUR_S) & (moments % DAY_S < 20 * HOUR_S)
    values = scale * (np.where(is_day, day, night) + rng.uniform(-noise, noise, len(moments)))
    return list(zip(moments.tolist(), values.tolist(), strict=True))


def forecast(points: Points, settings: FitSettings | None = None) -> SeriesForecast:
    return forecast_series({"chat": points}, step_s=STEP_S, settings=settings or FitSettings(), now_s=NOW_S)["chat"]


def test_forecast_follows_the_hours_of_the_day_with_its_band_and_error() -> None:
    found = forecast(cards(10, 40))
    noon_s, night_s = NOW_S + 12 * HOUR_S, NOW_S + 2 * HOUR_S
    assert found.expected(noon_s) == pytest.approx(40, abs=1)
    assert found.expected(night_s) == pytest.approx(10, abs=1)
    for moment_s, middle in ((noon_s, 40), (night_s, 10)):
        assert found.upper(moment_s) == pytest.approx(middle + 0.95 * NOISE, abs=1)  # the 97.5 % quantile of the noise
    assert found.error == pytest.approx(NOISE / 2, rel=0.2)  # the mean distance of uniform noise from its middle


def test_error_is_in_the_unit_of_the_series_also_with_holidays() -> None:
    settings = FitSettings(holidays=(date(2026, 1, 7),))
    one, ten = forecast(cards(10, 40), settings), forecast(cards(10, 40, scale=10), settings)
    assert one.error == pytest.approx(NOISE / 2, rel=0.2)
    assert ten.error == pytest.approx(10 * one.error, rel=1e-3)


def test_each_series_is_forecast_alone() -> None:
    both = forecast_series(
        {"chat": cards(10, 40), "search": cards(3, 5, noise=0)}, step_s=STEP_S, settings=FitSettings(), now_s=NOW_S
    )
    noon_s = NOW_S + 12 * HOUR_S
    assert both["search"].expected(noon_s) == pytest.approx(5, abs=0.1)
    assert both["chat"].expected(noon_s) == forecast(cards(10, 40)).expected(noon_s)


def test_samples_of_one_step_are_averaged() -> None:
    points = [(MONDAY_S + step * STEP_S + part, 4.0 + part / 100) for step in range(600) for part in (0, 100, 200)]
    found = forecast_series({"chat": points}, step_s=STEP_S, settings=FitSettings(), now_s=MONDAY_S + 600 * STEP_S)[
        "chat"
    ]
    assert found.expected(NOW_S) == pytest.approx(5)


def test_too_few_samples_give_no_forecast_and_no_error() -> None:
    found = forecast(cards(10, 40)[-6:])
    assert math.isnan(found.expected(NOW_S))
    assert math.isnan(found.upper(NOW_S))
    assert math.isnan(found.error)


def test_samples_without_a_number_or_outside_the_window_are_skipped() -> None:
    points = cards(10, 40)
    strange = [
        (NOW_S + 1, 1e6),
        (NOW_S - 29 * DAY_S, 1e6),
        (0.0, 1e6),
        (math.nan, 1e6),
        (math.inf, 1e6),
        (NOW_S - 60, math.nan),
        (NOW_S - 60, math.inf),
        (NOW_S - 60, -5.0),
    ]
    for moment_s in (NOW_S + 12 * HOUR_S, NOW_S + 23 * HOUR_S):
        assert forecast(points + strange).expected(moment_s) == forecast(points).expected(moment_s)


def test_no_series_gives_no_forecasts() -> None:
    assert forecast_series({}, step_s=STEP_S, settings=FitSettings(), now_s=NOW_S) == {}


@pytest.mark.parametrize(("step_s", "window_days"), [(0.0, 28.0), (7200.0, 28.0), (math.nan, 28.0), (300.0, 0.0)])
def test_impossible_grid_is_refused(step_s: float, window_days: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        forecast_series({}, step_s=step_s, settings=FitSettings(), now_s=NOW_S, window_days=window_days)
