"""GpuShare: packs whole and fractional GPU pods on devices so that whole devices, and whole nodes, stay free.

Has no state of its own: it reads `GpuLedger`, from which commit takes the devices that the plugin chooses. The gpu domain
registers it; any profile may use it, and all share one ledger.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from domains.gpu.demand import DEVICE_MILLI, GPU, GPU_COUNT, GPU_INDICES, GPU_MILLI, GpuDemand, demand_of, has_demand
from domains.gpu.device_row import (
    FRACTION_BESIDE_WHOLE,
    TOO_FEW_WHOLE,
    TOO_LITTLE_MILLI,
    WHOLE_BESIDE_FRACTIONS,
    DeviceRow,
)
from domains.gpu.gpu_ledger import GpuLedger, Milli
from domains.gpu.hold import Hold, may_hold
from multisched.framework.context import PluginContext
from multisched.framework.cycle_state import CycleState, StateKey
from multisched.framework.dependency import Dependency
from multisched.framework.events import (
    ASSIGNED_POD_DELETE,
    Action,
    ClusterEvent,
    EventObject,
    EventRegistration,
    Hint,
    Resource,
)
from multisched.framework.node_view import Codes, Int64, Rows, Scores
from multisched.framework.normalize import MAX_SCORE
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.sensitivity import PodSensitivity
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.model.objects import Node, Pod

SHARED_POINTS, TIGHT_POINTS, FULL_POINTS = 50, 40, 10
"""Parts of a fraction's score: devices that are already shared, little left on them, utilization of the node.

