"""Names, uids, times and versions of objects, and their canonical encoding.

Owns the source of uids and name suffixes (a seeded generator, so that simulations are reproducible) and the cache of label
sets. `encode` puts `kind`, `apiVersion` and an ordered `metadata` first, so that lists and watches copy the bytes without parsing.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from sys import intern
from typing import Any, Protocol

import orjson

from multisched.cluster.base.resources import Document, Resource
from multisched.cluster.base.storage import Stored
from multisched.model.api_time import timestamp

NAME_SUFFIX = 5
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
LABEL_SETS_MAX = 4_096
"""Maximum number of cached label sets; beyond it, new sets are not shared between objects."""

ORDER = (
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
)


class Clock(Protocol):
    """The time source of the API server."""

    def now(self) -> datetime:
        """Returns the time in UTC, timezone-aware."""
        ...

    def monotonic(self) -> float:
        """Returns seconds that never decrease."""
        ...


class IdentityGenerator:
    """Generates uids, name suffixes and times."""

    def __init__(self, clock: Clock, seed: int) -> None:
        self.clock = clock
        self._random = random.Random(seed)  # noqa: S311 - ids must repeat under one seed; nothing secret comes from here
        self._second: tuple[int, str] = (-1, "")
        self._labels: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}

    def uid(self) -> str:
        """Returns a version 4 UUID."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def suffix(self) -> str:
        """Returns five characters that cannot spell words."""
        return "".join(self._random.choices(_SUFFIX_LETTERS, k=NAME_SUFFIX))

    def uniform(self, low: float, high: float) -> float:
        """Draws a random value, for deadlines."""
        return self._random.uniform(low, high)

    def now(self) -> str:
        """Returns the current second, RFC 3339."""
        moment = self.clock.now()
        second = int(moment.timestamp())
        if second != self._second[0]:
            self._second = (second, timestamp(moment))
        return self._second[1]

    def shared_labels(self, labels: Mapping[str, str] | None) -> Mapping[str, str]:
        """Returns one shared dictionary per distinct label set."""
        if not labels:
            return {}
        place = tuple(labels.items())
        found = self._labels.get(place)
        if found is None:
            found = {intern(key): intern(value) for key, value in labels.items()}
            if len(self._labels) < LABEL_SETS_MAX:
                self._labels[place] = found
        return found


def ordered(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the known fields in canonical order. Omits empty fields, but keeps numbers that are 0, such as a grace period."""
    return {key: value for key in ORDER if (value := metadata.get(key)) or value == 0}


def encode(resource: Resource, document: Document, version: int) -> bytes:
    """Returns the canonical encoding of an object at a version."""
    metadata = ordered({**document["metadata"], "resourceVersion": str(version)})
    shown = {"kind": resource.kind, "apiVersion": resource.stored_api_version, "metadata": metadata}
    for key, value in document.items():
        if key not in shown and value is not None:
            shown[key] = value
    return orjson.dumps(shown)


def store_form(resource: Resource, document: Document, version: int, minting: IdentityGenerator) -> Stored:
    """Builds the form in which a collection stores an object."""
    metadata = document["metadata"]
    raw = encode(resource, document, version)
    return Stored(
        # An exact copy: orjson keeps the whole of its growing buffer allocated, 4 KiB for a pod of 1.2 KiB.
        raw[:-1] + b"}",
        version,
        metadata["uid"],
        minting.shared_labels(metadata.get("labels")),
        resource.read_fields(document),
    )


def key_of(resource: Resource, namespace: str, name: str) -> str:
    """Returns the storage key of an object."""
    return f"{namespace}/{name}" if resource.namespaced else name


def item_prefix(resource: Resource) -> bytes:
    """Returns the first bytes of an encoded object of a built-in kind: kind and apiVersion, which list items do not have."""
    return b'{"kind":"%s","apiVersion":"%s",' % (resource.kind.encode(), resource.api_version.encode())


def splice_list(
    resource: Resource, raws: Sequence[bytes], version: int, continue_token: str = "", remaining: int | None = None
) -> bytes:
    """Builds a List document by joining encoded objects."""
    metadata: dict[str, Any] = {"resourceVersion": str(version)}
    if continue_token:
        metadata["continue"] = continue_token
        if remaining is not None:
            metadata["remainingItemCount"] = remaining
    head = orjson.dumps({"kind": resource.kind + "List", "apiVersion": resource.api_version, "metadata": metadata})
    if resource.is_custom:
        items = b",".join(raws)
    else:
        cut = len(item_prefix(resource))
        items = b",".join([b"{" + raw[cut:] for raw in raws])
    return head[:-1] + b',"items":[' + items + b"]}"
