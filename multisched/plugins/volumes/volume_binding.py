"""VolumeBinding: filters nodes on which the pod's claims are or can be bound, then binds the claims and waits.

`volume_planner` has the rules, `volume_binder` the writes and the wait. `volume_ledger` has the assumptions; commit adds
them, so the plugin has no Reserve. `shape` enables scoring by the utilization of volumes or of storage capacity
(upstream's feature gate StorageCapacityScoring, off by default).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from multisched.framework.context import PluginContext
from multisched.framework.cycle_state import StateKey
from multisched.framework.dependency import Dependency
from multisched.framework.events import (
    Action,
    ClusterEvent,
    EventObject,
    EventRegistration,
    EventResource,
    Hint,
    QueueingHint,
    Resource,
)
from multisched.framework.node_view import Bools, Codes, Int64, Rows, Scores
from multisched.framework.objects_view import hidden
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.sensitivity import PodSensitivity
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.framework.traits import Traits
from multisched.model.cluster_objects import CsiDriver, CsiNode, CsiStorageCapacity, StorageClass
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.plugins.resource_scoring import score_curve
from multisched.plugins.volumes.pod_claims import may_name_claim
from multisched.plugins.volumes.volume_binder import BindDeniedError, BindError, VolumeBinder
from multisched.plugins.volumes.volume_binding_args import VolumeBindingArgs
from multisched.plugins.volumes.volume_ledger import READ_KINDS, VolumeLedger
from multisched.plugins.volumes.volume_matching import NOTHING
from multisched.plugins.volumes.volume_planner import REASONS, Offer, PodClaims

FULL_PERCENT = 100
WRITES_MAX_S = 120.0
"""Time limit for all writes of a pod in PreBind, including retries, in addition to the wait."""

_READ_ALWAYS = tuple(
    kind for kind in READ_KINDS if kind not in (ObjectKind.CSI_DRIVER, ObjectKind.CSI_STORAGE_CAPACITY)
)
"""The kinds that are needed even if nothing has to be provisioned."""

_CLAIMS: StateKey[PodClaims] = StateKey("VolumeBinding")


class VolumeBinding:
    """Source: kube-scheduler 1.36, plugins/volumebinding/volume_binding.go."""

    name = "VolumeBinding"
    depends_on = Dependency.CACHE_KEY

    def __init__(self, context: PluginContext, args: VolumeBindingArgs | None = None) -> None:
        timeout_s = (args or VolumeBindingArgs()).bind_timeout_s + WRITES_MAX_S
        self.traits = Traits(
            reads_objects=READ_KINDS, may_fail=True, signs_spec_only=True, pre_bind_timeout_s=timeout_s
        )
        self._args = args or VolumeBindingArgs()
        ledger = context.hold.register(VolumeLedger(context.objects, context.nodes))
        assert isinstance(ledger, VolumeLedger), f"ledger {ledger.name} belongs to another plugin"
        self._ledger = ledger
        self._objects = context.objects
        writer = context.volume_writer
        self._binder = VolumeBinder(context.objects, context.nodes, ledger, writer) if writer is not None else None
        self.reasons = ReasonTable(self.name)
        self._codes = np.zeros((4, 3), np.uint8)
        for (bound, unbound), reasons in REASONS.items():
            if reasons:
                self._codes[bound, unbound] = self.reasons.code(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, *reasons)

    # -- filter ----------------------------------------------------------------------------------------------------

    def pod_sensitivity(self, cycle: CycleView, pod: Pod) -> PodSensitivity:
        """Returns sensitivity to no pods: placed pods do not affect where claims can be bound."""
        return PodSensitivity((), lambda other: False)

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        """Refuses pods with claims that are missing, being deleted, of another pod, or unbound with immediate binding."""
        if not pod.spec.volumes:
            return PreFilterResult(SKIP)
        claims = self._claims_of(pod)
        if claims is None:
            return PreFilterResult(SKIP)
        if isinstance(claims, Status):
            return PreFilterResult(claims.by(self.name))
        cycle.state.write(_CLAIMS, claims)
        return PreFilterResult()

    def _claims_of(self, pod: Pod) -> PodClaims | Status | None:
        """Returns the planner's result, or a refusal if a kind that it needs cannot be read."""
        if not self._ledger.is_used_by(pod):
            return None
        unknown = hidden(self._objects, *_READ_ALWAYS)
        if unknown:
            return Status.unresolvable(unknown)
        claims = self._ledger.planner.claims_of(pod)
        if isinstance(claims, PodClaims) and claims.delayed:
            unknown = hidden(self._objects, *READ_KINDS)
        return Status.unresolvable(unknown) if unknown else claims

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: refuses rows from which a bound volume is unreachable, or on which a claim cannot be bound.

        Returns an error on rows whose in-tree plugin is migrated to CSI if the volume cannot be translated.
        """
        offer = self._ledger.planner.offer(cycle.state.read(_CLAIMS), cycle.nodes, rows)
        codes = self._codes[offer.bound, offer.unbound]
        for unknown, why in offer.failures:
            codes[unknown] = self.reasons.code(Code.ERROR, why)
        return codes

    def sign(self, pod: Pod) -> Hashable | None:
        """Returns None, for no shared class, if the pod has ephemeral volumes: their claims are named after the pod."""
        return None if any(volume.is_ephemeral for volume in pod.spec.volumes) else pod.spec.volumes

    def cache_key(self, cycle: CycleView, pod: Pod) -> Hashable | None:
        """Returns the claims and their volumes; for unbound claims, the versions of everything that may affect binding."""
        names = [name for volume in pod.spec.volumes if (name := volume.claim_of(pod.name)) is not None]
        if not names:
            return None
        found: list[Hashable] = [hidden(self._objects, *READ_KINDS)]
        for name in names:
            claim = self._objects.claim(pod.namespace, name)
            found.append(claim)
            if claim is None or not claim.is_fully_bound:
                found.append(self._ledger.version(0))
                continue
            volume = self._objects.volume(claim.volume)
            found.append(volume)
            if volume is not None and volume.migrated is not None:
                found.append(self._objects.version(ObjectKind.CSI_NODE))
        return tuple(found)

    # -- binding ---------------------------------------------------------------------------------------------------

    def pre_bind_pre_flight(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        """Skips pods without assumptions: all their claims are bound."""
        return SKIP if self._ledger.assumed_volumes.of(pod.uid) is None else SUCCESS

    async def pre_bind(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        """Writes the assumed bindings and waits for the PersistentVolume controller, at most `bindTimeoutSeconds`."""
        pod_volumes = self._ledger.assumed_volumes.of(pod.uid)
        if pod_volumes is None:
            return SUCCESS
        if self._binder is None:
            return Status.error("this process is read-only and cannot bind volumes")
        try:
            await self._binder.bind(pod, pod_volumes, timeout_s=self._args.bind_timeout_s)
        except BindDeniedError as error:
            return Status.denied(str(error))
        except BindError as error:
            return Status.error(str(error))
        return SUCCESS

    # -- queueing hints ----------------------------------------------------------------------------------------------

    def events_to_register(self) -> Sequence[EventRegistration]:
        either = Action.ADD | Action.UPDATE
        return (
            _on(ObjectKind.STORAGE_CLASS, either, _after_class),
            _on(ObjectKind.PERSISTENT_VOLUME_CLAIM, either, may_name_claim),
            _on(ObjectKind.PERSISTENT_VOLUME, either),
            _on(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL),
            _on(ObjectKind.CSI_NODE, either, _after_csi_node),
            _on(ObjectKind.CSI_DRIVER, Action.UPDATE, _after_csi_driver),
            _on(ObjectKind.CSI_STORAGE_CAPACITY, either, _after_capacity),
            _on(Resource.ASSIGNED_POD, Action.DELETE, _after_assumed),
        )


class ScoringVolumeBinding(VolumeBinding):
    """VolumeBinding with a `shape`: scores rows by the utilization of volumes or of storage capacity."""

    def __init__(self, context: PluginContext, args: VolumeBindingArgs) -> None:
        super().__init__(context, args)
        self._curve = score_curve(args.shape)

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status:
        return SKIP if cycle.state.find(_CLAIMS) is None else SUCCESS

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[rows], 0..100: the mean over storage classes of the shape's score at their utilization; 0 without any."""
        offer = self._ledger.planner.offer(cycle.state.read(_CLAIMS), cycle.nodes, rows, with_capacity=True)
        by_class = _Utilization(len(rows))
        is_static = _add_static(by_class, offer)
        _add_dynamic(by_class, offer, ~is_static)
        return by_class.score(self._curve)