Of the simple rules, filling used devices first and used nodes next leaves the fewest fragments (performance 2.1).
"""

NODE_GPUS_CHANGED = ClusterEvent(
    Resource.NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE | Action.UPDATE_NODE_LABEL, "NodeGpusChanged"
)
POD_GPUS_CHANGED = ClusterEvent(Resource.TARGET_POD, Action.UPDATE_POD_OTHER, "PodGpusChanged")

_TRIAL_ROWS: StateKey[Mapping[int, DeviceRow]] = StateKey("GpuShare/rows with pods added or removed in a trial")


class GpuShare:
    """Filter and Score by the devices of a row; PreFilter refuses invalid annotations."""

    name = "GpuShare"
    depends_on = Dependency.ROW

    def __init__(self, context: PluginContext) -> None:
        ledger = context.hold.register(GpuLedger(context.scheduler_names))
        assert isinstance(ledger, GpuLedger), f"ledger {ledger.name} belongs to another plugin"
        self._ledger = self.chooses_from = ledger
        self.reasons = ReasonTable(self.name)
        unschedulable = Code.UNSCHEDULABLE
        self._too_few_whole = self.reasons.code(unschedulable, TOO_FEW_WHOLE)
        self._too_little_milli = self.reasons.code(unschedulable, TOO_LITTLE_MILLI)
        self._whole_beside_fractions = self.reasons.code(unschedulable, WHOLE_BESIDE_FRACTIONS)
        self._fraction_beside_whole = self.reasons.code(unschedulable, FRACTION_BESIDE_WHOLE)

    # -- filtering -------------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        demand = demand_of(pod)
        if demand is None:
            return PreFilterResult(SKIP)
        if demand.problem:
            return PreFilterResult(Status.unresolvable(demand.problem))
        return PreFilterResult(SUCCESS)

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: refuses rows whose devices have too little free, or hold pods of the other kind (I1)."""
        demand = demand_of(pod)
        if demand is None:
            return np.zeros(len(rows), np.uint8)
        has_room = self._ledger.room(rows, demand.count) >= demand.milli
        too_little = self._too_few_whole if demand.is_whole else self._too_little_milli
        beside = self._whole_beside_fractions if demand.is_whole else self._fraction_beside_whole
        codes = np.where(has_room, np.uint8(0), np.uint8(too_little))
        codes[self._ledger.bars(rows, is_whole=demand.is_whole)] = beside
        for row, devices in (cycle.state.find(_TRIAL_ROWS) or {}).items():
            codes[rows == row] = self._code(devices, demand)
        return codes

    def _code(self, devices: DeviceRow, demand: GpuDemand) -> int:
        refusal = devices.refusal(demand)
        return self.reasons.code(Code.UNSCHEDULABLE, refusal) if refusal else 0

    def pod_sensitivity(self, cycle: CycleView, pod: Pod) -> PodSensitivity:
        """Returns sensitivity to pods with GPUs; on rows without such pods, preemption cannot change this plugin's result."""
        return PodSensitivity((), may_hold, self._ledger.is_held)

    def add_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        """Adds `other` to the overlay's row, on the devices that it holds or would get."""
        if may_hold(other):
            devices = _trial_row(cycle.state, self._ledger, row)
            hold = self._ledger.hold(other.uid, row) or _hold_to_come(other, devices)
            if hold is not None:
                devices.hold(other.uid, hold)
        return SUCCESS

    def remove_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        if may_hold(other):
            _trial_row(cycle.state, self._ledger, row).give(other.uid)
        return SUCCESS

    # -- scoring ---------------------------------------------------------------------------------------------------

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status:
        return SUCCESS if has_demand(pod) else SKIP

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[rows], 0..100: how tightly the demand is packed; 0 if it does not fit."""
        demand = demand_of(pod)
        if demand is None:
            return np.zeros(len(rows), np.int64)
        if demand.is_whole:
            return _score_whole(self._ledger.whole_free(rows), demand.count)
        ranked = self._ledger.ranked(rows)
        if demand.count > len(ranked):
            return np.zeros(len(rows), np.int64)
        return _score_fraction(ranked, self._ledger.used_percent(rows), demand)

    def choose(self, cycle: CycleView, pod: Pod, row: int) -> tuple[int, ...] | None:
        """Returns the best-fitting devices, for which `score` was computed; None if the demand does not fit."""
        demand, devices = demand_of(pod), self._ledger.devices(row)
        return None if demand is None or devices.refusal(demand) else devices.choose(demand)

    def takes_at_most(self, pod: Pod, rows: Rows) -> Mapping[str, Int64]:
        """See `framework.introspection.RoomPlugin`: the largest number of devices, or amount of each, that would fit."""
        demand = demand_of(pod)
        if demand is None or demand.problem:
            return {}
        is_open = ~self._ledger.bars(rows, is_whole=demand.is_whole)
        if demand.is_whole:
            return {GPU: np.where(is_open, self._ledger.whole_free(rows), 0)}
        room = np.maximum(self._ledger.room(rows, demand.count), 0).astype(np.int64)
        devices = np.count_nonzero(self._ledger.ranked(rows) >= demand.milli, axis=0)
        found = {GPU_MILLI: np.where(is_open, room, 0), GPU_COUNT: np.where(is_open, devices, 0)}
        return {name: amounts for name, amounts in found.items() if name in pod.annotations}

    # -- signature and queueing hints --------------------------------------------------------------------------------

    def sign(self, pod: Pod) -> Hashable:
        return (demand_of(pod),)  # a tuple, since None would mean that the pod cannot be signed

    def events_to_register(self) -> Sequence[EventRegistration]:
        return (
            EventRegistration(ASSIGNED_POD_DELETE, _after_pod_delete),
            EventRegistration(NODE_GPUS_CHANGED, _after_node_change),
            EventRegistration(POD_GPUS_CHANGED, _after_own_change),
        )


def _score_whole(whole_free: Int64, count: int) -> Scores:
    """Returns 100 / (1 + completely free devices left): prefers the fullest node that fits, and exact fits by far."""
    left = whole_free - count
    return np.where(left >= 0, MAX_SCORE // (1 + np.maximum(left, 0)), 0)


def _score_fraction(ranked: Milli, used_percent: Int64, demand: GpuDemand) -> Scores:
    """Returns points for the best-fitting devices: already shared, little left on them, on a full node.

    These are the last `count` of the devices with enough free, since `ranked` begins with the freest.
    """
    count, milli = demand.count, demand.milli
    with_room = np.zeros(ranked.shape[1], np.intp)
    for device in ranked:
        with_room += device >= milli
    columns = np.arange(ranked.shape[1])
    shared = np.zeros(ranked.shape[1], np.int64)
    left = np.zeros(ranked.shape[1], np.int64)
    for index in range(count):
        free = ranked[np.maximum(with_room - 1 - index, 0), columns]
        shared += free < DEVICE_MILLI
        left += free - milli
    points = SHARED_POINTS * shared // count + FULL_POINTS * used_percent // 100
    points += TIGHT_POINTS * (count * DEVICE_MILLI - left) // (count * DEVICE_MILLI)
    return np.where(with_room >= count, points, 0)


def _trial_row(state: CycleState, ledger: GpuLedger, row: int) -> DeviceRow:
    """Returns a copy of a row's devices for the overlay. Always copies, since the cycle state is copied shallowly."""
    before = state.find(_TRIAL_ROWS) or {}
    devices = (before.get(row) or ledger.devices(row)).copy()
    state.write(_TRIAL_ROWS, {**before, row: devices})
    return devices


def _hold_to_come(other: Pod, devices: DeviceRow) -> Hold | None:
    """Returns the future hold of an unbound pod; None for a pod on a node, whose hold is only in the ledger."""
    demand = None if other.node else demand_of(other)
    if demand is None:
        return None
    chosen = () if devices.refusal(demand) else devices.choose(demand)
    return Hold(demand.milli, demand.count, demand.is_whole, chosen)


def _after_pod_delete(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    return Hint.QUEUE if isinstance(old, Pod) and may_hold(old) else Hint.SKIP


def _after_node_change(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if a node with GPUs is new, has more of them, or changed whether it honours indices."""
    if not isinstance(new, Node) or new.allocatable.get(GPU, 0) <= 0:
        return Hint.SKIP
    if not isinstance(old, Node) or new.allocatable[GPU] > old.allocatable.get(GPU, 0):
        return Hint.QUEUE
    return Hint.SKIP if new.labels.get(GPU_INDICES) == old.labels.get(GPU_INDICES) else Hint.QUEUE


def _after_own_change(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    changed = isinstance(old, Pod) and isinstance(new, Pod) and demand_of(old) != demand_of(new)
    return Hint.QUEUE if changed else Hint.SKIP
