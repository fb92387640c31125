"""The args of PeakForecast for carrying out repairs, below `repair:`.

    repair:
      mode: apply                            # off (default), preview or apply
      zone: Europe/Berlin                    # of windows that name none
      windows: [{days: [sat, sun], from: "01:00", to: "05:00"}]
      intervalMinutes: 15                    # between two plans in one window
      readyMinutes: 15                       # how long a replacement may take

Immutable. The settings of plans are in `settings/repair.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

import msgspec

from domains.forecast.settings.windows import TroughWindows
from multisched.framework.plugin_args import Fields, PluginArgsError

EXECUTION: Final = ("mode", "zone", "windows", "intervalMinutes", "readyMinutes")
MINUTES_MAX: Final = 1_440.0


class RepairMode(Enum):
    """The mode of repair in a window; the values are those of the configuration."""

    OFF = "off"
    PREVIEW = "preview"
    """A plan is made and shown; a user can have it carried out (`multisched repair plan --apply`)."""
    APPLY = "apply"
    """Plans are carried out."""


class ExecutionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings, checked. Unless the mode is OFF, there are windows."""

    mode: RepairMode = RepairMode.OFF
    windows: TroughWindows | None = None
    interval_s: float = 900.0
    ready_timeout_s: float = 900.0


def read_execution(settings: Fields) -> ExecutionSettings:
    """Parses the settings; records problems in `settings`."""
    defaults = ExecutionSettings()
    mode = settings.value("mode")
    if mode is False:  # YAML 1.1 reads an unquoted off as False
        mode = RepairMode.OFF.value
    if mode is not None and mode not in [one.value for one in RepairMode]:
        settings.refuse("mode", f"{mode!r} is not known; write one of {', '.join(one.value for one in RepairMode)}")
        mode = None
    found = RepairMode(mode or RepairMode.OFF.value)
    windows = _windows(settings)
    if found is not RepairMode.OFF and windows is None:
        settings.refuse("windows", 'missing; write for instance [{days: [sat, sun], from: "01:00", to: "05:00"}]')
    return ExecutionSettings(
        mode=found,
        windows=windows,
        interval_s=60 * settings.number("intervalMinutes", defaults.interval_s / 60, 0.1, MINUTES_MAX),
        ready_timeout_s=60 * settings.number("readyMinutes", defaults.ready_timeout_s / 60, 0.1, MINUTES_MAX),
    )


def _windows(settings: Fields) -> TroughWindows | None:
    if not settings.has("windows"):
        if settings.has("zone"):
            settings.refuse("zone", "has no effect without windows; add windows, or remove it")
        return None
    value, zone = settings.value("windows"), settings.text("zone")
    if zone:
        value = _with_zone(value, zone)
    try:
        return TroughWindows.from_config(value, f"{settings.path}.windows")
    except PluginArgsError as error:
        settings.take(error)
        return None


def _with_zone(value: Any, zone: str) -> Any:
    """Returns the windows with `zone` as the default of their zone."""
    if isinstance(value, Mapping):
        return {"zone": zone, **value}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [{"zone": zone, **one} if isinstance(one, Mapping) else one for one in value]
    return value
