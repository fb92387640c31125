"""Which entries belong to one gang, and which of them leads the others.

A gang is one entity in the queue. The first of its members that every gate admits leads, with its place in the order, its
backoff and its fair share. The others stand with it (`Place.GANG`), and whoever pops the lead pops them all. Once a gang
has started, its members are entries of their own. Gangs that start together are one entity here.
Called by `PodQueue` alone; who has to start together, the roster says.
"""

from __future__ import annotations

from collections.abc import Iterator

from multisched.framework.points import QueuedGang, QueuedPod
from multisched.queueing.entry import Entry
from multisched.queueing.transitions import Place
from multisched.state.gang_roster import GangRoster


class GangEntries:
    """The entries of one queue that belong to gangs."""

    def __init__(self, roster: GangRoster) -> None:
        self._roster = roster
        self._by_gang: dict[str, dict[str, Entry]] = {}
        self._gang_of: dict[str, str] = {}
        self._leads: dict[str, Entry] = {}
        """Key of the lead's own gang -> the lead."""
        self._following: set[str] = set()
        """uids of entries that stand with their lead."""
        self._changed: dict[str, None] = {}
        """Gangs whose members may have to be moved, in the order in which they changed."""

    def __len__(self) -> int:
        """Entries that stand with their lead."""
        return len(self._following)

    def __contains__(self, uid: object) -> bool:
        return uid in self._following

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    def changed(self, key: str) -> None:
        """The needs of the gang, or who is there, may be others now."""
        if key in self._by_gang:
            self._changed[key] = None

    def next_changed(self) -> str | None:
        """One of the gangs that changed, which counts as looked at."""
        if not self._changed:
            return None
        key = next(iter(self._changed))
        del self._changed[key]
        return key

    def join(self, entry: Entry) -> None:
        """A new entry, or one whose pod changed."""
        key, known = self._roster.key_of(entry.uid) or "", self._gang_of.get(entry.uid, "")
        if key == known:
            return
        if known:
            self.leave(entry)
        if key:
            self._gang_of[entry.uid] = key
            self._by_gang.setdefault(key, {})[entry.uid] = entry

    def leave(self, entry: Entry) -> None:
        """The entry is gone; another one has to lead if it did."""
        key = self._gang_of.pop(entry.uid, "")
        if not key:
            return
        entries = self._by_gang[key]
        del entries[entry.uid]
        if not entries:
            del self._by_gang[key]
        self.step_back(entry, key)
        for one in self._roster.together_with(key):
            self.changed(one)

    def follow(self, entry: Entry) -> None:
        self._following.add(entry.uid)

    def unfollow(self, entry: Entry) -> None:
        self._following.discard(entry.uid)

    # -- who leads -------------------------------------------------------------------------------------------------

    def key_of(self, entry: Entry) -> str:
        """Its gang; KeyError for an entry without one."""
        return self._gang_of[entry.uid]

    def must_start_together(self, entry: Entry) -> bool:
        """False for a pod without a gang, and once its gang, and those that start with it, have started."""
        key = self._gang_of.get(entry.uid)
        return key is not None and not self._roster.has_started(key)

    def lead_of(self, entry: Entry) -> Entry | None:
        """Who leads the gang of this entry."""
        key = self._gang_of.get(entry.uid)
        if key is None:
            return None
        for one in self._roster.together_with(key):
            lead = self._leads.get(one)
            if lead is not None:
                return lead
        return None

    def lead(self, entry: Entry) -> None:
        """From now on this one leads its gang."""
        self._leads[self._gang_of[entry.uid]] = entry

    def step_back(self, entry: Entry, key: str = "") -> None:
        """This one leads no more, if it did."""
        key = key or self._gang_of.get(entry.uid, "")
        if key and self._leads.get(key) is entry:
            del self._leads[key]
            self.changed(key)

    def is_healing(self, entry: Entry) -> bool:
        """Some members of its gang stand: it goes before gangs that have not begun."""
        gang = self._roster.gang(self._gang_of.get(entry.uid, ""))
        return gang is not None and gang.standing > 0

    # -- all of them -----------------------------------------------------------------------------------------------

    def members(self, key: str) -> Iterator[Entry]:
        """Entries of the gang and of those that start with it, wherever they are. Copy before anything is moved."""
        for one in self._roster.together_with(key):
            yield from self._by_gang.get(one, {}).values()

    def followers(self, lead: Entry) -> list[Entry]:
        key = self._gang_of[lead.uid]
        return [entry for entry in self.members(key) if entry.place is Place.GANG]

    def has_started(self, key: str) -> bool:
        return self._roster.has_started(key)

    def queued(self, members: tuple[QueuedPod, ...]) -> QueuedGang:
        """The gang of these members, the lead first, as the cycle decides it."""
        key = self._gang_of[members[0].pod.uid]
        together = self._roster.together_with(key)
        gang = self._roster.gang(key)
        spec = None if gang is None else gang.spec
        return QueuedGang(
            members,
            {one: self._roster.needs(one) for one in together},
            {member.pod.uid: self._gang_of[member.pod.uid] for member in members},
            () if spec is None else spec.topology,
        )
