"""The entries of one queue, each in exactly one state (I3), and every move between two states.

Owns the entries and the index of each state: the order of active entries, backoff, parked entries, and attempts in
progress. No other code changes these indices. An entry is identified by its uid and its namespace, whichever pods it
represents. Used by `PodQueue` only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, Final

from multisched.framework.points import QueueSortPlugin
from multisched.model.objects import Pod
from multisched.queueing.active_pods import ActivePods
from multisched.queueing.backoff import ORDERING_WINDOW_S, BackoffPods
from multisched.queueing.entry import TRANSITIONS_KEPT, Entry, QueueEntry, QueueStatistics
from multisched.queueing.events_in_flight import EventsInFlight
from multisched.queueing.gang_entries import GangEntries
from multisched.queueing.parked_pods import ParkedPods
from multisched.queueing.quarantine import API_SERVER
from multisched.queueing.sort_keys import SortKeys
from multisched.queueing.transitions import ALLOWED, POPPED, QueueInvariantError, QueueState, check

BACKOFF_COMPLETE, POP_FROM_BACKOFF = "BackoffComplete", "PopFromBackoffQ"

_ACTIVE: Final = QueueState.ACTIVE
"""These are bound once: an enum member look-up takes Python 3.11 as long as three calls."""
_BACKOFF: Final = QueueState.BACKOFF
_GANG: Final = QueueState.GANG
_GATED: Final = QueueState.GATED
_IN_FLIGHT: Final = QueueState.IN_FLIGHT
_UNSCHEDULABLE: Final = QueueState.UNSCHEDULABLE

PARKED: Final = frozenset({_UNSCHEDULABLE, _GATED})
_COUNTED: Final = frozenset({_ACTIVE, _BACKOFF, _UNSCHEDULABLE, _GATED, _GANG})


class EntryStates:
    """uid -> entry, and its state."""

    __slots__ = (
        "_active",
        "_backoff",
        "_events",
        "_gangs",
        "_incoming",
        "_parked",
        "_sort_keys",
        "entries",
        "leftover_s",
    )

    def __init__(
        self,
        active: ActivePods,
        backoff: BackoffPods,
        parked: ParkedPods,
        events: EventsInFlight,
        sort_keys: SortKeys,
        gangs: GangEntries,
        leftover_s: float,
    ) -> None:
        self._active = active
        self._backoff = backoff
        self._parked = parked
        self._events = events
        self._sort_keys = sort_keys
        self._gangs = gangs
        self.leftover_s = leftover_s
        """How long an entry stays parked at most."""
        self.entries: dict[str, Entry] = {}
        """In the order they were added. Read by other classes."""
        self._incoming: Counter[tuple[str, str]] = Counter()

    def admit(self, entry: Entry) -> None:
        """Adds a new entry, which must be moved to a state at once."""
        self.entries[entry.uid] = entry

    def move(self, entry: Entry, target: QueueState, event: str, now_s: float) -> None:
        """Moves an entry; its state changes nowhere else. Raises QueueInvariantError for a forbidden step."""
        origin = entry.state
        if (origin, target) not in ALLOWED:
            check(entry.uid, origin, target, entry.history())
        stays = origin in POPPED and target in POPPED
        if not stays:
            self._leave(entry)
        entry.state, entry.since_s = target, now_s
        entry.transitions.append((now_s, event, target))
        if len(entry.transitions) > TRANSITIONS_KEPT:
            del entry.transitions[0]
        if entry.represents is not None:
            self._parked.representatives.moved(entry)
        if not stays:
            self._enter(entry, now_s)
        if target in _COUNTED:
            self._incoming[target, event] += 1

    def park_anew(self, entry: Entry, now_s: float) -> None:
        """Parks an entry again that a gate refused as before, with a new deadline."""
        self._enter(entry, now_s)

    def reindex(self, entry: Entry, now_s: float) -> None:
        """Updates the indices after a queued entry's pod was replaced: its order or its events may have changed."""
        before, entry.sort_key = entry.sort_key, None
        if entry.state in PARKED:
            self._parked.reindex(entry)
        elif entry.state is not _GANG and before != self._sort_keys.of(entry):
            self.sort_anew(entry, now_s)

    def sort_anew(self, entry: Entry, now_s: float) -> None:
        """Sorts an entry again after an input of its sort key changed."""
        entry.sort_key = None
        self._leave(entry)
        self._enter(entry, now_s)

    def use(self, plugin: QueueSortPlugin, now_s: float) -> None:
        """Applies another QueueSort and sorts everything again. Keys of two plugins are never compared."""
        if plugin is self._sort_keys.plugin:
            return
        waiting = [entry for entry in self.entries.values() if entry.state is _ACTIVE or entry.state is _BACKOFF]
        for entry in waiting:
            self._leave(entry)
        self._sort_keys.use(plugin)
        for entry in self.entries.values():
            entry.sort_key = None
        for entry in waiting:
            self._enter(entry, now_s)

    def sort_key(self, entry: Entry) -> tuple[Any, ...]:
        """Returns QueueSort's key of the entry."""
        return self._sort_keys.of(entry)

    def head(self) -> Entry | None:
        """Returns the first active entry, else the best one in backoff (not after an error)."""
        uid = self._active.head()
        if uid is None:
            uid = self._backoff.early_head()
        return None if uid is None else self.entries[uid]

    def pop(self, entry: Entry, now_s: float) -> None:
        """Starts an attempt of the head, or of a gang member that follows it."""
        if entry.state is _BACKOFF:
            self._incoming[_ACTIVE, POP_FROM_BACKOFF] += 1
        elif entry.state is _ACTIVE:
            self._active.charge(entry.uid)
        entry.attempts += 1
        entry.waits_out_backoff = False
        self.move(entry, _IN_FLIGHT, "Popped", now_s)

    def release_backoff(self, now_s: float) -> int:
        """Moves entries whose backoff has ended to active; their gates ran when they entered backoff."""
        released = 0
        while (uid := self._backoff.pop_expired(now_s)) is not None:
            entry = self.entries[uid]
            self.yield_to_refused(entry)
            if entry.backoff_until_s > now_s:
                self._enter(entry, now_s)
                continue
            self.move(entry, _ACTIVE, BACKOFF_COMPLETE, now_s)
            released += 1
        return released

    def yield_to_refused(self, entry: Entry) -> None:
        """Extends the backoff of a gang whose attempt held capacity and failed: gangs that were refused meanwhile are tried first.

        The backoff ends a second after theirs, and no event ends it earlier. Without this, two such gangs that are requeued
        in turns would block a third gang forever, although it would fit.
        """
        if not self._gangs.has_failed_while_holding(entry.uid):
            return
        entry.waits_out_backoff = True
        others = (self.entries[uid] for uid in self._backoff if uid != entry.uid)
        ends_s = [
            one.backoff_until_s
            for one in others
            if one.waits_out_backoff and not self._gangs.has_failed_while_holding(one.uid)
        ]
        entry.backoff_until_s = max([entry.backoff_until_s, *(end_s + ORDERING_WINDOW_S for end_s in ends_s)])

    def statistics(self, *, hint_calls: int, quarantines: int, bound_after_flush: int) -> QueueStatistics:
        """Returns the counts of all places, with counters of other classes."""
        pending = {
            _ACTIVE.value: len(self._active),
            _BACKOFF.value: len(self._backoff),
            _UNSCHEDULABLE.value: self._parked.count(_UNSCHEDULABLE),
            _GATED.value: self._parked.count(_GATED),
            _GANG.value: len(self._gangs),
        }
        return QueueStatistics(
            pending=MappingProxyType(pending),
            in_flight=len(self._events),
            in_flight_events=self._events.kept,
            event_overflows=self._events.overflows,
            unschedulable_by_plugin=MappingProxyType(self._parked.count_by_plugin()),
            incoming=MappingProxyType(dict(self._incoming)),
            hint_calls=hint_calls,
            quarantined=self._parked.held_by(API_SERVER),
            quarantines=quarantines,
            bound_after_flush=bound_after_flush,
            gangs_reserving=int(bool(self._gangs.turns.holder)),
            reservations=self._gangs.turns.begun,
            reservations_expired=self._gangs.turns.expired,
            passed_over=self._active.passed_over,
            namespaces_retrying=self._active.retrying_namespaces,
            namespaces_ahead=self._active.namespaces_ahead,
        )

    def describe(self, entry: Entry) -> QueueEntry:
        retry_at_s = None
        if entry.state is _BACKOFF:
            retry_at_s = entry.backoff_until_s
        elif entry.state in PARKED:
            retry_at_s = self._parked.deadline_s(entry.uid)
        is_gated = entry.state is _GATED
        return QueueEntry(
            uid=entry.uid,
            pod=entry.pod,
            state=entry.state,
            plugins=(entry.gate.plugin,) if is_gated else tuple(sorted(entry.rejectors | entry.pending)),
            message=entry.gate.message if is_gated else entry.message,
            attempts=entry.attempts,
            since_s=entry.since_s,
            retry_at_s=retry_at_s,
            added_s=entry.added_s,
            first_active_s=entry.first_active_s,
            queued_s=entry.ranks_since_s,
            is_quarantined=entry.is_quarantined,
            waits_out_backoff=entry.waits_out_backoff,
        )

    def validate(self) -> None:
        """Raises QueueInvariantError unless every entry is in exactly one index, that of its state (I3, I10). O(entries)."""
        self._active.validate()
        self._events.validate()
        self._parked.validate()
        indices: tuple[ActivePods | BackoffPods | ParkedPods | EventsInFlight | GangEntries, ...]
        indices = (self._active, self._backoff, self._parked, self._events, self._gangs)
        for uid, entry in self.entries.items():
            homes = [index for index in indices if uid in index]
            if homes != [self._index_of(entry.state)]:
                raise QueueInvariantError(
                    f"pod {uid} is {entry.state}, found in {homes} [{'; '.join(entry.history())}]"
                )
            if (entry.state is _GATED) == entry.gate.is_success:
                raise QueueInvariantError(f"pod {uid} is {entry.state}, its gate says {entry.gate}")
        sizes = [len(index) for index in indices]
        if sum(sizes) != len(self.entries):
            raise QueueInvariantError(f"{sizes} pods indexed, {len(self.entries)} known")

    def _leave(self, entry: Entry) -> None:
        state = entry.state
        if state is _ACTIVE:
            self._active.discard(entry.uid, entry.pod.namespace)
        elif state in POPPED:
            self._events.end(entry.uid)
        elif state is _BACKOFF:
            self._backoff.discard(entry.uid)
        elif state in PARKED:
            self._parked.discard(entry.uid)
        elif state is _GANG:
            self._gangs.unfollow(entry)

    def _enter(self, entry: Entry, now_s: float) -> None:
        state = entry.state
        if state is _ACTIVE:
            if entry.first_active_s is None:
                entry.first_active_s = now_s
            push = self._active.push_retry if entry.is_retry else self._active.push_first
            push(entry.uid, entry.pod.namespace, self._sort_keys.of(entry), entry.order)
        elif state is _IN_FLIGHT:
            self._events.begin(entry.uid)
        elif state is _BACKOFF:
            until_s, is_error = entry.backoff_until_s, entry.failed_by_error or entry.waits_out_backoff
            self._backoff.add(entry.uid, until_s, self._sort_keys.of(entry), entry.order, is_error=is_error)
        elif state in PARKED:
            self._parked.add(entry, now_s + self.leftover_s)
        elif state is _GANG:
            if entry.first_active_s is None:
                entry.first_active_s = now_s
            self._gangs.follow(entry)
        else:
            del self.entries[entry.uid]
            self._gangs.leave(entry)

    def _index_of(self, state: QueueState) -> object:
        indices = {_ACTIVE: self._active, _BACKOFF: self._backoff, _GANG: self._gangs}
        return indices.get(state, self._events if state in POPPED else self._parked)


class EntryOrder:
    """The pods of a queue, and their order by a QueueSort that depends on more than the pods."""

    __slots__ = ("_states",)

    def __init__(self, states: EntryStates) -> None:
        self._states = states

    def pods(self) -> list[Pod]:
        """Returns the latest versions of all pods, including those in flight, in the order they were added."""
        return [entry.pod for entry in self._states.entries.values() if entry.state is not QueueState.LEAVING]

    def sort_anew(self, uids: Iterable[str], now_s: float) -> None:
        """Asks QueueSort for the keys of these pods again. Unknown pods are ignored."""
        for uid in uids:
            entry = self._states.entries.get(uid)
            if entry is not None and entry.state not in POPPED and entry.state not in PARKED:
                self._states.reindex(entry, now_s)
