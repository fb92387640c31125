"""How entries come back to the order: through the gates, and by themselves or behind the member that leads their gang.

Owns nothing but what it was built with. Called by `PodQueue` alone, which says when.
"""

from __future__ import annotations

from typing import Final

import msgspec

from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod
from multisched.queueing.entry import NOTHING_MOVED, Entry, Moved
from multisched.queueing.gang_entries import GangEntries
from multisched.queueing.gating import Gates
from multisched.queueing.hints import Requeue
from multisched.queueing.places import EntryPlaces
from multisched.queueing.transitions import Place

HEALING_S: Final = -1.0
"""When a gang that has lost members came to the queue: before all that have not begun."""
GANG_COMPLETE, GANG_STARTED, GATHERED = "GangComplete", "GangStarted", "Gathered"


class Tally(msgspec.Struct):
    """What one call has moved so far."""

    active: int = 0
    backoff: int = 0
    gated: list[tuple[Pod, Status]] = msgspec.field(default_factory=list)

    def moved(self) -> Moved:
        if not (self.active or self.backoff or self.gated):
            return NOTHING_MOVED
        return Moved(self.active, self.backoff, tuple(self.gated))


class Readmission:
    """Of one queue."""

    __slots__ = ("_gangs", "_gates", "_places")

    def __init__(self, gates: Gates, places: EntryPlaces, gangs: GangEntries) -> None:
        self._gates = gates
        self._places = places
        self._gangs = gangs

    def requeue(self, entry: Entry, how: Requeue, event: str, now_s: float, tally: Tally | None = None) -> None:
        """To active or backoff if every gate admits, else gated."""
        gate = self._gates.ask(entry.pod, entry.gate.plugin)
        if not gate.is_success:
            self._gangs.step_back(entry)
            is_news, entry.gate = gate != entry.gate, gate
            if is_news or entry.place is not Place.GATED:
                self._places.move(entry, Place.GATED, event, now_s)
            else:
                self._places.park_anew(entry, now_s)
            if is_news and tally is not None:
                tally.gated.append((entry.pod, gate))
            return
        entry.gate = SUCCESS
        if self._gangs.must_start_together(entry) and not self._may_lead(entry, event, now_s):
            return
        backs_off = how is Requeue.AFTER_BACKOFF and entry.backoff_until_s > now_s
        self._places.move(entry, Place.BACKOFF if backs_off else Place.ACTIVE, event, now_s)
        if tally is not None:
            tally.backoff += backs_off
            tally.active += not backs_off

    def _may_lead(self, entry: Entry, event: str, now_s: float) -> bool:
        """True if this one leads its gang; else it stands with the one that does."""
        lead = self._gangs.lead_of(entry)
        if lead is not None and lead is not entry:
            if entry.place is not Place.GANG:
                self._places.move(entry, Place.GANG, event, now_s)
            return False
        if lead is None:
            self._gangs.lead(entry)
            self._gangs.changed(self._gangs.key_of(entry))  # others may have waited for this one
        if self._gangs.is_healing(entry):
            entry.queued_s, entry.sort_key = HEALING_S, None
        return True

    # -- gangs -----------------------------------------------------------------------------------------------------

    def regroup(self, now_s: float) -> None:
        """Members whose gang has started become entries of their own; where it has not, one leads and the others follow."""
        while (key := self._gangs.next_changed()) is not None:
            entries = list(self._gangs.members(key))
            if self._gangs.has_started(key):
                for entry in entries:
                    self._gangs.step_back(entry)
                    if entry.place in (Place.GANG, Place.GATED):
                        self.requeue(entry, Requeue.AFTER_BACKOFF, GANG_STARTED, now_s)
                continue
            for entry in entries:
                if entry.place in (Place.ACTIVE, Place.BACKOFF, Place.UNSCHEDULABLE):
                    self._gather(entry, now_s)
                elif entry.place is Place.GATED or (entry.place is Place.GANG and self._gangs.lead_of(entry) is None):
                    self.requeue(entry, Requeue.AFTER_BACKOFF, GANG_COMPLETE, now_s)

    def take(self, now_s: float) -> list[Entry]:
        """The first entry, or all members of the gang whose lead it is, the lead first. Their attempt begins."""
        if self._gangs.has_changed:
            self.regroup(now_s)
        while (entry := self._places.head()) is not None:
            if not self._gangs.must_start_together(entry):
                self._places.pop(entry, now_s)
                return [entry]
            lead = self._gangs.lead_of(entry)
            if lead is None or lead is entry:
                return self._take_gang(entry, now_s)
            self._places.move(entry, Place.GANG, GATHERED, now_s)
        return []

    def _take_gang(self, lead: Entry, now_s: float) -> list[Entry]:
        self._gangs.lead(lead)
        entries = [lead, *self._gangs.followers(lead)]
        for entry in entries:
            self._places.pop(entry, now_s)
        entries.sort(key=lambda one: (one is not lead, -one.pod.spec.priority, one.order))
        return entries

    def _gather(self, entry: Entry, now_s: float) -> None:
        """An entry of its own, whose gang has to start together: it leads, or goes to the one that does."""
        lead = self._gangs.lead_of(entry)
        if lead is None:
            self._gangs.lead(entry)
        elif lead is not entry:
            self._places.move(entry, Place.GANG, GATHERED, now_s)
