"""The rules of VolumeBinding: what a pod's claims need, and whether each row can provide it.

Pure except for its caches (`volume_masks`, `volume_matching`). The plugin's Filter uses it for many rows, its ledger for one.
Both consider the assumptions of other pods (`AssumedVolumes`) in addition to the object store, so that no volume is assumed
twice.
Source: kube-scheduler 1.36, plugins/volumebinding/binder.go and volume_binding.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import Bools, NodeView, Rows, any_true
from multisched.framework.objects_view import ObjectsView
from multisched.framework.status import Code, Status
from multisched.model.cluster_objects import (
    SELECTED_NODE_ANNOTATION,
    WAIT_FOR_FIRST_CONSUMER,
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from multisched.model.objects import Pod
from multisched.plugins.volumes.assumed_volumes import AssumedVolumes
from multisched.plugins.volumes.pod_claims import claim_not_found, not_its_own
from multisched.plugins.volumes.volume_masks import RowMasks
from multisched.plugins.volumes.volume_matching import NOTHING, Choice, ClassVolumes, VolumeIndex, claim_id

NO_PROVISIONER = "kubernetes.io/no-provisioner"

NODE_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
BIND_CONFLICT = "node(s) didn't find available persistent volumes to bind"
NOT_ENOUGH_SPACE = "node(s) did not have enough free storage"
VOLUME_MISSING = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
UNBOUND_IMMEDIATE = "pod has unbound immediate PersistentVolumeClaims"

OK, CONFLICT, LACK, UNKNOWN = np.uint8(0), np.uint8(1), np.uint8(2), np.uint8(3)
"""Verdicts per row.

Bound claims: CONFLICT with the node affinity, LACK if the volume does not exist, UNKNOWN if it cannot be translated to CSI.
Unbound claims: CONFLICT if no volume matches or can be provisioned, LACK if there is not enough storage capacity.
"""

Verdicts = NDArray[np.uint8]

REASONS: Mapping[tuple[int, int], tuple[str, ...]] = {
    (bound, unbound): (
        *((NODE_CONFLICT,) if bound == CONFLICT else ()),
        *((BIND_CONFLICT,) if unbound == CONFLICT else ()),
        *((NOT_ENOUGH_SPACE,) if unbound == LACK else ()),
        *((VOLUME_MISSING,) if bound == LACK else ()),
    )
    for bound in range(3)
    for unbound in range(3)
}
"""(verdict on bound claims, on unbound claims) -> reasons, in upstream's order."""


class PodClaims(msgspec.Struct, frozen=True):
    """A pod's bound and unbound claims, each in the order of the pod's volumes."""

    bound: tuple[PersistentVolumeClaim, ...] = ()
    delayed: tuple[PersistentVolumeClaim, ...] = ()
    """Unbound claims of classes with WaitForFirstConsumer."""


class Offer(msgspec.Struct):
    """The verdicts and choices for a pod's claims on the rows of one call."""

    bound: Verdicts
    unbound: Verdicts
    failures: list[tuple[Bools, str]] = msgspec.field(default_factory=list)
    """(rows, error) of the UNKNOWN rows; each such row is in exactly one mask."""
    chosen: list[tuple[PersistentVolumeClaim, ClassVolumes, Choice]] = msgspec.field(default_factory=list)
    """Claims for which existing volumes were searched, smallest first, with the chosen slot per row."""
    provisioned: list[tuple[PersistentVolumeClaim, Bools]] = msgspec.field(default_factory=list)
    """Claims, in order, with the rows on which they would be provisioned."""
    capacities: list[NDArray[np.int64]] = msgspec.field(default_factory=list)
    """For each of `provisioned`: available bytes per row; -1 if unknown. Empty unless requested."""


