"""Deliberate defects: each function breaks the program in one plausible way, which its docstring describes.

They replace private parts on purpose; after a rename there they raise AttributeError, instead of silently having no effect (`put`
reads the name first).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec.structs import replace

from domains.gpu.card_row import CardRow, too_little
from domains.gpu.demand import GpuDemand
from multisched.client import known_objects
from multisched.client.binder import ApiBinder
from multisched.client.known_objects import KnownObjects, Observation
from multisched.client.lease_term import LeaseState, LeaseTerm
from multisched.client.reflector import Reflector
from multisched.cycle import commit_step
from multisched.cycle.bind_outcome import Action, BindMachine, Outcome, Step
from multisched.cycle.commit_step import CommitStep
from multisched.cycle.preemption.nominated_pods import NominatedPodsFilter
from multisched.cycle.results import Conflicted
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.events import Hint
from multisched.framework.pod_counts import PodCounts
from multisched.framework.pod_demands import AffinityIndexEntry, PodDemands
from multisched.framework.ports import BindAnswer, BindReply, PodTruth
from multisched.framework.status import SUCCESS
from multisched.framework.term_columns import IncomingPod
from multisched.plugins.default_preemption import DefaultPreemption, LowerPriority
from multisched.plugins.disruption_budgets import DisruptionBudgets
from multisched.plugins.node_affinity import NodeAffinity
from multisched.plugins.node_ports import NodePorts
from multisched.plugins.node_unschedulable import NodeUnschedulable
from multisched.plugins.topology.inter_pod_affinity import InterPodAffinity
from multisched.plugins.topology.pod_topology_spread import PodTopologySpread
from multisched.plugins.volumes.assumed_volumes import AssumedVolumes
from multisched.plugins.volumes.volume_binder import VolumeBinder
from multisched.plugins.volumes.volume_masks import RowMasks
from multisched.queueing import quarantine
from multisched.queueing.backoff import BackoffPods
from multisched.queueing.entry import EVERY_POD, Entry, Moved
from multisched.queueing.entry_states import EntryStates
from multisched.queueing.events_in_flight import EventsInFlight
from multisched.queueing.gating import Gates
from multisched.queueing.hints import Requeue
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.quarantine import ServerRefusals
from multisched.queueing.representatives import Representatives
from multisched.queueing.requeue_judge import RequeueJudge
from multisched.shell.audit.auditor import Audit
from multisched.shell.domain import DomainWorker
from multisched.shell.ingest.pods_and_nodes import NodeIngest, PodIngest
from multisched.shell.leadership.cluster_lists import ClusterLists
from multisched.shell.leadership.leases import Leases
from multisched.shell.preemptor import Preemptor
from multisched.shell.program import Program
from multisched.shell.scheduling.bind_outcomes import BindOutcomes
from multisched.shell.scheduling.result_applier import ResultApplier
from multisched.state import cluster_cache, commit
from multisched.state.cluster_cache import ClusterCache
from multisched.state.columns.resources import ResourceColumns
from multisched.state.domain_rows import DomainRows
from multisched.state.ledgers import LedgerRegistry
from tests.kit.plugins.permit_holds import HoldSome

Defect = Callable[[], None]
DEFECTS: dict[str, Defect] = {}


def defect(function: Defect) -> Defect:
    DEFECTS[function.__name__] = function
    return function


def put(owner: object, name: str, replacement: object) -> None:
    getattr(owner, name)
    setattr(owner, name, replacement)


# -- commit and cache --------------------------------------------------------------------------------------------------


@defect
def no_recheck_at_commit() -> None:
    """The commit does not check rows that changed while the cycle waited."""
    genuine = commit.commit

    def trusting(cache: Any, rows: Any, pod: Any, candidates: Any, still_fits: Any, choose: Any, conflicts: Any) -> Any:
        return genuine(cache, rows, pod, candidates, lambda pod, row: True, choose, conflicts)

    put(commit_step, "commit", trusting)


@defect
def rows_not_checked_at_commit() -> None:
    """A row that left the domain while the cycle waited (its loan ended) is still used."""
    put(DomainRows, "has", lambda self, row: True)
    put(DomainRows, "stayed_since", lambda self, rows, generation: np.ones(len(rows), np.bool_))


@defect
def forget_nothing() -> None:
    """A refused bind is not forgotten."""
    put(ClusterCache, "forget", lambda self, uid: False)


@defect
def memory_not_counted() -> None:
    """Only the CPU of pods is counted."""
    genuine = ResourceColumns.account

    def sloppy(self: ResourceColumns, row: int, pod: Any, sign: int) -> None:
        genuine(self, row, pod, sign)
        self._requested[self._index["memory"], row] -= sign * pod.requests.get("memory", 0)

    put(ResourceColumns, "account", sloppy)


@defect
def resized_pods_not_recounted() -> None:
    """A pod resized in place counts with its old requests."""
    put(cluster_cache, "_differs", lambda before, after: False)


@defect
def freed_rows_keep_their_use() -> None:
    """The requests of a deleted node's pods remain in its row: the next node in that row starts full."""

    def remove_node(self: ClusterCache, name: str) -> Any:
        row = self.nodes.row_of(name)
        if row is None:
            return None
        before = self.nodes._resources._requested[:, row].copy()
        node = genuine(self, name)
        self.nodes._resources._requested[:, row] = before
        return node

    genuine = ClusterCache.remove_node
    put(ClusterCache, "remove_node", remove_node)


