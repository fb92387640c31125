"""VolumeUsers: which rows hold pods that use a claim or an inline disk. Updated with each pod, never recounted.

The node table owns one and writes it; an overlay has a copy-on-write one over the table's. Plugins read it as
`NodeView.volume_users`. It does not resolve claims to volumes: plugins do that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from multisched.framework.recency import Recency
from multisched.model.objects import Pod
from multisched.model.volumes import Disk, DiskKind

ClaimKey = tuple[str, str]
"""Namespace and name of a claim."""

_NO_ROWS: Mapping[int, int] = {}
_NO_DISKS: Mapping[int, Mapping[Disk, int]] = {}


class VolumeUsers:
    """The rows that hold pods which use a claim or an inline disk."""

    __slots__ = ("_base", "_claims", "_disks", "_rows", "recency")

    def __init__(self, base: VolumeUsers | None = None) -> None:
        self._base = base
        self._claims: dict[ClaimKey, dict[int, int]] = {}
        self._disks: dict[tuple[DiskKind, str], dict[int, dict[Disk, int]]] = {}
        self._rows: set[int] = set()
        self.recency: Recency[int] = base.recency if base is not None else Recency()
        """Rows of the table whose node, or whose pods with volumes, changed. An overlay's own changes are not included.
        """

    @property
    def overlaid_rows(self) -> Collection[int]:
        """Rows where an overlay adds or removes a pod with volumes; empty for the table's own."""
        return self._rows

    def claim_users(self, namespace: str, claim: str) -> Mapping[int, int]:
        """Returns row -> number of pod volumes there that name the claim. A generic ephemeral volume does not name its claim."""
        key = (namespace, claim)
        found = self._claims.get(key)
        if found is None and self._base is not None:
            return self._base.claim_users(namespace, claim)
        return _NO_ROWS if found is None else found

    def disk_users(self, kind: DiskKind, disk_id: str) -> Mapping[int, Mapping[Disk, int]]:
        """Returns row -> how pods there use the disks with this id -> number of such volumes."""
        found = self._disks.get((kind, disk_id))
        if found is None and self._base is not None:
            return self._base.disk_users(kind, disk_id)
        return _NO_DISKS if found is None else found

    def account(self, row: int, pod: Pod, sign: int) -> None:
        """Adds a pod with volumes to the row (`sign` 1) or removes it (-1)."""
        if self._base is not None:
            self._rows.add(row)
        else:
            self.recency.note(row)
        for volume in pod.spec.volumes:
            if volume.claim is not None:
                self._count_claim((pod.namespace, volume.claim), row, sign)
            elif volume.disk is not None:
                self._count_disk(volume.disk, row, sign)

    def _count_claim(self, key: ClaimKey, row: int, sign: int) -> None:
        users = self._claims.get(key)
        if users is None:
            users = self._claims[key] = dict(self._base.claim_users(*key)) if self._base is not None else {}
        users[row] = users.get(row, 0) + sign
        if not users[row]:
            del users[row]
        if not users and self._base is None:
            del self._claims[key]

    def _count_disk(self, disk: Disk, row: int, sign: int) -> None:
        key = (disk.kind, disk.id)
        users = self._disks.get(key)
        if users is None:
            below = self._base.disk_users(*key) if self._base is not None else _NO_DISKS
            users = self._disks[key] = {at: dict(held) for at, held in below.items()}
        held = users.setdefault(row, {})
        held[disk] = held.get(disk, 0) + sign
        if not held[disk]:
            del held[disk]
        if not held:
            del users[row]
        if not users and self._base is None:
            del self._disks[key]

    def forget_row(self, row: int) -> None:
        """Drops a row that is to be recounted."""
        for claims in [key for key, users in self._claims.items() if row in users]:
            del self._claims[claims][row]
            if not self._claims[claims]:
                del self._claims[claims]
        for disks in [key for key, held in self._disks.items() if row in held]:
            del self._disks[disks][row]
            if not self._disks[disks]:
                del self._disks[disks]
        self.recency.note(row)

    def note_row(self, row: int) -> None:
        """Notes that a node was added to the row or removed from it."""
        self.recency.note(row)

    def counts(
        self,
    ) -> tuple[Mapping[ClaimKey, Mapping[int, int]], Mapping[tuple[DiskKind, str], Mapping[int, Mapping[Disk, int]]]]:
        """Returns all counts, for the audit and tests."""
        return self._claims, self._disks


def users_of(rows: Iterable[tuple[int, Iterable[Pod]]]) -> VolumeUsers:
    """Returns the users counted from the pods on each row, for views that keep none."""
    users = VolumeUsers()
    for row, pods in rows:
        for pod in pods:
            if pod.spec.volumes:
                users.account(row, pod, 1)
    return users
