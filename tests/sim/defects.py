"""The defects themselves: each function breaks the program in one way that somebody could write, and says which.

They reach into private parts on purpose; a rename there shows here as an AttributeError, never as a defect that is silently
not there (`_put` asks for the name first).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec.structs import replace

from domains.gpu.device_row import DeviceRow
from multisched.client import known_objects, lease
from multisched.client.binder import ApiBinder
from multisched.client.known_objects import KnownObjects, Verdict
from multisched.client.lease import LeaseKeeper
from multisched.client.reflector import Reflector
from multisched.cycle import scheduling_cycle
from multisched.cycle.bind_outcome import Action, BindMachine, Outcome, Step
from multisched.cycle.promised_room import PromisedRoom
from multisched.cycle.scheduling_cycle import Conflicted, SchedulingCycle
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.events import Hint
from multisched.framework.pod_counts import PodCounts
from multisched.framework.pod_demands import Concern, PodDemands
from multisched.framework.ports import BindAnswer, BindReply, PodTruth
from multisched.framework.status import SUCCESS
from multisched.framework.term_columns import Asker
from multisched.plugins.default_preemption import DefaultPreemption, LowerPriority
from multisched.plugins.disruption_budgets import DisruptionBudgets
from multisched.plugins.inter_pod_affinity import InterPodAffinity
from multisched.plugins.node_affinity import NodeAffinity
from multisched.plugins.node_ports import NodePorts
from multisched.plugins.node_unschedulable import NodeUnschedulable
from multisched.plugins.pod_topology_spread import PodTopologySpread
from multisched.plugins.volume_binder import VolumeBinder
from multisched.plugins.volume_ledger import VolumeLedger
from multisched.plugins.volume_masks import RowMasks
from multisched.queueing import doomed
from multisched.queueing.backoff import BackoffPods
from multisched.queueing.doomed import ServerRefusals
from multisched.queueing.entry import Entry, Moved
from multisched.queueing.events_in_flight import EventsInFlight
from multisched.queueing.gating import Gates
from multisched.queueing.pod_queue import PodQueue
from multisched.shell.audit import Audit
from multisched.shell.domain import DomainWorker
from multisched.shell.ingest import NodeIngest, PodIngest
from multisched.shell.preemptor import Preemptor
from multisched.shell.program import Program
from multisched.shell.send_check import SendCheck
from multisched.state import cluster_cache, commit
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.state.ledgers import LedgerBook
from multisched.state.node_table import NodeTable
from multisched.testing.plugins import HoldSome

Defect = Callable[[], None]
DEFECTS: dict[str, Defect] = {}


def _defect(function: Defect) -> Defect:
    DEFECTS[function.__name__] = function
    return function


def _put(owner: object, name: str, replacement: object) -> None:
    getattr(owner, name)
    setattr(owner, name, replacement)


# -- commit and cache --------------------------------------------------------------------------------------------------


@_defect
def no_recheck_at_commit() -> None:
    """Commit believes what the cycle saw before it waited."""
    genuine = commit.commit

    def trusting(cache: Any, rows: Any, pod: Any, candidates: Any, still_fits: Any, conflicts: Any) -> Any:
        return genuine(cache, rows, pod, candidates, lambda pod, row: True, conflicts)

    _put(scheduling_cycle, "commit", trusting)


@_defect
def rows_not_checked_at_commit() -> None:
    """A row that has left the domain while the cycle waited (its loan ended) is still taken."""
    _put(DomainRows, "has", lambda self, row: True)
    _put(DomainRows, "stayed_since", lambda self, rows, generation: np.ones(len(rows), np.bool_))


@_defect
def forget_nothing() -> None:
    """A refused bind keeps its room."""
    _put(ClusterCache, "forget", lambda self, uid: False)


@_defect
def memory_not_counted() -> None:
    """Pods take their CPU from a row, and nothing else."""
    genuine = NodeTable._account

    def sloppy(self: NodeTable, row: int, pod: Any, sign: int) -> None:
        genuine(self, row, pod, sign)
        self._requested[self._resources["memory"], row] -= sign * pod.requests.get("memory", 0)

    _put(NodeTable, "_account", sloppy)


@_defect
def resized_pods_not_recounted() -> None:
    """A pod resized in place keeps what it took before."""
    _put(cluster_cache, "_differs", lambda before, after: False)


@_defect
def freed_rows_keep_their_use() -> None:
    """A deleted node's pods leave its row, their use does not: the next node in that row starts full."""

    def remove_node(self: ClusterCache, name: str) -> Any:
        row = self.nodes.row_of(name)
        if row is None:
            return None
        before = self.nodes._requested[:, row].copy()
        node = genuine(self, name)
        self.nodes._requested[:, row] = before
        return node

    genuine = ClusterCache.remove_node
    _put(ClusterCache, "remove_node", remove_node)


