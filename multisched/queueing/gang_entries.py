"""GangEntries: for each gang in the queue, its entries, which of them is the lead, and how long the gang has waited.

A gang that has not started is one unit in the queue. One member is its lead: the gang's position in the queue, its backoff and
its share of the namespace's attempts are those of the lead. The other members follow the lead (`QueueState.GANG`); popping the
lead pops all of them. Once a gang has started, its members are separate entries. Gangs that must start together share one lead.
Used by the parts of `PodQueue` only; the roster decides which pods must start together.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from multisched.framework.gangs import Reserving
from multisched.framework.points import QueuedGang, QueuedPod
from multisched.model.gang import GangSpec, TopologyLevel
from multisched.queueing.entry import Entry
from multisched.queueing.transitions import POPPED, QueueState
from multisched.state.gang_roster import Gang, GangRoster

STARTED: Final = "started"
"""Value of `_GangState.why` for a gang that has started."""


_Requirements = tuple[str, GangSpec | None, int]
"""Key of a gang, its requirements, and how many members it lacks."""


class _GangState(msgspec.Struct):
    """The queue's state of one gang."""

    entries: dict[str, Entry] = msgspec.field(default_factory=dict)
    lead: Entry | None = None
    requirements_tried: tuple[_Requirements, ...] | None = None
    """Requirements of the gang, and of gangs that start with it, when its members were last popped."""
    why: str | None = None
    """Why its members could not be tried when `Readmission` last moved them to queue states; None: it must move them again."""
    since_s: float | None = None
    """When the gang began to wait for members or capacity; None: it does not wait."""
    due_s: float = 0.0
    """When the gang exceeds its timeout; 0.0: the timeout is not running."""
    timeout_s: float = 0.0
    """The gang's timeout when `due_s` was last computed."""
    turns: int = 0
    """How many turns to reserve capacity the gang has had."""
    failed_while_holding: bool = False
    """Its last attempt held capacity during pauses, and failed."""


class Turns(msgspec.Struct):
    """Turns of gangs to reserve capacity. Written by `GangReservations`."""

    holder: str = ""
    """The gang whose turn it is; empty: none."""
    begun: int = 0
    expired: int = 0
    """Turns that ended before their gangs started."""


