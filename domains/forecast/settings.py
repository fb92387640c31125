"""The args of PeakForecast, read and checked: every refusal names the setting and the fix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from domains.forecast.capacity import Capacity, SettingError, read_capacity
from domains.forecast.history_file import RESOURCES_MAX, history_files

PERCENTILE, WINDOW_DAYS = 95.0, 28.0
"""Defaults: four weeks see every weekday four times."""
WINDOW_DAYS_MAX = 3660
SETTINGS = ("historyDir", "files", "percentile", "windowDays", "dimensions", "capacities")
FILES_MAX = 10_000


class PeakSettings(msgspec.Struct, frozen=True):
    """Where history is and how it is read."""

    files: tuple[str, ...] = ()
    percentile: float = PERCENTILE
    window_days: float = WINDOW_DAYS
    dimensions: tuple[str, ...] = ()
    """Empty: CPU, memory, and every resource in the files."""
    capacities: Mapping[str, Capacity] = msgspec.field(default_factory=dict)

    @classmethod
    def from_config(cls, args: Mapping[str, Any]) -> PeakSettings:
        """Raises SettingError naming the setting and the fix; HistoryError for a directory that cannot be read."""
        for name in args:
            if name not in SETTINGS:
                raise SettingError(f"args.{name}: unknown; known here: {', '.join(SETTINGS)}")
        directory, files = args.get("historyDir"), _texts(args, "files")
        if directory is not None and not isinstance(directory, str):
            raise SettingError("args.historyDir: write the path of a directory")
        found = (*(history_files(directory) if directory else ()), *files)
        if len(found) > FILES_MAX:
            raise SettingError(f"args.files: {len(found)} files, more than {FILES_MAX}; merge them")
        capacities = args.get("capacities") or {}
        if not isinstance(capacities, Mapping):
            raise SettingError("args.capacities: write a mapping from dimension to capacity")
        dimensions = _texts(args, "dimensions")
        if len(dimensions) > RESOURCES_MAX:
            raise SettingError(f"args.dimensions: {len(dimensions)} names, more than {RESOURCES_MAX}; leave some out")
        return cls(
            files=found,
            percentile=_number(args, "percentile", PERCENTILE, 100),
            window_days=_number(args, "windowDays", WINDOW_DAYS, WINDOW_DAYS_MAX),
            dimensions=dimensions,
            capacities={name: read_capacity(name, setting) for name, setting in capacities.items()},
        )


def _texts(args: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = args.get(name) or ()
    if isinstance(found, str) or not isinstance(found, Sequence) or not all(isinstance(t, str) and t for t in found):
        raise SettingError(f"args.{name}: write a list of texts")
    if len(set(found)) != len(found):
        raise SettingError(f"args.{name}: names one of them twice")
    return tuple(found)


def _number(args: Mapping[str, Any], name: str, default: float, largest: float) -> float:
    found = args.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found <= largest:
        raise SettingError(f"args.{name}: {found!r} is not above 0 and at most {largest}")
    return float(found)