def volume_binding_class(args: VolumeBindingArgs) -> type[VolumeBinding]:
    """Returns the class of the plugin: without a shape, one without Score, so that Score is not called."""
    return ScoringVolumeBinding if args.shape else VolumeBinding


def volume_binding_of(args: VolumeBindingArgs, context: PluginContext) -> VolumeBinding:
    """Returns the plugin for these arguments."""
    return volume_binding_class(args)(context, args)


class _Utilization:
    """Requested and available bytes per storage class and row."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._requested: dict[str, Int64] = {}
        self._capacity: dict[str, Int64] = {}
        self._counts: dict[str, Bools] = {}

    def of(self, storage_class: str) -> tuple[Int64, Int64, Bools]:
        """Returns the (requested, capacity, whether it counts) arrays of a class, for writing."""
        if storage_class not in self._counts:
            self._requested[storage_class] = np.zeros(self._rows, np.int64)
            self._capacity[storage_class] = np.zeros(self._rows, np.int64)
            self._counts[storage_class] = np.zeros(self._rows, np.bool_)
        return self._requested[storage_class], self._capacity[storage_class], self._counts[storage_class]

    def score(self, curve: Int64) -> Scores:
        """Returns the rounded mean over the classes that count. Source: volumebinding/scorer.go."""
        total, count = np.zeros(self._rows, np.int64), np.zeros(self._rows, np.int64)
        for storage_class, counts in self._counts.items():
            requested, capacity = self._requested[storage_class], self._capacity[storage_class]
            is_full = (capacity == 0) | (requested > capacity)
            share = requested.astype(object) * FULL_PERCENT // np.maximum(capacity, 1)
            percent = np.where(is_full, FULL_PERCENT, share).astype(np.int64)
            total += np.where(counts, curve[percent], 0)
            count += counts
        return (2 * total + count) // np.maximum(2 * count, 1)


def _add_static(by_class: _Utilization, offer: Offer) -> Bools:
    """Adds the volumes that would be bound. Returns bool[rows]: rows that have one."""
    is_static = np.zeros(len(offer.bound), np.bool_)
    for claim, volumes, choice in offer.chosen:
        hit = choice != NOTHING
        requested, capacity, counts = by_class.of(claim.class_name)
        requested[hit] += claim.request_bytes or 0
        capacity[hit] += np.array([volumes.volume(slot).capacity_bytes for slot in choice[hit].tolist()], np.int64)
        counts |= hit
        is_static |= hit
    return is_static


def _add_dynamic(by_class: _Utilization, offer: Offer, rows: Bools) -> None:
    """Adds the storage capacity of claims to provision; one segment counts for all claims of its class."""
    for (claim, wanted), available in zip(offer.provisioned, offer.capacities, strict=True):
        hit = rows & wanted & (available >= 0)
        requested, capacity, counts = by_class.of(claim.class_name)
        requested[hit] += claim.request_bytes or 0
        capacity[hit] = available[hit]
        counts |= hit


def _on(resource: EventResource, action: Action, hint: QueueingHint | None = None) -> EventRegistration:
    return EventRegistration(ClusterEvent(resource, action, f"{resource.value}Change"), hint)


def _after_class(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if a class is new or its allowedTopologies changed."""
    if not isinstance(new, StorageClass):
        return Hint.SKIP
    is_same = isinstance(old, StorageClass) and old.allowed_topologies == new.allowed_topologies
    return Hint.SKIP if is_same else Hint.QUEUE


