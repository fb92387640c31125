"""The demand of inference: what was learned of it, and how evictions for it are counted."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from domains.gpu.tide.demand import HISTORY_STEP_S, NeedTally, RecentDemand, expected_demand, learn_demand
from domains.gpu.tide.settings import TideSettings
from domains.gpu.tide.state import DemandForecast, ForecastOrigin
from domains.gpu.tide.windows import DemandWindow, DemandWindows

MONDAY_S = 1_767_571_200.0
DAY_S = 86_400.0


def wave(at_s: float) -> float:
    """From 50 cards at 06:00 to 150 at 18:00."""
    return 100 - 50 * math.sin(2 * math.pi * at_s / DAY_S)


def history(days: float, noise: float = 0.0) -> list[tuple[float, float]]:
    rng = np.random.default_rng(1)
    moments = np.arange(MONDAY_S - days * DAY_S, MONDAY_S, HISTORY_STEP_S)
    return [(at_s, wave(at_s) + noise * rng.standard_normal()) for at_s in moments.tolist()]


def test_forecast_follows_the_day_between_the_slots_of_the_engine() -> None:
    learned = learn_demand({"chat": history(14)}, now_s=MONDAY_S, horizon_s=120)
    assert learned is not None
    forecast = learned.forecast(MONDAY_S)
    for minute in range(0, 1_440, 7):
        at_s = MONDAY_S + 60 * minute
        assert forecast.expected(at_s) == pytest.approx(wave(at_s), abs=2)
        assert forecast.upper(at_s) >= forecast.expected(at_s)
    assert forecast.from_s <= MONDAY_S
    assert forecast.to_s >= MONDAY_S + DAY_S
    steps = [forecast.expected(MONDAY_S + 60 * minute) for minute in range(1_440)]
    assert max(abs(after - before) for before, after in pairwise(steps)) < 0.5  # 100 cards in 12 h, no steps of a slot


def test_services_are_summed_before_they_are_learned() -> None:
    half = [(at_s, cards / 2) for at_s, cards in history(8)]
    learned = learn_demand({"chat": half, "image": half}, now_s=MONDAY_S, horizon_s=120)
    assert learned is not None
    assert learned.forecast(MONDAY_S).expected(MONDAY_S + DAY_S / 4) == pytest.approx(50, abs=3)


def test_error_is_what_noise_rises_above_the_forecast() -> None:
    """The difference of two independent normal samples of deviation 2 exceeds 2.33 * 2 * sqrt(2) = 6.6 in one of 100."""
    learned = learn_demand({"chat": history(14, noise=2.0)}, now_s=MONDAY_S, horizon_s=HISTORY_STEP_S)
    calm = learn_demand({"chat": history(14)}, now_s=MONDAY_S, horizon_s=HISTORY_STEP_S)
    assert learned is not None
    assert calm is not None
    assert learned.error_cards == pytest.approx(6.6, abs=1.0)
    assert calm.error_cards < 1


def test_less_than_two_days_are_no_history() -> None:
    assert learn_demand({"chat": history(1.9)}, now_s=MONDAY_S, horizon_s=120) is None
    assert learn_demand({}, now_s=MONDAY_S, horizon_s=120) is None


def test_windows_and_then_the_demand_now_replace_a_missing_history() -> None:
    windows = DemandWindows((DemandWindow((0,), 0, 60, 60),))
    learned = learn_demand({"chat": history(3)}, now_s=MONDAY_S, horizon_s=120)
    origins = [
        expected_demand(found, TideSettings(windows=stated), MONDAY_S, 7)
        for found, stated in ((learned, windows), (None, windows), (None, None))
    ]
    assert [one.origin for one in origins] == [ForecastOrigin.HISTORY, ForecastOrigin.WINDOWS, ForecastOrigin.NONE]
    assert [round(one.upper(MONDAY_S)) for one in origins[1:]] == [60, 7]


def test_windows_expect_their_cards_and_zero_outside() -> None:
    found = DemandWindows((DemandWindow((0, 6), 22 * 60, 26 * 60, 60),), "Europe/Berlin")  # 23:00 is 22:00 UTC
    hours = {hour: found.cards(MONDAY_S + 3_600 * hour) for hour in (0, 1, 2, 20, 21, 24, 25)}
    assert hours == {0: 60, 1: 0, 2: 0, 20: 0, 21: 60, 24: 60, 25: 0}
    forecast = found.forecast(MONDAY_S)
    assert forecast.highest_rise(MONDAY_S + 2 * 3_600, MONDAY_S + 22 * 3_600) == 60


@pytest.mark.parametrize(
    ("at_s", "to_s", "rise"), [(0, 300, 10), (0, 900, 20), (150, 450, 10), (600, 900, 0), (0, 9_000, 20), (-900, 0, 0)]
)
def test_highest_rise_sees_samples_within_the_interval(at_s: float, to_s: float, rise: float) -> None:
    forecast = DemandForecast(0.0, 300.0, (0.0, 10.0, 20.0, 5.0), (0.0, 10.0, 20.0, 5.0))
    assert forecast.highest_rise(at_s, to_s) == pytest.approx(rise)


def test_recent_demand_keeps_the_maximum_of_each_interval_for_a_while() -> None:
    recent = RecentDemand(60.0)
    for at_s, cards in ((0.0, 5), (3.0, 9), (9.9, 7), (10.0, 1), (65.0, 2)):
        recent.add(at_s, cards)
    assert [(one.at_s, one.cards) for one in recent.samples] == [(10.0, 1), (65.0, 2)]
    first = RecentDemand(60.0)
    for at_s, cards in ((0.0, 5), (3.0, 9), (9.9, 7)):
        first.add(at_s, cards)
    assert [(one.at_s, one.cards) for one in first.samples] == [(0.0, 9)]


def test_surplus_of_a_gang_counts_as_needed_when_inference_grows_into_it() -> None:
    tally = NeedTally()
    tally.evicted(8)
    assert tally.ratio == math.inf
    tally.inference_has(7)  # one of the eight
    assert (tally.evicted_cards, tally.needed_cards) == (8, 1)
    tally.inference_has(2)
    assert tally.needed_cards == 6
    tally.training_has(1)  # one of the last two is taken by training
    tally.inference_has(0)
    assert (tally.evicted_cards, tally.needed_cards) == (8, 7)
    assert tally.ratio == 8 / 7
    tally.inference_has(-5)
    assert tally.needed_cards == 7


def test_cards_that_were_free_anyway_are_used_before_evicted_ones() -> None:
    tally = NeedTally()
    tally.evicted(8)
    tally.inference_has(20)  # 12 others were free: inference took none of the eight
    assert tally.needed_cards == 0
