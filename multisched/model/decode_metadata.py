"""Wire shapes of the metadata of all objects. See decode.py."""

from __future__ import annotations

from datetime import datetime

import msgspec

from multisched.model.decode_selectors import Wire

BAD_TEXT = "it contains text that is not UTF-8; rewrite it"


class WireOwnerReference(Wire):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class WireIdentity(Wire):
    """The minimum that every object must have."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class WireMetadata(WireIdentity):
    """The metadata that scheduling reads of any kind."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[WireOwnerReference] | None = None
    deletion_timestamp: datetime | None = None


class AgedMetadata(WireMetadata):
    creation_timestamp: str | None = None


def with_valid_text(document: bytes | msgspec.Raw) -> bytes:
    """Returns the document with invalid UTF-8 replaced by U+FFFD, as Go decodes it."""
    return bytes(document).decode("utf-8", "replace").encode()


def controller_of(references: list[WireOwnerReference] | None) -> WireOwnerReference | None:
    """Returns the controlling owner."""
    for reference in references or ():
        if reference.controller:
            return reference
    return None
