"""From usage to profiles: which kind of curve a series gets, and what bad samples become."""

from __future__ import annotations

from datetime import date, timedelta

import msgspec
import numpy as np
import pytest

from multisched.forecasting.fit import fit
from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.profiles import Origin, Profiles
from multisched.forecasting.usage import Samples, Usage
from tests.unit.forecasting.weeks import DAY_S, MONDAY_S, make_series, make_usage

PER_DAY = 288
SETTINGS = FitSettings()


def fitted(
    values: Samples, settings: FitSettings = SETTINGS, *, start_s: float = MONDAY_S, step_s: float = 300
) -> Profiles:
    return fit(make_usage(values, start_s=start_s, step_s=step_s), settings, 7, 99.0)


def test_two_weeks_of_cycles_become_a_seasonal_profile_with_its_error() -> None:
    # Use grows from Monday to Sunday: pooled slots cannot tell, the terms of the week can.
    growth = 1 + np.arange(14 * PER_DAY) % (7 * PER_DAY) / (7 * PER_DAY)
    profiles = fitted((make_series(services=4) * growth).astype(np.float32))

    assert (profiles.origin == Origin.SEASONAL).all()
    assert (profiles.error < 0.1).all()
    assert (profiles.low <= profiles.peak).all()
    assert (profiles.peak <= profiles.high).all()
    assert (profiles.version, profiles.made_s) == (7, 99.0)
    assert profiles.newest_s == MONDAY_S + 14 * DAY_S - 300


def test_profiles_are_read_only() -> None:
    profiles = fitted(make_series())

    for name in ("peak", "low", "high", "origin", "error"):
        assert not getattr(profiles, name).flags.writeable


@pytest.mark.parametrize(
    ("hours", "origin"),
    [(0, Origin.NONE), (0.5, Origin.NONE), (30, Origin.QUANTILE), (72, Origin.SLOT_QUANTILE)],
)
def test_short_history_uses_a_named_fallback(hours: float, origin: Origin) -> None:
    values = make_series()
    values[:, : values.shape[1] - round(hours * 12)] = np.nan

    profiles = fitted(values)

    assert profiles.origin[0, 0] == origin
    assert np.isnan(profiles.peak).all() == (origin == Origin.NONE)
    assert not np.isnan(profiles.peak).any() or origin == Origin.NONE
    if origin == Origin.QUANTILE:
        assert np.ptp(profiles.peak) == 0
        assert profiles.peak[0, 0, 0] == pytest.approx(np.nanquantile(values, 0.95), rel=1e-5)


def test_slot_quantile_is_chosen_if_the_regression_has_more_loss() -> None:
    # One hour of working days, at a level that no small number of harmonics can follow.
    rng = np.random.default_rng(3)
    slot_of_day = np.arange(14 * PER_DAY) % PER_DAY // 12
    values = np.where(slot_of_day == 9, 10.0, 0.1) * rng.uniform(0.99, 1.01, len(slot_of_day))

    profiles = fitted(values.astype(np.float32)[None], FitSettings(day_harmonics=2))

    assert profiles.origin[0, 0] == Origin.SLOT_QUANTILE
    assert profiles.error[0, 0] < 0.01
    assert profiles.peak[0, 0, 9] == pytest.approx(10, rel=0.02)
    assert profiles.peak[0, 0, 10] == pytest.approx(0.1, rel=0.02)


def test_slot_quantiles_of_four_weeks_distinguish_days() -> None:
    rng = np.random.default_rng(4)
    days = np.repeat(np.arange(28) % 7, PER_DAY)
    values = (np.where(days == 2, 5.0, 1.0) * rng.uniform(0.9, 1.1, len(days))).astype(np.float32)[None]
    quantiles_only = FitSettings(regression_days_min=365)

    four_weeks, two_weeks = fitted(values, quantiles_only), fitted(values[:, : 14 * PER_DAY], quantiles_only)

    assert four_weeks.peak[0, 0, 24] == pytest.approx(1.1, rel=0.05)
    assert four_weeks.peak[0, 0, 2 * 24] == pytest.approx(5.5, rel=0.05)
    assert two_weeks.peak[0, 0, 24] == two_weeks.peak[0, 0, 2 * 24]


def test_a_history_without_a_weekend_uses_the_working_days_for_it() -> None:
    profiles = fitted(make_series(days=4))

    assert profiles.origin[0, 0] == Origin.SLOT_QUANTILE
    np.testing.assert_array_equal(profiles.peak[0, 0, :24], profiles.peak[0, 0, -24:])


