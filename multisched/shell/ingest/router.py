"""Finds the domain of a pod, and passes events to the queues of domains.

Owns the table of domains. The event of a node goes to the domains that may use the node or count its pods. If a changed node
joins a domain (by its labels, a loan, or because it is no longer malformed), that domain gets a node-add event; if it leaves,
a node-delete event. For all other domains the node is a distant node, and a pod on it a distant pod. Synchronous; called by
ingest and by the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

from msgspec.structs import replace

from multisched.framework.events import (
    ASSIGNED_POD_DELETE,
    NODE_ADD,
    NODE_DELETE,
    ClusterEvent,
    EventObject,
    Resource,
)
from multisched.model.objects import Node, Pod
from multisched.queueing.entry import EVERY_POD, NOTHING_MOVED, Moved, ParkedPodFilter
from multisched.shell.domain import DomainWorker
from multisched.shell.ingest.cluster_changes import node_events
from multisched.state.domain_rows import DomainRows, Use


@cache
def _distant(event: ClusterEvent) -> ClusterEvent:
    """Returns the event for a domain that may not use the row. Cached: there are about a dozen events."""
    is_node = event.resource is Resource.NODE
    return replace(event, resource=Resource.DISTANT_NODE if is_node else Resource.DISTANT_POD)


class Router:
    """Routing of pods by schedulerName, and of events by row."""

    def __init__(self) -> None:
        self._workers: list[tuple[DomainWorker, DomainRows]] = []
        self._by_name: dict[str, DomainWorker] = {}
        self._label = ""
        """Label of the latest event that was passed to a queue."""

    def add(self, worker: DomainWorker, rows: DomainRows, scheduler_names: Iterable[str]) -> None:
        self._workers.append((worker, rows))
        for name in scheduler_names:
            self._by_name[name] = worker

    def worker_of(self, pod: Pod) -> DomainWorker | None:
        """Returns the domain that schedules the pod; None for a pod of another scheduler."""
        return self._by_name.get(pod.spec.scheduler_name)

    def names_of(self, worker: DomainWorker) -> frozenset[str]:
        """Returns the schedulerNames that the domain serves."""
        return frozenset(name for name, known in self._by_name.items() if known is worker)

    def workers(self) -> list[DomainWorker]:
        return [worker for worker, _ in self._workers]

    def rows_of(self, worker: DomainWorker) -> DomainRows:
        """Returns the rows of the domain."""
        return next(rows for known, rows in self._workers if known is worker)

    def uses_of(self, row: int | None) -> Sequence[Use]:
        """Returns, per domain, how it uses the row."""
        return [Use.NONE if row is None else rows.use_of(row) for _, rows in self._workers]

    # -- events ----------------------------------------------------------------------------------------------------

    def label_of(self, handle: Callable[[], object]) -> str:
        """Calls `handle`. Returns the label of the last event that it passed to a queue; empty if none."""
        self._label = ""
        handle()
        return self._label

    def notify(
        self,
        event: ClusterEvent,
        old: EventObject,
        new: EventObject,
        now_s: float,
        only: ParkedPodFilter = EVERY_POD,
    ) -> None:
        """Passes an event to all domains; if wildcards exclude it, only to domains in which a plugin has registered it."""
        for worker, _ in self._workers:
            if event.is_in_wildcard or worker.queue.hints.is_of_interest(event):
                self._label = event.label
                if not worker.queue.awaits_events():
                    continue
                moved = worker.queue.on_event(event, old, new, now_s, only)
                self._wake(worker, moved)

    def notify_pod(self, event: ClusterEvent, old: Pod | None, new: Pod | None, row: int | None, now_s: float) -> None:
        """As `notify`, for a pod on this row. Domains that neither use nor count the row get the event of a distant pod."""
        self._label, distant = event.label, _distant(event)
        for worker, rows in self._workers:
            if worker.queue.awaits_events():
                is_near = row is not None and rows.use_of(row) is not Use.NONE
                self._wake(worker, worker.queue.on_event(event if is_near else distant, old, new, now_s))
            if event is ASSIGNED_POD_DELETE and old is not None and old.is_preempted:
                worker.nominations.retry_nominated(old.node)

    def gang_changed(self, key: str) -> None:
        """Handles a gang whose bound members or requirements changed."""
        for worker, _ in self._workers:
            worker.queue.gang_changed(key)
            worker.intake.wake()

    def notify_listeners(self, event: ClusterEvent, old: Pod | None, new: Pod | None, now_s: float) -> None:
        """As `notify`, but only to domains in which a plugin has registered the event. For frequent events, such as new pods."""
        self._label = event.label
        for worker, _ in self._workers:
            if worker.queue.hints.is_of_interest(event):
                self._wake(worker, worker.queue.on_event(event, old, new, now_s))

    def notify_node(
        self, before: Node | None, after: Node | None, used: Sequence[Use], uses: Sequence[Use], now_s: float
    ) -> None:
        """Passes the event of an added, updated or deleted node. `used`, `uses`: `uses_of` its row before and after."""
        changes = node_events(before, after) if before is not None and after is not None else ()
        distant = [NODE_ADD] if before is None else [NODE_DELETE] if after is None else changes
        for (worker, _), did, does in zip(self._workers, used, uses, strict=True):
            if did is Use.NONE or does is Use.NONE:
                self._notify_distant(worker, map(_distant, distant), before, after, now_s)
            if does > did:
                self._label = NODE_ADD.label
                self._wake(worker, worker.queue.on_event(NODE_ADD, None, after, now_s))
            elif did > does:
                self._label = NODE_DELETE.label
                self._wake(worker, worker.queue.on_event(NODE_DELETE, before, None, now_s))
                if does is Use.NONE and before is not None:
                    worker.nominations.retry_nominated(before.name)
            elif does:
                for event in changes:
                    self._label = event.label
                    self._wake(worker, worker.queue.on_event(event, before, after, now_s))

    def _notify_distant(
        self,
        worker: DomainWorker,
        events: Iterable[ClusterEvent],
        before: Node | None,
        after: Node | None,
        now_s: float,
    ) -> None:
        """Passes events of a distant node to a domain if a plugin has registered them, because the node's pods matter for affinity."""
        if not worker.queue.awaits_events():
            return
        for event in events:
            if worker.queue.hints.is_of_interest(event):
                self._label = event.label
                self._wake(worker, worker.queue.on_event(event, before, after, now_s))

    def notify_nomination_ended(self, pod: Pod, node: str, now_s: float) -> None:
        """Handles the end of a nomination like the deletion of a pod on the node.

        Only pods of lower or equal priority get the event, because pods of higher priority ignore the nomination (source: kube-scheduler
        1.36, eventhandlers.go). If a plugin ranks the nomination, its rank replaces the pod's priority.
        """
        pod = replace(pod, nominated_node=node)  # the nomination may never have been written to the pod
        home = self.worker_of(pod)
        rank = pod.spec.priority if home is None else home.nominations.rank_of(pod)
        for worker, _ in self._workers:
            moved = worker.queue.on_event(ASSIGNED_POD_DELETE, pod, None, now_s, ParkedPodFilter(priority_max=rank))
            self._wake(worker, moved)

    @staticmethod
    def _wake(worker: DomainWorker, moved: Moved) -> None:
        if moved is NOTHING_MOVED:
            return
        is_led_anew = bool(moved.gated) and worker.queue.gangs.has_changed  # a gate refused a lead
        if moved.active or moved.backoff or is_led_anew:
            worker.intake.wake()
        worker.failures.report_gated(moved)
