"""Admission and validation of claims, volumes and storage classes, with kube-apiserver's paths and messages.

Called by admission, validation and the object store. Source: pkg/apis/core/validation, pkg/apis/storage/validation,
plugin/pkg/admission/storage and the strategies of pkg/registry/core (1.36).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from multisched.cluster.admission import pod_rules
from multisched.cluster.admission.volume_rules import CLAIM_FINALIZER, VOLUME_FINALIZER, default_class, has_class
from multisched.cluster.base import errors, quantities
from multisched.cluster.base.resources import Document

Causes = list[dict[str, str]]

ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
RECLAIM_POLICIES = ("Delete", "Recycle", "Retain")
VOLUME_MODES = ("Block", "Filesystem")
# fmt: off
VOLUME_SOURCES = (
    "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "csi", "fc", "flexVolume",
    "flocker", "gcePersistentDisk", "glusterfs", "hostPath", "iscsi", "local", "nfs", "photonPersistentDisk",
    "portworxVolume", "quobyte", "rbd", "scaleIO", "storageos", "vsphereVolume",
)
# fmt: on
_PROTECTED = {"persistentvolumeclaims": CLAIM_FINALIZER, "persistentvolumes": VOLUME_FINALIZER}


# -- additions -------------------------------------------------------------------------------------------------------


def protect(storage_key: str, document: Document) -> None:
    """Adds the finalizer that protects objects in use. Source: admission plugin StorageObjectInUseProtection."""
    finalizer = _PROTECTED.get(storage_key)
    if finalizer is not None:
        finalizers = document["metadata"].setdefault("finalizers", [])
        if finalizer not in finalizers:
            finalizers.append(finalizer)


def take_default_class(claim: Document, classes: Iterable[Document]) -> None:
    """Sets the default class of a claim without one. Source: admission plugin DefaultStorageClass."""
    if not has_class(claim):
        name = default_class(classes)
        if name is not None:
            claim["spec"]["storageClassName"] = name


def note_phase(new: Document, old: Mapping[str, Any], now: str) -> None:
    """Sets lastPhaseTransitionTime of a volume whose phase changed."""
    status, before = new["status"], old.get("status") or {}
    last = before.get("lastPhaseTransitionTime")
    if status.get("phase") == before.get("phase"):
        if last is not None:
            status.setdefault("lastPhaseTransitionTime", last)
    elif status.get("lastPhaseTransitionTime") in (None, last):
        status["lastPhaseTransitionTime"] = now


# -- validation ------------------------------------------------------------------------------------------------------


def claim(document: Document) -> Causes:
    """Returns the causes for a new or changed PersistentVolumeClaim."""
    spec = document.get("spec") or {}
    causes: Causes = []
    if not spec.get("accessModes"):
        causes.append(errors.required("spec.accessModes", "at least 1 access mode is required"))
    if spec.get("selector"):
        causes += pod_rules.label_selector(spec["selector"], "spec.selector")
    causes += _access_modes(spec)
    requests = (spec.get("resources") or {}).get("requests") or {}
    pod_rules.check_quantities("PersistentVolumeClaim", requests)
    if "storage" not in requests:
        causes.append(errors.required("spec.resources[storage]"))
    else:
        causes += _positive(requests["storage"], "spec.resources[storage]")
    return causes + _volume_mode(spec)


def claim_change(new: Document, old: Document) -> Causes:
    """Returns the causes for changes of a claim's spec.

    Mutable are an unset volume name, an unset class, and the size and attributes class of a bound claim.
    """
    after, before = dict(new.get("spec") or {}), dict(old.get("spec") or {})
    causes: Causes = []
    if not before.get("volumeName"):
        before["volumeName"] = after.get("volumeName")
    if before.get("storageClassName") is None and after.get("storageClassName") is not None:
        before["storageClassName"] = after["storageClassName"]
    was, size = (quantities.parse(_requested(spec)) or 0 for spec in (before, after))
    if (old.get("status") or {}).get("phase") == "Bound":
        after = {**after, "resources": before.get("resources"), **_same_attributes(before)}
    if {k: v for k, v in after.items() if v} != {k: v for k, v in before.items() if v}:
        text = (
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
        )
        causes.append(errors.forbidden_value("spec", text))
    held = quantities.parse(((old.get("status") or {}).get("capacity") or {}).get("storage") or "0") or 0
    if size < was and size <= held:
        causes.append(
            errors.forbidden_value("spec.resources.requests.storage", "field can not be less than status.capacity")
        )
    return causes


def _requested(spec: Mapping[str, Any]) -> str:
    return ((spec.get("resources") or {}).get("requests") or {}).get("storage") or "0"


def _same_attributes(before: Mapping[str, Any]) -> Document:
    return {"volumeAttributesClassName": before.get("volumeAttributesClassName")}


def volume(document: Document) -> Causes:
    """Returns the causes for a new or changed PersistentVolume."""
    spec = document.get("spec") or {}
    causes: Causes = []
    if not spec.get("accessModes"):
        causes.append(errors.required("spec.accessModes"))
    causes += _access_modes(spec)
    capacity = spec.get("capacity") or {}
    pod_rules.check_quantities("PersistentVolume", capacity)
    if not capacity:
        causes.append(errors.required("spec.capacity"))
    if list(capacity) != ["storage"]:
        causes.append(errors.unsupported_value("spec.capacity", capacity or None, ["storage"]))
    for name, amount in capacity.items():
        causes += _positive(amount, f"spec.capacity[{name}]")
    policy = spec.get("persistentVolumeReclaimPolicy")
    if policy and policy not in RECLAIM_POLICIES:
        causes.append(errors.unsupported_value("spec.persistentVolumeReclaimPolicy", policy, RECLAIM_POLICIES))
    sources = [name for name in VOLUME_SOURCES if spec.get(name) is not None]
    if not sources:
        causes.append(errors.required("spec", "must specify a volume type"))
    for extra in sources[1:]:
        causes.append(errors.forbidden_value(f"spec.{extra}", "may not specify more than 1 volume type"))
    return causes + _volume_mode(spec)


def volume_change(new: Document, old: Document) -> Causes:
    """Returns the causes for changes of a volume's source, mode and node affinity, which are immutable."""
    after, before = new.get("spec") or {}, old.get("spec") or {}
    causes: Causes = []
    if any(after.get(name) != before.get(name) for name in VOLUME_SOURCES):
        text = "spec.persistentvolumesource is immutable after creation"
        causes.append(errors.forbidden_value("spec.persistentvolumesource", text))
    if after.get("volumeMode") != before.get("volumeMode"):
        causes.append(errors.invalid_value("volumeMode", after.get("volumeMode"), "field is immutable"))
    if before.get("nodeAffinity") and after.get("nodeAffinity") != before["nodeAffinity"]:
        causes.append(errors.invalid_value("nodeAffinity", after.get("nodeAffinity"), "field is immutable"))
    return causes


