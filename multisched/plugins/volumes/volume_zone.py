"""VolumeZone: restricts pods with bound volumes to the zones and regions in the volumes' labels."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from multisched.framework.context import PluginContext
from multisched.framework.cycle_state import StateKey
from multisched.framework.dependency import Dependency
from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.framework.node_view import Bools, Codes, Int32, NodeView, Rows
from multisched.framework.objects_view import hidden
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.sensitivity import PodSensitivity
from multisched.framework.status import SKIP, Code, Status
from multisched.framework.traits import Traits
from multisched.model.cluster_objects import (
    WAIT_FOR_FIRST_CONSUMER,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.plugins.columns import Selection, zeros
from multisched.plugins.volumes.pod_claims import claim_not_found, names_claim

_GA_LABEL = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
_LABELS = (*_GA_LABEL, *_GA_LABEL.values())
_SEPARATOR = "__"

_Place = tuple[str, frozenset[str]]
"""A label key and the values that the node may have for it."""

_PLACES: StateKey[tuple[_Place, ...]] = StateKey("VolumeZone")


class VolumeZone:
    """Source: kube-scheduler 1.36, plugins/volumezone/volume_zone.go."""

    name = "VolumeZone"
    depends_on = Dependency.CACHE_KEY
    traits = Traits(
        reads_objects=(ObjectKind.PERSISTENT_VOLUME, ObjectKind.PERSISTENT_VOLUME_CLAIM, ObjectKind.STORAGE_CLASS),
        signs_spec_only=True,
    )

    def __init__(self, context: PluginContext) -> None:
        self._objects = context.objects
        self.reasons = ReasonTable(self.name)
        self._elsewhere = self.reasons.code(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "node(s) had no available volume zone")

    def cache_key(self, cycle: CycleView, pod: Pod) -> Hashable | None:
        """Returns the pod's claims, their volumes and their classes."""
        names = [volume.claim for volume in pod.spec.volumes if volume.claim is not None]
        if not names:
            return None
        objects = self._objects
        found: list[Hashable] = [hidden(objects, *self.traits.reads_objects)]
        for name in names:
            claim = objects.claim(pod.namespace, name)
            if claim is None:
                found.append((None, None))
            elif claim.volume:
                found.append((claim, objects.volume(claim.volume)))
            else:
                found.append((claim, objects.storage_class(claim.class_name)))
        return tuple(found)

    def pod_sensitivity(self, cycle: CycleView, pod: Pod) -> PodSensitivity:
        """Returns sensitivity to no pods: placed pods do not affect the zones of volumes."""
        return PodSensitivity((), lambda other: False)

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        """Collects the zones and regions of the pod's bound volumes; refuses a missing claim or volume, or an unbound immediate claim."""
        places: list[_Place] = []
        unknown = hidden(self._objects, *self.traits.reads_objects)
        for volume in pod.spec.volumes:
            if volume.claim is None:
                continue
            if unknown:
                return PreFilterResult(Status.unresolvable(unknown).by(self.name))
            found = self._places_of(pod.namespace, volume.claim)
            if isinstance(found, str):
                return PreFilterResult(Status.unresolvable(found).by(self.name))
            places += found
        if not places:
            return PreFilterResult(SKIP)
        cycle.state.write(_PLACES, tuple(places))
        return PreFilterResult()

    def _places_of(self, namespace: str, claim_name: str) -> Sequence[_Place] | str:
        """Returns the zones and regions of the claim's volume, or why the claim cannot be used."""
        if not claim_name:
            return "PersistentVolumeClaim had no name"
        claim = self._objects.claim(namespace, claim_name)
        if claim is None:
            return claim_not_found(claim_name)
        if not claim.volume:
            return self._unbound(claim)
        volume = self._objects.volume(claim.volume)
        return f'persistentvolume "{claim.volume}" not found' if volume is None else _places(volume.labels)

    def _unbound(self, claim: PersistentVolumeClaim) -> Sequence[_Place] | str:
        if not claim.class_name:
            return "PersistentVolumeClaim had no pv name and storageClass name"
        storage_class = self._objects.storage_class(claim.class_name)
        if storage_class is None:
            return f'storageclass.storage.k8s.io "{claim.class_name}" not found'
        if storage_class.binding_mode is None:
            return f'VolumeBindingMode not set for StorageClass "{claim.class_name}"'
        return () if storage_class.binding_mode == WAIT_FOR_FIRST_CONSUMER else "PersistentVolume had no name"

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: refuses rows that have zone or region labels but do not match those of every volume."""
        codes, selection = zeros(rows), Selection(rows)
        is_placed = np.zeros(len(rows), np.bool_)
        for key in _LABELS:
            is_placed |= selection.of(cycle.nodes.label_codes(key)) != 0
        for key, values in cycle.state.read(_PLACES):
            codes[is_placed & ~_is_there(cycle.nodes, selection, key, values)] = self._elsewhere
        return codes

    def sign(self, pod: Pod) -> Hashable:
        return pod.spec.volumes

    def events_to_register(self) -> Sequence[EventRegistration]:
        either = Action.ADD | Action.UPDATE
        return (
            EventRegistration(ClusterEvent(ObjectKind.STORAGE_CLASS, Action.ADD, "StorageClassAdd"), _after_class),
            EventRegistration(ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL, "NodeAddOrLabel")),
            EventRegistration(
                ClusterEvent(ObjectKind.PERSISTENT_VOLUME_CLAIM, either, "PersistentVolumeClaimChange"), names_claim
            ),
            EventRegistration(
                ClusterEvent(ObjectKind.PERSISTENT_VOLUME, either, "PersistentVolumeChange"), _after_volume
            ),
        )


def _is_there(nodes: NodeView, selection: Selection, key: str, values: frozenset[str]) -> Bools:
    """Returns bool[rows]: the row's label has one of the values. If it lacks a beta label, the GA label is compared."""
    codes = selection.of(nodes.label_codes(key))
    there = _has_one_of(nodes, key, codes, values)
    newer = _GA_LABEL.get(key)
    if newer is None:
        return there
    fallback = _has_one_of(nodes, newer, selection.of(nodes.label_codes(newer)), values)
    return np.where(codes != 0, there, fallback)


def _has_one_of(nodes: NodeView, key: str, codes: Int32, values: frozenset[str]) -> Bools:
    wanted = sorted({nodes.label_code(key, value) for value in values} - {0})
    return np.isin(codes, np.array(wanted, np.int32))


def _places(labels: Mapping[str, str]) -> tuple[_Place, ...]:
    """Returns the zone and region labels with their values; skips a label with an empty value in its list, as upstream."""
    found = []
    for key in _LABELS:
        if key in labels:
            values = frozenset(value.strip() for value in labels[key].split(_SEPARATOR))
            if "" not in values:
                found.append((key, values))
    return tuple(found)


def _after_class(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if the class uses WaitForFirstConsumer: only then can an unbound claim pass."""
    is_late = isinstance(new, StorageClass) and new.binding_mode == WAIT_FOR_FIRST_CONSUMER
    return Hint.QUEUE if is_late else Hint.SKIP


def _after_volume(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if a volume is new or its zone or region labels changed."""
    if not isinstance(new, PersistentVolume):
        return Hint.SKIP
    is_same = isinstance(old, PersistentVolume) and _places(old.labels) == _places(new.labels)
    return Hint.SKIP if is_same else Hint.QUEUE
