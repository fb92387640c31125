"""Defects that the program once had in production code, and deliberate ones. Each was first found by hand, or not at all; seeds
must find it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from msgspec.structs import replace

from domains.gpu import cards, policies
from domains.gpu.card_arrays import MEMORY, CardArrays
from domains.gpu.card_row import CardRow, place_of
from domains.gpu.cards import CARD_MILLI
from domains.gpu.demand import GpuDemand, integer_within
from domains.gpu.dialects import own
from domains.gpu.dialects.own import GPU_MILLI
from domains.gpu.dialects.whole import GPU
from domains.gpu.gpu_share import GpuShare
from domains.gpu.hold import Hold
from multisched.client import event_sink
from multisched.client.condition_writer import ApiConditionWriter
from multisched.client.lease_record import LeaseWatcher
from multisched.client.list_reader import ListReader
from multisched.client.watch import Ending, Watch, _line_decoder
from multisched.cycle.bind_outcome import Action, BindMachine, Outcome, Step
from multisched.cycle.classes.columns import ScoreColumn
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.classes.scores import ClassScores
from multisched.cycle.preemption.dry_run import AttemptDryRun
from multisched.cycle.preemption.nominated_pods import NominatedPodsFilter
from multisched.cycle.preemption.victim_cache import VictimCache
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.dependency import Dependency
from multisched.framework.events import ClusterEvent, Hint, Resource
from multisched.framework.node_view import Amount, Codes, Rows
from multisched.framework.points import CycleView
from multisched.framework.status import SUCCESS, Code
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import CPU, Node, Pod
from multisched.model.wire import UNREADABLE
from multisched.plugins import node_ports, node_unschedulable, taint_toleration
from multisched.plugins.image_locality import ImageLocality
from multisched.plugins.node_resources_fit import NodeResourcesFit
from multisched.plugins.topology.inter_pod_affinity import InterPodAffinity
from multisched.plugins.topology.pod_topology_spread import PodTopologySpread
from multisched.plugins.volumes.attached_volumes import AttachedVolumes
from multisched.queueing import parked_pods
from multisched.queueing.active_pods import ActivePods
from multisched.queueing.backoff import BackoffPods
from multisched.queueing.entry import EVERY_POD, Entry, ParkedPodFilter
from multisched.queueing.entry_states import PARKED, EntryStates
from multisched.queueing.hints import HintTable
from multisched.queueing.parked_pods import ParkedPods
from multisched.queueing.pod_queue import PodQueue
from multisched.shell.audit.auditor import Audit
from multisched.shell.binding.send_check import SendCheck
from multisched.shell.domain import DomainWorker
from multisched.shell.ingest import cluster_changes, pods_and_nodes
from multisched.shell.ingest.pods_and_nodes import PodIngest
from multisched.shell.leadership.cluster_lists import ClusterLists
from multisched.shell.leadership.handover import Handover
from multisched.shell.preemptor import Preemptor
from multisched.shell.removals import Removals
from multisched.shell.scheduling import bind_outcomes
from multisched.shell.scheduling.bind_outcomes import BindOutcomes
from multisched.shell.scheduling.nominations import DomainNominations
from multisched.shell.statuses import Statuses
from multisched.state.change_log import ChangeLog
from multisched.state.cluster_cache import ClusterCache
from multisched.state.column_overlay import ColumnOverlay
from multisched.state.domain_rows import DomainRows
from multisched.state.external_pod_changes import ExternalPodChanges
from multisched.state.node_table import NodeTable
from multisched.state.nominator import Nominator
from tests.sim.defects import DEFECTS, defect, put

__all__ = ["DEFECTS"]


@defect
def unsent_binds_not_rechecked() -> None:
    """A bind is sent though its node was cordoned, tainted, shrunk or moved to another domain meanwhile."""
    put(SendCheck, "refusal", lambda self, placed, seen: None)


@defect
def assumed_pods_keep_their_size() -> None:
    """A pod that is resized during its bind counts with the decided requests."""
    put(ClusterCache, "revise", lambda self, pod: True)


@defect
def edits_release_devices() -> None:
    """The devices of a running pod are read from its current annotations."""
    put(ClusterCache, "_settled", lambda self, before, after: after)


@defect
def false_answers_believed() -> None:
    """A pod that counts as bound by a response alone is not verified."""

    async def believe(self: Audit, now: Any, began_s: float) -> None:
        del self, now, began_s

    put(Audit, "_check_answers", believe)


@defect
def joined_rows_used_at_once() -> None:
    """A node that joins a domain is used though binds of its last domain may be in flight."""
    genuine = DomainRows.set_node

    def set_node(self: DomainRows, row: int, node: Any) -> None:
        self.may_join = lambda node: True
        genuine(self, row, node)

    put(DomainRows, "set_node", set_node)


@defect
def restored_history_forgets_first() -> None:
    """After a restore all known objects are dropped before the new list has arrived."""
    genuine = ListReader._may_use

    def may_use(self: ListReader, version: str) -> bool:
        is_used = genuine(self, version)
        if is_used and self._history.must_start_over(self._name):
            self._feed._delete_unseen(list(self._feed.known._known))
            self._feed.known._known.clear()
        return is_used

    put(ListReader, "_may_use", may_use)


@defect
def bad_text_ends_the_process() -> None:
    """An object that is not UTF-8 raises where it is read."""
    genuine = PodIngest.upsert

    def upsert(self: PodIngest, key: str, raw: Any) -> None:
        bytes(raw).decode()
        genuine(self, key, raw)

    put(PodIngest, "upsert", upsert)


@defect
def roles_left_out_of_the_signature() -> None:
    """Pods of one spec share a class of InterPodAffinity, whether its own terms select them or not."""
    put(InterPodAffinity, "sign", lambda self, pod: id(pod.spec.pod_affinity))


@defect
def deleting_pods_counted_for_spread() -> None:
    """A pod that is deleted during its bind is counted as one that stays."""
    genuine = ClusterCache.revise

    def revise(self: ClusterCache, pod: Any) -> bool:
        return True if pod.is_deleting else genuine(self, pod)

    put(ClusterCache, "revise", revise)


# -- planted without knowing the simulation ----------------------------------------------------------------------------


@defect
def untainted_nodes_requeue_nothing() -> None:
    """A node whose taint is removed counts as one that could be used before."""
    genuine = taint_toleration._after_node_change

    def hint(pod: Any, old: Any, new: Any) -> Hint:
        return Hint.SKIP if isinstance(old, Node) else genuine(pod, old, new)

    put(taint_toleration, "_after_node_change", hint)


@defect
def uncordoned_nodes_requeue_nothing() -> None:
    """A node that is uncordoned counts as one that could be used before."""
    genuine = node_unschedulable._after_node_change

    def hint(pod: Any, old: Any, new: Any) -> Hint:
        return Hint.SKIP if isinstance(old, Node) else genuine(pod, old, new)

    put(node_unschedulable, "_after_node_change", hint)


@defect
def ports_of_other_addresses_requeue_nothing() -> None:
    """When a port on all addresses becomes free, pods that wait for it on one address are not requeued."""
    put(node_ports, "_is_same_port", lambda want, held: want == held)


@defect
def returned_devices_requeue_nothing() -> None:
    """Pods that wait for devices are requeued by a node that has fewer devices, and not by one that has more."""

    def hint(self: GpuShare, pod: Any, old: Any, new: Any) -> Hint:
        had = old.allocatable.get(GPU, 0) if isinstance(old, Node) else 1 << 30
        return Hint.QUEUE if new is not None and new.allocatable.get(GPU, 0) < had else Hint.SKIP

    put(GpuShare, "_after_node_change", hint)


@defect
def ended_fractions_requeue_nothing() -> None:
    """Pods that wait for devices are requeued only by the end of pods with whole devices."""

    def hint(self: GpuShare, pod: Any, old: Any, new: Any) -> Hint:
        return Hint.QUEUE if old.requests.get(GPU) else Hint.SKIP

    put(GpuShare, "_after_pod_delete", hint)


@defect
def permit_waits_for_the_last() -> None:
    """If several plugins hold a pod at Permit, the longest timeout counts."""

    def expire(self: WaitingPodTable, now_s: float) -> int:
        late = [(uid, max(one.deadlines, key=one.deadlines.__getitem__)) for uid, one in self._waiting.items()]
        late = [(uid, plugin) for uid, plugin in late if self._waiting[uid].deadlines[plugin] <= now_s]
        return sum(self.reject(uid, plugin, "rejected due to timeout") for uid, plugin in late)

    put(WaitingPodTable, "expire", expire)


@defect
def one_allow_is_enough() -> None:
    """A pod that one of several Permit plugins allows is bound."""
    put(WaitingPodTable, "allow", lambda self, uid, plugin: self.end(uid, SUCCESS))


@defect
def conditions_overtake() -> None:
    """A pod's condition is written by two workers at once, the older one last."""
    put(ApiConditionWriter, "_next_uid", lambda self: next(iter(self._pending), None))


