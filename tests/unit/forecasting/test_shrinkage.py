"""Curves go towards the plainest day as far as they foretold nothing of the held-out days."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from multisched.forecasting.backtest import backtest
from multisched.forecasting.day_wave import wave_curves
from multisched.forecasting.fit import fit
from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.shrinkage import SHARES, Shares, kept_shares, mixture_losses, shrunk
from multisched.forecasting.slot_grid import Numbers, SlotGrid, slot_grid
from multisched.forecasting.slot_quantiles import flat_curves, slot_curves
from multisched.forecasting.usage import Samples
from tests.unit.forecasting.weeks import MONDAY_S, make_series, make_usage

PER_DAY = 96
STEP_S = 900.0
WEEK = 7 * PER_DAY
SETTINGS = FitSettings()
LEVELS = SETTINGS.levels
PEAK = (SETTINGS.quantile,)


def make_grid(steps: int) -> SlotGrid:
    return slot_grid(
        start_s=MONDAY_S, step_s=STEP_S, steps=steps, zone="UTC", slot_s=3_600, holidays=(), rest_days=(5, 6)
    )


def slots_of(values: Samples) -> Samples:
    """float32[series, slots]: peaks per slot."""
    days = np.full(len(values), values.shape[1] / PER_DAY)
    curves: Samples = slot_curves(values, days, make_grid(values.shape[1]), SETTINGS, PEAK)[0]
    return curves


def plain_of(values: Samples) -> Samples:
    """float32[1, series, slots]: the plainest days."""
    return wave_curves(values, make_grid(values.shape[1]), PEAK)


def shares_of(values: Samples) -> Shares:
    """Of slot quantiles, all but the last week known."""
    before, truth = values[:, :-WEEK], values[:, -WEEK:]
    return kept_of(slots_of(before), plain_of(before)[0], truth, make_grid(values.shape[1]).slot[-WEEK:])


def kept_of(curve: Samples, plain: Samples, truth: Samples, slot: Numbers) -> Shares:
    above_curve, above_plain = truth - curve[:, slot], truth - plain[:, slot]
    return kept_shares(mixture_losses(above_curve, above_plain, SETTINGS.quantile), above_curve)


def noisy(seed: int, services: int, *, days: int = 21) -> Samples:
    rng = np.random.default_rng(seed)
    return rng.lognormal(0, 0.3, (services, days * PER_DAY)).astype(np.float32)


def test_noise_is_shrunk_towards_the_plain_curve() -> None:
    values = noisy(1, 64)
    kept = shares_of(values)
    curves = slots_of(values)[None]

    found = shrunk(curves, plain_of(values), kept)

    assert kept.mean() < 0.25
    assert found.std(axis=2).mean() < 0.4 * curves.std(axis=2).mean()


def test_strong_daily_cycles_are_kept_completely() -> None:
    values = make_series(services=32, days=21, step_s=STEP_S)
    kept = shares_of(values)
    curves = slots_of(values)[None]

    found = shrunk(curves, plain_of(values), kept)

    assert (kept == 1).all()
    np.testing.assert_array_equal(found, curves)


@pytest.mark.parametrize("share", SHARES)
def test_kept_share_equals_the_ratio_of_real_to_predicted_amplitude(share: float) -> None:
    swing = np.sin(2 * np.pi * np.arange(168) / 24)
    curve, flat = (2 + swing).astype(np.float32)[None], np.full((1, 168), 2.0, np.float32)
    came = (2 + share * swing).astype(np.float32)[None]

    assert kept_of(curve, flat, came, np.arange(168)) == [share]


@pytest.mark.parametrize(("more", "share"), [(0.02, 0.0), (0.04, 1.0)])
def test_plain_curve_is_preferred_at_slightly_higher_loss(more: float, share: float) -> None:
    spread = np.array([0.5], np.float32)
    losses = np.linspace(1, 1 + more * spread, len(SHARES))

    assert kept_shares(losses, np.array([[-0.5, 0.1, 0.5, 9.0]], np.float32)) == [share]


@pytest.mark.parametrize("settings_", [SETTINGS, FitSettings(regression_days_min=365)])
def test_a_weak_day_in_noise_is_learned_as_a_wave(settings_: FitSettings) -> None:
    hours = np.arange(21 * PER_DAY) / 4
    noise = np.random.default_rng(6).normal(0, 0.3, (16, len(hours)))
    values = (2 + 0.2 * np.cos(2 * np.pi * (hours - 15.5) / 24) + noise).astype(np.float32)

    peak = fit(make_usage(values, step_s=STEP_S), settings_, 1, 0.0).peak[:, 0]

    wave = 0.2 * np.cos(2 * np.pi * (np.arange(168) - 15) / 24)
    off = peak - peak.mean(axis=1)[:, None] - wave
    assert np.sqrt((off**2).mean(axis=1)).mean() < 0.25 * wave.std()


def test_daily_wave_needs_no_slots() -> None:
    hours = np.arange(21 * PER_DAY) / 4
    noise = np.random.default_rng(6).normal(0, 0.3, (16, len(hours)))
    values = (2 + 0.4 * np.cos(2 * np.pi * (hours - 15.5) / 24) + noise).astype(np.float32)

    judged = backtest(values, STEP_S, make_grid(values.shape[1]), SETTINGS)

    assert (judged.slot_share == 0).all()
    assert (judged.regression_share == 0).all()


def test_error_of_the_flat_quantile_is_measured_without_the_wave() -> None:
    hours = np.arange(21 * PER_DAY) / 4
    values = (2 + np.cos(2 * np.pi * hours / 24)).astype(np.float32)[None]

    tested = fit(make_usage(values, step_s=STEP_S), SETTINGS, 1, 0.0).tested

    assert tested is not None
    assert tested.flat_quantile[0, 0] > 0.02
    assert tested.slot_quantile[0, 0] < 0.005


def test_a_constant_series_is_its_flat_quantile() -> None:
    values = np.full((2, 21 * PER_DAY), 3.25, np.float32)

    profiles = fit(make_usage(values, step_s=STEP_S), SETTINGS, 1, 0.0)

    flat = flat_curves(values, 168, LEVELS)
    for curve, expected in zip((profiles.low, profiles.peak, profiles.high), flat, strict=True):
        np.testing.assert_allclose(curve[:, 0], expected, rtol=1e-4)


def test_noisy_week_is_learned_flatter_than_its_slots() -> None:
    values = noisy(2, 32)

    profiles = fit(make_usage(values, step_s=STEP_S), SETTINGS, 1, 0.0)

    assert profiles.peak[:, 0].std(axis=1).mean() < 0.5 * slots_of(values).std(axis=1).mean()
    assert (profiles.low <= profiles.peak).all()
    assert (profiles.peak <= profiles.high).all()


def test_absurd_held_out_samples_do_not_change_the_kept_share() -> None:
    values = make_series(services=8, days=21, step_s=STEP_S)
    spiky = values.copy()
    spiky[:, np.random.default_rng(3).integers(14 * PER_DAY, 21 * PER_DAY, 10)] *= 100

    assert (shares_of(values) == 1).all()
    assert (shares_of(spiky) == 1).all()


def test_kept_share_is_independent_of_the_unit() -> None:
    values = noisy(4, 8)

    np.testing.assert_array_equal(shares_of(values), shares_of(values * np.float32(2.0**40)))


def test_curve_without_held_out_days_is_kept() -> None:
    values = noisy(5, 3)
    values[0, -WEEK:] = np.nan
    values[1] = 0.0

    assert shares_of(values)[:2].tolist() == [1, 1]
    unknown = np.full((3, 168), np.nan, np.float32)
    slot = np.arange(168)[:, None].repeat(12, 1).ravel()
    assert kept_of(unknown, unknown, values, slot).tolist() == [1, 1, 1]


SERIES = arrays.arrays(np.float32, (3, 4 * PER_DAY), elements=st.floats(0, 2.0**59, width=32))


@given(SERIES, arrays.arrays(np.float32, 3, elements=st.sampled_from(SHARES)))
@settings(max_examples=40, deadline=None)
def test_shrunk_curve_lies_between_slot_and_plain_curve(values: Samples, kept: Shares) -> None:
    curves = slots_of(values)[None]
    plain = plain_of(values)

    found = shrunk(curves, plain_of(values), kept)

    slack = 1e-5 * np.maximum(curves, plain)
    assert (found >= 0).all()
    assert (found >= np.minimum(curves, plain) - slack).all()
    assert (found <= np.maximum(curves, plain) + slack).all()
