"""VolumeLedger: which volumes and claims are assumed for pods that are on their way to their nodes, for all domains.

They are assumed from commit on until the pod is confirmed, forgotten or gone. By then the API server says itself what is
bound to what. The ledger never outweighs the API: a volume that names another claim is that claim's. Two pods of
one claim may hold the same volume, which is assumed until both gave it back. Written by the cache and commit only, read by
VolumeBinding. All rows share one account: a volume taken on one row is gone on all of them.
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
"""What the fit of a pod's claims depends on, beside nodes and assumed volumes."""


class VolumeLedger:
    """Implements `framework.ledger.Ledger`."""

    name = "volumes"

    def __init__(self, objects: ObjectsView, nodes: NodeView) -> None:
        self.assumed_volumes = AssumedVolumes()
        self.planner = VolumePlanner(objects, self.assumed_volumes)
        self._objects = objects
        self._table = nodes
        self._planned: tuple[tuple[str, int, int, int], PodVolumes] | None = None
        """(uid, row, versions) and what it would get: commit asks `fits` and then takes the same."""

    def concerns(self, pod: Pod) -> bool:
        return any(volume.has_claim for volume in pod.spec.volumes)

    def version(self, row: int) -> int:
        return self.assumed_volumes.version + sum(self._objects.versions(*READ_KINDS))

    def fits(self, pod: Pod, row: int) -> str:
        """Empty if the row serves the pod's claims, with all that is assumed for others."""
        held = self.assumed_volumes.of(pod.uid)
        if held is not None and held.row == row:
            return ""
        planned = self._plan(pod, row)
        return planned.message if isinstance(planned, Status) else ""

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        """Assumes the volumes that `fits` found for the pod. Bindings carry no annotation for it."""
        held = self.assumed_volumes.of(pod.uid)
        if held is not None and held.row == row:
            return {}
        planned = self._plan(pod, row)
        assert isinstance(planned, PodVolumes), f"pod {pod.key} takes volumes where there are none: {planned.message}"
        self.assumed_volumes.release(pod.uid)
        if planned.volumes or planned.provisions:
            self.assumed_volumes.hold(pod.uid, planned)
        return {}

    def restore(self, pod: Pod, row: int) -> None:
        """A pod that is bound needs nothing assumed: what its volumes are is in the API."""
        self.assumed_volumes.release(pod.uid)

    def release(self, uid: str) -> None:
        self.assumed_volumes.release(uid)

    def set_node(self, row: int, node: Node | None) -> None:
        """Nothing is kept by row."""

    def held(self) -> Mapping[str, object]:
        """uid -> Promise."""
        return self.assumed_volumes.held()

    def empty_copy(self) -> VolumeLedger:
        return VolumeLedger(self._objects, self._table)

    def _plan(self, pod: Pod, row: int) -> PodVolumes | Status:
        """What the pod would get on the row, or why it cannot be there."""
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
    """The only row of an offer as what the pod would get."""
    volumes = tuple(
        AssumedVolume(found.volume(int(choice[0])).name, claim.key, claim_id(claim))
        for claim, found, choice in offer.chosen
        if choice[0] != NOTHING
    )
    provisions = tuple(
        AssumedProvision(claim.key, claim_id(claim), node) for claim, wanted in offer.provisioned if wanted[0]
    )
    return PodVolumes(row, node, volumes, provisions)
