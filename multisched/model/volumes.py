"""What scheduling reads of a pod's volumes and resource claims, as values that pods with equal specs share.

Volumes that no plugin reads (config maps, secrets, projected tokens, CSI volumes in the pod itself) are not here at all.
The CSI driver of a migrated in-tree disk is found here too, for disks named in a pod and for those of a PersistentVolume.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec


class DiskKind(Enum):
    """Inline disks that two pods on one node may not share freely (VolumeRestrictions)."""

    GCE = "gcePersistentDisk"
    AWS = "awsElasticBlockStore"
    ISCSI = "iscsi"
    RBD = "rbd"


class Disk(msgspec.Struct, frozen=True, gc=False):
    """An inline disk that can conflict with the same disk in another pod."""

    kind: DiskKind
    id: str
    """Name of the disk, id of the volume, IQN, or pool and image: equal ids of one kind may be one disk."""
    is_read_only: bool = False
    monitors: frozenset[str] = frozenset()
    """Of RBD: disks of two clusters without a common monitor are different ones."""

    def conflicts_with(self, other: Disk) -> bool:
        """Whether a node that has one cannot take the other. Source: plugins/volumerestrictions, isVolumeConflict."""
        if self.kind is not other.kind or self.id != other.id:
            return False
        match self.kind:
            case DiskKind.AWS:
                return True
            case DiskKind.RBD if not self.monitors & other.monitors:
                return False
        return not (self.is_read_only and other.is_read_only)


class MigratedDisk(msgspec.Struct, frozen=True, gc=False):
    """An in-tree disk as the CSI driver that took its plugin over sees it."""

    plugin: str
    """Name of the in-tree plugin, for instance kubernetes.io/gce-pd."""
    driver: str
    handle: str = ""
    """Empty if the disk cannot be translated; `error` says why."""
    error: str = ""


class LocalVolume(msgspec.Struct, frozen=True, gc=False):
    """One entry of spec.volumes that lives on the node: what is in it is lost to a pod that comes back elsewhere."""

    name: str
    is_host_path: bool = False
    """hostPath; else an emptyDir that is not in memory."""


class PodVolume(msgspec.Struct, frozen=True, gc=False):
    """One entry of spec.volumes that scheduling reads."""

    name: str = ""
    """Only where something is named after it or complains about it: ephemeral volumes and migrated disks."""
    claim: str | None = None
    """persistentVolumeClaim.claimName; the API server refuses an empty one, the decoder does not."""
    is_ephemeral: bool = False
    """A generic ephemeral volume; its claim is called after pod and volume."""
    disk: Disk | None = None
    migrated: MigratedDisk | None = None

    @property
    def has_claim(self) -> bool:
        """There is a claim behind it, or will be: of an ephemeral volume it is made for the pod."""
        return self.claim is not None or self.is_ephemeral

    def claim_of(self, pod_name: str) -> str | None:
        """Name of the claim behind this volume of that pod, None if there is none."""
        return f"{pod_name}-{self.name}" if self.is_ephemeral else self.claim


class PodResourceClaim(msgspec.Struct, frozen=True, gc=False):
    """One entry of spec.resourceClaims: either a claim by name or a template that one is made from."""

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
"""In-tree plugin or provisioner -> the CSI driver that took it over (source: csi-translation-lib)."""

COUNTED_PLUGINS = frozenset(CSI_DRIVER_OF_PLUGIN) - {"kubernetes.io/azure-file", "kubernetes.io/vsphere-volume"}
"""Those whose volumes count against the limits of their CSI driver (source: plugins/nodevolumelimits/utils.go)."""


def may_name(volumes: Iterable[PodVolume], claim: str) -> bool:
    """True if one of a pod's volumes is this claim, or may be.

    Of an ephemeral volume's claim only the end of the name is known: one answer serves all pods that are alike but for
    their names.
    """
    return any(v.claim == claim or (v.is_ephemeral and claim.endswith(f"-{v.name}")) for v in volumes)
