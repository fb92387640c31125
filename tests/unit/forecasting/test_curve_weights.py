"""The line through the middles of slots, between two moments."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from multisched.forecasting.profiles import Profiles

WEEK_S = 7 * 86_400
MONDAY_S = datetime(2026, 1, 5, tzinfo=UTC).timestamp()


def profiles(slot_s: int, zone: str = "UTC") -> Profiles:
    empty = np.zeros((0, 0, WEEK_S // slot_s), np.float32)
    nothing = np.zeros((0, 0), np.float32)
    return Profiles(1, 0.0, 0.0, (), (), empty, empty, empty, nothing.astype(np.uint8), nothing, zone, slot_s)


@given(
    st.integers(0, 2 * WEEK_S),
    st.integers(0, 2 * 86_400),
    st.sampled_from([900, 3_600, 7_200]),
    st.integers(0, 2**32 - 1),
)
def test_highest_between_two_moments_is_that_of_the_line(begin: int, length: int, slot_s: int, seed: int) -> None:
    values = np.random.default_rng(seed).uniform(size=WEEK_S // slot_s)
    weights = profiles(slot_s).curve_weights(MONDAY_S + begin, MONDAY_S + begin + length)
    middles = (np.arange(-1, len(values) + 1) + 0.5) * slot_s
    around = values[np.arange(-1, len(values) + 1) % len(values)]
    times = np.append(np.arange(begin, begin + length, 60), begin + length) % WEEK_S
    line = np.interp(times, middles, around)
    assert np.allclose(weights.sum(axis=1), 1.0)
    highest = (weights @ values).max()
    assert line.max() - 1e-9 <= highest <= line.max() + 60 * np.abs(np.diff(around)).max() / slot_s


def test_slots_are_those_of_the_wall_time() -> None:
    weights = profiles(3_600, "Europe/Berlin").curve_weights(MONDAY_S + 1_800, MONDAY_S + 1_800)
    assert weights[0].nonzero()[0].tolist() == [1]  # 01:30 in Berlin, the middle of its slot
