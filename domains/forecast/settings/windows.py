"""Trough windows: when repair may move pods. Read from configuration words, asked by epoch seconds; immutable, no clock.

A window is `{days: [mon, tue], from: "01:00", to: "05:00", zone: Europe/Berlin}`. It opens on each of its days when the
clock on that zone's wall reads `from` and closes when it reads `to`. If `to` is not after `from`, it closes on the next
day: a window of Friday 23:00 to 03:00 ends on Saturday. When clocks change, three things hold:

- while a window is open, the clock on the wall always reads a time inside it;
- it opens at most once for each of its days, so a budget per window is never granted twice;
- a time that does not exist is passed at the moment the clocks jump over it. `from: "02:30"` opens then, `to: "02:30"`
  closes then. A window that lies wholly in the missing hour does not open that night.

Some hours come twice. A window that begins in such an hour opens the second time. One that ends in it closes the first
time. One that lies wholly in it is open the first time only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from multisched.framework.plugin_args import ArgsProblem, Fields, PluginArgsError

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
WINDOWS_MAX: Final = 100
AHEAD_DAYS_MAX: Final = 21
"""How far ahead an opening is looked for: a window of one day a week that a clock change swallows opens a week later."""
MERGED_DAYS_MAX: Final = 8
"""How far ahead windows that follow one another without a gap are followed."""
EPOCH_S_MAX: Final = 100_000_000_000.0
"""About the year 5138; beyond it dates end."""
_DAY_MINUTES: Final = 1_440
_WORDS: Final = ("days", "from", "to", "zone")
_TIME: Final = re.compile(r"(\d{1,2}):(\d{2})", re.ASCII)


class Window(msgspec.Struct, frozen=True):
    """One line of the configuration, checked."""

    days: tuple[int, ...]
    """On which it opens; 0 is Monday."""
    from_minute: int
    """Of the day, 0..1439."""
    to_minute: int
    """Counted from the same midnight: more than a day where the window crosses midnight."""
    zone: str

    def spans(self, first: date, days: int) -> Iterator[Span]:
        """What opens on `days` days from the first on, in that order; days on which it does not open are left out."""
        zone = ZoneInfo(self.zone)
        for day in (first + timedelta(days=number) for number in range(days)):
            if day.weekday() in self.days:
                span = _span(day, self.from_minute, self.to_minute, zone)
                if span.closes_s > span.opens_s:
                    yield span


class Span(msgspec.Struct, frozen=True, order=True):
    """One opening, in epoch seconds: open from the first moment on, closed from the second."""

    opens_s: float
    closes_s: float


class TroughWindows(msgspec.Struct, frozen=True):
    """All windows of a configuration: open while at least one is."""

    windows: tuple[Window, ...]

    @classmethod
    def from_config(cls, value: object, path: str = "windows") -> TroughWindows:
        """A list of windows, or one. Raises PluginArgsError, with the field and the fix of all that is wrong."""
        if isinstance(value, Mapping):
            value = [value]
        example = '[{days: [sat, sun], from: "01:00", to: "05:00", zone: Europe/Berlin}]'
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise PluginArgsError.at(path, f"{value!r} is no list of windows; write for instance {example}")
        if not value:
            raise PluginArgsError.at(path, f"empty, so that nothing is ever repaired; write for instance {example}")
        if len(value) > WINDOWS_MAX:
            raise PluginArgsError.at(path, f"{len(value)} windows, more than {WINDOWS_MAX}; merge some")
        problems: list[ArgsProblem] = []
        windows = [_read_window(Fields(one, f"{path}[{n}]", _WORDS, problems)) for n, one in enumerate(value)]
        if problems:
            raise PluginArgsError(problems)
        return cls(tuple(windows))

    def is_open(self, epoch_s: float) -> bool:
        return self.span(epoch_s) is not None

    def span(self, epoch_s: float) -> Span | None:
        """The opening that a budget per window counts for: of those open now, the one that opened last; None if closed."""
        return max((span for span in self._around(epoch_s) if span.opens_s <= epoch_s < span.closes_s), default=None)

    def next_open(self, epoch_s: float) -> float | None:
        """When repair may begin: now if a window is open, else the next opening. None: not within three weeks."""
        coming = (span for span in self._around(epoch_s, AHEAD_DAYS_MAX) if span.closes_s > epoch_s)
        first = min(coming, default=None)
        return None if first is None else max(first.opens_s, epoch_s)

    def closes(self, epoch_s: float) -> float | None:
        """When repair has to be over: windows that touch count as one; at most eight days ahead. None if closed now."""
        end = None
        for span in sorted(self._around(epoch_s, MERGED_DAYS_MAX)):
            if span.opens_s <= (epoch_s if end is None else end) and span.closes_s > (epoch_s if end is None else end):
                end = span.closes_s
        return end

    def _around(self, epoch_s: float, ahead_days: int = 1) -> Iterator[Span]:
        """Every opening that may touch the time from now to so many days ahead."""
        if not 0 <= epoch_s <= EPOCH_S_MAX:
            raise ValueError(f"epoch_s: {epoch_s} is no moment after 1970 in seconds; milliseconds?")
        today = datetime.fromtimestamp(epoch_s, UTC).date()
        for window in self.windows:  # a window spans two dates, and a zone is a date off UTC at most
            yield from window.spans(today - timedelta(days=3), ahead_days + 5)


def _span(day: date, from_minute: int, to_minute: int, zone: ZoneInfo) -> Span:
    begins, ends = _moments(day, from_minute, zone), _moments(day, to_minute, zone)
    if len(begins) > 1 and len(ends) > 1:
        return Span(begins[0], ends[0])  # wholly inside the hour that comes twice, unless it comes twice on two days
    return Span(begins[-1], ends[0])


def _moments(day: date, minute: int, zone: ZoneInfo) -> tuple[float, ...]:
    """When the clock reads this: two moments in an hour that comes twice; for one that never does, when it is jumped over."""
    midnight = datetime(day.year, day.month, day.day)
    reading = midnight + timedelta(minutes=minute)
    early, late = (reading.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    if early == late:
        return (early,)
    if early < late:
        return (early, late)
    return (_jump(int(late), int(early), zone),)


def _jump(low: int, high: int, zone: ZoneInfo) -> float:
    """The second between the two at which the zone's offset changes."""
    before = datetime.fromtimestamp(low, zone).utcoffset()
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    return float(high)


