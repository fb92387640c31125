"""Trough windows: across midnight, across clock changes, and what a wrong one is told."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from domains.forecast.settings.windows import TroughWindows
from multisched.framework.plugin_args import PluginArgsError
from multisched.framework.weekly_hours import DAYS

BERLIN = "Europe/Berlin"
SPRING, AUTUMN = date(2026, 3, 29), date(2026, 10, 25)
"""Sundays: in Berlin 02:00 to 03:00 does not exist on the first, and comes twice on the second."""


def windows(text: str) -> TroughWindows:
    return TroughWindows.from_config(yaml.safe_load(text))


def at(text: str, zone: str = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def utc(text: str) -> float:
    return at(text, "UTC")


def test_a_window_is_open_from_its_first_moment_until_just_before_its_last() -> None:
    trough = windows('{days: [mon, tue], from: "01:00", to: "05:00", zone: Europe/Berlin}')
    monday = at("2026-06-01 01:00")
    assert not trough.is_open(monday - 1)
    assert trough.is_open(monday)
    assert trough.is_open(monday + 4 * 3600 - 1)
    assert not trough.is_open(monday + 4 * 3600)
    assert trough.closes(monday) == monday + 4 * 3600
    assert trough.closes(monday - 1) is None
    assert trough.next_open(monday - 1) == monday
    assert trough.next_open(monday + 7) == monday + 7
    assert trough.next_open(at("2026-06-02 05:00")) == at("2026-06-08 01:00")


def test_a_window_that_crosses_midnight_belongs_to_the_day_on_which_it_opens() -> None:
    trough = windows('{days: [fri], from: "23:00", to: "03:00", zone: Europe/Berlin}')
    assert trough.is_open(at("2026-06-05 23:00"))
    assert trough.is_open(at("2026-06-06 02:59"))
    assert not trough.is_open(at("2026-06-05 02:00"))
    assert not trough.is_open(at("2026-06-06 23:30"))
    assert trough.closes(at("2026-06-05 23:30")) == at("2026-06-06 03:00")


@pytest.mark.parametrize(
    ("begins", "ends", "opens", "closes"),
    [
        ("01:00", "05:00", "2026-03-29 00:00", "2026-03-29 03:00"),
        ("02:30", "05:00", "2026-03-29 01:00", "2026-03-29 03:00"),
        ("00:30", "02:30", "2026-03-28 23:30", "2026-03-29 01:00"),
        ("02:00", "04:00", "2026-03-29 01:00", "2026-03-29 02:00"),
    ],
)
def test_skipped_hour_ends_at_the_clock_change(begins: str, ends: str, opens: str, closes: str) -> None:
    trough = windows(f'{{days: [sun], from: "{begins}", to: "{ends}", zone: {BERLIN}}}')
    assert trough.next_open(utc("2026-03-28 12:00")) == utc(opens)
    assert trough.closes(utc(opens)) == utc(closes)


def test_window_inside_a_skipped_hour_opens_next_week() -> None:
    trough = windows(f'{{days: [sun], from: "02:10", to: "02:50", zone: {BERLIN}}}')
    assert trough.next_open(utc("2026-03-28 12:00")) == at("2026-04-05 02:10")


@pytest.mark.parametrize(
    ("begins", "ends", "opens", "closes"),
    [
        ("01:00", "05:00", "2026-10-24 23:00", "2026-10-25 04:00"),
        ("02:30", "05:00", "2026-10-25 01:30", "2026-10-25 04:00"),
        ("00:30", "02:30", "2026-10-24 22:30", "2026-10-25 00:30"),
        ("02:10", "02:50", "2026-10-25 00:10", "2026-10-25 00:50"),
    ],
)
def test_repeated_hour_opens_a_window_once(begins: str, ends: str, opens: str, closes: str) -> None:
    trough = windows(f'{{days: [sun], from: "{begins}", to: "{ends}", zone: {BERLIN}}}')
    assert trough.next_open(utc("2026-10-24 12:00")) == utc(opens)
    assert trough.closes(utc(opens)) == utc(closes)
    assert trough.next_open(utc(closes)) == at(f"2026-11-01 {begins}")


def test_day_skipped_by_a_time_zone_opens_no_window() -> None:
    trough = windows('{days: [fri], from: "01:00", to: "05:00", zone: Pacific/Apia}')
    assert trough.next_open(at("2011-12-29 12:00", "Pacific/Apia")) == at("2012-01-06 01:00", "Pacific/Apia")


def test_adjacent_windows_close_together_with_separate_budgets() -> None:
    trough = windows('[{days: [mon], from: "20:00", to: "24:00"}, {days: [tue], from: "00:00", to: "04:00"}]')
    monday, midnight = utc("2026-06-01 21:00"), utc("2026-06-02 00:00")
    assert trough.closes(monday) == utc("2026-06-02 04:00")
    span = trough.span(monday)
    assert span is not None
    assert span.closes_s == midnight
    later = trough.span(midnight)
    assert later is not None
    assert later.opens_s == midnight


def test_windows_without_a_gap_are_followed_for_a_week() -> None:
    trough = windows('{from: "00:00", to: "24:00"}')
    now = utc("2026-06-01 12:00")
    end = trough.closes(now)
    assert end is not None
    assert end >= now + 7 * 86_400


minutes = st.integers(0, 1439)
zones = st.sampled_from([BERLIN, "America/New_York", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Kolkata", "UTC"])
changes = st.sampled_from([SPRING, AUTUMN, date(2026, 3, 8), date(2026, 11, 1), date(2018, 11, 4), date(2026, 4, 5)])


def reading(epoch_s: float, zone: str) -> int:
    local = datetime.fromtimestamp(epoch_s, ZoneInfo(zone))
    return local.hour * 60 + local.minute


@given(minutes, minutes, zones, changes, st.sets(st.sampled_from(DAYS), min_size=1), st.integers(-24, 48))
def test_open_window_contains_the_local_time(
    begins: int, ends: int, zone: str, change: date, days: set[str], hour: int
) -> None:
    if begins == ends:
        ends = (begins + 30) % 1440
    words: dict[str, Any] = {"days": sorted(days), "zone": zone}
    words |= {"from": f"{begins // 60:02}:{begins % 60:02}", "to": f"{ends // 60:02}:{ends % 60:02}"}
    trough = TroughWindows.from_config([words])
    start = datetime(change.year, change.month, change.day, tzinfo=ZoneInfo(zone)).timestamp() + hour * 3600
    for now in (start + 600 * step for step in range(36)):
        clock = reading(now, zone)
        inside = begins <= clock < ends if begins < ends else (clock >= begins or clock < ends)
        local = datetime.fromtimestamp(now, ZoneInfo(zone))
        day = local - timedelta(days=1) if begins > ends and clock < ends else local
        assert not trough.is_open(now) or (inside and DAYS[day.weekday()] in days)
        opens, closes = trough.next_open(now), trough.closes(now)
        assert opens is not None
        assert trough.is_open(opens)
        assert (opens == now) == trough.is_open(now) == (closes is not None)
        assert opens == now or not trough.is_open((now + opens) / 2)
        if closes is not None:
            assert trough.is_open((now + closes) / 2)
            assert not trough.is_open(closes)


@given(minutes, st.integers(1, 1439), zones, changes)
def test_each_day_opens_at_most_once_for_its_length_within_an_hour(
    begins: int, length: int, zone: str, change: date
) -> None:
    ends = (begins + length) % 1440
    words = {"from": f"{begins // 60:02}:{begins % 60:02}", "to": f"{ends // 60:02}:{ends % 60:02}", "zone": zone}
    trough = TroughWindows.from_config(words)
    spans = list(trough.windows[0].spans(change - timedelta(days=3), 7))
    dates = [datetime.fromtimestamp(span.opens_s, ZoneInfo(zone)).date() for span in spans]
    assert len(set(dates)) == len(dates) >= 6
    assert all(abs(span.closes_s - span.opens_s - length * 60) <= 3600 for span in spans)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3", "windows: 3 is not a list of windows"),
        ("[]", "windows: empty, so repair would never run"),
        ("[night]", "windows[0]: is a text; write a mapping with days, from, to, zone"),
        (
            '{from: "01:00", until: "05:00"}',
            "windows[0].until: unknown field; remove it; known here: days, from, to, zone",
        ),
        ('{from: "01:00"}', 'windows[0].to: missing; write a time such as to: "01:00"'),
        ('{from: 13:00, to: "15:00"}', 'windows[0].from: 780 is a number; write the time in quotes: "13:00"'),
        ('{from: "1 am", to: "15:00"}', "windows[0].from: '1 am' is not a time"),
        ('{from: "25:00", to: "15:00"}', "windows[0].from: '25:00' is not on the clock"),
        ('{from: "24:00", to: "15:00"}', "windows[0].from: must be before 24:00"),
        ('{from: "01:00", to: "01:00"}', "windows[0].to: the same as from"),
        ('{days: [], from: "01:00", to: "02:00"}', "windows[0].days: is empty"),
        ('{days: [monday], from: "01:00", to: "02:00"}', "windows[0].days: 'monday' is not a day"),
        ('{days: [[mon]], from: "01:00", to: "02:00"}', "windows[0].days[0]: is a list; write a text"),
        ('{days: [mon, mon], from: "01:00", to: "02:00"}', "windows[0].days[1]: names mon twice"),
        ('{from: "01:00", to: "02:00", zone: Berlin}', "windows[0].zone: 'Berlin' is not a known time zone"),
        ('{from: "01:00", to: "02:00", zone: Europe}', "windows[0].zone: 'Europe' is not a known time zone"),
        (
            '{from: "01:00", to: "02:00", zone: /etc/passwd}',
            "windows[0].zone: '/etc/passwd' is not a known time zone",
        ),
        ('{from: "01:00", to: "02:00", zone: 2}', "windows[0].zone: 2 is not text"),
    ],
)
def test_invalid_window_is_reported_with_field_and_fix(text: str, message: str) -> None:
    with pytest.raises(PluginArgsError) as error:
        windows(text)
    assert str(error.value).startswith(message)
    assert ";" in str(error.value)


def test_time_in_milliseconds_is_refused() -> None:
    trough = windows('{from: "01:00", to: "02:00"}')
    with pytest.raises(ValueError, match="milliseconds"):
        trough.is_open(1.7e12)