class GangEntries:
    """Those entries of one queue that belong to gangs, by gang."""

    def __init__(self, roster: GangRoster) -> None:
        self._roster = roster
        self.turns = Turns()
        self._gangs: dict[str, _GangState] = {}
        self._gang_of: dict[str, str] = {}
        self._following: set[str] = set()
        """uids of entries that follow their lead."""
        self._changed: dict[str, None] = {}
        """Gangs whose members may have to change their queue state, in the order of the changes."""
        self._recovering: dict[str, None] = {}
        """Gangs that were partly placed when their lead was last queued, in the order of queueing. `recovering` drops outdated ones."""
        self._due: list[tuple[float, str]] = []
        """A heap of gangs by timeout; items of gangs that no longer wait are ignored."""

    def __len__(self) -> int:
        """Number of entries that follow their lead."""
        return len(self._following)

    def __contains__(self, uid: object) -> bool:
        return uid in self._following

    @property
    def are_any(self) -> bool:
        """True if any entry belongs to a gang."""
        return bool(self._gang_of)

    # -- changes ---------------------------------------------------------------------------------------------------

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    def changed(self, key: str) -> None:
        """Records that the gang's requirements or members may have changed."""
        if key in self._gangs:
            self._changed[key] = None

    def next_changed(self) -> str | None:
        """Removes and returns one of the changed gangs; None if there is none."""
        if not self._changed:
            return None
        key = next(iter(self._changed))
        del self._changed[key]
        return key

    def note_wait_reason(self, key: str, why: str) -> bool:
        """Records why the members cannot be tried. Returns whether this changed, so that they must move to other queue states."""
        state = self._gangs.get(key)
        if state is None:
            return False
        # Between two calls for a started gang, a deleted member may have made it wait, and an added one may have started it again.
        has_waited = why == STARTED and state.since_s is not None
        if state.why == why and not has_waited:
            return False
        state.why = why
        return True

    def note_attempt(self, entries: Iterable[Entry]) -> None:
        """Records the current requirements of these entries' gangs at the start of their attempt."""
        for key in {key for one in entries if (key := self._gang_of.get(one.uid))}:
            self._gangs[key].requirements_tried = self._requirements_of(key)
            self._gangs[key].failed_while_holding = False

    def have_requirements_changed(self, key: str) -> bool:
        """Reports whether the gang's requirements or its number of missing members changed since members were last popped."""
        state = self._gangs.get(key)
        return state is not None and state.requirements_tried != self._requirements_of(key)

    def have_specs_changed(self, uids: Iterable[str]) -> bool:
        """Reports the result of `have_requirements_changed` for any of these members, ignoring the number of missing members."""
        for key in {key for uid in uids if (key := self._gang_of.get(uid))}:
            tried, now = self._gangs[key].requirements_tried or (), self._requirements_of(key)
            if [gang[:2] for gang in tried] != [gang[:2] for gang in now]:
                return True
        return False

    def is_outdated(self, entry: Entry) -> bool:
        """Reports whether the requirements of the member's gang changed during its attempt."""
        return (self.must_start_together(entry.uid) or self.has_topology(entry)) and self.have_requirements_changed(
            self.key_of(entry)
        )

    def _requirements_of(self, key: str) -> tuple[_Requirements, ...]:
        """Returns the requirements of the gang and of those that start with it."""
        gangs = (self._roster.gang(one) for one in self._roster.together_with(key))
        return tuple((gang.key, gang.spec, gang.lacks) for gang in gangs if gang is not None)

    # -- members ---------------------------------------------------------------------------------------------------

    def join(self, entry: Entry) -> bool:
        """Moves the entry to the gang that the roster has for it. Returns False if it is in that gang already."""
        key, known = self._roster.key_of(entry.uid) or "", self._gang_of.get(entry.uid, "")
        if key == known:
            return False
        if known:
            self.leave(entry)
        if key:
            self._gang_of[entry.uid] = key
            self._gangs.setdefault(key, _GangState()).entries[entry.uid] = entry
        return True

    def uids_with(self, uid: str) -> Collection[str]:
        """Returns the uids of all entries of the pod's gang, including the pod itself."""
        key = self._gang_of.get(uid)
        return (uid,) if key is None else self._gangs[key].entries.keys()

    def leave(self, entry: Entry) -> None:
        """Removes the entry from its gang. If it was the lead, the gang is marked as changed, so that it gets another lead."""
        key = self._gang_of.pop(entry.uid, "")
        if not key:
            return
        state = self._gangs[key]
        was_lead = state.lead is entry
        del state.entries[entry.uid]
        self._unset_lead(state, entry, key)
        entry.ranks_as = None
        if not state.entries:
            del self._gangs[key]
            self._changed.pop(key, None)
        for one in self._roster.together_with(key) if was_lead else ():  # any other member may become the lead
            self.changed(one)

    def follow(self, entry: Entry) -> None:
        self._following.add(entry.uid)

    def unfollow(self, entry: Entry) -> None:
        self._following.discard(entry.uid)

    def key_of(self, entry: Entry) -> str:
        """Returns the entry's gang. Raises KeyError for an entry without one."""
        return self._gang_of[entry.uid]

    def must_start_together(self, uid: str) -> bool:
        """Reports whether the pod's gang has not started; False for a pod without a gang."""
        key = self._gang_of.get(uid)
        return key is not None and not self._roster.has_started(key)

    def refused(self, entry: Entry, message: str) -> None:
        """Records that no node was feasible for the member, or that its bind was refused. No effect after the gang's start."""
        if self.must_start_together(entry.uid):
            key = self._gang_of[entry.uid]
            self._roster.note_refusal(key, message)
            if self._roster.reserving(key) is Reserving.ENDED:  # the gang's attempt has dropped the nominations
                self.note_reserving(key, Reserving.NO)

    def has_topology(self, entry: Entry) -> bool:
        """Reports whether the entry's gang has topology levels, so that its node depends on those of other members."""
        gang = self._roster.gang(self._gang_of.get(entry.uid, ""))
        return gang is not None and gang.spec is not None and bool(gang.spec.topology)

    def why_not_yet(self, key: str) -> str:
        return STARTED if self._roster.has_started(key) else self._roster.why_not_yet(key)

    def entries_of(self, key: str) -> list[Entry]:
        """Returns the entries of this gang only."""
        state = self._gangs.get(key)
        return [] if state is None else list(state.entries.values())

    def members(self, key: str) -> list[Entry]:
        """Returns the entries, in any state, of the gang and of gangs that must start with it and have not started."""
        keys = [one for one in self._roster.together_with(key) if one == key or not self._roster.has_started(one)]
        return [entry for one in keys if one in self._gangs for entry in self._gangs[one].entries.values()]

    def followers(self, lead: Entry) -> Iterator[Entry]:
        return (entry for entry in self.members(self._gang_of[lead.uid]) if entry.state is QueueState.GANG)

    # -- leads -----------------------------------------------------------------------------------------------------

    def lead_of(self, entry: Entry) -> Entry | None:
        """Returns the lead of the entry's gang; None if there is none."""
        key = self._gang_of.get(entry.uid)
        for one in () if key is None else self._roster.together_with(key):
            state = self._gangs.get(one)
            if state is not None and state.lead is not None:
                return state.lead
        return None

    def other_lead_of(self, entry: Entry) -> Entry | None:
        """Returns the lead of the entry's gang if it is another entry, without an attempt in flight; else None."""
        lead = self.lead_of(entry)
        return None if lead is None or lead is entry or lead.state in POPPED else lead

    def follows_queued_lead(self, entry: Entry) -> bool:
        """Reports whether the entry will follow a lead that is active or in backoff, and so needs no event for its next attempt."""
        lead = self.other_lead_of(entry) if self.must_start_together(entry.uid) else None
        return lead is not None and lead.state in (QueueState.ACTIVE, QueueState.BACKOFF)

    def set_lead(self, entry: Entry, now_s: float) -> None:
        """Makes the entry the lead of its gang, with the sort key of the member that sorts first."""
        before, key = self.lead_of(entry), self._gang_of[entry.uid]
        if before is not None and before is not entry:
            self._gangs[self._gang_of[before.uid]].lead = None
            before.rank_by_itself()
        self._gangs[key].lead = entry
        first = min(self.members(key), key=_scheduling_order)
        entry.ranks_as, entry.sort_key = (None if first is entry else first.pod), None
        self._start_timeout(key, now_s)

    def has_higher_priority(self, entry: Entry, lead: Entry) -> bool:
        """Reports whether the entry has a higher priority than the pod whose sort key the lead uses."""
        return entry.pod.spec.priority > (lead.ranks_as or lead.pod).spec.priority

    def unset_lead(self, entry: Entry) -> None:
        """Makes the entry a normal member, if it is the lead."""
        key = self._gang_of.get(entry.uid, "")
        if key:
            self._unset_lead(self._gangs[key], entry, key)

    def _unset_lead(self, state: _GangState, entry: Entry, key: str) -> None:
        if state.lead is entry:
            state.lead = state.why = None
            entry.rank_by_itself()
            self.changed(key)

    def note_recovering(self, entry: Entry) -> bool:
        """If the lead's gang is partly placed, records this, so that it is tried before others. Returns whether it is partly placed."""
        key = self._gang_of.get(entry.uid, "")
        gang = self._roster.gang(key)
        if gang is None or not gang.placed_count:
            return False
        self._recovering[key] = None
        return True

    def note_failed_while_holding(self, uid: str) -> None:
        """Records that an attempt of the pod's gang held capacity and failed. Ignores partly placed gangs: they are tried first."""
        key = self._gang_of.get(uid, "")
        for one in self._roster.together_with(key) if key else ():
            gang, state = self._roster.gang(one), self._gangs.get(one)
            if state is not None and gang is not None and not gang.placed_count:
                state.failed_while_holding = True

    def has_failed_while_holding(self, uid: str) -> bool:
        """Reports whether `note_failed_while_holding` was called since the gang's last attempt began."""
        state = self._gangs.get(self._gang_of.get(uid, ""))
        return state is not None and state.failed_while_holding

    def recovering(self) -> Iterator[Entry]:
        """Yields the leads of partly placed gangs."""
        for key in list(self._recovering):
            state, gang = self._gangs.get(key), self._roster.gang(key)
            if state is None or state.lead is None or gang is None or not gang.placed_count:
                del self._recovering[key]
            else:
                yield state.lead

    # -- timeouts --------------------------------------------------------------------------------------------------

    def _start_timeout(self, key: str, now_s: float) -> None:
        """Starts the gang's timeout for missing members or capacity, if it is not running."""
        state, gang = self._gangs[key], self._roster.gang(key)
        if gang is None or gang.is_overdue:
            return
        if state.since_s is None:
            state.since_s = now_s
        state.timeout_s = gang.timeout_s
        due_s = state.since_s + gang.timeout_s
        if due_s != state.due_s:
            state.due_s = due_s
            heapq.heappush(self._due, (due_s, key))

    def start_timeout(self, entry: Entry, now_s: float) -> None:
        """Starts the timeout of the entry's gang. No effect if the pod has no gang or the gang has started."""
        if self.must_start_together(entry.uid):
            self._start_timeout(self._gang_of[entry.uid], now_s)

    def update_timeout(self, key: str, now_s: float) -> None:
        """Applies a changed timeout to a waiting gang, counted from the time at which it began to wait."""
        state, gang = self._gangs.get(key), self._roster.gang(key)
        if state is None or state.since_s is None or gang is None or state.timeout_s == gang.timeout_s:
            return
        if gang.is_overdue and state.since_s + gang.timeout_s > now_s:
            self._roster.note_in_time(key)
        self._start_timeout(key, now_s)

    def on_gang_start(self, key: str) -> None:
        """Handles the start of the gang: removes its lead and stops its timeout."""
        state = self._gangs[key]
        if state.lead is not None:
            state.lead.rank_by_itself()
        state.lead, state.since_s, state.due_s = None, None, 0.0

    def next_due_s(self) -> float | None:
        """Returns the next time at which a gang exceeds its timeout; None if no timeout is running."""
        while self._due and self._is_timer_outdated(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def overdue(self, now_s: float) -> Iterator[str]:
        """Yields the gangs whose timeout has passed, once per waiting period."""
        while (due_s := self.next_due_s()) is not None and due_s <= now_s:
            key = heapq.heappop(self._due)[1]
            self._gangs[key].due_s = 0.0
            self._roster.note_overdue(key)
            yield key

    def _is_timer_outdated(self, due_s: float, key: str) -> bool:
        state = self._gangs.get(key)
        return state is None or state.due_s != due_s

    # -- turns to reserve capacity ---------------------------------------------------------------------------------

    def is_led(self, key: str) -> bool:
        """Reports whether the gang can be tried: it has a lead, or a gang that starts with it has one."""
        gangs = (self._gangs.get(one) for one in self._roster.together_with(key))
        return any(state is not None and state.lead is not None for state in gangs)

    def note_reserving(self, key: str, reserving: Reserving) -> None:
        """Sets whether the gang, and those that start with it, may reserve capacity."""
        for gang in map(self._roster.gang, self._roster.together_with(key)):
            if gang is not None:
                gang.reserving = reserving

    def reserving(self, key: str) -> Reserving:
        return self._roster.reserving(key)

    def has_started(self, key: str) -> bool:
        return self._roster.has_started(key)

    def next_turn(self, since_s: float) -> str:
        """Returns the gang that gets the next turn to reserve capacity, and counts the turn; empty if there is none.

        A gang qualifies if it was refused at least once and its lead first became active at `since_s` or before. The order is:
        fewest turns, highest priority, longest wait. So a gang that can never start gets one turn per round, even if its
        priority is the highest. O(gangs).
        """
        found: tuple[int, int, float, str] | None = None
        for key, state in self._gangs.items():
            lead = state.lead
            if lead is None or not lead.refusals or lead.first_active_s is None or lead.first_active_s > since_s:
                continue
            rank = state.turns, -(lead.ranks_as or lead.pod).spec.priority, lead.first_active_s, key
            found = rank if found is None else min(found, rank)
        if found is None:
            return ""
        self._gangs[found[-1]].turns += 1
        return found[-1]

    # -- gangs as units --------------------------------------------------------------------------------------------

    def queued(self, entries: Iterable[Entry]) -> QueuedGang:
        """Returns these members as the gang for one attempt, in scheduling order."""
        members = sorted(entries, key=_scheduling_order)
        pods = [QueuedPod(one.pod, one.queued_s, one.attempts) for one in members]
        return queued_gang(self._roster, pods, {one.uid: self._gang_of[one.uid] for one in members})


def queued_gang(roster: GangRoster, members: Sequence[QueuedPod], gang_of: Mapping[str, str]) -> QueuedGang:
    """Returns the gang of these members. `members`: in scheduling order. `gang_of`: uid of a member -> key of its gang."""
    together = roster.together_with(gang_of[members[0].pod.uid])
    gangs = [gang for one in together if (gang := roster.gang(one)) is not None]
    needs = {gang.key: gang.needs for gang in gangs if gang.needs > 0}
    return QueuedGang(
        tuple(members),
        needs or {gangs[0].key: len(members)},
        gang_of,
        _topology([gang for gang in gangs if gang.key in gang_of.values()]),
        tuple(sorted({node for gang in gangs for node in _placed_member_nodes(gang)})),
        next((gang.overdue_text for gang in gangs if gang.is_overdue), ""),
    )


def _scheduling_order(entry: Entry) -> tuple[int, float, str]:
    """Returns the sort key of a member: it is the same in every attempt, so that an unchanged gang gets the same message."""
    return -entry.pod.spec.priority, entry.added_s, entry.pod.name


def _topology(gangs: Iterable[Gang]) -> tuple[TopologyLevel, ...]:
    """Returns the topology levels of gangs that start in one topology domain. A level that one gang requires applies to all."""
    required: dict[str, bool] = {}
    for gang in gangs:
        for level in gang.spec.topology if gang.spec is not None else ():
            required[level.key] = level.is_required or required.get(level.key, False)
    return tuple(TopologyLevel(key, is_required) for key, is_required in required.items())


def _placed_member_nodes(gang: Gang) -> Iterator[str]:
    spec = gang.spec
    if spec is None or not spec.topology:
        return iter(())
    return (member.node for member in gang.members.values() if member.is_placed)