def storage_class(document: Document) -> Causes:
    """Returns the causes for a new or changed StorageClass."""
    causes: Causes = [] if document.get("provisioner") else [errors.required("provisioner")]
    policy, mode = document.get("reclaimPolicy"), document.get("volumeBindingMode")
    if policy not in ("Delete", "Retain"):
        causes.append(errors.unsupported_value("reclaimPolicy", policy, ["Delete", "Retain"]))
    if mode not in ("Immediate", "WaitForFirstConsumer"):
        causes.append(errors.unsupported_value("volumeBindingMode", mode, ["Immediate", "WaitForFirstConsumer"]))
    return causes


def storage_class_change(new: Document, old: Document) -> Causes:
    """Returns the causes for changes of a class; only metadata, mount options, expansion and topologies may change."""
    fields = ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode")
    return [
        errors.invalid_value(field, new.get(field), "field is immutable")
        for field in fields
        if new.get(field) != old.get(field)
    ]


def _access_modes(spec: Mapping[str, Any]) -> Causes:
    modes = spec.get("accessModes") or ()
    causes = [
        errors.unsupported_value("spec.accessModes", mode, ACCESS_MODES) for mode in modes if mode not in ACCESS_MODES
    ]
    known = [mode for mode in modes if mode in ACCESS_MODES]
    if "ReadWriteOncePod" in known and set(known) != {"ReadWriteOncePod"}:
        text = "may not use ReadWriteOncePod with other access modes"
        causes.append(errors.forbidden_value("spec.accessModes", text))
    return causes


def _positive(amount: Any, path: str) -> Causes:
    value = quantities.parse(amount)
    return [] if value is None or value > 0 else [errors.invalid_value(path, amount, "must be greater than zero")]


def _volume_mode(spec: Mapping[str, Any]) -> Causes:
    mode = spec.get("volumeMode")
    if mode is None or mode in VOLUME_MODES:
        return []
    return [errors.unsupported_value("spec.volumeMode", mode, VOLUME_MODES)]
