"""Requeues entries: runs the gates, then moves the entry to active or backoff, or makes it follow the lead of its gang.

Its only own state is `reservations`. Called only by `PodQueue`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from multisched.framework.events import ATTEMPT_UNDONE
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod, PodSpec
from multisched.queueing.entry import NOTHING_MOVED, Entry, Moved
from multisched.queueing.entry_states import PARKED, EntryStates
from multisched.queueing.gang_entries import STARTED, GangEntries
from multisched.queueing.gang_reservations import GangReservations
from multisched.queueing.gating import Gates
from multisched.queueing.hints import Requeue
from multisched.queueing.parked_pods import ParkedPods
from multisched.queueing.transitions import POPPED, QueueState

GATHERED, JOINED, SORTED, OVERDUE, RESERVES = (
    "GangGathered",
    "GangMemberAdd",
    "GangChanged",
    "GangTimeout",
    "GangReserves",
)
"""Events in the moves of members: joined the lead, a member was added, the gang changed, it timed out, a turn to reserve began or ended."""

REPRESENTED = "RepresentativeTried"
"""The event of pods that are requeued because an equal pod was tried (`representatives`)."""

_AFTER_BACKOFF: Final = Requeue.AFTER_BACKOFF
"""These are bound once: an enum member look-up takes Python 3.11 as long as three calls."""
_ACTIVE: Final = QueueState.ACTIVE


class MovedCounts(msgspec.Struct):
    """Counts of the pods that one call has moved so far."""

    active: int = 0
    backoff: int = 0
    gated: list[tuple[Pod, Status]] = msgspec.field(default_factory=list)

    def moved(self) -> Moved:
        if not (self.active or self.backoff or self.gated):
            return NOTHING_MOVED
        return Moved(self.active, self.backoff, tuple(self.gated))


class Readmission:
    """Requeues the entries of one queue."""

    __slots__ = ("_gangs", "_gates", "_parked", "_states", "on_gated", "reservations")

    def __init__(self, gates: Gates, states: EntryStates, gangs: GangEntries, parked: ParkedPods) -> None:
        self._gates = gates
        self._states = states
        self._gangs = gangs
        self._parked = parked
        self.on_gated: Callable[[str], None] = _ignore
        """Called with the uid of each pod that a gate refuses; must not call this queue."""
        self.reservations = GangReservations(gangs)

    def requeue(self, entry: Entry, how: Requeue, event: str, now_s: float, tally: MovedCounts | None = None) -> None:
        """Moves the entry to active or backoff if every gate admits it, else to gated."""
        gate = self._gates.ask(entry.pod, entry.gate.plugin)
        if not gate.is_success:
            self._hold(entry, gate, event, now_s, tally)
            return
        entry.gate = SUCCESS
        if self._gangs.must_start_together(entry.uid) and not self._leads(entry, event, now_s, tally):
            return
        backs_off = False
        if how is _AFTER_BACKOFF:
            self._states.yield_to_refused(entry)
            backs_off = entry.backoff_until_s > now_s
        self._states.move(entry, QueueState.BACKOFF if backs_off else _ACTIVE, event, now_s)
        if tally is not None:
            tally.backoff += backs_off
            tally.active += not backs_off

    def wake(self, entry: Entry, how: Requeue, event: str, now_s: float, tally: MovedCounts) -> None:
        """Requeues one of several entries; skips entries that were already requeued with their gang."""
        if entry.state in PARKED:
            is_undone = event == ATTEMPT_UNDONE.label
            entry.waits_out_backoff = is_undone and self._gangs.must_start_together(entry.uid)
            self.requeue(entry, how, event, now_s, tally)

    def wake_due(self, now_s: float, tally: MovedCounts) -> None:
        """Handles each class whose representative is no longer tried.

        Requeues the next representative, or all pods of the class if other plugins refused the last one.
        """
        representatives = self._parked.representatives
        for where, are_all in representatives.take_due():
            members = self._parked.members(where)
            next_ones = list(members.values()) if are_all else representatives.choose(where, members, "", (), now_s)
            for entry in next_ones:
                self.wake(entry, Requeue.AFTER_BACKOFF, REPRESENTED, now_s, tally)

    def ask_again(self, event: str, now_s: float) -> list[tuple[Pod, Status]]:
        """Runs the new gates for active entries and entries in backoff; gates those refused. Followers are checked with their lead."""
        tally = MovedCounts()
        for entry in list(self._states.entries.values()):
            if entry.state in (QueueState.ACTIVE, QueueState.BACKOFF):
                gate = self._gates.ask(entry.pod, "")
                if not gate.is_success:
                    self._hold(entry, gate, event, now_s, tally)
        return tally.gated

    def _hold(self, entry: Entry, gate: Status, event: str, now_s: float, tally: MovedCounts | None) -> None:
        """Gates an entry that a gate refused."""
        self._gangs.unset_lead(entry)
        self._gangs.start_timeout(entry, now_s)
        is_news, entry.gate = gate != entry.gate, gate
        if is_news or entry.state is not QueueState.GATED:
            self._states.move(entry, QueueState.GATED, event, now_s)
        else:
            self._states.park_anew(entry, now_s)
        if is_news and tally is not None:
            tally.gated.append((entry.pod, gate))
        self.on_gated(entry.uid)

    # -- gangs -----------------------------------------------------------------------------------------------------

    def follows_lead(self, entry: Entry, now_s: float) -> bool:
        """Reports, after a failed attempt of its gang, whether another member leads. If not, this entry becomes the lead."""
        if not self._gangs.must_start_together(entry.uid):
            return False
        if self._gangs.other_lead_of(entry) is not None:
            return True
        self._gangs.set_lead(entry, now_s)
        return False

    def regroup(self, now_s: float, tally: MovedCounts) -> None:
        """Regroups the entries of changed gangs: separate entries if the gang has started, else one lead with followers."""
        while (key := self._gangs.next_changed()) is not None:
            self._gangs.update_timeout(key, now_s)
            why = self._gangs.why_not_yet(key)
            if self._gangs.note_wait_reason(key, why):
                if why == STARTED:
                    self._gangs.on_gang_start(key)
                for entry in self._gangs.entries_of(key):
                    if entry.state not in POPPED:
                        self._sort(entry, why, now_s, tally)
            if self._gangs.have_requirements_changed(key):
                self._try_anew(key, now_s, tally)

    def _try_anew(self, key: str, now_s: float, tally: MovedCounts) -> None:
        """Requeues the gang's unschedulable entries, because its requirements have changed since they were refused."""
        for entry in self._gangs.entries_of(key):
            if entry.state is QueueState.UNSCHEDULABLE:
                self.requeue(entry, Requeue.AFTER_BACKOFF, SORTED, now_s, tally)

    def wake_lead(self, entry: Entry, now_s: float, tally: MovedCounts | None = None) -> None:
        """Requeues the lead if it is unschedulable, because an event may have helped this follower: only leads wait for events."""
        lead = self._gangs.lead_of(entry)
        if lead is not None and lead.state is QueueState.UNSCHEDULABLE:
            self.requeue(lead, Requeue.AFTER_BACKOFF, JOINED, now_s, tally)

    def flush_gangs(self, now_s: float, tally: MovedCounts) -> None:
        """Handles gangs that exceeded their timeout.

        Requeues their gated and unschedulable members: a gang that lacks members is gated again with the timeout message, any other is
        tried. Also begins or ends a gang's turn to reserve capacity, and then tries that gang.
        """
        for key in self._gangs.overdue(now_s):
            for entry in self._gangs.entries_of(key):
                if entry.state in (QueueState.GATED, QueueState.UNSCHEDULABLE):
                    self.requeue(entry, Requeue.AT_ONCE, OVERDUE, now_s, tally)
        if key := self.reservations.change(now_s):
            self._reserve(key, now_s, tally)

    def next_due_s(self) -> float | None:
        """Returns the next time at which `flush_gangs` has work; None: never."""
        times = (self._gangs.next_due_s(), self.reservations.next_s())
        return min((at_s for at_s in times if at_s is not None), default=None)

    def _reserve(self, key: str, now_s: float, tally: MovedCounts) -> None:
        """Tries the gang at once: its turn to reserve capacity has begun or ended."""
        for entry in self._gangs.members(key):
            if entry.state is QueueState.UNSCHEDULABLE:
                self.requeue(entry, Requeue.AT_ONCE, RESERVES, now_s, tally)

    def take(self, now_s: float, like: PodSpec | None = None) -> list[Entry]:
        """Starts the attempt of the first entry, or of all members of its gang; returns them. `like`: the spec that the first must have."""
        are_gangs = self._gangs.are_any
        while (entry := self._states.head()) is not None:
            if like is not None and entry.pod.spec is not like:
                return []
            if not are_gangs:
                self._states.pop(entry, now_s)
                return [entry]
            if not self._gangs.must_start_together(entry.uid):
                self._states.pop(entry, now_s)
                self._gangs.note_attempt((entry,))
                return [entry]
            lead = self._gangs.lead_of(entry)
            if lead is None:
                self._gangs.set_lead(entry, now_s)
            elif lead is not entry:
                self._states.move(entry, QueueState.GANG, GATHERED, now_s)
                continue
            entry = self._recovering_gang_before(entry)
            entries = [entry, *(one for one in self._gangs.followers(entry) if self._is_admitted(one, now_s))]
            for one in entries:
                one.was_flushed = entry.was_flushed
                self._states.pop(one, now_s)
            self._gangs.note_attempt(entries)
            return entries
        return []

    def _recovering_gang_before(self, entry: Entry) -> Entry:
        """Returns the lead of a partly placed gang that sorts before this entry, even if it is in backoff; else this entry.

        Otherwise a gang with a longer backoff would lose all capacity that becomes free to gangs with a shorter one.
        """
        able = (QueueState.ACTIVE, QueueState.BACKOFF)
        leads = [
            one
            for one in self._gangs.recovering()
            if one.state in able and not (one.failed_by_error or one.waits_out_backoff)
        ]
        return min((entry, *leads), key=self._states.sort_key)

    def _is_admitted(self, entry: Entry, now_s: float) -> bool:
        """Reports whether the gates admit the follower; gates it if not, for example while its victims are being deleted.

        The gates last ran before the entry began to follow; their answer may have changed.
        """
        gate = self._gates.ask(entry.pod, entry.gate.plugin)
        if not gate.is_success:
            self._gangs.start_timeout(entry, now_s)
            entry.gate = gate
            self._states.move(entry, QueueState.GATED, GATHERED, now_s)
            self.on_gated(entry.uid)
        return gate.is_success

    def _leads(self, entry: Entry, event: str, now_s: float, tally: MovedCounts | None) -> bool:
        """Returns True if the entry leads its gang; else makes it follow the lead."""
        lead = self._gangs.lead_of(entry)
        if lead is not None and lead is not entry:
            if entry.state is not QueueState.GANG:
                self._states.move(entry, QueueState.GANG, event, now_s)
            self._came(entry, lead, now_s, tally)
            return False
        if lead is None:
            self._gangs.set_lead(entry, now_s)
        entry.is_recovering, entry.sort_key = self._gangs.note_recovering(entry), None
        return True

    def _came(self, entry: Entry, lead: Entry, now_s: float, tally: MovedCounts | None) -> None:
        """Handles a new follower: the gang may sort earlier now, and may fit now."""
        lead.has_new_follower = lead.state in POPPED
        self.wake_lead(entry, now_s, tally)
        if lead.state in (QueueState.ACTIVE, QueueState.BACKOFF) and self._gangs.has_higher_priority(entry, lead):
            self._gangs.set_lead(lead, now_s)
            self._states.sort_anew(lead, now_s)

    def _sort(self, entry: Entry, why: str, now_s: float, tally: MovedCounts) -> None:
        """Moves a member of a changed gang."""
        if why == STARTED:
            if entry.state in (QueueState.GANG, QueueState.GATED):
                self.requeue(entry, Requeue.AFTER_BACKOFF, SORTED, now_s, tally)
            elif entry.state is not QueueState.UNSCHEDULABLE:
                self._states.sort_anew(entry, now_s)
        elif why or entry.state is QueueState.GATED:
            self.requeue(entry, Requeue.AFTER_BACKOFF, SORTED, now_s, tally)
        elif (lead := self._gangs.lead_of(entry)) is None:
            if entry.state is QueueState.GANG:
                self.requeue(entry, Requeue.AFTER_BACKOFF, SORTED, now_s, tally)
            else:
                self._gangs.set_lead(entry, now_s)
        elif lead is not entry and entry.state is not QueueState.GANG:
            self._states.move(entry, QueueState.GANG, GATHERED, now_s)


def _ignore(uid: str) -> None:
    """Does nothing: the default callback."""
