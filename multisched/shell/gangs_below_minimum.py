"""Records an event on the running members of gangs that stay below their minimum for longer than their timeout.

Pending members have a condition with the reason. Running members of a gang whose other members were deleted or never bound have none.
Owns the time since which each gang has been below its minimum. Run by `Program`.
"""

from __future__ import annotations

import asyncio
from typing import Final

from multisched.framework.ports import Clock, Event, EventSink, pod_ref
from multisched.shell.ingest.router import Router
from multisched.state.cluster_cache import ClusterCache
from multisched.state.gang_roster import Gang

PERIOD_S: Final = 10.0
"""Period of the check of all gangs."""


class GangsBelowMinimum:
    """Periodic check of the gangs of all domains."""

    def __init__(self, cache: ClusterCache, router: Router, events: EventSink, clock: Clock) -> None:
        self._cache = cache
        self._router = router
        self._events = events
        self._clock = clock
        self._since_s: dict[str, float] = {}
        """Key of each gang below its minimum -> monotonic seconds at which it was first seen so."""
        self._reported: set[str] = set()

    async def run(self) -> None:
        """Checks periodically until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.look(self._clock.monotonic())

    def look(self, now_s: float) -> None:
        """Reports each overdue gang once per period below its minimum, and notes it for the status of its PodGroup."""
        below = {gang.key: gang for gang in self._cache.gangs.gangs() if gang.bound and gang.needs > 0}
        self._since_s = {key: self._since_s.get(key, now_s) for key in below}
        self._reported = {
            key for key in self._reported & below.keys() if now_s - self._since_s[key] >= below[key].timeout_s
        }
        for key, gang in below.items():
            is_due = key not in self._reported and now_s - self._since_s[key] >= gang.timeout_s
            if is_due and self._report(gang):
                self._reported.add(key)
            # Repeated, because a bind that is refused later clears the mark.
            if key in self._reported and not gang.is_overdue:
                self._cache.gangs.note_overdue(key)

    def _report(self, gang: Gang) -> bool:
        """Records the events. Returns False if this process leads no member's domain; a later leader then reports the gang."""
        spec, is_heard = gang.spec, False
        if spec is None:
            return False
        finished = f", and {gang.succeeded} have finished" if gang.succeeded else ""
        note = (
            f"gang {gang.key} has been below its minimum for {gang.timeout_s:g} s:"
            f" {gang.bound} of {spec.min_members} members run{finished}"
        )
        for uid, member in gang.members.items():
            entry = self._cache.placed(uid)
            worker = None if entry is None else self._router.worker_of(entry.pod)
            if entry is None or worker is None or not member.is_bound or not worker.is_leading:
                continue
            by = entry.pod.spec.scheduler_name
            self._events.record(Event(pod_ref(entry.pod), "Warning", "GangBelowMinimum", "Scheduling", note, by))
            is_heard = True
        return is_heard
