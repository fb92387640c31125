"""Profiles: predicted use of one replica of each service, per dimension and slot of the week.

Immutable: a refit creates a new object with the next version. Created by the fit, stored in a file, read by placement,
repair and the command line. A *slot* is a fixed interval of the week in the profiles' time zone; slot 0 begins on
Monday at 00:00.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.forecasting.time_units import WEEK_S

if TYPE_CHECKING:
    from multisched.forecasting.recent import Recent

SLOT_S_DEFAULT: Final = 3_600

Curves = NDArray[np.float32]
"""Use per replica, in the dimension's plain unit (cores, bytes, bytes per second); NaN where unknown."""


class Origin(IntEnum):
    """How the profile of one service in one dimension was computed."""

    NONE = 0
    """Unknown; the curve is NaN."""
    QUANTILE = 1
    """One quantile for the whole week: the history is too short for more."""
    SLOT_QUANTILE = 2
    """One quantile per slot: the regression predicted the last days less well, or was not tested."""
    SEASONAL = 3
    """The regression on day and week terms."""
    ATTRIBUTED = 4
    """A share of node totals, inferred from the placement intervals of replicas."""


Errors = NDArray[np.float32]
"""Mean pinball loss of the peak quantile on the held-out days, over the mean of the series; NaN: not tested."""


class Backtest(msgspec.Struct, frozen=True):
    """Errors of each kind of profile, all of the same shape. `Profiles.origin` says which kind was chosen."""

    regression: Errors
    slot_quantile: Errors
    flat_quantile: Errors
    holdout_days: Errors
    """Number of held-out days of each series; NaN: not tested."""


class Profiles(msgspec.Struct, frozen=True):
    """Profiles of all services. Curves have the shape [services, dimensions, slots]; arrays are read-only."""

    version: int
    made_s: float
    """Time of the fit, in epoch seconds."""
    newest_s: float
    """Time of the newest sample used, in epoch seconds; the age of profiles counts from it."""
    services: tuple[str, ...]
    """`namespace/service`, or `service` for any namespace."""
    dimensions: tuple[str, ...]
    peak: Curves
    """The peak quantile of each slot."""
    low: Curves
    high: Curves
    """`low` and `high` bound new samples with the configured confidence."""
    origin: NDArray[np.uint8]
    """uint8[services, dimensions]: an `Origin`."""
    error: NDArray[np.float32]
    """float32[services, dimensions]: mean pinball loss of the peak on the last days / mean of the series. If ATTRIBUTED:
    standard error of the weight / weight. NaN: unknown."""
    zone: str = "UTC"
    """IANA name of the time zone of the slots."""
    slot_s: int = SLOT_S_DEFAULT
    tested: Backtest | None = None
    """Errors by which `origin` was chosen, float32[services, dimensions] each; None: read from an older file without them."""

    recent: Recent | None = None
    """Recent measurements, for display; not stored in files."""

    def __post_init__(self) -> None:
        shape = (len(self.services), len(self.dimensions), self.slots)
        if WEEK_S % self.slot_s:
            raise ValueError(f"slot_s must divide a week, got {self.slot_s}")
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
        """Makes the arrays read-only again after unpickling."""
        tested = () if self.tested is None else msgspec.structs.astuple(self.tested)
        for array in (self.peak, self.low, self.high, self.origin, self.error, *tested):
            array.flags.writeable = False

    @property
    def slots(self) -> int:
        """Returns the number of slots of a week."""
        return WEEK_S // self.slot_s

    def numbers(self) -> Mapping[str, int]:
        """Returns service -> index in the arrays."""
        return {name: number for number, name in enumerate(self.services)}

    def slot_of(self, epoch_s: float) -> int:
        """Returns the slot of a moment by wall time: when clocks change, a slot can occur twice or not at all."""
        return int(self._second_of_week(epoch_s) // self.slot_s)

    def curve_weights(self, begin_s: float, end_s: float) -> NDArray[np.float64]:
        """Returns float64[moments, slots]: weights of the slots' values in a linear interpolation between the middles of slots.

        The moments are both ends and all middles of slots between them; the highest interpolated value is at one of these. A change
        of clocks between the ends is ignored.
        """
        first = self._second_of_week(begin_s) / self.slot_s - 0.5
        last = first + (end_s - begin_s) / self.slot_s
        at = np.array([first, *range(math.ceil(first), math.floor(last) + 1), last])
        before = np.floor(at)
        found, moments = np.zeros((len(at), self.slots)), np.arange(len(at))
        found[moments, before.astype(np.intp) % self.slots] += 1.0 - (at - before)
        found[moments, (before.astype(np.intp) + 1) % self.slots] += at - before
        return found

    def _second_of_week(self, epoch_s: float) -> int:
        local = datetime.fromtimestamp(epoch_s, ZoneInfo(self.zone))
        return local.weekday() * 86_400 + local.hour * 3_600 + local.minute * 60 + local.second

    def slot_name(self, slot: int) -> str:
        """Returns the start of the slot for display: `Mon 20:00`."""
        day, second = divmod(slot * self.slot_s, 86_400)
        return f"{DAYS[day]} {second // 3_600:02}:{second % 3_600 // 60:02}"


DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


NO_PROFILES: Final = "no profiles yet"


def profiles_text(version: int, age_s: float) -> str:
    """Describes the active profiles. `version`: 0 for profiles from files read at the start. `age_s`: age of the newest sample."""
    age = f"{duration_text(age_s)} old"
    return f"profiles {version}, {age}" if version else f"profiles from files, whose newest sample is {age}"


def duration_text(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