@_defect
def strays_forgotten() -> None:
    """Pods of a node that is not known take nothing when it comes back."""
    genuine = ClusterCache.set_node

    def set_node(self: ClusterCache, node: Any) -> Any:
        self._strays.pop(node.name, None)
        return genuine(self, node)

    _put(ClusterCache, "set_node", set_node)


@_defect
def ledgers_not_rolled_back() -> None:
    """What a failed pod held of a ledger stays held."""
    _put(LedgerBook, "give", lambda self, uid: None)


@_defect
def devices_given_twice() -> None:
    """Every pod gets the first devices, whoever holds them."""
    _put(DeviceRow, "choose", lambda self, demand: tuple(range(demand.count)))


# -- the bind and its outcome ------------------------------------------------------------------------------------------


def _on_reply(wanted: BindAnswer, action: Action) -> None:
    genuine = BindMachine.on_reply

    def on_reply(self: BindMachine, reply: BindReply) -> Action:
        return action if reply.answer is wanted else genuine(self, reply)

    _put(BindMachine, "on_reply", on_reply)


@_defect
def forget_by_timer() -> None:
    """A bind without an answer is given up, as if it had certainly not happened."""
    _on_reply(BindAnswer.UNKNOWN, Action(Step.END, outcome=Outcome.REFUSED, message="no answer"))


@_defect
def not_found_is_bound() -> None:
    """404 to a binding is taken for success."""
    _on_reply(BindAnswer.NOT_FOUND, Action(Step.END, outcome=Outcome.BOUND))


@_defect
def conflict_is_bound() -> None:
    """409 to a binding is taken for success without reading the pod."""
    _on_reply(BindAnswer.CONFLICT, Action(Step.END, outcome=Outcome.BOUND))


@_defect
def conflict_is_refusal() -> None:
    """409 to a binding is taken for a failure without reading the pod, which may be bound where we wanted it."""
    _on_reply(BindAnswer.CONFLICT, Action(Step.END, outcome=Outcome.REFUSED))


@_defect
def unknown_is_bound() -> None:
    """No answer is taken for success."""
    _on_reply(BindAnswer.UNKNOWN, Action(Step.END, outcome=Outcome.BOUND))


@_defect
def read_once_after_unknown() -> None:
    """After a lost answer one read decides, though the binding may still be on its way."""
    genuine = BindMachine.on_read

    def on_reply(self: BindMachine, reply: BindReply) -> Action:
        if reply.answer is BindAnswer.UNKNOWN:
            return Action(Step.READ)
        return reply_before(self, reply)

    def on_read(self: BindMachine, truth: PodTruth | None) -> Action:
        self.is_unknown = False
        return genuine(self, truth)

    reply_before = BindMachine.on_reply
    _put(BindMachine, "on_reply", on_reply)
    _put(BindMachine, "on_read", on_read)


@_defect
def uid_not_sent() -> None:
    """A binding names the pod only, so an old decision binds a new pod of that name."""
    genuine = ApiBinder.post

    async def post(self: ApiBinder, request: Any, *, timeout_s: float) -> BindReply:
        return await genuine(
            self, type(request)(request.namespace, request.name, "", request.node), timeout_s=timeout_s
        )

    _put(ApiBinder, "post", post)


@_defect
def refused_pods_dropped() -> None:
    """A pod whose bind was refused is not queued again."""

    def careless(self: DomainWorker, bind: Any, status: Any) -> None:
        self._leave_flight()
        self.cycle.give_up(bind.placed, status)

    _put(DomainWorker, "_abandon", careless)


