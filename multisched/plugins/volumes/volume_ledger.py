"""VolumeLedger: which volumes and claims are promised to pods that are on their way to their nodes, for all domains.

A promise begins when commit takes it and ends when the pod is confirmed, forgotten or gone. By then the API server says
itself what is bound to what. It never outweighs the API: a volume that names another claim is that claim's. Two pods of
one claim may hold the same promise; it stands until both gave it back. Written by the cache and commit only, read by
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
from multisched.plugins.volumes.assumed_volumes import Promise, PromisedNode, PromisedVolume, VolumePromises
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
"""What the fit of a pod's claims depends on, beside nodes and promises."""


class VolumeLedger:
    """Implements `framework.ledger.Ledger`."""

    name = "volumes"

    def __init__(self, objects: ObjectsView, nodes: NodeView) -> None:
        self.promises = VolumePromises()
        self.planner = VolumePlanner(objects, self.promises)
        self._objects = objects
        self._table = nodes
        self._planned: tuple[tuple[str, int, int, int], Promise] | None = None
        """(uid, row, versions) and what it would get: commit asks `fits` and then takes the same."""

    def concerns(self, pod: Pod) -> bool:
        return any(volume.has_claim for volume in pod.spec.volumes)

    def version(self, row: int) -> int:
        return self.promises.version + sum(self._objects.versions(*READ_KINDS))

    def fits(self, pod: Pod, row: int) -> str:
        """Empty if the row serves the pod's claims, with all that has been promised to others until now."""
        held = self.promises.of(pod.uid)
        if held is not None and held.row == row:
            return ""
        planned = self._plan(pod, row)
        return planned.message if isinstance(planned, Status) else ""

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        """Promises the pod the volumes that `fits` found. Bindings carry no annotation for it."""
        held = self.promises.of(pod.uid)
        if held is not None and held.row == row:
            return {}
        planned = self._plan(pod, row)
        assert isinstance(planned, Promise), f"pod {pod.key} takes volumes where there are none: {planned.message}"
        self.promises.release(pod.uid)
        if planned.volumes or planned.provisions:
            self.promises.hold(pod.uid, planned)
        return {}

    def restore(self, pod: Pod, row: int) -> None:
        """A pod that is bound needs no promise: what its volumes are is in the API."""
        self.promises.release(pod.uid)

    def release(self, uid: str) -> None:
        self.promises.release(uid)

    def set_node(self, row: int, node: Node | None) -> None:
        """Nothing is kept by row."""

    def held(self) -> Mapping[str, object]:
        """uid -> Promise."""
        return self.promises.held()

    def empty_copy(self) -> VolumeLedger:
        return VolumeLedger(self._objects, self._table)

    def _plan(self, pod: Pod, row: int) -> Promise | Status:
        """What the pod would get on the row, or why it cannot be there."""
        key = (pod.uid, row, self.version(row), self._table.nodes_version)
        if self._planned is not None and self._planned[0] == key:
            return self._planned[1]
        claims = self.planner.claims_of(pod)
        node = self._table.node(row).name
        if isinstance(claims, Status):
            return claims
        if claims is None:
            return Promise(row, node)
        offer = self.planner.offer(claims, self._table, np.array([row], np.intp))
        status = refusal(offer, 0)
        if not status.is_success:
            return status
        promise = _promise(offer, row, node)
        self._planned = (key, promise)
        return promise


def _promise(offer: Offer, row: int, node: str) -> Promise:
    """The only row of an offer as a promise."""
    volumes = tuple(
        PromisedVolume(found.volume(int(choice[0])).name, claim.key, claim_id(claim))
        for claim, found, choice in offer.chosen
        if choice[0] != NOTHING
    )
    provisions = tuple(
        PromisedNode(claim.key, claim_id(claim), node) for claim, wanted in offer.provisioned if wanted[0]
    )
    return Promise(row, node, volumes, provisions)
