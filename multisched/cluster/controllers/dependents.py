"""The graph of owners and dependents over all kinds, for garbage collection.

Owns one small entry per object of the cluster. Calls `on_changed` with the uid of every object that must be checked again: the changed
object, its dependents if it was deleted, and those of its owners that are being deleted, because they may wait for it. Used only by the
garbage collector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from multisched.cluster.client.object_client import Resource

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"


class Owner(msgspec.Struct, frozen=True, gc=False):
    """One owner reference."""

    apiVersion: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    blockOwnerDeletion: bool | None = None


class _Meta(msgspec.Struct, frozen=True, gc=False):
    name: str
    uid: str
    namespace: str = ""
    deletionTimestamp: str | None = None
    finalizers: tuple[str, ...] | None = None
    ownerReferences: tuple[Owner, ...] | None = None


class _Object(msgspec.Struct, frozen=True, gc=False):
    metadata: _Meta


_OBJECT = msgspec.json.Decoder(_Object)


@dataclass(frozen=True, slots=True)
class Owned:
    """The graph's entry for one object."""

    resource: Resource
    namespace: str
    name: str
    uid: str
    owners: tuple[Owner, ...]
    finalizers: tuple[str, ...]
    is_deleting: bool

    @property
    def waits_for_dependents(self) -> bool:
        """Reports whether the object is being deleted in the foreground, that is, after its dependents."""
        return self.is_deleting and FOREGROUND in self.finalizers

    def blocks(self, owner_uid: str) -> bool:
        """Reports whether an owner deleted in the foreground must wait for this object."""
        return any(owner.uid == owner_uid and owner.blockOwnerDeletion for owner in self.owners)


def read_owned(resource: Resource, raw: bytes | msgspec.Raw) -> Owned:
    """Decodes the entry of an object. Raises msgspec.DecodeError."""
    meta = _OBJECT.decode(raw).metadata
    return Owned(
        resource,
        meta.namespace,
        meta.name,
        meta.uid,
        meta.ownerReferences or (),
        meta.finalizers or (),
        meta.deletionTimestamp is not None,
    )


class Dependents:
    """The graph, by uid."""

    def __init__(self, on_changed: Callable[[str], None]) -> None:
        self._on_changed = on_changed
        self._objects: dict[str, Owned] = {}
        self._under: dict[str, dict[str, None]] = {}

    def find(self, uid: str) -> Owned | None:
        return self._objects.get(uid)

    def dependents_of(self, uid: str) -> list[Owned]:
        """Returns the objects that name this one as an owner, whether or not it exists."""
        return [self._objects[dependent] for dependent in self._under.get(uid, ())]

    def put(self, item: Owned) -> None:
        """Adds or replaces an object's entry."""
        before = self._objects.get(item.uid)
        if before == item:
            return
        if before is not None:
            self._unfile(before)
        self._objects[item.uid] = item
        for owner in item.owners:
            self._under.setdefault(owner.uid, {})[item.uid] = None
        if item.owners or item.is_deleting:
            self._on_changed(item.uid)
        self._notify_owners(before)

    def remove(self, uid: str) -> None:
        """Removes a deleted object's entry."""
        removed = self._objects.pop(uid, None)
        if removed is None:
            return
        self._unfile(removed)
        for dependent in self._under.get(uid, ()):
            self._on_changed(dependent)
        self._notify_owners(removed)

    def _notify_owners(self, item: Owned | None) -> None:
        for owner in item.owners if item is not None else ():
            found = self._objects.get(owner.uid)
            if found is not None and found.is_deleting:
                self._on_changed(owner.uid)

    def _unfile(self, item: Owned) -> None:
        for owner in item.owners:
            filed = self._under.get(owner.uid)
            if filed is not None:
                filed.pop(item.uid, None)
                if not filed:
                    del self._under[owner.uid]


class KindView:
    """Handles the watch of one kind: feeds its objects into the graph."""

    def __init__(self, graph: Dependents, resource: Resource) -> None:
        self._graph = graph
        self._resource = resource
        self._uids: dict[str, str] = {}
        """Namespace/name -> uid. An object that has the name of an earlier one replaces it, even if the watch missed that deletion."""

    def replace(self, items: list[msgspec.Raw]) -> None:
        present = [read_owned(self._resource, item) for item in items]
        keys = {_key(item) for item in present}
        for key in [key for key in self._uids if key not in keys]:
            self._graph.remove(self._uids.pop(key))
        for item in present:
            self._put(item)

    def put(self, item: msgspec.Raw) -> None:
        self._put(read_owned(self._resource, item))

    def remove(self, item: msgspec.Raw) -> None:
        deleted = read_owned(self._resource, item)
        self._uids.pop(_key(deleted), None)
        self._graph.remove(deleted.uid)

    def __len__(self) -> int:
        return len(self._uids)

    def clear(self) -> None:
        """Removes all objects, because the kind is no longer served."""
        self.replace([])

    def _put(self, item: Owned) -> None:
        before = self._uids.get(_key(item))
        if before is not None and before != item.uid:
            self._graph.remove(before)
        self._uids[_key(item)] = item.uid
        self._graph.put(item)


def _key(item: Owned) -> str:
    return f"{item.namespace}/{item.name}"