@_defect
def conflicted_pods_dropped() -> None:
    """A conflict is counted, and its pod forgotten."""
    genuine = DomainWorker._settle

    def settle(self: DomainWorker, entry: Any, result: Any, seconds: float) -> None:
        if not isinstance(result, Conflicted):
            genuine(self, entry, result, seconds)

    _put(DomainWorker, "_settle", settle)


@_defect
def gone_pods_decided() -> None:
    """A pod that was deleted while its cycle waited is placed all the same."""
    genuine = PodQueue.where

    def where(self: PodQueue, uid: str) -> Any:
        place = genuine(self, uid)
        return None if place is not None and place.value == "leaving" else place

    _put(PodQueue, "where", where)


# -- Reserve and Permit ------------------------------------------------------------------------------------------------


@_defect
def no_forget_after_failure() -> None:
    """A failure after commit leaves the assumption in place."""
    genuine = SchedulingCycle.give_up

    def leaky(self: SchedulingCycle, placed: Any, status: Any) -> Any:
        keep = self._cache.forget
        self._cache.forget = lambda uid: False  # type: ignore[method-assign]
        try:
            return genuine(self, placed, status)
        finally:
            self._cache.forget = keep  # type: ignore[method-assign]

    _put(SchedulingCycle, "give_up", leaky)


@_defect
def no_unreserve() -> None:
    """A failure after commit does not tell the Reserve plugins."""
    genuine = SchedulingCycle.give_up

    def silent(self: SchedulingCycle, placed: Any, status: Any) -> Any:
        plugins = self.plugins
        self.plugins = _Without(plugins)  # type: ignore[assignment]
        try:
            return genuine(self, placed, status)
        finally:
            self.plugins = plugins

    _put(SchedulingCycle, "give_up", silent)


class _Without:
    reserve: tuple[Any, ...] = ()

    def __init__(self, plugins: Any) -> None:
        self._plugins = plugins

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plugins, name)


@_defect
def permit_never_times_out() -> None:
    """A pod that nobody allows is held for ever."""
    _put(WaitingPodTable, "expire", lambda self, now_s: 0)


@_defect
def permit_forgets_who_waited() -> None:
    """A pod that timed out at Permit leaves the table, and nobody is told."""

    def expire(self: WaitingPodTable, now_s: float) -> int:
        late = [uid for uid, entry in self._waiting.items() if min(entry.deadlines.values()) <= now_s]
        for uid in late:
            del self._waiting[uid]
        return len(late)

    _put(WaitingPodTable, "expire", expire)


# -- queues ------------------------------------------------------------------------------------------------------------


@_defect
def gates_open() -> None:
    """Scheduling gates are not looked at."""
    genuine = Gates.ask

    def open_gates(self: Gates, pod: Any, first: str = "") -> Any:
        genuine(self, pod, first)
        return SUCCESS

    _put(Gates, "ask", open_gates)


@_defect
def events_in_flight_lost() -> None:
    """What happens while a pod is being decided is not remembered."""
    _put(EventsInFlight, "record", lambda self, event, old, new, *, is_of_interest: None)


@_defect
def events_in_flight_kept() -> None:
    """Events of attempts that ended are never let go."""
    _put(EventsInFlight, "_trim", lambda self: None)


@_defect
def backoff_never_ends() -> None:
    """Pods that back off after an error stay there."""
    _put(BackoffPods, "pop_expired", lambda self, now_s: None)


@_defect
def queue_never_flushed() -> None:
    """The timer of the queue does nothing: no backoff ends by itself."""
    _put(PodQueue, "flush", lambda self, now_s: Moved())
    _put(PodQueue, "_release_backoff", lambda self: 0)


@_defect
def own_updates_lost() -> None:
    """A waiting pod's own change (a gate removed, a request made smaller) wakes it not."""
    _put(PodQueue, "_wake_by_itself", lambda self, entry, event, known: None)


@_defect
def freed_room_tells_nobody() -> None:
    """Pods that wait for room do not hear of deleted pods."""
    _put(PodQueue, "on_event", lambda self, event, old, new, now_s, **told: Moved())


