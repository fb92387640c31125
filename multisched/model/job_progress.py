"""Annotations in which a job reports its progress, so that an eviction costs it little. They are untrusted. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from multisched.model.api_time import parse_timestamp

CHECKPOINT: Final = "multisched.io/checkpoint"
"""Annotation: when the job saved its last checkpoint (RFC 3339)."""
RETRIES_LEFT: Final = "multisched.io/retries-left"
"""Annotation: how often the job's controller will still replace the pod."""
RETRIES_MAX: Final = 10**6


def checkpoint_s(annotations: Mapping[str, str]) -> float | None:
    """Returns when the pod's job says that it saved its last checkpoint; None if it says nothing that can be read."""
    try:
        return zoned_seconds(annotations.get(CHECKPOINT, "")[:64])
    except (ValueError, OverflowError):
        return None


def retries_left(annotations: Mapping[str, str]) -> int | None:
    """Returns how often the pod's job will still be replaced; None if it says nothing that can be read."""
    text = annotations.get(RETRIES_LEFT, "")
    return int(text) if len(text) <= 7 and text.isascii() and text.isdigit() and int(text) <= RETRIES_MAX else None


def zoned_seconds(text: str) -> float:
    """Returns the epoch seconds of a timestamp with a time zone. Raises ValueError, and OverflowError for impossible years."""
    moment = parse_timestamp(text)
    if moment.tzinfo is None:
        raise ValueError("no time zone")
    return moment.timestamp()
