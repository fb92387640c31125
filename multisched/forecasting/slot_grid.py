"""SlotGrid: maps the steps of a usage grid to slots of the week, in the wall time of a zone.

Immutable; pure except for the time zone database. Used by the fit and the backtest. `slots_of` is the array version of
`Profiles.slot_of`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.forecasting.time_units import DAY_S, WEEK_S

OFFSET_STEP_S: Final = 900
"""In all zones, clocks change at multiples of a quarter hour of UTC."""
STEPS_MAX: Final = 1_000_000
"""Limit of steps of a grid: nine years at five minutes."""
_EPOCH: Final = date(1970, 1, 1)
_EPOCH_WEEKDAY: Final = 3
"""1970-01-01 was a Thursday."""

Numbers = NDArray[np.int64]


def wall_times(epoch_s: NDArray[np.floating[Any]], zone: str) -> Numbers:
    """Returns int64[moments]: seconds since 1970-01-01 00:00 on the wall clock of the zone.

    Looks the UTC offset up once per distinct quarter hour, not once per moment.
    """
    quarters, index = np.unique(np.floor(epoch_s / OFFSET_STEP_S).astype(np.int64), return_inverse=True)
    clock = ZoneInfo(zone)
    offsets = [_offset_s(int(quarter) * OFFSET_STEP_S, clock) for quarter in quarters]
    wall: Numbers = np.floor(epoch_s).astype(np.int64) + np.array(offsets, np.int64)[index.ravel()]
    return wall


def _offset_s(epoch_s: int, clock: ZoneInfo) -> int:
    offset = datetime.fromtimestamp(epoch_s, UTC).astimezone(clock).utcoffset()
    return round((offset or timedelta()).total_seconds())


def slots_of(epoch_s: NDArray[np.floating[Any]], zone: str, slot_s: int) -> Numbers:
    """Returns int64[moments]: the slot of each, as `Profiles.slot_of`."""
    return (wall_times(epoch_s, zone) + _EPOCH_WEEKDAY * DAY_S) % WEEK_S // slot_s


class SlotGrid(msgspec.Struct, frozen=True):
    """The steps of one usage grid. A *bin* is a run of steps in the same slot: by default one hour of one date."""

    slot: Numbers
    """int64[steps]: slot of the week."""
    is_kept: NDArray[np.bool_]
    """bool[steps]: False on holidays."""
    bin_begin: Numbers
    """int64[bins]: first step."""
    bin_slot: Numbers
    """int64[bins]: slot of the week."""
    bin_age_days: NDArray[np.float64]
    """float64[bins]: time from the first step of the bin to the end of the grid."""
    slots: int
    """Number of slots of a week."""
    slots_per_day: int
    is_rest_day: NDArray[np.bool_]
    """bool[slots]: whether the slot is on a rest day (by default, Saturday and Sunday)."""

    def until(self, step: int) -> SlotGrid:
        """Returns the grid cut off before that step."""
        bins = int(np.searchsorted(self.bin_begin, step))
        ages = self.bin_age_days[:bins]
        lost = 0.0 if bins == len(self.bin_begin) else self.bin_age_days[bins]
        return msgspec.structs.replace(
            self,
            slot=self.slot[:step],
            is_kept=self.is_kept[:step],
            bin_begin=self.bin_begin[:bins],
            bin_slot=self.bin_slot[:bins],
            bin_age_days=ages - lost,
        )

    def slot_of_day(self) -> Numbers:
        """Returns int64[steps]: the slot of the day."""
        return self.slot % self.slots_per_day

    def kind_of_day(self) -> Numbers:
        """Returns int64[steps]: the slot of the day; slots of rest days are numbered after those of working days."""
        return self.slot_of_day() + self.slots_per_day * self.is_rest_day[self.slot]


def slot_grid(
    *,
    start_s: float,
    step_s: float,
    steps: int,
    zone: str,
    slot_s: int,
    holidays: Collection[date],
    rest_days: Sequence[int],
) -> SlotGrid:
    """Creates the SlotGrid of a usage grid; a step belongs to the slot in which it begins. Raises ValueError for too many steps."""
    if steps > STEPS_MAX:
        raise ValueError(f"usage: {steps} steps, more than {STEPS_MAX}; ask for a coarser step or a shorter window")
    wall = wall_times(start_s + step_s * np.arange(steps, dtype=np.float64), zone)
    slot = (wall + _EPOCH_WEEKDAY * DAY_S) % WEEK_S // slot_s
    closed = np.array(sorted((day - _EPOCH).days for day in holidays), np.int64)
    begin = np.flatnonzero(np.diff(slot, prepend=-1))
    slots = WEEK_S // slot_s
    return SlotGrid(
        slot=slot,
        is_kept=~np.isin(wall // DAY_S, closed),
        bin_begin=begin,
        bin_slot=slot[begin],
        bin_age_days=(steps - begin) * step_s / DAY_S,
        slots=slots,
        slots_per_day=DAY_S // slot_s,
        is_rest_day=np.isin(np.arange(slots) * slot_s // DAY_S, rest_days),
    )
