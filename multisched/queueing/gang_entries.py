"""Which entries belong to one gang, which of them leads the others, and how long the gang has waited.

A gang is one entity in the queue. One of its members leads, with the gang's place in the order, its backoff and its
share of the namespace's attempts. The others stand with it (`Place.GANG`), and whoever pops the lead pops them all. Once
a gang has started, its members are entries of their own. Gangs that start together are one entity here.
Called by the parts of `PodQueue` alone; who has to start together, the roster says.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from multisched.framework.gangs import Reserving
from multisched.framework.points import QueuedGang, QueuedPod
from multisched.model.gang import TopologyLevel
from multisched.queueing.entry import Entry
from multisched.queueing.transitions import Place
from multisched.state.gang_roster import Gang, GangRoster

STARTED: Final = "started"
"""What kept members waiting for one another: nothing, the gang had started."""


class _Waiting(msgspec.Struct):
    """What the queue knows of one gang."""

    entries: dict[str, Entry] = msgspec.field(default_factory=dict)
    lead: Entry | None = None
    tried: tuple[object, ...] | None = None
    """What the gang asked for when members of it were last popped."""
    why: str | None = None
    """What kept its members waiting when they were last sorted; None: they have to be sorted anew."""
    since_s: float | None = None
    """When its members began to wait for one another; None: they do not."""
    due_s: float = 0.0
    """When they will have waited too long."""
    timeout_s: float = 0.0
    """How long the gang let them wait when this was last reckoned."""
    turns: int = 0
    """How often it was its turn to reserve room."""


class Turns(msgspec.Struct):
    """Of gangs that reserve room. Written by `GangReservations`."""

    holder: str = ""
    """The gang whose turn it is; empty: none."""
    begun: int = 0
    expired: int = 0
    """Those that ended before their gangs started."""


class GangEntries:
    """The entries of one queue that belong to gangs."""

    def __init__(self, roster: GangRoster) -> None:
        self._roster = roster
        self.turns = Turns()
        self._gangs: dict[str, _Waiting] = {}
        self._gang_of: dict[str, str] = {}
        self._following: set[str] = set()
        """uids of entries that stand with their lead."""
        self._changed: dict[str, None] = {}
        """Gangs whose members may have to be moved, in the order in which they changed."""
        self._healing: dict[str, None] = {}
        """Gangs of which some members stand, in the order in which they began to heal; others among them are dead."""
        self._due: list[tuple[float, str]] = []
        """A heap of when gangs have waited too long; entries of gangs that wait no more are dead."""

    def __len__(self) -> int:
        """Entries that stand with their lead."""
        return len(self._following)

    def __contains__(self, uid: object) -> bool:
        return uid in self._following

    @property
    def are_any(self) -> bool:
        """Some entry belongs to a gang."""
        return bool(self._gang_of)

    # -- what changed ----------------------------------------------------------------------------------------------

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    def changed(self, key: str) -> None:
        """The needs of the gang, or who is there, may be others now."""
        if key in self._gangs:
            self._changed[key] = None

    def next_changed(self) -> str | None:
        """One of the gangs that changed, which counts as looked at."""
        if not self._changed:
            return None
        key = next(iter(self._changed))
        del self._changed[key]
        return key

    def is_sorted(self, key: str, why: str) -> bool:
        """The gang's members are where they have to be while this keeps them waiting. Notes that they are from now on."""
        waiting = self._gangs.get(key)
        if waiting is None or waiting.why == why:
            return True
        waiting.why = why
        return False

    def tries(self, entries: Iterable[Entry]) -> None:
        """An attempt of these begins: from now on another thing that their gangs ask for is news."""
        for key in {key for one in entries if (key := self._gang_of.get(one.uid))}:
            self._gangs[key].tried = self._asked(key)

    def asks_otherwise(self, key: str) -> bool:
        """Since members of the gang were last popped, what it asks for has changed, or how many members it lacks."""
        waiting = self._gangs.get(key)
        return waiting is not None and waiting.tried != self._asked(key)

    def is_outdated(self, entry: Entry) -> bool:
        """The attempt of this member was about something that its gang asks for no longer."""
        return (self.must_start_together(entry) or self.has_topology(entry)) and self.asks_otherwise(self.key_of(entry))

    def _asked(self, key: str) -> tuple[object, ...]:
        """Of this gang, and of those that start with it."""
        gangs = (self._roster.gang(one) for one in self._roster.together_with(key))
        return tuple((gang.key, gang.spec, gang.lacks) for gang in gangs if gang is not None)

    # -- who is there ----------------------------------------------------------------------------------------------

    def join(self, entry: Entry) -> bool:
        """A new entry, or one whose pod changed. False if it belongs where it did."""
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
        """The entry's uid, with those of all other entries of its gang."""
        key = self._gang_of.get(uid)
        return (uid,) if key is None else self._gangs[key].entries.keys()

    def leave(self, entry: Entry) -> None:
        """The entry is gone; another one has to lead if it did."""
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
        for one in self._roster.together_with(key) if has_led else ():  # who else is there, the roster says
            self.changed(one)

    def follow(self, entry: Entry) -> None:
        self._following.add(entry.uid)

    def unfollow(self, entry: Entry) -> None:
        self._following.discard(entry.uid)

    def key_of(self, entry: Entry) -> str:
        """Its gang; KeyError for an entry without one."""
        return self._gang_of[entry.uid]

    def must_start_together(self, entry: Entry) -> bool:
        """False for a pod without a gang, and once its gang has started."""
        key = self._gang_of.get(entry.uid)
        return key is not None and not self._roster.has_started(key)

    def refused(self, entry: Entry, message: str) -> None:
        """The member found no node, or its bind was refused; of no interest once its gang has started."""
        if self.must_start_together(entry):
            key = self._gang_of[entry.uid]
            self._roster.note_refusal(key, message)
            if self._roster.reserving(key) is Reserving.ENDED:  # its attempt has taken the nominations back
                self.note_reserving(key, Reserving.NO)

    def has_topology(self, entry: Entry) -> bool:
        """Where it goes depends on where other members stand."""
        gang = self._roster.gang(self._gang_of.get(entry.uid, ""))
        return gang is not None and gang.spec is not None and bool(gang.spec.topology)

    def why_not_yet(self, key: str) -> str:
        return STARTED if self._roster.has_started(key) else self._roster.why_not_yet(key)

    def own(self, key: str) -> list[Entry]:
        """Entries of this gang alone."""
        waiting = self._gangs.get(key)
        return [] if waiting is None else list(waiting.entries.values())

    def members(self, key: str) -> list[Entry]:
        """Entries of the gang, and of those that start with it and have not started, wherever they are."""
        keys = [one for one in self._roster.together_with(key) if one == key or not self._roster.has_started(one)]
        return [entry for one in keys if one in self._gangs for entry in self._gangs[one].entries.values()]

    def followers(self, lead: Entry) -> Iterator[Entry]:
        return (entry for entry in self.members(self._gang_of[lead.uid]) if entry.place is Place.GANG)

    # -- who leads -------------------------------------------------------------------------------------------------

    def lead_of(self, entry: Entry) -> Entry | None:
        """Who leads the gang of this entry."""
        key = self._gang_of.get(entry.uid)
        for one in () if key is None else self._roster.together_with(key):
            waiting = self._gangs.get(one)
            if waiting is not None and waiting.lead is not None:
                return waiting.lead
        return None

    def lead(self, entry: Entry, now_s: float) -> None:
        """From now on this one leads its gang, and stands in the order where the most important member would."""
        before, key = self.lead_of(entry), self._gang_of[entry.uid]
        if before is not None and before is not entry:
            self._gangs[self._gang_of[before.uid]].lead = None
            before.rank_by_itself()
        self._gangs[key].lead = entry
        first = min(self.members(key), key=_importance)
        entry.ranks_as, entry.sort_key = (None if first is entry else first.pod), None
        self._wait(key, now_s)

    def is_before(self, entry: Entry, lead: Entry) -> bool:
        """The entry is more important than whom the lead stands for."""
        return entry.pod.spec.priority > (lead.ranks_as or lead.pod).spec.priority

    def step_back(self, entry: Entry) -> None:
        """This one leads no more, if it did."""
        key = self._gang_of.get(entry.uid, "")
        if key:
            self._step_back(self._gangs[key], entry, key)

    def _step_back(self, waiting: _Waiting, entry: Entry, key: str) -> None:
        if waiting.lead is entry:
            waiting.lead = waiting.why = None
            entry.rank_by_itself()
            self.changed(key)

    def heal(self, entry: Entry) -> bool:
        """Whether this lead is of a gang of which some members stand: it goes before gangs that have not begun."""
        key = self._gang_of.get(entry.uid, "")
        gang = self._roster.gang(key)
        if gang is None or not gang.standing:
            return False
        self._healing[key] = None
        return True

    def healing(self) -> Iterator[Entry]:
        """Those who lead a gang of which some members stand."""
        for key in list(self._healing):
            waiting, gang = self._gangs.get(key), self._roster.gang(key)
            if waiting is None or waiting.lead is None or gang is None or not gang.standing:
                del self._healing[key]
            else:
                yield waiting.lead

    # -- how long --------------------------------------------------------------------------------------------------

    def _wait(self, key: str, now_s: float) -> None:
        """The gang waits for its members or for room; its timeout runs from the first such moment."""
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
        """This member waits for others, if it has a gang that has not started."""
        if self.must_start_together(entry):
            self._wait(self._gang_of[entry.uid], now_s)

    def retime(self, key: str, now_s: float) -> None:
        """If the gang's timeout was changed while its members wait, the new one counts, from the same moment."""
        waiting, gang = self._gangs.get(key), self._roster.gang(key)
        if waiting is None or waiting.since_s is None or gang is None or waiting.timeout_s == gang.timeout_s:
            return
        if gang.is_overdue and waiting.since_s + gang.timeout_s > now_s:
            self._roster.note_in_time(key)
        self._wait(key, now_s)

    def start(self, key: str) -> None:
        """The gang has started: nobody leads it, and nobody waits."""
        waiting = self._gangs[key]
        if waiting.lead is not None:
            waiting.lead.rank_by_itself()
        waiting.lead, waiting.since_s, waiting.due_s = None, None, 0.0

    def next_due_s(self) -> float | None:
        """When the first gang will have waited too long; None: none will."""
        while self._due and self._is_dead(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def overdue(self, now_s: float) -> Iterator[str]:
        """Gangs whose timeout has passed, each once for each time that it waits."""
        while (due_s := self.next_due_s()) is not None and due_s <= now_s:
            key = heapq.heappop(self._due)[1]
            self._gangs[key].due_s = 0.0
            self._roster.note_overdue(key)
            yield key

    def _is_dead(self, due_s: float, key: str) -> bool:
        waiting = self._gangs.get(key)
        return waiting is None or waiting.due_s != due_s

    # -- turns to reserve room -------------------------------------------------------------------------------------

    def is_led(self, key: str) -> bool:
        """Its members can be tried: one of them leads it, or a gang that starts with it."""
        gangs = (self._gangs.get(one) for one in self._roster.together_with(key))
        return any(waiting is not None and waiting.lead is not None for waiting in gangs)

    def note_reserving(self, key: str, reserving: Reserving) -> None:
        """Of the gang, and of those that start with it."""
        for gang in map(self._roster.gang, self._roster.together_with(key)):
            if gang is not None:
                gang.reserving = reserving

    def reserving(self, key: str) -> Reserving:
        return self._roster.reserving(key)

    def has_started(self, key: str) -> bool:
        return self._roster.has_started(key)

    def longest_waiting(self, since_s: float) -> str:
        """The gang whose turn it is to reserve room, among those that were refused and could first be tried at `since_s`.

        The most important; then the one that has had the fewest turns, then the one that has waited longest. O(gangs).
        """
        found: tuple[int, int, float, str] | None = None
        for key, waiting in self._gangs.items():
            lead = waiting.lead
            if lead is None or not lead.refusals or lead.first_active_s is None or lead.first_active_s > since_s:
                continue
            rank = -(lead.ranks_as or lead.pod).spec.priority, waiting.turns, lead.first_active_s, key
            found = rank if found is None else min(found, rank)
        if found is None:
            return ""
        self._gangs[found[-1]].turns += 1
        return found[-1]

    # -- all of them -----------------------------------------------------------------------------------------------

    def queued(self, entries: Iterable[Entry]) -> QueuedGang:
        """These members, the most important first, as the cycle decides them."""
        members = sorted(entries, key=_importance)
        pods = [QueuedPod(one.pod, one.queued_s, one.attempts) for one in members]
        return queued_gang(self._roster, pods, {one.uid: self._gang_of[one.uid] for one in members})


def queued_gang(roster: GangRoster, members: Sequence[QueuedPod], gang_of: Mapping[str, str]) -> QueuedGang:
    """`members`: in the order in which they are decided. `gang_of`: uid of each -> key of its gang."""
    together = roster.together_with(gang_of[members[0].pod.uid])
    gangs = [gang for one in together if (gang := roster.gang(one)) is not None]
    needs = {gang.key: gang.needs for gang in gangs if gang.needs > 0}
    return QueuedGang(
        tuple(members),
        needs or {gangs[0].key: len(members)},
        gang_of,
        _topology([gang for gang in gangs if gang.key in gang_of.values()]),
        tuple(sorted({node for gang in gangs for node in _nodes(gang)})),
        next((gang.lateness for gang in gangs if gang.is_overdue), ""),
    )


def _importance(entry: Entry) -> tuple[int, float, str]:
    """The same in every attempt, so that it ends with the same words while nothing has changed."""
    return -entry.pod.spec.priority, entry.added_s, entry.pod.name


def _topology(gangs: Iterable[Gang]) -> tuple[TopologyLevel, ...]:
    """The levels of these gangs, which go into one domain together: what one of them requires is required of all."""
    required: dict[str, bool] = {}
    for gang in gangs:
        for level in gang.spec.topology if gang.spec is not None else ():
            required[level.key] = level.is_required or required.get(level.key, False)
    return tuple(TopologyLevel(key, is_required) for key, is_required in required.items())


def _nodes(gang: Gang) -> Iterator[str]:
    spec = gang.spec
    if spec is None or not spec.topology:
        return iter(())
    return (member.node for member in gang.members.values() if member.stays)
