"""What plugins read of the cluster besides pods and nodes: services, volumes, claims, budgets and their like.

A plugin that reads such objects declares the kinds, as an attribute of its class, and keeps the view it is given:

    class VolumeZone:
        traits = Traits(reads_objects=(ObjectKind.PERSISTENT_VOLUME, ObjectKind.PERSISTENT_VOLUME_CLAIM))

        def __init__(self, context: PluginContext) -> None:
            self._objects = context.objects

The program watches the union of what the enabled plugins declare, and the kinds whose events they register: any other
is always empty here. The view shows what the watch brought, synchronously kept. What a plugin has promised about an
object before the server knows it (an assumed binding) is in that plugin's ledger, not here. Never change what is handed
out.

`version(kind)` rises at each change of any object of the kind. A plugin that caches something made of such objects keys
its cache by `versions(*kinds)`. Collections are live, in the order in which objects came, and cost nothing to get.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from multisched.model.cluster_objects import (
    ClusterObject,
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    Service,
    StorageClass,
    VolumeAttachment,
)
from multisched.model.object_kinds import ObjectKind


class ObjectsView(Protocol):
    """Read access to the object store. `namespace` is empty for cluster-wide kinds.

    Border: the state keeps them (`ObjectStore`), and no plugin sees the state.
    """

    def get(self, kind: ObjectKind, namespace: str, name: str) -> ClusterObject | None:
        """The object, or None if there is none; the typed accessors below say the same with the struct's type."""
        ...

    def in_namespace(self, kind: ObjectKind, namespace: str) -> Collection[ClusterObject]:
        """All objects of the kind in one namespace. A live view: copy to keep it."""
        ...

    def all(self, kind: ObjectKind) -> Collection[ClusterObject]:
        """All objects of the kind. A live view: copy to keep it."""
        ...

    def last_removed(self, kind: ObjectKind) -> ClusterObject | None:
        """The object of the kind that was deleted last, as it was then; None if none was since the process started."""
        ...

    sequence: int
    """Rises whenever a `version` may have risen: the cheapest way to see that none has."""

    def version(self, kind: ObjectKind) -> int:
        """Raised when an object of the kind comes, goes, or changes in what is kept of it.

        Also raised when the kind ceases to be readable, or is again. Never falls; 0 at first.

        An update that changes nothing but `version` does not raise it.
        """
        ...

    def changed_since(self, kind: ObjectKind, version: int) -> Collection[tuple[str, str]] | None:
        """Namespace and name of each object that changed, came or went after `version`; None: too long ago to know."""
        ...

    def unreadable(self, kind: ObjectKind) -> str:
        """Why the API server does not let us read the kind (403, 404); empty while it does, or while nobody watches it.

        What is seen of the kind then is empty or old: who would do harm by going on without it, asks here first.
        """
        ...

    def versions(self, *kinds: ObjectKind) -> tuple[int, ...]:
        """`version` of each: a key for what is made of several kinds."""
        ...

    def namespace(self, name: str) -> Namespace | None: ...

    def volume(self, name: str) -> PersistentVolume | None: ...

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None: ...

    def storage_class(self, name: str) -> StorageClass | None: ...

    def csi_node(self, node: str) -> CsiNode | None: ...

    def csi_driver(self, name: str) -> CsiDriver | None: ...

    def services(self, namespace: str) -> Collection[Service]: ...

    def disruption_budgets(self, namespace: str) -> Collection[PodDisruptionBudget]: ...

    def volumes(self) -> Collection[PersistentVolume]: ...

    def volumes_of_class(self, storage_class: str) -> Collection[PersistentVolume]:
        """The volumes of one storage class (empty for those without)."""
        ...

    def storage_capacities(self, storage_class: str) -> Collection[CsiStorageCapacity]:
        """What CSI drivers say of the room there is for volumes of a class."""
        ...

    def attachments_on(self, node: str) -> Collection[VolumeAttachment]:
        """Volume attachments that name the node."""
        ...


def hidden(objects: ObjectsView, *kinds: ObjectKind) -> str:
    """Why something that depends on these kinds cannot be known, in words for a pod's owner; empty where all can be read.

    What the API server does not show looks as if it did not exist. A plugin that would place a pod on that ground, or
    refuse it for good, lets it wait with this sentence instead. The pod is woken when the kind can be read again.
    """
    for kind in kinds:
        why = objects.unreadable(kind)
        if why:
            return f"{kind.value} objects cannot be read by the scheduler: {why}"
    return ""
