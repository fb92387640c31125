"""Who waits though nothing is in the way: pods that were not woken, and ready work beside a loop that sleeps.

A hint that wrongly says no leaves its pod parked until another event comes, or the flush after minutes. The pod is
bound late, and nobody would notice. So the profile's own filters are asked anew about what is parked, beside what is
promised and what ledgers hold. They are asked about one node when something changes there, about all now and then.
Whoever they let go should have been woken by what made it so. (That the filters are right, `FeasibleNodes` and
`ClassChecker` look at.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Final

from multisched.cycle.classes.cache import ClassCache
from multisched.framework.events import ClusterEvent, EventObject, Resource
from multisched.framework.gangs import GANG_PLUGIN
from multisched.framework.points import EnqueueExtensions
from multisched.framework.registry import implementing
from multisched.framework.runner import PluginFailure
from multisched.model.objects import Node, Pod
from multisched.queueing.entry import EVERY_POD, Moved, ParkedPodFilter, QueueEntry
from multisched.queueing.parked_pods import class_of
from multisched.queueing.transitions import QueueState
from multisched.shell.domain import DomainWorker
from multisched.shell.program import Program
from multisched.state.cluster_cache import PodState
from tests.kit.checkers.process.gang_fit import GangFit
from tests.kit.checkers.reference_rules import matches_node_affinity

LOOKS: Final = 6
"""A pod is asked about at every sixth look in a row that finds it where it was."""
ASKED_MAX: Final = 4
"""Pods of one domain that are asked about at one look."""
PICKED_UP_MAX_S: Final = 0.03
"""Work that is ready is taken up in less; the timer that looks for what was left lying comes every quarter of a second."""
LATE_S: Final = 1.0
GATES: Final = "SchedulingGates"
GPU_SHARE: Final = "GpuShare"
RELATING: Final = frozenset({"InterPodAffinity", "PodTopologySpread"})
"""Plugins by which a change on one node can make another one feasible."""
_PARKED: Final = (QueueState.UNSCHEDULABLE, QueueState.GATED)


class RequeueChecker:
    """Of one domain in one process. `is_steady`: no plugin was drawn that fails or refuses by itself."""

    def __init__(
        self,
        program: Program,
        worker: DomainWorker,
        complain: Callable[[str], None],
        is_paused: Callable[[], bool],
        gangs: GangFit | None,
        *,
        is_steady: bool,
    ) -> None:
        """`gangs`: None where there are none, or not all is steady."""
        self._program = program
        self._worker = worker
        self._complain = complain
        self._is_paused = is_paused
        self._gangs = gangs
        self._is_steady = is_steady
        self._on_event = worker.queue.on_event
        worker.queue.on_event = self.on_event  # type: ignore[method-assign]
        self._changed: set[str] = set()
        """Names of nodes on which something has happened in this step."""
        self._are_relations_changed = False
        self._looks: dict[str, tuple[float, int]] = {}
        """uid -> since when it is where it is, and how often it was found there."""
        self._hinting = frozenset[str]()
        """Plugins whose refusals depend on what is known here, and that say which events help."""
        self._followed_s = 0.0
        """When the configuration last changed: by a shorter flush pods may be due at once."""
        self.follow()

    def follow(self) -> None:
        """The profile may be another one now."""
        self._followed_s, plugins = asyncio.get_running_loop().time(), self._worker.plugins
        hinting = implementing((*plugins.pre_filter, *plugins.filter), EnqueueExtensions)
        self._hinting = frozenset(p.name for p in hinting) - plugins.remote_names

    # -- what has just happened ------------------------------------------------------------------------------------

    def on_event(
        self, event: ClusterEvent, old: EventObject, new: EventObject, now_s: float, only: ParkedPodFilter = EVERY_POD
    ) -> Moved:
        """Stands before `PodQueue.on_event`: once all events of this step have passed, nobody waits whom the node takes."""
        moved = self._on_event(event, old, new, now_s, only)
        self.on_node_freed(_node_of(event, old, new))
        if isinstance(new if old is None else old, Node | Pod):
            self._look_at_relations()
        return moved

    def on_node_freed(self, name: str) -> None:
        """A node that may take more than before; empty for none."""
        if name and self._is_steady and self._worker.is_leading:
            if not self._changed:
                asyncio.get_running_loop().call_soon(self._check_changed)
            self._changed.add(name)

    def _look_at_relations(self) -> None:
        """A pod or node changed: pods that are refused by relations may fit on any node now."""
        if self._is_steady and self._worker.is_leading and not self._are_relations_changed:
            self._are_relations_changed = True
            asyncio.get_running_loop().call_soon(self._check_relations)

    def _check_relations(self) -> None:
        self._are_relations_changed = False
        queue = self._worker.queue
        related = [
            uid
            for uid, kept in queue._entries.items()
            if kept.state is QueueState.UNSCHEDULABLE and not RELATING.isdisjoint(kept.rejectors | kept.pending)
        ]
        entries = (entry for uid in related if (entry := queue.entry(uid)) is not None and self._may_ask_about(entry))
        found = list(islice(entries, ASKED_MAX))
        if found:
            self._ask_about(found)

    def _check_changed(self) -> None:
        names, self._changed = self._changed, set()
        table, worker = self._program.cache.nodes, self._worker
        rows = {row: table.node(row) for row in map(table.row_of, sorted(names)) if row is not None}
        rows = {row: node for row, node in rows.items() if self._program.router.rows_of(worker).has(row)}
        for uid, kept in worker.queue._entries.items() if rows else ():
            for row, node in rows.items():
                is_parked = kept.state is QueueState.UNSCHEDULABLE and matches_node_affinity(kept.pod, node)
                entry = worker.queue.entry(uid) if is_parked else None
                if entry is None or not self._may_ask_about(entry):
                    continue
                if self._waits_for_its_gang(entry):
                    self._ask_about_gang(entry)
                elif self._is_taken(entry, row):
                    self._complain_of_parked(entry, node.name)

    def _waits_for_its_gang(self, entry: QueueEntry) -> bool:
        return self._gangs is not None and bool(self._gangs.lacking(entry.uid))

    def _ask_about_gang(self, entry: QueueEntry) -> None:
        """A member that a node would take alone may wait: the gang must not fit as a whole."""
        if self._gangs is not None:
            self._gangs.check_parked(entry, self._worker.queue)

    def _is_taken(self, entry: QueueEntry, row: int) -> bool:
        try:
            found = self._worker.cycle.classes.alone(entry.pod, entry.attempts + 1, row)
        except PluginFailure:
            return False
        return found is not None and bool(found.feasible[0]) and self._is_free(entry.pod, row)

    # -- work that is left lying -----------------------------------------------------------------------------------

    def look_for_work(self) -> None:
        """What is ready now is being decided a moment later."""
        if self._has_idle_work():
            attempts = self._worker.counters.attempts
            asyncio.get_running_loop().call_later(PICKED_UP_MAX_S, self._look_again, attempts)

    def _look_again(self, attempts: int) -> None:
        if self._worker.counters.attempts == attempts and self._has_idle_work():
            self._complain(f"I3: {self._worker.name} has pods to decide, and nobody was woken for it")

    def _has_idle_work(self) -> bool:
        worker = self._worker
        if not (worker.is_leading and worker.queue.has_ready) or self._is_paused():
            return False
        return worker.intake.is_open and not worker.queue.statistics().in_flight

    # -- pods that wait --------------------------------------------------------------------------------------------

    def look(self) -> None:
        """What waits has something to wait for."""
        worker = self._worker
        if not worker.is_leading or worker.intake.is_closing or self._is_paused():
            self._looks.clear()
            return
        before, self._looks = self._looks, {}
        due: list[QueueEntry] = []
        for entry in self._worker.queue.entries():
            since_s, looks = before.get(entry.uid, (entry.since_s, 0))
            looks = looks + 1 if since_s == entry.since_s else 1
            self._looks[entry.uid] = entry.since_s, looks
            self._check_waiting(entry)
            if looks % LOOKS == 0 and self._may_ask_about(entry):
                due.append(entry)
        if due and self._is_steady:
            self._ask_about(due[:ASKED_MAX])

    def check_quiescent(self) -> None:
        """All that are parked when nothing happens any more."""
        if self._is_steady and self._worker.is_leading:
            self._ask_about([entry for entry in self._worker.queue.entries() if self._may_ask_about(entry)])

    def _may_ask_about(self, entry: QueueEntry) -> bool:
        is_parked = entry.state is QueueState.UNSCHEDULABLE and not entry.is_quarantined
        if not is_parked or self._worker.queue._parked.has_overdue:
            return False
        if is_parked and GPU_SHARE in entry.plugins and self._has_queued_equal(entry):
            return False
        hinting = self._hinting | {GANG_PLUGIN} if self._waits_for_its_gang(entry) else self._hinting
        return hinting.issuperset(entry.plugins) and not self._may_miss(entry.pod)

    def _has_queued_equal(self, entry: QueueEntry) -> bool:
        """Reports whether an equal pod is tried before: an event that makes room for one pod queues one (`Hint.QUEUE_ONE`)."""
        key = class_of(entry.pod)
        others = (one for one in self._worker.queue._entries.values() if one.state not in _PARKED)
        return any(class_of(one.pod) == key for one in others)

    def _may_miss(self, pod: Pod) -> bool:
        """No event says that a pod was assumed, which counts as company. The watch shows it a moment later."""
        if not (pod.spec.spread or pod.spec.pod_affinity):
            return False
        return any(entry.state is PodState.ASSUMED for entry in self._program.cache)

    def _check_waiting(self, entry: QueueEntry) -> None:
        now_s = asyncio.get_running_loop().time()
        if entry.state is QueueState.BACKOFF and entry.retry_at_s is not None and entry.retry_at_s < now_s - LATE_S:
            self._complain(f"I3: {entry.pod.key} backs off {now_s - entry.retry_at_s:.1f} s past its time")
        due_s = None if entry.retry_at_s is None else max(entry.retry_at_s, self._followed_s)
        if entry.state in _PARKED and due_s is not None and due_s < now_s - LATE_S:
            self._complain(f"I3: {entry.pod.key} is parked {now_s - due_s:.1f} s past its flush")
        if entry.state is QueueState.GATED and entry.plugins == (GATES,) and not entry.pod.gates:
            self._complain(f"I3: {entry.pod.key} is held by its gates, and has none")

    def _ask_about(self, entries: list[QueueEntry]) -> None:
        program, worker = self._program, self._worker
        rows = program.router.rows_of(worker)
        classes = ClassCache(worker.cycle.plugins, worker.runner, program.cache.nodes, rows)
        for entry in entries:
            if self._waits_for_its_gang(entry):
                self._ask_about_gang(entry)
                continue
            node = self._node_for(classes, entry.pod, entry.attempts + 1)
            if node:
                self._complain_of_parked(entry, node)

    def _complain_of_parked(self, entry: QueueEntry, node: str) -> None:
        refusal = f"{', '.join(entry.plugins)}: {entry.message[:80]}"
        self._complain(f"I3: {entry.pod.key} was not woken, and its filters take {node} ({refusal})")

    def _node_for(self, classes: ClassCache, pod: Pod, attempt: int) -> str:
        """A node that all filters pass, and that is free; empty for none."""
        try:
            found = classes.find(pod, attempt)
        except PluginFailure:
            return ""
        rows = found.rows[found.feasible].tolist() if found.refusal is None else ()
        return next((self._program.cache.nodes.node(row).name for row in rows if self._is_free(pod, row)), "")

    def _is_free(self, pod: Pod, row: int) -> bool:
        """Nothing there is promised to anybody before this pod, and no ledger has anything against it."""
        cache = self._program.cache
        name = cache.nodes.node(row).name
        return not self._program.nominator.ahead_on(name, pod) and not (
            cache.ledgers.fits_cluster(pod).reason or cache.ledgers.fits(pod, row)
        )


def _node_of(event: ClusterEvent, old: EventObject, new: EventObject) -> str:
    """The node that may take more than before; empty for none."""
    if isinstance(new, Node):
        return new.name if event.resource is Resource.NODE else ""
    is_freed = event.resource is Resource.ASSIGNED_POD and new is None and isinstance(old, Pod)
    return old.node or old.nominated_node if is_freed and isinstance(old, Pod) else ""
