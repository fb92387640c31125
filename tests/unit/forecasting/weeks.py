"""Series with day and week cycles for the tests of the fit; the same seed gives the same series."""

from __future__ import annotations

import numpy as np

from multisched.forecasting.usage import Samples, Usage

MONDAY_S = 1_767_571_200.0
"""2026-01-05 00:00 UTC."""
DAY_S = 86_400
FIVE_MINUTES_S = 300.0


def expected_use(hours: Samples, peak_hour: float, *, weekend_share: float = 0.5, sharpness: float = 4.0) -> Samples:
    """Of moments in hours since a Monday: 0.2 at night, 1.2 at the peak hour of a working day."""
    phase = 2 * np.pi * (hours % 24 - peak_hour) / 24
    is_weekend = hours // 24 % 7 >= 5
    peak = np.exp(sharpness * (np.cos(phase) - 1)) * np.where(is_weekend, weekend_share, 1.0)
    use: Samples = (np.float32(0.2) + peak).astype(np.float32)
    return use


def make_series(
    seed: int = 0, *, services: int = 1, days: int = 14, step_s: float = FIVE_MINUTES_S, noise: float = 0.1
) -> Samples:
    """float32[services, steps] from a Monday on: peaks around 20:00, noise in proportion to the use, kept for some steps."""
    rng = np.random.default_rng(seed)
    hours = (np.arange(round(days * DAY_S / step_s)) * step_s / 3_600).astype(np.float32)
    peaks = 20 + rng.uniform(-2, 2, services)
    shape = np.stack([expected_use(hours, peak) for peak in peaks])
    wander = (
        rng.normal(0, 1, shape.shape)
        + np.repeat(rng.normal(0, 1, (services, len(hours) // 6 + 1)), 6, axis=1)[:, : len(hours)]
    )
    scale = rng.lognormal(0, 1, (services, 1))
    series: Samples = np.maximum(scale * shape * (1 + noise * wander / np.sqrt(2)), 0).astype(np.float32)
    return series


def make_usage(values: Samples, *, start_s: float = MONDAY_S, step_s: float = FIVE_MINUTES_S) -> Usage:
    """Of one dimension; services are named by number."""
    names = tuple(f"shop/{number}" for number in range(len(values)))
    return Usage(start_s, step_s, names, ("cpu",), values[:, None, :])
