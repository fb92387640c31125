"""When cron schedules are due, as robfig/cron v3 reads them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.cron_schedule import ScheduleError, parse_schedule

NEW_YORK = ZoneInfo("America/New_York")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


@pytest.mark.parametrize(
    ("schedule", "after", "due"),
    [
        ("* * * * *", "2026-01-01T00:00:30+00:00", "2026-01-01T00:01:00+00:00"),
        ("*/15 * * * *", "2026-01-01T00:45:00+00:00", "2026-01-01T01:00:00+00:00"),
        ("5-10/2 3 * * *", "2026-01-01T03:05:00+00:00", "2026-01-01T03:07:00+00:00"),
        ("20/20 * * * *", "2026-01-01T00:41:00+00:00", "2026-01-01T01:20:00+00:00"),
        ("0 0 1 jan *", "2026-01-01T00:00:00+00:00", "2027-01-01T00:00:00+00:00"),
        ("0 12 * * MON-FRI", "2026-01-02T12:00:00+00:00", "2026-01-05T12:00:00+00:00"),
        ("0 0 13 * fri", "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"),
        ("0 0 13 * *", "2026-01-01T00:00:00+00:00", "2026-01-13T00:00:00+00:00"),
        ("0 0 29 2 *", "2026-01-01T00:00:00+00:00", "2028-02-29T00:00:00+00:00"),
        ("@weekly", "2026-01-01T00:00:00+00:00", "2026-01-04T00:00:00+00:00"),
        ("@every 1h30m", "2026-01-01T00:00:00+00:00", "2026-01-01T01:30:00+00:00"),
    ],
)
def test_next_time_of_a_schedule_is_computed(schedule: str, after: str, due: str) -> None:
    assert parse_schedule(schedule).next_after(at(after)) == at(due)


@pytest.mark.parametrize(
    ("schedule", "after", "due"),
    [
        pytest.param("30 2 * * *", "2012-03-10T23:00:00-05:00", "2012-03-12T02:30:00-04:00", id="a gap is left out"),
        pytest.param("0 1 * * *", "2012-11-04T00:00:00-04:00", "2012-11-04T01:00:00-04:00", id="shown twice, first"),
        pytest.param("0 1 * * *", "2012-11-04T01:00:00-04:00", "2012-11-04T01:00:00-05:00", id="shown twice, second"),
        pytest.param("0 * * * *", "2012-11-04T01:00:00-05:00", "2012-11-04T02:00:00-05:00", id="and on"),
    ],
)
def test_schedule_handles_daylight_saving_changes(schedule: str, after: str, due: str) -> None:
    assert parse_schedule(schedule, zone=NEW_YORK).next_after(at(after)) == at(due)


def test_schedule_on_an_impossible_day_is_never_due() -> None:
    assert parse_schedule("0 0 30 2 *").next_after(at("2026-01-01T00:00:00+00:00")) is None


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("* * * *", "expected 5 fields, found 4"),
        ("60 * * * *", "minute: '60' is out of range"),
        ("* * * * 7", "day of week: '7' is out of range"),
        ("*/0 * * * *", "minute"),
        ("5-1 * * * *", "out of range"),
        ("a * * * *", "minute: 'a' is not a number"),
        ("@sometimes", "@sometimes"),
        ("@every soon", "not a duration"),
    ],
)
def test_an_unreadable_schedule_names_its_field(schedule: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        parse_schedule(schedule)


@given(
    schedule=st.sampled_from(["*/7 * * * *", "0 3 * * *", "15 4 1 * *", "0 0 * * sun", "@every 45m"]),
    minutes=st.integers(0, 60 * 24 * 40),
    start=st.integers(0, 60 * 24 * 365),
)
def test_last_time_equals_the_last_of_all_next_times(schedule: str, minutes: int, start: int) -> None:
    after = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=start)
    now = after + timedelta(minutes=minutes)
    parsed = parse_schedule(schedule)
    expected, due = None, parsed.next_after(after)
    while due is not None and due <= now and minutes <= 60 * 24:
        expected, due = due, parsed.next_after(due)
    last = parsed.last_until(now, after=after)

    if minutes <= 60 * 24:
        assert last == expected
    elif last is not None:
        following = parsed.next_after(last)
        assert after < last <= now
        assert following is None or following > now
