"""The API server's store as somebody follows it: every change of some kinds, in order, each object read once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from multisched.cluster.api.server import ApiServer
from multisched.cluster.base.storage import Stored

Document = dict[str, Any]
OnChange = Callable[[str, Document | None, Document | None], None]
"""Hears of kind, object before and object after; None for an object that was not there, or is gone."""


class FollowedStore:
    """Cheap where nothing has changed. After a restored backup what differs from before counts as changed."""

    def __init__(self, server: ApiServer, kinds: Mapping[str, str], on_change: OnChange) -> None:
        """`kinds`: key of the store -> kind, each followed before those behind it."""
        self._server = server
        self._kinds = kinds
        self._on_change = on_change
        self._known: dict[str, dict[str, tuple[Stored, Document]]] = {storage: {} for storage in kinds}
        self._read: dict[str, tuple[dict[str, Stored], int]] = {}
        """Key of the store -> its objects, which a restore replaces, and the version up to which they were read."""

    def follow(self) -> None:
        """Takes in what has changed since the last call."""
        for storage, kind in self._kinds.items():
            collection, known = self._server.store.collection(storage), self._known[storage]
            objects, version = self._read.get(storage, (None, 0))
            if objects is collection.objects and version == collection.changed_at:
                continue
            self._read[storage] = collection.objects, collection.changed_at
            events = collection.events_since(version) if objects is collection.objects else None
            if events is not None:
                for event in events:
                    self._write(kind, known, event.key, event.after)
                continue
            for key in [key for key in known if key not in collection.objects]:
                self._write(kind, known, key, None)
            for key, stored in list(collection.objects.items()):
                self._write(kind, known, key, stored)

    def _write(self, kind: str, known: dict[str, tuple[Stored, Document]], key: str, stored: Stored | None) -> None:
        before = known.pop(key, None)
        after = orjson.loads(stored.raw) if stored is not None else None
        if stored is not None and after is not None:
            known[key] = stored, after
        if before is None or before[0] is not stored:
            self._on_change(kind, before[1] if before is not None else None, after)
