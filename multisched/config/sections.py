"""The base class of all sections of a configuration file, and the format of durations."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, WithJsonSchema
from pydantic.alias_generators import to_camel

DURATION_MAX_S: Final = 24 * 3600.0

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?", re.ASCII)
_DURATION_SCHEMA: Final = {
    "type": "string",
    "pattern": r"^(?=\d)(\d+h)?(\d+m)?(\d+(\.\d+)?s)?(\d+ms)?$",
    "examples": ["10s", "5m", "500ms", "1h30m"],
}


def parse_duration(text: object) -> float:
    """Returns the seconds of `10s`, `500ms`, `5m` or `1h30m`. Raises ValueError, also for a number without a unit."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        raise ValueError(f'a duration needs a unit, for instance "{text}s"')  # noqa: TRY004 -- pydantic collects these
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


Seconds = Annotated[
    float, BeforeValidator(parse_duration), AfterValidator(_refuse_zero), WithJsonSchema(_DURATION_SCHEMA)
]
"""A duration above zero, in seconds."""


def _alias(name: str) -> str:
    return to_camel(name.removesuffix("_s"))


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, types are not converted, values are immutable."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        alias_generator=_alias,
        validate_by_name=False,
        allow_inf_nan=False,
    )
