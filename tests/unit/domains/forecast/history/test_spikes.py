"""Samples that cannot be true are gaps; what bursts again and again is kept."""

from __future__ import annotations

import numpy as np
import pytest

from domains.forecast.history.spikes import without_spikes
from multisched.forecasting.fit import fit
from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.usage import Samples, Usage

MONDAY_S = 4 * 86_400.0
STEP_S = 300
DAY = 86_400 // STEP_S
STEPS = 14 * DAY


def usage_of(values: Samples, step_s: float = STEP_S) -> Usage:
    names = tuple(f"s{number}" for number in range(len(values)))
    return Usage(MONDAY_S, step_s, names, ("cpu",), values[:, None].astype(np.float32))


def days(series: int = 40, seed: int = 0) -> Samples:
    at_s = MONDAY_S + STEP_S * np.arange(STEPS)
    noise = np.random.default_rng(seed).normal(0, 0.01, (series, STEPS))
    return (0.2 + 0.1 * np.cos(2 * np.pi * at_s / 86_400) + noise).astype(np.float32)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.02])
def test_spikes_do_not_change_profiles(share: float) -> None:
    true = days()
    is_spike = np.random.default_rng(1).random(true.shape) < share
    lies = np.where(is_spike, 100 * true, true)
    cleaned, count = without_spikes(usage_of(lies))
    assert count > 0.85 * is_spike.sum()
    expected = fit(usage_of(true), FitSettings(), 1, 0.0)
    found = fit(cleaned, FitSettings(), 1, 0.0)
    ratio = found.peak / expected.peak
    assert np.quantile(ratio, 0.99) < 1.1
    assert 0.97 < np.median(ratio) < 1.03


def test_series_without_spikes_are_returned_unchanged() -> None:
    usage = usage_of(days())
    cleaned, count = without_spikes(usage)
    assert (cleaned is usage, count) == (True, 0)


def bursts(*steps: int) -> Samples:
    values = days(1)
    values[0, list(steps)] *= 100
    return values


def test_only_recurring_peaks_are_kept() -> None:
    daily = [day * DAY + 36 for day in range(14)]
    late = [day * DAY + 36 + day % 2 for day in range(14)]
    weekly = [100, 100 + 7 * DAY]
    long = [500, 501, 502]
    for kept in (daily, late, weekly, long):
        assert without_spikes(usage_of(bursts(*kept)))[1] == 0, kept
    assert without_spikes(usage_of(bursts(0, 700, 1_500, STEPS - 1)))[1] == 4


def test_hundredfold_spike_is_found_at_every_hour_of_the_day() -> None:
    """Of a service of two pods, one of which reports it."""
    hours = np.arange(14 * 24)
    true = 0.6 + 0.4 * np.cos(2 * np.pi * hours / 24)[None]
    for hour in range(1, 25):
        values = true.copy()
        values[0, 100 + hour] *= 50.5
        assert without_spikes(usage_of(values.astype(np.float32), 3_600))[1] == 1, hour


def test_idle_or_unknown_series_has_no_spikes() -> None:
    idle = np.zeros((1, STEPS), np.float32)
    idle[0, 17] = 5.0
    unknown = np.full((1, STEPS), np.nan, np.float32)
    assert without_spikes(usage_of(np.concatenate([idle, unknown])))[1] == 0
    assert without_spikes(usage_of(np.full((1, 1), 3.0, np.float32)))[1] == 0


def test_spike_next_to_gaps_is_found() -> None:
    values = bursts(1_000)
    values[0, [999, 1_001]] = np.nan
    cleaned, count = without_spikes(usage_of(values))
    assert count == 1
    assert np.isnan(cleaned.values[0, 0, 1_000])
