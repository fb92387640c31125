"""GpuShare: Filter, Score and choice of GPU cards, by the node's sharing system and the policy of the profile.

What pods hold is in `GpuLedger`; this plugin reads its arrays, whole rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from domains.gpu.card_arrays import MODES
from domains.gpu.card_row import (
    FRACTION_BESIDE_WHOLE,
    LOCKED,
    UNCONFIRMED,
    WHOLE_BESIDE_FRACTIONS,
    CardRow,
    too_little,
    wrong_mode,
)
from domains.gpu.cards import Mode
from domains.gpu.demand import GpuDemand
from domains.gpu.dialects import DIALECTS, PodDemands
from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.hold import Hold
from domains.gpu.policies import score_cards
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
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.sensitivity import PodSensitivity
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.framework.traits import Traits
from multisched.framework.views import Document, ViewPorts, ViewQuery
from multisched.model.objects import Node, Pod

NODE_GPUS_CHANGED: Final = ClusterEvent(
    Resource.NODE,
    Action.ADD | Action.UPDATE_NODE_ALLOCATABLE | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_ANNOTATION,
    "NodeGpusChanged",
)
POD_GPUS_CHANGED: Final = ClusterEvent(Resource.TARGET_POD, Action.UPDATE_POD_OTHER, "PodGpusChanged")
GPUS_CONFIRMED: Final = ClusterEvent(Resource.ASSIGNED_POD, Action.UPDATE_POD_OTHER, "GpusConfirmed")

ALL: Final = slice(None)
DESCRIBING_KINDS: Final = tuple({kind: None for dialect in DIALECTS for kind in dialect.reads_objects})
"""Kinds whose objects describe the cards of nodes."""

_TRIAL_ROWS: StateKey[Mapping[int, CardRow]] = StateKey("GpuShare/rows with pods added or removed in a trial")


class GpuShare:
    """Filter and Score by the cards of a row; PreFilter refuses invalid demands."""

    name = "GpuShare"
    view = "gpu"
    depends_on = Dependency.ROW
    traits = Traits(reads_objects=DESCRIBING_KINDS)

    def __init__(self, context: PluginContext) -> None:
        ledger = context.hold.register(GpuLedger(context.scheduler_names, context.objects))
        assert isinstance(ledger, GpuLedger), f"ledger {ledger.name} belongs to another plugin"
        self._ledger = self.chooses_from = ledger
        self._context = context
        self.reasons = ReasonTable(self.name)

    # -- filtering -------------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        demands = self._ledger.demands(pod)
        if not demands:
            return PreFilterResult(SKIP)
        if demands.problem:
            return PreFilterResult(Status.unresolvable(demands.problem))
        return PreFilterResult(SUCCESS)

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: refuses rows of other modes, with too little free, or whose plugin could confuse pods (I1)."""
        demands = self._ledger.demands(pod)
        codes = np.zeros(len(rows), np.uint8)
        if not demands:
            return codes
        for mode, where, demand in self._by_mode(demands, rows):
            codes[where] = self._codes(mode, rows[where], demand, demands)
        for row, cards in (cycle.state.find(_TRIAL_ROWS) or {}).items():
            codes[rows == row] = self._code(cards.refusal(*demands.on(cards.node.mode)))
        return codes

    def _by_mode(self, demands: PodDemands, rows: Rows) -> Iterator[tuple[Mode, Int64 | slice, GpuDemand]]:
        """Yields each mode of the rows, the positions of its rows, and the pod's demand there."""
        modes = self._ledger.arrays.modes(rows)
        if len(modes) and (modes == modes[0]).all():
            mode = MODES[int(modes[0])]
            yield mode, ALL, demands.on(mode)[0]
            return
        for number in np.unique(modes).tolist():
            mode = MODES[number]
            yield mode, np.flatnonzero(modes == number), demands.on(mode)[0]

    def _codes(self, mode: Mode, rows: Rows, demand: GpuDemand, demands: PodDemands) -> Codes:
        if mode not in demands.by_mode:
            return np.full(len(rows), self._code(wrong_mode(mode, demand)), np.uint8)
        ledger = self._ledger
        insufficient = self._code(too_little(demand.resource))
        codes = np.where(ledger.has_room(demand, rows), np.uint8(0), np.uint8(insufficient))
        if mode is Mode.WHOLE:
            beside = WHOLE_BESIDE_FRACTIONS if demand.is_whole else FRACTION_BESIDE_WHOLE
            codes[ledger.arrays.bars(rows, is_whole=demand.is_whole)] = self._code(beside)
        if demand.confusions:
            codes[ledger.arrays.unconfirmed(rows, demand.confusions)] = self._code(UNCONFIRMED)
            codes[ledger.arrays.locked(rows)] = self._code(LOCKED)
        return codes

    def _code(self, refusal: str) -> int:
        return self.reasons.code(Code.UNSCHEDULABLE, refusal) if refusal else 0

    def pod_sensitivity(self, cycle: CycleView, pod: Pod) -> PodSensitivity:
        """Returns sensitivity to pods with GPUs; on rows without such pods, preemption cannot change this plugin's result."""
        return PodSensitivity((), self._ledger.concerns, self._ledger.arrays.is_held)

    def add_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        """Adds `other` to the overlay's row, on the cards that it holds or would get."""
        if self._ledger.concerns(other):
            cards = _trial_row(cycle.state, self._ledger, row)
            hold = self._ledger.hold(other.uid, row) or self._expected_hold(other, cards)
            if hold is not None:
                cards.hold(other.uid, hold)
        return SUCCESS

    def remove_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        if self._ledger.concerns(other):
            _trial_row(cycle.state, self._ledger, row).give(other.uid)
        return SUCCESS

    def _expected_hold(self, other: Pod, cards: CardRow) -> Hold | None:
        """Returns the future hold of an unbound pod; None for a pod on a node, whose hold is only in the ledger."""
        demands = self._ledger.demands(other)
        if other.node or not demands:
            return None
        demand, _ = demands.on(cards.node.mode)
        return self._ledger.expected_hold(other, demand, cards)

    # -- scoring ---------------------------------------------------------------------------------------------------

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status:
        return SUCCESS if self._ledger.demands(pod) else SKIP

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[rows], 0..100: how tightly the demand is packed; 0 if it does not fit."""
        demands = self._ledger.demands(pod)
        scores = np.zeros(len(rows), np.int64)
        for mode, where, demand in self._by_mode(demands, rows) if demands else ():
            if mode in demands.by_mode and not demand.is_counted:
                scores[where] = score_cards(self._ledger.arrays, demand, rows[where])
        return scores

    def choose(self, cycle: CycleView, pod: Pod, row: int) -> tuple[int, ...] | None:
        """Returns the best-fitting cards, for which `score` was computed; None if the demand does not fit."""
        demands, cards = self._ledger.demands(pod), self._ledger.cards(row)
        if not demands:
            return None
        demand, modes = demands.on(cards.node.mode)
        return None if demand.is_counted or cards.refusal(demand, modes) else cards.choose(demand)

    def takes_at_most(self, pod: Pod, rows: Rows) -> Mapping[str, Int64]:
        """See `framework.introspection.RoomPlugin`: the largest amounts that would fit, by the name that the pod requests."""
        demands = self._ledger.demands(pod)
        if not demands or demands.problem:
            return {}
        found: dict[str, Int64] = {}
        for mode, where, demand in self._by_mode(demands, rows):
            if mode not in demands.by_mode or demand.is_counted:
                continue
            for name, amounts in self._ledger.arrays.takes_at_most(pod, demand, rows[where]).items():
                found.setdefault(name, np.zeros(len(rows), np.int64))[where] = amounts
        return found

    # -- views and explanations --------------------------------------------------------------------------------------

    async def show(self, query: ViewQuery, ports: ViewPorts) -> Callable[[], Document]:
        """See `framework.views.ViewedPlugin`."""
        from domains.gpu import node_documents

        make = node_documents.document_of(query)
        now = ports.clock.now()
        snapshot = await node_documents.take(self._ledger, self._context.nodes, ports.rows, self._context.domain, now)
        return lambda: make(snapshot)

    def describe(self, pod: Pod, row: int) -> str:
        """See `framework.introspection.ExplainPlugin`: why these cards, and what is free before and after."""
        from domains.gpu.card_choice import described

        return described(self._ledger, pod, row)

    def remarks_of_pod(self, pod: Pod) -> Sequence[str]:
        """See `framework.introspection.RemarkPlugin`: annotations that only a binding may carry are ignored on a pending pod."""
        forged = sorted(self._ledger.written.intersection(pod.annotations)) if pod.annotations else ()
        if not forged:
            return ()
        names, those = ("annotation", "it") if len(forged) == 1 else ("annotations", "them")
        return (
            f"{names} {', '.join(forged)}: ignored, because only a scheduler may write {those}, when it binds the pod; remove {those}",
        )

    def remarks_of_node(self, node: Node) -> Sequence[str]:
        row = self._context.nodes.row_of(node.name)
        return () if row is None else tuple(self._ledger.problems(row))

    # -- signature and queueing hints --------------------------------------------------------------------------------

    def sign(self, pod: Pod) -> Hashable:
        return tuple(self._ledger.demands(pod).by_mode.items())

    def events_to_register(self) -> Sequence[EventRegistration]:
        return (
            EventRegistration(ASSIGNED_POD_DELETE, self._after_pod_delete),
            *(
                EventRegistration(ClusterEvent(kind, Action.ADD | Action.UPDATE, kind.value))
                for kind in DESCRIBING_KINDS
            ),
            EventRegistration(NODE_GPUS_CHANGED, self._after_node_change),
            EventRegistration(POD_GPUS_CHANGED, self._after_own_change),
            EventRegistration(GPUS_CONFIRMED, self._after_confirmation),
        )

    def _after_pod_delete(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        return Hint.QUEUE if isinstance(old, Pod) and self._ledger.concerns(old) else Hint.SKIP

    def _after_confirmation(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Queues the pod if another pod's hold was confirmed that a device plugin could confuse with this one."""
        confirmed = isinstance(old, Pod) and isinstance(new, Pod) and self._ledger.is_confirmed_by(old, new)
        return Hint.QUEUE if confirmed else Hint.SKIP

    def _after_node_change(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Queues the pod if a node with GPUs is new, or publishes other cards or another mode."""
        if not isinstance(new, Node):
            return Hint.SKIP
        before = old if isinstance(old, Node) else None
        return Hint.QUEUE if self._ledger.has_new_cards(before, new) else Hint.SKIP

    def _after_own_change(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        changed = (
            isinstance(old, Pod) and isinstance(new, Pod) and self._ledger.demands(old) != self._ledger.demands(new)
        )
        return Hint.QUEUE if changed else Hint.SKIP


def _trial_row(state: CycleState, ledger: GpuLedger, row: int) -> CardRow:
    """Returns a copy of a row's cards for the overlay. Always copies, since the cycle state is copied shallowly."""
    before = state.find(_TRIAL_ROWS) or {}
    cards = (before.get(row) or ledger.cards(row)).copy()
    state.write(_TRIAL_ROWS, {**before, row: cards})
    return cards
