"""A plain model of a domain's queue, which handles each pod and each event separately (I3).

The program keeps an index of parked pods, calls hints once for equal pods, and keeps one event log for all attempts. In the model
every pod has its own list of events, and the hints of the plugins that refused it are called for it alone. A pod that must move has
moved, and a pod that need not has stayed. (`RequeueChecker` checks that the hints are right.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from msgspec.structs import replace

from multisched.framework.dependency import Dependency, dependency_of
from multisched.framework.events import (
    ATTEMPT_UNDONE,
    FORCED,
    ClusterEvent,
    EventObject,
    EventRegistration,
    Hint,
    Resource,
)
from multisched.framework.points import EnqueueExtensions, Queued, QueuedGang
from multisched.framework.registry import implementing
from multisched.framework.step_budget import UNLIMITED, StepBudget
from multisched.model.objects import Pod, PodSpec
from multisched.queueing.entry import EVERY_POD, Entry, Failure, Moved, ParkedPodFilter, QueueOutcome
from multisched.queueing.parked_pods import class_of
from multisched.queueing.pod_changes import own_event
from multisched.queueing.quarantine import API_SERVER
from multisched.queueing.requeue_judge import EVENTS_PER_CHECK
from multisched.queueing.transitions import QueueState
from multisched.shell.domain import DomainWorker
from multisched.state.gang_roster import GangRoster
from tests.kit.plugins.faulty import FAULTY

EVENTS_EVERY: Final = 3
"""Every n-th event is evaluated for each parked pod."""
IN_FLIGHT: Final = frozenset({QueueState.IN_FLIGHT, QueueState.LEAVING})
PARKED: Final = frozenset({QueueState.UNSCHEDULABLE, QueueState.GATED})
BY_ROW: Final = frozenset({Dependency.NODE, Dependency.ROW})
"""The result of plugins with these dependencies for a node depends on that node alone."""
NOT_MODELLED: Final = frozenset({API_SERVER, FAULTY})
"""Not modelled: one holds pods for a time of its own; the hints of the other fail now and then."""


class RequeueEffect(IntEnum):
    """The effect of an event on a pod."""

    NONE = 0
    ONE = 1
    """Requeues one of all equal pods."""
    ALL = 2
    WITHOUT_BACKOFF = 3
    """Requeues all, without backoff."""


@dataclass(frozen=True, slots=True)
class ObservedEvent:
    """One event."""

    event: ClusterEvent
    old: EventObject
    new: EventObject


class QueueModel:
    """The queue of one domain in one process. Wraps its methods."""

    def __init__(
        self,
        worker: DomainWorker,
        gangs: GangRoster,
        report_violation: Callable[[str], None],
        on_popped: Callable[[Collection[str]], None],
    ) -> None:
        """`on_popped`: called with the uids of all pods whose attempts begin."""
        self._worker, self._gangs, self._report_violation, self._on_popped = worker, gangs, report_violation, on_popped
        self._missed: dict[str, list[ObservedEvent]] = {}
        """uid of each pod in flight -> events since it was popped."""
        self._registered: dict[str, Sequence[EventRegistration]] = {}
        self._by_row = frozenset[str]()
        self._events = 0
        queue = worker.queue
        self._pop, self._fail, self._done, self._add = queue.pop, queue.fail, queue.done, queue.add
        self._on_event, self._activate, self._update = queue.on_event, queue.activate, queue.update
        queue.pop, queue.fail, queue.done = self.pop, self.fail, self.done  # type: ignore[method-assign]
        queue.on_event, queue.activate = self.on_event, self.activate  # type: ignore[method-assign]
        queue.add, queue.update = self.add, self.update  # type: ignore[method-assign]
        self.follow()

    def follow(self) -> None:
        """Uses the profile now in force."""
        plugins = [one.plugin for one in self._worker.plugins.built]
        self._registered = {one.name: one.events_to_register() for one in implementing(plugins, EnqueueExtensions)}
        self._by_row = frozenset(one.name for one in plugins if dependency_of(one) in BY_ROW)

    # -- attempts --------------------------------------------------------------------------------------------------

    def pop(self, now_s: float, like: PodSpec | None = None) -> Queued | None:
        """Wraps `PodQueue.pop`."""
        popped = self._pop(now_s, like)
        if popped is not None:
            members = popped.members if isinstance(popped, QueuedGang) else (popped,)
            uids = [one.pod.uid for one in members]
            self._missed.update((uid, []) for uid in uids)
            self._on_popped(uids)
        return popped

    def add(self, pod: Pod, now_s: float) -> QueueOutcome:
        """Wraps `PodQueue.add`."""
        self._changed(pod)
        return self._add(pod, now_s)

    def update(self, old: Pod, new: Pod, now_s: float) -> QueueOutcome | None:
        """Wraps `PodQueue.update`."""
        self._changed(new)
        return self._update(old, new, now_s)

    def _changed(self, pod: Pod) -> None:
        """Records an update of a pod in flight, or that it is added again after it had left."""
        known = self._worker.queue.pod(pod.uid) if pod.uid in self._missed else None
        if known is None:
            return
        is_back = self._worker.queue.where(pod.uid) is QueueState.LEAVING
        event = FORCED if is_back else own_event(known, pod)
        if event is not None:
            self._missed[pod.uid].append(ObservedEvent(event, known, pod))

    def activate(self, uid: str, now_s: float) -> QueueOutcome | None:
        """Wraps `PodQueue.activate`: a pod in flight is tried again after its attempt."""
        if uid in self._missed:
            self._missed[uid].append(ObservedEvent(FORCED, None, None))
        return self._activate(uid, now_s)

    def done(self, uid: str) -> bool:
        """Wraps `PodQueue.done`."""
        self._missed.pop(uid, None)
        return self._done(uid)

    def fail(self, uid: str, failure: Failure, now_s: float, budget: StepBudget = UNLIMITED) -> QueueOutcome:
        """Wraps `PodQueue.fail`: the events since the pop determine the next state."""
        missed, queue = self._missed.pop(uid, []), self._worker.queue
        pod, is_back = queue.pod(uid), queue.where(uid) is QueueState.IN_FLIGHT
        is_refusal = bool(failure.rejectors or failure.pending) and not (failure.is_error or failure.without_backoff)
        wakes = self._strongest(pod, failure, missed) if pod is not None and is_back and is_refusal else None
        outcome = self._fail(uid, failure, now_s, budget)
        if wakes is None or pod is None or API_SERVER in queue._entries[uid].rejectors:
            return outcome
        is_parked = outcome.state is QueueState.UNSCHEDULABLE
        by = ", ".join(sorted(failure.rejectors | failure.pending))
        if is_parked and wakes is not RequeueEffect.NONE:
            self._report_violation(
                f"I3: {pod.key} was refused by {by} and parked, and an event during its attempt helps it"
            )
        is_tried_again = outcome.state not in (QueueState.UNSCHEDULABLE, QueueState.GATED)
        is_checked_whole = budget is UNLIMITED or len(missed) < EVENTS_PER_CHECK
        if is_tried_again and wakes is RequeueEffect.NONE and is_checked_whole and self._gangs.key_of(uid) is None:
            self._report_violation(
                f"I3: {pod.key} was refused by {by} and is tried again, and nothing has happened for it"
            )
        return outcome

    def _strongest(self, pod: Pod, failure: Failure, missed: Sequence[ObservedEvent]) -> RequeueEffect | None:
        if NOT_MODELLED & (failure.rejectors | failure.pending):
            return None
        gang = self._gangs.key_of(pod.uid)
        wakes = RequeueEffect.NONE
        for one in missed:
            is_own = one.event is ATTEMPT_UNDONE and isinstance(one.old, Pod) and self._starts_with(one.old, pod, gang)
            if not is_own:
                wakes = max(wakes, self._asked(pod, failure.rejectors, failure.pending, one))
        return wakes

    def _starts_with(self, one: Pod, pod: Pod, gang: str | None) -> bool:
        """Reports whether both are one pod, or start together."""
        return one.uid in self._worker.queue.gangs.uids_with(pod.uid) or (
            gang is not None and self._gangs.key_of(one.uid) == gang
        )

    # -- parked pods -----------------------------------------------------------------------------------------------

    def on_event(
        self, event: ClusterEvent, old: EventObject, new: EventObject, now_s: float, only: ParkedPodFilter = EVERY_POD
    ) -> Moved:
        """Wraps `PodQueue.on_event`."""
        observed = ObservedEvent(event, old, new)
        is_of_one = event.resource is Resource.WILDCARD and isinstance(new, Pod)
        for uid, missed in self._missed.items():
            if not is_of_one or (isinstance(new, Pod) and new.uid == uid):
                missed.append(observed)
        self._events += 1
        is_put = not is_of_one and only is EVERY_POD and not self._events % EVENTS_EVERY
        asked = list(self._asked_of_parked(observed)) if is_put else []
        moved = self._on_event(event, old, new, now_s, only)
        if asked and not self._worker.queue._parked.has_overdue:
            self._check(observed, asked)
        return moved

    def _asked_of_parked(self, observed: ObservedEvent) -> Iterator[tuple[Entry, object, RequeueEffect]]:
        """Yields each parked pod, the key that equal pods share, and the effect of the event."""
        old, gone = observed.old, ""
        if isinstance(old, Pod) and observed.new is None:
            gone = old.uid
        for entry in self._worker.queue._entries.values():
            rejectors, pending = entry.waits_for
            if entry.state is not QueueState.UNSCHEDULABLE or NOT_MODELLED & (rejectors | pending):
                continue
            is_own = gone and (gone == entry.uid or observed.event is ATTEMPT_UNDONE)
            if not is_own:
                wakes = self._asked(entry.pod, rejectors, pending, observed)
                if gone and isinstance(old, Pod) and old.node and not pending and rejectors <= self._by_row:
                    wakes = min(wakes, RequeueEffect.ONE)  # one after another, since what helps one may help the next
                yield entry, (rejectors, pending, class_of(entry.pod)), wakes

    def _check(self, observed: ObservedEvent, asked: Sequence[tuple[Entry, object, RequeueEffect]]) -> None:
        parked = {kind for entry, kind, wakes in asked if wakes is RequeueEffect.ONE}
        parked -= {kind for entry, kind, _ in asked if entry.state is not QueueState.UNSCHEDULABLE}
        label = observed.event.label or observed.event.resource.value
        for entry, kind, wakes in asked:
            is_parked = entry.state is QueueState.UNSCHEDULABLE
            by = ", ".join(sorted(entry.rejectors | entry.pending))
            if is_parked and (wakes > RequeueEffect.ONE or kind in parked):
                self._report_violation(f"I3: {entry.pod.key}, refused by {by}, stays parked, and {label} helps it")
            if not is_parked and wakes is RequeueEffect.NONE and self._gangs.key_of(entry.uid) is None:
                self._report_violation(f"I3: {entry.pod.key}, refused by {by}, was woken, and {label} does not help it")

    def fault_of_index(self) -> str:
        """Returns the first parked pod that is indexed under wrong keys; empty for none."""
        parked = self._worker.queue._parked
        for uid, entry in self._worker.queue._entries.items():
            if entry.state in PARKED:
                wanted = (entry.state, *entry.waits_for), entry.pod.namespace, class_of(entry.pod)
                if parked.classes_by_uid.get(uid) != wanted:
                    return f"I3: {entry.pod.key} is parked as what it was before it changed, or for another reason"
        return ""

    # -- hints -----------------------------------------------------------------------------------------------------

    def _asked(
        self, pod: Pod, rejectors: Collection[str], pending: Collection[str], observed: ObservedEvent
    ) -> RequeueEffect:
        """Returns the effect of the event on the pod, by the hints of the plugins that refused it."""
        if observed.event.resource is Resource.WILDCARD:
            return RequeueEffect.ALL
        found = RequeueEffect.NONE
        for name in {*rejectors, *pending}:
            for answer in self._answers(name, pod, observed):
                if answer is Hint.QUEUE_ONE:
                    found = max(found, RequeueEffect.ONE)
                elif answer is not Hint.SKIP:
                    found = max(found, RequeueEffect.WITHOUT_BACKOFF if name in pending else RequeueEffect.ALL)
        return found

    def _answers(self, name: str, pod: Pod, observed: ObservedEvent) -> Iterator[object]:
        event = observed.event
        if name not in self._registered:
            if event.is_in_wildcard:
                yield Hint.QUEUE
            return
        if event.resource is Resource.DISTANT_POD:
            if name in self._by_row:
                return
            event = replace(event, resource=Resource.ASSIGNED_POD)
        for one in self._registered[name]:
            if one.event.matches(event):
                yield Hint.QUEUE if one.hint is None else one.hint(pod, observed.old, observed.new)
