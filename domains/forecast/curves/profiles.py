"""Profiles: what one replica of each service is predicted to use, per dimension and slot of the week.

Immutable: a refit makes another object with the next version. Made by the fit, kept in a file, read by placement, repair and
the command line. A *slot* is one stretch of the week in the profiles' time zone; slot 0 begins on Monday at 00:00.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.forecast.units import WEEK_S

if TYPE_CHECKING:
    from domains.forecast.curves.recent import Recent

SLOT_S_DEFAULT: Final = 3_600

Curves = NDArray[np.float32]
"""Use per replica, in the dimension's plain unit (cores, bytes, bytes per second); NaN where nothing is known."""


class Origin(IntEnum):
    """What the profile of one service in one dimension was made from."""

    NONE = 0
    """Nothing is known; the curve is NaN."""
    QUANTILE = 1
    """One quantile for the whole week: the history is too short for more."""
    SLOT_QUANTILE = 2
    """A quantile per slot: on the last days it foretold better than the regression."""
    SEASONAL = 3
    """The regression on day and week terms."""
    ATTRIBUTED = 4
    """A share of node totals, by which replicas stood where when."""


Errors = NDArray[np.float32]
"""Mean pinball loss of the peak quantile on the held-out days, over the mean of the series; NaN: not tested."""


class Backtest(msgspec.Struct, frozen=True):
    """Errors by kind of profile, all of one shape. Which of them was chosen: `Profiles.origin`."""

    regression: Errors
    slot_quantile: Errors
    flat_quantile: Errors
    holdout_days: Errors
    """How many days each series was judged on; NaN: none."""


class Profiles(msgspec.Struct, frozen=True):
    """All services. Arrays are read only, and of one shape: [services, dimensions, slots]."""

    version: int
    made_s: float
    """When the fit was made, in epoch seconds."""
    newest_s: float
    """The newest sample it is made of, in epoch seconds; profiles grow old from then on."""
    services: tuple[str, ...]
    """`namespace/service`, or `service` for whatever namespace."""
    dimensions: tuple[str, ...]
    peak: Curves
    """The peak quantile of each slot."""
    low: Curves
    high: Curves
    """The band in which a new sample falls with the confidence that the fit was asked for."""
    origin: NDArray[np.uint8]
    """uint8[services, dimensions]: an `Origin`."""
    error: NDArray[np.float32]
    """float32[services, dimensions]: mean pinball loss of the peak on the last days, over the series' mean. For what is
    ATTRIBUTED: the standard error of its weight, over the weight. NaN: not known."""
    zone: str = "UTC"
    """IANA name of the time zone of the slots."""
    slot_s: int = SLOT_S_DEFAULT
    tested: Backtest | None = None
    """float32[services, dimensions] each: what the choice of `origin` was made by; None: files of before do not tell."""

    recent: Recent | None = None
    """What was measured in the last days, to be shown beside them; not in files."""

    def __post_init__(self) -> None:
        shape = (len(self.services), len(self.dimensions), self.slots)
        if WEEK_S % self.slot_s:
            raise ValueError(f"slot_s: {self.slot_s} does not divide a week")
        for name in ("peak", "low", "high"):
            found = getattr(self, name).shape
            if found != shape:
                raise ValueError(f"{name}: {found} in place of {shape}")
        for name in ("origin", "error"):
            found = getattr(self, name).shape
            if found != shape[:2]:
                raise ValueError(f"{name}: {found} in place of {shape[:2]}")
        for errors in () if self.tested is None else msgspec.structs.astuple(self.tested):
            if errors.shape != shape[:2]:
                raise ValueError(f"tested: {errors.shape} in place of {shape[:2]}")

    def freeze(self) -> None:
        """Makes the arrays read only, which they are no more where they come out of a pickle."""
        tested = () if self.tested is None else msgspec.structs.astuple(self.tested)
        for array in (self.peak, self.low, self.high, self.origin, self.error, *tested):
            array.flags.writeable = False

    @property
    def slots(self) -> int:
        """Of a week."""
        return WEEK_S // self.slot_s

    def numbers(self) -> Mapping[str, int]:
        """Service -> its place in the arrays."""
        return {name: number for number, name in enumerate(self.services)}

    def slot_of(self, epoch_s: float) -> int:
        """The slot of a moment. A clock that is set back or forward stays on wall time: a slot comes twice, or not at all."""
        local = datetime.fromtimestamp(epoch_s, ZoneInfo(self.zone))
        return int((local.weekday() * 86_400 + local.hour * 3_600 + local.minute * 60 + local.second) // self.slot_s)

    def slot_name(self, slot: int) -> str:
        """As users read it: `Mon 20:00`."""
        day, second = divmod(slot * self.slot_s, 86_400)
        return f"{DAYS[day]} {second // 3_600:02}:{second % 3_600 // 60:02}"


DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


NO_PROFILES: Final = "no profiles yet"


def profiles_text(version: int, age_s: float) -> str:
    """Profiles in force, in words; version 0: of files that were read at the start."""
    return f"profiles {version or 'read at the start'}, {duration_text(age_s)} old"


def duration_text(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
