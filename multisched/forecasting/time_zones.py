"""Validates the name of a time zone."""

from __future__ import annotations

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


def why_no_zone(name: str) -> str:
    """Returns why the name is not a known time zone, with the fix; empty for a valid zone."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return f"{name!r} is not a known time zone; write an IANA name such as Europe/Berlin"
    return ""
