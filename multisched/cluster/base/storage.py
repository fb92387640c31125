"""The objects of the cluster, as encoded bytes with a small index, under one global resource version.

Owns every stored object, the history of each collection and the list of open watches. Written only by
`multisched.cluster`, always synchronously. A write and its event are one step, so no change is lost between a list and its watch.
An object's version never decreases, and the uid of a deleted object is never used again (I6).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

HISTORY_EVENTS = 10_000
"""Events kept per collection; requests for older versions get 410."""

SNAPSHOTS_MAX = 4
"""Number of past states of one collection that are cached for paginated lists."""

_NO_LABELS: Mapping[str, str] = {}


class Stored:
    """One version of one object. `raw` is the canonical encoding; list, watch and selectors never parse it."""

    __slots__ = ("fields", "labels", "raw", "uid", "version")

    def __init__(self, raw: bytes, version: int, uid: str, labels: Mapping[str, str], fields: Sequence[str]) -> None:
        self.raw = raw
        self.version = version
        self.uid = uid
        self.labels = labels or _NO_LABELS
        self.fields = fields

    def document(self) -> dict[str, Any]:
        """Decodes the object; the caller may change the result."""
        loaded: dict[str, Any] = orjson.loads(self.raw)
        return loaded

    def at_version(self, version: int) -> bytes:
        """Returns the encoded object with another resourceVersion.

        The first `resourceVersion` in the encoding is the object's own: only names and a uid precede it.
        """
        old = b'"resourceVersion":"%d"' % self.version
        return self.raw.replace(old, b'"resourceVersion":"%d"' % version, 1)


class Event:
    """One change of one object."""

    __slots__ = ("after", "before", "key", "version")

    def __init__(self, version: int, key: str, before: Stored | None, after: Stored | None) -> None:
        self.version = version
        self.key = key
        self.before = before
        self.after = after


class Observer(Protocol):
    """An open watch.

    Implemented by `cluster.api.watch.WatchStream`, which this module must not import.
    """

    def offer(self, event: Event, lines: dict[tuple[str, object], bytes]) -> None:
        """Receives one change; `lines` caches its encodings for all observers."""
        ...


@dataclass(slots=True)
class Collection:
    """All objects of one storage key, e.g. `pods` or `leases.coordination.k8s.io`."""

    history_events: int = HISTORY_EVENTS
    objects: dict[str, Stored] = field(default_factory=dict)
    history: deque[Event] = field(default_factory=deque)
    compacted: int = 0
    """Watches and lists from versions below this get 410."""
    changed_at: int = 0
    """Version of the last change; caches derived from the collection depend on it."""
    observers: dict[Observer, None] = field(default_factory=dict)
    _sorted: list[str] | None = None
    _snapshots: OrderedDict[int, list[tuple[str, Stored]]] = field(default_factory=OrderedDict)

    def keys(self) -> list[str]:
        """Returns the keys, sorted as in etcd; callers must not change the list."""
        if self._sorted is None:
            self._sorted = sorted(self.objects)
        return self._sorted

    def items(self, namespace: str = "") -> Iterator[tuple[str, Stored]]:
        """Returns the objects of one namespace, or of all, in key order."""
        objects, keys = self.objects, self.keys()
        if not namespace:
            return ((key, objects[key]) for key in keys)
        start, end = bisect_left(keys, namespace + "/"), bisect_left(keys, namespace + "0")
        return ((key, objects[key]) for key in keys[start:end])

    def items_at(self, version: int) -> list[tuple[str, Stored]] | None:
        """Returns the state at a past version, by undoing history; None if the history does not reach back so far."""
        if version < self.compacted:
            return None
        snapshot = self._snapshots.get(version)
        if snapshot is None:
            objects = dict(self.objects)
            for event in reversed(self.history):
                if event.version <= version:
                    break
                if event.before is None:
                    objects.pop(event.key, None)
                else:
                    objects[event.key] = event.before
            snapshot = sorted(objects.items())
            self._snapshots[version] = snapshot
            while len(self._snapshots) > SNAPSHOTS_MAX:
                self._snapshots.popitem(last=False)
        return snapshot

    def events_since(self, version: int) -> list[Event] | None:
        """Returns events after a version, oldest first; None if the history does not reach back so far."""
        if version < self.compacted:
            return None
        events = []
        for event in reversed(self.history):
            if event.version <= version:
                break
            events.append(event)
        events.reverse()
        return events

    def record(self, event: Event) -> None:
        """Applies a change, adds it to the history and notifies the observers."""
        self.changed_at = event.version
        if event.after is None:
            del self.objects[event.key]
            self._sorted = None
        else:
            if event.before is None or event.key not in self.objects:
                self._sorted = None
            self.objects[event.key] = event.after
        history = self.history
        history.append(event)
        if len(history) > self.history_events:
            self.compacted = history.popleft().version
            if self._snapshots:
                self._forget_snapshots()
        if self.observers:
            lines: dict[tuple[str, object], bytes] = {}
            for observer in tuple(self.observers):
                observer.offer(event, lines)

    def compact(self, version: int) -> None:
        """Discards history up to a version."""
        self.history.clear()
        self.compacted = version
        self._snapshots.clear()

    def restore(self, objects: dict[str, Stored], version: int) -> None:
        """Replaces all objects by those of a backup, taken at `version`."""
        self.objects, self._sorted = objects, None
        self.changed_at = min(self.changed_at, version)
        self._snapshots.clear()

    def _forget_snapshots(self) -> None:
        for version in [version for version in self._snapshots if version < self.compacted]:
            del self._snapshots[version]


class Store:
    """All collections, and the global version counter."""

    def __init__(self, history_events: int = HISTORY_EVENTS) -> None:
        self.version = 1
        self._history_events = history_events
        self._collections: dict[str, Collection] = {}

    def collection(self, storage: str) -> Collection:
        """Returns the collection of a storage key; creates it at first use."""
        found = self._collections.get(storage)
        if found is None:
            found = self._collections[storage] = Collection(self._history_events, compacted=0)
        return found

    def collections(self) -> Mapping[str, Collection]:
        """Returns all collections, for compaction, namespace deletion and statistics."""
        return self._collections

    def drop(self, storage: str) -> None:
        """Removes a collection and its objects (its CRD was deleted)."""
        self._collections.pop(storage, None)

    def next_version(self) -> int:
        """Increments the global version and returns it. The caller must write an object with this version in the same step."""
        self.version += 1
        return self.version

    def compact(self) -> None:
        """Discards all history: lists and watches from older versions get 410."""
        for collection in self._collections.values():
            collection.compact(self.version)
