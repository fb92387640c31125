"""FitSettings: settings of the fit of profiles. Immutable; checked on creation, error messages name the field."""

from __future__ import annotations

from datetime import date
from typing import Final

import msgspec

from multisched.forecasting.profiles import SLOT_S_DEFAULT
from multisched.forecasting.time_units import DAY_S
from multisched.forecasting.time_zones import why_no_zone

SLOT_S_MIN: Final = 300
DAY_HARMONICS_MAX: Final = 24
WEEK_SIDEBANDS_MAX: Final = 3
"""Sidebands further away would belong to the next harmonic of the day."""


class FitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a fit. Defaults suit online services; numbers of terms and penalties were chosen by backtest."""

    zone: str = "UTC"
    """IANA name of the time zone of slots, days and holidays."""
    slot_s: int = SLOT_S_DEFAULT
    quantile: float = 0.95
    """The peak is this quantile of the samples of a slot."""
    confidence: float = 0.95
    """Share of new samples expected between `low` and `high`."""
    half_life_days: float = 21.0
    """Age at which a sample has half weight in the regression."""
    holidays: tuple[date, ...] = ()
    """Days whose samples are skipped."""
    rest_days: tuple[int, ...] = (5, 6)
    """Weekdays (Monday is 0) that the regression and the slot quantiles treat separately from working days."""
    day_harmonics: int = 10
    week_sidebands: int = 2
    """Weekly harmonics on each side of a daily one; more allow larger differences between the days of a week."""
    known_hours_min: float = 1.0
    """With fewer hours of samples a series has no profile."""
    slot_days_min: float = 2.0
    """With fewer days of samples one quantile is used for the whole week."""
    regression_days_min: float = 7.0
    """With fewer days of samples the regression is not used."""
    hour_of_week_weeks_min: float = 4.0
    """With fewer weeks of samples, slot quantiles pool all working days, and all rest days."""
    holdout_days: float = 7.0
    """Number of last days that the backtest holds out; halved for a series with less than twice as many days of samples."""

    def __post_init__(self) -> None:
        if why := why_no_zone(self.zone):
            raise ValueError(f"zone: {why}")
        if self.slot_s < SLOT_S_MIN or DAY_S % self.slot_s:
            raise ValueError(f"slot_s: {self.slot_s} must divide a day and be at least {SLOT_S_MIN}")
        for name in ("quantile", "confidence"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not between 0 and 1")
        for name in (
            "half_life_days",
            "known_hours_min",
            "slot_days_min",
            "regression_days_min",
            "hour_of_week_weeks_min",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: {getattr(self, name)} must be greater than 0")
        if not self.holdout_days >= 1:
            raise ValueError(f"holdout_days: {self.holdout_days} must be at least 1")
        if not 0 <= self.day_harmonics <= DAY_HARMONICS_MAX:
            raise ValueError(f"day_harmonics: {self.day_harmonics} must be from 0 to {DAY_HARMONICS_MAX}")
        if not 0 <= self.week_sidebands <= WEEK_SIDEBANDS_MAX:
            raise ValueError(f"week_sidebands: {self.week_sidebands} must be from 0 to {WEEK_SIDEBANDS_MAX}")
        if not set(self.rest_days) <= set(range(7)):
            raise ValueError(f"rest_days: {list(self.rest_days)} must be from 0 (Monday) to 6 (Sunday)")

    @property
    def levels(self) -> tuple[float, float, float]:
        """Returns the quantiles of low, peak and high."""
        tail = (1 - self.confidence) / 2
        return (tail, self.quantile, 1 - tail)
