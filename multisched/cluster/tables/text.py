"""Building blocks of table cells: columns, ages, durations, names.

`Cells` has columns (name, priority: 0 always, 1 with -o wide, type) and a function from a document to a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from multisched.cluster.base.resources import Document
from multisched.model.api_time import parse_timestamp

NONE = "<none>"
UNSET = "<unset>"
UNKNOWN = "<unknown>"


@dataclass(frozen=True, slots=True)
class Cells:
    """Columns and rows of one kind."""

    columns: tuple[tuple[str, int, str], ...]
    row: Callable[[Document, datetime], tuple[Any, ...]]


_MARKS = {"#": "integer", "?": "boolean", "@": "date"}


def columns(text: str) -> tuple[tuple[str, int, str], ...]:
    """Parses `Name,Ready,IP*`. Suffixes: `*` shown only with -o wide; the type is `#` integer, `?` boolean, `@` date, else string."""
    shaped = []
    for name in text.split(","):
        kind = next((kind for mark, kind in _MARKS.items() if mark in name), "string")
        shaped.append((name.rstrip("*#?@"), 1 if "*" in name else 0, kind))
    return tuple(shaped)


def human_duration(seconds: float) -> str:
    """Formats a duration like `5m`, `2d4h`. Source: k8s.io/apimachinery duration.HumanDuration."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 0:
        return "0s"
    if whole < 120:
        return f"{whole}s"
    minutes = whole // 60
    if minutes < 10:
        rest = whole % 60
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours = whole // 3600
    if hours < 8:
        rest = minutes % 60
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    return _long_duration(hours)


def _long_duration(hours: int) -> str:
    days = hours // 24
    if days < 8:
        rest = hours % 24
        return f"{days}d{rest}h" if rest else f"{days}d"
    if days < 730:
        return f"{days}d"
    years = days // 365
    rest = days % 365
    return f"{years}y{rest}d" if years < 8 and rest else f"{years}y"


def since(timestamp: Any, now: datetime) -> str:
    """Formats the time since a timestamp."""
    return human_duration((now - parse_timestamp(timestamp)).total_seconds()) if timestamp else UNKNOWN


def age(document: Document, now: datetime) -> str:
    """Formats the age of an object."""
    return since(document["metadata"].get("creationTimestamp"), now)


def name_of(document: Document) -> str:
    return str(document["metadata"]["name"])


def spec_of(document: Document) -> Document:
    return document.get("spec") or {}


def status_of(document: Document) -> Document:
    return document.get("status") or {}


def listed(values: list[str]) -> str:
    return ",".join(values) if values else NONE


def simple(*readers: Callable[[Document], Any]) -> Callable[[Document, datetime], tuple[Any, ...]]:
    """Returns a row function: name, the readers' values, age."""
    return lambda document, now: (name_of(document), *(reader(document) for reader in readers), age(document, now))