@defect
def strays_forgotten() -> None:
    """Pods of an unknown node do not count when the node is added."""
    genuine = ClusterCache.set_node

    def set_node(self: ClusterCache, node: Any) -> Any:
        self._strays.pop(node.name, None)
        return genuine(self, node)

    put(ClusterCache, "set_node", set_node)


@defect
def ledgers_not_rolled_back() -> None:
    """Ledgers keep the amounts of a failed pod."""
    put(LedgerRegistry, "release", lambda self, uid: None)


@defect
def devices_given_twice() -> None:
    """Every pod gets the first devices, even if others hold them, and the ledger accepts any choice."""
    genuine = CardRow.choose

    def room_refusal(self: CardRow, demand: GpuDemand) -> str:
        return too_little(demand.resource) if genuine(self, demand) is None else ""

    put(CardRow, "_room_refusal", room_refusal)
    put(CardRow, "choose", lambda self, demand, order=None: tuple(range(demand.count)))
    put(CardRow, "refusal_of", lambda self, demand, devices, modes: self.refusal(demand, modes))


# -- the bind and its outcome ------------------------------------------------------------------------------------------


def _on_reply(wanted: BindAnswer, action: Action) -> None:
    genuine = BindMachine.on_reply

    def on_reply(self: BindMachine, reply: BindReply) -> Action:
        return action if reply.answer is wanted else genuine(self, reply)

    put(BindMachine, "on_reply", on_reply)


@defect
def forget_by_timer() -> None:
    """A bind without a response is forgotten, as if it had certainly failed."""
    _on_reply(BindAnswer.UNKNOWN, Action(Step.END, outcome=Outcome.REFUSED, message="no answer"))


@defect
def not_found_is_bound() -> None:
    """A 404 for a binding counts as success."""
    _on_reply(BindAnswer.NOT_FOUND, Action(Step.END, outcome=Outcome.BOUND))


@defect
def conflict_is_bound() -> None:
    """A 409 for a binding counts as success without reading the pod."""
    _on_reply(BindAnswer.CONFLICT, Action(Step.END, outcome=Outcome.BOUND))


@defect
def conflict_is_refusal() -> None:
    """A 409 for a binding counts as a failure without reading the pod, which may be bound to the chosen node."""
    _on_reply(BindAnswer.CONFLICT, Action(Step.END, outcome=Outcome.REFUSED))


