"""Barriers of gangs: members that must start together wait here for one another until the first binding of them is sent.

A member arrives once Permit and PreBind have ended for it. The barrier opens when those that have arrived, with the
members that are on nodes already, make up the minimum of each of its gangs. Members beyond the minimum that have not
arrived by then follow one by one, so they block nobody. Gangs that start together have one barrier.

Every wait before it is bounded (`WAIT_MAX_S` of Permit, `PRE_BIND_MAX_S` of each PreBind plugin), and so is the barrier.
Owns who waits for whom. Called by `BindingCycle` alone, which sends binds and undoes them; synchronous.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from multisched.framework.gangs import GANG_PLUGIN
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.shell.binding.bind import Bind, Undone
from multisched.state.gang_roster import GangRoster


class GangFailure(msgspec.Struct, frozen=True):
    """Why none of the members is bound."""

    uid: str
    """Of the member that is the cause; empty if the gang itself is."""
    pod: Pod | None
    key: str
    status: Status

    def status_of(self, pod: Pod) -> Status:
        """What another member hears. A member in another namespace is not described."""
        if self.pod is None:
            cause = self.status.message
        elif self.pod.namespace == pod.namespace:
            cause = f"member {self.pod.name}: {self.status.message}"
        else:
            cause = "a member in another namespace could not be bound"
        message = f"gang {self.key} was not bound: {cause}"
        if self.status.code.is_rejection:
            return Status.unschedulable(message).by(self.status.plugin or GANG_PLUGIN)
        return Status.error(message)


class Barrier(msgspec.Struct, eq=False):
    """Of the gangs that one attempt placed together."""

    gang_of: dict[str, str] = msgspec.field(default_factory=dict)
    """uid of each member that is neither undone nor sent -> key of its gang."""
    members: Counter[str] = msgspec.field(default_factory=Counter)
    """Gang -> how many of those it has; none has 0."""
    missing: Counter[str] = msgspec.field(default_factory=Counter)
    """Gang -> members that have not arrived."""
    arrived: dict[str, Bind] = msgspec.field(default_factory=dict)
    to_begin: int = 0
    """Members whose binding cycle is about to begin, in this very step."""
    is_open: bool = False
    """The binds of those that have arrived wait for a bind worker."""
    failure: GangFailure | None = None
    undone: list[Undone] = msgspec.field(default_factory=list)
    """Members that wait for the others to be undone, so that they return to the queue as a gang."""

    def in_order(self) -> Sequence[Undone]:
        """Those that were undone, the cause first: the gang waits for what can help that one."""
        cause = "" if self.failure is None else self.failure.uid
        return sorted(self.undone, key=lambda one: one.bind.placed.pod.uid != cause)


class GangBarriers:
    """Of one domain."""

    def __init__(self, roster: GangRoster) -> None:
        self._roster = roster
        self._by_gang: dict[str, Barrier] = {}
        """Barriers that members may join."""
        self._by_uid: dict[str, Barrier] = {}

    def __len__(self) -> int:
        """Members at barriers; 0: nobody need be asked."""
        return len(self._by_uid)

    def all(self) -> Sequence[Barrier]:
        """O(members)."""
        return list({id(one): one for one in self._by_uid.values()}.values())

    def of(self, uid: str) -> Barrier | None:
        return self._by_uid.get(uid)

    # -- who is expected -------------------------------------------------------------------------------------------

    def expect(self, gang_of: Mapping[str, str]) -> None:
        """These members, by uid, were placed together, and `begin` follows for each of them in the same step."""
        known = next((self._by_gang[key] for key in gang_of.values() if key in self._by_gang), None)
        if known is not None or len(gang_of) > 1:
            barrier = Barrier() if known is None else known
            barrier.to_begin += len(gang_of)
            self._add(barrier, gang_of)

    def begin(self, uid: str) -> Barrier | None:
        """The barrier of a pod that was placed; None: it waits for nobody.

        A member that was placed alone waits with those of its gang that are at a barrier: else it would run without them.
        """
        barrier = self._by_uid.get(uid)
        if barrier is not None:
            barrier.to_begin -= 1
            return barrier
        key = self._roster.key_of(uid)
        barrier = None if key is None else self._by_gang.get(key)
        if key is not None and barrier is not None:
            self._add(barrier, {uid: key})
        return barrier

    def _add(self, barrier: Barrier, gang_of: Mapping[str, str]) -> None:
        barrier.gang_of |= gang_of
        barrier.members.update(gang_of.values())
        barrier.missing.update(gang_of.values())
        self._by_uid |= dict.fromkeys(gang_of, barrier)
        self._by_gang |= dict.fromkeys(gang_of.values(), barrier)

    # -- who has arrived -------------------------------------------------------------------------------------------

    def arrive(self, bind: Bind) -> Sequence[Bind]:
        """Permit and PreBind have ended for the pod. Returns the binds that may be sent now."""
        uid = bind.placed.pod.uid
        barrier = self._by_uid.get(uid)
        if barrier is None:
            return (bind,)
        barrier.arrived[uid] = bind
        barrier.missing[barrier.gang_of[uid]] -= 1
        return (bind,) if barrier.is_open else self.opened(barrier)

    def opened(self, barrier: Barrier) -> Sequence[Bind]:
        """The binds that may be sent if enough members have arrived by now; else none."""
        is_settled = barrier.is_open or barrier.failure is not None
        if is_settled or barrier.to_begin or self._is_short(barrier, barrier.missing):
            return ()
        barrier.is_open = True
        return tuple(barrier.arrived.values())

    def is_hopeless(self, barrier: Barrier) -> bool:
        """A gang would be below its minimum even if all its members arrived: some were undone, or it asks for more."""
        return self._is_short(barrier, {})

    def shortage(self, barrier: Barrier) -> GangFailure:
        """Why a gang is below its minimum although no member failed."""
        key = next((key for key in barrier.members if self._roster.needs(key)), next(iter(barrier.members)))
        why = self._roster.why_not_yet(key) or "its minimum has changed since its members were placed"
        return GangFailure("", None, key, Status.error(why))

    def may_send(self, barrier: Barrier) -> bool:
        """Whether the minimum is there without the members that have been turned back or have not arrived."""
        missing = barrier.missing.copy()
        for uid, bind in barrier.arrived.items():
            missing[barrier.gang_of[uid]] += bind.turned_back is not None
        return not self._is_short(barrier, missing)

    def _is_short(self, barrier: Barrier, missing: Mapping[str, int]) -> bool:
        return any(self._roster.needs(key, missing=missing.get(key, 0)) for key in barrier.members)

    # -- how it ends -----------------------------------------------------------------------------------------------

    def leave(self, barrier: Barrier, uid: str) -> str:
        """The member is undone. Returns its gang."""
        key = barrier.gang_of.pop(uid)
        barrier.members[key] -= 1
        if not barrier.members[key]:
            del barrier.members[key]
        del self._by_uid[uid]
        if barrier.arrived.pop(uid, None) is None:
            barrier.missing[key] -= 1
        if not barrier.gang_of:
            self._forget(barrier)
        return key

    def fail(self, barrier: Barrier, failure: GangFailure) -> Sequence[str]:
        """None of the members is bound: those to turn back, by uid. No other member joins them."""
        barrier.failure = failure
        self._forget(barrier)
        return tuple(barrier.gang_of)

    def dissolve(self, barrier: Barrier) -> None:
        """The first binding is sent: from now on each member goes its own way."""
        gangs = " and ".join(sorted(barrier.members))
        for bind in barrier.arrived.values():
            bind.sent_with = gangs
        for uid in barrier.gang_of:
            del self._by_uid[uid]
        self._forget(barrier)

    def _forget(self, barrier: Barrier) -> None:
        for key in [key for key, one in self._by_gang.items() if one is barrier]:
            del self._by_gang[key]
