"""AttachedVolumes: per row and CSI driver, the number of attached volumes and the limit.

Owned by NodeVolumeLimits; all domains of a cluster share one (`attached_volumes`). A row is recounted only if its pods with
volumes, its node, CSINode, attachments or claims changed since the last count, according to the node table and the object
store. Rows whose drivers have no limit are not counted. After the first lists or a burst of events, `catch_up` counts
in small steps, so that no pod has to wait seconds for it.
Source: kube-scheduler 1.36, plugins/nodevolumelimits/csi.go.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from multisched.framework.node_view import Int64, NodeView, Rows
from multisched.framework.objects_view import ObjectsView
from multisched.framework.volume_users import ClaimKey
from multisched.model.cluster_objects import PersistentVolumeClaim, VolumeAttachment
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.model.volumes import COUNTED_PLUGINS, CSI_DRIVER_OF_PLUGIN, MigratedDisk, PodVolume

Attached = tuple[str, str]
"""CSI driver and volume handle; counts once per node."""

CLAIMS_KNOWN_MAX = 1 << 18
"""Maximum number of claims whose volume is cached. If exceeded, the cache is cleared."""

VOLUMES_PER_PIECE = 1_000
"""Volumes of pods and attachments that one call of `catch_up` counts: about ten milliseconds."""

NO_LIMIT = -1
_UNKNOWN: Attached = ("", "")
"""Not looked up yet. No driver has an empty name."""
_WATCHED = (
    ObjectKind.PERSISTENT_VOLUME_CLAIM,
    ObjectKind.PERSISTENT_VOLUME,
    ObjectKind.STORAGE_CLASS,
    ObjectKind.CSI_NODE,
    ObjectKind.VOLUME_ATTACHMENT,
)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)


class _Index(Generic[K, V]):
    """Key -> its few values, as tuples: most keys have one value, and there is a key per claim of the cluster."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[K, tuple[V, ...]] = {}

    def get(self, key: K) -> tuple[V, ...]:
        return self._found.get(key, ())

    def add(self, key: K, value: V) -> None:
        before = self._found.get(key)
        if before is None:
            self._found[key] = (value,)
        elif value not in before:
            self._found[key] = (*before, value)

    def discard(self, key: K, value: V) -> None:
        before = self._found.get(key, ())
        if value not in before:
            return
        if len(before) == 1:
            del self._found[key]
        else:
            self._found[key] = tuple(known for known in before if known != value)

    def pop(self, key: K) -> tuple[V, ...]:
        return self._found.pop(key, ())


class _RowVolumes:
    """The data from which one row was counted, kept so that the count can be undone."""

    __slots__ = ("attachments", "held", "own_claims", "used")

    def __init__(self) -> None:
        self.held: set[Attached] = set()
        """Volumes used by the pods on the row."""
        self.used: dict[str, int] = {}
        """Driver -> number of volumes on the row, including attached ones that no pod uses."""
        self.own_claims: set[ClaimKey] = set()
        """Claims of ephemeral volumes, which the node table does not index by name."""
        self.attachments: list[tuple[str, str]] = []
        """(VolumeAttachment name, PersistentVolume name) pairs."""