@_defect
def refused_pods_never_set_aside() -> None:
    """What the API server always refuses is tried for ever."""
    _put(Entry, "note_refusal", lambda self, words: False)


@_defect
def set_aside_for_good() -> None:
    """No event brings back what was set aside for the API server's refusals."""
    _put(ServerRefusals, "events_to_register", lambda self: ())


@_defect
def set_aside_unheard_by_namespaces() -> None:
    """What was set aside comes back when it is changed itself, and not when its namespace is."""
    _put(doomed, "_is_its_namespace", lambda pod, old, new: Hint.SKIP)


# -- what the watch says -----------------------------------------------------------------------------------------------


@_defect
def no_synthetic_delete() -> None:
    """What vanished while nobody watched stays for ever."""
    _put(KnownObjects, "end_replace", lambda self, version, now_s: [])
    _put(Audit, "once", _no_audit)


@_defect
def version_guard_off() -> None:
    """Older objects are applied over newer ones."""

    def gullible(self: KnownObjects, key: str, uid: str, version: str) -> Verdict:
        self._known[key] = known_objects._Known(uid, version, self._pass_number)
        return Verdict.UPSERT

    _put(KnownObjects, "observe", gullible)


@_defect
def tombstones_off() -> None:
    """A deleted pod comes back when an older line of it is told again."""
    _put(KnownObjects, "_is_gone", lambda self, uid, version: False)


@_defect
def deletions_ignored() -> None:
    """Deleted pods keep their room and their place in the queue."""
    _put(PodIngest, "delete", lambda self, key, raw: None)


@_defect
def nodes_never_go() -> None:
    """A deleted node's row stays usable."""
    _put(NodeIngest, "delete", lambda self, key, raw: None)


@_defect
def foreign_binds_ignored() -> None:
    """Pods that others bound take nothing here."""
    genuine = PodIngest._placed

    def placed(self: PodIngest, pod: Any) -> None:
        if self._cache.placed(pod.uid) is not None:
            genuine(self, pod)

    _put(PodIngest, "_placed", placed)


@_defect
def audit_off() -> None:
    """Nobody ever compares the cache with the API server."""
    _put(Audit, "once", _no_audit)


async def _no_audit(self: Audit, sides: object = None) -> list[Any]:
    await asyncio.sleep(0)
    return []


@_defect
def audit_mends_nothing() -> None:
    """The audit finds what is lost, and asks for no new list."""
    _put(Reflector, "request_relist", lambda self: None)

    async def relist(self: Reflector) -> None:
        await asyncio.sleep(0)

    _put(Reflector, "relist", relist)


# -- leadership --------------------------------------------------------------------------------------------------------


@_defect
def lease_ignored() -> None:
    """Every process binds, whoever leads."""
    _put(LeaseKeeper, "may_bind", lambda self: True)
    _put(LeaseKeeper, "may_bind_in_s", lambda self: 0.0)

    genuine = Program._lease

    def held(self: Program, domain: str) -> Any:
        found = genuine(self, domain)
        for event in self._held.values():
            event.set()
        return found

    _put(Program, "_lease", held)


@_defect
def lease_not_checked_before_bind() -> None:
    """Who once led binds what it has decided, however late it is."""
    _put(LeaseKeeper, "may_bind", lambda self: self._state is lease.LeaseState.LEADING)


@_defect
def expired_lease_not_waited_for() -> None:
    """A new leader binds at once, though the last one's binds may still be on their way."""
    genuine = LeaseKeeper._lead

    def lead(self: LeaseKeeper, *, after_expiry: bool, started: float) -> None:
        genuine(self, after_expiry=False, started=started)

    _put(LeaseKeeper, "_lead", lead)


@_defect
def no_list_before_leading() -> None:
    """A new leader believes its watch, which may lag behind the last leader's binds."""

    async def believe(self: Program, since_s: float) -> None:
        del self, since_s

    _put(Program, "_see_all_binds_before", believe)


@_defect
def lease_given_back_too_early() -> None:
    """SIGTERM gives the lease back at once, with binds on the wire."""
    _put(DomainWorker, "is_drained", property(lambda self: True))


