"""VolumeLedger: volumes and provisioning assumed for pods that are being bound, for all domains.

An assumption lasts from commit until the pod is confirmed, forgotten or removed; then the API has the bindings. The API
takes precedence over the ledger: a volume that names another claim belongs to that claim. Two pods of one claim may hold the
same volume, which stays assumed until both release it. Written only by the cache and commit, read by VolumeBinding. The
ledger is not per row: a volume assumed on one row is unavailable on all rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from multisched.framework.node_view import NodeView
from multisched.framework.objects_view import ObjectsView
from multisched.framework.status import Status
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.plugins.volumes.assumed_volumes import AssumedProvision, AssumedVolume, AssumedVolumes, PodVolumes
from multisched.plugins.volumes.volume_matching import NOTHING, claim_id
from multisched.plugins.volumes.volume_planner import Offer, VolumePlanner, refusal

READ_KINDS = (
    ObjectKind.PERSISTENT_VOLUME,
    ObjectKind.PERSISTENT_VOLUME_CLAIM,
    ObjectKind.STORAGE_CLASS,
    ObjectKind.CSI_NODE,
    ObjectKind.CSI_DRIVER,
    ObjectKind.CSI_STORAGE_CAPACITY,
)
"""The kinds on which the fit of a pod's claims depends, in addition to nodes and assumed volumes."""


class VolumeLedger:
    """Implements `framework.ledger.Ledger`."""

    name = "volumes"

    def __init__(self, objects: ObjectsView, nodes: NodeView) -> None:
        self.assumed_volumes = AssumedVolumes()
        self.planner = VolumePlanner(objects, self.assumed_volumes)
        self._objects = objects
        self._table = nodes
        self._planned: tuple[tuple[str, int, int, int], PodVolumes] | None = None
        """(uid, row, versions) and the planned assumptions, cached because commit calls `fits` and then `take`."""

    def is_used_by(self, pod: Pod) -> bool:
        volumes = pod.spec.volumes
        return bool(volumes) and any(volume.has_claim for volume in volumes)

    def version(self, row: int) -> int:
        return self.assumed_volumes.version + sum(self._objects.versions(*READ_KINDS))

    def fits(self, pod: Pod, row: int) -> str:
        """Returns why the pod's claims do not fit on the row, given the assumptions of other pods; empty if they fit."""
        held = self.assumed_volumes.of(pod.uid)
        if held is not None and held.row == row:
            return ""
        planned = self._plan(pod, row)
        return planned.message if isinstance(planned, Status) else ""

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        """Assumes the volumes that `fits` found for the pod. Returns no annotations for the binding."""
        held = self.assumed_volumes.of(pod.uid)
        if held is not None and held.row == row:
            return {}
        planned = self._plan(pod, row)
        assert isinstance(planned, PodVolumes), f"pod {pod.key} takes volumes that do not fit: {planned.message}"
        self.assumed_volumes.release(pod.uid)
        if planned.volumes or planned.provisions:
            self.assumed_volumes.hold(pod.uid, planned)
        return {}

    def restore(self, pod: Pod, row: int) -> None:
        """Drops the assumptions of a bound pod: the API has its volumes."""
        self.assumed_volumes.release(pod.uid)

    def release(self, uid: str) -> None:
        self.assumed_volumes.release(uid)

    def set_node(self, row: int, node: Node | None) -> None:
        """Does nothing: the ledger has no state per row."""

    def held(self) -> Mapping[str, object]:
        """Returns uid -> assumptions."""
        return self.assumed_volumes.held()

    def empty_copy(self) -> VolumeLedger:
        return VolumeLedger(self._objects, self._table)

    def _plan(self, pod: Pod, row: int) -> PodVolumes | Status:
        """Returns the assumptions of the pod on the row, or the refusal."""
        key = (pod.uid, row, self.version(row), self._table.nodes_version)
        if self._planned is not None and self._planned[0] == key:
            return self._planned[1]
        claims = self.planner.claims_of(pod)
        node = self._table.node(row).name
        if isinstance(claims, Status):
            return claims
        if claims is None:
            return PodVolumes(row, node)
        offer = self.planner.offer(claims, self._table, np.array([row], np.intp))
        status = refusal(offer, 0)
        if not status.is_success:
            return status
        pod_volumes = _pod_volumes(offer, row, node)
        self._planned = (key, pod_volumes)
        return pod_volumes


def _pod_volumes(offer: Offer, row: int, node: str) -> PodVolumes:
    """Returns the assumptions of an offer for a single row."""
    volumes = tuple(
        AssumedVolume(found.volume(int(choice[0])).name, claim.key, claim_id(claim))
        for claim, found, choice in offer.chosen
        if choice[0] != NOTHING
    )
    provisions = tuple(
        AssumedProvision(claim.key, claim_id(claim), node) for claim, wanted in offer.provisioned if wanted[0]
    )
    return PodVolumes(row, node, volumes, provisions)
