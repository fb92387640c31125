"""VolumeRestrictions: refuses nodes with a conflicting inline disk, and claims with ReadWriteOncePod that are in use."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from multisched.framework.context import PluginContext
from multisched.framework.cycle_state import StateKey
from multisched.framework.dependency import Dependency
from multisched.framework.events import (
    NODE_ADD,
    NODE_DELETE,
    Action,
    ClusterEvent,
    EventObject,
    EventRegistration,
    Hint,
    Resource,
)
from multisched.framework.node_view import Codes, Rows
from multisched.framework.objects_view import hidden
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.sensitivity import PodSensitivity
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.framework.traits import Traits
from multisched.model.cluster_objects import READ_WRITE_ONCE_POD
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.plugins.columns import positions, zeros
from multisched.plugins.volumes.pod_claims import claim_not_found, names_claim


class _Exclusive:
    """The pod's ReadWriteOncePod claims, and how often placed pods use them. Immutable, since cycle states share it."""

    __slots__ = ("claims", "uses")

    def __init__(self, claims: frozenset[str], uses: int) -> None:
        self.claims = claims
        self.uses = uses


_EXCLUSIVE: StateKey[_Exclusive] = StateKey("VolumeRestrictions")


class VolumeRestrictions:
    """Source: kube-scheduler 1.36, plugins/volumerestrictions/volume_restrictions.go."""

    name = "VolumeRestrictions"
    depends_on = Dependency.ROW_AND_CACHE_KEY
    traits = Traits(reads_objects=(ObjectKind.PERSISTENT_VOLUME_CLAIM,), signs_spec_only=True)

    def __init__(self, context: PluginContext) -> None:
        self._objects = context.objects
        self.reasons = ReasonTable(self.name)
        self._disk_taken = self.reasons.code(Code.UNSCHEDULABLE, "node(s) had no available disk")
        self._claim_taken = self.reasons.code(
            Code.UNSCHEDULABLE,
            "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another"
            " pod",
        )

    def cache_key(self, cycle: CycleView, pod: Pod) -> Hashable | None:
        """Returns the pod's claims and whether placed pods use them; disks are covered by the row version."""
        if not pod.spec.volumes:
            return None
        users = cycle.nodes.volume_users
        return hidden(self._objects, *self.traits.reads_objects), *(
            (self._objects.claim(pod.namespace, volume.claim), bool(users.claim_users(pod.namespace, volume.claim)))
            for volume in pod.spec.volumes
            if volume.claim is not None
        )

    def pod_sensitivity(self, cycle: CycleView, pod: Pod) -> PodSensitivity:
        """Returns sensitivity to pods with volumes, on all rows if the pod has a ReadWriteOncePod claim."""
        is_by_row = not self._exclusive(pod)
        return PodSensitivity((), lambda other: bool(other.spec.volumes), is_by_row=is_by_row)

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        """Refuses a pod that names a missing claim; skips a pod that cannot conflict with other pods."""
        if not pod.spec.volumes:
            return PreFilterResult(SKIP)
        unknown = hidden(self._objects, *self.traits.reads_objects)
        if unknown and any(volume.claim is not None for volume in pod.spec.volumes):
            return PreFilterResult(Status.unresolvable(unknown).by(self.name))
        for volume in pod.spec.volumes:
            if volume.claim is not None and self._objects.claim(pod.namespace, volume.claim) is None:
                return PreFilterResult(Status.unresolvable(claim_not_found(volume.claim)).by(self.name))
        exclusive = self._exclusive(pod)
        in_use = _in_use(cycle, pod, exclusive)
        if not in_use.uses and not any(volume.disk for volume in pod.spec.volumes):
            return PreFilterResult(SKIP)
        cycle.state.write(_EXCLUSIVE, in_use)
        return PreFilterResult()

    def _exclusive(self, pod: Pod) -> frozenset[str]:
        """Returns the pod's ReadWriteOncePod claims."""
        names = [volume.claim for volume in pod.spec.volumes if volume.claim is not None]
        found = [(name, self._objects.claim(pod.namespace, name)) for name in names]
        return frozenset(
            name for name, claim in found if claim is not None and READ_WRITE_ONCE_POD in claim.access_modes
        )

    def add_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        self._count(cycle, other, 1)
        return SUCCESS

    def remove_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        if other.uid == pod.uid:  # the pod itself is placed there: only the uses by other pods are left
            cycle.state.write(_EXCLUSIVE, _in_use(cycle, pod, cycle.state.read(_EXCLUSIVE).claims))
        else:
            self._count(cycle, other, -1)
        return SUCCESS

    def _count(self, cycle: CycleView, other: Pod, sign: int) -> None:
        """Adds or subtracts the other pod's uses of the claims.

        As upstream, PreFilter counts a claim once but this counts each use, and the other pod's namespace is ignored.
        The choice of victims depends on both.
        """
        if not other.spec.volumes:
            return
        state = cycle.state.read(_EXCLUSIVE)
        uses = sum(1 for volume in other.spec.volumes if volume.claim in state.claims)
        if uses:
            cycle.state.write(_EXCLUSIVE, _Exclusive(state.claims, state.uses + sign * uses))

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: refuses rows with a conflicting disk; all rows while a ReadWriteOncePod claim is in use."""
        codes = zeros(rows)
        if cycle.state.read(_EXCLUSIVE).uses > 0:
            codes[:] = self._claim_taken
        users = cycle.nodes.volume_users
        for volume in pod.spec.volumes:
            disk = volume.disk
            if disk is None:
                continue
            held = users.disk_users(disk.kind, disk.id)
            codes[positions(rows, (row for row, others in held.items() if any(map(disk.conflicts_with, others))))] = (
                self._disk_taken
            )
        return codes

    def sign(self, pod: Pod) -> Hashable:
        return pod.spec.volumes

    def events_to_register(self) -> Sequence[EventRegistration]:
        claim_added = ClusterEvent(ObjectKind.PERSISTENT_VOLUME_CLAIM, Action.ADD, "PersistentVolumeClaimAdd")
        return (
            EventRegistration(ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE, "AssignedPodDelete"), _after_delete),
            EventRegistration(NODE_ADD),
            EventRegistration(NODE_DELETE, _after_node_delete),
            EventRegistration(ClusterEvent(Resource.DISTANT_NODE, Action.DELETE, "DistantNode"), _after_node_delete),
            EventRegistration(claim_added, names_claim),
        )


def _in_use(cycle: CycleView, pod: Pod, claims: frozenset[str]) -> _Exclusive:
    users = cycle.nodes.volume_users
    return _Exclusive(claims, sum(1 for claim in claims if users.claim_users(pod.namespace, claim)))


def _after_node_delete(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues a pod with claims if a node was deleted: claims used there are free now. Upstream leaves the pod parked."""
    names = isinstance(old, Node) and any(volume.claim is not None for volume in pod.spec.volumes)
    return Hint.QUEUE if names else Hint.SKIP


def _after_delete(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if the deleted pod used one of its disks or claims.

    Upstream ignores pods of other namespaces, although disks have no namespace, and leaves such pods parked.
    """
    if not isinstance(old, Pod):
        return Hint.SKIP
    for volume in old.spec.volumes:
        disk = volume.disk
        if disk is not None and any(own.disk is not None and own.disk.conflicts_with(disk) for own in pod.spec.volumes):
            return Hint.QUEUE
        is_claim_near = volume.claim is not None and old.namespace == pod.namespace
        if is_claim_near and any(own.claim == volume.claim for own in pod.spec.volumes):
            return Hint.QUEUE
    return Hint.SKIP
