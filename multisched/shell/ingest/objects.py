"""Applies watch events of other kinds (services, volumes, claims and so on) to the object store, one handler per kind.

`ObjectIngest` implements `client.object_feed.ReflectorHandler`. Objects go to the cache's `ObjectStore` synchronously. A
malformed object is kept as `malformed` and counted, and gets one event per fault; bad input never raises.

Every change goes to `Router`, which passes events only to domains in which a plugin has registered them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, auto

import msgspec

from multisched.framework.events import Action, ClusterEvent, EventObject, Resource
from multisched.framework.ports import Event, EventSink, ObjectRef
from multisched.model.cluster_objects import ClusterObject
from multisched.model.decode import DecodeError
from multisched.model.object_kinds import ObjectKind
from multisched.state.object_store import ObjectStore

logger = logging.getLogger(__name__)

REPORTED_MAX = 10_000
"""Maximum number of malformed objects per kind remembered as reported; beyond it, the oldest may be reported again."""

Notify = Callable[[ClusterEvent, EventObject, EventObject], None]


class KindState(Enum):
    """Whether a kind can be listed."""

    LISTED = auto()
    NOT_SERVED = auto()
    """Its CRD or API version is not installed."""
    FORBIDDEN = auto()


OnState = Callable[[ObjectKind, KindState], None]


class ObjectIngest:
    """Ingest of one kind into the object store."""

    def __init__(self, kind: ObjectKind, store: ObjectStore, notify: Notify, events: EventSink, by: str) -> None:
        """`by`: schedulerName that events report as their source."""
        self.kind = kind
        self.malformed = 0
        self._store = store
        self._decode = kind.definition.decode
        self._notify = notify
        self._sink = events
        self._by = by
        self.on_state: OnState = _ignore
        """Called with the state of the kind after each list and each 404 or 403."""
        self.reads_nothing: Callable[[], bool] = lambda: False
        """Reports whether no other kind can be read either. A starting API server refuses every kind until it has read its roles."""
        self._is_logged = False
        self._reported: dict[str, str] = {}
        self._events = {
            action: ClusterEvent(kind, action, f"{kind.value}{label}")
            for action, label in ((Action.ADD, "Add"), (Action.UPDATE, "Update"), (Action.DELETE, "Delete"))
        }

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        try:
            item = self._decode(raw)
        except DecodeError as error:
            self.malformed += 1
            logger.warning("object cannot be read", extra={"kind": self.kind.value, "key": key, "error": str(error)})
            return
        if item.malformed:
            self._report(item)
        else:
            self._reported.pop(key, None)
        version = self._store.version(self.kind)
        before = self._store.set(self.kind, item)
        if self._store.version(self.kind) != version:
            self._notify(self._events[Action.ADD if before is None else Action.UPDATE], before, item)

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        del raw
        namespace, _, name = key.rpartition("/")
        self._reported.pop(key, None)
        before = self._store.remove(self.kind, namespace, name)
        if before is None:
            return
        if before.deletion_note:
            fields = {"kind": self.kind.value, "key": before.key, "note": before.deletion_note}
            logger.warning("object was deleted", extra=fields)
            self._record(before, f"{self.kind.definition.name}Deleted", before.deletion_note)
        self._notify(self._events[Action.DELETE], before, None)

    def restore_deleted(self, raw: bytes) -> None:
        """Handles an object that may have been deleted before this process started, and stays in effect.

        Ignored if this process has seen a deletion of the kind, because that one is at least as new. The deletion is neither logged nor
        recorded as an event: an earlier process has done so, and if the kind cannot be listed yet, the object may still exist. If it
        exists, `raw` is the version that was in effect last; it is used if the current version is invalid.
        """
        try:
            item = self._decode(raw)
        except DecodeError as error:
            logger.warning("kept object cannot be read", extra={"kind": self.kind.value, "error": str(error)})
            return
        if self._store.last_removed(self.kind) is not None:
            return
        self._store.set_last_removed(self.kind, item)
        if not any(one.uid == item.uid for one in self._store.all(self.kind)):
            self._notify(self._events[Action.DELETE], item, None)

    def replaced(self, version: str) -> None:
        if self._store.unreadable(self.kind):
            if self._is_logged:
                logger.info("kind can be read again", extra={"kind": self.kind.value})
            self._is_logged = False
            self._store.set_unreadable(self.kind, "")
            self._notify(ClusterEvent(Resource.WILDCARD, Action.ALL, f"{self.kind.value}Readable"), None, None)
        self.on_state(self.kind, KindState.LISTED if version else KindState.NOT_SERVED)
        count = len(self._store.all(self.kind))
        logger.info("objects listed", extra={"kind": self.kind.value, "version": version, "objects": count})

    def refused(self, error: str) -> None:
        """Handles a 404 or 403 for the kind. Objects that are known already stay in the store.

        Logs it once, as an error if the kind is needed, and not before another kind can be read: until then the failed lists of pods and
        nodes are logged.
        """
        if not self._is_logged and not self.reads_nothing():
            self._is_logged = True
            fields = {"kind": self.kind.value, "error": error, "path": self.kind.definition.path}
            logger.log(
                logging.ERROR if self.kind.definition.is_needed else logging.WARNING,
                "kind cannot be read; grant get, list and watch on it, or disable the plugin that reads it",
                extra=fields,
            )
        self._store.set_unreadable(self.kind, error)
        self.on_state(self.kind, KindState.FORBIDDEN)

    def _report(self, item: ClusterObject) -> None:
        if self._reported.get(item.key) == item.malformed:
            return
        if len(self._reported) >= REPORTED_MAX:
            del self._reported[next(iter(self._reported))]
        self._reported[item.key] = item.malformed
        self.malformed += 1
        fields = {"kind": self.kind.value, "key": item.key, "error": item.malformed}
        logger.warning("object is malformed", extra=fields)
        self._record(item, f"Malformed{self.kind.definition.name}", f"Not used for scheduling: {item.malformed}")

    def _record(self, item: ClusterObject, reason: str, note: str) -> None:
        definition = self.kind.definition
        ref = ObjectRef(definition.name, item.namespace, item.name, item.uid, definition.api_version)
        self._sink.record(Event(ref, "Warning", reason, "Scheduling", note, self._by))


def _ignore(kind: ObjectKind, state: KindState) -> None:
    """Default callback: does nothing."""
