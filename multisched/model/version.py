"""resourceVersion: a number, which has an order, or opaque text, which can only be equal.

Numbers since Kubernetes 1.35 (KEP-5504); aggregated and older servers may send anything. Whoever compares versions uses this.
"""

from __future__ import annotations

from typing import Final

Version = int | str

NO_VERSION: Final = 0
VERSION_DIGITS_MAX: Final = 20
"""Digits of a uint64; a longer one is opaque text."""


def version_of(text: str) -> Version:
    """The number in it, or the text itself where it is none; NO_VERSION where the server sends none."""
    if len(text) <= VERSION_DIGITS_MAX and text.isascii() and text.isdigit():
        return int(text)
    return text or NO_VERSION


def is_older(version: Version, than: Version) -> bool:
    """True if both are numbers and `version` is the smaller one. Of opaque ones nobody can say."""
    return isinstance(version, int) and isinstance(than, int) and version < than


def is_covered(version: Version, by: Version) -> bool:
    """True if it is proven that who has seen everything up to `by` has seen `version`."""
    return isinstance(version, int) and isinstance(by, int) and NO_VERSION < version <= by
