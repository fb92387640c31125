"""resourceVersion: a number, which is ordered, or opaque text, which can only be compared for equality.

Numbers since Kubernetes 1.35 (KEP-5504); aggregated and older servers may send any text. All comparisons of versions use this.
"""

from __future__ import annotations

from typing import Final

Version = int | str

NO_VERSION: Final = 0
VERSION_DIGITS_MAX: Final = 20
"""Digits of a uint64; longer text is opaque."""


def version_of(text: str) -> Version:
    """Returns the number; the text itself if it is not one; NO_VERSION if it is empty."""
    if len(text) <= VERSION_DIGITS_MAX and text.isascii() and text.isdigit():
        return int(text)
    return text or NO_VERSION


def is_older(version: Version, than: Version) -> bool:
    """Reports whether both are numbers and `version` is smaller. False for opaque versions, which have no order."""
    return isinstance(version, int) and isinstance(than, int) and version < than


def is_covered(version: Version, by: Version) -> bool:
    """Reports whether a reader that has seen everything up to `by` has certainly seen `version`."""
    return isinstance(version, int) and isinstance(by, int) and NO_VERSION < version <= by
