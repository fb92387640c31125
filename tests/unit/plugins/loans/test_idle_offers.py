"""How much idle capacity is offered: the use to expect, the margin learned from errors, and what may stay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.plugins.loans.offers import (
    LEARNED_MIN_S,
    STEP_S,
    UseErrors,
    UseOutlook,
    expected_use,
    idle_offer,
)

HOUR_STEPS = int(LEARNED_MIN_S / STEP_S)
NAMES = ("a", "b")


def learned(errors: UseErrors, uses: np.ndarray, names: tuple[str, ...] = NAMES) -> UseErrors:
    for used in uses:
        errors.add(names, used, used)
    return errors


def test_margin_covers_the_share_of_rises_within_the_time() -> None:
    rng = np.random.default_rng(7)
    uses = 0.5 + np.cumsum(rng.normal(0.0, 0.01, (2_000, 2)), axis=0)
    within = 3
    errors = learned(UseErrors(within * STEP_S, 0.9, 0.5), uses)
    windows = np.lib.stride_tricks.sliding_window_view(uses, within + 1, axis=0)
    rises = windows.max(axis=-1) - uses[: len(windows)]
    assert 0.88 <= (rises[-1_500:] <= errors.margin()).mean() <= 0.93


def test_margin_is_that_of_the_unknown_until_an_hour_is_learned() -> None:
    errors = learned(UseErrors(STEP_S, 0.99, 0.3), np.full((HOUR_STEPS, 2), 0.5))
    assert errors.margin() == 0.3
    assert learned(errors, np.full((1, 2), 0.5)).margin() == 0.0


def test_rows_that_join_or_leave_keep_what_was_learned() -> None:
    still = np.array([0.5])
    errors = UseErrors(STEP_S, 0.999, 0.5)
    errors.add(NAMES, np.array([0.2, 0.5]), np.array([0.2, 0.5]))
    errors.add(
        ("b", "new"), np.array([0.7, 0.1]), np.array([0.7, 0.1])
    )  # b rose by 0.2; new is not known a step before
    for _ in range(HOUR_STEPS):
        errors.add(("b",), still, still)
    assert errors.margin() == pytest.approx(0.2)


def test_forecast_is_scaled_to_the_present_use_and_never_up() -> None:
    now, later = np.array([2_000.0, 500.0, 0.0, 2_000.0]), np.array([3_000.0, 600.0, 50.0, 1_000.0])
    assert expected_use(np.full(4, 1_000.0), now, later).tolist() == [1_500.0, 1_100.0, 1_050.0, 1_000.0]


def test_a_forecast_that_comes_true_leaves_a_smaller_margin_than_none() -> None:
    minutes = np.arange(2 * 24 * 120) / 120
    wave = 4_000.0 + 2_000.0 * np.sin(2 * np.pi * minutes / 24)
    allocatable = np.array([10_000])

    def offered(*, is_known: bool) -> float:
        outlook, sums = UseOutlook(90.0), 0.0
        for step, used in enumerate(wave):
            ahead = [wave[step : step + 1 + int(within_s / STEP_S)].max(keepdims=True) for within_s in outlook.ahead_s]
            needs = outlook.needs(("a",), allocatable, np.array([used]), ahead if is_known else None)
            sums += float(idle_offer(np.array([8_000.0]), needs, np.array([0]))[0])
        return sums / len(wave)

    assert offered(is_known=False) + 10.0 < offered(is_known=True) <= 8_000.0 - wave.mean()


amounts = st.integers(0, 20_000)


@given(amounts, amounts, amounts, amounts)
def test_what_is_held_stays_until_it_is_needed_soon(limit: int, soon: int, later: int, held: int) -> None:
    needs = np.array([float(soon)]), np.array([float(max(soon, later))])
    (offer,) = idle_offer(np.array([float(limit)]), needs, np.array([held])).tolist()
    keep, fresh = max(0, limit - soon), max(0, limit - max(soon, later))
    assert fresh <= offer <= keep
    assert (held > offer) == (held > keep)
    assert offer == fresh or offer <= held
