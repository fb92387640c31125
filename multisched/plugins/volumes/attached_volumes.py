"""AttachedVolumes: how many volumes of each CSI driver every row has, and room for how many, kept row by row.

Owned by NodeVolumeLimits, one for all domains of a cluster (`attached_volumes`). A row is counted anew only if its pods
with volumes, node, CSINode, attachments or claims changed since the last look. The node table and the object store
tell. Rows whose drivers name no limit are not counted at all. `catch_up` counts, a piece at a time, what the first
lists or a burst of events left to count. So no pod waits for seconds of it.
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
"""CSI driver and volume handle: what counts once per node."""

CLAIMS_KNOWN_MAX = 1 << 18
"""Claims whose volume is remembered; past it they are looked up again."""

VOLUMES_PER_PIECE = 1_000
"""Volumes of pods and attachments that `catch_up` counts in one go: some ten milliseconds."""

NO_LIMIT = -1
_UNKNOWN: Attached = ("", "")
"""Nothing has been looked up yet; no driver has an empty name."""
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
    """Key -> its few values. Tuples, since most keys have one value and there is a key per claim of the cluster."""

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
    """What was read to count one row, so that it can be taken back."""

    __slots__ = ("attachments", "held", "own_claims", "used")

    def __init__(self) -> None:
        self.held: set[Attached] = set()
        """What the pods on the row use."""
        self.used: dict[str, int] = {}
        """Driver -> volumes there, those attached for nobody's pod included."""
        self.own_claims: set[ClaimKey] = set()
        """Those of ephemeral volumes, which the node table does not know by name."""
        self.attachments: list[tuple[str, str]] = []
        """Name of each VolumeAttachment, and of its PersistentVolume."""


class AttachedVolumes:
    """Counts, per row, the volumes of each CSI driver and the number it may attach.

    `nodes` is the node table itself, never an overlay.
    """

    def __init__(self, nodes: NodeView, objects: ObjectsView) -> None:
        self._nodes = nodes
        self._objects = objects
        self._row_sequence = -1
        self._versions: Mapping[ObjectKind, int] = dict.fromkeys(_WATCHED, -1)
        self._stale: set[int] = set()
        """Rows to count again."""
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
        """(limit or NO_LIMIT, volumes there) of a driver at these rows; None if no row has a limit for it."""
        limits = self._limits.get(driver)
        if limits is None:
            return None
        self._widen(int(rows.max(initial=0)) + 1)
        return self._limits[driver].take(rows), self._used[driver].take(rows)

    def holders(self, attached: Attached) -> Sequence[int]:
        """Rows whose pods use the volume already, as far as rows are counted."""
        return self._holders.get(attached)

    def of_pod(self, pod: Pod) -> Iterable[tuple[PodVolume, Attached | None]]:
        """Each volume of the pod that may count, with what it is for its driver; None where it does not count."""
        for volume in pod.spec.volumes:
            name = volume.claim_of(pod.name)
            if name is not None:
                yield volume, self._of_claim((pod.namespace, name))
            elif volume.migrated is not None:
                yield volume, _of_disk(volume.migrated)

    def count(self, row: int, pods: Iterable[Pod]) -> tuple[Mapping[str, int], Mapping[str, int], Collection[Attached]]:
        """(driver -> limit, driver -> volumes there, what the pods use) of a row if these pods were on it."""
        node = self._nodes.node(row).name
        limits = self._limits_of(node)
        counted = self._read_row(node, pods) if limits else _RowVolumes()
        return limits, counted.used, counted.held

    # -- keeping up ------------------------------------------------------------------------------------------------

    def renew(self) -> None:
        """Counts again all that changed since it was counted."""
        self._note_changes()
        while self._stale:
            self._count_row(self._stale.pop())

    def catch_up(self) -> bool:
        """Counts again some of what changed, VOLUMES_PER_PIECE or a row; True if there is more."""
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
        """Rows that the news are about; None for all of them."""
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
        """Volumes of pods and attachments that were looked at."""
        self._take_back(row)
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

    def _take_back(self, row: int) -> None:
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
        """Columns as long as the table's; it grows by doubling."""
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
        """Pods whose claims cannot be found, or are not theirs, count nothing: they are there already."""
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
        """What is attached to the node, whoever uses it: volumes of pods that are gone are detached later."""
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
        """A claim without a volume counts as the volume that its class's provisioner will make."""
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
        return driver, f"claim {key[0]}/{key[1]}"  # no handle has a blank


def attached_volumes(nodes: NodeView, objects: ObjectsView) -> AttachedVolumes:
    """The counts over this node table and these objects: the same for all who ask, for as long as one of them keeps it."""
    key = (id(nodes), id(objects))
    found = _SHARED.get(key)
    if found is None:
        found = _SHARED[key] = AttachedVolumes(nodes, objects)
    return found


_SHARED: WeakValueDictionary[tuple[int, int], AttachedVolumes] = WeakValueDictionary()
"""By what they are over, which they hold: an id is not another's while its counts live."""


def _of_disk(disk: MigratedDisk) -> Attached | None:
    is_counted = disk.plugin in COUNTED_PLUGINS and not disk.error
    return (disk.driver, disk.handle) if is_counted else None
