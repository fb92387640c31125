"""Recounts the gang roster of one process: counters must equal what the members add up to (I13).

After each write the written gang is recounted. Regularly each member is compared with the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from multisched.model.gang import GangSpec, Membership
from multisched.model.objects import Pod
from multisched.shell.program import Program
from multisched.state.cluster_cache import PlacedPod, PodState
from multisched.state.gang_roster import Gang, GangMember, GangRoster

WRITES: Final = ("set", "remove", "finish", "on_finished_deleted", "set_object", "set_member_node", "set_victim")
"""Methods of the roster after which a gang is recounted."""


class GangCount(NamedTuple):
    """What the members of a gang add up to."""

    placed: int
    bound: int
    leaving: int
    succeeded: int
    needs: int
    lacks: int
    present: int
    surplus: int


class GangReason(NamedTuple):
    """What decides whether members of a gang wait, and what its attempts ask for."""

    spec: GangSpec | None
    is_valid: bool
    is_complete: bool
    needs: int
    lacks: int


def recount(gang: Gang) -> GangCount:
    """Counts the gang's members one by one."""
    placed = bound = tentative = leaving = held = 0
    owners = set[str]()
    for member in gang.members.values():
        if member.is_deleting or member.is_victim:
            leaving += 1
            continue
        owners.add(member.owner_uid)
        held += bool(member.held) and not member.node
        placed += bool(member.node)
        tentative += bool(member.node) and member.is_tentative
        bound += member.is_bound
    finished = [one for one in gang.finished.values() if one.is_there or one.owner_uid]
    succeeded = sum(one.owner_uid in owners for one in finished) if owners else len(finished)
    present = len(gang.members) - leaving - held + succeeded
    spec = gang.spec
    if spec is None:
        return GangCount(placed, bound, leaving, succeeded, 1, 0, present, 0)
    needs = 0 if spec.is_once and gang.has_started else spec.min_members - (placed - tentative) - succeeded
    lacks = max(spec.min_members - bound - succeeded, 0) if needs > 0 else 0
    surplus = min(max(placed + succeeded - spec.min_members, 0), placed)
    return GangCount(placed, bound, leaving, succeeded, needs, lacks, present, surplus)


def recount_gang_of(roster: GangRoster, uid: str) -> GangCount:
    """Counts the gang of a member."""
    gang = roster.gang(roster.key_of(uid) or "")
    assert gang is not None, "a member of the queue's gang has one in the roster"
    return recount(gang)


def reason_of(gang: Gang | None) -> GangReason | None:
    """Returns why members of the gang wait, in values that are equal as long as that is so; None for no gang."""
    if gang is None:
        return None
    count, spec = recount(gang), gang.spec
    is_complete = spec is not None and count.present >= spec.min_members
    return GangReason(spec, not gang.problem, is_complete, max(count.needs, 0), count.lacks)


