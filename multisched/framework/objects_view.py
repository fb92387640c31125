"""ObjectsView: the objects that plugins read besides pods and nodes: services, volumes, claims, budgets and so on.

A plugin that reads such objects declares the kinds in its traits, and keeps the view it is given:

class VolumeZone: traits = Traits(reads_objects=(ObjectKind.PERSISTENT_VOLUME, ObjectKind.PERSISTENT_VOLUME_CLAIM))

def __init__(self, context: PluginContext) -> None: self._objects = context.objects

The program watches the union of what the enabled plugins declare and the kinds whose events they register. Every other kind is always empty
here. The view shows what the watch delivered. What a plugin decided about an object before the API server knows it (an assumed binding) is
in that plugin's ledger, not here. Never change the returned objects.

`version(kind)` rises at each change of any object of the kind. A plugin that caches something computed from such objects keys its cache by
`versions(*kinds)`. Collections are live, in the order in which the objects were added, and cost nothing to get.
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
    ResourceSlice,
    Service,
    StorageClass,
    VolumeAttachment,
)
from multisched.model.object_kinds import ObjectKind


class ObjectsView(Protocol):
    """Read access to the object store. `namespace` is empty for cluster-wide kinds.

    A Protocol because no plugin imports the state; implemented by the state (`ObjectStore`).
    """

    def get(self, kind: ObjectKind, namespace: str, name: str) -> ClusterObject | None:
        """Returns the object, or None; the typed accessors below return the same with the struct's type."""
        ...

    def in_namespace(self, kind: ObjectKind, namespace: str) -> Collection[ClusterObject]:
        """Returns all objects of the kind in one namespace. A live view: copy it to keep it."""
        ...

    def all(self, kind: ObjectKind) -> Collection[ClusterObject]:
        """Returns all objects of the kind. A live view: copy it to keep it."""
        ...

    def last_removed(self, kind: ObjectKind) -> ClusterObject | None:
        """Returns the object of the kind that was deleted last, in its last state; None if there is none.

        If none was deleted since the process started, it is the kept object (`framework/kept_object.py`), which may still exist.
        """
        ...

    sequence: int
    """Rises whenever a `version` may have risen: the cheapest check that nothing changed."""

    def version(self, kind: ObjectKind) -> int:
        """Returns a counter of the kind: raised when an object is added or deleted, or its stored fields change.

        Also raised when the kind becomes unreadable, or readable again. Never falls; starts at 0.

        An update that changes only the object's `version` does not raise it.
        """
        ...

    def changed_since(self, kind: ObjectKind, version: int) -> Collection[tuple[str, str]] | None:
        """Returns namespace and name of each object changed, added or deleted after `version`; None: not recorded so far back."""
        ...

    def unreadable(self, kind: ObjectKind) -> str:
        """Returns why the API server does not let this process read the kind (403, 404); empty if it does, or if the kind is not watched.

        The objects of an unreadable kind are missing or stale: a plugin that would do harm by acting on them checks
        this first.
        """
        ...

    def versions(self, *kinds: ObjectKind) -> tuple[int, ...]:
        """Returns the `version` of each kind: a key for what is computed from several kinds."""
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
        """Returns the volumes of one storage class ("": those without a class)."""
        ...

    def storage_capacities(self, storage_class: str) -> Collection[CsiStorageCapacity]:
        """Returns the capacities that CSI drivers report for volumes of a class."""
        ...

    def slices_on(self, node: str) -> Collection[ResourceSlice]:
        """Returns the slices of DRA drivers with devices of the node."""
        ...

    def attachments_on(self, node: str) -> Collection[VolumeAttachment]:
        """Returns the volume attachments that name the node."""
        ...


def hidden(objects: ObjectsView, *kinds: ObjectKind) -> str:
    """Returns why a result that depends on these kinds is unknown, as a message for the pod's owner; empty if all are readable.

    Unreadable objects look as if they did not exist. A plugin that would otherwise place a pod on that basis, or
    refuse it for good, keeps it pending with this message. The pod is requeued when the kind can be read again.
    """
    for kind in kinds:
        why = objects.unreadable(kind)
        if why:
            return f"{kind.value} objects cannot be read by the scheduler: {why}"
    return ""
