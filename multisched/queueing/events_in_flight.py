"""The events since each pod was popped, so that no event during an attempt is lost.

Owns the start positions of the attempts in progress and one log of events for all of them. An event is dropped as soon
as no attempt in progress started before it; without attempts the log is empty. A full log is dropped as a whole, and
the attempts in progress then count as affected by an unknown event. Used by `PodQueue` only. Source: kube-scheduler
1.36, active_queue.go (inFlightEvents); keyed by uid, which closes k/k#138316.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping

import msgspec

from multisched.framework.events import ClusterEvent
from multisched.queueing.hints import Object
from multisched.queueing.transitions import QueueInvariantError

IN_FLIGHT_EVENTS_MAX = 10_000
"""Events kept; each keeps two objects in memory."""

POPPED = "PodPopped"
"""The label under which attempts in progress are counted among the events."""


class RecordedEvent(msgspec.Struct, frozen=True):
    """One event with its objects. `uid`: the only pod it is for; empty: all pods."""

    event: ClusterEvent
    old: Object
    new: Object
    uid: str = ""


class MissedEvents(msgspec.Struct, frozen=True):
    """The events since a pod was popped."""

    anything: bool
    """Whether any event occurred that wildcards match, including kinds that no plugin registered."""
    is_incomplete: bool
    """The log overflowed meanwhile, so `events` is incomplete."""
    events: tuple[RecordedEvent, ...]


class _Attempt(msgspec.Struct):
    position: int
    counted: int
    is_touched: bool = False


class EventsInFlight:
    """uid of each attempt in progress → the events since its pop."""

    def __init__(self, limit: int = IN_FLIGHT_EVENTS_MAX) -> None:
        if limit < 1:
            raise ValueError(f"in_flight_events_max must be >= 1, got {limit}")
        self._limit = limit
        self.attempts: OrderedDict[str, _Attempt] = OrderedDict()
        """uid -> attempt, the oldest first. Read by `PodQueue`."""
        self._log: list[RecordedEvent] = []
        self._base = 0
        self._dropped = 0
        self._counted = 0
        self.overflows = 0

    def __len__(self) -> int:
        return len(self.attempts)

    def __contains__(self, uid: object) -> bool:
        return uid in self.attempts

    @property
    def kept(self) -> int:
        """Number of events that an attempt in progress may still need."""
        return len(self._log) - self._dropped

    def kept_by_label(self) -> Mapping[str, int]:
        """inflight_events{event}: events kept, and the attempts they are kept for."""
        counts = Counter(h.event.label or h.event.resource.value for h in self._log[self._dropped :])
        return {**counts, POPPED: len(self.attempts)} if self.attempts else {}

    def begin(self, uid: str) -> None:
        if uid in self.attempts:
            raise QueueInvariantError(f"pod {uid}: popped twice (I2)")
        self.attempts[uid] = _Attempt(self._base + len(self._log), self._counted)

    def end(self, uid: str) -> None:
        """Ends the attempt; drops events that no other attempt needs."""
        may_be_last = bool(self._log) and next(iter(self.attempts), None) == uid
        del self.attempts[uid]
        if may_be_last:
            self._trim()

    def record(self, event: ClusterEvent, old: Object, new: Object, *, is_of_interest: bool) -> None:
        """Records a cluster event. Kinds that no plugin registered are counted but not kept."""
        if not self.attempts:
            return
        self._counted += event.is_in_wildcard
        if is_of_interest:
            self._append(RecordedEvent(event, old, new))

    def record_for(self, uid: str, event: ClusterEvent, old: Object, new: Object) -> None:
        """Records an event for this pod in flight only."""
        self.attempts[uid].is_touched = True
        self._append(RecordedEvent(event, old, new, uid))

    def since(self, uid: str) -> MissedEvents:
        attempt = self.attempts[uid]
        first = max(attempt.position - self._base, 0)
        return MissedEvents(
            anything=attempt.is_touched or self._counted > attempt.counted,
            is_incomplete=attempt.position < self._base,
            events=tuple(h for h in self._log[first:] if not h.uid or h.uid == uid),
        )

    def validate(self) -> None:
        """Raises QueueInvariantError if the log exceeds its limit or keeps unneeded events."""
        needed = min((a.position for a in self.attempts.values()), default=None)
        if self.kept > self._limit:
            raise QueueInvariantError(f"{self.kept} events kept, at most {self._limit} may be (I10)")
        if self.kept and needed is None:
            raise QueueInvariantError(f"{self.kept} events kept for no attempt")
        if needed is not None and self.kept and needed > self._base + self._dropped:
            raise QueueInvariantError(f"events since {self._base + self._dropped} kept, needed since {needed}")

    def _append(self, happened: RecordedEvent) -> None:
        if self.kept >= self._limit:
            self.overflows += 1
            self._forget_all()
        self._log.append(happened)

    def _trim(self) -> None:
        oldest = next(iter(self.attempts.values()), None)
        if oldest is None:
            self._forget_all()
            return
        self._dropped = max(self._dropped, oldest.position - self._base)
        if self._dropped * 2 >= len(self._log):
            del self._log[: self._dropped]
            self._base += self._dropped
            self._dropped = 0

    def _forget_all(self) -> None:
        self._base += len(self._log)
        self._log.clear()
        self._dropped = 0
