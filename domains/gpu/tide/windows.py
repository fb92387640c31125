"""Windows: how many cards inference needs at which times of the week, stated by a person for times without history.

    zone: Europe/Berlin
    windows: [{days: [mon, tue], from: "07:00", to: "19:00", cards: 600}]      # days: default all

Outside of all windows the floor counts. Immutable; queried with epoch seconds, reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from domains.gpu.tide.state import DemandForecast, ForecastOrigin
from multisched.forecasting.time_zones import why_no_zone
from multisched.framework.plugin_args import Fields
from multisched.framework.weekly_hours import DAY_MINUTES, DAYS, read_days, read_hours

WINDOWS_MAX: Final = 100
WEEK_MINUTES: Final = 7 * DAY_MINUTES
STEP_S: Final = 300.0
AHEAD_STEPS: Final = 288
"""24 h."""


class DemandWindow(msgspec.Struct, frozen=True):
    """One window; it may cross midnight."""

    days: tuple[int, ...]
    """Weekdays on which it begins; 0 is Monday."""
    from_minute: int
    """Minute of the day, 0..1439."""
    to_minute: int
    """Counted from the same midnight as `from_minute`, and after it."""
    cards: int

    def minutes(self) -> list[range]:
        """Returns the minutes of the week that it covers; those of Monday may follow those of Sunday."""
        found = []
        for day in self.days:
            begin, end = day * DAY_MINUTES + self.from_minute, day * DAY_MINUTES + self.to_minute
            found.append(range(begin, min(end, WEEK_MINUTES)))
            found.append(range(0, max(0, end - WEEK_MINUTES)))
        return [one for one in found if one]


class DemandWindows(msgspec.Struct, frozen=True):
    """All windows, which do not overlap, in the wall time of one zone."""

    windows: tuple[DemandWindow, ...]
    zone: str = "UTC"

    def cards(self, epoch_s: float) -> int:
        """Returns the cards of the window that is open at that moment; 0 if none is."""
        local = datetime.fromtimestamp(epoch_s, ZoneInfo(self.zone))
        minute = local.weekday() * DAY_MINUTES + local.hour * 60 + local.minute
        return next((one.cards for one in self.windows if any(minute in part for part in one.minutes())), 0)

    def forecast(self, now_s: float) -> DemandForecast:
        """Returns the levels of the next 24 h in steps of five minutes; nothing above a level was to be expected."""
        begin_s = now_s - now_s % STEP_S
        cards = tuple(float(self.cards(begin_s + STEP_S * number)) for number in range(AHEAD_STEPS + 1))
        return DemandForecast(begin_s, STEP_S, cards, cards, 0.0, ForecastOrigin.WINDOWS)


def read_windows(fields: Fields, cards_max: int) -> DemandWindows | None:
    """Reads the fields `windows` and `zone`; records problems in `fields`. Returns None without windows."""
    zone = fields.text("zone", "UTC")
    if why := why_no_zone(zone):
        fields.refuse("zone", why)
        zone = "UTC"
    entries = fields.entries("windows", ("days", "from", "to", "cards"), WINDOWS_MAX)
    if fields.has("windows") and not entries and not fields.is_refused("windows"):
        fields.refuse(
            "windows", "is empty; write for instance [{from: '07:00', to: '19:00', cards: 600}], or remove it"
        )
    found = [_read_window(one, cards_max) for one in entries]
    if not fields.is_refused("windows"):
        _refuse_overlaps(entries, found)
    return DemandWindows(tuple(found), zone) if found else None


def _read_window(fields: Fields, cards_max: int) -> DemandWindow:
    hours = read_hours(fields, "07:00")
    if not fields.has("cards"):
        fields.refuse("cards", "missing; write how many cards inference needs in this window")
    return DemandWindow(read_days(fields), *hours, fields.integer("cards", 0, 0, cards_max))


def _refuse_overlaps(entries: Sequence[Fields], windows: Sequence[DemandWindow]) -> None:
    for number, window in enumerate(windows):
        for other, earlier in enumerate(windows[:number]):
            shared = [
                max(one.start, two.start)
                for one in window.minutes()
                for two in earlier.minutes()
                if max(one.start, two.start) < min(one.stop, two.stop)
            ]
            if shared:
                day, minute = divmod(min(shared), DAY_MINUTES)
                when = f"{DAYS[day]} {minute // 60:02}:{minute % 60:02}"
                text = f"overlaps windows[{other}] from {when} on; end one where the other begins"
                entries[number].refuse_at(entries[number].path, text)
                break
