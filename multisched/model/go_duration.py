"""Durations in Go's format, which the Kubernetes APIs use: `5s`, `1m30s`, `1.5h`, `250ms`."""

from __future__ import annotations

import re
from typing import Final

TEXT_CHARS_MAX: Final = 64

_UNIT_S: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_WHOLE: Final = re.compile(rf"[-+]?(?:{_PART.pattern})+", re.ASCII)


def parse_go_duration(text: str) -> float:
    """Returns seconds. Raises ValueError as `time.ParseDuration` does: a number needs a unit, except 0."""
    if text in ("0", "+0", "-0"):
        return 0.0
    if len(text) > TEXT_CHARS_MAX or _WHOLE.fullmatch(text) is None:
        raise ValueError(f'{text[:TEXT_CHARS_MAX]!r} is not a duration; write for example "5s", "500ms" or "1m30s"')
    total_s = sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(text))
    return -total_s if text.startswith("-") else total_s


def go_duration(seconds: float) -> str:
    """Formats as Go does (`time.Duration.String`): 1.5s, 15m0s, 200ms; at least 0s."""
    left = max(0, round(seconds * 1e9))
    if not left:
        return "0s"
    for unit, size in (("ns", 1), ("µs", 1_000), ("ms", 1_000_000)):
        if left < min(1000 * size, 1_000_000_000):
            return f"{_decimal(left, size)}{unit}"
    minutes, left = divmod(left, 60_000_000_000)
    hours, minutes = divmod(minutes, 60)
    written = f"{_decimal(left, 1_000_000_000)}s"
    if hours:
        return f"{hours}h{minutes}m{written}"
    return f"{minutes}m{written}" if minutes else written


def _decimal(nanoseconds: int, size: int) -> str:
    whole, rest = divmod(nanoseconds, size)
    digits = len(str(size)) - 1
    return f"{whole}.{rest:0{digits}}".rstrip("0") if rest else str(whole)