@_defect
def stop_never_ends() -> None:
    """SIGTERM waits for what never comes."""

    async def drain(self: Program) -> None:
        await asyncio.Event().wait()

    _put(Program, "_drain", drain)


# -- filters and promises ----------------------------------------------------------------------------------------------


def _passes(plugin: type[Any]) -> None:
    _put(plugin, "filter", lambda self, cycle, pod, rows: np.zeros(len(rows), np.uint8))


@_defect
def ports_not_looked_at() -> None:
    """Two pods get one port of a host."""
    _passes(NodePorts)


@_defect
def cordons_not_looked_at() -> None:
    """Cordoned nodes take pods."""
    _passes(NodeUnschedulable)


@_defect
def selectors_not_looked_at() -> None:
    """Pods go where their node selectors forbid it."""
    _passes(NodeAffinity)


@_defect
def spread_not_looked_at() -> None:
    """Pods that want to be level over zones are not."""
    _passes(PodTopologySpread)


@_defect
def promised_room_given_away() -> None:
    """What a preemptor was promised is anybody's."""
    _put(PromisedRoom, "held", lambda self, group, pod, attempt, *, everywhere=False: {})


@_defect
def victims_room_free_at_once() -> None:
    """A pod that is asked to go is taken for gone, while it ends."""
    genuine = PodIngest.upsert

    def upsert(self: PodIngest, key: str, raw: Any) -> None:
        genuine(self, key, raw)
        for entry in list(self._cache):
            if entry.pod.key == key and entry.pod.is_deleting:
                self._cache.remove(entry.pod.uid)

    _put(PodIngest, "upsert", upsert)


@_defect
def equals_preempted() -> None:
    """Pods make room for others that are no more urgent."""
    genuine = LowerPriority.__init__

    def begin(self: LowerPriority, priority: int, budgets: Any) -> None:
        genuine(self, priority + 1, budgets)

    _put(LowerPriority, "__init__", begin)


@_defect
def preemptors_not_held() -> None:
    """A pod is tried again, and preempts again, while its victims are being asked to go."""
    _put(DefaultPreemption, "pre_enqueue", lambda self, pod: SUCCESS)


@_defect
def budgets_ignored() -> None:
    """Pods under a budget go like all others."""
    _put(DisruptionBudgets, "violating", lambda self, pods, victims: np.zeros_like(victims))


class _Leading:
    """A domain that is sure of its lease."""

    def __init__(self, home: Any) -> None:
        self._home = home
        self.lease = self

    def may_bind(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._home, name)


@_defect
def lease_not_checked_before_deletion() -> None:
    """Who led when a preemption was decided deletes the victims, whoever leads by then."""
    genuine = Preemptor._sent

    async def sent(self: Preemptor, job: Any, send: Any) -> tuple[bool, str]:
        return await genuine(self, replace(job, home=_Leading(job.home)), send)

    _put(Preemptor, "_sent", sent)


@_defect
def no_unreserve_after_permit() -> None:
    """A pod whose time ran out at Permit is given up without telling the Reserve plugins."""
    genuine = DomainWorker._abandon

    def abandon(self: DomainWorker, bind: Any, status: Any) -> None:
        plugins = self.cycle.plugins
        if status.plugin == HoldSome.name:
            self.cycle.plugins = _Without(plugins)  # type: ignore[assignment]
        try:
            genuine(self, bind, status)
        finally:
            self.cycle.plugins = plugins

    _put(DomainWorker, "_abandon", abandon)


# -- volumes -----------------------------------------------------------------------------------------------------------


@_defect
def volumes_not_waited_for() -> None:
    """PreBind writes what was promised and lets the pod go at once."""

    async def hasty(self: VolumeBinder, pod: Any, promise: Any, written: Any, timeout_s: float) -> None:
        del self, pod, promise, written, timeout_s

    _put(VolumeBinder, "_wait", hasty)


@_defect
def volumes_promised_to_nobody() -> None:
    """Commit takes no volumes, so PreBind has nothing to do."""
    _put(VolumeLedger, "_hold", lambda self, uid, promise: None)