@defect
def withdrawn_binds_forgotten() -> None:
    """A bind that may not be sent again counts as one that was never sent."""
    refused = Action(Step.END, outcome=Outcome.REFUSED, message="withdrawn")
    put(BindMachine, "withdraw", lambda self, message: refused)


@defect
def new_message_counts_as_repeat() -> None:
    """A pod that is refused for another reason keeps the first message."""
    genuine = event_sink._key
    put(event_sink, "_key", lambda event: genuine(replace(event, note="")))


@defect
def repeats_on_the_way_are_not_counted() -> None:
    """An Event that recurs while it is being written is not counted."""
    genuine = event_sink.ApiEventSink._settle

    def settle(self: Any, entry: Any) -> None:
        entry.sent = entry.count
        genuine(self, entry)

    put(event_sink.ApiEventSink, "_settle", settle)


@defect
def ended_nominations_stay_written() -> None:
    """A pod that is no longer nominated keeps its nominatedNodeName."""
    genuine = DomainNominations.nominate
    put(DomainNominations, "nominate", lambda self, result: genuine(self, result) or None)


@defect
def early_tries_in_exact_order() -> None:
    """Pods that are tried before their backoff ends are ordered by its exact end, not by whole seconds and priority."""
    genuine = BackoffPods.add

    def add(self: BackoffPods, uid: str, until_s: float, sort_key: Any, order: int, *, is_error: bool) -> None:
        genuine(self, uid, until_s, (until_s, sort_key), order, is_error=is_error)

    put(BackoffPods, "add", add)