@defect
def unknown_is_bound() -> None:
    """A lost response counts as success."""
    _on_reply(BindAnswer.UNKNOWN, Action(Step.END, outcome=Outcome.BOUND))


@defect
def read_once_after_unknown() -> None:
    """After a lost response one read decides, though the binding may still be in flight."""
    genuine = BindMachine.on_read

    def on_reply(self: BindMachine, reply: BindReply) -> Action:
        if reply.answer is BindAnswer.UNKNOWN:
            return Action(Step.READ)
        return reply_before(self, reply)

    def on_read(self: BindMachine, truth: PodTruth | None) -> Action:
        self.is_unknown = False
        return genuine(self, truth)

    reply_before = BindMachine.on_reply
    put(BindMachine, "on_reply", on_reply)
    put(BindMachine, "on_read", on_read)


@defect
def uid_not_sent() -> None:
    """A binding has no uid, so that an old decision can bind a new pod of the same name."""
    genuine = ApiBinder.post

    async def post(self: ApiBinder, request: Any, *, timeout_s: float) -> BindReply:
        return await genuine(
            self, type(request)(request.namespace, request.name, "", request.node), timeout_s=timeout_s
        )

    put(ApiBinder, "post", post)


@defect
def refused_pods_dropped() -> None:
    """A pod whose bind was refused is not requeued."""

    def careless(self: BindOutcomes, bind: Any, status: Any) -> None:
        self._in_progress.done()
        bind.seen.cycle.give_up(bind.placed, status)

    put(BindOutcomes, "on_refused", careless)


@defect
def conflicted_pods_dropped() -> None:
    """A conflict is counted, and its pod is not requeued."""
    genuine = ResultApplier.apply

    def settle(self: ResultApplier, entry: Any, result: Any, seconds: float, cycle: Any, **more: Any) -> None:
        if not isinstance(result, Conflicted):
            genuine(self, entry, result, seconds, cycle, **more)

    put(ResultApplier, "apply", settle)


@defect
def deleted_pods_decided() -> None:
    """A pod that was deleted while its cycle waited is still placed."""
    genuine = PodQueue.where

    def where(self: PodQueue, uid: str) -> Any:
        place = genuine(self, uid)
        return None if place is not None and place.value == "leaving" else place

    put(PodQueue, "where", where)


# -- Reserve and Permit ------------------------------------------------------------------------------------------------


@defect
def no_forget_after_failure() -> None:
    """A failure after commit leaves the assumption in place."""
    genuine = CommitStep.give_up

    def leaky(self: CommitStep, placed: Any, status: Any) -> Any:
        keep = self._cache.forget
        self._cache.forget = lambda uid: False  # type: ignore[method-assign]
        try:
            return genuine(self, placed, status)
        finally:
            self._cache.forget = keep  # type: ignore[method-assign]

    put(CommitStep, "give_up", leaky)


@defect
def no_unreserve() -> None:
    """A failure after commit does not call Unreserve."""
    genuine = CommitStep.give_up

    def silent(self: CommitStep, placed: Any, status: Any) -> Any:
        plugins = self._plugins
        self._plugins = _Without(plugins)  # type: ignore[assignment]
        try:
            return genuine(self, placed, status)
        finally:
            self._plugins = plugins

    put(CommitStep, "give_up", silent)


class _Without:
    reserve: tuple[Any, ...] = ()

    def __init__(self, plugins: Any) -> None:
        self._plugins = plugins

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plugins, name)


@defect
def permit_never_times_out() -> None:
    """A pod that no plugin allows is held forever."""
    put(WaitingPodTable, "expire", lambda self, now_s: 0)


