"""The last seen status of objects at the API server, from watches, reads and responses to writes.

Owns one record for each object of the kinds that are watched through it. It is separate from the object store, where
each write of ours would count as a change of the object and requeue pods. Written by handlers of reflectors and by the
`ApiStatusWriter`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import orjson

from multisched.client.object_feed import ReflectorHandler
from multisched.framework.object_status import ObjectKey
from multisched.model.object_kinds import ObjectKind
from multisched.model.wire import UNREADABLE

STATUS_BYTES_MAX: Final = 512 * 1024
"""A longer status is not kept, but read again before each write."""


class ServerStatus(msgspec.Struct, frozen=True, gc=False):
    """The status of one object at the API server."""

    uid: str
    version: str
    """resourceVersion as the server returned it."""
    generation: int
    raw: bytes
    """The status as JSON; empty if there is none."""
    raw_annotations: bytes = b""
    """The annotations as JSON, for kinds whose annotations are written with the status."""

    def is_same_version(self, other: ServerStatus) -> bool:
        return (self.uid, self.version) == (other.uid, other.version)

    def document(self) -> dict[str, Any]:
        """Returns the status; empty if there is none or it is not an object."""
        return _mapping(self.raw)

    def annotations(self) -> dict[str, Any]:
        return _mapping(self.raw_annotations)


def _mapping(raw: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(raw or b"{}")
    except orjson.JSONDecodeError:
        found = {}
    return found if isinstance(found, dict) else {}


class _Metadata(msgspec.Struct, gc=False):
    uid: str = ""
    version: str = msgspec.field(name="resourceVersion", default="")
    generation: int = 0
    annotations: msgspec.Raw = msgspec.Raw(b"")


class _Object(msgspec.Struct, gc=False):
    metadata: _Metadata
    status: msgspec.Raw = msgspec.Raw(b"")


_decoder = msgspec.json.Decoder(_Object)


class ServerStatuses:
    """Key -> last seen status."""

    def __init__(self) -> None:
        self._found: dict[ObjectKey, ServerStatus] = {}

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: ObjectKey) -> ServerStatus | None:
        """Returns None if it is unknown or too long to be kept."""
        return self._found.get(key)

    def record(self, key: ObjectKey, raw: bytes | msgspec.Raw) -> ServerStatus | None:
        """Records the object as the server has it; returns None if it cannot be read.

        A watch event may be older than the last response to a write. The next write then gets a conflict, and reads.
        """
        found = _read(raw, has_annotations=not key[0].definition.has_status_path)
        if found is None:
            return None
        if len(found.raw) + len(found.raw_annotations) <= STATUS_BYTES_MAX:
            self._found[key] = found
        else:
            self._found.pop(key, None)
        return found

    def forget(self, key: ObjectKey) -> None:
        """Drops the record: the object was deleted, or its status is not known any more."""
        self._found.pop(key, None)

    def watching(
        self, kind: ObjectKind, handler: ReflectorHandler, changed: Callable[[ObjectKey], None]
    ) -> ReflectorHandler:
        """Returns `handler` wrapped so that statuses are recorded. `changed` is called for each object that is added,
        changed or deleted, after the handler.
        """
        return _Watched(kind, handler, self, changed)


def _read(raw: bytes | msgspec.Raw, *, has_annotations: bool) -> ServerStatus | None:
    try:
        found = _decoder.decode(raw)
    except UNREADABLE:
        return None
    metadata = found.metadata
    annotations = bytes(metadata.annotations) if has_annotations else b""
    return ServerStatus(metadata.uid, metadata.version, metadata.generation, bytes(found.status), annotations)


class _Watched:
    """A `ReflectorHandler` that wraps another."""

    __slots__ = ("_changed", "_handler", "_kind", "_statuses", "replaced")

    def __init__(
        self,
        kind: ObjectKind,
        handler: ReflectorHandler,
        statuses: ServerStatuses,
        changed: Callable[[ObjectKey], None],
    ) -> None:
        self._kind = kind
        self._handler = handler
        self._statuses = statuses
        self._changed = changed
        self.replaced = handler.replaced

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        own = self._key(key)
        before = self._statuses.get(own)
        after = self._statuses.record(own, raw)
        self._handler.upsert(key, raw)
        # otherwise the event reports our own write
        if before is None or after is None or not before.is_same_version(after):
            self._changed(own)

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        own = self._key(key)
        self._statuses.forget(own)
        self._handler.delete(key, raw)
        self._changed(own)

    def _key(self, key: str) -> ObjectKey:
        namespace, _, name = key.rpartition("/")
        return self._kind, namespace, name