def _read_window(fields: Fields) -> Window:
    """Notes what is wrong in `fields`; what it returns then is none."""
    begins, ends = _minute(fields, "from"), _minute(fields, "to")
    if begins == _DAY_MINUTES:
        fields.refuse("from", 'no day begins at 24:00; write "00:00" and the day after')
    if begins == ends and not fields.is_refused():
        fields.refuse("to", 'the same as from; write from: "00:00", to: "24:00" for a whole day')
    zone = fields.text("zone", "UTC")
    if why := why_no_zone(zone):
        fields.refuse("zone", why)
    return Window(_days(fields), begins, ends if ends > begins else ends + _DAY_MINUTES, zone)


def _minute(fields: Fields, word: str) -> int:
    value = fields.value(word)
    if value is None:
        fields.refuse(word, f'missing; write a time such as {word}: "01:00"')
        return 0
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _DAY_MINUTES:
        hour, minute = divmod(value, 60)  # YAML 1.1 reads 13:00 without quotes as the number 780
        fields.refuse(word, f'{value} is a number; write the time in quotes: "{hour:02}:{minute:02}"')
        return 0
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        fields.refuse(word, f'{value!r} is no time; write hours and minutes in quotes: "01:00"')
        return 0
    hour, minute = int(found[1]), int(found[2])
    if minute > 59 or hour * 60 + minute > _DAY_MINUTES:
        fields.refuse(word, f'{value!r} is not on the clock; write "00:00" to "24:00"')
        return 0
    return hour * 60 + minute


def _days(fields: Fields) -> tuple[int, ...]:
    if not fields.has("days"):
        return tuple(range(len(DAYS)))
    named = fields.names("days", len(DAYS))
    for name in named:
        if name not in DAYS:
            fields.refuse("days", f"{name!r} is no day; write some of [{', '.join(DAYS)}]")
    if not named:
        fields.refuse("days", f"names no day; write some of [{', '.join(DAYS)}], or leave it out")
    return tuple(sorted(DAYS.index(name) for name in named if name in DAYS))


def why_no_zone(name: str) -> str:
    """Why the name is no time zone, and what to write; empty for one that is."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return f"{name!r} is no time zone known here; write an IANA name such as Europe/Berlin"
    return ""
