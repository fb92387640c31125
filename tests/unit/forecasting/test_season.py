"""The seasonal regression: it finds the cycle, keeps to it under outliers and gaps, and knows how noisy each hour is."""

from __future__ import annotations

import numpy as np
import pytest

from multisched.forecasting import season
from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.season import season_curves, season_mean
from multisched.forecasting.slot_grid import SlotGrid, slot_grid
from multisched.forecasting.usage import Samples
from tests.unit.forecasting.weeks import FIVE_MINUTES_S, MONDAY_S, expected_use, make_series

PER_DAY, PER_WEEK = 288, 2_016
SETTINGS = FitSettings()
EVENING = 20


def make_grid(steps: int, *, step_s: float = FIVE_MINUTES_S, start_s: float = MONDAY_S) -> SlotGrid:
    return slot_grid(
        start_s=start_s, step_s=step_s, steps=steps, zone="UTC", slot_s=3_600, holidays=(), rest_days=(5, 6)
    )


def slot_means(peak_hour: float) -> Samples:
    """What the series of that peak hour is expected to use on the mean of each slot."""
    hours = (np.arange(PER_WEEK) / 12).astype(np.float32)
    means: Samples = expected_use(hours, peak_hour).reshape(168, 12).mean(axis=1)
    return means


def peaked(seed: int, *, days: int = 14, noise: float = 0.1, peak_hour: float = EVENING) -> Samples:
    rng = np.random.default_rng(seed)
    hours = (np.arange(days * PER_DAY) / 12).astype(np.float32)
    return (expected_use(hours, peak_hour) * (1 + noise * rng.normal(size=len(hours)))).clip(0).astype(np.float32)[None]


def test_a_sharp_evening_peak_and_a_quieter_weekend_are_found_from_two_weeks() -> None:
    found = season_mean(peaked(0), make_grid(14 * PER_DAY), SETTINGS)[0]

    assert np.abs(found - slot_means(EVENING)).mean() < 0.02
    assert found[24 + EVENING] == pytest.approx(slot_means(EVENING)[EVENING], rel=0.1)
    assert found[5 * 24 + EVENING] < 0.75 * found[EVENING]


@pytest.mark.parametrize("kind", ["spikes", "outage"])
def test_absurd_samples_hardly_change_the_mean(kind: str) -> None:
    values = peaked(1)
    clean = season_mean(values, make_grid(values.shape[1]), SETTINGS)[0]
    if kind == "spikes":
        values[0, np.random.default_rng(2).integers(0, values.shape[1], 20)] *= 100
    else:
        values[0, 3 * PER_DAY + 210 : 3 * PER_DAY + 260] = 0

    found = season_mean(values, make_grid(values.shape[1]), SETTINGS)[0]

    assert np.abs(found - clean).max() < 0.15
    assert np.abs(found - clean).mean() < 0.02


def test_the_spread_is_wider_in_the_evening_than_at_night() -> None:
    low, high = season_curves(peaked(3), make_grid(14 * PER_DAY), SETTINGS, (0.05, 0.95))[:, 0]

    assert high[EVENING] - low[EVENING] > 3 * (high[8] - low[8])


def test_about_one_in_twenty_new_samples_exceeds_the_peak() -> None:
    curve = season_curves(peaked(4), make_grid(14 * PER_DAY), SETTINGS, (0.95,))[0, 0]
    new_week = peaked(5, days=7)[0]

    passed = float((new_week > np.repeat(curve, 12)).mean())

    assert 0.02 < passed < 0.09


def test_series_with_any_gaps_fit_together_as_if_alone() -> None:
    values = make_series(6, services=6)
    values[1:3, 500:800] = np.nan
    values[3, 1_000:1_500] = np.nan
    values[4, :2_000] = np.nan
    grid = make_grid(values.shape[1])

    together = season_curves(values, grid, SETTINGS, (0.05, 0.95))
    alone = [season_curves(values[[row]], grid, SETTINGS, (0.05, 0.95))[:, 0] for row in range(6)]

    np.testing.assert_allclose(together, np.stack(alone, axis=1), rtol=2e-4, atol=1e-5)


def test_gap_is_filled_from_other_days_instead_of_zero() -> None:
    values = peaked(7)
    grid = make_grid(values.shape[1])
    whole = season_mean(values, grid, SETTINGS)[0]
    values[0, PER_DAY + 216 : PER_DAY + 276] = np.nan

    gapped = season_mean(values, grid, SETTINGS)[0]

    assert np.abs(gapped - whole).max() < 0.05


@pytest.mark.parametrize(("missing", "begins"), [(0.02, 0), (0.1, 0), (0.4, 0), (0.1, 100)])
def test_filled_gaps_give_the_same_result_as_a_separate_factorisation(
    missing: float, begins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So near to each other as both are to the fit of the samples that were lost."""
    values = make_series(11, services=12)
    grid = make_grid(values.shape[1])
    whole = season_mean(values, grid, SETTINGS)
    is_lost = np.random.default_rng(12).random((12, 14 * 24)) < missing
    is_lost[:, :begins] = True
    values[np.repeat(is_lost, 12, axis=1)] = np.nan
    filled = season_mean(values, grid, SETTINGS)
    monkeypatch.setattr(season, "MANY_HOLES", 0.0)

    exact = season_mean(values, grid, SETTINGS)

    assert np.abs(filled / exact - 1).mean() < 0.01
    assert np.abs(filled / whole - 1).mean() < 1.3 * np.abs(exact / whole - 1).mean()


def test_unmeasured_time_of_day_has_a_curve() -> None:
    values = peaked(8)
    values[0, (np.arange(values.shape[1]) % PER_DAY) // 12 == 3] = np.nan

    curves = season_curves(values, make_grid(values.shape[1]), SETTINGS, SETTINGS.levels)

    assert np.isfinite(curves).all()
    assert curves[1, 0, 3] == pytest.approx(0.22, abs=0.1)


def test_older_samples_weigh_less() -> None:
    values = peaked(9, days=28)
    values[0, : 14 * PER_DAY] *= 3
    aged = season_mean(values, make_grid(values.shape[1]), FitSettings(half_life_days=4))[0]
    ageless = season_mean(values, make_grid(values.shape[1]), FitSettings(half_life_days=1e6))[0]

    true = slot_means(EVENING)
    assert np.abs(aged - true).mean() < 0.4 * np.abs(ageless - true).mean()


def test_result_scales_with_the_unit() -> None:
    values = peaked(10)
    grid = make_grid(values.shape[1])

    cores = season_curves(values, grid, SETTINGS, (0.95,))
    terabytes = season_curves(values * np.float32(1e13), grid, SETTINGS, (0.95,))

    np.testing.assert_allclose(terabytes, cores * np.float32(1e13), rtol=1e-3)


def test_a_series_of_zeros_stays_zero() -> None:
    curves = season_curves(np.zeros((1, 14 * PER_DAY), np.float32), make_grid(14 * PER_DAY), SETTINGS, SETTINGS.levels)

    assert not curves.any()
