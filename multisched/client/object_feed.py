"""Passes the objects of one kind to their handler, each version once and in order, from lists and from watches.

Owns which versions have been passed on, the guard against older ones (`KnownObjects`), and the position in the server's
history. One reflector owns one instance; its lists and its watch write to it in turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from multisched.client.known_objects import KnownObjects, Observation, is_older
from multisched.framework.ports import Clock
from multisched.model.decode_metadata import with_valid_text

BATCH_ITEMS: Final = 128
"""Number of objects after which the feed yields to other tasks."""


class ReflectorHandler(Protocol):
    """The store behind a reflector. Synchronous functions: the reflector never waits for its handler."""

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        """Adds or updates an object. `key` is namespace/name, or the bare name; `raw` its JSON, valid during the call only."""
        ...

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        """Removes an object. `raw` is its last state, None if the deletion itself was not seen."""
        ...

    def replaced(self, version: str) -> None:
        """Notes that a complete list was passed on: the store equals the server's state as of `version`.

        `version` is empty if the server does not serve the kind, which need not be installed.
        """
        ...


class ObjectMetadata(msgspec.Struct, gc=False):
    """The metadata that the version guard needs."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    version: str = msgspec.field(name="resourceVersion", default="")

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class _Object(msgspec.Struct, gc=False):
    metadata: ObjectMetadata


_object_decoder = msgspec.json.Decoder(_Object)


def metadata_of(raw: msgspec.Raw) -> ObjectMetadata:
    """Decodes the metadata. Raises the errors in `UNREADABLE`."""
    try:
        return _object_decoder.decode(raw).metadata
    except UnicodeDecodeError:  # one invalid object must not make its whole kind unreadable
        return _object_decoder.decode(with_valid_text(raw)).metadata


class FeedCounters(msgspec.Struct):
    """Counters since start."""

    upserts: int = 0
    deletes: int = 0
    synthetic_deletes: int = 0
    duplicates: int = 0
    stale: int = 0


class ObjectFeed:
    """Passes the objects of one kind to their handler."""

    def __init__(self, handler: ReflectorHandler, clock: Clock) -> None:
        self.counters = FeedCounters()
        self.known = KnownObjects()
        self.position = ""
        """The resourceVersion up to which everything that the server sent has been passed on."""
        self.newest = ""
        """The newest version of anything passed on; newer than the position while a list arrives in pages."""
        self._handler = handler
        self._clock = clock

    # -- lists -----------------------------------------------------------------------------------------------------

    def begin_list(self, version: str = "") -> None:
        """Starts a list. `version`: of a list that is as new as what is known, or newer."""
        self.known.begin_replace()
        self.newest = version or self.newest

    def end_list(self, version: str) -> None:
        """Ends a complete list: deletes the known objects that it lacked."""
        self._delete_unseen(self.known.end_replace(version, self._clock.monotonic()))
        self.position = self.newest = version
        self._handler.replaced(version)

    def _delete_unseen(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._handler.delete(key, None)
            self.counters.synthetic_deletes += 1

    # -- objects ---------------------------------------------------------------------------------------------------

    def observe(self, metadata: ObjectMetadata, raw: msgspec.Raw) -> Observation:
        """Passes on an object that was listed, added or modified, unless its version is known or old."""
        key = metadata.key
        verdict = self.known.observe(key, metadata.uid, metadata.version)
        if verdict is Observation.UPSERT:
            self.counters.upserts += 1
            self._handler.upsert(key, raw)
        elif verdict is Observation.REPLACE:
            self.known.replace(key, metadata.uid, metadata.version, self._clock.monotonic())
            self.counters.synthetic_deletes += 1
            self.counters.upserts += 1
            self._handler.delete(key, None)
            self._handler.upsert(key, raw)
        elif verdict is Observation.DUPLICATE:
            self.counters.duplicates += 1
        else:
            self.counters.stale += 1
        return verdict

    def remove(self, metadata: ObjectMetadata, raw: msgspec.Raw) -> None:
        """Passes on the deletion of an object, whose last state this is."""
        key = metadata.key
        verdict = self.known.remove(key, metadata.uid, metadata.version, self._clock.monotonic())
        if verdict is Observation.DELETE:
            self.counters.deletes += 1
            self._handler.delete(key, raw)
        elif verdict is Observation.REPLACE:
            self.counters.synthetic_deletes += 1
            self._handler.delete(key, None)
        else:
            self.counters.stale += 1

    def advance(self, version: str) -> None:
        """Moves the position to that of a watch event. An older, reordered event does not move it back; single objects
        have their own guard.
        """
        if version and not is_older(version, self.position):
            self.position = self.newest = version
