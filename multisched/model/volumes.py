"""Volumes and resource claims of a pod, as far as scheduling reads them; values shared by pods with equal specs.

Volumes that no plugin reads (config maps, secrets, projected tokens, inline CSI volumes) are left out.
Maps in-tree disks to CSI drivers, for disks inlined in a pod and for those of a PersistentVolume.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec


class DiskKind(Enum):
    """Inline disks whose sharing by two pods on one node is restricted (VolumeRestrictions)."""

    GCE = "gcePersistentDisk"
    AWS = "awsElasticBlockStore"
    ISCSI = "iscsi"
    RBD = "rbd"


class Disk(msgspec.Struct, frozen=True, gc=False):
    """An inline disk that can conflict with the same disk in another pod."""

    kind: DiskKind
    id: str
    """Name of the disk, id of the volume, IQN, or pool and image; equal ids of one kind may be the same disk."""
    is_read_only: bool = False
    monitors: frozenset[str] = frozenset()
    """RBD monitors: disks of two clusters without a common monitor differ."""

    def conflicts_with(self, other: Disk) -> bool:
        """Reports whether a node with one of them cannot take the other. Source: plugins/volumerestrictions, isVolumeConflict."""
        if self.kind is not other.kind or self.id != other.id:
            return False
        match self.kind:
            case DiskKind.AWS:
                return True
            case DiskKind.RBD if not self.monitors & other.monitors:
                return False
        return not (self.is_read_only and other.is_read_only)


class MigratedDisk(msgspec.Struct, frozen=True, gc=False):
    """An in-tree disk as its CSI driver sees it after migration."""

    plugin: str
    """Name of the in-tree plugin, for example kubernetes.io/gce-pd."""
    driver: str
    handle: str = ""
    """Empty if the disk cannot be translated; `error` says why."""
    error: str = ""


class LocalVolume(msgspec.Struct, frozen=True, gc=False):
    """An entry of spec.volumes with data on the node, which are lost if the pod is recreated on another node."""

    name: str
    is_host_path: bool = False
    """True for hostPath, false for an emptyDir that is not in memory."""


class PodVolume(msgspec.Struct, frozen=True, gc=False):
    """One entry of spec.volumes that scheduling reads."""

    name: str = ""
    """Set only for ephemeral volumes and migrated disks, whose claims or messages contain it."""
    claim: str | None = None
    """persistentVolumeClaim.claimName; the API server refuses an empty one, the decoder does not."""
    is_ephemeral: bool = False
    """A generic ephemeral volume; the name of its claim consists of those of pod and volume."""
    disk: Disk | None = None
    migrated: MigratedDisk | None = None

    @property
    def has_claim(self) -> bool:
        """True if the volume has a claim, or will have: that of an ephemeral volume is created for the pod."""
        return self.claim is not None or self.is_ephemeral

    def claim_of(self, pod_name: str) -> str | None:
        """Returns the name of the volume's claim for this pod; None if it has none."""
        return f"{pod_name}-{self.name}" if self.is_ephemeral else self.claim


class PodResourceClaim(msgspec.Struct, frozen=True, gc=False):
    """An entry of spec.resourceClaims: a claim by name, or a template from which one is created."""

    name: str
    claim: str = ""
    template: str = ""


CSI_DRIVER_OF_PLUGIN = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/azure-file": "file.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
    "kubernetes.io/vsphere-volume": "csi.vsphere.vmware.com",
}
"""In-tree plugin or provisioner -> the CSI driver that replaces it (source: csi-translation-lib)."""

COUNTED_PLUGINS = frozenset(CSI_DRIVER_OF_PLUGIN) - {"kubernetes.io/azure-file", "kubernetes.io/vsphere-volume"}
"""Plugins whose volumes count against the limits of their CSI driver (source: plugins/nodevolumelimits/utils.go)."""


def may_name(volumes: Iterable[PodVolume], claim: str) -> bool:
    """Reports whether one of a pod's volumes is this claim, or may be.

    Compares only the end of the name for a claim of an ephemeral volume, so that one result is valid for all pods that
    differ only in their names.
    """
    return any(v.claim == claim or (v.is_ephemeral and claim.endswith(f"-{v.name}")) for v in volumes)
