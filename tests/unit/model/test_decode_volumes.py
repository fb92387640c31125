"""Of a pod's volumes the decoder keeps what scheduling reads, and shares it between pods that differ in nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from multisched.model.decode import Decoder
from multisched.model.decode_volumes import RBD_MONITORS_MAX, RESOURCE_CLAIMS_MAX, VOLUMES_MAX
from multisched.model.volumes import Disk, DiskKind, LocalVolume, MigratedDisk, PodResourceClaim, PodVolume
from tests.unit.model.documents import decode_pod, pod_document

GCE = "kubernetes.io/gce-pd"
GCE_DRIVER = "pd.csi.storage.gke.io"


def volumes(*documents: dict[str, Any]) -> tuple[PodVolume, ...]:
    return decode_pod(pod_document(volumes=list(documents))).spec.volumes


def test_volumes_that_no_plugin_reads_are_dropped_from_the_spec() -> None:
    decoder = Decoder()
    pods = [
        decode_pod(
            pod_document(
                metadata={"name": name, "uid": name},
                volumes=[
                    {"name": f"kube-api-access-{name}", "projected": {"sources": []}},
                    {"name": "settings", "configMap": {"name": "settings"}},
                    {"name": "inline", "csi": {"driver": "inline.example", "readOnly": True}},
                ],
            ),
            decoder,
        )
        for name in ("a7x2f", "b9q4k")
    ]
    assert pods[0].spec is pods[1].spec
    assert pods[0].spec.volumes == ()


def test_node_local_volumes_are_recorded() -> None:
    spec = decode_pod(
        pod_document(
            volumes=[
                {"name": "scratch", "emptyDir": {}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
                {"name": "pages", "emptyDir": {"medium": "HugePages"}},
                {"name": "logs", "hostPath": {"path": "/var/log"}},
                {"name": "settings", "configMap": {"name": "settings"}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            ]
        )
    ).spec
    assert spec.local_volumes == (LocalVolume("scratch"), LocalVolume("pages"), LocalVolume("logs", is_host_path=True))
    assert [volume.claim for volume in spec.volumes] == ["data"]


def test_claims_keep_their_order_and_ephemeral_claims_get_the_pod_name() -> None:
    found = volumes(
        {"name": "late", "persistentVolumeClaim": {"claimName": "zebra"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
        {"name": "early", "persistentVolumeClaim": {"claimName": "ant"}},
    )
    assert [v.claim_of("web-0") for v in found] == ["zebra", "web-0-scratch", "ant"]


@pytest.mark.parametrize(
    ("document", "disk", "migrated"),
    [
        (
            {"gcePersistentDisk": {"pdName": "d", "readOnly": True}},
            Disk(DiskKind.GCE, "d", is_read_only=True),
            MigratedDisk(GCE, GCE_DRIVER, "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d"),
        ),
        (
            {"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-0a1"}},
            Disk(DiskKind.AWS, "aws://us-east-1a/vol-0a1"),
            MigratedDisk("kubernetes.io/aws-ebs", "ebs.csi.aws.com", "vol-0a1"),
        ),
        ({"iscsi": {"targetPortal": "t", "iqn": "iqn.x", "lun": 0}}, Disk(DiskKind.ISCSI, "iqn.x"), None),
        (
            {"rbd": {"monitors": ["a", "b"], "image": "i", "pool": "p"}},
            Disk(DiskKind.RBD, "p/i", monitors=frozenset({"a", "b"})),
            None,
        ),
        (
            {"azureDisk": {"diskName": "n", "diskURI": "/uri", "kind": "Managed"}},
            None,
            MigratedDisk("kubernetes.io/azure-disk", "disk.csi.azure.com", "/uri"),
        ),
        (
            {"azureDisk": {"diskName": "n", "diskURI": "/uri", "kind": "Dedicated"}},
            None,
            MigratedDisk(
                "kubernetes.io/azure-disk",
                "disk.csi.azure.com",
                error="kind(Dedicated) is not supported in csi migration",
            ),
        ),
        ({"cinder": {"volumeID": "c"}}, None, MigratedDisk("kubernetes.io/cinder", "cinder.csi.openstack.org", "c")),
        (
            {"portworxVolume": {"volumeID": "p"}},
            None,
            MigratedDisk("kubernetes.io/portworx-volume", "pxd.portworx.com", "p"),
        ),
    ],
)
def test_inline_disks_have_conflict_keys_and_driver_handles(
    document: dict[str, Any], disk: Disk | None, migrated: MigratedDisk | None
) -> None:
    assert volumes({"name": "v", **document}) == (PodVolume("v", disk=disk, migrated=migrated),)


@pytest.mark.parametrize(
    ("one", "other", "conflict"),
    [
        (Disk(DiskKind.GCE, "d"), Disk(DiskKind.GCE, "d", is_read_only=True), True),
        (Disk(DiskKind.GCE, "d", is_read_only=True), Disk(DiskKind.GCE, "d", is_read_only=True), False),
        (Disk(DiskKind.GCE, "d"), Disk(DiskKind.ISCSI, "d"), False),
        (Disk(DiskKind.AWS, "v"), Disk(DiskKind.AWS, "v"), True),
        (Disk(DiskKind.ISCSI, "q"), Disk(DiskKind.ISCSI, "q"), True),
        (Disk(DiskKind.RBD, "p/i", monitors=frozenset("ab")), Disk(DiskKind.RBD, "p/i", monitors=frozenset("b")), True),
        (Disk(DiskKind.RBD, "p/i", monitors=frozenset("a")), Disk(DiskKind.RBD, "p/i", monitors=frozenset("b")), False),
    ],
)
def test_disks_conflict_as_upstream(one: Disk, other: Disk, conflict: bool) -> None:
    assert one.conflicts_with(other) is conflict
    assert other.conflicts_with(one) is conflict


def test_a_bad_aws_id_is_kept_with_its_error() -> None:
    (found,) = volumes({"name": "v", "awsElasticBlockStore": {"volumeID": "aws://zone/disk-1"}})
    assert found.migrated is not None
    assert "Invalid format for AWS volume (aws://zone/disk-1)" in found.migrated.error


def test_resource_claims_are_read() -> None:
    pod = decode_pod(
        pod_document(
            resourceClaims=[
                {"name": "gpu", "resourceClaimName": "shared"},
                {"name": "nic", "resourceClaimTemplateName": "fast"},
            ]
        )
    )
    assert pod.spec.resource_claims == (PodResourceClaim("gpu", "shared"), PodResourceClaim("nic", template="fast"))
    assert pod.spec.unsupported == ("resource claims (DynamicResources)",)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"volumes": [{"persistentVolumeClaim": {"claimName": "c"}}] * (VOLUMES_MAX + 1)}, "spec.volumes"),
        ({"volumes": [{"rbd": {"monitors": ["m"] * (RBD_MONITORS_MAX + 1)}}]}, "spec.volumes"),
        ({"resourceClaims": [{"name": "r"}] * (RESOURCE_CLAIMS_MAX + 1)}, "spec.resourceClaims"),
        ({"volumes": [{"gcePersistentDisk": "d"}]}, "spec.volumes"),
    ],
)
def test_too_many_or_misshapen_volumes_make_the_pod_malformed(spec: dict[str, Any], path: str) -> None:
    assert path in decode_pod(pod_document(**spec)).malformed
