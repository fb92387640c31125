"""Hands the objects of one kind on to their handler, each version once and in order, from lists and watches alike.

Owns what has been handed on, the guard against older versions (`KnownObjects`), and the position in the server's history.
One reflector owns one instance; its lists and its watch write to it by turns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from multisched.client.known_objects import KnownObjects, Verdict, is_older
from multisched.framework.ports import Clock
from multisched.model.decode_metadata import with_valid_text

BATCH_ITEMS: Final = 128
"""So many objects are handed on before other tasks get their turn."""


class ReflectorHandler(Protocol):
    """The store behind a reflector. Plain functions: the reflector never waits for its handler."""

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        """A new or newer object. `key` is namespace/name, or the bare name; `raw` its JSON, valid during the call only."""
        ...

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        """The object is gone. `raw` is its last state, None if the deletion itself was not seen."""
        ...

    def replaced(self, version: str) -> None:
        """A complete list has just been handed on: the store equals the server as of `version`.

        Empty: the server does not serve the kind, which need not be installed.
        """
        ...


class ObjectMetadata(msgspec.Struct, gc=False):
    """What the guard goes by."""

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
    """Raises what `UNREADABLE` names."""
    try:
        return _object_decoder.decode(raw).metadata
    except UnicodeDecodeError:  # one such object must not keep all others of its kind from being read
        return _object_decoder.decode(with_valid_text(raw)).metadata


class FeedCounters(msgspec.Struct):
    """Since the start."""

    upserts: int = 0
    deletes: int = 0
    synthetic_deletes: int = 0
    duplicates: int = 0
    stale: int = 0


class ObjectFeed:
    """Hands the objects of one kind on to their handler."""

    def __init__(self, handler: ReflectorHandler, clock: Clock) -> None:
        self.counters = FeedCounters()
        self.known = KnownObjects()
        self.position = ""
        """The resourceVersion up to which everything the server sent has been handed on."""
        self.newest = ""
        """The newest version that anything was handed on of; ahead of the position while a list comes in pages."""
        self._handler = handler
        self._clock = clock

    # -- lists -----------------------------------------------------------------------------------------------------

    def begin_list(self, version: str = "") -> None:
        """`version`: of a list that shows what is known, or something newer."""
        self.known.begin_replace()
        self.newest = version or self.newest

    def end_list(self, version: str) -> None:
        """It was handed on whole: what it lacked is gone."""
        self._delete_unseen(self.known.end_replace(version, self._clock.monotonic()))
        self.position = self.newest = version
        self._handler.replaced(version)

    def _delete_unseen(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._handler.delete(key, None)
            self.counters.synthetic_deletes += 1

    # -- objects ---------------------------------------------------------------------------------------------------

    def observe(self, metadata: ObjectMetadata, raw: msgspec.Raw) -> Verdict:
        """It was listed, added or modified."""
        key = metadata.key
        old_uid = self.known.uid_of(key)
        verdict = self.known.observe(key, metadata.uid, metadata.version)
        if verdict is Verdict.UPSERT:
            self.counters.upserts += 1
            self._handler.upsert(key, raw)
        elif verdict is Verdict.REPLACE:
            self.known.bury_replaced(old_uid, metadata.version, self._clock.monotonic())
            self.counters.synthetic_deletes += 1
            self.counters.upserts += 1
            self._handler.delete(key, None)
            self._handler.upsert(key, raw)
        elif verdict is Verdict.DUPLICATE:
            self.counters.duplicates += 1
        else:
            self.counters.stale += 1
        return verdict

    def remove(self, metadata: ObjectMetadata, raw: msgspec.Raw) -> None:
        """It was deleted, in this last state."""
        key = metadata.key
        verdict = self.known.remove(key, metadata.uid, metadata.version, self._clock.monotonic())
        if verdict is Verdict.DELETE:
            self.counters.deletes += 1
            self._handler.delete(key, raw)
        elif verdict is Verdict.REPLACE:
            self.counters.synthetic_deletes += 1
            self._handler.delete(key, None)
        else:
            self.counters.stale += 1

    def advance(self, version: str) -> None:
        """A watch has come as far. The guard of single objects is separate: an older event, reordered, moves nothing back."""
        if version and not is_older(version, self.position):
            self.position = self.newest = version