@defect
def fractions_scored_by_the_freest() -> None:
    """A fraction is scored by the freest devices of a node instead of those that it would get."""
    genuine = policies._score_fraction

    def score(arrays: CardArrays, demand: GpuDemand, rows: Any) -> Any:
        def layer(which: int, at: Any) -> Any:
            found = arrays.layer(which, at)
            fits = arrays.fitting(demand, demand.parts[0], at)
            return np.where(fits, found.max(axis=0), found) if which == MEMORY else found

        seen: Any = SimpleNamespace(layer=layer, fitting=arrays.fitting, scales=arrays.scales)
        return genuine(seen, demand, rows)

    put(policies, "_score_fraction", score)


@defect
def deleted_leases_not_waited_for() -> None:
    """A process that finds no lease takes it at once, whatever pods are on nodes."""
    put(Handover, "_may_have_unrecorded_holder", lambda self: False)


@defect
def deleted_leases_hold_no_nodes() -> None:
    """A node is used at once if the lease of the leader that it leaves was deleted."""
    put(LeaseWatcher, "_judge_missing", lambda self, unseen: None)


@defect
def seen_before_the_last_binds_end() -> None:
    """A leader publishes that it has seen a node leave while its own binds to the node are in flight."""
    put(DomainWorker, "has_strayed_binds", property(lambda self: False))


@defect
def lists_dated_at_their_end() -> None:
    """A process that takes a second lease while it lists for the first one uses that list."""

    async def see(self: ClusterLists, since_s: float) -> None:
        async with self._relisting:
            if self._dates_from_s < since_s:
                for reflector in self._reflectors.values():
                    await reflector.relist()
                self._dates_from_s = self._clock.monotonic()

    put(ClusterLists, "see_all_binds_before", see)


