"""Wire shapes of the metadata that all objects have, and the version in it. See decode.py."""

from __future__ import annotations

from datetime import datetime

import msgspec

from multisched.model.decode_selectors import Wire

BAD_TEXT = "it holds text that is not UTF-8; write it anew"
VERSION_DIGITS_MAX = 20
"""Digits of a uint64; a longer resourceVersion is opaque text."""


class WireOwnerReference(Wire):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class WireIdentity(Wire):
    """All that an object must have to be known at all."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class WireMetadata(WireIdentity):
    """What scheduling reads of any kind."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[WireOwnerReference] | None = None
    deletion_timestamp: datetime | None = None


def with_valid_text(document: bytes | msgspec.Raw) -> bytes:
    """The document with U+FFFD in place of what is not UTF-8, as Go reads it."""
    return bytes(document).decode("utf-8", "replace").encode()


def version_of(resource_version: str) -> int:
    """0 where the server sends one that is no integer."""
    is_number = (
        len(resource_version) <= VERSION_DIGITS_MAX and resource_version.isascii() and resource_version.isdigit()
    )
    return int(resource_version) if is_number else 0


def controller_of(references: list[WireOwnerReference] | None) -> WireOwnerReference | None:
    """The controlling owner."""
    for reference in references or ():
        if reference.controller:
            return reference
    return None