class AttachedVolumes:
    """The number of volumes and the limit of each CSI driver, per row.

    `nodes` is the node table itself, never an overlay.
    """

    def __init__(self, nodes: NodeView, objects: ObjectsView) -> None:
        self._nodes = nodes
        self._objects = objects
        self._row_sequence = -1
        self._versions: Mapping[ObjectKind, int] = dict.fromkeys(_WATCHED, -1)
        self._stale: set[int] = set()
        """Rows to recount."""
        self._forget_all()

    def _forget_all(self) -> None:
        self._by_row: dict[int, _RowVolumes] = {}
        self._limits: dict[str, Int64] = {}
        self._used: dict[str, Int64] = {}
        self._holders: _Index[Attached, int] = _Index()
        self._known: dict[ClaimKey, Attached | None] = {}
        self._rows_of_own_claim: _Index[ClaimKey, int] = _Index()
        self._claims_of_volume: _Index[str, ClaimKey] = _Index()
        self._claims_of_class: _Index[str, ClaimKey] = _Index()
        self._rows_of_attachment: _Index[str, int] = _Index()
        self._rows_of_attached_volume: _Index[str, int] = _Index()

    # -- reading ---------------------------------------------------------------------------------------------------

    def room(self, driver: str, rows: Rows) -> tuple[Int64, Int64] | None:
        """Returns (limit or NO_LIMIT, number of volumes) of a driver at these rows; None if no row has a limit for it."""
        limits = self._limits.get(driver)
        if limits is None:
            return None
        self._widen(int(rows.max(initial=0)) + 1)
        return self._limits[driver].take(rows), self._used[driver].take(rows)

    def holders(self, attached: Attached) -> Sequence[int]:
        """Returns the counted rows whose pods use the volume already."""
        return self._holders.get(attached)

    def of_pod(self, pod: Pod) -> Iterable[tuple[PodVolume, Attached | None]]:
        """Yields the pod's volumes with claims or migrated disks, each with driver and handle; None if it does not count."""
        for volume in pod.spec.volumes:
            name = volume.claim_of(pod.name)
            if name is not None:
                yield volume, self._of_claim((pod.namespace, name))
            elif volume.migrated is not None:
                yield volume, _of_disk(volume.migrated)

    def count(self, row: int, pods: Iterable[Pod]) -> tuple[Mapping[str, int], Mapping[str, int], Collection[Attached]]:
        """Returns (driver -> limit, driver -> number of volumes, volumes used by pods) of a row as if it had these pods."""
        node = self._nodes.node(row).name
        limits = self._limits_of(node)
        counted = self._read_row(node, pods) if limits else _RowVolumes()
        return limits, counted.used, counted.held

    # -- updates ---------------------------------------------------------------------------------------------------

    def renew(self) -> None:
        """Recounts all changed rows."""
        self._note_changes()
        while self._stale:
            self._count_row(self._stale.pop())

    def catch_up(self) -> bool:
        """Recounts some changed rows: about VOLUMES_PER_PIECE volumes, at least one row. Reports whether there are more."""
        self._note_changes()
        left = VOLUMES_PER_PIECE
        while self._stale and left > 0:
            left -= 1 + self._count_row(self._stale.pop())
        return bool(self._stale)

    def _note_changes(self) -> None:
        recency = self._nodes.volume_users.recency
        versions = {kind: self._objects.version(kind) for kind in _WATCHED}
        if recency.sequence == self._row_sequence and versions == self._versions:
            return
        changed = self._changed_rows()
        if changed is None:
            self._forget_all()
            changed = set(range(len(self._nodes.pod_count)))
        self._stale |= changed
        self._row_sequence, self._versions = recency.sequence, versions

    def _changed_rows(self) -> set[int] | None:
        """Returns the rows affected by changes; None for all rows."""
        changed = self._nodes.volume_users.recency.since(self._row_sequence) if self._row_sequence >= 0 else None
        if changed is None:
            return None
        stale = set(changed)
        for kind in _WATCHED:
            keys = self._objects.changed_since(kind, self._versions[kind])
            if keys is None:
                return None
            for key in keys:
                stale.update(self._rows_touched(kind, key))
        return stale

    def _rows_touched(self, kind: ObjectKind, key: tuple[str, str]) -> set[int]:
        name = key[1]
        match kind:
            case ObjectKind.PERSISTENT_VOLUME_CLAIM:
                return self._forget_claims([key])
            case ObjectKind.PERSISTENT_VOLUME:
                rows = self._forget_claims(self._claims_of_volume.pop(name))
                return rows.union(self._rows_of_attached_volume.get(name))
            case ObjectKind.STORAGE_CLASS:
                return self._forget_claims(self._claims_of_class.pop(name))
            case ObjectKind.CSI_NODE:
                row = self._nodes.row_of(name)
                return set() if row is None else {row}
        return set(self._rows_of_attachment.get(name)).union(self._rows_of_new_attachment(name))

    def _forget_claims(self, keys: Iterable[ClaimKey]) -> set[int]:
        rows: set[int] = set()
        for key in keys:
            self._known.pop(key, None)
            rows.update(self._nodes.volume_users.claim_users(*key), self._rows_of_own_claim.get(key))
        return rows

    def _rows_of_new_attachment(self, name: str) -> Iterable[int]:
        attachment = self._objects.get(ObjectKind.VOLUME_ATTACHMENT, "", name)
        row = self._nodes.row_of(attachment.node) if isinstance(attachment, VolumeAttachment) else None
        return () if row is None else (row,)

    # -- one row ---------------------------------------------------------------------------------------------------

    def _count_row(self, row: int) -> int:
        """Recounts a row. Returns the number of volumes and attachments that it examined."""
        self._remove_row(row)
        try:
            node = self._nodes.node(row).name
        except (KeyError, IndexError):
            return 0  # a row that no node has
        limits = self._limits_of(node)
        if not limits:
            return 0
        counted = self._by_row[row] = self._read_row(node, self._nodes.pods_on(row))
        for driver, limit in limits.items():
            self._column(self._limits, driver, NO_LIMIT, row)[row] = limit
            self._column(self._used, driver, 0, row)[row] = counted.used.get(driver, 0)
        for attached in counted.held:
            self._holders.add(attached, row)
        for claim in counted.own_claims:
            self._rows_of_own_claim.add(claim, row)
        for name, volume in counted.attachments:
            self._rows_of_attachment.add(name, row)
            self._rows_of_attached_volume.add(volume, row)
        return len(counted.held) + len(counted.attachments)

    def _remove_row(self, row: int) -> None:
        counted = self._by_row.pop(row, None)
        if counted is None:
            return
        for driver, limits in self._limits.items():
            limits[row] = NO_LIMIT
            self._used[driver][row] = 0
        for attached in counted.held:
            self._holders.discard(attached, row)
        for claim in counted.own_claims:
            self._rows_of_own_claim.discard(claim, row)
        for name, volume in counted.attachments:
            self._rows_of_attachment.discard(name, row)
            self._rows_of_attached_volume.discard(volume, row)

    def _column(self, columns: dict[str, Int64], driver: str, empty: int, row: int) -> Int64:
        if driver not in columns:
            columns[driver] = np.full(len(self._nodes.pod_count), empty, np.int64)
        self._widen(row + 1)
        return columns[driver]

    def _widen(self, width: int) -> None:
        """Grows the columns to the length of the node table, which grows by doubling."""
        for columns, empty in ((self._limits, NO_LIMIT), (self._used, 0)):
            for driver, column in columns.items():
                if len(column) < width:
                    grown = np.full(max(width, len(self._nodes.pod_count)), empty, np.int64)
                    grown[: len(column)] = column
                    columns[driver] = grown

    def _limits_of(self, node: str) -> dict[str, int]:
        csi_node = self._objects.csi_node(node)
        if csi_node is None:
            return {}
        return {driver.name: driver.volumes_max for driver in csi_node.drivers if driver.volumes_max is not None}

    def _read_row(self, node: str, pods: Iterable[Pod]) -> _RowVolumes:
        """Reads the volumes of a row. Claims that are missing or of another pod do not count: the pods are placed already."""
        counted = _RowVolumes()
        for pod in pods:
            for volume in pod.spec.volumes:
                if volume.claim is not None:
                    attached = self._of_claim((pod.namespace, volume.claim))
                elif volume.is_ephemeral:
                    own = (pod.namespace, f"{pod.name}-{volume.name}")
                    counted.own_claims.add(own)
                    attached = self._of_claim(own)
                else:
                    attached = _of_disk(volume.migrated) if volume.migrated is not None else None
                if attached is not None:
                    counted.held.add(attached)
        for driver, _ in counted.held.union(self._attachments(node, counted)):
            counted.used[driver] = counted.used.get(driver, 0) + 1
        return counted

    def _attachments(self, node: str, counted: _RowVolumes) -> Iterable[Attached]:
        """Yields all volumes attached to the node, including those of deleted pods, which are detached later."""
        for attachment in self._objects.attachments_on(node):
            if not attachment.volume:
                continue
            counted.attachments.append((attachment.name, attachment.volume))
            volume = self._objects.volume(attachment.volume)
            if attachment.attacher and volume is not None and (volume.csi_driver or volume.csi_handle):
                yield attachment.attacher, volume.csi_handle

    # -- claims ----------------------------------------------------------------------------------------------------

    def _of_claim(self, key: ClaimKey) -> Attached | None:
        known = self._known.get(key, _UNKNOWN)
        if known is _UNKNOWN:
            if len(self._known) >= CLAIMS_KNOWN_MAX:
                self._known.clear()
            known = self._known[key] = self._look_up(key)
        return known

    def _look_up(self, key: ClaimKey) -> Attached | None:
        claim = self._objects.claim(*key)
        if claim is None:
            return None
        if not claim.volume:
            return self._to_be_made(key, claim)
        self._claims_of_volume.add(claim.volume, key)
        volume = self._objects.volume(claim.volume)
        if volume is None:
            return self._to_be_made(key, claim)
        if volume.migrated is not None:
            return _of_disk(volume.migrated)
        return (volume.csi_driver, volume.csi_handle) if volume.csi_driver and volume.csi_handle else None

    def _to_be_made(self, key: ClaimKey, claim: PersistentVolumeClaim) -> Attached | None:
        """Returns the future volume of a claim without one: it counts for the driver of its class's provisioner."""
        if not claim.class_name:
            return None
        self._claims_of_class.add(claim.class_name, key)
        storage_class = self._objects.storage_class(claim.class_name)
        if storage_class is None or not storage_class.provisioner:
            return None
        driver = CSI_DRIVER_OF_PLUGIN.get(storage_class.provisioner)
        if driver is None:
            driver = storage_class.provisioner
        elif storage_class.provisioner not in COUNTED_PLUGINS:
            return None
        return driver, f"claim {key[0]}/{key[1]}"  # no real handle contains a space


def attached_volumes(nodes: NodeView, objects: ObjectsView) -> AttachedVolumes:
    """Returns the shared counts of this node table and object store; they live as long as a caller holds a reference."""
    key = (id(nodes), id(objects))
    found = _SHARED.get(key)
    if found is None:
        found = _SHARED[key] = AttachedVolumes(nodes, objects)
    return found


_SHARED: WeakValueDictionary[tuple[int, int], AttachedVolumes] = WeakValueDictionary()
"""(id of node table, id of object store) -> counts. The counts hold both, so the ids are not reused while they live."""


def _of_disk(disk: MigratedDisk) -> Attached | None:
    is_counted = disk.plugin in COUNTED_PLUGINS and not disk.error
    return (disk.driver, disk.handle) if is_counted else None
