"""ObjectStore: the cluster's objects besides pods and nodes, as the watches delivered them.

Implements `framework.objects_view.ObjectsView`. Written synchronously by `shell/ingest/objects.py` (and by code that
loads a snapshot), read by plugins through `PluginContext.objects`; a process has one, `ClusterCache.objects`. It holds
only the API server's state: what a plugin assumes about an object (a binding in flight) is in that plugin's ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, cast

from multisched.framework.objects_view import ObjectsView
from multisched.framework.recency import Recency
from multisched.model.cluster_objects import (
    ClusterObject,
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    ResourceSlice,
    Service,
    StorageClass,
    VolumeAttachment,
)
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import differ_in_version_only

_SERVICE: Final = ObjectKind.SERVICE
"""A constant, because in Python 3.11 looking up an enum member takes as long as three calls, and every attempt reads services."""
_Key = tuple[str, str]
_Found = dict[_Key, ClusterObject]


class _Shelf:
    """All objects of one kind, by key and by one index. Look-ups never scan."""

    def __init__(self, index_of: Callable[[ClusterObject], str]) -> None:
        self.recency: Recency[_Key] = Recency()
        self.found: _Found = {}
        self.by_index: dict[str, _Found] = {}
        self.last_removed: ClusterObject | None = None
        self._index_of = index_of

    def set(self, item: ClusterObject) -> ClusterObject | None:
        key = (item.namespace, item.name)
        before = self.found.get(key)
        if before is not None:
            item = item.after(before)
            if differ_in_version_only(before, item):
                self.found[key] = self.by_index[self._index_of(item)][key] = item
                return before
        index = self._index_of(item)
        if before is not None and self._index_of(before) != index:
            self._unindex(key, before)
        self.found[key] = item
        self.by_index.setdefault(index, {})[key] = item
        self.recency.note(key)
        return before

    def remove(self, namespace: str, name: str) -> ClusterObject | None:
        key = (namespace, name)
        before = self.found.pop(key, None)
        if before is not None:
            self._unindex(key, before)
            self.recency.note(key)
            self.last_removed = before
        return before

    def _unindex(self, key: _Key, item: ClusterObject) -> None:
        index = self._index_of(item)
        entries = self.by_index[index]
        del entries[key]
        if not entries:
            del self.by_index[index]


class ObjectStore(ObjectsView):
    """Objects by kind, namespace and name."""

    def __init__(self) -> None:
        self.sequence = 0
        self._shelves = {kind: _Shelf(kind.definition.index_of or (lambda o: o.namespace)) for kind in ObjectKind}
        self._unreadable: dict[ObjectKind, str] = {}
        # Direct references to the kinds that plugins look up individually, a hundred thousand times in a row.
        self._claims = cast(dict[_Key, PersistentVolumeClaim], self._found(ObjectKind.PERSISTENT_VOLUME_CLAIM))
        self._volumes = cast(dict[_Key, PersistentVolume], self._found(ObjectKind.PERSISTENT_VOLUME))

    def _found(self, kind: ObjectKind) -> _Found:
        return self._shelves[kind].found

    # -- writing ---------------------------------------------------------------------------------------------------

    def set(self, kind: ObjectKind, item: ClusterObject) -> ClusterObject | None:
        """Adds or updates the object. Returns its previous version, if known."""
        self.sequence += 1
        return self._shelves[kind].set(item)

    def remove(self, kind: ObjectKind, namespace: str, name: str) -> ClusterObject | None:
        """Removes the object. Returns its last version; None if it is unknown."""
        self.sequence += 1
        return self._shelves[kind].remove(namespace, name)

    def set_last_removed(self, kind: ObjectKind, item: ClusterObject) -> None:
        """Sets the object that was removed last: for a copy of a store, or for a kept object."""
        self.sequence += 1
        self._shelves[kind].recency.sequence += 1
        self._shelves[kind].last_removed = item

    def set_unreadable(self, kind: ObjectKind, why: str) -> None:
        """Records why the API server does not let this process read the kind; empty: it does."""
        if bool(why) != bool(self.unreadable(kind)):
            self.sequence += 1
            self._shelves[kind].recency.sequence += 1
        self._unreadable[kind] = why

    def __len__(self) -> int:
        return sum(len(shelf.found) for shelf in self._shelves.values())

    # -- reading (ObjectsView) -------------------------------------------------------------------------------------

    def get(self, kind: ObjectKind, namespace: str, name: str) -> ClusterObject | None:
        return self._shelves[kind].found.get((namespace, name))

    def in_namespace(self, kind: ObjectKind, namespace: str) -> Collection[ClusterObject]:
        if kind.definition.index_of is not None:
            return [item for (place, _), item in self._shelves[kind].found.items() if place == namespace]
        return self._by_index(kind, namespace)

    def all(self, kind: ObjectKind) -> Collection[ClusterObject]:
        return self._shelves[kind].found.values()

    def last_removed(self, kind: ObjectKind) -> ClusterObject | None:
        return self._shelves[kind].last_removed

    def version(self, kind: ObjectKind) -> int:
        return self._shelves[kind].recency.sequence

    def changed_since(self, kind: ObjectKind, version: int) -> Collection[tuple[str, str]] | None:
        return self._shelves[kind].recency.since(version)

    def unreadable(self, kind: ObjectKind) -> str:
        return self._unreadable.get(kind, "")

    def versions(self, *kinds: ObjectKind) -> tuple[int, ...]:
        return tuple(self._shelves[kind].recency.sequence for kind in kinds)

    def _by_index(self, kind: ObjectKind, index: str) -> Collection[Any]:
        entries = self._shelves[kind].by_index.get(index)
        return entries.values() if entries is not None else ()

    def namespace(self, name: str) -> Namespace | None:
        return cast(Namespace | None, self.get(ObjectKind.NAMESPACE, "", name))

    def volume(self, name: str) -> PersistentVolume | None:
        return self._volumes.get(("", name))

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        return self._claims.get((namespace, name))

    def storage_class(self, name: str) -> StorageClass | None:
        return cast(StorageClass | None, self.get(ObjectKind.STORAGE_CLASS, "", name))

    def csi_node(self, node: str) -> CsiNode | None:
        return cast(CsiNode | None, self.get(ObjectKind.CSI_NODE, "", node))

    def csi_driver(self, name: str) -> CsiDriver | None:
        return cast(CsiDriver | None, self.get(ObjectKind.CSI_DRIVER, "", name))

    def services(self, namespace: str) -> Collection[Service]:
        return self._by_index(_SERVICE, namespace)

    def disruption_budgets(self, namespace: str) -> Collection[PodDisruptionBudget]:
        return self._by_index(ObjectKind.POD_DISRUPTION_BUDGET, namespace)

    def volumes(self) -> Collection[PersistentVolume]:
        return cast(Collection[PersistentVolume], self.all(ObjectKind.PERSISTENT_VOLUME))

    def volumes_of_class(self, storage_class: str) -> Collection[PersistentVolume]:
        return self._by_index(ObjectKind.PERSISTENT_VOLUME, storage_class)

    def storage_capacities(self, storage_class: str) -> Collection[CsiStorageCapacity]:
        return self._by_index(ObjectKind.CSI_STORAGE_CAPACITY, storage_class)

    def slices_on(self, node: str) -> Collection[ResourceSlice]:
        return self._by_index(ObjectKind.RESOURCE_SLICE, node)

    def attachments_on(self, node: str) -> Collection[VolumeAttachment]:
        return self._by_index(ObjectKind.VOLUME_ATTACHMENT, node)