@defect
def permit_timeout_forgets_the_pod() -> None:
    """A pod that timed out at Permit is removed from the table without a rejection."""

    def expire(self: WaitingPodTable, now_s: float) -> int:
        late = [uid for uid, entry in self._waiting.items() if min(entry.deadlines.values()) <= now_s]
        for uid in late:
            del self._waiting[uid]
        return len(late)

    put(WaitingPodTable, "expire", expire)


# -- queues ------------------------------------------------------------------------------------------------------------


@defect
def gates_open() -> None:
    """Scheduling gates are ignored."""
    genuine = Gates.ask

    def open_gates(self: Gates, pod: Any, first: str = "") -> Any:
        genuine(self, pod, first)
        return SUCCESS

    put(Gates, "ask", open_gates)


@defect
def events_in_flight_lost() -> None:
    """Events during an attempt are not recorded."""
    put(EventsInFlight, "record", lambda self, event, old, new, *, is_of_interest: None)


@defect
def events_in_flight_kept() -> None:
    """Events of attempts that ended are kept forever."""
    put(EventsInFlight, "_trim", lambda self: None)


@defect
def backoff_never_ends() -> None:
    """Pods that back off after an error stay there."""
    put(BackoffPods, "pop_expired", lambda self, now_s: None)


@defect
def queue_never_flushed() -> None:
    """The timer of the queue does nothing: no backoff ends."""
    put(PodQueue, "flush", lambda self, now_s: Moved())
    put(EntryStates, "release_backoff", lambda self, now_s: 0)


@defect
def own_updates_lost() -> None:
    """An update of a pending pod (a removed gate, smaller requests) does not requeue it."""
    put(RequeueJudge, "after_update", lambda self, entry, event, known: Requeue.SKIP)


@defect
def equal_pods_are_not_tried_in_turn() -> None:
    """Of equal pods only the first is tried in freed room, although the next one would fit, too."""
    put(Representatives, "pass_on", lambda self, entry: setattr(entry, "represents", None))


@defect
def freed_room_requeues_nothing() -> None:
    """The deletion of a pod does not requeue pods that wait for room."""
    put(PodQueue, "on_event", lambda self, event, old, new, now_s, only=EVERY_POD: Moved())


@defect
def refused_pods_never_quarantined() -> None:
    """Pods that the API server always refuses are tried forever."""
    put(Entry, "note_refusal", lambda self, words: False)


@defect
def quarantine_never_ends() -> None:
    """No event requeues pods quarantined after refusals of the API server."""
    put(ServerRefusals, "events_to_register", lambda self: ())


@defect
def quarantine_ignores_namespaces() -> None:
    """A quarantined pod is requeued by its own update, and not by one of its namespace."""
    put(quarantine, "_is_its_namespace", lambda pod, old, new: Hint.SKIP)


# -- what the watch says -----------------------------------------------------------------------------------------------


@defect
def no_synthetic_delete() -> None:
    """Objects deleted while no watch was open are kept forever."""
    put(KnownObjects, "end_replace", lambda self, version, now_s: [])
    put(Audit, "once", _no_audit)


@defect
def version_guard_off() -> None:
    """Older objects are applied over newer ones."""

    def gullible(self: KnownObjects, key: str, uid: str, version: str) -> Observation:
        self._known[key] = known_objects._Known(uid, version, self._pass_number)
        return Observation.UPSERT

    put(KnownObjects, "observe", gullible)


@defect
def tombstones_off() -> None:
    """A deleted pod returns when an older event of it is delivered again."""
    put(KnownObjects, "_was_deleted", lambda self, uid, version: False)


@defect
def deletions_ignored() -> None:
    """Deleted pods stay in the cache and in the queue."""
    put(PodIngest, "delete", lambda self, key, raw: None)


@defect
def deleted_nodes_stay_usable() -> None:
    """A deleted node's row stays usable."""
    put(NodeIngest, "delete", lambda self, key, raw: None)


