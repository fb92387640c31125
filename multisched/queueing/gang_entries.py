"""The entries of each gang in the queue, the member that leads them, and how long the gang has waited.

A gang is one unit in the queue. One member is its lead: it has the gang's position in the order, its backoff and its
share of the namespace's attempts. The others follow it (`QueueState.GANG`); popping the lead pops all of them. Once
a gang has started, its members are separate entries. Gangs that start together are one unit here.
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
"""Value of `_Waiting.why` for a gang that has started."""


_Requirements = tuple[str, GangSpec | None, int]
"""A gang, its requirements, and how many members it lacks."""


class _Waiting(msgspec.Struct):
    """The queue's state of one gang."""

    entries: dict[str, Entry] = msgspec.field(default_factory=dict)
    lead: Entry | None = None
    tried: tuple[_Requirements, ...] | None = None
    """The gang's requirements when members of it were last popped."""
    why: str | None = None
    """The reason why its members waited when they were last sorted; None: they must be sorted again."""
    since_s: float | None = None
    """When its members began to wait for each other; None: they do not wait."""
    due_s: float = 0.0
    """When they exceed the gang's timeout."""
    timeout_s: float = 0.0
    """The gang's timeout when `due_s` was last computed."""
    turns: int = 0
    """Number of its turns to reserve capacity."""
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
    """The entries of one queue that belong to gangs."""

    def __init__(self, roster: GangRoster) -> None:
        self._roster = roster
        self.turns = Turns()
        self._gangs: dict[str, _Waiting] = {}
        self._gang_of: dict[str, str] = {}
        self._following: set[str] = set()
        """uids of entries that follow their lead."""
        self._changed: dict[str, None] = {}
        """Gangs whose members may have to move, in the order in which they changed."""
        self._recovering: dict[str, None] = {}
        """Partly placed gangs, in the order in which they became so; may contain others, which are ignored."""
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

    def is_sorted(self, key: str, why: str) -> bool:
        """Reports whether the gang's members are already sorted for this reason to wait; records it as the reason."""
        waiting = self._gangs.get(key)
        if waiting is None:
            return True
        has_waited = (
            why == STARTED and waiting.since_s is not None
        )  # meanwhile a member was deleted and another one was added
        if waiting.why == why and not has_waited:
            return True
        waiting.why = why
        return False

    def note_attempt(self, entries: Iterable[Entry]) -> None:
        """Records the current requirements of these entries' gangs at the start of their attempt."""
        for key in {key for one in entries if (key := self._gang_of.get(one.uid))}:
            self._gangs[key].tried = self._requirements_of(key)
            self._gangs[key].failed_while_holding = False

    def have_requirements_changed(self, key: str) -> bool:
        """Reports whether the gang's requirements, or its number of missing members, changed since members were last popped."""
        waiting = self._gangs.get(key)
        return waiting is not None and waiting.tried != self._requirements_of(key)

    def have_objects_changed(self, uids: Iterable[str]) -> bool:
        """Reports whether objects of these members' gangs, or of gangs that start with them, changed since members were last popped."""
        for key in {key for uid in uids if (key := self._gang_of.get(uid))}:
            tried, now = self._gangs[key].tried or (), self._requirements_of(key)
            if [gang[:2] for gang in tried] != [gang[:2] for gang in now]:
                return True
        return False

    def is_outdated(self, entry: Entry) -> bool:
        """Reports whether the member's attempt used requirements of its gang that have changed."""
        return (self.must_start_together(entry.uid) or self.has_topology(entry)) and self.have_requirements_changed(
            self.key_of(entry)
        )

    def _requirements_of(self, key: str) -> tuple[_Requirements, ...]:
        """Returns the requirements of the gang and of those that start with it."""
        gangs = (self._roster.gang(one) for one in self._roster.together_with(key))
        return tuple((gang.key, gang.spec, gang.lacks) for gang in gangs if gang is not None)

    # -- members ---------------------------------------------------------------------------------------------------

    def join(self, entry: Entry) -> bool:
        """Assigns a new entry, or one whose pod changed, to its gang. Returns False if its gang is unchanged."""
        key, known = self._roster.key_of(entry.uid) or "", self._gang_of.get(entry.uid, "")
        if key == known:
            return False
        if known:
            self.leave(entry)
        if key:
            self._gang_of[entry.uid] = key
            self._gangs.setdefault(key, _Waiting()).entries[entry.uid] = entry
        return True

    def uids_with(self, uid: str) -> Collection[str]:
        """Returns the uids of all entries of the entry's gang, including its own."""
        key = self._gang_of.get(uid)
        return (uid,) if key is None else self._gangs[key].entries.keys()

    def leave(self, entry: Entry) -> None:
        """Removes the entry; if it was the lead, the gang needs another."""
        key = self._gang_of.pop(entry.uid, "")
        if not key:
            return
        waiting = self._gangs[key]
        has_led = waiting.lead is entry
        del waiting.entries[entry.uid]
        self._step_back(waiting, entry, key)
        entry.ranks_as = None
        if not waiting.entries:
            del self._gangs[key]
            self._changed.pop(key, None)
        for one in self._roster.together_with(key) if has_led else ():  # any other member may become the lead
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
        """Records that the member found no node, or that its bind was refused; ignored once its gang has started."""
        if self.must_start_together(entry.uid):
            key = self._gang_of[entry.uid]
            self._roster.note_refusal(key, message)
            if self._roster.reserving(key) is Reserving.ENDED:  # the gang's attempt has dropped the nominations
                self.note_reserving(key, Reserving.NO)

    def has_topology(self, entry: Entry) -> bool:
        """Reports whether the entry's placement depends on other members of its gang."""
        gang = self._roster.gang(self._gang_of.get(entry.uid, ""))
        return gang is not None and gang.spec is not None and bool(gang.spec.topology)

    def why_not_yet(self, key: str) -> str:
        return STARTED if self._roster.has_started(key) else self._roster.why_not_yet(key)

    def entries_of(self, key: str) -> list[Entry]:
        """Returns the entries of this gang only."""
        waiting = self._gangs.get(key)
        return [] if waiting is None else list(waiting.entries.values())

    def members(self, key: str) -> list[Entry]:
        """Returns the entries of the gang, and of those that start with it and have not started, in any state."""
        keys = [one for one in self._roster.together_with(key) if one == key or not self._roster.has_started(one)]
        return [entry for one in keys if one in self._gangs for entry in self._gangs[one].entries.values()]

    def followers(self, lead: Entry) -> Iterator[Entry]:
        return (entry for entry in self.members(self._gang_of[lead.uid]) if entry.state is QueueState.GANG)

    # -- leads -----------------------------------------------------------------------------------------------------

    def lead_of(self, entry: Entry) -> Entry | None:
        """Returns the lead of the entry's gang; None if there is none."""
        key = self._gang_of.get(entry.uid)
        for one in () if key is None else self._roster.together_with(key):
            waiting = self._gangs.get(one)
            if waiting is not None and waiting.lead is not None:
                return waiting.lead
        return None

    def other_lead_of(self, entry: Entry) -> Entry | None:
        """Returns the lead of the entry's gang if it is another member that is not being tried; else None."""
        lead = self.lead_of(entry)
        return None if lead is None or lead is entry or lead.state in POPPED else lead

    def follows_queued_lead(self, entry: Entry) -> bool:
        """Reports whether the entry, when its attempt fails, follows a lead that is tried again without any event."""
        lead = self.other_lead_of(entry) if self.must_start_together(entry.uid) else None
        return lead is not None and lead.state in (QueueState.ACTIVE, QueueState.BACKOFF)

    def lead(self, entry: Entry, now_s: float) -> None:
        """Makes the entry the lead of its gang, with the sort key of the most important member."""
        before, key = self.lead_of(entry), self._gang_of[entry.uid]
        if before is not None and before is not entry:
            self._gangs[self._gang_of[before.uid]].lead = None
            before.rank_by_itself()
        self._gangs[key].lead = entry
        first = min(self.members(key), key=_importance)
        entry.ranks_as, entry.sort_key = (None if first is entry else first.pod), None
        self._wait(key, now_s)

    def is_before(self, entry: Entry, lead: Entry) -> bool:
        """Reports whether the entry is more important than the pod whose sort key the lead uses."""
        return entry.pod.spec.priority > (lead.ranks_as or lead.pod).spec.priority

    def step_back(self, entry: Entry) -> None:
        """Makes the entry a normal member, if it is the lead."""
        key = self._gang_of.get(entry.uid, "")
        if key:
            self._step_back(self._gangs[key], entry, key)

    def _step_back(self, waiting: _Waiting, entry: Entry, key: str) -> None:
        if waiting.lead is entry:
            waiting.lead = waiting.why = None
            entry.rank_by_itself()
            self.changed(key)

    def note_recovering(self, entry: Entry) -> bool:
        """Reports whether this lead's gang is partly placed: such gangs are tried before gangs without placed members."""
        key = self._gang_of.get(entry.uid, "")
        gang = self._roster.gang(key)
        if gang is None or not gang.placed_count:
            return False
        self._recovering[key] = None
        return True

    def note_failed_while_holding(self, uid: str) -> None:
        """Records that an attempt of the pod's gang held capacity and failed. Partly placed gangs are exempt, because they are tried
        first.
        """
        key = self._gang_of.get(uid, "")
        for one in self._roster.together_with(key) if key else ():
            gang, waiting = self._roster.gang(one), self._gangs.get(one)
            if waiting is not None and gang is not None and not gang.placed_count:
                waiting.failed_while_holding = True

    def has_failed_while_holding(self, uid: str) -> bool:
        """Reports whether `note_failed_while_holding` was called since the gang's last attempt began."""
        waiting = self._gangs.get(self._gang_of.get(uid, ""))
        return waiting is not None and waiting.failed_while_holding

    def recovering(self) -> Iterator[Entry]:
        """Yields the leads of partly placed gangs."""
        for key in list(self._recovering):
            waiting, gang = self._gangs.get(key), self._roster.gang(key)
            if waiting is None or waiting.lead is None or gang is None or not gang.placed_count:
                del self._recovering[key]
            else:
                yield waiting.lead

    # -- timeouts --------------------------------------------------------------------------------------------------

    def _wait(self, key: str, now_s: float) -> None:
        """Starts the gang's timeout, if it is not running: it waits for members or for capacity."""
        waiting, gang = self._gangs[key], self._roster.gang(key)
        if gang is None or gang.is_overdue:
            return
        if waiting.since_s is None:
            waiting.since_s = now_s
        waiting.timeout_s = gang.timeout_s
        due_s = waiting.since_s + gang.timeout_s
        if due_s != waiting.due_s:
            waiting.due_s = due_s
            heapq.heappush(self._due, (due_s, key))

    def wait(self, entry: Entry, now_s: float) -> None:
        """Starts the timeout of the member's gang, if it has one that has not started."""
        if self.must_start_together(entry.uid):
            self._wait(self._gang_of[entry.uid], now_s)

    def retime(self, key: str, now_s: float) -> None:
        """Applies a changed timeout to a waiting gang, counted from the original start."""
        waiting, gang = self._gangs.get(key), self._roster.gang(key)
        if waiting is None or waiting.since_s is None or gang is None or waiting.timeout_s == gang.timeout_s:
            return
        if gang.is_overdue and waiting.since_s + gang.timeout_s > now_s:
            self._roster.note_in_time(key)
        self._wait(key, now_s)

    def start(self, key: str) -> None:
        """Handles the start of the gang: from now on it has no lead and does not wait."""
        waiting = self._gangs[key]
        if waiting.lead is not None:
            waiting.lead.rank_by_itself()
        waiting.lead, waiting.since_s, waiting.due_s = None, None, 0.0

    def next_due_s(self) -> float | None:
        """Returns the time at which the first gang exceeds its timeout; None: none will."""
        while self._due and self._is_dead(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def overdue(self, now_s: float) -> Iterator[str]:
        """Yields the gangs whose timeout has passed, once per waiting period."""
        while (due_s := self.next_due_s()) is not None and due_s <= now_s:
            key = heapq.heappop(self._due)[1]
            self._gangs[key].due_s = 0.0
            self._roster.note_overdue(key)
            yield key

    def _is_dead(self, due_s: float, key: str) -> bool:
        waiting = self._gangs.get(key)
        return waiting is None or waiting.due_s != due_s

    # -- turns to reserve capacity ---------------------------------------------------------------------------------

    def is_led(self, key: str) -> bool:
        """Reports whether the gang can be tried: it, or a gang that starts with it, has a lead."""
        gangs = (self._gangs.get(one) for one in self._roster.together_with(key))
        return any(waiting is not None and waiting.lead is not None for waiting in gangs)

    def note_reserving(self, key: str, reserving: Reserving) -> None:
        """Sets the state of the gang and of those that start with it."""
        for gang in map(self._roster.gang, self._roster.together_with(key)):
            if gang is not None:
                gang.reserving = reserving

    def reserving(self, key: str) -> Reserving:
        return self._roster.reserving(key)

    def has_started(self, key: str) -> bool:
        return self._roster.has_started(key)

    def longest_waiting(self, since_s: float) -> str:
        """Returns the gang whose turn it is to reserve capacity, among those refused and triable since `since_s`; empty if none.

        Order: fewest turns, then most important, then longest waiting. So a gang that can never start takes one turn of
        each round only, whatever its priority. O(gangs).
        """
        found: tuple[int, int, float, str] | None = None
        for key, waiting in self._gangs.items():
            lead = waiting.lead
            if lead is None or not lead.refusals or lead.first_active_s is None or lead.first_active_s > since_s:
                continue
            rank = waiting.turns, -(lead.ranks_as or lead.pod).spec.priority, lead.first_active_s, key
            found = rank if found is None else min(found, rank)
        if found is None:
            return ""
        self._gangs[found[-1]].turns += 1
        return found[-1]

    # -- gangs as units --------------------------------------------------------------------------------------------

    def queued(self, entries: Iterable[Entry]) -> QueuedGang:
        """Returns these members as one unit for the cycle, most important first."""
        members = sorted(entries, key=_importance)
        pods = [QueuedPod(one.pod, one.queued_s, one.attempts) for one in members]
        return queued_gang(self._roster, pods, {one.uid: self._gang_of[one.uid] for one in members})


def queued_gang(roster: GangRoster, members: Sequence[QueuedPod], gang_of: Mapping[str, str]) -> QueuedGang:
    """Returns the gang of these members. `members`: in scheduling order. `gang_of`: uid of each -> key of its gang."""
    together = roster.together_with(gang_of[members[0].pod.uid])
    gangs = [gang for one in together if (gang := roster.gang(one)) is not None]
    needs = {gang.key: gang.needs for gang in gangs if gang.needs > 0}
    return QueuedGang(
        tuple(members),
        needs or {gangs[0].key: len(members)},
        gang_of,
        _topology([gang for gang in gangs if gang.key in gang_of.values()]),
        tuple(sorted({node for gang in gangs for node in _nodes(gang)})),
        next((gang.overdue_text for gang in gangs if gang.is_overdue), ""),
    )


def _importance(entry: Entry) -> tuple[int, float, str]:
    """Returns the sort key of a member: the same in every attempt, so that an unchanged gang gets the same message."""
    return -entry.pod.spec.priority, entry.added_s, entry.pod.name


def _topology(gangs: Iterable[Gang]) -> tuple[TopologyLevel, ...]:
    """Returns the levels of these gangs, which share one topology domain: a level that one gang requires is required for all."""
    required: dict[str, bool] = {}
    for gang in gangs:
        for level in gang.spec.topology if gang.spec is not None else ():
            required[level.key] = level.is_required or required.get(level.key, False)
    return tuple(TopologyLevel(key, is_required) for key, is_required in required.items())


def _nodes(gang: Gang) -> Iterator[str]:
    spec = gang.spec
    if spec is None or not spec.topology:
        return iter(())
    return (member.node for member in gang.members.values() if member.is_placed)