@defect
def late_refusals_keep_their_victims() -> None:
    """A preemptor evicts pods from a node that another filter refuses in any case."""
    put(AttemptDryRun, "_codes_without_change", lambda self, plugin, rows: np.zeros(len(rows), np.uint8))


# -- who waits, and for whom -------------------------------------------------------------------------------------------


@defect
def resizes_count_when_they_are_requested() -> None:
    """The event of a resize is sent when its owner requests it, and not when the kubelet has applied it."""
    genuine = cluster_changes.assigned_pod_events

    def events(before: Pod, after: Pod, *reported: Any) -> Any:
        asked, ask = (replace(pod, held=None) for pod in (before, after))
        return genuine(asked, ask, *reported)

    put(pods_and_nodes, "assigned_pod_events", events)


@defect
def labels_left_out_of_parked_classes() -> None:
    """Parked pods of one spec share the answers of hints, whatever their labels."""
    genuine = parked_pods.class_of
    put(parked_pods, "class_of", lambda pod: genuine(replace(pod, labels={})))


@defect
def ended_nominations_requeue_only_lower_priority() -> None:
    """Pods of the same priority as a nominated pod are not requeued when its nomination ends."""
    genuine = PodQueue.on_event

    def on_event(
        self: PodQueue, event: Any, old: Any, new: Any, now_s: float, only: ParkedPodFilter = EVERY_POD
    ) -> Any:
        return genuine(self, event, old, new, now_s, replace(only, priority_max=only.priority_max - 1))

    put(PodQueue, "on_event", on_event)


@defect
def changes_marked_before_counted() -> None:
    """A pod with anti-affinity, as the first change since a decision, cancels no bind of a pod without rules of its own."""
    genuine = ExternalPodChanges.log_added

    def log_added(self: ExternalPodChanges, pod: Pod) -> None:
        before = self.end
        genuine(self, pod)
        self.demanding = min(self.demanding, before)

    put(ExternalPodChanges, "log_added", log_added)


@defect
def one_namespace_retries_for_nothing() -> None:
    """If only one namespace has retries, first attempts of others wait for all of them."""
    genuine = ActivePods._pay

    def pay(self: ActivePods, namespace: str, units: float) -> None:
        lead = self._lead
        genuine(self, namespace, units)
        if len(self._retries) == 1:
            self._lead = lead

    put(ActivePods, "_pay", pay)


@defect
def detached_volumes_counted() -> None:
    """Attached volumes of a node are recounted when its pods change, and not when a volume is detached."""
    genuine = AttachedVolumes._rows_touched

    def touched(self: AttachedVolumes, kind: ObjectKind, key: tuple[str, str]) -> set[int]:
        return set() if kind is ObjectKind.VOLUME_ATTACHMENT else genuine(self, kind, key)

    put(AttachedVolumes, "_rows_touched", touched)


@defect
def unanswered_conditions_forgotten() -> None:
    """A condition whose response was lost counts as never sent."""
    genuine = ApiConditionWriter._remember

    def remember(self: ApiConditionWriter, uid: str, written: Any) -> None:
        if written.is_certain:
            genuine(self, uid, written)

    put(ApiConditionWriter, "_remember", remember)


@defect
def device_shares_from_current_requests() -> None:
    """A new leader counts a pod's part of a device by its current request, and not by what it was given."""

    def allocated(pod: Pod) -> cards.Amount:
        return cards.Amount(milli=integer_within(pod.annotations.get(GPU_MILLI), CARD_MILLI) or CARD_MILLI)

    put(own, "_allocated", allocated)


@defect
def lost_binds_requeue_nothing() -> None:
    """No pod is requeued when a pod was deleted or bound elsewhere during its bind."""
    genuine, wake = BindOutcomes.on_lost, BindOutcomes._notify_freed

    def lost(self: BindOutcomes, bind: Any) -> None:
        put(BindOutcomes, "_notify_freed", lambda self, held, node: None)
        genuine(self, bind)
        put(BindOutcomes, "_notify_freed", wake)

    put(BindOutcomes, "on_lost", lost)