@defect
def foreign_binds_ignored() -> None:
    """Pods that other clients bound are not counted."""
    genuine = PodIngest._placed

    def placed(self: PodIngest, key: str, pod: Any, raw: Any) -> None:
        if self._cache.placed(pod.uid) is not None:
            genuine(self, key, pod, raw)

    put(PodIngest, "_placed", placed)


@defect
def audit_off() -> None:
    """The cache is never compared with the API server."""
    put(Audit, "once", _no_audit)


async def _no_audit(self: Audit, sides: object = None) -> list[Any]:
    await asyncio.sleep(0)
    return []


@defect
def audit_repairs_nothing() -> None:
    """The audit finds lost events, and requests no new list."""
    put(Reflector, "request_relist", lambda self: None)

    async def relist(self: Reflector) -> None:
        await asyncio.sleep(0)

    put(Reflector, "relist", relist)


# -- leadership --------------------------------------------------------------------------------------------------------


@defect
def lease_ignored() -> None:
    """Every process binds, whether it leads or not."""
    put(LeaseTerm, "may_bind", lambda self: True)
    put(LeaseTerm, "may_bind_in_s", lambda self: 0.0)

    genuine = Leases.holder_of

    def held(self: Leases, domain: str) -> Any:
        found = genuine(self, domain)
        for event in self._held.values():
            event.set()
        return found

    put(Leases, "holder_of", held)


@defect
def lease_not_checked_before_bind() -> None:
    """A process that has led binds what it has decided, however late."""
    put(LeaseTerm, "may_bind", lambda self: self.state is LeaseState.LEADING)


@defect
def expired_lease_not_waited_for() -> None:
    """A new leader binds at once, though binds of the last leader may still be in flight."""
    genuine = LeaseTerm.begin

    def begin(self: LeaseTerm, *, after_expiry: bool, started: float) -> None:
        genuine(self, after_expiry=False, started=started)

    put(LeaseTerm, "begin", begin)


@defect
def no_list_before_leading() -> None:
    """A new leader trusts its watch, which may lag behind the last leader's binds."""

    async def believe(self: ClusterLists, since_s: float) -> None:
        del self, since_s

    put(ClusterLists, "see_all_binds_before", believe)


@defect
def lease_released_too_early() -> None:
    """SIGTERM releases the lease at once, with binds in flight."""
    put(DomainWorker, "is_drained", property(lambda self: True))


@defect
def stop_never_ends() -> None:
    """SIGTERM waits forever."""

    async def drain(self: Program) -> None:
        await asyncio.Event().wait()

    put(Program, "_drain", drain)


# -- filters and promises ----------------------------------------------------------------------------------------------


def _passes(plugin: type[Any]) -> None:
    put(plugin, "filter", lambda self, cycle, pod, rows: np.zeros(len(rows), np.uint8))


@defect
def ports_ignored() -> None:
    """Two pods get one port of a host."""
    _passes(NodePorts)


@defect
def cordons_ignored() -> None:
    """Pods are placed on cordoned nodes."""
    _passes(NodeUnschedulable)


@defect
def selectors_ignored() -> None:
    """Node selectors are ignored."""
    _passes(NodeAffinity)


@defect
def spread_ignored() -> None:
    """Hard spreading is ignored."""
    _passes(PodTopologySpread)


@defect
def nominated_room_given_away() -> None:
    """The nominated node of a preemptor can be used by any pod."""
    put(NominatedPodsFilter, "blocked", lambda self, pod_class, pod, attempt, *, everywhere=False: {})


@defect
def victims_room_free_at_once() -> None:
    """A pod that is being deleted counts as deleted."""
    genuine = PodIngest.upsert

    def upsert(self: PodIngest, key: str, raw: Any) -> None:
        genuine(self, key, raw)
        for entry in list(self._cache):
            if entry.pod.key == key and entry.pod.is_deleting:
                self._cache.remove(entry.pod.uid)

    put(PodIngest, "upsert", upsert)