def _after_csi_node(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    if not isinstance(new, CsiNode):
        return Hint.SKIP
    is_same = isinstance(old, CsiNode) and old.migrated_plugins == new.migrated_plugins
    return Hint.SKIP if is_same else Hint.QUEUE


def _after_csi_driver(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if a driver no longer tracks capacity.

    Upstream compares the driver with the pod's inline volumes, which VolumeBinding does not handle, so it leaves pods parked
    whose claims could be provisioned now.
    """
    if not isinstance(old, CsiDriver) or not isinstance(new, CsiDriver):
        return Hint.SKIP
    return Hint.QUEUE if old.tracks_capacity and not new.tracks_capacity else Hint.SKIP


def _after_capacity(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if a capacity is new or its volume limit grew."""
    if not isinstance(new, CsiStorageCapacity):
        return Hint.SKIP
    if not isinstance(old, CsiStorageCapacity):
        return Hint.QUEUE
    before, now = old.volume_limit_bytes, new.volume_limit_bytes
    return Hint.QUEUE if now is not None and (before is None or now > before) else Hint.SKIP


def _after_assumed(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if a pod with claims was removed from its node: its assumed volumes may be free now.

    Upstream registers no event for dropped assumptions.
    """
    had_claims = isinstance(old, Pod) and any(volume.has_claim for volume in old.spec.volumes)
    return Hint.QUEUE if had_claims else Hint.SKIP
