"""What the args of PeakForecast say of learning while the program runs. Imported only where they say something of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any, Final

import msgspec

from domains.forecast.capacity import Capacity, MeasuredCapacity, SettingError
from domains.forecast.fit_settings import FitSettings
from domains.forecast.settings import QUANTILE_MAX
from domains.forecast.settings_reader import Settings
from domains.forecast.source_settings import Dimension, HistorySettings, QueryCapacity, read_history_settings
from domains.forecast.windows import DAYS

FIT: Final = ("zone", "confidence", "halfLifeDays", "holidays", "restDays")
HOLIDAYS_MAX: Final = 1_000
HALF_LIFE_DAYS_MAX: Final = 3_660


class LearningSettings(msgspec.Struct, frozen=True):
    """Where profiles come from and where they are kept."""

    fit: FitSettings
    """How profiles are made of what `history` reads."""
    profiles_file: str
    """Where the latest profiles are kept, and are read at the start; empty: nowhere."""
    history: HistorySettings | None
    """Sources that are read again and again; None: the file is all there is."""

    @property
    def dimensions(self) -> Sequence[Dimension]:
        return () if self.history is None else self.history.dimensions

    def capacities(self) -> dict[str, Capacity | MeasuredCapacity]:
        """By dimension."""
        found: dict[str, Capacity | MeasuredCapacity] = {}
        for one in self.dimensions:
            asked = one.capacity
            found[one.name] = MeasuredCapacity(asked.query) if isinstance(asked, QueryCapacity) else asked
        return found


def read_learning(args: Mapping[str, Any], percentile: float) -> LearningSettings:
    """Raises SettingError."""
    file = args.get("profilesFile") or ""
    if not isinstance(file, str):
        raise SettingError("args.profilesFile: write the path of a file")
    fit, history = _fit(args, percentile), _history(args)
    if args.get("fit") is not None and history is None and not (args.get("files") or args.get("historyDir")):
        raise SettingError("args.fit: says how history or files are learned, and there are none; remove it")
    return LearningSettings(fit, file, history)


def _history(args: Mapping[str, Any]) -> HistorySettings | None:
    if args.get("history") is None:
        return None
    for name in ("historyDir", "files"):
        if args.get(name):
            raise SettingError(f"args.{name}: stands beside history; name the files in history.sources as type csv")
    return read_history_settings(args["history"])


def _fit(args: Mapping[str, Any], percentile: float) -> FitSettings:
    read, defaults = Settings(args.get("fit"), "args.fit", FIT), FitSettings()
    known: dict[str, Any] = {
        "quantile": min(percentile / 100, QUANTILE_MAX),
        "zone": read.text("zone", defaults.zone),
        "confidence": read.number("confidence", defaults.confidence, 0.5, QUANTILE_MAX),
        "half_life_days": read.number("halfLifeDays", defaults.half_life_days, 0.1, HALF_LIFE_DAYS_MAX),
        "holidays": tuple(_dates(read)),
        "rest_days": tuple(_rest_days(read)),
    }
    read.done()
    try:
        return FitSettings(**known)
    except ValueError as error:
        raise SettingError(f"args.fit.{error}") from error


def _dates(read: Settings) -> Iterator[date]:
    for text in read.texts("holidays", HOLIDAYS_MAX):
        try:
            yield date.fromisoformat(text)
        except ValueError:
            read.refuse("holidays", f'{text!r} is no day; write it as "2026-12-25"')


def _rest_days(read: Settings) -> Iterator[int]:
    for name in read.texts("restDays", len(DAYS)) if read.has("restDays") else ("sat", "sun"):
        if name in DAYS:
            yield DAYS.index(name)
        else:
            read.refuse("restDays", f"{name!r} is no day; write some of {', '.join(DAYS)}")