@defect
def equals_preempted() -> None:
    """Pods are evicted for pods of equal priority."""
    genuine = LowerPriority.__init__

    def begin(self: LowerPriority, priority: int, budgets: Any) -> None:
        genuine(self, priority + 1, budgets)

    put(LowerPriority, "__init__", begin)


@defect
def preemptors_not_held() -> None:
    """A pod is tried again, and preempts again, while its victims are being evicted."""
    put(DefaultPreemption, "pre_enqueue", lambda self, pod: SUCCESS)


@defect
def budgets_ignored() -> None:
    """PodDisruptionBudgets are ignored."""
    put(DisruptionBudgets, "violating", lambda self, pods, victims: np.zeros_like(victims))


class _Leading:
    """A domain that is sure of its lease."""

    def __init__(self, home: Any) -> None:
        self._home = home
        self.lease = self

    def may_bind(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._home, name)


@defect
def lease_not_checked_before_deletion() -> None:
    """A process that led when a preemption was decided deletes the victims, even if another one leads by then."""
    genuine = Preemptor._send_with_retries

    async def sent(self: Preemptor, job: Any, send: Any, **how: Any) -> Any:
        return await genuine(self, replace(job, home=_Leading(job.home)), send, **how)

    put(Preemptor, "_send_with_retries", sent)


@defect
def no_unreserve_after_permit() -> None:
    """A pod that timed out at Permit is forgotten without a call of Unreserve."""
    genuine = BindOutcomes.on_refused

    def abandon(self: BindOutcomes, bind: Any, status: Any) -> None:
        step = bind.seen.cycle._commit
        plugins = step._plugins
        if status.plugin == HoldSome.name:
            step._plugins = _Without(plugins)
        try:
            genuine(self, bind, status)
        finally:
            step._plugins = plugins

    put(BindOutcomes, "on_refused", abandon)


# -- volumes -----------------------------------------------------------------------------------------------------------


@defect
def volumes_not_waited_for() -> None:
    """PreBind writes the assumed volumes and does not wait for them."""

    async def hasty(self: VolumeBinder, pod: Any, pod_volumes: Any, written: Any, timeout_s: float) -> None:
        del self, pod, pod_volumes, written, timeout_s

    put(VolumeBinder, "_wait", hasty)


@defect
def volumes_never_assumed() -> None:
    """The commit assumes no volumes, so that PreBind has nothing to do."""
    put(AssumedVolumes, "hold", lambda self, uid, pod_volumes: None)


@defect
def volumes_assumed_twice() -> None:
    """A volume assumed for one pod may be assumed for the next one."""
    put(AssumedVolumes, "volumes", property(lambda self: {}))


@defect
def volumes_never_released() -> None:
    """Assumed volumes are never released."""
    put(AssumedVolumes, "release", lambda self, uid: None)


@defect
def volumes_reached_from_everywhere() -> None:
    """The node affinity of bound volumes is ignored."""
    put(RowMasks, "of_volume", lambda self, nodes, volume: None)
    put(RowMasks, "affine", lambda self, nodes, selector: np.ones(len(nodes.taint_set), np.bool_))


# -- pods that relate to each other ------------------------------------------------------------------------------------


@defect
def pod_counts_never_change() -> None:
    """Results that depend on pod counts are computed once per class and never updated."""
    put(InterPodAffinity, "cache_key", lambda self, cycle, pod: None if self.sign(pod) == () else "still")


@defect
def others_terms_ignored() -> None:
    """The anti-affinity of existing pods is ignored."""
    put(PodDemands, "affinity_entry", lambda self, *asker: AffinityIndexEntry(IncomingPod(*asker), 0))


@defect
def deleted_pods_counted() -> None:
    """A deleted pod stays in the counts."""
    account = PodCounts.account
    put(PodCounts, "account", lambda self, row, pod, sign: account(self, row, pod, sign) if sign > 0 else None)
