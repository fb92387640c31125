"""What was measured in the last days is kept by slots of the profiles' own clock, within a code."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from multisched.forecasting.recent import CODE_NAN, recent_of
from multisched.forecasting.usage import Usage
from tests.unit.domains.forecast.fleets import learned
from tests.unit.forecasting.weeks import DAY_S, FIVE_MINUTES_S, MONDAY_S, make_series

HOUR_S = 3_600


@pytest.mark.parametrize(("zone", "shift_s"), [("UTC", 0), ("Asia/Kolkata", 1_800), ("Europe/Berlin", 0)])
def test_each_slot_has_the_mean_and_maximum_of_its_samples(zone: str, shift_s: int) -> None:
    values = make_series(services=6, days=20).reshape(2, 3, -1)
    values[0, 0, -24:] = np.nan
    found = recent_of(Usage(MONDAY_S, FIVE_MINUTES_S, ("a", "b"), ("x", "y", "z"), values), zone, HOUR_S)
    assert found.start_s % HOUR_S == shift_s
    moments = MONDAY_S + FIVE_MINUTES_S * np.arange(values.shape[2])
    for slot in (0, 5, 100, 335):
        begin_s = found.start_s + slot * HOUR_S
        own = values[:, :, (moments >= begin_s) & (moments < begin_s + HOUR_S)]
        np.testing.assert_allclose(
            found.mean[1, :, slot] * found.scale[1], own[1].mean(axis=1), atol=found.scale[1].max()
        )
        np.testing.assert_allclose(
            found.top[1, :, slot] * found.scale[1], own[1].max(axis=1), atol=found.scale[1].max()
        )
    assert found.mean[0, 0, -1] == found.top[0, 0, -1] == CODE_NAN
    assert (found.mean[1] < CODE_NAN).all()


def test_step_longer_than_a_slot_fills_all_its_slots() -> None:
    values = np.arange(1, 8 * 14 + 1, dtype=np.float32).reshape(1, 1, -1)
    found = recent_of(Usage(MONDAY_S, 3 * HOUR_S, ("a",), ("x",), values), "UTC", HOUR_S)
    assert found.start_s == MONDAY_S
    assert (found.mean[0, 0].reshape(-1, 3).std(axis=1) == 0).all()


def test_short_history_leaves_gaps_and_zero_is_no_gap() -> None:
    values = np.zeros((1, 1, 2 * DAY_S // HOUR_S), np.float32)
    found = recent_of(Usage(MONDAY_S, HOUR_S, ("a",), ("x",), values), "UTC", HOUR_S)
    assert np.count_nonzero(found.mean == CODE_NAN) == 12 * 24
    assert np.count_nonzero(found.top == 0) == 2 * 24


def test_invalid_measurements_are_dropped() -> None:
    values = np.full((1, 1, 24), 5, np.float32)
    values[0, 0, :3] = (np.nan, -1, np.inf)
    found = recent_of(Usage(MONDAY_S, HOUR_S, ("a",), ("x",), values), "UTC", HOUR_S)
    known = found.top[0, 0] < CODE_NAN
    assert np.count_nonzero(known) == 21
    assert found.scale[0, 0] * 254 == pytest.approx(5)


def test_profiles_keep_history_and_backtest_when_pickled() -> None:
    profiles = learned(["a", "b"], ("cpu", "log"))
    found = pickle.loads(pickle.dumps(profiles))
    assert profiles.recent is not None
    assert profiles.tested is not None
    assert found.recent.start_s == profiles.recent.start_s
    np.testing.assert_array_equal(found.recent.top, profiles.recent.top)
    np.testing.assert_array_equal(found.tested.regression, profiles.tested.regression)


def test_no_services_and_no_samples_are_no_error() -> None:
    empty = np.zeros((0, 1, 0), np.float32)
    assert recent_of(Usage(MONDAY_S, HOUR_S, (), ("x",), empty), "UTC", HOUR_S).mean.shape[:2] == (0, 1)
    none = np.zeros((1, 1, 0), np.float32)
    assert (recent_of(Usage(MONDAY_S, HOUR_S, ("a",), ("x",), none), "UTC", HOUR_S).top == CODE_NAN).all()