class VolumePlanner:
    """Applies the rules to a view of objects and the assumptions."""

    def __init__(self, objects: ObjectsView, assumed_volumes: AssumedVolumes) -> None:
        self._objects = objects
        self._assumed_volumes = assumed_volumes
        self.masks = RowMasks(objects)
        self._index = VolumeIndex(objects)

    # -- claims ----------------------------------------------------------------------------------------------------

    def claims_of(self, pod: Pod) -> PodClaims | Status | None:
        """Returns the pod's claims; a refusal if they prevent it from being placed anywhere; None if it has no claims."""
        claims: list[PersistentVolumeClaim] = []
        for volume in pod.spec.volumes:
            name = volume.claim_of(pod.name)
            if name is None:
                continue
            found = self._usable(pod, name, is_ephemeral=volume.is_ephemeral)
            if isinstance(found, str):
                return Status.unresolvable(found)
            claims.append(found)
        return self._sorted(claims) if claims else None

    def _usable(self, pod: Pod, name: str, *, is_ephemeral: bool) -> PersistentVolumeClaim | str:
        """Returns the claim, or why it cannot be used."""
        claim = self._objects.claim(pod.namespace, name)
        if claim is None:
            if is_ephemeral:
                return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
            return claim_not_found(name)
        if claim.malformed:
            return f'persistentvolumeclaim "{name}" cannot be read: {claim.malformed}'
        if claim.phase == "Lost":
            return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.volume}"'
        if claim.is_deleting:
            return f'persistentvolumeclaim "{name}" is being deleted'
        return (not_its_own(pod, claim) if is_ephemeral else "") or claim

    def _sorted(self, claims: Sequence[PersistentVolumeClaim]) -> PodClaims | Status:
        bound, delayed = [], []
        is_waiting = False
        for claim in claims:
            if claim.is_fully_bound:
                bound.append(claim)
                continue
            storage_class = self._objects.storage_class(claim.class_name) if claim.class_name else None
            if storage_class is not None and storage_class.binding_mode is None:
                return Status.error(f'VolumeBindingMode not set for StorageClass "{claim.class_name}"')
            is_delayed = storage_class is not None and storage_class.binding_mode == WAIT_FOR_FIRST_CONSUMER
            if is_delayed and not claim.volume:
                delayed.append(claim)
            else:
                is_waiting = True
        return Status.unresolvable(UNBOUND_IMMEDIATE) if is_waiting else PodClaims(tuple(bound), tuple(delayed))

    # -- rows ------------------------------------------------------------------------------------------------------

    def offer(self, claims: PodClaims, nodes: NodeView, rows: Rows, *, with_capacity: bool = False) -> Offer:
        """Returns the verdicts and choices for each row. `with_capacity`: fill `capacities`, too."""
        count = len(rows)
        offer = Offer(np.zeros(count, np.uint8), np.zeros(count, np.uint8))
        self._judge_bound(claims.bound, nodes, rows, offer)
        if not claims.delayed:
            return offer
        selected, to_match = self._select(claims.delayed, nodes, rows, offer.unbound)
        self._match(to_match, nodes, rows, offer)
        for claim in selected:
            self._provision(claim, np.ones(count, np.bool_), nodes, rows, offer, with_capacity=with_capacity)
        for claim, _, choice in offer.chosen:
            self._provision(claim, choice == NOTHING, nodes, rows, offer, with_capacity=with_capacity)
        return offer

    def _judge_bound(self, claims: Sequence[PersistentVolumeClaim], nodes: NodeView, rows: Rows, offer: Offer) -> None:
        """Sets the verdicts on bound claims; the first claim with a problem on a row decides."""
        verdicts = offer.bound
        for claim in claims:
            volume = self._objects.volume(claim.volume)
            if volume is None:
                verdicts[verdicts == OK] = LACK
                break
            unknown = self.masks.untranslatable(nodes, volume)
            if unknown is not None:
                here = (verdicts == OK) & unknown[rows]
                verdicts[here] = UNKNOWN
                offer.failures.append((here, cannot_translate(volume)))
            mask = self._reach(nodes, volume)
            if mask is not None:
                verdicts[(verdicts == OK) & ~mask[rows]] = CONFLICT

    def _reach(self, nodes: NodeView, volume: PersistentVolume) -> Bools | None:
        """Returns the mask of rows from which the volume is reachable; no rows for a malformed volume; None for all rows."""
        if volume.malformed:
            return np.zeros(len(nodes.taint_set), np.bool_)
        return self.masks.of_volume(nodes, volume)

    def _select(
        self, claims: Sequence[PersistentVolumeClaim], nodes: NodeView, rows: Rows, verdicts: Verdicts
    ) -> tuple[list[PersistentVolumeClaim], list[PersistentVolumeClaim]]:
        """Splits claims into those with a selected node, which refuse all other rows, and those that need a volume."""
        selected, to_match = [], []
        for claim in claims:
            node = self.selected_node(claim)
            if node is None:
                to_match.append(claim)
                continue
            selected.append(claim)
            row = nodes.row_of(node)
            verdicts[rows != (-1 if row is None else row)] = CONFLICT
        return selected, to_match

    def selected_node(self, claim: PersistentVolumeClaim) -> str | None:
        """Returns the node for which the claim is being provisioned or assumed to be; None if there is none."""
        node = claim.annotations.get(SELECTED_NODE_ANNOTATION)
        return node if node is not None else self._assumed_volumes.nodes.get(claim_id(claim))

    def _match(self, claims: Sequence[PersistentVolumeClaim], nodes: NodeView, rows: Rows, offer: Offer) -> None:
        """Chooses a volume for each claim, the smallest claim first; no two claims of the pod get the same volume."""
        taken: dict[str, list[Choice]] = {}
        assumed = self._assumed_volumes.volumes
        for claim in sorted(claims, key=lambda c: c.request_nano):
            volumes = self._index.of_class(claim.class_name)
            others = taken.setdefault(claim.class_name, [])
            choice = volumes.find(claim, nodes, self.masks, rows, assumed, others)
            others.append(choice)
            offer.chosen.append((claim, volumes, choice))

    def _provision(
        self,
        claim: PersistentVolumeClaim,
        wanted: Bools,
        nodes: NodeView,
        rows: Rows,
        offer: Offer,
        *,
        with_capacity: bool,
    ) -> None:
        """Sets the verdicts on rows where the claim must be provisioned; the first claim with a problem decides."""
        wanted = wanted & (offer.unbound == OK)
        if not any_true(wanted):
            return
        storage_class = self._objects.storage_class(claim.class_name)
        if storage_class is None or storage_class.provisioner in ("", NO_PROVISIONER):
            offer.unbound[wanted] = CONFLICT
            return
        if storage_class.allowed_topologies:
            allowed = self.masks.allowed(nodes, storage_class.allowed_topologies)[rows]
            offer.unbound[wanted & ~allowed] = CONFLICT
            wanted = wanted & allowed
        has_space, capacity = self._space(claim, storage_class, nodes, rows, with_capacity=with_capacity)
        if has_space is not None:
            offer.unbound[wanted & ~has_space] = LACK
            wanted = wanted & has_space
        offer.provisioned.append((claim, wanted))
        if with_capacity:
            offer.capacities.append(capacity)

    def _space(
        self,
        claim: PersistentVolumeClaim,
        storage_class: StorageClass,
        nodes: NodeView,
        rows: Rows,
        *,
        with_capacity: bool,
    ) -> tuple[Bools | None, NDArray[np.int64]]:
        """Returns the rows with enough capacity for the claim (None: all, if the driver does not track it), and the capacity."""
        capacity = np.full(len(rows) if with_capacity else 0, -1, np.int64)
        driver = self._objects.csi_driver(storage_class.provisioner)
        if claim.request_bytes is None or driver is None or not driver.tracks_capacity:
            return None, capacity
        has_space = np.zeros(len(rows), np.bool_)
        for segment in sorted(self._objects.storage_capacities(storage_class.name), key=_by_name):
            limit = segment.volume_limit_bytes
            if limit is None or limit < claim.request_bytes or segment.node_topology is None or segment.malformed:
                continue
            reached = self.masks.selected(nodes, segment.node_topology)[rows]
            if with_capacity and segment.capacity_bytes is not None:
                capacity[reached & ~has_space] = segment.capacity_bytes
            has_space |= reached
        return has_space, capacity


def refusal(offer: Offer, at: int) -> Status:
    """Returns the status of one row of an offer; success if the pod fits."""
    for rows, why in offer.failures:
        if rows[at]:
            return Status.error(why)
    reasons = REASONS[(int(offer.bound[at]), int(offer.unbound[at]))]
    return Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, reasons=reasons) if reasons else Status()


def cannot_translate(volume: PersistentVolume) -> str:
    """Returns upstream's error for a migrated volume that cannot be translated to CSI."""
    assert volume.migrated is not None
    return f"could not translate pv: {volume.migrated.error}"


def _by_name(segment: CsiStorageCapacity) -> tuple[str, str]:
    return segment.namespace, segment.name
