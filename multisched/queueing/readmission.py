"""How entries come back to the order: through the gates, and by themselves or behind the member that leads their gang.

Owns nothing but what it was built with. Called by `PodQueue` alone, which says when.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from multisched.framework.events import ATTEMPT_UNDONE
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod
from multisched.queueing.entry import NOTHING_MOVED, Entry, Moved
from multisched.queueing.gang_entries import STARTED, GangEntries
from multisched.queueing.gang_reservations import GangReservations
from multisched.queueing.gating import Gates
from multisched.queueing.hints import Requeue
from multisched.queueing.places import PARKED, POPPED, EntryPlaces
from multisched.queueing.transitions import Place

GATHERED, JOINED, SORTED, OVERDUE, RESERVES = (
    "GangGathered",
    "GangMemberAdd",
    "GangChanged",
    "GangTimeout",
    "GangReserves",
)
"""Events in the stories of members: one leads, another came, the gang changed, its timeout passed, its turn to reserve began or ended."""


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

    __slots__ = ("_gangs", "_gates", "_places", "on_gated", "reservations")

    def __init__(self, gates: Gates, places: EntryPlaces, gangs: GangEntries) -> None:
        self._gates = gates
        self._places = places
        self._gangs = gangs
        self.on_gated: Callable[[str], None] = _nobody
        """Called with the uid of each pod that a gate refuses; must not call back."""
        self.reservations = GangReservations(gangs)

    def requeue(self, entry: Entry, how: Requeue, event: str, now_s: float, tally: Tally | None = None) -> None:
        """To active or backoff if every gate admits, else gated."""
        gate = self._gates.ask(entry.pod, entry.gate.plugin)
        if not gate.is_success:
            self._hold(entry, gate, event, now_s, tally)
            return
        entry.gate = SUCCESS
        if self._gangs.must_start_together(entry) and not self._leads(entry, event, now_s, tally):
            return
        backs_off = how is Requeue.AFTER_BACKOFF and entry.backoff_until_s > now_s
        self._places.move(entry, Place.BACKOFF if backs_off else Place.ACTIVE, event, now_s)
        if tally is not None:
            tally.backoff += backs_off
            tally.active += not backs_off

    def wake(self, entry: Entry, how: Requeue, event: str, now_s: float, tally: Tally) -> None:
        """As `requeue`, for one of several: whom a member before it has woken with its gang, is not woken again."""
        if entry.place in PARKED:
            is_undone = event == ATTEMPT_UNDONE.label
            entry.waits_out_backoff = is_undone and self._gangs.must_start_together(entry)
            self.requeue(entry, how, event, now_s, tally)

    def ask_again(self, event: str, now_s: float) -> list[tuple[Pod, Status]]:
        """There are other gates: entries in the order that one of them refuses are gated. Who follows a lead is asked with it."""
        tally = Tally()
        for entry in list(self._places.entries.values()):
            if entry.place in (Place.ACTIVE, Place.BACKOFF):
                gate = self._gates.ask(entry.pod, "")
                if not gate.is_success:
                    self._hold(entry, gate, event, now_s, tally)
        return tally.gated

    def _hold(self, entry: Entry, gate: Status, event: str, now_s: float, tally: Tally | None) -> None:
        """A gate refuses the pod."""
        self._gangs.step_back(entry)
        self._gangs.wait(entry, now_s)
        is_news, entry.gate = gate != entry.gate, gate
        if is_news or entry.place is not Place.GATED:
            self._places.move(entry, Place.GATED, event, now_s)
        else:
            self._places.park_anew(entry, now_s)
        if is_news and tally is not None:
            tally.gated.append((entry.pod, gate))
        self.on_gated(entry.uid)

    # -- gangs -----------------------------------------------------------------------------------------------------

    def follows(self, entry: Entry, now_s: float) -> bool:
        """After an attempt of its gang: True if another member leads already. The first that fails leads from then on."""
        if not self._gangs.must_start_together(entry):
            return False
        lead = self._gangs.lead_of(entry)
        if lead is not None and lead is not entry and lead.place not in POPPED:
            return True
        self._gangs.lead(entry, now_s)
        return False

    def regroup(self, now_s: float, tally: Tally) -> None:
        """Members whose gang has started become entries of their own; where it has not, one leads and the others follow."""
        while (key := self._gangs.next_changed()) is not None:
            self._gangs.retime(key, now_s)
            why = self._gangs.why_not_yet(key)
            if not self._gangs.is_sorted(key, why):
                if why == STARTED:
                    self._gangs.start(key)
                for entry in self._gangs.own(key):
                    if entry.place not in POPPED:
                        self._sort(entry, why, now_s, tally)
            if self._gangs.asks_otherwise(key):
                self._try_anew(key, now_s, tally)

    def _try_anew(self, key: str, now_s: float, tally: Tally) -> None:
        """What the gang asks for has changed: a refusal of what it asked for before says nothing any more."""
        for entry in self._gangs.own(key):
            if entry.place is Place.UNSCHEDULABLE:
                self.requeue(entry, Requeue.AFTER_BACKOFF, SORTED, now_s, tally)

    def wake_lead(self, entry: Entry, now_s: float, tally: Tally | None = None) -> None:
        """Something may have helped this member, which stands with its lead: it is the lead that waits for events."""
        lead = self._gangs.lead_of(entry)
        if lead is not None and lead.place is Place.UNSCHEDULABLE:
            self.requeue(lead, Requeue.AFTER_BACKOFF, JOINED, now_s, tally)

    def overdue(self, now_s: float, tally: Tally) -> None:
        """Gangs that have waited too long: those who wait for members hear of it, the others in an attempt at once.

        One of them may reserve room; that begins and ends with an attempt, too.
        """
        for key in self._gangs.overdue(now_s):
            for entry in self._gangs.own(key):
                if entry.place in (Place.GATED, Place.UNSCHEDULABLE):
                    self.requeue(entry, Requeue.AT_ONCE, OVERDUE, now_s, tally)
        if key := self.reservations.change(now_s):
            self._reserve(key, now_s, tally)

    def next_due_s(self) -> float | None:
        """When `overdue` will have something to do; None: never, as things stand."""
        times = (self._gangs.next_due_s(), self.reservations.next_s())
        return min((at_s for at_s in times if at_s is not None), default=None)

    def _reserve(self, key: str, now_s: float, tally: Tally) -> None:
        """It is the gang's turn to reserve room, or was until now: it is tried at once."""
        for entry in self._gangs.members(key):
            if entry.place is Place.UNSCHEDULABLE:
                self.requeue(entry, Requeue.AT_ONCE, RESERVES, now_s, tally)

    def take(self, now_s: float) -> list[Entry]:
        """The first entry, or all members of the gang that it leads. Their attempt begins."""
        while (entry := self._places.head()) is not None:
            if not self._gangs.are_any or not self._gangs.must_start_together(entry):
                self._places.pop(entry, now_s)
                if self._gangs.are_any:
                    self._gangs.tries((entry,))
                return [entry]
            lead = self._gangs.lead_of(entry)
            if lead is None:
                self._gangs.lead(entry, now_s)
            elif lead is not entry:
                self._places.move(entry, Place.GANG, GATHERED, now_s)
                continue
            entry = self._healing_before(entry)
            entries = [entry, *(one for one in self._gangs.followers(entry) if self._is_admitted(one, now_s))]
            for one in entries:
                one.was_flushed = entry.was_flushed
                self._places.pop(one, now_s)
            self._gangs.tries(entries)
            return entries
        return []

    def _healing_before(self, entry: Entry) -> Entry:
        """Who leads a gang that heals and stands before this one in the order, also where it backs off; else this one.

        A gang that backs off longer than others would lose each room that comes to those.
        """
        able = (Place.ACTIVE, Place.BACKOFF)
        leads = [
            one
            for one in self._gangs.healing()
            if one.place in able and not (one.failed_by_error or one.waits_out_backoff)
        ]
        return min((entry, *leads), key=self._places.sort_key)

    def _is_admitted(self, entry: Entry, now_s: float) -> bool:
        """False, and the follower is gated, if a gate refuses it by now: its victims are on their way, for instance.

        While it followed nobody asked. Another lead may have come since, for which the gates had nothing to refuse.
        """
        gate = self._gates.ask(entry.pod, entry.gate.plugin)
        if not gate.is_success:
            self._gangs.wait(entry, now_s)
            entry.gate = gate
            self._places.move(entry, Place.GATED, GATHERED, now_s)
            self.on_gated(entry.uid)
        return gate.is_success

    def _leads(self, entry: Entry, event: str, now_s: float, tally: Tally | None) -> bool:
        """True if this one leads its gang; else it stands with the one that does."""
        lead = self._gangs.lead_of(entry)
        if lead is not None and lead is not entry:
            if entry.place is not Place.GANG:
                self._places.move(entry, Place.GANG, event, now_s)
            self._came(entry, lead, now_s, tally)
            return False
        if lead is None:
            self._gangs.lead(entry, now_s)
        entry.is_healing, entry.sort_key = self._gangs.heal(entry), None
        return True

    def _came(self, entry: Entry, lead: Entry, now_s: float, tally: Tally | None) -> None:
        """Another member: the gang may stand elsewhere in the order, and fit where it did not."""
        self.wake_lead(entry, now_s, tally)
        if lead.place in (Place.ACTIVE, Place.BACKOFF) and self._gangs.is_before(entry, lead):
            self._gangs.lead(lead, now_s)
            self._places.sort_anew(lead, now_s)

    def _sort(self, entry: Entry, why: str, now_s: float, tally: Tally) -> None:
        """A member of a gang that is other than it was."""
        if why == STARTED:
            if entry.place in (Place.GANG, Place.GATED):
                self.requeue(entry, Requeue.AFTER_BACKOFF, SORTED, now_s, tally)
            elif entry.place is not Place.UNSCHEDULABLE:
                self._places.sort_anew(entry, now_s)
        elif why or entry.place is Place.GATED:
            self.requeue(entry, Requeue.AFTER_BACKOFF, SORTED, now_s, tally)
        elif (lead := self._gangs.lead_of(entry)) is None:
            if entry.place is Place.GANG:
                self.requeue(entry, Requeue.AFTER_BACKOFF, SORTED, now_s, tally)
            else:
                self._gangs.lead(entry, now_s)
        elif lead is not entry and entry.place is not Place.GANG:
            self._places.move(entry, Place.GANG, GATHERED, now_s)


def _nobody(uid: str) -> None:
    """Nobody listens yet."""
