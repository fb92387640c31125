"""Decodes volumes and resource claims of a pod's spec into slim values. See decode.py.

Owns nothing. `InTreeSource` is also the wire shape of a PersistentVolume's in-tree source. `migrated_disk` translates it for
its CSI driver, so that a disk counts once under any name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import msgspec

from multisched.model.decode_selectors import Refusal, Wire
from multisched.model.volumes import (
    CSI_DRIVER_OF_PLUGIN,
    Disk,
    DiskKind,
    LocalVolume,
    MigratedDisk,
    PodResourceClaim,
    PodVolume,
)

VOLUMES_MAX = 512
RBD_MONITORS_MAX = 64
RESOURCE_CLAIMS_MAX = 64
"""Bounds of work and memory per pending pod."""

_ZONE_LABELS = ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone")
_ZONE_SEPARATOR = "__"
_AWS_VOLUME = re.compile(r"vol-[^/]*")
_NO_LABELS: Mapping[str, str] = {}


class _GceDisk(Wire):
    pd_name: str = ""
    read_only: bool = False


class _VolumeId(Wire):
    volume_id: str = msgspec.field(default="", name="volumeID")


class _AzureDisk(Wire):
    disk_uri: str = msgspec.field(default="", name="diskURI")
    kind: str | None = None


class _Present(Wire):
    """A source of which only the presence matters."""


class InTreeSource(Wire):
    """In-tree sources with a CSI driver, in a pod's volume or a PersistentVolume."""

    gce_persistent_disk: _GceDisk | None = None
    aws_elastic_block_store: _VolumeId | None = None
    azure_disk: _AzureDisk | None = None
    azure_file: _Present | None = None
    cinder: _VolumeId | None = None
    portworx_volume: _VolumeId | None = None
    vsphere_volume: _Present | None = None


class _Claim(Wire):
    claim_name: str = ""


class _EmptyDir(Wire):
    medium: str = ""


class _ImageVolume(Wire):
    reference: str = ""


class _Iscsi(Wire):
    iqn: str = ""
    read_only: bool = False


class _Rbd(Wire):
    monitors: list[str] | None = None
    image: str = ""
    pool: str = "rbd"
    read_only: bool = False


class WireVolume(InTreeSource):
    """One entry of spec.volumes."""

    name: str = ""
    persistent_volume_claim: _Claim | None = None
    ephemeral: _Present | None = None
    empty_dir: _EmptyDir | None = None
    host_path: _Present | None = None
    image: _ImageVolume | None = None
    iscsi: _Iscsi | None = None
    rbd: _Rbd | None = None


