"""Reads hours of the week from args: `{days: [mon, tue], from: "01:00", to: "05:00"}`. Every problem names the field and the fix."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from multisched.framework.plugin_args import Fields

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES: Final = 1_440
_TIME: Final = re.compile(r"(\d{1,2}):(\d{2})", re.ASCII)


class DayHours(NamedTuple):
    """Hours that begin on one day, in minutes after its midnight."""

    from_minute: int
    """0..1439."""
    to_minute: int
    """After `from_minute`; above 1440 if the hours end on the next day."""


def read_hours(fields: Fields, example: str) -> DayHours:
    """Reads the fields `from` and `to`; `to` may be on the next day. The result is meaningless if a problem was recorded.

    `example`: a time for messages.
    """
    begins, ends = _minute(fields, "from", example), _minute(fields, "to", example)
    if begins == DAY_MINUTES:
        fields.refuse("from", 'must be before 24:00; write "00:00" and the day after')
    if begins == ends and not fields.is_refused():
        fields.refuse("to", 'the same as from; write from: "00:00", to: "24:00" for a whole day')
    return DayHours(begins, ends if ends > begins else ends + DAY_MINUTES)


def read_days(fields: Fields) -> tuple[int, ...]:
    """Reads the field `days`: 0 is Monday; all days by default."""
    if not fields.has("days"):
        return tuple(range(len(DAYS)))
    named = fields.names("days", len(DAYS))
    for name in named:
        if name not in DAYS:
            fields.refuse("days", f"{name!r} is not a day; write some of [{', '.join(DAYS)}]")
    if not named:
        fields.refuse("days", f"is empty; write some of [{', '.join(DAYS)}], or remove it")
    return tuple(sorted(DAYS.index(name) for name in named if name in DAYS))


def _minute(fields: Fields, word: str, example: str) -> int:
    value = fields.value(word)
    if value is None:
        fields.refuse(word, f'missing; write a time such as {word}: "{example}"')
        return 0
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= DAY_MINUTES:
        hour, minute = divmod(value, 60)  # YAML 1.1 reads 13:00 without quotes as the number 780
        fields.refuse(word, f'{value} is a number; write the time in quotes: "{hour:02}:{minute:02}"')
        return 0
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        fields.refuse(word, f'{value!r} is not a time; write hours and minutes in quotes: "{example}"')
        return 0
    hour, minute = int(found[1]), int(found[2])
    if minute > 59 or hour * 60 + minute > DAY_MINUTES:
        fields.refuse(word, f'{value!r} is not on the clock; write "00:00" to "24:00"')
        return 0
    return hour * 60 + minute
