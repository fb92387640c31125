"""Trough windows: times of low load in which repair may move pods. Immutable; queried with epoch seconds, reads no clock.

A window is `{days: [mon, tue], from: "01:00", to: "05:00", zone: Europe/Berlin}`. It opens on each of its days at `from`
and closes at `to`, in wall time of the zone. If `to` is not after `from`, it closes on the next day: a window of Friday
23:00 to 03:00 ends on Saturday. Guarantees when clocks change:

- while a window is open, the wall time is always inside it;
- it opens at most once for each of its days, so a budget per window is never granted twice;
- a wall time that is skipped counts as reached when the clocks jump over it: `from: "02:30"` opens then, `to: "02:30"`
  closes then. A window entirely within the skipped hour does not open on that day.

If an hour occurs twice, a window that begins in it opens the second time; a window that ends in it closes the first
time; a window entirely within it is open the first time only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from multisched.forecasting.time_zones import why_no_zone
from multisched.framework.plugin_args import ArgsProblem, Fields, PluginArgsError
from multisched.framework.weekly_hours import read_days, read_hours

WINDOWS_MAX: Final = 100
AHEAD_DAYS_MAX: Final = 21
"""Days ahead searched for the next opening; a weekly window can be skipped once by a clock change."""
MERGED_DAYS_MAX: Final = 8
"""Days ahead in which windows without gaps between them are merged."""
EPOCH_S_MAX: Final = 100_000_000_000.0
"""About the year 5138; rejects milliseconds, and dates that datetime cannot represent."""
_WORDS: Final = ("days", "from", "to", "zone")


class Window(msgspec.Struct, frozen=True):
    """A configured window, checked."""

    days: tuple[int, ...]
    """Weekdays on which it opens; 0 is Monday."""
    from_minute: int
    """Minute of the day, 0..1439."""
    to_minute: int
    """Counted from the same midnight as `from_minute`; at least 1440 if the window crosses midnight."""
    zone: str

    def spans(self, first: date, days: int) -> Iterator[Span]:
        """Yields the openings on `days` days from `first` on, in order; skips days on which it does not open."""
        zone = ZoneInfo(self.zone)
        for day in (first + timedelta(days=number) for number in range(days)):
            if day.weekday() in self.days:
                span = _span(day, self.from_minute, self.to_minute, zone)
                if span.closes_s > span.opens_s:
                    yield span


class Span(msgspec.Struct, frozen=True, order=True):
    """One opening: the half-open interval [opens_s, closes_s) in epoch seconds."""

    opens_s: float
    closes_s: float


class TroughWindows(msgspec.Struct, frozen=True):
    """All configured windows; open while at least one window is open."""

    windows: tuple[Window, ...]

    @classmethod
    def from_config(cls, value: object, path: str = "windows") -> TroughWindows:
        """Parses a window or a list of windows. Raises PluginArgsError with all problems, each with its field and fix."""
        if isinstance(value, Mapping):
            value = [value]
        example = '[{days: [sat, sun], from: "01:00", to: "05:00", zone: Europe/Berlin}]'
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise PluginArgsError.at(path, f"{value!r} is not a list of windows; write for instance {example}")
        if not value:
            raise PluginArgsError.at(path, f"empty, so repair would never run; write for instance {example}")
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
        """Returns the current opening, for budgets per window: the last opened one if several are open; None if closed."""
        return max((span for span in self._around(epoch_s) if span.opens_s <= epoch_s < span.closes_s), default=None)

    def next_open(self, epoch_s: float) -> float | None:
        """Returns when repair may begin: now if a window is open, else the next opening; None if none within three weeks."""
        coming = (span for span in self._around(epoch_s, AHEAD_DAYS_MAX) if span.closes_s > epoch_s)
        first = min(coming, default=None)
        return None if first is None else max(first.opens_s, epoch_s)

    def closes(self, epoch_s: float) -> float | None:
        """Returns when the current opening ends, merged with adjacent ones up to eight days ahead; None if closed now."""
        end = None
        for span in sorted(self._around(epoch_s, MERGED_DAYS_MAX)):
            if span.opens_s <= (epoch_s if end is None else end) and span.closes_s > (epoch_s if end is None else end):
                end = span.closes_s
        return end

    def _around(self, epoch_s: float, ahead_days: int = 1) -> Iterator[Span]:
        """Yields all openings that may overlap the time from now to `ahead_days` days ahead."""
        if not 0 <= epoch_s <= EPOCH_S_MAX:
            raise ValueError(f"epoch_s must be seconds since 1970, got {epoch_s}; is it in milliseconds?")
        today = datetime.fromtimestamp(epoch_s, UTC).date()
        for window in self.windows:  # a window spans two dates, and local dates differ from UTC by at most one
            yield from window.spans(today - timedelta(days=3), ahead_days + 5)


def _span(day: date, from_minute: int, to_minute: int, zone: ZoneInfo) -> Span:
    begins, ends = _moments(day, from_minute, zone), _moments(day, to_minute, zone)
    if len(begins) > 1 and len(ends) > 1:
        return Span(begins[0], ends[0])  # both times occur twice: the window is within the repeated hour
    return Span(begins[-1], ends[0])


def _moments(day: date, minute: int, zone: ZoneInfo) -> tuple[float, ...]:
    """Returns the moments of a wall time: two in a repeated hour; for a skipped time the moment of the jump."""
    midnight = datetime(day.year, day.month, day.day)
    reading = midnight + timedelta(minutes=minute)
    early, late = (reading.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    if early == late:
        return (early,)
    if early < late:
        return (early, late)
    return (_jump(int(late), int(early), zone),)


def _jump(low: int, high: int, zone: ZoneInfo) -> float:
    """Returns the second in [low, high] at which the zone's offset changes."""
    before = datetime.fromtimestamp(low, zone).utcoffset()
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    return float(high)


def _read_window(fields: Fields) -> Window:
    """Parses a window; records problems in `fields`, and the result is then meaningless."""
    hours = read_hours(fields, "01:00")
    zone = fields.text("zone", "UTC")
    if why := why_no_zone(zone):
        fields.refuse("zone", why)
    return Window(read_days(fields), *hours, zone)
