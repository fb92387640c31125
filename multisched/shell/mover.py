"""Moves pods of one domain for the background tasks of its plugins. Implements `framework.moving.Mover`.

Owns the reservation for the replacement of the pod that is moved. Nothing is written without the lease. Capacity is reserved
only on a node that passes the domain's filters for the pod. When a reservation ends unused, pods that wait for capacity are
requeued. No reservation outlives the background task. Cluster state comes from the cache, and from a consistent read if an
eviction depends on it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from multisched.client.binder import READ_TIMEOUT_S
from multisched.framework.moving import DocumentAnswer, DocumentReply, DocumentStore, EvictAnswer, Evictor, EvictReply
from multisched.framework.ports import (
    Binder,
    Clock,
    Event,
    EventSink,
    ObjectRef,
    PodWriter,
    WriteAnswer,
    WriteReply,
)
from multisched.framework.repair import RepairPlan, RepairRequest
from multisched.model.objects import Pod
from multisched.shell.domain import DomainWorker
from multisched.shell.ingest.pods_and_nodes import PodIngest
from multisched.shell.ingest.router import Router
from multisched.shell.removals import Removals
from multisched.state.cluster_cache import ClusterCache
from multisched.state.reservations import Reservations, stand_in_of

NOT_LEADING = "this process does not lead the domain"


class MoverView(msgspec.Struct, frozen=True):
    """The parts of the program that a mover reads."""

    cache: ClusterCache
    pods: PodIngest
    reservations: Reservations
    removals: Removals
    router: Router
    clock: Clock


class MoverPorts(msgspec.Struct, frozen=True):
    """The ports through which a mover acts."""

    binder: Binder
    evictor: Evictor
    pods: PodWriter
    document: DocumentStore
    events: EventSink
    plan: Callable[[RepairRequest], Awaitable[RepairPlan]]
    is_closing: Callable[[], bool]
    reporter: str
    """The schedulerName that events report as their source."""


class DomainMover:
    """Mover of one domain's pods, for one background task at a time."""

    def __init__(self, worker: DomainWorker, view: MoverView, ports: MoverPorts) -> None:
        self._worker = worker
        self._view = view
        self._ports = ports
        self._held: tuple[str, Pod] | None = None
        """uid of the pod whose replacement has a reservation, and the stand-in pod that holds it in the nominator."""
        self._victims: dict[str, Pod] = {}
        """The pods whose evictions are in flight, by uid."""
        self.write_timeout_s = worker.write_timeout_s

    def may_act(self) -> bool:
        return self._worker.is_leading and not self._ports.is_closing() and self._worker.lease.may_bind()

    async def plan(self, request: RepairRequest) -> RepairPlan:
        return await self._ports.plan(msgspec.structs.replace(request, domain=self._worker.name))

    # -- cluster state ---------------------------------------------------------------------------------------------

    def placed_pod(self, uid: str) -> Pod | None:
        entry = self._view.cache.placed(uid)
        if entry is None or self._view.cache.is_assumed(uid):
            return None
        return entry.pod

    def peers(self, namespace: str, owner: str) -> Sequence[Pod]:
        """Scans all pods: about 10 ms for 100,000. Also compares the namespace, because the creator of a pod may name any owner in
        it, even one in another namespace."""
        placed = (entry.pod for entry in self._view.cache)
        waiting = (one for uid, one in self._view.pods.pending.items() if self._view.cache.placed(uid) is None)
        return [
            one
            for found in (placed, waiting)
            for one in found
            if one.owner is not None and one.owner.uid == owner and one.namespace == namespace
        ]

    def budget_refusal(self, pod: Pod) -> str:
        victims = [one for one in self._view.removals.pods() if one.namespace == pod.namespace and one.uid != pod.uid]
        for budget in self._view.cache.objects.disruption_budgets(pod.namespace):
            if budget.selector is None or not budget.selector.matches(pod.labels):
                continue
            used = sum(budget.selector.matches(one.labels) and one.name not in budget.disrupted_pods for one in victims)
            if budget.disruptions_allowed <= used:
                return f"PodDisruptionBudget {budget.key} allows no disruption"
        return ""

    async def still_exists(self, pod: ObjectRef) -> bool:
        truth = await self._ports.binder.read(pod.namespace, pod.name, timeout_s=READ_TIMEOUT_S)
        exists = truth is not None and truth.uid == pod.uid and not truth.is_deleting and bool(truth.node)
        if not exists:
            self._view.removals.sent(pod.uid)
        self._stop_removal(pod.uid)
        return exists

    def has_node(self, name: str) -> bool:
        row = self._view.cache.nodes.row_of(name)
        return row is not None and self._view.router.rows_of(self._worker).has(row)

    # -- the reservation -------------------------------------------------------------------------------------------

    def reserve(self, uid: str, like: Pod, node: str, *, on_assigned: Callable[[], None]) -> str:
        self.release()
        if not self.may_act():
            return NOT_LEADING
        stand_in = stand_in_of(like, node)
        refusal = self._worker.cycle.refusal_of_move(like if like.uid == uid else None, stand_in, node)
        if not refusal:
            self._view.reservations.reserve(uid, stand_in, node, on_assigned)
            self._held = uid, stand_in
        return refusal

    def assign_to_replacement(self, known: frozenset[str]) -> None:
        if self._held is None:
            return
        reservations, placed = self._view.reservations, self._view.cache.placed
        reservations.assign_to_replacement(self._held[0], known)
        waiting = [pod for pod in self._view.pods.pending.values() if placed(pod.uid) is None]
        if any(reservations.offer(pod) for pod in waiting):  # the replacement may already be pending after a restart
            self._worker.intake.wake()

    def replacement(self) -> str:
        return "" if self._held is None else self._view.reservations.replacement(self._held[0])

    def is_reserved(self) -> bool:
        return self._held is not None and self._view.reservations.is_reserved(self._held[0])

    def release(self) -> None:
        for uid in list(self._victims):
            self._stop_removal(uid)
        if self._held is None:
            return
        (uid, stand_in), is_free = self._held, self.is_reserved()
        self._held = None
        self._view.reservations.release(uid)
        if is_free:
            self._view.router.notify_nomination_ended(stand_in, stand_in.nominated_node, self._view.clock.monotonic())

    # -- writes ----------------------------------------------------------------------------------------------------

    async def evict(self, pod: ObjectRef, *, timeout_s: float) -> EvictReply:
        return await self._evict(pod, timeout_s, is_with_gang=False)

    async def evict_member(self, pod: ObjectRef, *, timeout_s: float) -> EvictReply:
        return await self._evict(pod, timeout_s, is_with_gang=True)

    async def _evict(self, pod: ObjectRef, timeout_s: float, *, is_with_gang: bool) -> EvictReply:
        if not self.may_act():
            return EvictReply(EvictAnswer.NOT_NOW, message=NOT_LEADING)
        victim = self.placed_pod(pod.uid)
        is_kept = victim is not None and not victim.is_deleting
        refusal = self._removal_refusal(victim, is_with_gang=is_with_gang) if victim is not None and is_kept else ""
        if refusal:
            return EvictReply(EvictAnswer.NOT_NOW, message=refusal)
        self._stop_removal(pod.uid)
        if victim is not None:
            self._victims[pod.uid] = victim
            self._view.removals.decide(self, (victim,))
        reply = await self._ports.evictor.evict(pod, timeout_s=timeout_s)
        if reply.answer in (EvictAnswer.EVICTED, EvictAnswer.GONE):
            self._view.removals.sent(pod.uid)
        if reply.answer is not EvictAnswer.UNKNOWN:  # after UNKNOWN, `still_exists` finds the outcome
            self._stop_removal(pod.uid)
        return reply

    async def remove(self, pod: ObjectRef, why: str, *, grace_s: int | None, timeout_s: float) -> WriteReply:
        if not self.may_act():
            return WriteReply(WriteAnswer.THROTTLED, message=NOT_LEADING)
        reply = await self._ports.pods.mark_victim(pod, why, timeout_s=timeout_s)
        if reply.answer is WriteAnswer.DONE:
            if not self.may_act():
                return WriteReply(WriteAnswer.THROTTLED, message=NOT_LEADING)
            reply = await self._ports.pods.delete(pod, timeout_s=timeout_s, grace_s=grace_s)
        if reply.answer in (WriteAnswer.DONE, WriteAnswer.GONE):
            self._view.removals.sent(pod.uid)
        return reply

    def _removal_refusal(self, pod: Pod, *, is_with_gang: bool) -> str:
        """Returns why the pod must not be evicted now, given other plans in progress; empty if it may be evicted."""
        if pod.is_victim and pod.uid not in self._victims:
            return "the pod is being removed for another pod"
        gangs = self._view.cache.gangs
        key = gangs.key_of(pod.uid)
        if key is not None and not is_with_gang and not gangs.surplus(key):
            return f"gang {key} would fall below its minimum"
        return self.budget_refusal(pod)

    def _stop_removal(self, uid: str) -> None:
        """Unmarks a victim whose eviction has ended."""
        victim = self._victims.pop(uid, None)
        if victim is not None:
            self._view.removals.release(self, (victim,))

    async def annotate(self, pod: ObjectRef, annotations: Mapping[str, str | None], *, timeout_s: float) -> WriteReply:
        if not self.may_act():
            return WriteReply(WriteAnswer.THROTTLED, message=NOT_LEADING)
        return await self._ports.pods.annotate(pod, annotations, timeout_s=timeout_s)

    async def read(self) -> bytes | None:
        return await self._ports.document.read()

    async def write(self, document: bytes) -> DocumentReply:
        if not self.may_act():
            return DocumentReply(DocumentAnswer.UNKNOWN, NOT_LEADING)
        return await self._ports.document.write(document)

    def record_event(
        self, kind: str, regarding: ObjectRef, reason: str, note: str, *, action: str = "Repairing"
    ) -> None:
        self._ports.events.record(Event(regarding, kind, reason, action, note, self._ports.reporter))
