"""Slots of whole arrays of moments: on wall time, as `Profiles.slot_of` has it; bins and holidays."""

from __future__ import annotations

from datetime import UTC, date, datetime

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.forecasting.slot_grid import STEPS_MAX, SlotGrid, slot_grid, slots_of
from tests.unit.domains.forecast.profiles import no_profiles
from tests.unit.forecasting.weeks import DAY_S, MONDAY_S

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Chatham")
BERLIN_FORWARD_S = datetime(2026, 3, 29, 1, tzinfo=UTC).timestamp()
BERLIN_BACK_S = datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp()


def make_grid(start_s: float, steps: int, *, zone: str = "UTC", holidays: tuple[date, ...] = ()) -> SlotGrid:
    return slot_grid(
        start_s=start_s, step_s=300, steps=steps, zone=zone, slot_s=3_600, holidays=holidays, rest_days=(5, 6)
    )


@given(
    st.lists(st.floats(1.5e9, 2.2e9), min_size=1, max_size=20),
    st.sampled_from(ZONES),
    st.sampled_from((900, 3_600, 14_400)),
)
def test_slots_of_many_times_equal_those_of_each_time(moments: list[float], zone: str, slot_s: int) -> None:
    profiles = msgspec.structs.replace(no_profiles(slot_s=slot_s), zone=zone)

    assert slots_of(np.array(moments), zone, slot_s).tolist() == [profiles.slot_of(moment) for moment in moments]


@pytest.mark.parametrize(("change_s", "step"), [(BERLIN_FORWARD_S, 2), (BERLIN_BACK_S, 0)])
def test_a_clock_set_forward_skips_a_slot_and_set_back_repeats_one(change_s: float, step: int) -> None:
    before, after = slots_of(np.array([change_s - 1, change_s]), "Europe/Berlin", 3_600)

    assert after - before == step


def test_repeated_hour_is_one_bin_of_two_hours() -> None:
    grid = make_grid(BERLIN_BACK_S - 2 * 3_600, 60, zone="Europe/Berlin")

    assert np.diff(grid.bin_begin, append=60).tolist() == [12, 24, 12, 12]
    assert grid.bin_slot.tolist() == [145, 146, 147, 148]


def test_holiday_is_a_day_of_the_time_zone() -> None:
    grid = make_grid(MONDAY_S, 2 * 288, zone="America/New_York", holidays=(date(2026, 1, 5),))

    left_out = np.flatnonzero(~grid.is_kept)

    assert (left_out[0], left_out[-1]) == (5 * 12, 5 * 12 + 287)


def test_shortened_grid_equals_a_shorter_one() -> None:
    whole, part = make_grid(MONDAY_S, 1_000).until(500), make_grid(MONDAY_S, 500)

    assert whole.bin_begin.tolist() == part.bin_begin.tolist()
    assert whole.slot.tolist() == part.slot.tolist()
    # Ages count from the first step that was cut off, which lies within a bin's length of the cut.
    assert np.abs(whole.bin_age_days - part.bin_age_days).max() <= 3_600 / DAY_S


def test_too_many_steps_are_refused_with_the_limit() -> None:
    with pytest.raises(ValueError, match=f"more than {STEPS_MAX}"):
        make_grid(MONDAY_S, STEPS_MAX + 1)
