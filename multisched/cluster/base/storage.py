"""The objects of the cluster, as encoded bytes with a small index, under one global resource version.

Owns every stored object, the history of each collection and the list of open watches. Written by `multisched.cluster`
only, always synchronously. A write and its event are one step, so a list and the watch that continues it leave no gap.
An object's version never goes back and a deleted uid never returns (I6).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

HISTORY_EVENTS = 10_000
"""Events kept per collection; older versions answer 410."""

SNAPSHOTS_MAX = 4
"""Past states of one collection kept for paged lists."""

_NO_LABELS: Mapping[str, str] = {}


class Stored:
    """One version of one object. `raw` is the canonical encoding and is never parsed for list, watch or selectors."""

    __slots__ = ("fields", "labels", "raw", "uid", "version")

    def __init__(self, raw: bytes, version: int, uid: str, labels: Mapping[str, str], fields: Sequence[str]) -> None:
        self.raw = raw
        self.version = version
        self.uid = uid
        self.labels = labels or _NO_LABELS
        self.fields = fields

    def document(self) -> dict[str, Any]:
        """A fresh copy that the caller may change."""
        loaded: dict[str, Any] = orjson.loads(self.raw)
        return loaded

    def at_version(self, version: int) -> bytes:
        """The same object under another version.

        The first `resourceVersion` of the encoding is the object's own: only names and a uid stand before it.
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

    Border: `cluster.api` has it (`WatchStream`), above the base.
    """

    def offer(self, event: Event, lines: dict[tuple[str, object], bytes]) -> None:
        """Takes one change; `lines` shares encodings between the observers of this event."""
        ...


@dataclass(slots=True)
class Collection:
    """All objects of one storage key, e.g. `pods` or `leases.coordination.k8s.io`."""

    history_events: int = HISTORY_EVENTS
    objects: dict[str, Stored] = field(default_factory=dict)
    history: deque[Event] = field(default_factory=deque)
    compacted: int = 0
    """Watches and lists from versions below this answer 410."""
    changed_at: int = 0
    """Version of the last change: what is derived from the collection is cached under it."""
    observers: dict[Observer, None] = field(default_factory=dict)
    _sorted: list[str] | None = None
    _snapshots: OrderedDict[int, list[tuple[str, Stored]]] = field(default_factory=OrderedDict)

    def keys(self) -> list[str]:
        """Sorted as etcd sorts them; not to be changed."""
        if self._sorted is None:
            self._sorted = sorted(self.objects)
        return self._sorted

    def items(self, namespace: str = "") -> Iterator[tuple[str, Stored]]:
        """Objects in key order, of one namespace or of all."""
        objects, keys = self.objects, self.keys()
        if not namespace:
            return ((key, objects[key]) for key in keys)
        start, end = bisect_left(keys, namespace + "/"), bisect_left(keys, namespace + "0")
        return ((key, objects[key]) for key in keys[start:end])

    def items_at(self, version: int) -> list[tuple[str, Stored]] | None:
        """The state at a past version, by undoing history; None when that is forgotten."""
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
        """Events after a version, oldest first; None when some are forgotten."""
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
        """Applies a change, remembers it and tells the observers."""
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
        """Forgets history up to a version."""
        self.history.clear()
        self.compacted = version
        self._snapshots.clear()

    def restore(self, objects: dict[str, Stored], version: int) -> None:
        """Everything as a backup has it; history after `version` never was."""
        self.objects, self._sorted = objects, None
        self.changed_at = min(self.changed_at, version)
        self._snapshots.clear()

    def _forget_snapshots(self) -> None:
        for version in [version for version in self._snapshots if version < self.compacted]:
            del self._snapshots[version]


class Store:
    """Every collection, and the one counter of versions."""

    def __init__(self, history_events: int = HISTORY_EVENTS) -> None:
        self.version = 1
        self._history_events = history_events
        self._collections: dict[str, Collection] = {}

    def collection(self, storage: str) -> Collection:
        """The collection of a storage key; empty at first use."""
        found = self._collections.get(storage)
        if found is None:
            found = self._collections[storage] = Collection(self._history_events, compacted=0)
        return found

    def collections(self) -> Mapping[str, Collection]:
        """All, for compaction, namespace deletion and statistics."""
        return self._collections

    def drop(self, storage: str) -> None:
        """Forgets a collection with everything in it (its CRD is gone)."""
        self._collections.pop(storage, None)

    def next_version(self) -> int:
        """The version of the write that follows at once."""
        self.version += 1
        return self.version

    def compact(self) -> None:
        """Forgets all history: lists and watches from older versions answer 410."""
        for collection in self._collections.values():
            collection.compact(self.version)
