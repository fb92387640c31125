"""GpuShare: Filter and Score by GPU cards, and the choice of a pod's cards by the placement policy of the profile.

The mode of a node says which GPU sharing system it uses. `GpuLedger` has what pods hold; this plugin reads the ledger's arrays for
many rows at a time, and single rows for a few.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np

from domains.gpu.card_row import (
    FRACTION_BESIDE_WHOLE,
    UNCONFIRMED,
    WHOLE_BESIDE_FRACTIONS,
    CardOrder,
    CardRow,
    no_such_card,
    too_little,
    wrong_mode,
)
from domains.gpu.cards import WHOLE, Mode
from domains.gpu.demand import ANY_CARD, GpuDemand
from domains.gpu.dialects import DIALECTS, NOT_LISTED_BY_NODES, PodDemands
from domains.gpu.fragmentation import Fragmentation
from domains.gpu.fragments import Fragments
from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.hold import Hold
from domains.gpu.lock_keeper import LockKeeper
from domains.gpu.node_lock import LOCKED
from domains.gpu.pod_mix import PodMix
from domains.gpu.policies import FILTERED_FEW, SCORED_FEW, SIMPLE_POLICIES, Candidates, ChosenNode, PlacementPolicy
from domains.gpu.settings import gpu_settings
from domains.gpu.typical_pods import PodShape, Typical, shape_of
from multisched.framework.background import BackgroundPorts
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
from multisched.framework.node_view import Codes, Float64, Int64, NodeView, Rows, Scores, all_true, any_true
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.sensitivity import PodSensitivity
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.framework.traits import Traits
from multisched.framework.views import Document, ViewPorts, ViewQuery
from multisched.model.objects import CPU, Node, Pod

NODE_GPUS_CHANGED: Final = ClusterEvent(
    Resource.NODE,
    Action.ADD | Action.UPDATE_NODE_ALLOCATABLE | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_ANNOTATION,
    "NodeGpusChanged",
)
POD_GPUS_CHANGED: Final = ClusterEvent(Resource.TARGET_POD, Action.UPDATE_POD_OTHER, "PodGpusChanged")
PENDING_POD_DELETED: Final = ClusterEvent(Resource.UNSCHEDULED_POD, Action.DELETE, "UnschedulablePodDelete")
GPUS_CONFIRMED: Final = ClusterEvent(Resource.ASSIGNED_POD, Action.UPDATE_POD_OTHER, "GpusConfirmed")

_UNSCHEDULABLE: Final = Code.UNSCHEDULABLE

LOCK_MAX_S: Final = 60.0
"""Timeout of PreBind, which writes the lock of a node, with retries."""
NO_ARGS: Final[Mapping[str, Any]] = {}
DESCRIBING_KINDS: Final = tuple({kind: None for dialect in DIALECTS for kind in dialect.reads_objects})
"""Kinds whose objects describe the cards of nodes."""

_SHARED: Final = attrgetter("spec", "annotations", "labels", "held")
"""The parts of a pod on which its shape depends. Pods of one workload share them."""
NO_TRIAL: Final[Mapping[int, CardRow]] = {}
_TRIAL_ROWS: StateKey[Mapping[int, CardRow]] = StateKey("GpuShare/rows with pods added or removed in a trial")


class GpuShare:
    """Filters and scores nodes by their cards; PreFilter refuses pods with an invalid demand."""

    name = "GpuShare"
    view = "gpu"
    depends_on = Dependency.ROW
    resources_ignored_by_fit = NOT_LISTED_BY_NODES

    def __init__(self, context: PluginContext, args: Mapping[str, Any] = NO_ARGS) -> None:
        """Raises PluginArgsError."""
        settings = gpu_settings(args)
        ledger = context.hold.register(GpuLedger(context.scheduler_names, context.objects))
        assert isinstance(ledger, GpuLedger), f"ledger {ledger.name} belongs to another plugin"
        self._ledger = self.choice_ledger = ledger
        self._context = context
        self._locks: LockKeeper | None = None
        if context.node_locks is not None:
            self._locks = LockKeeper(ledger, context.node_locks, context.scheduler_names, context.rows)
            ledger.locks.watch(context.domain, self._locks.wake)
        self.mix = PodMix(settings.typical, self._running)
        self.policy: PlacementPolicy = (
            Fragmentation(lambda: self.mix.typical)
            if settings.policy == Fragmentation.name
            else SIMPLE_POLICIES[settings.policy]()
        )
        self._scores_nodes = self.policy if isinstance(self.policy, Fragmentation) else None
        """The policy if it can score single nodes without arrays, else None."""
        self._is_learning = settings.policy == Fragmentation.name and settings.typical is None
        self.traits = Traits(
            reads_objects=DESCRIBING_KINDS,
            pre_bind_timeout_s=LOCK_MAX_S,
            prefers_first_row=self.policy.prefers_first_row,
        )
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
        """Returns uint8[rows]: 0, or the code of the refusal. Refuses rows of a mode that the pod cannot use, with too little free, or
        where another pod waits for a device plugin that could give the cards of one pod to the other (I1).
        """
        demands = self._ledger.demands(pod)
        if not demands:
            return np.zeros(len(rows), np.uint8)
        trial = cycle.state.find(_TRIAL_ROWS) or NO_TRIAL
        if len(rows) <= FILTERED_FEW:
            cards_of = self._ledger.cards
            found = [self._code_on(trial.get(row) or cards_of(row), demands) for row in rows.tolist()]
            return np.array(found, np.uint8)
        codes = np.zeros(len(rows), np.uint8)
        for mode, where, some in self._ledger.arrays.by_mode(rows):
            codes[where] = self._codes(mode, some, demands)
        for row, cards in trial.items():
            codes[rows == row] = self._code_on(cards, demands)
        return codes

    def _code_on(self, cards: CardRow, demands: PodDemands) -> int:
        """Returns the code of one node. Uses no arrays, which is faster if there are few nodes."""
        return self._code(cards.refusal(*demands.on(cards.node.mode)))

    def _codes(self, mode: Mode, rows: Rows, demands: PodDemands) -> Codes | int:
        """Returns the codes of rows that have this mode; a single code if it is the same for all."""
        demand = demands.by_mode.get(mode)
        if demand is None:
            return self._code(wrong_mode(mode, demands.on(mode)[0]))
        ledger = self._ledger
        has_room = ledger.has_room(demand, rows)
        codes: Codes = np.logical_not(has_room).view(np.uint8)
        if not all_true(has_room):
            codes *= self._code(too_little(demand.resource))
            if demand.filter is not ANY_CARD:
                refused = codes.nonzero()[0]
                lacking = refused[ledger.lacks_card(demand.filter, rows[refused])]
                codes[lacking] = self._code(no_such_card(demand.filter))
        if mode is WHOLE and ledger.arrays.has_barred[demand.is_whole]:
            barred = ledger.arrays.bars(rows, is_whole=demand.is_whole)
            if any_true(barred):
                codes[barred] = self._code(WHOLE_BESIDE_FRACTIONS if demand.is_whole else FRACTION_BESIDE_WHOLE)
        if demand.confusions:
            if ledger.arrays.has_locked:
                codes[ledger.arrays.locked(rows)] = self._code(LOCKED)
            codes[ledger.arrays.unconfirmed(rows, demand.confusions)] = self._code(UNCONFIRMED)
        return codes

    def _code(self, refusal: str) -> int:
        return self.reasons.code(_UNSCHEDULABLE, refusal) if refusal else 0

    def pod_sensitivity(self, cycle: CycleView, pod: Pod) -> PodSensitivity:
        """Declares that removing a pod changes this plugin's result only if the pod holds GPUs: preemption tests no other rows."""
        return PodSensitivity((), self._ledger.is_used_by, self._ledger.arrays.is_held)

    def add_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        """Adds `other` to the row of the trial, on the cards that it holds or would get."""
        if self._ledger.is_used_by(other):
            cards = _trial_row(cycle.state, self._ledger, row)
            hold = self._ledger.hold(other.uid, row) or self._expected_hold(other, cards, cycle.nodes, row)
            if hold is not None:
                cards.hold(other.uid, hold)
        return SUCCESS

    def remove_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        if self._ledger.is_used_by(other):
            _trial_row(cycle.state, self._ledger, row).release(other.uid)
        return SUCCESS

    def _expected_hold(self, other: Pod, cards: CardRow, nodes: NodeView, row: int) -> Hold | None:
        """Returns the cards that an unbound pod would get; None for a bound pod, because only the ledger knows its cards."""
        demands = self._ledger.demands(other)
        if other.node or not demands:
            return None
        demand, _ = demands.on(cards.node.mode)
        return self._ledger.expected_hold(other, demand, cards, self._order(other, demand, cards, nodes, row))

    def _order(self, pod: Pod, demand: GpuDemand, cards: CardRow, nodes: NodeView, row: int) -> CardOrder:
        """Returns the order in which the policy takes cards of the row. `cards`: the row's cards, or their copy in a trial."""
        return self.policy.order(ChosenNode(self._ledger.arrays, cards, nodes, row), demand, pod)

    # -- scoring ---------------------------------------------------------------------------------------------------

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status:
        is_scored = self.policy.scores_pods and (self.policy.scores_all_pods or self._ledger.demands(pod))
        return SUCCESS if is_scored else SKIP

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[rows], 0..100, computed by the policy; 0 for rows where the demand does not fit."""
        demands, cpu_milli = self._ledger.demands(pod), pod.requests.get(CPU, 0)
        if not demands:
            if not self.policy.scores_all_pods:
                return np.zeros(len(rows), np.int64)
            return self.policy.score(self._candidates(cycle.nodes, rows), None, cpu_milli)
        if self._scores_nodes is not None and len(rows) <= SCORED_FEW and demands.are_of_one_card:
            found = [self._score_on(self._scores_nodes, cycle.nodes, row, demands, cpu_milli) for row in rows.tolist()]
            return np.array(found, np.int64)
        scores = np.zeros(len(rows), np.int64)
        for mode, where, some in self._ledger.arrays.by_mode(rows):
            demand = demands.by_mode.get(mode)
            if demand is not None and not demand.is_counted:
                scores[where] = self.policy.score(self._candidates(cycle.nodes, some), demand, cpu_milli)
        return scores

    def _score_on(self, policy: Fragmentation, nodes: NodeView, row: int, demands: PodDemands, cpu_milli: int) -> int:
        """Returns the score of one row. Uses no arrays, which is faster if there are few rows."""
        cards = self._ledger.cards(row)
        demand = demands.by_mode.get(cards.node.mode)
        if demand is None or demand.is_counted:
            return 0
        return policy.score_on(ChosenNode(self._ledger.arrays, cards, nodes, row), demand, cpu_milli)

    def fragments(self, nodes: NodeView, rows: Rows, typical: Typical | None = None) -> Float64:
        """Returns float64[rows]: idle thousandths of cards that typical pods could not use. `typical`: None for those of `typical()`."""
        candidates = self._candidates(nodes, rows)
        found = Fragments(self.typical() if typical is None else typical, self._ledger.arrays.models)
        return found.of(candidates.left, candidates.cpu_milli, candidates.models)

    def _candidates(self, nodes: NodeView, rows: Rows) -> Candidates:
        return Candidates(self._ledger.arrays, rows, nodes)

    def choose(self, cycle: CycleView, pod: Pod, row: int) -> tuple[int, ...] | None:
        """Returns the positions of the cards for the pod, chosen as `score` assumed; None if it does not fit or takes no cards.

        Also counts the pod in the mix from which typical pods are learned.
        """
        found = self._ledger.choose(pod, row, lambda demand, cards: self._order(pod, demand, cards, cycle.nodes, row))
        if self._is_learning:  # after the choice, which must use the same typical pods as the score
            demands, cards = self._ledger.demands(pod), self._ledger.cards(row).node
            demand = demands.on(cards.mode)[0] if demands else None
            # A demand of GPU memory is converted to a share of the node's largest card.
            is_memory = demand is not None and demand.amount.memory
            memory = max((card.memory for card in cards.cards), default=0) if is_memory else 0
            self.mix.placed(shape_of(demand, pod.requests.get(CPU, 0), memory), self._waiting)
        return found

    # -- typical pods ----------------------------------------------------------------------------------------------

    def _running(self) -> Iterator[PodShape]:
        """Yields the shapes of the pods that hold GPUs. Skips requests of GPU memory: their share of a card is not known here."""
        return self._shapes(self._context.hold.pods())

    def typical(self) -> Typical:
        """Returns the typical pods for which views show fragments. If the policy scores by typical pods, they are the same ones."""
        return self.mix.shown(self._waiting)

    def _waiting(self) -> Iterator[PodShape]:
        """Yields the shapes of pending pods that request GPUs, like `_running`."""
        return self._shapes(self._context.pending())

    def _shapes(self, pods: Iterable[Pod]) -> Iterator[PodShape]:
        """Yields the shapes of these pods. Each shape is computed once per workload, since thousands of its pods may be pending."""
        known: dict[tuple[int, ...], PodShape | None] = {}
        for pod in pods:
            key = tuple(map(id, _SHARED(pod)))
            if key not in known:
                known[key] = self._shape(pod)
            shape = known[key]
            if shape is not None:
                yield shape

    def _shape(self, pod: Pod) -> PodShape | None:
        demands = self._ledger.demands(pod)
        return shape_of(demands.first, pod.requests.get(CPU, 0)) if demands else None

    def export_state(self) -> object:
        """Exports the learned typical pods; see `framework.introspection.StateExportPlugin`."""
        return self.mix.typical

    def import_state(self, handed: object) -> None:
        assert isinstance(handed, tuple), "the state must be exported by GpuShare"
        self.mix.adopt(handed)

    def takes_at_most(self, pod: Pod, rows: Rows) -> Mapping[str, Int64]:
        """Returns resource that the pod requests -> int64[rows]: the largest amount that fits; see `introspection.RoomPlugin`."""
        demands = self._ledger.demands(pod)
        if not demands or demands.problem:
            return {}
        found: dict[str, Int64] = {}
        for mode, where, some in self._ledger.arrays.by_mode(rows):
            demand = demands.by_mode.get(mode)
            if demand is None or demand.is_counted:
                continue
            for name, amounts in self._ledger.arrays.takes_at_most(pod, demand, some).items():
                found.setdefault(name, np.zeros(len(rows), np.int64))[where] = amounts
        return found

    # -- views and explanations --------------------------------------------------------------------------------------

    async def show(self, query: ViewQuery, ports: ViewPorts) -> Callable[[], Document]:
        """See `framework.views.ViewedPlugin`."""
        from domains.gpu import node_documents

        make = node_documents.document_of(query)
        now = ports.clock.now()
        typical, domain = self.typical(), self._context.domain
        snapshot = await node_documents.take(self._ledger, self._context.nodes, ports.rows, domain, now, typical)
        return lambda: make(snapshot)

    def describe(self, pod: Pod, row: int) -> str:
        """Returns why the pod gets these cards, and what is free before and after; see `framework.introspection.ExplainPlugin`."""
        from domains.gpu.card_choice import described

        nodes = self._context.nodes
        idle = int(self._candidates(nodes, np.array([row], np.intp)).cpu_milli[0])
        cards = self._ledger.cards(row)
        return described(
            self._ledger, pod, row, lambda demand: self._order(pod, demand, cards, nodes, row), self.typical(), idle
        )

    def remarks_of_pod(self, pod: Pod) -> Sequence[str]:
        """Returns a remark about GPU annotations of a pending pod that are ignored; see `framework.introspection.RemarkPlugin`."""
        ignored = sorted(self._ledger.written.intersection(pod.annotations)) if pod.annotations else ()
        if not ignored:
            return ()
        names, those = ("annotation", "it") if len(ignored) == 1 else ("annotations", "them")
        return (
            f"{names} {', '.join(ignored)}: ignored, because only a scheduler may write {those}, when it binds the pod; remove {those}",
        )

    def remarks_of_node(self, node: Node) -> Sequence[str]:
        row = self._context.nodes.row_of(node.name)
        return () if row is None else tuple(self._ledger.problems(row, self._context.nodes))

    # -- locks of nodes ------------------------------------------------------------------------------------------------

    def pre_bind_pre_flight(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        """Returns Skip unless the pod needs the node's lock. Some device plugins use the lock to find the pod that they allocate for."""
        key = self._ledger.lock_key(node) if self._locks is not None else None
        return SUCCESS if key is not None and key.is_written_before_bind and self._ledger.demands(pod) else SKIP

    async def pre_bind(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        """Takes the node's lock for the pod."""
        key = self._ledger.lock_key(node)
        if self._locks is None or key is None:
            return Status.error(f"node {node} changed its GPU mode before the pod was bound")
        return await self._locks.take(pod, node, key.annotation)

    async def run(self, ports: BackgroundPorts) -> None:
        """Removes abandoned node locks until it is cancelled."""
        if self._locks is None:
            await asyncio.Event().wait()
        else:
            await self._locks.run(ports.clock)

    # -- signature and queueing hints --------------------------------------------------------------------------------

    def sign(self, pod: Pod) -> Hashable:
        """Returns the identifier of the pod's demands. If all pods are scored, also returns its CPU and the version of the typical pods."""
        number = self._ledger.demands(pod).number
        return (number, pod.requests.get(CPU, 0), self.mix.version) if self.policy.scores_all_pods else number

    def events_to_register(self) -> Sequence[EventRegistration]:
        return (
            EventRegistration(ASSIGNED_POD_DELETE, self._after_pod_delete),
            *(
                EventRegistration(ClusterEvent(kind, Action.ADD | Action.UPDATE | Action.DELETE, kind.value))
                for kind in DESCRIBING_KINDS
            ),
            EventRegistration(NODE_GPUS_CHANGED, self._after_node_change),
            EventRegistration(POD_GPUS_CHANGED, self._after_own_change),
            EventRegistration(GPUS_CONFIRMED, self._after_confirmation),
            EventRegistration(PENDING_POD_DELETED, self._after_pending_pod_delete),
        )

    def _after_pod_delete(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        return Hint.QUEUE if isinstance(old, Pod) and self._ledger.is_used_by(old) else Hint.SKIP

    def _after_confirmation(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Queues one pod if another pod's cards were confirmed, and the device plugin could have confused that pod with this one."""
        if not isinstance(old, Pod) or not isinstance(new, Pod):
            return Hint.SKIP
        ended = self._ledger.confusions_ended_by(old, new)
        demands = self._ledger.demands(pod).by_mode.values() if ended else ()
        return Hint.QUEUE_ONE if any(not ended.isdisjoint(demand.confusions) for demand in demands) else Hint.SKIP

    def _after_pending_pod_delete(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Queues one pod in place of the deleted one, which may have been queued for a node that serves one pod at a time."""
        has_waited = isinstance(old, Pod) and any(
            demand.confusions for demand in self._ledger.demands(old).by_mode.values()
        )
        return Hint.QUEUE_ONE if has_waited else Hint.SKIP

    def _after_node_change(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Queues the pod if a node with GPUs was added, publishes other cards or another mode, or was unlocked."""
        if not isinstance(new, Node):
            return Hint.SKIP
        before = old if isinstance(old, Node) else None
        if self._ledger.has_new_cards(before, new):
            return Hint.QUEUE
        return Hint.QUEUE_ONE if before is not None and self._is_unlocked(pod, before, new) else Hint.SKIP

    def _is_unlocked(self, pod: Pod, before: Node, after: Node) -> bool:
        """Reports whether the node's lock was removed and the pod could wait for that."""
        if not self._ledger.locks.text(before) or self._ledger.locks.text(after):
            return False
        return any(demand.confusions for demand in self._ledger.demands(pod).by_mode.values())

    def _after_own_change(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        if not (isinstance(old, Pod) and isinstance(new, Pod)):
            return Hint.SKIP
        before, after = self._ledger.demands(old), self._ledger.demands(new)
        return Hint.QUEUE if before.by_mode != after.by_mode else Hint.SKIP


def _trial_row(state: CycleState, ledger: GpuLedger, row: int) -> CardRow:
    """Returns a copy of a row's cards, to be changed in a trial. Copies at each call, because copies of the cycle state are shallow."""
    before = state.find(_TRIAL_ROWS) or {}
    cards = (before.get(row) or ledger.cards(row)).copy()
    state.write(_TRIAL_ROWS, {**before, row: cards})
    return cards
