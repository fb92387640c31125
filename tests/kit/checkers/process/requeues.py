"""Finds pods that wait without a reason: pods that were not requeued, and ready pods while the scheduling loop sleeps.

A hint that wrongly skips an event leaves its pod parked until another event or the flush. The pod is then bound late, which no
other check would detect. Therefore the profile's filters are run again for parked pods, with nominations and ledgers: for one node
when something changes there, and for all nodes regularly. A pod that passes should have been requeued by the change.
(`FeasibleNodes` and `ClassChecker` check that the filters are right.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Final

from multisched.cycle.classes.cache import ClassCache
from multisched.framework.dependency import dependency_of
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
from tests.kit.checkers.process.queue_model import BY_ROW
from tests.kit.checkers.reference_rules import matches_node_affinity
from tests.kit.world.labels import LOAN, TIDE

LOOKS: Final = 6
"""A parked pod is checked at every n-th look that finds it unchanged."""
ASKED_MAX: Final = 4
"""Pods of one domain that are checked at one look."""
PICKED_UP_MAX_S: Final = 0.03
"""Time within which ready work is started; the timer that looks for missed work fires every 0.25 s."""
LATE_S: Final = 1.0
GATES: Final = "SchedulingGates"
_FOR_ONE: Final = frozenset({"GpuShare", "ServerlessUnits"})
"""Plugins with events that requeue one of equal pods."""
RELATING: Final = frozenset({"InterPodAffinity", "PodTopologySpread"})
"""Plugins for which a change on one node can make another node feasible."""
_PARKED: Final = (QueueState.UNSCHEDULABLE, QueueState.GATED)


class RequeueChecker:
    """The parked pods of one domain in one process. `is_steady`: no drawn plugin fails or refuses by itself."""

    def __init__(
        self,
        program: Program,
        worker: DomainWorker,
        report_violation: Callable[[str], None],
        is_paused: Callable[[], bool],
        gangs: GangFit | None,
        *,
        is_steady: bool,
    ) -> None:
        """`gangs`: None if there are none, or if the run is not steady."""
        self._program = program
        self._worker = worker
        self._report_violation = report_violation
        self._is_paused = is_paused
        self._gangs = gangs
        self._is_steady = is_steady
        self._on_event = worker.queue.on_event
        worker.queue.on_event = self.on_event  # type: ignore[method-assign]
        self._changed: set[str] = set()
        """Names of nodes that have changed in this step."""
        self._are_relations_changed = False
        self._looks: dict[str, tuple[float, int]] = {}
        """uid -> time since which its state is unchanged, and number of looks since then."""
        self._hinting = frozenset[str]()
        """Plugins whose refusals depend only on known state, and that register events."""
        self._by_row = frozenset[str]()
        """Plugins whose result for a node depends on that node alone: what they refuse is requeued one after another."""
        self._followed_s = 0.0
        """Time of the last change of the configuration: a shorter flush may make pods due at once."""
        self.follow()

    def follow(self) -> None:
        """Uses the profile now in force."""
        self._followed_s, plugins = asyncio.get_running_loop().time(), self._worker.plugins
        hinting = implementing((*plugins.pre_filter, *plugins.filter), EnqueueExtensions)
        self._hinting = frozenset(p.name for p in hinting) - plugins.remote_names
        self._by_row = frozenset(one.plugin.name for one in plugins.built if dependency_of(one.plugin) in BY_ROW)

    # -- what has just happened ------------------------------------------------------------------------------------

    def on_event(
        self, event: ClusterEvent, old: EventObject, new: EventObject, now_s: float, only: ParkedPodFilter = EVERY_POD
    ) -> Moved:
        """Wraps `PodQueue.on_event`: after all events of this step, no pod remains parked that the node takes."""
        moved = self._on_event(event, old, new, now_s, only)
        self.on_node_freed(_node_of(event, old, new))
        if isinstance(new if old is None else old, Node | Pod):
            self._look_at_relations()
        return moved

    def on_node_freed(self, name: str) -> None:
        """Checks parked pods after this step, for a node that may have more room; empty for none."""
        if name and self._is_steady and self._worker.is_leading:
            if not self._changed:
                asyncio.get_running_loop().call_soon(self._check_changed)
            self._changed.add(name)

    def _look_at_relations(self) -> None:
        """Checks pods that relations to other pods had refused, after this step: a pod or node has changed."""
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
                    self._report_parked(entry, node.name)

    def _waits_for_its_gang(self, entry: QueueEntry) -> bool:
        return self._gangs is not None and bool(self._gangs.lacking(entry.uid))

    def _ask_about_gang(self, entry: QueueEntry) -> None:
        """Checks the gang of a parked member: it must not fit as a whole."""
        if self._gangs is not None:
            self._gangs.check_parked(entry, self._worker.queue)

    def _is_taken(self, entry: QueueEntry, row: int) -> bool:
        try:
            found = self._worker.cycle.classes.alone(entry.pod, entry.attempts + 1, row)
        except PluginFailure:
            return False
        return found is not None and bool(found.feasible[0]) and self._is_free(entry.pod, row)

    # -- ready work ------------------------------------------------------------------------------------------------

    def look_for_work(self) -> None:
        """Checks that ready pods are popped shortly afterwards."""
        if self._has_idle_work():
            attempts = self._worker.counters.attempts
            asyncio.get_running_loop().call_later(PICKED_UP_MAX_S, self._look_again, attempts)

    def _look_again(self, attempts: int) -> None:
        if self._worker.counters.attempts == attempts and self._has_idle_work():
            self._report_violation(f"I3: {self._worker.name} has pods to decide, and nobody was woken for it")

    def _has_idle_work(self) -> bool:
        worker = self._worker
        if not (worker.is_leading and worker.queue.has_ready) or self._is_paused():
            return False
        return worker.intake.is_open and not worker.queue.statistics().in_flight

    # -- pods that wait --------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Checks that each queued pod has a reason to wait."""
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
        """Checks all parked pods when nothing happens any more."""
        if self._is_steady and self._worker.is_leading:
            self._ask_about([entry for entry in self._worker.queue.entries() if self._may_ask_about(entry)])

    def _may_ask_about(self, entry: QueueEntry) -> bool:
        is_parked = (
            entry.state is QueueState.UNSCHEDULABLE
            and not entry.is_quarantined
            and not {LOAN, TIDE} & entry.pod.labels.keys()
        )
        if not is_parked or self._worker.queue._parked.has_overdue:
            return False
        is_one_of_equals = not _FOR_ONE.isdisjoint(entry.plugins) or self._by_row.issuperset(entry.plugins)
        if is_parked and is_one_of_equals and self._has_queued_equal(entry):
            return False
        hinting = self._hinting | {GANG_PLUGIN} if self._waits_for_its_gang(entry) else self._hinting
        return hinting.issuperset(entry.plugins) and not self._may_miss(entry.pod)

    def _has_queued_equal(self, entry: QueueEntry) -> bool:
        """Reports whether an equal pod is queued: an event that makes room for one pod requeues one of all equal pods
        (`Hint.QUEUE_ONE`), and a pod that leaves its node, one after another.
        """
        if self._worker.queue._representatives.are_due:
            return True
        key = class_of(entry.pod)
        others = (one for one in self._worker.queue._entries.values() if one.state not in _PARKED)
        return any(class_of(one.pod) == key for one in others)

    def _may_miss(self, pod: Pod) -> bool:
        """Reports whether an assumed pod may help this pod. Assumed pods count for relations, but cause an event only when the
        watch delivers them.
        """
        if not (pod.spec.spread or pod.spec.pod_affinity):
            return False
        return any(entry.state is PodState.ASSUMED for entry in self._program.cache)

    def _check_waiting(self, entry: QueueEntry) -> None:
        now_s = asyncio.get_running_loop().time()
        if entry.state is QueueState.BACKOFF and entry.retry_at_s is not None and entry.retry_at_s < now_s - LATE_S:
            self._report_violation(f"I3: {entry.pod.key} backs off {now_s - entry.retry_at_s:.1f} s past its time")
        due_s = None if entry.retry_at_s is None else max(entry.retry_at_s, self._followed_s)
        if entry.state in _PARKED and due_s is not None and due_s < now_s - LATE_S:
            self._report_violation(f"I3: {entry.pod.key} is parked {now_s - due_s:.1f} s past its flush")
        if entry.state is QueueState.GATED and entry.plugins == (GATES,) and not entry.pod.gates:
            self._report_violation(f"I3: {entry.pod.key} is held by its gates, and has none")

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
                self._report_parked(entry, node)

    def _report_parked(self, entry: QueueEntry, node: str) -> None:
        refusal = f"{', '.join(entry.plugins)}: {entry.message[:80]}"
        self._report_violation(f"I3: {entry.pod.key} was not woken, and its filters take {node} ({refusal})")

    def _node_for(self, classes: ClassCache, pod: Pod, attempt: int) -> str:
        """Returns a node that passes all filters and is free; empty for none."""
        try:
            found = classes.find(pod, attempt)
        except PluginFailure:
            return ""
        rows = found.rows[found.feasible].tolist() if found.refusal is None else ()
        return next((self._program.cache.nodes.node(row).name for row in rows if self._is_free(pod, row)), "")

    def _is_free(self, pod: Pod, row: int) -> bool:
        """Reports whether no pod is nominated there before this one, and all ledgers accept the pod."""
        cache = self._program.cache
        name = cache.nodes.node(row).name
        return not self._program.nominator.ahead_on(name, pod) and not (
            cache.ledgers.fits_cluster(pod).reason or cache.ledgers.fits(pod, row)
        )


def _node_of(event: ClusterEvent, old: EventObject, new: EventObject) -> str:
    """Returns the node that may have more room after the event; empty for none."""
    if isinstance(new, Node):
        return new.name if event.resource is Resource.NODE else ""
    is_freed = event.resource is Resource.ASSIGNED_POD and new is None and isinstance(old, Pod)
    return old.node or old.nominated_node if is_freed and isinstance(old, Pod) else ""
