"""Gang barriers: members that must start together wait here until the first of their bindings is sent.

A member arrives when its Permit and PreBind have ended. The barrier opens when the arrived members, together with the members
already on nodes, reach the minimum of each of its gangs. Members beyond the minimum that arrive later are sent one by one and
block no other member. Gangs that start together share one barrier.

The wait is bounded, because Permit (`WAIT_MAX_S`) and each PreBind plugin (`PRE_BIND_MAX_S`) are. Synchronous; called only by
`BindingCycle`, which sends and undoes the binds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from multisched.framework.gangs import GANG_PLUGIN
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.shell.binding.bind import Bind, CancelledBind
from multisched.state.gang_roster import GangRoster


class GangFailure(msgspec.Struct, frozen=True):
    """The reason why no member of the barrier is bound."""

    uid: str
    """uid of the member that caused the failure; empty if the gang itself did."""
    pod: Pod | None
    """That member."""
    key: str
    """Key of its gang."""
    status: Status

    def status_of(self, pod: Pod) -> Status:
        """Returns the status for another member. It does not name a member in another namespace."""
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
    """The barrier of the gangs that one attempt placed together."""

    gang_of: dict[str, str] = msgspec.field(default_factory=dict)
    """uid of each member that is neither undone nor sent -> key of its gang."""
    members: Counter[str] = msgspec.field(default_factory=Counter)
    """Gang -> number of its members in `gang_of`; never 0."""
    missing: Counter[str] = msgspec.field(default_factory=Counter)
    """Gang -> number of members that have not arrived."""
    arrived: dict[str, Bind] = msgspec.field(default_factory=dict)
    not_begun: int = 0
    """Number of expected members whose binding cycle begins later in this step."""
    is_open: bool = False
    """True once the binds of arrived members wait for a bind worker."""
    failure: GangFailure | None = None
    undone: list[CancelledBind] = msgspec.field(default_factory=list)
    """Undone members. All members are requeued in one step, after the last one has been undone."""

    def in_order(self) -> Sequence[CancelledBind]:
        """Returns the undone members, the cause of the failure first: its rejectors decide when the gang is requeued."""
        cause = "" if self.failure is None else self.failure.uid
        return sorted(self.undone, key=lambda one: one.bind.placed.pod.uid != cause)


class GangBarriers:
    """The gang barriers of one domain."""

    def __init__(self, roster: GangRoster) -> None:
        self._roster = roster
        self._by_gang: dict[str, Barrier] = {}
        """Barriers that further members may join, by key of each gang."""
        self._by_uid: dict[str, Barrier] = {}

    def __len__(self) -> int:
        """Number of members with a barrier."""
        return len(self._by_uid)

    def all(self) -> Sequence[Barrier]:
        """Returns all barriers. O(members)."""
        return list({id(one): one for one in self._by_uid.values()}.values())

    def of(self, uid: str) -> Barrier | None:
        return self._by_uid.get(uid)

    # -- expected members ------------------------------------------------------------------------------------------

    def expect(self, gang_of: Mapping[str, str]) -> None:
        """Registers members (by uid) that were placed together. `begin` must follow for each of them in the same step."""
        known = next((self._by_gang[key] for key in gang_of.values() if key in self._by_gang), None)
        if known is not None or len(gang_of) > 1:
            barrier = Barrier() if known is None else known
            barrier.not_begun += len(gang_of)
            self._add(barrier, gang_of)

    def begin(self, uid: str) -> Barrier | None:
        """Returns the barrier of a placed pod, or None if the pod waits for no other pod.

        A member that was placed alone joins the barrier of its gang, if there is one. Otherwise it would be bound without the others.
        """
        barrier = self._by_uid.get(uid)
        if barrier is not None:
            barrier.not_begun -= 1
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

    # -- arrivals --------------------------------------------------------------------------------------------------

    def arrive(self, bind: Bind) -> Sequence[Bind]:
        """Handles a pod whose Permit and PreBind have ended. Returns the binds that may be sent now."""
        uid = bind.placed.pod.uid
        barrier = self._by_uid.get(uid)
        if barrier is None:
            return (bind,)
        barrier.arrived[uid] = bind
        barrier.missing[barrier.gang_of[uid]] -= 1
        return (bind,) if barrier.is_open else self.open_if_complete(barrier)

    def open_if_complete(self, barrier: Barrier) -> Sequence[Bind]:
        """Opens the barrier if enough members have arrived, and returns their binds; else returns none."""
        is_settled = barrier.is_open or barrier.failure is not None
        if is_settled or barrier.not_begun or self._is_short(barrier, barrier.missing):
            return ()
        barrier.is_open = True
        return tuple(barrier.arrived.values())

    def cannot_reach_minimum(self, barrier: Barrier) -> bool:
        """Reports whether a gang stays below its minimum even if all members arrive: some were undone, or the minimum rose."""
        return self._is_short(barrier, {})

    def shortage(self, barrier: Barrier) -> GangFailure:
        """Returns the failure of a gang that is below its minimum although no member failed."""
        key = next((key for key in barrier.members if self._roster.needs(key)), next(iter(barrier.members)))
        why = self._roster.why_not_yet(key) or "its minimum has changed since its members were placed"
        return GangFailure("", None, key, Status.error(why))

    def may_send(self, barrier: Barrier) -> bool:
        """Reports whether the arrived, not cancelled members, together with those on nodes, reach each gang's minimum."""
        missing = barrier.missing.copy()
        for uid, bind in barrier.arrived.items():
            missing[barrier.gang_of[uid]] += bind.cancelled is not None
        return not self._is_short(barrier, missing)

    def _is_short(self, barrier: Barrier, missing: Mapping[str, int]) -> bool:
        """Reports whether some gang is below its minimum without `missing` (gang -> number) of its placed members."""
        return any(self._roster.needs(key, missing=missing.get(key, 0)) for key in barrier.members)

    # -- end of a barrier ------------------------------------------------------------------------------------------

    def leave(self, barrier: Barrier, uid: str) -> str:
        """Removes a member that was undone. Returns the key of its gang."""
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
        """Closes the barrier: none of its members will be bound. Returns the uids of the members whose binds must be cancelled."""
        barrier.failure = failure
        self._forget(barrier)
        return tuple(barrier.gang_of)

    def dissolve(self, barrier: Barrier) -> None:
        """Ends the barrier, because the first binding is about to be sent: from now on its members are independent."""
        gangs = " and ".join(sorted(barrier.members))
        for bind in barrier.arrived.values():
            bind.sent_with = gangs
        for uid in barrier.gang_of:
            del self._by_uid[uid]
        self._forget(barrier)

    def _forget(self, barrier: Barrier) -> None:
        for key in [key for key, one in self._by_gang.items() if one is barrier]:
            del self._by_gang[key]