@defect
def deleted_nodes_requeue_no_spread() -> None:
    """When the emptiest topology domain loses its last node, pods blocked by it are not requeued."""
    genuine = PodTopologySpread._after_node_change

    def hint(self: PodTopologySpread, pod: Pod, old: Any, new: Any) -> Hint:
        return Hint.SKIP if new is None else genuine(self, pod, old, new)

    put(PodTopologySpread, "_after_node_change", hint)


@defect
def relabelled_pods_requeue_nothing() -> None:
    """Changed labels of a placed pod do not requeue pods with affinity or anti-affinity to it."""
    genuine = InterPodAffinity._after_pod_change

    def hint(self: InterPodAffinity, pod: Pod, old: Any, new: Any) -> Hint:
        return Hint.SKIP if old is not None and new is not None else genuine(self, pod, old, new)

    put(InterPodAffinity, "_after_pod_change", hint)


@defect
def reparked_pod_blocks_others() -> None:
    """A gated pod that stays gated keeps its position among the deadlines with a later deadline: pods after it wait."""

    def add(self: ParkedPods, entry: Any, deadline_s: float) -> None:
        self.reindex(entry) if entry.uid in self else self._index(entry)
        self._deadlines[entry.uid] = deadline_s

    put(ParkedPods, "add", add)


# -- what strangers do between a decision and its POST -----------------------------------------------------------------


@defect
def external_pods_on_the_node_ignored() -> None:
    """A bind is sent though a pod of another client has taken a port, a disk or a device on its node."""
    put(ClusterCache, "external_changes", lambda self, row: 0)


@defect
def external_pods_elsewhere_ignored() -> None:
    """A bind is sent though pods of other clients on other nodes now violate a rule."""
    put(SendCheck, "_is_affected", lambda self, placed, pod, seen: False)


@defect
def unknown_binds_forgotten_when_refused() -> None:
    """A bind that may have been applied ends after a few refused connections."""

    def again(self: BindMachine, reply: Any, pause_s: float, *, is_last: bool) -> Action:
        if is_last:
            return Action(Step.END, outcome=Outcome.REFUSED, message=reply.message)
        return Action(Step.POST, pause_s)

    put(BindMachine, "_again", again)


@defect
def nominated_ports_ignored() -> None:
    """Requests of a nominated pod are reserved, and its host port is not."""

    def columns(self: NominatedPodsFilter, pod: Pod, nominated: Any) -> ColumnOverlay:
        return ColumnOverlay(self._table, nominated, list)

    put(NominatedPodsFilter, "columns", columns)


# -- what blind planters left after a hundred seeds --------------------------------------------------------------------


@defect
def starts_leave_victims_as_they_were() -> None:
    """Cached victims on a node are kept while pods there start, which changes their importance."""
    genuine = VictimCache.renew

    def renew(self: VictimCache, table: NodeTable, nominator: Nominator) -> None:
        kept, table.start_log = table.start_log, ChangeLog()
        self._sequences = (self._sequences[0], 0, self._sequences[2])
        genuine(self, table, nominator)
        table.start_log = kept

    put(VictimCache, "renew", renew)


@defect
def full_nodes_keep_the_scale() -> None:
    """Scores stay in the scale of the best node though no pod of the class fits there any more."""
    genuine = ClassScores._normalize

    def normalize(self: ClassScores, entry: EquivalenceClass, column: ScoreColumn, at: Rows) -> bool:
        return bool(len(at)) and genuine(self, entry, column, at)

    put(ClassScores, "_normalize", normalize)