class RosterChecker:
    """Wraps the roster of one program. Changes nothing."""

    def __init__(self, program: Program, report_violation: Callable[[str], None]) -> None:
        self._program, self._roster = program, program.cache.gangs
        self._report_violation = report_violation
        self._depth = 0
        """Depth of nested writes."""
        self._notified: set[str] = set()
        """Gangs whose change was reported to the queues during the write in progress."""
        self._on_change = self._roster.on_change
        self._roster.on_change = self.on_change
        for name in WRITES:
            setattr(self._roster, name, self._checked(getattr(self._roster, name)))
        self._set = self._roster.set
        self._roster.set = self.set_pod  # type: ignore[method-assign]

    def on_change(self, key: str) -> None:
        """Wraps `GangRoster.on_change`."""
        self._notified.add(key)
        self._on_change(key)

    def set_pod(self, pod: Pod) -> Membership | None:
        """Wraps `GangRoster.set`: a later version of a pod does not cancel its planned eviction."""
        membership, entry = self._set(pod), self._program.cache.placed(pod.uid)
        key = self._roster.key_of(pod.uid)
        gang = None if key is None else self._roster.gang(key)
        is_victim = entry is not None and entry.pod.is_victim and not pod.is_deleting
        if gang is not None and is_victim and not gang.members[pod.uid].is_victim:
            self._report_violation(f"I13: {pod.key} of gang {key} counts as one that stays, and is about to be evicted")
        return membership

    def _checked(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*args: Any, **options: Any) -> Any:
            if self._depth:
                return write(*args, **options)
            self._depth, keys = 1, self._keys_of(args)
            self._notified.clear()
            before = {key: reason_of(self._roster.gang(key)) for key in keys}
            try:
                answer = write(*args, **options)
            finally:
                self._depth = 0
            for key in keys | self._keys_of(args):
                self._check(key, before.get(key))
            return answer

        return checked

    def _keys_of(self, args: tuple[Any, ...]) -> set[str]:
        """Returns the keys of the gangs in the arguments of a write: pods, uids or keys."""
        uids = (getattr(one, "uid", one) for one in args)
        texts = [one for one in uids if isinstance(one, str)]
        keys = {self._roster.key_of(one) for one in texts} | {
            one for one in texts if self._roster.gang(one) is not None
        }
        return {key for key in keys if key is not None}

    def _check(self, key: str, before: GangReason | None) -> None:
        gang = self._roster.gang(key)
        if gang is not None and (fault := fault_of_count(gang)):
            self._report_violation(fault)
        after = reason_of(gang)
        if before == after or (before is None and key not in self._notified):
            return  # a new gang was reported when it was created
        for one in (key, *self._gangs_that_name(key)):
            if one not in self._notified and self._roster.gang(one) is not None:
                self._report_violation(
                    f"I13: gang {one} depends on gang {key}, which changed, and its members were not looked at"
                )

    def _gangs_that_name(self, key: str) -> Iterator[str]:
        """Yields the other gangs that must start with this one."""
        for gang in self._roster.gangs():
            if gang.key != key and gang.spec is not None and key in gang.spec.together_with:
                yield gang.key

    # -- now and then ----------------------------------------------------------------------------------------------

    def fault(self) -> str:
        """Returns the first member that differs from the caches, or the first wrong count; empty for none."""
        placed = {entry.pod.uid: entry for entry in self._program.cache}
        paused = {one.pod.uid for worker in self._program.router.workers() for one in worker.long_attempts.entries}
        for gang in self._roster.gangs():
            for uid, member in gang.members.items():
                what = _fault_of_member(member, placed.get(uid))
                if not what and member.is_tentative and uid not in paused:
                    what = "as tentative, and no attempt that has paused holds it"
                if what:
                    return f"I13: {member.name} of gang {gang.key} counts {what}"
            if fault := fault_of_count(gang):
                return fault
        return self._fault_of_missing(placed)

    def _fault_of_missing(self, placed: Mapping[str, PlacedPod]) -> str:
        """Returns the first pod that belongs to a gang and is not a member of it; empty for none."""
        pods = [*self._program.pods.pending.values(), *(entry.pod for entry in placed.values())]
        for pod in pods:
            key = self._roster.key_of(pod.uid)
            gang = None if key is None else self._roster.gang(key)
            if key is not None and (gang is None or pod.uid not in gang.members):
                return f"I13: {pod.key} counts nowhere, and belongs to gang {key}"
        return ""


def fault_of_count(gang: Gang) -> str:
    """Returns the first counter of the gang that differs from its members; empty for none."""
    kept = GangCount(
        gang.placed_count,
        gang.bound,
        gang.leaving,
        gang.succeeded,
        gang.needs,
        gang.lacks,
        gang.present,
        gang.surplus,
    )
    wanted = recount(gang)
    for name, here, there in zip(GangCount._fields, kept, wanted, strict=True):
        if here != there:
            return f"I13: gang {gang.key} counts {here} as {name}, and its members make {there}"
    return ""


def _fault_of_member(member: GangMember, entry: PlacedPod | None) -> str:
    """`entry`: the member in the cache; None if it has no node."""
    if entry is None:
        if member.node or member.is_bound or member.is_victim:
            return f"on {member.node!r}, and has no node"
        return ""
    if member.node != entry.node:
        return f"on {member.node!r}, and is on {entry.node}"
    if member.is_bound is not (entry.state is PodState.CONFIRMED):
        return f"{'as bound' if member.is_bound else 'as not bound'}, and is {entry.state.name}"
    if member.is_deleting is not entry.pod.is_deleting:
        return f"{'as deleted' if member.is_deleting else 'as not deleted'}, and is not so"
    is_victim = entry.pod.is_victim and not entry.pod.is_deleting
    if member.is_victim is not is_victim:
        return f"{'as a victim' if member.is_victim else 'as one that stays'}, and is not so"
    return ""
