"""The base class of all sections of a configuration file, the annotations of their settings, and the format of durations.

The types of a section's settings are limited by `msgspec.Meta`, `Before` and `After`. `structure` checks files against them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, fields

DURATION_MAX_S: Final = 24 * 3600.0

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?", re.ASCII)
DURATION_PATTERN: Final = r"^(?=\d)(\d+h)?(\d+m)?(\d+(\.\d+)?s)?(\d+ms)?$"
"""The pattern of a duration in the JSON Schema of files."""
_DURATION_SCHEMA: Final[dict[str, Any]] = {
    "pattern": DURATION_PATTERN,
    "examples": ["10s", "5m", "500ms", "1h30m"],
}


def parse_duration(text: object) -> float:
    """Returns the seconds of `10s`, `500ms`, `5m` or `1h30m`. Raises ValueError, also for a number without a unit."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        raise ValueError(f'a duration needs a unit, for instance "{text}s"')  # noqa: TRY004 -- reported at the field
    match = _DURATION.fullmatch(text) if isinstance(text, str) and len(text) <= 32 else None
    if match is None or not text:
        raise ValueError('not a duration; write for instance "10s", "500ms", "5m" or "1h30m"')
    hours, minutes, seconds, millis = (float(part or 0) for part in match.groups())
    total_s = hours * 3600 + minutes * 60 + seconds + millis / 1000
    if total_s > DURATION_MAX_S:
        raise ValueError("longer than 24h")
    return total_s


def format_duration(seconds: float) -> str:
    """Returns the shortest text that `parse_duration` reads as this duration."""
    millis = round(seconds * 1000)
    if millis % 1000:
        return f"{millis}ms"
    whole = millis // 1000
    if whole and whole % 3600 == 0:
        return f"{whole // 3600}h"
    return f"{whole // 60}m" if whole and whole % 60 == 0 else f"{whole}s"


def _refuse_zero(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("must be longer than 0s")
    return seconds


SHORT_FORM: Final = "shortForm"
"""In the schema of a setting with sections: the schema of the value that a file may have instead."""


class Before(Struct, frozen=True):
    """An annotation: `read` turns the value in a file into the value that is checked and kept. Raises ValueError."""

    read: Callable[[Any], Any]


class After(Struct, frozen=True):
    """An annotation: `read` turns the checked value into the value that is kept. Raises ValueError."""

    read: Callable[[Any], Any]


Seconds = Annotated[float, Before(parse_duration), After(_refuse_zero), Meta(extra_json_schema=_DURATION_SCHEMA)]
"""A duration above zero, in seconds."""


def _name_in_files(name: str) -> str:
    """Returns `initialBackoff` for `initial_backoff_s`."""
    first, *others = name.removesuffix("_s").split("_")
    return first + "".join(word.capitalize() for word in others)


class Section(Struct, frozen=True, rename=_name_in_files, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all sections. `__post_init__` raises ValueError for settings that contradict each other."""


@cache
def fields_of(section: type[Section]) -> tuple[FieldInfo, ...]:
    """Returns the settings of a section: names in code and in files, types with their annotations, defaults."""
    return fields(section)
