"""API documents of volumes, claims and what belongs to them, for the tests of the volume plugins."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]

EBS = "ebs.csi.aws.com"


def claim(name: str, **fields: Any) -> Document:
    """`volume`, `storage_class`, `modes`, `owner` (uid of a pod), `namespace`."""
    owner = fields.get("owner")
    references = [{"kind": "Pod", "name": "p", "uid": owner, "controller": True}] if owner else []
    spec: Document = {
        "accessModes": fields.get("modes", ["ReadWriteOnce"]),
        "resources": {"requests": {"storage": "1Gi"}},
        "volumeName": fields.get("volume", ""),
    }
    if fields.get("storage_class") is not None:
        spec["storageClassName"] = fields["storage_class"]
    return {
        "metadata": {
            "name": name,
            "namespace": fields.get("namespace", "default"),
            "uid": f"claim-{name}",
            "ownerReferences": references,
        },
        "spec": spec,
    }


def volume(name: str, labels: dict[str, str] | None = None, **source: Any) -> Document:
    """`driver` and `handle` for CSI, else any source of the API."""
    if "handle" in source:
        source = {"csi": {"driver": source.get("driver", EBS), "volumeHandle": source["handle"]}}
    return {
        "metadata": {"name": name, "uid": f"volume-{name}", "labels": labels or {}},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], **source},
    }


def storage_class(name: str, provisioner: str = EBS, mode: str | None = "WaitForFirstConsumer") -> Document:
    found: Document = {"metadata": {"name": name, "uid": f"class-{name}"}, "provisioner": provisioner}
    return found if mode is None else {**found, "volumeBindingMode": mode}


def csi_node(name: str, **limits: int | None) -> Document:
    """Limits by driver; a dot is written as two underscores."""
    drivers = []
    for driver, count in limits.items():
        allocatable = {} if count is None else {"allocatable": {"count": count}}
        drivers.append({"name": driver.replace("__", "."), "nodeID": name, **allocatable})
    return {"metadata": {"name": name, "uid": f"csi-{name}"}, "spec": {"drivers": drivers}}


def attachment(name: str, node: str, volume_name: str | None, attacher: str = EBS) -> Document:
    source = {} if volume_name is None else {"persistentVolumeName": volume_name}
    return {
        "metadata": {"name": name, "uid": f"attachment-{name}"},
        "spec": {"attacher": attacher, "nodeName": node, "source": source},
    }


def uses(*claims: str) -> list[Document]:
    """spec.volumes that name these claims."""
    return [{"name": f"v{at}", "persistentVolumeClaim": {"claimName": name}} for at, name in enumerate(claims)]


def ephemeral(name: str) -> Document:
    return {"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}
