"""The backtest judges each kind of profile on the last days only, by pinball loss over the mean of the series."""

from __future__ import annotations

import numpy as np
import pytest

from multisched.forecasting.fit import fit
from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.pinball import pinball
from multisched.forecasting.profiles import Backtest
from multisched.forecasting.usage import Usage
from tests.unit.forecasting.weeks import make_series, make_usage


def backtest_of(usage: Usage) -> Backtest:
    """How each kind of profile would have done."""
    found = fit(usage, FitSettings(), 1, 0.0).tested
    assert found is not None
    return found


@pytest.mark.parametrize(("truth", "loss"), [(1.0, 0.0), (3.0, 1.8), (0.0, 0.1)])
def test_pinball_loss_weights_samples_above_the_peak_more(truth: float, loss: float) -> None:
    samples = np.array([[truth, np.nan]], np.float32)

    found = pinball(samples - np.float32(1), 0.9)

    assert found[0] == pytest.approx(loss)


def test_loss_without_samples_is_unknown() -> None:
    assert np.isnan(pinball(np.full((1, 2), np.nan, np.float32), 0.9))


def test_profile_with_slots_beats_one_quantile_if_usage_is_cyclic() -> None:
    judged = backtest_of(make_usage(make_series(services=8)))

    assert (judged.slot_quantile < 0.5 * judged.flat_quantile).all()
    assert (judged.regression < 0.5 * judged.flat_quantile).all()
    assert (judged.holdout_days == 7).all()


def test_errors_are_relative_to_the_mean_of_the_series() -> None:
    values = make_series(services=1)
    judged = backtest_of(make_usage(np.concatenate([values, 1_000 * values])))

    assert judged.regression[0, 0] == pytest.approx(judged.regression[1, 0], rel=1e-3)


@pytest.mark.parametrize(("days", "held"), [(14, 7.0), (10, 3.5), (5, 1.75), (3, np.nan)])
def test_a_shorter_history_is_judged_on_fewer_days(days: int, held: float) -> None:
    judged = backtest_of(make_usage(make_series(days=days)))

    np.testing.assert_equal(judged.holdout_days[0, 0], np.float32(held))
    assert np.isnan(judged.regression[0, 0]) == (days < 7)


def test_held_out_days_are_not_learned_from() -> None:
    values = make_series(days=14)
    changed = values.copy()
    changed[:, 7 * 288 :] *= 10

    calm = backtest_of(make_usage(values))
    wild = backtest_of(make_usage(changed))

    assert wild.regression[0, 0] > 5 * calm.regression[0, 0]


def test_a_service_that_ended_before_the_last_days_is_not_judged() -> None:
    values = make_series(days=28)
    values[:, 20 * 288 :] = np.nan

    judged = backtest_of(make_usage(values))

    assert np.isnan([judged.regression[0, 0], judged.slot_quantile[0, 0], judged.holdout_days[0, 0]]).all()
