"""A small view of all objects of one kind, kept current by a watch: what controllers read instead of asking the server.

Owns its documents; readers must not change them. Promises that listeners hear of every change after the cache has taken
it, synthetic deletes after a relist included. Called by the controllers of this folder.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import msgspec

from multisched.cluster.client.object_client import Document, ObjectClient, Resource, key_of
from multisched.cluster.client.object_watch import ObjectWatch

Listener = Callable[[Document | None, Document | None], None]
"""Called with the old and the new state; None: there was, or is, no such object."""

Indexer = Callable[[Document], Iterable[str]]
Projection = Callable[[Document], Document]

_NOTHING: dict[str, Document] = {}


def whole(document: Document) -> Document:
    """Keeps everything but the bookkeeping of field managers, which no controller here reads."""
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
        """What was written up to this resource version is in the cache."""
        return self.watch.reached

    def listen(self, listener: Listener) -> None:
        """Adds a listener; must be called before `watch.run`."""
        self._listeners.append(listener)

    def find(self, key: str) -> Document | None:
        return self.objects.get(key)

    def under(self, index_key: str) -> list[Document]:
        """The objects filed under this index key, in the order in which they came."""
        return list(self._index.get(index_key, _NOTHING).values())

    def replace(self, items: list[msgspec.Raw]) -> None:
        documents = [self._projection(msgspec.json.decode(item)) for item in items]
        present = {key_of(document) for document in documents}
        for key in [key for key in self.objects if key not in present]:
            self._drop(key)
        for document in documents:
            self._store(document)

    def put(self, item: msgspec.Raw) -> None:
        """Stores one object and tells the listeners."""
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
