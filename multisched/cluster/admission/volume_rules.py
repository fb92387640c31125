"""Matching of claims, volumes and storage classes: pure rules over their documents.

Called by the controllers of volumes and claims, and by the fake provisioner. Source: component-helpers
storage/volume/pv_helpers.go and pkg/controller/volume/persistentvolume (1.36).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

from multisched.cluster.base import quantities
from multisched.cluster.base.resources import Document
from multisched.cluster.base.selectors import from_label_selector

BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
MIGRATED_TO = "pv.kubernetes.io/migrated-to"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
BETA_PROVISIONER = "volume.beta.kubernetes.io/storage-provisioner"
PROVISIONER = "volume.kubernetes.io/storage-provisioner"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
BETA_DEFAULT_CLASS = "storageclass.beta.kubernetes.io/is-default-class"
CLAIM_FINALIZER = "kubernetes.io/pvc-protection"
VOLUME_FINALIZER = "kubernetes.io/pv-protection"
WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"


def annotations_of(document: Document) -> Mapping[str, str]:
    return document["metadata"].get("annotations") or {}


def class_of(document: Document) -> str:
    """Returns the class of a claim or volume, from the beta annotation or the spec; empty if there is none."""
    return annotations_of(document).get(BETA_CLASS) or document["spec"].get("storageClassName") or ""


def has_class(claim: Document) -> bool:
    """Reports whether the claim names a class, possibly an empty one. If it does not, it gets the default class."""
    return BETA_CLASS in annotations_of(claim) or claim["spec"].get("storageClassName") is not None


def is_unbound(claim: Document) -> bool:
    return BIND_COMPLETED not in annotations_of(claim)


def is_late(storage_class: Document | None) -> bool:
    """Reports whether the class has volumeBindingMode WaitForFirstConsumer."""
    return storage_class is not None and storage_class.get("volumeBindingMode") == WAIT_FOR_FIRST_CONSUMER


def default_class(classes: Iterable[Document]) -> str | None:
    """Returns the name of the newest default class; among equally new classes the first by name. None if there is none."""
    defaults = [c for c in classes if "true" in map(annotations_of(c).get, (DEFAULT_CLASS, BETA_DEFAULT_CLASS))]
    defaults.sort(key=lambda c: str(c["metadata"]["name"]))
    newest = max(defaults, key=lambda c: str(c["metadata"].get("creationTimestamp") or ""), default=None)
    return None if newest is None else str(newest["metadata"]["name"])


def reserves(volume: Document, claim: Document) -> bool:
    """Reports whether the volume's claimRef names the claim, with its uid or without one."""
    reference, metadata = volume["spec"].get("claimRef"), claim["metadata"]
    return (
        reference is not None
        and (reference.get("namespace"), reference.get("name")) == (metadata["namespace"], metadata["name"])
        and reference.get("uid") in (None, "", metadata["uid"])
    )


def storage(document: Document) -> Fraction:
    """Returns the capacity of a volume, or the storage request of a claim, in bytes."""
    spec = document["spec"]
    amounts = spec.get("capacity") or (spec.get("resources") or {}).get("requests") or {}
    return quantities.parse(amounts.get("storage") or "0") or Fraction(0)


def mode_of(document: Document) -> str:
    return document["spec"].get("volumeMode") or "Filesystem"


def best_match(claim: Document, volumes: Iterable[Document], *, is_late: bool) -> Document | None:
    """Returns the volume reserved for the claim, else the smallest matching one. With `is_late`, only a reserved one."""
    fits = from_label_selector(claim["spec"]["selector"]) if claim["spec"].get("selector") else None
    candidates = []
    for volume in volumes:
        if volume["spec"].get("claimRef") is not None and not reserves(volume, claim):
            continue
        if storage(volume) < storage(claim) or mode_of(volume) != mode_of(claim) or not _has_modes(volume, claim):
            continue
        if _attributes_class(volume) != _attributes_class(claim) or volume["metadata"].get("deletionTimestamp"):
            continue
        if reserves(volume, claim):
            return volume
        is_free = not is_late and (volume.get("status") or {}).get("phase") == "Available"
        if not is_free or class_of(volume) != class_of(claim):
            continue
        if fits is None or fits(volume["metadata"].get("labels") or {}):
            candidates.append(volume)
    return min(candidates, key=lambda volume: (len(_modes(volume)), storage(volume)), default=None)


def mismatch(volume: Document, claim: Document) -> str:
    """Returns why the claim cannot be bound to this volume, which its spec names; empty if it can."""
    if volume["metadata"].get("deletionTimestamp"):
        return f'the volume is marked for deletion "{volume["metadata"]["name"]}"'
    if storage(volume) < storage(claim):
        return "requested PV is too small"
    if class_of(volume) != class_of(claim):
        return "storageClassName does not match"
    if _attributes_class(volume) != _attributes_class(claim):
        return "volumeAttributesClassName does not match"
    if mode_of(volume) != mode_of(claim):
        return "incompatible volumeMode"
    return "" if _has_modes(volume, claim) else "incompatible accessMode"


def _modes(document: Document) -> list[str]:
    return list(document["spec"].get("accessModes") or ())


def _has_modes(volume: Document, claim: Document) -> bool:
    return set(_modes(claim)) <= set(_modes(volume))


def _attributes_class(document: Document) -> str:
    return document["spec"].get("volumeAttributesClassName") or ""


def claim_keys(claim: Document) -> Iterator[str]:
    """Returns the index keys of a claim: its volume's name, and its class while it is unbound."""
    if claim["spec"].get("volumeName"):
        yield f"volume/{claim['spec']['volumeName']}"
    if is_unbound(claim):
        yield f"unbound/{class_of(claim)}"


def volume_keys(volume: Document) -> Iterator[str]:
    """Returns the index key of a volume: the claim in its claimRef, or its class if it has none."""
    reference = volume["spec"].get("claimRef")
    if reference:
        yield f"claim/{reference.get('namespace', '')}/{reference.get('name', '')}"
    else:
        yield f"free/{class_of(volume)}"
