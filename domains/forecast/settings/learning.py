"""The args of PeakForecast for learning at run time. Imported only if one of them is set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, Final

import msgspec

from domains.forecast.curves.capacity import Capacity, MeasuredCapacity
from domains.forecast.settings.by_dimension import QUANTILE_MAX
from domains.forecast.settings.sources import HISTORY, Dimension, HistorySettings, QueryCapacity, history_of
from multisched.forecasting.fit_settings import FitSettings
from multisched.framework.plugin_args import Fields
from multisched.framework.weekly_hours import DAYS

FIT: Final = ("zone", "confidence", "halfLifeDays", "holidays", "restDays")
HOLIDAYS_MAX: Final = 1_000
HALF_LIFE_DAYS_MAX: Final = 3_660


class LearningSettings(msgspec.Struct, frozen=True):
    """Settings of learning: fit, sources, and the profiles file."""

    fit: FitSettings
    """Settings of the fit: the section `fit` and `percentile`."""
    profiles_file: str
    """File in which the latest profiles are saved, read at start; empty: none."""
    history: HistorySettings | None
    """Sources that are read periodically; None: only the profiles file is used."""

    @property
    def dimensions(self) -> Sequence[Dimension]:
        return () if self.history is None else self.history.dimensions

    def capacities(self) -> dict[str, Capacity | MeasuredCapacity]:
        """Returns dimension -> capacity."""
        found: dict[str, Capacity | MeasuredCapacity] = {}
        for one in self.dimensions:
            asked = one.capacity
            found[one.name] = MeasuredCapacity(asked.query) if isinstance(asked, QueryCapacity) else asked
        return found


def learning_of(settings: Fields, percentile: float) -> LearningSettings:
    """Parses the args of learning; records problems in `settings`."""
    fit, history = _fit(settings.below("fit", FIT), percentile), _history(settings)
    if settings.has("fit") and not any(settings.has(name) for name in ("history", "files", "historyDir")):
        settings.refuse("fit", "has no effect without history, files or historyDir; remove it")
    return LearningSettings(fit, settings.text("profilesFile"), history)


def _history(settings: Fields) -> HistorySettings | None:
    if not settings.has("history"):
        return None
    for name in ("historyDir", "files"):
        if settings.value(name):
            settings.refuse(name, "cannot be combined with history; name the files in history.sources as type csv")
    return history_of(settings.below("history", HISTORY))


def _fit(read: Fields, percentile: float) -> FitSettings:
    defaults = FitSettings()
    known: dict[str, Any] = {
        "quantile": min(percentile / 100, QUANTILE_MAX),
        "zone": read.text("zone", defaults.zone),
        "confidence": read.number("confidence", defaults.confidence, 0.5, QUANTILE_MAX),
        "half_life_days": read.number("halfLifeDays", defaults.half_life_days, 0.1, HALF_LIFE_DAYS_MAX),
        "holidays": tuple(_dates(read)),
        "rest_days": tuple(_rest_days(read)),
    }
    try:
        return FitSettings(**known)
    except ValueError as error:
        name, _, reason = str(error).partition(": ")
        read.refuse(name, reason)
        return defaults


def _dates(read: Fields) -> Iterator[date]:
    for at, text in read.texts("holidays", HOLIDAYS_MAX):
        try:
            yield date.fromisoformat(text)
        except ValueError:
            read.refuse_at(at, f'{text!r} is not a date; write it as "2026-12-25"')


def _rest_days(read: Fields) -> Iterator[int]:
    if not read.has("restDays"):
        yield from FitSettings().rest_days
    for at, name in read.texts("restDays", len(DAYS)):
        if name in DAYS:
            yield DAYS.index(name)
        else:
            read.refuse_at(at, f"{name!r} is not a day; write some of {', '.join(DAYS)}")
