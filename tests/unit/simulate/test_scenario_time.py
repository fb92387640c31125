"""Moments of a scenario: days of the usage, and dates."""

from __future__ import annotations

import pytest

from multisched.simulate.scenario_time import DAY_S, format_time, parse_time

FIRST_S = 1_767_571_200
"""2026-01-05T00:00Z"""


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("day 1", "2026-01-05 00:00", "2026-01-06 00:00"),
        ("day 20", "2026-01-24 00:00", "2026-01-25 00:00"),
        ("day 20 04:30", "2026-01-24 04:30", "2026-01-24 04:30"),
        ("2026-01-24", "2026-01-24 00:00", "2026-01-25 00:00"),
        ("2026-01-24T04:00", "2026-01-24 04:00", "2026-01-24 04:00"),
        ("2026-01-24T04:00+02:00", "2026-01-24 02:00", "2026-01-24 02:00"),
    ],
)
def test_time_may_be_a_day_of_usage_or_a_date(text: str, begin: str, end: str) -> None:
    moment = parse_time(text)
    assert format_time(moment.begin_s(FIRST_S)) == begin
    assert format_time(moment.end_s(FIRST_S)) == end


@pytest.mark.parametrize("text", ["day 0", "day 1 24:00", "day 1 4:00", "tomorrow", "", "day", 20, None, "day 9999"])
def test_invalid_time_is_refused_with_the_expected_format(text: object) -> None:
    with pytest.raises(ValueError, match='write for instance "day 20"'):
        parse_time(text)


def test_days_are_numbered_from_the_first() -> None:
    assert parse_time("day 3").begin_s(FIRST_S) - FIRST_S == 2 * DAY_S
