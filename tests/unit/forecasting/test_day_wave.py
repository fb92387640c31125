"""The plainest day is one quantile on a wave of 24 hours, which a weak day shows and noise does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from multisched.forecasting.day_wave import wave_curves
from multisched.forecasting.slot_grid import SlotGrid, slot_grid
from multisched.forecasting.slot_quantiles import flat_curves
from multisched.forecasting.usage import Samples
from tests.unit.forecasting.weeks import MONDAY_S

PER_DAY = 96
DAYS = 21
LEVELS = (0.05, 0.95, 0.99)
HOURS = np.arange(DAYS * PER_DAY) / 4


def make_grid(slot_s: int = 3_600, days: int = DAYS) -> SlotGrid:
    return slot_grid(
        start_s=MONDAY_S, step_s=900.0, steps=days * PER_DAY, zone="UTC", slot_s=slot_s, holidays=(), rest_days=(5, 6)
    )


def make_day(swing: float, noise: float = 0.1, *, peak: float = 15.0, seed: int = 1) -> Samples:
    """float32[8, steps]: around 2."""
    rng = np.random.default_rng(seed)
    wave = swing * np.cos(2 * np.pi * (HOURS - peak) / 24)
    return (2 + wave + rng.normal(0, noise, (8, len(HOURS)))).astype(np.float32)


@pytest.mark.parametrize("peak", [3.5, 15.5, 23.5])
def test_weak_daily_cycle_keeps_its_peak_time_and_amplitude(peak: float) -> None:
    _, found, _ = wave_curves(make_day(0.2, peak=peak), make_grid(), LEVELS)

    assert (found.argmax(axis=1) % 24 == int(peak)).all()
    np.testing.assert_allclose(np.ptp(found, axis=1) / 2, 0.2, atol=0.02)
    # 95 % of the noise lie below 1.645 deviations.
    np.testing.assert_allclose(found.mean(axis=1), 2 + 0.1645, atol=0.02)


def test_noise_gives_almost_no_daily_wave() -> None:
    values = make_day(0.0, 0.5)

    found, flat = wave_curves(values, make_grid(), LEVELS), flat_curves(values, 168, LEVELS)

    np.testing.assert_allclose(found, flat, rtol=0.06)


def test_few_absurd_samples_do_not_change_the_wave() -> None:
    values = make_day(0.2)
    spiky = values.copy()
    spiky[:, np.random.default_rng(3).integers(0, spiky.shape[1], 10)] *= 100

    np.testing.assert_allclose(
        wave_curves(spiky, make_grid(), (0.95,)), wave_curves(values, make_grid(), (0.95,)), rtol=0.02
    )


def test_occasional_evening_bursts_make_no_wave() -> None:
    values = make_day(0.2, peak=9.0)
    evenings = (HOURS % 24 >= 19) & (HOURS % 24 < 23) & (HOURS // 24 % 5 == 0)
    values[:, evenings] *= 5

    _, found, _ = wave_curves(values, make_grid(), LEVELS)

    assert (np.abs(found.argmax(axis=1) % 24 - 9) <= 1).all()


def test_low_quantiles_of_a_wave_end_at_zero() -> None:
    values = np.maximum(make_day(2.0, 0.0) - 2, 0)

    low, peak, _ = wave_curves(values, make_grid(), LEVELS)

    assert (low.min(axis=1) == 0).all()
    assert (peak > 0).all()


def test_times_of_day_without_samples_hardly_change_the_wave() -> None:
    values = make_day(0.2)
    values[:, (HOURS % 24 >= 4) & (HOURS % 24 < 5)] = np.nan
    values[7] = np.nan

    _, found, _ = wave_curves(values, make_grid(), LEVELS)

    assert (np.abs(found[:7].argmax(axis=1) % 24 - 15) <= 1).all()
    assert np.isnan(found[7]).all()


@pytest.mark.parametrize("slot_s", [43_200, 86_400])
def test_a_day_of_one_or_two_slots_has_no_wave(slot_s: int) -> None:
    values = make_day(0.2)

    found = wave_curves(values, make_grid(slot_s), LEVELS)

    np.testing.assert_array_equal(found, flat_curves(values, 7 * 86_400 // slot_s, LEVELS))


SERIES = arrays.arrays(np.float32, (3, 4 * PER_DAY), elements=st.floats(0, 2.0**59, width=32))


@given(SERIES)
@settings(max_examples=40, deadline=None)
def test_curves_are_in_order_and_never_below_zero(values: Samples) -> None:
    low, peak, high = wave_curves(values, make_grid(days=4), LEVELS)

    assert (low >= 0).all()
    assert (low <= peak).all()
    assert (peak <= high).all()
