"""A cache of all objects of one kind, kept current by a watch; controllers read it instead of the API server.

Owns its documents; readers must not change them. Listeners are called for every change, after the cache was updated,
including deletions found by a relist. Used by the controllers of the embedded cluster.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import msgspec

from multisched.cluster.client.object_client import Document, ObjectClient, Resource, key_of
from multisched.cluster.client.object_watch import ObjectWatch

Listener = Callable[[Document | None, Document | None], None]
"""Called with the old and the new state of an object. The old one is None for an added object, the new one for a deleted object."""

Indexer = Callable[[Document], Iterable[str]]
Projection = Callable[[Document], Document]

_NOTHING: dict[str, Document] = {}


def whole(document: Document) -> Document:
    """Keeps the whole object except managedFields, which no controller here reads."""
    document["metadata"].pop("managedFields", None)
    return document


class ObjectCache:
    """All objects of one resource by key, with one optional index."""

    def __init__(
        self,
        client: ObjectClient,
        resource: Resource,
        *,
        rng: random.Random,
        projection: Projection = whole,
        index_by: Indexer | None = None,
    ) -> None:
        self.resource = resource
        self.objects: dict[str, Document] = {}
        self._projection = projection
        self._index_by = index_by
        self._index: dict[str, dict[str, Document]] = {}
        self._listeners: list[Listener] = []
        self.watch = ObjectWatch(client, resource.path(), self, rng=rng)

    @property
    def version(self) -> int:
        """Returns a resource version; all writes up to it are in the cache."""
        return self.watch.reached

    def listen(self, listener: Listener) -> None:
        """Adds a listener; must be called before `watch.run`."""
        self._listeners.append(listener)

    def find(self, key: str) -> Document | None:
        return self.objects.get(key)

    def under(self, index_key: str) -> list[Document]:
        """Returns the objects with this index key, in the order in which they were added."""
        return list(self._index.get(index_key, _NOTHING).values())

    def replace(self, items: list[msgspec.Raw]) -> None:
        documents = [self._projection(msgspec.json.decode(item)) for item in items]
        present = {key_of(document) for document in documents}
        for key in [key for key in self.objects if key not in present]:
            self._drop(key)
        for document in documents:
            self._store(document)

    def put(self, item: msgspec.Raw) -> None:
        """Stores one object and calls the listeners."""
        self._store(self._projection(msgspec.json.decode(item)))

    def remove(self, item: msgspec.Raw) -> None:
        self._drop(key_of(msgspec.json.decode(item)))

    def _store(self, document: Document) -> None:
        key = key_of(document)
        old = self.objects.get(key)
        if old is not None:
            if old["metadata"]["uid"] != document["metadata"]["uid"]:
                self._drop(key)
                old = None
            elif old["metadata"].get("resourceVersion") == document["metadata"].get("resourceVersion"):
                return
            else:
                self._unfile(key, old)
        self.objects[key] = document
        if self._index_by is not None:
            for index_key in self._index_by(document):
                self._index.setdefault(index_key, {})[key] = document
        for listener in self._listeners:
            listener(old, document)

    def _drop(self, key: str) -> None:
        old = self.objects.pop(key, None)
        if old is None:
            return
        self._unfile(key, old)
        for listener in self._listeners:
            listener(old, None)

    def _unfile(self, key: str, document: Document) -> None:
        if self._index_by is None:
            return
        for index_key in self._index_by(document):
            filed = self._index.get(index_key)
            if filed is not None:
                filed.pop(key, None)
                if not filed:
                    del self._index[index_key]
