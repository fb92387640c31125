"""The pending pods of one domain, and which of them is scheduled next.

Owns every pod that is gated, active, in backoff, unschedulable or in flight, keyed by uid. A pod recreated
under the same name is another entry (k/k#138316). Each pod it knows is in exactly one state (I3). No event during an
attempt is lost, and every index is bounded (I10). Equal calls give equal results (I12): it never awaits, never reads a
clock (`now_s` is the caller's monotonic time) and never draws a random number.

Used by the shell and by simulations. The caller of `pop` must end each attempt with exactly one call to `fail` or
`done`, even if the pod was removed meanwhile. Semantics are kube-scheduler's (1.36, pkg/scheduler/backend/queue) unless
noted otherwise.

This is the only entry point: callers pass pods, and the other modules use entries. `entry_states` moves them,
`requeue_judge` decides whether and when they are requeued, `readmission` requeues them, `gating` runs the gates. The
members of a gang that has not started are one unit: `gang_entries` decides which member leads, and popping the lead
pops all of them (`QueuedGang`). The attempt of each member ends separately, as for any pod.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Final

from multisched.framework.events import ATTEMPT_UNDONE, FLUSH, FORCED, Action, ClusterEvent, Resource
from multisched.framework.gangs import ReservePolicy, ReservingPlugin
from multisched.framework.points import Plugin, PreEnqueuePlugin, Queued, QueuedPod, QueueSortPlugin
from multisched.framework.registry import PluginSet, implementing
from multisched.framework.step_budget import UNLIMITED, StepBudget
from multisched.model.objects import Pod, PodSpec
from multisched.queueing.active_pods import ActivePods
from multisched.queueing.backoff import BackoffPods, BackoffPolicy
from multisched.queueing.entry import (
    EVERY_POD,
    NOTHING_MOVED,
    Entry,
    Failure,
    Moved,
    ParkedPodFilter,
    QueueEntry,
    QueueOutcome,
    QueueStatistics,
)
from multisched.queueing.entry_states import PARKED, EntryOrder, EntryStates
from multisched.queueing.events_in_flight import IN_FLIGHT_EVENTS_MAX, EventsInFlight
from multisched.queueing.gang_entries import GangEntries
from multisched.queueing.gating import Gates
from multisched.queueing.hints import HintTable, Object, OnError, Requeue, is_wildcard
from multisched.queueing.parked_pods import ParkedPods
from multisched.queueing.pod_changes import own_event
from multisched.queueing.quarantine import ServerRefusals, sentence
from multisched.queueing.readmission import MovedCounts, Readmission
from multisched.queueing.requeue_judge import BY_SERVER, RequeueJudge
from multisched.queueing.sort_keys import SortKeys
from multisched.queueing.transitions import POPPED, QueueInvariantError, QueueState
from multisched.state.gang_roster import GangRoster

LEFTOVER_S = 300.0
"""A pod parked this long is requeued without an event (podMaxInUnschedulablePodsDuration)."""

_AT_ONCE: Final = Requeue.AT_ONCE
"""Module constants, because in Python 3.11 looking up an enum member takes as long as three calls."""
_IN_FLIGHT: Final = QueueState.IN_FLIGHT
_ABSENT: Final = QueueState.ABSENT

ADDED, FAILED = "UnschedulablePodAdd", "ScheduleAttemptFailure"
OVERDUE_PAUSE_S = 0.25
"""Interval between batches of pods that are requeued because their hints were skipped."""
UNASKED = "UnaskedHint"
"""Label for pods that an event may help, but whose namespace has too many parked pods to call their hints."""
PROFILE_CHANGED = ClusterEvent(Resource.WILDCARD, Action.ALL, "ProfileChanged")
"""The profile has other plugins or other arguments."""
_ADDED_AGAIN = ClusterEvent(Resource.WILDCARD, Action.ALL, ADDED)


class PodQueue:
    """One domain's queue. `on_error` is called for plugins that raised; it must not call the queue."""

    def __init__(
        self,
        queue_sort: QueueSortPlugin,
        pre_enqueue: Sequence[PreEnqueuePlugin] = (),
        plugins: Sequence[Plugin] = (),
        *,
        on_error: OnError,
        backoff: BackoffPolicy = BackoffPolicy(),  # noqa: B008  (frozen)
        leftover_s: float = LEFTOVER_S,
        in_flight_events_max: int = IN_FLIGHT_EVENTS_MAX,
        stopwatch: Callable[[], float] | None = None,
        gangs: GangRoster | None = None,
    ) -> None:
        """`plugins`: all plugins of the profile, for their EnqueueExtensions; those in `pre_enqueue` need not be repeated.

        `stopwatch`: seconds of a monotonic clock, to time hints; None: hints are not timed.
        """
        self._gates = Gates(pre_enqueue, on_error)
        self.hints = HintTable([*plugins, *pre_enqueue, ServerRefusals()], on_error, stopwatch)
        self._active = ActivePods()
        self._backoff = BackoffPods()
        self._parked = ParkedPods()
        self._representatives = self._parked.representatives
        self._events = EventsInFlight(in_flight_events_max)
        sort_keys = SortKeys(queue_sort, on_error)
        self.gangs = GangEntries(gangs if gangs is not None else GangRoster())
        self._states = EntryStates(
            self._active, self._backoff, self._parked, self._events, sort_keys, self.gangs, leftover_s
        )
        self.sorting = EntryOrder(self._states)
        self._readmission = Readmission(self._gates, self._states, self.gangs, self._parked)
        self._readmission.reservations.policy = _reserve_policy(plugins)
        self._judge = RequeueJudge(self.hints, self._events, self.gangs, backoff)
        self._entries: Mapping[str, Entry] = self._states.entries
        self._quarantines = self._bound_after_flush = 0
        self._order = count(1)
        self._now_s = self._overdue_at_s = 0.0
        self.changes_in_flight = 0
        """Number of times a pod with an attempt in progress changed or was removed."""

    def __len__(self) -> int:
        """Number of pods known, including those in flight."""
        return len(self._entries)

    def __contains__(self, uid: object) -> bool:
        return uid in self._entries

    # Adding, updating and removing pods

    def add(self, pod: Pod, now_s: float) -> QueueOutcome:
        """Adds a pending pod of this domain, or updates a known one."""
        self._now_s = now_s
        entry = self._entries.get(pod.uid)
        if entry is None:
            entry = Entry(pod.uid, pod, next(self._order), now_s, now_s)
            self._states.admit(entry)
            self.gangs.join(entry)
            self._readmission.requeue(entry, _AT_ONCE, ADDED, now_s)
            return _outcome(entry)
        if entry.state is not QueueState.LEAVING:
            return self._replace(entry, pod)
        entry.pod = pod
        self._states.move(entry, QueueState.IN_FLIGHT, ADDED, now_s)
        self._events.record_for(entry.uid, _ADDED_AGAIN, None, pod)
        return _outcome(entry)

    def update(self, old: Pod, new: Pod, now_s: float) -> QueueOutcome | None:
        """Updates a pod; returns None for an unknown one, which the caller may add.

        A change of status alone never moves it. Gates run again for a gated pod; an unschedulable one moves if a hint queues it.
        """
        self._now_s = now_s
        if old.uid != new.uid:
            self.remove(old.uid)
            return self.add(new, now_s)
        entry = self._entries.get(new.uid)
        return None if entry is None else self._replace(entry, new)

    def remove(self, uid: str) -> QueueState | None:
        """Removes a pod that was deleted or left the domain; returns its state. A pod in flight is LEAVING until its attempt ends."""
        entry = self._entries.get(uid)
        if entry is None or entry.state is QueueState.LEAVING:
            return None if entry is None else QueueState.LEAVING
        origin = entry.state
        self.changes_in_flight += origin is QueueState.IN_FLIGHT
        self._states.move(
            entry, QueueState.LEAVING if origin is QueueState.IN_FLIGHT else QueueState.ABSENT, "Removed", self._now_s
        )
        return origin

    def activate(self, uid: str, now_s: float) -> QueueOutcome | None:
        """Moves a pending pod to active at once if its gates admit it. A pod in flight is requeued when its attempt fails."""
        self._now_s = now_s
        entry = self._entries.get(uid)
        if entry is None:
            return None
        if entry.state in POPPED:
            self._events.record_for(entry.uid, FORCED, None, entry.pod)
        elif entry.state is QueueState.BACKOFF:
            self._states.move(entry, QueueState.ACTIVE, FORCED.label, now_s)
        elif entry.state in PARKED:
            self._readmission.requeue(entry, Requeue.AT_ONCE, FORCED.label, self._now_s)
        elif entry.state is QueueState.GANG:
            lead = self.gangs.lead_of(entry)
            return None if lead is None else self.activate(lead.uid, now_s)
        return _outcome(entry)

    def configure(self, backoff: BackoffPolicy, leftover_s: float) -> None:
        """Sets the backoff for failures from now on, and for all parked pods the time after which they are requeued without an event."""
        self._parked.delay(leftover_s - self._states.leftover_s)
        self._judge.policy, self._states.leftover_s = backoff, leftover_s

    def use(self, plugins: PluginSet, now_s: float, *, retry_refused: bool) -> Moved:
        """Applies another profile. Pods keep their waiting times and failures.

        `retry_refused`: requeues refused and gated pods, which the new profile may accept; runs the gates for active and backoff pods.
        """
        self._now_s = now_s
        self.hints.register([*(one.plugin for one in plugins.built), ServerRefusals()])
        self._readmission.reservations.policy = _reserve_policy(one.plugin for one in plugins.built)
        self._gates.plugins = plugins.pre_enqueue
        self._states.use(plugins.queue_sort, now_s)
        if not retry_refused:
            return NOTHING_MOVED
        gated = self._readmission.ask_again(PROFILE_CHANGED.label, now_s)
        moved = self.on_event(PROFILE_CHANGED, None, None, now_s)
        return Moved(moved.active, moved.backoff, (*gated, *moved.gated))

    def gang_changed(self, key: str) -> None:
        """Notes that a gang's placed members or its requirements changed; `regroup` handles it."""
        self.gangs.changed(key)

    def listen(self, on_gated: Callable[[str], None], nominated_to: Callable[[str], Collection[str]]) -> None:
        """Sets the callback for the uid of each pod that a gate refuses, and the look-up of uids of pods nominated to a node."""
        self._readmission.on_gated, self._representatives.nominated_to = on_gated, nominated_to

    def regroup(self, now_s: float) -> Moved:
        """Regroups members of changed gangs, and requeues pods that waited until an equal pod was tried. Call it before `pop`."""
        if not (self.gangs.has_changed or self._representatives.are_due):
            return NOTHING_MOVED
        self._now_s, tally = now_s, MovedCounts()
        self._readmission.regroup(now_s, tally)
        self._readmission.wake_due(now_s, tally)
        return tally.moved()

    # Attempts

    @property
    def has_ready(self) -> bool:
        """Reports whether `pop` may return a pod now, once `regroup` has run."""
        are_due = self._representatives.are_due
        return bool(len(self._active) or self._backoff.early or are_due or self.gangs.has_changed)

    def pop(self, now_s: float, like: PodSpec | None = None) -> Queued | None:
        """Starts the attempt of the first active pod; without one, of the first that may leave backoff early (see `BackoffPods`).

        Pops all admitted members of a gang that has not started. A member of a started gang with a topology is returned as a gang of one.
        `like`: pops only a pod with this spec object, and none while there are gangs.
        """
        if (are_gangs := self.gangs.are_any) and like:
            return None
        self._now_s = now_s
        if len(self._backoff):
            self._states.release_backoff(now_s)
        entries = self._readmission.take(now_s, like)
        if not entries:
            return None
        entry = entries[0]
        if are_gangs and (self.gangs.must_start_together(entry.uid) or self.gangs.has_topology(entry)):
            return self.gangs.queued(entries)
        return QueuedPod(entry.pod, entry.queued_s, entry.attempts)

    def fail(self, uid: str, failure: Failure, now_s: float, budget: StepBudget = UNLIMITED) -> QueueOutcome:
        """Ends an attempt without a bind. The failure, and the hints for events since `pop` (within `budget`), set the next state."""
        self._now_s = now_s
        entry = self._attempted(uid)
        if entry.state is QueueState.LEAVING:
            self._states.move(entry, QueueState.ABSENT, FAILED, now_s)
            return _outcome(entry)
        how = self._judge.after_failure(entry, failure, now_s, budget)
        entry.queued_s, entry.order, entry.sort_key, entry.is_recovering = now_s, next(self._order), None, False
        entry.message, entry.was_flushed = failure.message, False
        self.gangs.refused(entry, failure.message)
        if self._readmission.follows_lead(entry, now_s):
            self._states.move(entry, QueueState.GANG, FAILED, now_s)
            if how is not Requeue.SKIP:
                self._readmission.wake_lead(entry, now_s)
        elif how is Requeue.SKIP and not self.gangs.is_outdated(entry):
            self._states.move(entry, QueueState.UNSCHEDULABLE, FAILED, now_s)
            if entry.rejectors is BY_SERVER:
                self._quarantines += 1
                entry.message = sentence(entry.message or entry.refusal, entry.equal_refusals, self._states.leftover_s)
                return QueueOutcome(entry.state, quarantine_message=entry.message)
        else:
            self._readmission.requeue(entry, max(how, Requeue.AFTER_BACKOFF), FAILED, self._now_s)
        return _outcome(entry)

    def found_node(self, uid: str) -> None:
        """Notes that an attempt found a node for the pod, or nominated it to one: the next equal pod may fit, too."""
        if (entry := self._entries.get(uid)) is not None:
            self._representatives.pass_on(entry)

    def charge_attempt(self, uid: str, seconds: float) -> None:
        """Charges the duration of the current attempt to the share of its namespace (`active_pods`)."""
        if (entry := self._entries.get(uid)) is not None and entry.state in POPPED:
            self._active.charge_cost(entry.namespace, seconds, is_retry=entry.is_retry)

    def done(self, uid: str) -> bool:
        """Ends an attempt: the pod was bound or deleted. Returns False for an unknown pod; raises for a queued one."""
        if uid not in self._entries:
            return False
        entry = self._attempted(uid)
        self._bound_after_flush += entry.was_flushed and entry.state is _IN_FLIGHT
        self._states.move(entry, _ABSENT, "Done", self._now_s)
        return True

    # Events, time and gangs

    def awaits_events(self) -> bool:
        """Reports whether a pod is parked or in flight; without one, `on_event` does nothing."""
        return bool(self._parked.classes_by_uid or self._events.attempts)

    def on_event(
        self, event: ClusterEvent, old: Object, new: Object, now_s: float, only: ParkedPodFilter = EVERY_POD
    ) -> Moved:
        """Requeues parked pods that match `only` and that the event may help. A wildcard event with a pod as `new` is for that pod only."""
        self._now_s = now_s
        if not self.awaits_events():
            return NOTHING_MOVED
        tally = MovedCounts()
        if is_wildcard(event) and isinstance(new, Pod):
            self._wake_one(new.uid, event, tally)
            return tally.moved()
        if len(self._events):
            self._events.record(event, old, new, is_of_interest=self.hints.is_of_interest(event))
        if len(self._parked):
            own, freed = _own_uids(event, old, new, self.gangs), _freed_node(old, new) if only is EVERY_POD else None
            for entry, how in self._parked.affected(event, old, new, self.hints, own, freed, now_s):
                if entry.pod.spec.priority <= only.priority_max and entry.since_s >= only.parked_since_s:
                    self._readmission.wake(entry, how, _label(event), self._now_s, tally)
            self._readmission.wake_due(now_s, tally)
        return tally.moved()

    def flush(self, now_s: float) -> Moved:
        """Requeues pods whose backoff ended, whose hints were skipped, whose gang timed out, or that were parked for `leftover_s`."""
        self._now_s = now_s
        tally = MovedCounts(active=self._states.release_backoff(now_s))
        if self._parked.has_overdue and now_s >= self._overdue_at_s:
            self._overdue_at_s = now_s + OVERDUE_PAUSE_S
            for entry in self._parked.overdue():
                self._readmission.wake(entry, Requeue.AFTER_BACKOFF, UNASKED, self._now_s, tally)
        self._readmission.flush_gangs(now_s, tally)
        for uid in self._parked.due(now_s):
            entry = self._entries[uid]
            entry.was_flushed = entry.state is QueueState.UNSCHEDULABLE
            self._readmission.wake(entry, Requeue.AFTER_BACKOFF, FLUSH.label, self._now_s, tally)
        return tally.moved()

    def next_wakeup_s(self) -> float | None:
        """Returns the next time at which `flush` has work; None if never."""
        batch_s = self._overdue_at_s if self._parked.has_overdue else None
        times = self._backoff.next_expiry_s(), self._parked.next_deadline_s(), batch_s, self._readmission.next_due_s()
        return min((at_s for at_s in times if at_s is not None), default=None)

    # Inspection

    def where(self, uid: str) -> QueueState | None:
        return None if (entry := self._entries.get(uid)) is None else entry.state

    def pod(self, uid: str) -> Pod | None:
        """Returns the latest version of the pod, even if its attempt uses an earlier one."""
        entry = self._entries.get(uid)
        return None if entry is None else entry.pod

    def entry(self, uid: str) -> QueueEntry | None:
        entry = self._entries.get(uid)
        return None if entry is None else self._states.describe(entry)

    def schedulable_since_s(self, uid: str) -> float | None:
        """Returns when the pod could first have been scheduled; None for an unknown pod."""
        entry = self._entries.get(uid)
        return None if entry is None else entry.schedulable_since_s

    def transitions(self, uid: str) -> Sequence[tuple[float, str, QueueState]]:
        """Returns the pod's latest moves, oldest first: time, event, state. Empty for an unknown pod."""
        entry = self._entries.get(uid)
        return () if entry is None else tuple(entry.transitions)

    def uids(self) -> list[str]:
        """Returns the uids of all pods, in the order they were added: for a reader that pauses between pods."""
        return list(self._entries)

    def entries(self, state: QueueState | None = None) -> Iterator[QueueEntry]:
        """Yields all pods, or those in one state, in the order they were added. The queue must not be changed during the iteration."""
        return (self._states.describe(one) for one in self._entries.values() if state is None or one.state is state)

    def statistics(self) -> QueueStatistics:
        return self._states.statistics(
            hint_calls=self.hints.calls, quarantines=self._quarantines, bound_after_flush=self._bound_after_flush
        )

    def events_in_flight(self) -> Mapping[str, int]:
        """Returns the metric inflight_events: label -> events kept; for PodPopped, attempts in progress. O(events kept)."""
        return self._events.kept_by_label()

    def validate(self) -> None:
        """Raises QueueInvariantError unless every pod is in exactly one index, that of its state (I3, I10). O(pods)."""
        self._states.validate()

    def _replace(self, entry: Entry, pod: Pod) -> QueueOutcome:
        known, entry.pod = entry.pod, pod
        has_changed_gang = self.gangs.join(entry)
        event = own_event(known, pod)
        if entry.state in POPPED:
            self.changes_in_flight += 1
            if event is not None:
                self._events.record_for(entry.uid, event, known, pod)
            return _outcome(entry)
        if has_changed_gang and entry.state is QueueState.GANG:
            self._readmission.requeue(entry, Requeue.AFTER_BACKOFF, ADDED, self._now_s)
            return _outcome(entry)
        self._states.reindex(entry, self._now_s)
        if event is not None and entry.state is QueueState.GANG:
            self._readmission.wake_lead(entry, self._now_s)
        elif event is not None and entry.state in PARKED:
            how = self._judge.after_update(entry, event, known)
            if how is not Requeue.SKIP:
                self._readmission.requeue(entry, how, _label(event), self._now_s)
        return _outcome(entry)

    def _wake_one(self, uid: str, event: ClusterEvent, tally: MovedCounts) -> None:
        entry = self._entries.get(uid)
        if entry is None:
            return
        if entry.state in POPPED:
            self._events.record_for(entry.uid, event, None, entry.pod)
        elif entry.state in PARKED:
            self._readmission.requeue(entry, Requeue.AFTER_BACKOFF, _label(event), self._now_s, tally)
        elif entry.state is QueueState.GANG and (lead := self.gangs.lead_of(entry)) is not None:
            self._wake_one(lead.uid, event, tally)

    def _attempted(self, uid: str) -> Entry:
        entry = self._entries.get(uid)
        if entry is None or entry.state not in POPPED:
            state, past = (QueueState.ABSENT, []) if entry is None else (entry.state, entry.history())
            raise QueueInvariantError(f"pod {uid}: it has no attempt that could end: {state} [{'; '.join(past)}]")
        return entry


def _outcome(entry: Entry) -> QueueOutcome:
    return QueueOutcome(entry.state, entry.gate)


def _reserve_policy(plugins: Iterable[Plugin]) -> ReservePolicy | None:
    return next((plugin.reserve_policy for plugin in implementing(plugins, ReservingPlugin)), None)


def _own_uids(event: ClusterEvent, old: Object, new: Object, gangs: GangEntries) -> Collection[str]:
    """Returns the pods that ignore this event: the pod removed from a node; if its attempt was undone, its whole gang.

    As upstream: otherwise a pod rejected by Permit would be retried at once, forever.
    """
    if not isinstance(old, Pod) or new is not None:
        return ()
    return gangs.uids_with(old.uid) if event is ATTEMPT_UNDONE else (old.uid,)


def _freed_node(old: Object, new: Object) -> str | None:
    """Returns the node that a pod has left; None for any other event."""
    return (old.node or None) if isinstance(old, Pod) and new is None else None


def _label(event: ClusterEvent) -> str:
    return event.label or event.resource.value
