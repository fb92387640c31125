"""Cron schedules of CronJobs: the next due time after a moment, and the last one before it.

Immutable values. They have the meaning of Kubernetes' parser (robfig/cron v3, standard five fields and descriptors). If both
day fields are restricted, a day must match either. Times in a daylight-saving gap are skipped; times that occur twice are due
twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo

YEARS_AHEAD_MAX = 5
EVERY_SECONDS_MIN = 1
_DESCRIPTORS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = {
    "jan": 1,
    "feb": 2,
    "mar": 3,
    "apr": 4,
    "may": 5,
    "jun": 6,
    "jul": 7,
    "aug": 8,
    "sep": 9,
    "oct": 10,
    "nov": 11,
    "dec": 12,
}
_WEEKDAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 6, _WEEKDAYS),
)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|m|s)")
_DURATION_SECONDS = {"h": 3600, "m": 60, "s": 1}
_WINDOWS = tuple(timedelta(hours=hours) for hours in (1, 24, 24 * 32, 24 * 366, 24 * 366 * YEARS_AHEAD_MAX))


class ScheduleError(ValueError):
    """An invalid schedule; the message names the field."""


@dataclass(frozen=True, slots=True)
class Every:
    """A schedule like `@every 1h30m`."""

    interval: timedelta

    def next_after(self, moment: datetime) -> datetime | None:
        """Returns the moment plus one interval, in whole seconds."""
        return moment.replace(microsecond=0) + self.interval

    def last_until(self, now: datetime, *, after: datetime) -> datetime | None:
        """Returns the latest time due in (after, now]; None if there is none."""
        times = (now - after) // self.interval
        return after + times * self.interval if times > 0 else None


@dataclass(frozen=True, slots=True)
class Cron:
    """A schedule of five fields in one time zone."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    days_must_agree: bool
    """One of the two day fields is unrestricted, so both must match; otherwise one match is enough."""
    zone: tzinfo

    def next_after(self, moment: datetime) -> datetime | None:
        """Returns the first time due after `moment`, in UTC; None if there is none within five years (February 30)."""
        local = moment.astimezone(self.zone)
        day, last = local.date(), date(min(local.year + YEARS_AHEAD_MAX, 9998), 12, 31)
        while day <= last:
            if day.month not in self.months:
                day = _next_month(day)
                continue
            if self._is_on(day):
                due = self._first_on(day, moment)
                if due is not None:
                    return due
            day += timedelta(days=1)
        return None

    def last_until(self, now: datetime, *, after: datetime) -> datetime | None:
        """Returns the latest time due in (after, now]; None if there is none. Searches near `now` first: `after` may be years ago."""
        for window in _WINDOWS:
            start = max(after, now - window)
            found, due = None, self.next_after(start)
            while due is not None and due <= now:
                found, due = due, self.next_after(due)
            if found is not None or start == after:
                return found
        return None

    def _is_on(self, day: date) -> bool:
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_day and by_weekday if self.days_must_agree else by_day or by_weekday

    def _first_on(self, day: date, moment: datetime) -> datetime | None:
        for hour in self.hours:
            due = min((time for time in self._times(day, hour) if time > moment), default=None)
            if due is not None:
                return due
        return None

    def _times(self, day: date, hour: int) -> Iterator[datetime]:
        """Yields the existing times of an hour, in UTC; both where a local time occurs twice."""
        for minute in self.minutes:
            for fold in (0, 1):
                local = datetime(day.year, day.month, day.day, hour, minute, fold=fold, tzinfo=self.zone)
                time = local.astimezone(UTC)
                if time.astimezone(self.zone).replace(tzinfo=None, fold=0) == local.replace(tzinfo=None, fold=0):
                    yield time


Schedule = Cron | Every


def parse_schedule(text: str, *, zone: tzinfo = UTC) -> Schedule:
    """Parses a schedule. Raises ScheduleError."""
    text = text.strip()
    if text.startswith("@every "):
        return Every(_interval(text.removeprefix("@every ").strip()))
    if text.startswith("@"):
        if text not in _DESCRIPTORS:
            raise ScheduleError(f"{text!r} is not known; write @every DURATION or one of {', '.join(_DESCRIPTORS)}")
        text = _DESCRIPTORS[text]
    parts = text.split()
    if len(parts) != len(_FIELDS):
        raise ScheduleError(f"expected {len(_FIELDS)} fields, found {len(parts)}: {text!r}")
    minutes, hours, days, months, weekdays = (
        _values(part, name, low, high, names) for part, (name, low, high, names) in zip(parts, _FIELDS, strict=True)
    )
    return Cron(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        frozenset(days),
        frozenset(months),
        frozenset(weekdays),
        days_must_agree=_is_unrestricted(parts[2]) or _is_unrestricted(parts[4]),
        zone=zone,
    )


def _interval(text: str) -> timedelta:
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ScheduleError(f"{text!r} is not a duration; write for example 1h30m")
    seconds = sum(float(number) * _DURATION_SECONDS[unit] for number, unit in parts)
    return timedelta(seconds=max(EVERY_SECONDS_MIN, int(seconds)))


def _is_unrestricted(part: str) -> bool:
    """Reports whether a day field is unrestricted; a star with a step restricts, as upstream."""
    return any(piece in ("*", "?", "*/1", "?/1") for piece in part.split(","))


def _values(part: str, name: str, low: int, high: int, names: dict[str, int]) -> set[int]:
    values: set[int] = set()
    for piece in part.split(","):
        span, slash, step_text = piece.partition("/")
        step = _number(step_text, name, {}) if slash else 1
        if span in ("*", "?"):
            first, last = low, high
        else:
            first_text, dash, last_text = span.partition("-")
            first = _number(first_text, name, names)
            last = _number(last_text, name, names) if dash else high if slash else first
        if not (low <= first <= last <= high and step > 0):
            raise ScheduleError(f"{name}: {piece!r} is out of range; write {low} to {high}")
        values |= set(range(first, last + 1, step))
    return values


def _number(text: str, name: str, names: dict[str, int]) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    number = names.get(text.lower())
    if number is None:
        raise ScheduleError(f"{name}: {text!r} is not a number")
    return number


def _next_month(day: date) -> date:
    return date(day.year + day.month // 12, day.month % 12 + 1, 1)
