"""The pending pods of one domain, and which of them is scheduled next.

Owns every pod that is gated, active, backing off, unschedulable or in flight, keyed by uid throughout: a pod recreated
under the same name is another entry (k/k#138316). Promises that each pod it knows is in exactly one place (I3), that no
event during an attempt is lost, that every index is bounded (I10), and that equal calls give equal answers (I12): it
never awaits, never reads a clock (`now_s` is the caller's monotonic time) and never draws a number.

Called by the domain's cycle and shell. Whoever pops a pod ends its attempt with exactly one `fail` or `done`, also when
the pod was removed meanwhile. Semantics are kube-scheduler's (1.36, pkg/scheduler/backend/queue) unless said otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from multisched.framework.durations import Durations
from multisched.framework.events import FLUSH, FORCED, Action, ClusterEvent, Resource
from multisched.framework.points import Plugin, PreEnqueuePlugin, QueuedPod, QueueSortPlugin
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod
from multisched.queueing.active_pods import ActivePods
from multisched.queueing.backoff import BackoffPods, BackoffPolicy
from multisched.queueing.entry import (
    NOBODY,
    NOTHING_MOVED,
    Entry,
    Failure,
    Moved,
    Placement,
    QueueEntry,
    QueueStatistics,
)
from multisched.queueing.events_in_flight import IN_FLIGHT_EVENTS_MAX, EventsInFlight
from multisched.queueing.gating import Gates
from multisched.queueing.hints import HintTable, Object, OnError, Requeue, is_wildcard
from multisched.queueing.parked_pods import ParkedPods
from multisched.queueing.pod_changes import own_event
from multisched.queueing.quarantine import API_SERVER, ServerRefusals, sentence
from multisched.queueing.transitions import ALLOWED, Place, QueueInvariantError, check

LEFTOVER_S = 300.0
"""A pod parked this long is tried again although nothing happened (podMaxInUnschedulablePodsDuration)."""
CONFLICTS_IN_A_ROW = 3
"""Commit conflicts after which a pod goes straight back to active; the next one backs off as an error."""

ADDED, FAILED = "UnschedulablePodAdd", "ScheduleAttemptFailure"
OVERDUE_PAUSE_S = 0.25
"""Between two lots of pods that are tried again without having been asked about."""
UNASKED = "UnaskedHint"
"""Something happened that may have helped: too many pods of the namespace waited for each to be asked about."""
BACKOFF_COMPLETE, POP_FROM_BACKOFF = "BackoffComplete", "PopFromBackoffQ"
_COME_BACK = ClusterEvent(Resource.WILDCARD, Action.ALL, ADDED)
_COUNTED = frozenset({Place.ACTIVE, Place.BACKOFF, Place.UNSCHEDULABLE, Place.GATED})
_BY_SERVER = frozenset({API_SERVER})
_PARKED = frozenset({Place.UNSCHEDULABLE, Place.GATED})
_POPPED = frozenset({Place.IN_FLIGHT, Place.LEAVING})
_KINDS: Mapping[type, type] = {bool: float, int: float, float: float, str: str, bytes: bytes}
"""What may stand in a sort key -> what it can be compared with."""


class _Tally(msgspec.Struct):
    """What one call has moved so far."""

    active: int = 0
    backoff: int = 0
    gated: list[tuple[Pod, Status]] = msgspec.field(default_factory=list)

    def moved(self) -> Moved:
        if not (self.active or self.backoff or self.gated):
            return NOTHING_MOVED
        return Moved(self.active, self.backoff, tuple(self.gated))


class PodQueue:
    """One domain's queue. `on_error` hears of plugins that raised; it must not call back."""

    def __init__(
        self,
        queue_sort: QueueSortPlugin,
        pre_enqueue: Sequence[PreEnqueuePlugin] = (),
        plugins: Iterable[Plugin] = (),
        *,
        on_error: OnError,
        backoff: BackoffPolicy = BackoffPolicy(),  # noqa: B008  (frozen)
        leftover_s: float = LEFTOVER_S,
        in_flight_events_max: int = IN_FLIGHT_EVENTS_MAX,
        stopwatch: Callable[[], float] | None = None,
    ) -> None:
        """`plugins`: all of the profile, for their EnqueueExtensions; those of `pre_enqueue` need not be repeated.

        `stopwatch`: seconds of a monotonic clock, to time hints by; without one nothing is timed.
        """
        self._queue_sort = queue_sort
        self._gates = Gates(pre_enqueue, on_error)
        self._hints = HintTable([*plugins, *pre_enqueue, ServerRefusals()], on_error, stopwatch)
        self._on_error = on_error
        self._policy = backoff
        self._leftover_s = leftover_s
        self._entries: dict[str, Entry] = {}
        self._active = ActivePods()
        self._backoff = BackoffPods()
        self._parked = ParkedPods()
        self._events = EventsInFlight(in_flight_events_max)
        self._incoming: Counter[tuple[str, str]] = Counter()
        self._set_aside = self._after_flush = 0
        self._order = 0
        self._kinds: tuple[type | None, ...] = ()
        self._types: tuple[type, ...] = ()
        self._now_s = self._overdue_at_s = 0.0

    def __len__(self) -> int:
        """Pods known, in flight included."""
        return len(self._entries)

    def __contains__(self, uid: object) -> bool:
        return uid in self._entries

    # Pods come, change and go

    def add(self, pod: Pod, now_s: float) -> Placement:
        """A pending pod of this domain. A pod already known counts as updated."""
        self._now_s = now_s
        entry = self._entries.get(pod.uid)
        if entry is None:
            return self._admit(pod)
        if entry.place is not Place.LEAVING:
            return self._replace(entry, pod)
        entry.pod = pod
        self._move(entry, Place.IN_FLIGHT, ADDED)
        self._events.record_for(pod.uid, _COME_BACK, None, pod)
        return _placement(entry)

    def update(self, old: Pod, new: Pod, now_s: float) -> Placement | None:
        """Another version of a pod. None if it is unknown here: whether it should be added, the caller knows.

        A change of status alone never moves it. A gated pod is asked anew; an unschedulable one moves if a hint says so.
        """
        self._now_s = now_s
        if old.uid != new.uid:
            self.remove(old.uid)
            return self.add(new, now_s)
        entry = self._entries.get(new.uid)
        return None if entry is None else self._replace(entry, new)

    def remove(self, uid: str) -> Place | None:
        """The pod is gone, or is no longer ours; says where it was. In flight it stays, as leaving, until its attempt ends."""
        entry = self._entries.get(uid)
        if entry is None or entry.place is Place.LEAVING:
            return None if entry is None else Place.LEAVING
        origin = entry.place
        self._move(entry, Place.LEAVING if origin is Place.IN_FLIGHT else Place.ABSENT, "Removed")
        return origin

    def activate(self, uid: str, now_s: float) -> Placement | None:
        """Brings a waiting pod to active at once, gates permitting. In flight: it will not wait for another event."""
        self._now_s = now_s
        entry = self._entries.get(uid)
        if entry is None:
            return None
        if entry.place in _POPPED:
            self._events.record_for(uid, FORCED, None, entry.pod)
        elif entry.place is Place.BACKOFF:
            self._move(entry, Place.ACTIVE, FORCED.label)
        elif entry.place in _PARKED:
            self._requeue(entry, Requeue.AT_ONCE, FORCED.label)
        return _placement(entry)

    # Attempts

    @property
    def has_ready(self) -> bool:
        """True if `pop` would return a pod without any time passing."""
        return bool(len(self._active) or self._backoff.early)

    def pop(self, now_s: float) -> QueuedPod | None:
        """Takes the first pod: of active, else the best that backs off (not after an error). Starts its next attempt."""
        self._now_s = now_s
        if len(self._backoff):
            self._release_backoff()
        entry = self._head()
        return None if entry is None else self._take(entry)

    def fail(self, uid: str, failure: Failure, now_s: float) -> Placement:
        """The attempt did not end in a bind: the pod waits again, where the failure and the events of meanwhile put it."""
        self._now_s = now_s
        entry = self._attempted(uid)
        if entry.place is Place.LEAVING:
            self._move(entry, Place.ABSENT, FAILED)
            return _placement(entry)
        how = self._judge(entry, failure)
        entry.queued_s, entry.order, entry.sort_key = now_s, self._next_order(), None
        entry.message, entry.was_flushed = failure.message, False
        if how is Requeue.SKIP:
            self._move(entry, Place.UNSCHEDULABLE, FAILED)
            if entry.rejectors is _BY_SERVER:
                return self._doom(entry)
        else:
            self._requeue(entry, how, FAILED)
        return _placement(entry)

    def took(self, uid: str, seconds: float) -> None:
        """The attempt under way has taken so long: it counts for more in its namespace's share (`active_pods`)."""
        entry = self._entries.get(uid)
        if entry is not None and entry.place in _POPPED:
            self._active.charge_cost(entry.pod.namespace, seconds, is_retry=entry.is_retry)

    def done(self, uid: str) -> bool:
        """The attempt ended in a bind, or the pod is gone. False if it is unknown here; a queued pod raises."""
        if uid not in self._entries:
            return False
        entry = self._attempted(uid)
        self._after_flush += entry.was_flushed and entry.place is Place.IN_FLIGHT
        self._move(entry, Place.ABSENT, "Done")
        return True

    # The world around

    def on_event(
        self, event: ClusterEvent, old: Object, new: Object, now_s: float, *, priority_max: int | None = None
    ) -> Moved:
        """Moves the parked pods this event may help, of that priority at most. A wildcard with a pod as `new` is for it alone.

        A pod's own leaving of a node, as when Permit turned it away, is no news to the pod itself (as upstream): it would
        be tried again at once, for ever.
        """
        self._now_s = now_s
        if not len(self._parked) and not len(self._events):
            return NOTHING_MOVED
        tally = _Tally()
        if is_wildcard(event) and isinstance(new, Pod):
            self._wake_one(new.uid, event, tally)
            return tally.moved()
        if len(self._events):
            self._events.record(event, old, new, is_of_interest=self._hints.is_of_interest(event))
        if len(self._parked):
            own_uid = old.uid if isinstance(old, Pod) and new is None else ""
            for entry, how in self._parked.affected(event, old, new, self._hints):
                is_told = priority_max is None or entry.pod.spec.priority <= priority_max
                if is_told and entry.pod.uid != own_uid:
                    self._requeue(entry, how, _label(event), tally)
        return tally.moved()

    def hint_durations(self) -> Mapping[tuple[str, str, str], Durations]:
        """(plugin, event, answer) -> how long the sampled hints took. Live: copy to keep."""
        return self._hints.durations

    def hears(self, event: ClusterEvent) -> bool:
        """True if a plugin has registered this kind of event."""
        return self._hints.is_of_interest(event)

    def flush(self, now_s: float) -> Moved:
        """What time alone moves: backoffs that ended, and pods parked for LEFTOVER_S (gated ones are asked anew)."""
        self._now_s = now_s
        tally = _Tally(active=self._release_backoff())
        if self._parked.has_overdue and now_s >= self._overdue_at_s:
            self._overdue_at_s = now_s + OVERDUE_PAUSE_S
            for entry in self._parked.overdue():
                self._requeue(entry, Requeue.AFTER_BACKOFF, UNASKED, tally)
        for uid in self._parked.due(now_s):
            entry = self._entries[uid]
            entry.was_flushed = entry.place is Place.UNSCHEDULABLE
            self._requeue(entry, Requeue.AFTER_BACKOFF, FLUSH.label, tally)
        return tally.moved()

    def next_wakeup_s(self) -> float | None:
        """When `flush` will next have something to do; None if never."""
        overdue_at_s = self._overdue_at_s if self._parked.has_overdue else None
        times = (self._backoff.next_expiry_s(), self._parked.next_deadline_s(), overdue_at_s)
        return min((at_s for at_s in times if at_s is not None), default=None)

    # What is where

    def where(self, uid: str) -> Place | None:
        entry = self._entries.get(uid)
        return None if entry is None else entry.place

    def pod(self, uid: str) -> Pod | None:
        """The pod as it was last seen, also while an attempt goes on with an earlier state of it."""
        entry = self._entries.get(uid)
        return None if entry is None else entry.pod

    def entry(self, uid: str) -> QueueEntry | None:
        entry = self._entries.get(uid)
        return None if entry is None else self._describe(entry)

    def schedulable_since_s(self, uid: str) -> float | None:
        """When the pod could first have been scheduled; None for a pod that is not known."""
        entry = self._entries.get(uid)
        if entry is None:
            return None
        return entry.added_s if entry.first_active_s is None else entry.first_active_s

    def story(self, uid: str) -> Sequence[tuple[float, str, Place]]:
        """The pod's latest moves, oldest first: when, by which event, to where. Empty for a pod that is not known."""
        entry = self._entries.get(uid)
        return () if entry is None else tuple(entry.story)

    def entries(self, place: Place | None = None) -> Iterator[QueueEntry]:
        """All pods, or those in one place, in the order they were added. Iterate without calling anything else here in between."""
        return (self._describe(entry) for entry in self._entries.values() if place is None or entry.place is place)

    def statistics(self) -> QueueStatistics:
        pending = {
            Place.ACTIVE.value: len(self._active),
            Place.BACKOFF.value: len(self._backoff),
            Place.UNSCHEDULABLE.value: self._parked.count(Place.UNSCHEDULABLE),
            Place.GATED.value: self._parked.count(Place.GATED),
        }
        return QueueStatistics(
            pending=MappingProxyType(pending),
            in_flight=len(self._events),
            in_flight_events=self._events.kept,
            event_overflows=self._events.overflows,
            unschedulable_by_plugin=MappingProxyType(self._parked.count_by_plugin()),
            incoming=MappingProxyType(dict(self._incoming)),
            hint_calls=self._hints.calls,
            quarantined=self._parked.held_by(API_SERVER),
            set_aside=self._set_aside,
            bound_after_flush=self._after_flush,
            passed_over=self._active.passed_over,
            namespaces_retrying=self._active.retrying_namespaces,
            namespaces_ahead=self._active.namespaces_ahead,
        )

    def events_in_flight(self) -> Mapping[str, int]:
        """inflight_events{event}. O(events kept)."""
        return self._events.kept_by_label()

    def validate(self) -> None:
        """Raises QueueInvariantError unless every pod is in exactly one index, the one of its place (I3, I10). O(pods)."""
        self._active.validate()
        self._events.validate()
        self._parked.validate()
        indices: tuple[ActivePods | BackoffPods | ParkedPods | EventsInFlight, ...]
        indices = (self._active, self._backoff, self._parked, self._events)
        for uid, entry in self._entries.items():
            homes = [index for index in indices if uid in index]
            if homes != [self._index_of(entry.place)]:
                raise QueueInvariantError(f"pod {uid} is {entry.place}, found in {homes} [{'; '.join(entry.tell())}]")
            if (entry.place is Place.GATED) == entry.gate.is_success:
                raise QueueInvariantError(f"pod {uid} is {entry.place}, its gate says {entry.gate}")
        sizes = [len(index) for index in indices]
        if sum(sizes) != len(self._entries):
            raise QueueInvariantError(f"{sizes} pods indexed, {len(self._entries)} known")

    # How it works

    def _admit(self, pod: Pod) -> Placement:
        entry = Entry(pod.uid, pod, self._next_order(), self._now_s, self._now_s)
        self._entries[pod.uid] = entry
        self._requeue(entry, Requeue.AT_ONCE, ADDED)
        return _placement(entry)

    def _replace(self, entry: Entry, pod: Pod) -> Placement:
        known, entry.pod = entry.pod, pod
        event = own_event(known, pod)
        if entry.place in _POPPED:
            if event is not None:
                self._events.record_for(entry.uid, event, known, pod)
        elif entry.place in _PARKED:
            entry.sort_key = None
            self._parked.reindex(entry)
            if event is not None:
                self._wake_by_itself(entry, event, known)
        else:
            self._sort_anew(entry)
        return _placement(entry)

    def _wake_by_itself(self, entry: Entry, event: ClusterEvent, known: Pod) -> None:
        how = Requeue.AFTER_BACKOFF
        if entry.place is Place.UNSCHEDULABLE:
            listeners = self._hints.listeners(event, entry.rejectors | entry.pending)
            how = self._hints.decide(event, listeners, entry.pending, entry.pod, known, entry.pod)
        if how is not Requeue.SKIP:
            self._requeue(entry, how, _label(event))

    def _wake_one(self, uid: str, event: ClusterEvent, tally: _Tally) -> None:
        entry = self._entries.get(uid)
        if entry is None:
            return
        if entry.place in _POPPED:
            self._events.record_for(uid, event, None, entry.pod)
        elif entry.place in _PARKED:
            self._requeue(entry, Requeue.AFTER_BACKOFF, _label(event), tally)

    def _sort_anew(self, entry: Entry) -> None:
        """An active pod, or one that backs off, was updated: its place in the order may have changed."""
        before, entry.sort_key = entry.sort_key, None
        if before != self._sort_key(entry):
            self._leave(entry)
            self._enter(entry)

    def _head(self) -> Entry | None:
        uid = self._active.head()
        if uid is None:
            uid = self._backoff.early_head()
        return None if uid is None else self._entries[uid]

    def _take(self, entry: Entry) -> QueuedPod:
        if entry.place is Place.BACKOFF:
            self._incoming[Place.ACTIVE, POP_FROM_BACKOFF] += 1
        else:
            self._active.charge(entry.uid)
        entry.attempts += 1
        self._move(entry, Place.IN_FLIGHT, "Popped")
        return QueuedPod(entry.pod, entry.queued_s, entry.attempts)

    def _attempted(self, uid: str) -> Entry:
        entry = self._entries.get(uid)
        if entry is None or entry.place not in _POPPED:
            place, story = (Place.ABSENT, []) if entry is None else (entry.place, entry.tell())
            raise QueueInvariantError(
                f"pod {uid}: an attempt ended that was not under way: {place} [{'; '.join(story)}]"
            )
        return entry

    def _judge(self, entry: Entry, failure: Failure) -> Requeue:
        """Counts the failure, sets the backoff, and looks at what happened since the pop."""
        entry.rejectors = entry.pending = NOBODY
        if failure.without_backoff and entry.conflicts < CONFLICTS_IN_A_ROW:
            entry.conflicts += 1
            entry.backoff_until_s = self._now_s
            return Requeue.AT_ONCE
        entry.conflicts = 0
        is_error = failure.is_error or failure.without_backoff or not (failure.rejectors or failure.pending)
        if is_error:
            entry.errors += 1
            if failure.refusal and entry.note_refusal(failure.refusal):
                entry.rejectors, is_error = _BY_SERVER, False
        else:
            entry.errors, entry.refusals = 0, entry.refusals + 1
            entry.rejectors, entry.pending = failure.rejectors, failure.pending
        entry.backoff_until_s = self._now_s + self._policy.duration_s(entry.errors or entry.refusals)
        return Requeue.AFTER_BACKOFF if is_error else self._missed(entry)

    def _doom(self, entry: Entry) -> Placement:
        self._set_aside += 1
        entry.message = sentence(entry.message or entry.refusal, entry.refusals_alike, self._leftover_s)
        return Placement(entry.place, set_aside=entry.message)

    def _missed(self, entry: Entry) -> Requeue:
        """The strongest answer of the hints about all events since the pop; an overflown log counts as an event."""
        plugins, pending = entry.rejectors | entry.pending, entry.pending
        since = self._events.since(entry.uid)
        how = Requeue.AFTER_BACKOFF if since.is_incomplete else Requeue.SKIP
        if since.anything and (easy := self._hints.woken_by_anything(plugins)):
            how = Requeue.AT_ONCE if easy & pending else Requeue.AFTER_BACKOFF
        strongest = Requeue.AT_ONCE if pending else Requeue.AFTER_BACKOFF
        listeners: dict[int, Any] = {}
        for happened in since.events:
            if how is strongest:
                break
            event = happened.event
            if is_wildcard(event):
                how = max(how, Requeue.AFTER_BACKOFF)
                continue
            if (heard := listeners.get(id(event))) is None:
                heard = listeners[id(event)] = self._hints.listeners(event, plugins)
            if heard:
                how = max(how, self._hints.decide(event, heard, pending, entry.pod, happened.old, happened.new))
        return how

    def _requeue(self, entry: Entry, how: Requeue, event: str, tally: _Tally | None = None) -> None:
        """To active or backoff if every gate admits, else gated."""
        gate = self._gates.ask(entry.pod, entry.gate.plugin)
        if not gate.is_success:
            is_news, entry.gate = gate != entry.gate, gate
            if is_news or entry.place is not Place.GATED:
                self._move(entry, Place.GATED, event)
            else:
                self._enter(entry)
            if is_news and tally is not None:
                tally.gated.append((entry.pod, gate))
            return
        entry.gate = SUCCESS
        backs_off = how is Requeue.AFTER_BACKOFF and entry.backoff_until_s > self._now_s
        self._move(entry, Place.BACKOFF if backs_off else Place.ACTIVE, event)
        if tally is not None:
            tally.backoff += backs_off
            tally.active += not backs_off

    def _release_backoff(self) -> int:
        """Pods whose backoff is over become active; their gates were asked when they came to backoff."""
        released = 0
        while (uid := self._backoff.pop_expired(self._now_s)) is not None:
            self._move(self._entries[uid], Place.ACTIVE, BACKOFF_COMPLETE)
            released += 1
        return released

    def _move(self, entry: Entry, target: Place, event: str) -> None:
        """The only place where an entry changes its place."""
        origin = entry.place
        if (origin, target) not in ALLOWED:
            check(entry.uid, origin, target, entry.tell())
        stays = origin in _POPPED and target in _POPPED
        if not stays:
            self._leave(entry)
        entry.place, entry.since_s = target, self._now_s
        entry.remember(self._now_s, event, target)
        if not stays:
            self._enter(entry)
        if target in _COUNTED:
            self._incoming[target, event] += 1

    def _leave(self, entry: Entry) -> None:
        place = entry.place
        if place is Place.ACTIVE:
            self._active.discard(entry.uid, entry.pod.namespace)
        elif place is Place.BACKOFF:
            self._backoff.discard(entry.uid)
        elif place in _PARKED:
            self._parked.discard(entry.uid)
        elif place in _POPPED:
            self._events.end(entry.uid)

    def _enter(self, entry: Entry) -> None:
        place = entry.place
        if place is Place.ACTIVE:
            if entry.first_active_s is None:
                entry.first_active_s = self._now_s
            push = self._active.push_retry if entry.is_retry else self._active.push_first
            push(entry.uid, entry.pod.namespace, self._sort_key(entry), entry.order)
        elif place is Place.BACKOFF:
            until_s, is_error = entry.backoff_until_s, entry.failed_by_error
            self._backoff.add(entry.uid, until_s, self._sort_key(entry), entry.order, is_error=is_error)
        elif place in _PARKED:
            self._parked.add(entry, self._now_s + self._leftover_s)
        elif place is Place.IN_FLIGHT:
            self._events.begin(entry.uid)
        else:
            del self._entries[entry.uid]

    def _index_of(self, place: Place) -> object:
        indices = {Place.ACTIVE: self._active, Place.BACKOFF: self._backoff}
        return indices.get(place, self._events if place in _POPPED else self._parked)

    def _sort_key(self, entry: Entry) -> tuple[Any, ...]:
        """Computed once per return or update. A QueueSort that raises puts the pod first, so that its failure shows."""
        if entry.sort_key is None:
            try:
                entry.sort_key = self._comparable(
                    self._queue_sort.sort_key(QueuedPod(entry.pod, entry.queued_s, entry.attempts))
                )
            except Exception as error:  # noqa: BLE001  (a plugin ends here)
                self._on_error(self._queue_sort.name, "QueueSort", error)
                entry.sort_key = ()
        return entry.sort_key

    def _comparable(self, key: Any) -> tuple[Any, ...]:
        """The key, if it can be compared with all others: numbers and texts, in the same places as in the first one."""
        if not isinstance(key, tuple):
            raise TypeError(f"sort_key returned {type(key).__name__}, not a tuple")
        types = tuple(map(type, key))
        if types == self._types:
            return key
        kinds = tuple(map(_KINDS.get, types))
        if None in kinds or kinds != (self._kinds or kinds):
            raise TypeError(f"sort_key returned {key!r}, which cannot be compared with the others")
        self._kinds, self._types = kinds, types
        return key

    def _next_order(self) -> int:
        self._order += 1
        return self._order

    def _describe(self, entry: Entry) -> QueueEntry:
        retry_at_s = None
        if entry.place is Place.BACKOFF:
            retry_at_s = entry.backoff_until_s
        elif entry.place in _PARKED:
            retry_at_s = self._parked.deadline_s(entry.uid)
        is_gated = entry.place is Place.GATED
        return QueueEntry(
            uid=entry.uid,
            pod=entry.pod,
            place=entry.place,
            plugins=(entry.gate.plugin,) if is_gated else tuple(sorted(entry.rejectors | entry.pending)),
            message=entry.gate.message if is_gated else entry.message,
            attempts=entry.attempts,
            since_s=entry.since_s,
            retry_at_s=retry_at_s,
            added_s=entry.added_s,
            first_active_s=entry.first_active_s,
            is_quarantined=entry.is_quarantined,
        )


def _placement(entry: Entry) -> Placement:
    return Placement(entry.place, entry.gate)


def _label(event: ClusterEvent) -> str:
    return event.label or event.resource.value
