"""Moments in a scenario file: `day 20`, `day 20 04:00`, or ISO 8601. Days count from the first day of the usage, in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import msgspec

DAY_S = 86_400
DAYS_MAX = 3_660

_DAY = re.compile(r"day (\d{1,4})(?: (\d{2}):(\d{2}))?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


class ScenarioTime(msgspec.Struct, frozen=True):
    """A day of the usage plus a time of day, or an epoch second."""

    day: int | None
    """Counted from 1; if None, `offset_s` is an epoch second."""
    offset_s: int
    is_whole_day: bool = False

    def begin_s(self, first_day_s: int) -> int:
        """Returns epoch seconds; `first_day_s` is the beginning of day 1."""
        return self.offset_s if self.day is None else first_day_s + (self.day - 1) * DAY_S + self.offset_s

    def end_s(self, first_day_s: int) -> int:
        """Returns the same as `begin_s`; for a day without a time, the end of that day."""
        return self.begin_s(first_day_s) + DAY_S * self.is_whole_day


def parse_time(text: object) -> ScenarioTime:
    """Parses a moment. Raises ValueError with the expected forms."""
    fix = 'write for instance "day 20", "day 20 04:00" or 2026-01-24T04:00'
    if not isinstance(text, str) or len(text) > 40:
        raise ValueError(f"not a moment; {fix}")
    found = _DAY.fullmatch(text)
    if found is not None:
        day, hour, minute = int(found[1]), int(found[2] or 0), int(found[3] or 0)
        if not 1 <= day <= DAYS_MAX or hour > 23 or minute > 59:
            raise ValueError(f"{text!r} is not a moment: days count from 1, times go from 00:00 to 23:59; {fix}")
        return ScenarioTime(day, hour * 3_600 + minute * 60, found[2] is None)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a moment; {fix}") from None
    return ScenarioTime(
        None, int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()), bool(_DATE.fullmatch(text))
    )


def format_time(epoch_s: float) -> str:
    """Formats a moment for reports: `2026-01-24 04:00`, in UTC."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M")
