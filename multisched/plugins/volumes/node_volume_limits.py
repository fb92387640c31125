"""NodeVolumeLimits: limits the volumes of a CSI driver on a node to the number that the driver can attach."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

import numpy as np

from multisched.framework.context import PluginContext
from multisched.framework.dependency import Dependency
from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.framework.node_view import Bools, Codes, Rows
from multisched.framework.objects_view import hidden
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.sensitivity import PodSensitivity
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.framework.traits import Traits
from multisched.model.cluster_objects import CsiNode, VolumeAttachment
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.model.volumes import COUNTED_PLUGINS, PodVolume
from multisched.plugins.columns import positions, zeros
from multisched.plugins.volumes.attached_volumes import NO_LIMIT, Attached, attached_volumes
from multisched.plugins.volumes.pod_claims import claim_not_found, may_name_claim, not_its_own


class NodeVolumeLimits:
    """Source: kube-scheduler 1.36, plugins/nodevolumelimits/csi.go (without the alpha VolumeLimitScaling)."""

    name = "NodeVolumeLimits"
    depends_on = Dependency.ROW_AND_CACHE_KEY
    traits = Traits(
        may_fail=True,
        reads_objects=(
            ObjectKind.PERSISTENT_VOLUME,
            ObjectKind.PERSISTENT_VOLUME_CLAIM,
            ObjectKind.STORAGE_CLASS,
            ObjectKind.CSI_NODE,
            ObjectKind.VOLUME_ATTACHMENT,
        ),
    )

    def __init__(self, context: PluginContext) -> None:
        self._objects = context.objects
        self._attached = attached_volumes(context.nodes, context.objects)
        self.reasons = ReasonTable(self.name)
        self._full = self.reasons.code(Code.UNSCHEDULABLE, "node(s) exceed max volume count")

    def catch_up(self) -> bool:
        """Counts some changed rows before the next pod with volumes. Reports whether there are more."""
        return self._attached.catch_up()

    def cache_key(self, cycle: CycleView, pod: Pod) -> Hashable | None:
        """Returns the versions of all objects that affect the count; None for pods without volumes."""
        return self._objects.versions(*self.traits.reads_objects) if any(map(_may_count, pod.spec.volumes)) else None

    def pod_sensitivity(self, cycle: CycleView, pod: Pod) -> PodSensitivity:
        """Returns sensitivity to pods with volumes."""
        return PodSensitivity((), lambda other: bool(other.spec.volumes), is_by_row=True)

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        """Skips pods without claims and without in-tree disks that are migrated to CSI."""
        if not any(map(_may_count, pod.spec.volumes)):
            return PreFilterResult(SKIP)
        unknown = hidden(self._objects, *self.traits.reads_objects)
        return PreFilterResult(Status.unresolvable(unknown).by(self.name) if unknown else SUCCESS)

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: refuses rows where the pod's volumes that are not yet on the node would exceed a limit.

        Returns an error for a claim that another pod owns and, on nodes with CSI drivers, for a migrated disk that cannot be
        translated to CSI.
        """
        codes = zeros(rows)
        for volume in pod.spec.volumes:
            complaint = self._claim_refusal(pod, volume)
            if complaint is not None:
                codes[codes == 0] = self.reasons.code(complaint.code, *complaint.reasons)
                return codes
            if _is_untranslatable(volume):
                self._fail_where_drivers_are(cycle, volume, rows, codes)
        self._refuse_where_full(cycle, pod, rows, codes)
        return codes

    def _refuse_where_full(self, cycle: CycleView, pod: Pod, rows: Rows, codes: Codes) -> None:
        self._attached.renew()
        wanted: dict[str, set[Attached]] = {}
        for _, attached in self._attached.of_pod(pod):
            if attached is not None:
                wanted.setdefault(attached[0], set()).add(attached)
        is_over = np.zeros(len(rows), np.bool_)
        for driver, volumes in wanted.items():
            is_over |= self._is_over(driver, volumes, rows)
        for at in positions(rows, cycle.nodes.volume_users.overlaid_rows) if wanted else ():
            is_over[at] = self._is_over_in_trial(cycle, wanted, int(rows[at]))
        codes[is_over & (codes == 0)] = self._full

    def _is_over(self, driver: str, volumes: Collection[Attached], rows: Rows) -> Bools:
        room = self._attached.room(driver, rows)
        if room is None:
            return np.zeros(len(rows), np.bool_)
        limits, used = room
        added = np.full(len(rows), len(volumes), np.int64)
        for volume in volumes:
            added[positions(rows, self._attached.holders(volume))] -= 1
        is_over: Bools = (limits != NO_LIMIT) & (added > 0) & (used + added > limits)
        return is_over

    def _is_over_in_trial(self, cycle: CycleView, wanted: Mapping[str, Collection[Attached]], row: int) -> bool:
        """Reports whether the volumes exceed a limit on a row of an overlay, whose pods differ from the counted ones."""
        limits, used, held = self._attached.count(row, cycle.nodes.pods_on(row))
        for driver, volumes in wanted.items():
            added = sum(1 for volume in volumes if volume not in held)
            if added and driver in limits and used.get(driver, 0) + added > limits[driver]:
                return True
        return False

    def _claim_refusal(self, pod: Pod, volume: PodVolume) -> Status | None:
        """Returns the refusal for a claim that has no name, does not exist, or belongs to another pod."""
        name = volume.claim_of(pod.name)
        if name is None:
            return None
        if not name:
            return Status.error("PersistentVolumeClaim had no name")
        claim = self._objects.claim(pod.namespace, name)
        if claim is None:
            return Status.unresolvable(f"looking up PVC {pod.namespace}/{name}: {claim_not_found(name)}")
        foreign = not_its_own(pod, claim) if volume.is_ephemeral else ""
        return Status.error(foreign) if foreign else None

    def _fail_where_drivers_are(self, cycle: CycleView, volume: PodVolume, rows: Rows, codes: Codes) -> None:
        """Sets an error for an untranslatable migrated disk, on nodes with CSI drivers only."""
        error = volume.migrated.error if volume.migrated else ""
        text = f"converting volume({volume.name}) from inline to csi: {error}"
        code = self.reasons.code(Code.ERROR, text)
        for at, row in enumerate(rows.tolist()):
            if not codes[at] and self._objects.csi_node(cycle.nodes.node(row).name) is not None:
                codes[at] = code

    def sign(self, pod: Pod) -> Hashable:
        """Includes the pod's identity if it has ephemeral volumes: their claims are named after the pod and must be owned by it."""
        volumes = pod.spec.volumes
        is_own = bool(volumes) and any(volume.is_ephemeral for volume in volumes)
        return (volumes, pod.name, pod.uid) if is_own else volumes

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Returns upstream's events and three more.

        A node that joins from another domain has a CSINode already, without an event for it. A deleted CSINode has no
        limits. A new pod on a node may attach a volume that the pending pod uses, too.
        """
        detached = ClusterEvent(ObjectKind.VOLUME_ATTACHMENT, Action.DELETE, "VolumeAttachmentDelete")
        claim_added = ClusterEvent(ObjectKind.PERSISTENT_VOLUME_CLAIM, Action.ADD, "PersistentVolumeClaimAdd")
        return (
            EventRegistration(ClusterEvent(Resource.NODE, Action.ADD, "NodeAdd")),
            EventRegistration(ClusterEvent(ObjectKind.CSI_NODE, Action.ADD, "CSINodeAdd")),
            EventRegistration(ClusterEvent(ObjectKind.CSI_NODE, Action.UPDATE, "CSINodeUpdate"), _after_csi_node),
            EventRegistration(ClusterEvent(ObjectKind.CSI_NODE, Action.DELETE, "CSINodeDelete")),
            EventRegistration(ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE, "AssignedPodDelete"), _after_delete),
            EventRegistration(ClusterEvent(Resource.ASSIGNED_POD, Action.ADD, "AssignedPodAdd"), _after_add),
            EventRegistration(claim_added, may_name_claim),
            EventRegistration(detached, _after_detach),
        )


def _may_count(volume: PodVolume) -> bool:
    return volume.has_claim or volume.migrated is not None


def _is_untranslatable(volume: PodVolume) -> bool:
    return volume.migrated is not None and volume.migrated.plugin in COUNTED_PLUGINS and bool(volume.migrated.error)


def _after_csi_node(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if a driver's limit grew or was removed. (Upstream treats a missing limit as zero.)"""
    if not isinstance(old, CsiNode) or not isinstance(new, CsiNode):
        return Hint.QUEUE
    before = {driver.name: driver.volumes_max or 0 for driver in old.drivers}
    grew = any((driver.volumes_max or 0) > before.get(driver.name, 0) for driver in new.drivers)
    limited = {driver.name for driver in new.drivers if driver.volumes_max is not None}
    is_freed = any(driver.volumes_max is not None and driver.name not in limited for driver in old.drivers)
    return Hint.QUEUE if grew or is_freed else Hint.SKIP


def _after_add(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if a pod placed on a node uses one of its volumes: the volume then counts there already."""
    if not isinstance(new, Pod):
        return Hint.SKIP
    claims = {volume.claim for volume in new.spec.volumes if new.namespace == pod.namespace} - {None}
    disks = [volume.migrated for volume in new.spec.volumes if volume.migrated is not None]
    shares = any(volume.claim in claims or volume.migrated in disks for volume in pod.spec.volumes)
    return Hint.QUEUE if shares else Hint.SKIP


def _after_delete(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if a pod with volumes and a node or nominated node was deleted."""
    if not isinstance(old, Pod) or not (old.node or old.nominated_node):
        return Hint.SKIP
    return Hint.QUEUE if any(map(_may_count, old.spec.volumes)) else Hint.SKIP


def _after_detach(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if a volume was detached. Upstream ignores claims of ephemeral volumes here, and leaves their pods parked."""
    if not isinstance(old, VolumeAttachment):
        return Hint.SKIP
    for volume in pod.spec.volumes:
        if volume.claim is not None or volume.is_ephemeral:
            return Hint.QUEUE
        if volume.migrated is not None and volume.migrated.driver == old.attacher:
            return Hint.QUEUE
    return Hint.SKIP
