"""Follows the API server's store: every change of some kinds, in order. Each object is decoded once per version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from multisched.cluster.api.server import ApiServer
from multisched.cluster.base.storage import Stored

Document = dict[str, Any]
OnChange = Callable[[str, Document | None, Document | None], None]
"""Arguments: kind, object before, object after. None for an object that did not exist, or was deleted."""


class FollowedStore:
    """Reports the changes of a store to a callback. After a restored backup every difference counts as a change."""

    def __init__(self, server: ApiServer, kinds: Mapping[str, str], on_change: OnChange) -> None:
        """`kinds`: key of the store -> kind, in the order in which they are read."""
        self._server = server
        self._kinds = kinds
        self._on_change = on_change
        self._known: dict[str, dict[str, tuple[Stored, Document]]] = {storage: {} for storage in kinds}
        self._read: dict[str, tuple[dict[str, Stored], int]] = {}
        """Key of the store -> its objects, which a restore replaces, and the version up to which they were read."""

    def follow(self) -> None:
        """Reports the changes since the last call."""
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