@defect
def exact_fits_not_preempted() -> None:
    """A node that a pod would fill exactly counts as too small, and no pod is evicted there."""
    genuine = NodeResourcesFit.filter

    def answer(self: NodeResourcesFit, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        codes = genuine(self, cycle, pod, rows)
        wanted = cycle.nodes.amounts(Amount.ALLOCATABLE, (CPU,), rows)[0] == pod.requests.get(CPU, 0)
        never = self.reasons.code(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "Insufficient cpu")
        return np.where(wanted & (codes > 0), never, codes).astype(np.uint8)

    put(NodeResourcesFit, "filter", answer)


@defect
def pods_of_other_domains_requeue_nothing() -> None:
    """A pod placed on a node of another domain in the zone does not requeue pods with affinity to it."""
    genuine = HintTable._registered

    def registered(self: HintTable, name: str, event: ClusterEvent) -> Any:
        return () if event.resource is Resource.DISTANT_POD else genuine(self, name, event)

    put(HintTable, "_registered", registered)


@defect
def forbidden_binds_quarantine_pods() -> None:
    """A pod whose bind was forbidden to us is quarantined like one that the API server refuses."""
    put(bind_outcomes, "refusal_key", lambda words, node: words)


@defect
def malformed_lines_skipped() -> None:
    """A watch continues after a malformed event."""

    async def consume(self: Watch, stream: Any) -> Any:
        async for line in stream:
            try:
                ending = self._apply(_line_decoder.decode(line))
            except UNREADABLE:
                continue
            if ending is not None:
                return ending
        return Ending.RESUME

    put(Watch, "_consume", consume)


@defect
def equals_lose_their_nominations() -> None:
    """A preemptor ends nominations of the same priority on its node."""
    genuine = Preemptor._clear_lower

    async def clear(self: Preemptor, job: Any, problems: list[str]) -> None:
        for pod, node in job.preemption.nominations:
            for other in self._nominator.on(node):
                if other.spec.priority == pod.spec.priority and other.uid != pod.uid:
                    self._nominator.remove(other.uid)
                    await self._clear_nomination(job, other)
        await genuine(self, job, problems)

    put(Preemptor, "_clear_lower", clear)


@defect
def images_count_by_row_alone() -> None:
    """The score of an image is cached while other nodes pull it."""
    put(ImageLocality, "depends_on", Dependency.NODE)


@defect
def statuses_written_without_the_lease() -> None:
    """Every process writes statuses, whether it leads or not."""

    class Always:
        def may_bind(self) -> bool:
            return True

    put(Statuses, "lease_of", lambda self, kind: Always())


@defect
def victims_that_stay_stay_marked() -> None:
    """A failed removal leaves its victims marked, so that they count as leaving."""

    def drop(self: Removals, uid: str, plan: object) -> None:
        plans = self._plans.get(uid, set())
        plans.discard(plan)
        if not plans and self._plans.pop(uid, None) is not None:
            self.version += 1

    put(Removals, "_drop", drop)


@defect
def changed_pods_stay_parked_as_they_were() -> None:
    """A parked pod that was updated is evaluated together with its former equals."""
    genuine = EntryStates.reindex

    def find(self: EntryStates, entry: Entry, now_s: float) -> None:
        if entry.state not in PARKED:
            genuine(self, entry, now_s)

    put(EntryStates, "reindex", find)


@defect
def nodes_seen_later_by_others_used_at_once() -> None:
    """A new leader ignores whether another one has seen later versions of nodes."""
    genuine = Handover.open

    def open_(self: Handover, worker: DomainWorker, others: Any) -> None:
        ahead, self._ahead = self._ahead, lambda others: []  # type: ignore[method-assign]
        genuine(self, worker, others)
        self._ahead = ahead  # type: ignore[method-assign]

    put(Handover, "open", open_)


@defect
def statuses_of_earlier_plugins() -> None:
    """Plugins of a new configuration write no statuses: the earlier plugins continue."""
    genuine = Statuses.serve
    put(Statuses, "serve", lambda self, workers: None if self._sources else genuine(self, workers))


@defect
def lost_cards_count_nowhere() -> None:
    """The missing cards of a pod with several cards are forgotten, so that another pod may get them."""

    def uses(self: CardRow, hold: Hold) -> Any:
        known = [share for share in hold.shares if place_of(self.node.cards, share.card) >= 0]
        if not known or self.node.mode not in hold.modes:
            return None
        cards = self.node.cards
        places = [(place_of(cards, one.card), one.amount) for one in known]
        return tuple((at, cards[at].whole if hold.is_whole else amount.of(cards[at])) for at, amount in places)

    put(CardRow, "_uses_of", uses)