@pytest.mark.parametrize("lie", [np.nan, -5.0, np.inf, -np.inf, 1e30])
def test_invalid_samples_are_left_out(lie: float) -> None:
    values = make_series(services=2)
    values[:, 100:700] = np.nan
    lying = values.copy()
    lying[:, 100:700] = lie

    np.testing.assert_array_equal(fitted(values).peak, fitted(lying).peak)


def test_samples_a_hundred_times_too_high_hardly_change_the_peak() -> None:
    values = make_series(services=3)
    spiky = values.copy()
    spiky[:, np.random.default_rng(5).integers(0, values.shape[1], 40)] *= 100

    calm, wild = fitted(values), fitted(spiky)

    assert np.median(wild.peak / calm.peak) == pytest.approx(1, abs=0.1)
    assert (wild.peak / calm.peak).max() < 2


def test_series_of_only_invalid_samples_has_no_profile() -> None:
    profiles = fitted(np.full((1, 14 * PER_DAY), -1, np.float32))

    assert profiles.origin[0, 0] == Origin.NONE
    assert np.isnan(profiles.peak).all()
    assert np.isnan(profiles.error).all()


def test_holidays_are_left_out() -> None:
    values = make_series()
    closed = values.copy()
    closed[:, 2 * PER_DAY : 3 * PER_DAY] *= 0.01
    gap = values.copy()
    gap[:, 2 * PER_DAY : 3 * PER_DAY] = np.nan
    holiday = date(2026, 1, 5) + timedelta(days=2)

    np.testing.assert_array_equal(fitted(closed, FitSettings(holidays=(holiday,))).peak, fitted(gap).peak)


def test_peak_keeps_its_wall_clock_time_over_a_clock_change() -> None:
    # Berlin goes forward on 2026-03-29; the service peaks at 20:00 on the wall before and after.
    start_s = MONDAY_S + 11 * 7 * DAY_S - 3_600
    wall_hours = np.arange(14 * PER_DAY) / 12
    wall_hours += wall_hours >= 6 * 24 + 2
    rng = np.random.default_rng(6)
    values = np.where(wall_hours % 24 // 1 == 20, 3.0, 1.0) * rng.uniform(0.95, 1.05, len(wall_hours))

    profiles = fitted(values.astype(np.float32)[None], FitSettings(zone="Europe/Berlin", slot_s=3_600), start_s=start_s)

    by_hour = profiles.peak[0, 0].reshape(7, 24)
    assert (by_hour.argmax(axis=1) == 20).all()


@pytest.mark.parametrize(("step_s", "slot_s"), [(60, 3_600), (900, 900), (3_600, 3_600), (7_200, 3_600), (300, 14_400)])
def test_steps_may_be_shorter_or_longer_than_slots(step_s: int, slot_s: int) -> None:
    profiles = fitted(make_series(services=2, step_s=step_s), FitSettings(slot_s=slot_s), step_s=step_s)

    assert profiles.slots == 7 * DAY_S // slot_s
    assert np.isfinite(profiles.peak).all()
    assert (profiles.error < 0.2).all()


def test_no_service_and_no_step_are_no_error() -> None:
    assert fit(Usage(0, 300, (), ("cpu",), np.zeros((0, 1, 50), np.float32)), SETTINGS, 1, 0).services == ()
    assert fitted(np.zeros((1, 0), np.float32)).origin[0, 0] == Origin.NONE


def test_series_beyond_the_first_chunk_are_fitted() -> None:
    values = make_series(services=3)
    many = np.tile(values, (100, 1))

    profiles = fitted(many)

    np.testing.assert_allclose(profiles.peak[297:], fitted(values).peak, rtol=1e-3)
    assert np.isfinite(profiles.peak).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("zone", "Mars/Phobos"),
        ("slot_s", 7 * 3_600),
        ("slot_s", 60),
        ("quantile", 1.0),
        ("confidence", 0.0),
        ("half_life_days", 0.0),
        ("holdout_days", float("nan")),
        ("day_harmonics", 25),
        ("week_sidebands", 4),
        ("rest_days", (7,)),
    ],
)
def test_invalid_settings_are_refused_by_field(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        FitSettings(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("step_s", "message"), [(0.0, "step_s"), (float("nan"), "step_s")])
def test_invalid_grid_is_refused(step_s: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fitted(make_series(), step_s=step_s)


def test_values_of_another_shape_are_refused() -> None:
    usage = msgspec.structs.replace(make_usage(make_series(services=2)), services=("one",))

    with pytest.raises(ValueError, match=r"usage\.values"):
        fit(usage, SETTINGS, 1, 0)