class WireResourceClaim(Wire):
    """One entry of spec.resourceClaims."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


def without_unread(volumes: list[WireVolume] | None) -> list[WireVolume] | None:
    """Keeps the volumes that scheduling reads. The token volume of each pod has a random name, which would prevent sharing."""
    if not volumes:
        return None
    return [v for v in volumes if v.persistent_volume_claim or v.image or _is_read(v) or _is_local(v)] or None


def local_volumes(volumes: Sequence[WireVolume] | None) -> tuple[LocalVolume, ...]:
    """Returns volumes whose data stay on the node when the pod leaves. An emptyDir in memory is lost at any restart: left out."""
    return tuple(LocalVolume(v.name, v.host_path is not None) for v in volumes or () if _is_local(v))


def _is_local(volume: WireVolume) -> bool:
    if volume.host_path:
        return True
    return volume.empty_dir is not None and volume.empty_dir.medium != "Memory"


def _is_read(volume: WireVolume) -> bool:
    return bool(volume.ephemeral or volume.iscsi or volume.rbd or _plugin_of(volume))


def pod_volumes(volumes: Sequence[WireVolume] | None, *, is_bounded: bool = True) -> tuple[PodVolume, ...]:
    """Returns the volumes in the order of the spec, in which errors are reported. Raises Refusal for too many, if bounded."""
    if not volumes:
        return ()
    if is_bounded and len(volumes) > VOLUMES_MAX:
        raise Refusal(f"spec.volumes: {len(volumes)} entries, more than the {VOLUMES_MAX} that are read")
    found = []
    for volume in volumes:
        if volume.persistent_volume_claim:
            found.append(PodVolume(claim=volume.persistent_volume_claim.claim_name))
        elif volume.ephemeral:
            found.append(PodVolume(volume.name, is_ephemeral=True))
        elif _is_read(volume):
            found.append(
                PodVolume(volume.name, disk=_disk(volume, is_bounded=is_bounded), migrated=migrated_disk(volume))
            )
    return tuple(found)


def pod_resource_claims(
    claims: Sequence[WireResourceClaim] | None, *, is_bounded: bool = True
) -> tuple[PodResourceClaim, ...]:
    """Returns the resource claims. Raises Refusal for too many, if bounded."""
    if not claims:
        return ()
    if is_bounded and len(claims) > RESOURCE_CLAIMS_MAX:
        raise Refusal(f"spec.resourceClaims: {len(claims)} entries, more than the {RESOURCE_CLAIMS_MAX} that are read")
    return tuple(PodResourceClaim(c.name, c.resource_claim_name, c.resource_claim_template_name) for c in claims)


def _disk(volume: WireVolume, *, is_bounded: bool) -> Disk | None:
    if volume.gce_persistent_disk:
        return Disk(DiskKind.GCE, volume.gce_persistent_disk.pd_name, volume.gce_persistent_disk.read_only)
    if volume.aws_elastic_block_store:
        return Disk(DiskKind.AWS, volume.aws_elastic_block_store.volume_id)
    if volume.iscsi:
        return Disk(DiskKind.ISCSI, volume.iscsi.iqn, volume.iscsi.read_only)
    if volume.rbd:
        monitors = volume.rbd.monitors or []
        if is_bounded and len(monitors) > RBD_MONITORS_MAX:
            raise Refusal(f"spec.volumes: {len(monitors)} monitors, more than the {RBD_MONITORS_MAX} that are read")
        image = f"{volume.rbd.pool}/{volume.rbd.image}"
        return Disk(DiskKind.RBD, image, volume.rbd.read_only, frozenset(monitors))
    return None


def migrated_disk(source: InTreeSource, labels: Mapping[str, str] | None = None) -> MigratedDisk | None:
    """Translates an in-tree source as its CSI driver sees it; None if no CSI driver replaces the plugin.

    `labels` are those of a PersistentVolume; None means a volume of a pod, where a GCE disk has no zone.
    Source: csi-translation-lib, TranslateInTreePVToCSI and TranslateInTreeInlineVolumeToCSI of each plugin.
    """
    plugin = _plugin_of(source)
    if not plugin:
        return None
    driver = CSI_DRIVER_OF_PLUGIN[plugin]
    try:
        return MigratedDisk(plugin, driver, _handle(source, _NO_LABELS if labels is None else labels))
    except ValueError as error:
        return MigratedDisk(plugin, driver, error=str(error))


def _plugin_of(source: InTreeSource) -> str:
    if source.gce_persistent_disk:
        return "kubernetes.io/gce-pd"
    if source.aws_elastic_block_store:
        return "kubernetes.io/aws-ebs"
    if source.cinder:
        return "kubernetes.io/cinder"
    if source.azure_disk:
        return "kubernetes.io/azure-disk"
    if source.azure_file:
        return "kubernetes.io/azure-file"
    if source.vsphere_volume:
        return "kubernetes.io/vsphere-volume"
    return "kubernetes.io/portworx-volume" if source.portworx_volume else ""


def _handle(source: InTreeSource, labels: Mapping[str, str]) -> str:
    """Returns the volume handle; empty for Azure and vSphere files, which never count. Raises ValueError if it is unknown."""
    if source.gce_persistent_disk:
        return f"projects/UNSPECIFIED/{_gce_place(labels)}/disks/{source.gce_persistent_disk.pd_name}"
    if source.aws_elastic_block_store:
        return _aws_handle(source.aws_elastic_block_store.volume_id)
    if source.azure_disk:
        if source.azure_disk.kind is not None and source.azure_disk.kind.lower() != "managed":
            raise ValueError(f"kind({source.azure_disk.kind}) is not supported in csi migration")
        return source.azure_disk.disk_uri
    by_id = source.cinder or source.portworx_volume
    return by_id.volume_id if by_id else ""


def _gce_place(labels: Mapping[str, str]) -> str:
    label = labels.get(_ZONE_LABELS[0]) or labels.get(_ZONE_LABELS[1]) or ""
    zones = label.split(_ZONE_SEPARATOR)
    if len(zones) == 1:
        return f"zones/{zones[0] or 'UNSPECIFIED'}"
    regions = set()
    for zone in zones:
        parts = zone.split("-")
        if len(parts) != 3:
            raise ValueError(
                f"failed to get region from zones: zone in unexpected format,"
                f" expected: {{locale}}-{{region}}-{{zone}}, got: {zone}"
            )
        regions.add("-".join(parts[:2]))
    if len(regions) != 1:
        found = " ".join(f"{region}:{{}}" for region in sorted(regions))
        raise ValueError(
            f"failed to get region from zones: multiple or no regions gotten from zones, got: map[{found}]"
        )
    return f"regions/{regions.pop()}"


def _aws_handle(volume_id: str) -> str:
    """Parses aws://zone/vol-1, aws:///vol-1 or vol-1."""
    if not volume_id.startswith("aws://"):
        return volume_id
    try:
        name = urlsplit(volume_id).path.strip("/")
    except ValueError as error:
        raise ValueError(
            f"failed to translate Kubernetes ID to EBS Volume ID Invalid disk name ({volume_id}): {error}"
        ) from error
    if not _AWS_VOLUME.fullmatch(name):
        raise ValueError(
            f"failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume ({volume_id})"
        )
    return name
