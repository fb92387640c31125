"""Reads fields of a JSON document defensively: a value of the wrong type raises `Unreadable` with its path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Json = Mapping[str, Any]
_NOTHING: Json = {}
_SHOWN_MAX = 48
"""Longest part of a value in a message, in characters."""


class Unreadable(ValueError):
    """A field that does not have its documented type; the message names the field and the value."""


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def mapping(document: Json, field: str) -> Json:
    """Returns an object; empty if it is missing."""
    value = document.get(field)
    if value is None:
        return _NOTHING
    if not isinstance(value, dict):
        raise Unreadable(f"{field}: {shown(value)} is not an object")
    return value


def objects(document: Json, field: str) -> Iterator[Json]:
    """Yields a list of objects; empty if it is missing."""
    for at, value in enumerate(_sequence(document, field)):
        if not isinstance(value, dict):
            raise Unreadable(f"{field}[{at}]: {shown(value)} is not an object")
        yield value


def texts(document: Json, field: str) -> tuple[str, ...]:
    """Returns a list of strings; empty if it is missing."""
    values = _sequence(document, field)
    for at, value in enumerate(values):
        if not isinstance(value, str):
            raise Unreadable(f"{field}[{at}]: {shown(value)} is not a string")
    return tuple(values)


def text(document: Json, field: str, default: str = "") -> str:
    value = document.get(field)
    if value is None:
        return default
    if not isinstance(value, str):
        raise Unreadable(f"{field}: {shown(value)} is not a string")
    return value


def integer(document: Json, field: str, default: int = 0) -> int:
    value = document.get(field)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise Unreadable(f"{field}: {shown(value)} is not an integer")
    return value


def flag(document: Json, field: str) -> bool:
    value = document.get(field)
    if value is not None and not isinstance(value, bool):
        raise Unreadable(f"{field}: {shown(value)} is neither true nor false")
    return bool(value)


def strings(document: Json, field: str) -> dict[str, str]:
    """Returns an object whose values are strings, for example labels."""
    found = mapping(document, field)
    for key, value in found.items():
        if not isinstance(value, str):
            raise Unreadable(f"{field}.{key}: {shown(value)} is not a string")
    return dict(found)


def moment(document: Json, field: str) -> float | None:
    """Parses an RFC 3339 time to seconds since 1970; None if it is missing."""
    value = text(document, field)
    if not value:
        return None
    try:
        read = datetime.fromisoformat(value)
        return (read if read.tzinfo is not None else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise Unreadable(f"{field}: {shown(value)} is not a time; write for example 2026-01-31T12:00:00Z") from error


def _sequence(document: Json, field: str) -> Sequence[Any]:
    value = document.get(field)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise Unreadable(f"{field}: {shown(value)} is not a list")
    return value