@_defect
def volumes_promised_twice() -> None:
    """What one pod was promised may be promised to the next."""
    _put(VolumeLedger, "volumes", property(lambda self: {}))


@_defect
def volumes_never_given_back() -> None:
    """What was promised stays promised, whatever becomes of the pod."""
    _put(VolumeLedger, "give", lambda self, uid: None)


@_defect
def volumes_reached_from_everywhere() -> None:
    """The node affinity of bound volumes is not looked at."""
    _put(RowMasks, "of_volume", lambda self, nodes, volume: None)
    _put(RowMasks, "affine", lambda self, nodes, selector: np.ones(len(nodes.taint_set), np.bool_))


# -- pods that relate to each other ------------------------------------------------------------------------------------


@_defect
def counts_stand_still() -> None:
    """What hangs on counts is asked once per class and kept, whoever comes or goes."""
    _put(InterPodAffinity, "stamp", lambda self, cycle, pod: None if self.sign(pod) == () else "still")


@_defect
def others_terms_not_heeded() -> None:
    """A pod goes by its own anti-affinity, and not by that of pods that are there."""
    _put(PodDemands, "concern", lambda self, *asker: Concern(Asker(*asker), 0))


@_defect
def gone_pods_counted() -> None:
    """A pod that goes stays in the counts."""
    account = PodCounts.account
    _put(PodCounts, "account", lambda self, row, pod, sign: account(self, row, pod, sign) if sign > 0 else None)


# -- what is mended since issue 14 -------------------------------------------------------------------------------------


@_defect
def unsent_binds_not_looked_at_again() -> None:
    """A bind goes out though its node was cordoned, tainted, shrank or left the domain meanwhile."""
    _put(SendCheck, "refusal", lambda self, placed, seen: None)


@_defect
def assumed_pods_keep_their_size() -> None:
    """A pod that is resized on its way to a node counts as it was decided."""
    _put(ClusterCache, "revise", lambda self, pod: True)


@_defect
def edits_take_devices_back() -> None:
    """What a running pod holds of its devices goes by its annotations as they are now."""
    _put(ClusterCache, "_settled", lambda self, before, after: after)


@_defect
def false_answers_believed() -> None:
    """Nobody asks about a pod that counts as bound by an answer alone."""

    async def believe(self: Audit, now: Any, began_s: float) -> None:
        del self, now, began_s

    _put(Audit, "_check_answers", believe)


@_defect
def joined_rows_used_at_once() -> None:
    """A node that joins a domain is used though the binds of its last domain may be under way."""
    genuine = DomainRows.set_node

    def set_node(self: DomainRows, row: int, node: Any) -> None:
        self.may_join = lambda node: True
        genuine(self, row, node)

    _put(DomainRows, "set_node", set_node)


@_defect
def restored_history_forgets_first() -> None:
    """Where history went back, all that is known goes before the new list is there."""
    genuine = Reflector._may_use

    def may_use(self: Reflector, version: str) -> bool:
        is_used = genuine(self, version)
        if is_used and self._history.must_start_over(self._path):
            self._delete_unseen(list(self._known._known))
            self._known._known.clear()
        return is_used

    _put(Reflector, "_may_use", may_use)


@_defect
def bad_text_ends_the_process() -> None:
    """An object that is not UTF-8 raises where it is read."""
    genuine = PodIngest.upsert

    def upsert(self: PodIngest, key: str, raw: Any) -> None:
        bytes(raw).decode()
        genuine(self, key, raw)

    _put(PodIngest, "upsert", upsert)


@_defect
def roles_left_out_of_the_signature() -> None:
    """Pods of one spec are one class to InterPodAffinity, whether its own terms are about them or not."""
    _put(InterPodAffinity, "sign", lambda self, pod: id(pod.spec.pod_affinity))


@_defect
def going_pods_spread_against() -> None:
    """A pod that is deleted on its way to a node is counted as one that stays."""
    genuine = ClusterCache.revise

    def revise(self: ClusterCache, pod: Any) -> bool:
        return True if pod.is_deleting else genuine(self, pod)

    _put(ClusterCache, "revise", revise)
