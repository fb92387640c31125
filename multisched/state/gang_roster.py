"""GangRoster: the members of each gang, which of them have nodes, and how many more must start.

Owns the gang membership of every pod of every domain, pending and placed. Ingest writes pods and the objects that
describe gangs, the cache the nodes of members. The queues, which treat a gang as one unit, and the cycles read it. A
pod without a gang costs one dictionary look-up. A gang's key is NAMESPACE/NAME.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from multisched.framework.gangs import GangCounts, Reserving
from multisched.model.gang import LEVELS_MAX, TIMEOUT_S, GangApi, GangSpec, Membership, membership_of
from multisched.model.objects import Pod

FINISHED_MAX: Final = 100_000
"""Limit, over all gangs, of remembered finished members: the oldest are dropped."""
DEPARTED_MAX: Final = 10_000
"""Limit, over all gangs, of remembered placed members that left the watch without being deleted: they may have succeeded."""
NAMED_MAX: Final = 4
"""Maximum number of members, schedulers or minimums in a message."""
NO_TERMS: Final = "no member says how many start together"
DESCRIBED: Final = (GangApi.KUBERNETES, GangApi.SCHEDULER_PLUGINS, GangApi.SIGS)
"""APIs in which a PodGroup of this API group holds a gang's requirements."""
GATED: Final = "it has scheduling gates"


class GangMember(msgspec.Struct):
    """One living pod of a gang."""

    name: str
    scheduler_name: str
    held: str = ""
    """Why it cannot be tried: it has scheduling gates, or is invalid."""
    node: str = ""
    """The node it is bound to or assumed on; empty for a pending one."""
    is_bound: bool = False
    """The watch has shown the pod on the node."""
    is_tentative: bool = False
    """Assumed by an attempt in progress, which may forget it: it counts as placed, but not as started."""
    is_deleting: bool = False
    is_victim: bool = False
    """The same as `Pod.is_victim`."""
    is_running: bool = False
    owner: str = ""
    """Name of the workload that owns it; empty if there is none."""
    owner_uid: str = ""

    @property
    def is_held(self) -> bool:
        return bool(self.held) and not self.node

    @property
    def is_leaving(self) -> bool:
        """The same as `Pod.is_leaving`."""
        return self.is_deleting or self.is_victim

    @property
    def is_placed(self) -> bool:
        """It has a node, and is not leaving."""
        return bool(self.node) and not self.is_leaving


class FinishedMember(msgspec.Struct, frozen=True):
    """One pod of a gang that succeeded: it holds nothing."""

    owner_uid: str = ""
    is_there: bool = True
    """The pod still exists in the API server."""

    @property
    def may_count(self) -> bool:
        """False for a deleted pod without an owner: nothing shows whether later pods belong to the same run."""
        return self.is_there or bool(self.owner_uid)


class Gang:
    """One gang, from its members and its object. Written by the roster only."""

    def __init__(self, key: str, troubles: Mapping[GangApi, str]) -> None:
        """`troubles`: see `GangRoster.note_kind`; a live view."""
        self.key = key
        self._troubles = troubles
        self.apis: list[GangApi] = []
        """The APIs by which its members name it."""
        self.members: dict[str, GangMember] = {}
        """uid -> member, without finished ones."""
        self.finished: dict[str, FinishedMember] = {}
        """uid -> finished member, including those of earlier runs."""
        self._finished_by: Counter[str] = Counter()
        """uid of an owner, empty for none -> finished members that count for living members of the same owner."""
        self.owners: Counter[str] = Counter()
        """The same for living members that are not being deleted."""
        self.placed_count = 0
        """Members that are bound or assumed and not leaving."""
        self.tentative = 0
        """Those of them that an attempt in progress may forget."""
        self.bound = 0
        """Those of them that the watch has shown on their nodes."""
        self.leaving = 0
        """Members that are leaving: they do not count, so that their replacements start together."""
        self.has_started = False
        """Its minimum was bound once, and since then it always had a placed or finished member."""
        self.declared: Counter[GangSpec] = Counter()
        """Requirements that members declare themselves -> number of members."""
        self.described: GangSpec | None = None
        """The requirements in its object."""
        self.object_problem = ""
        self.linked: tuple[str, ...] = ()
        """Other gangs that it must start with, as of the last change."""
        self.refusal = ""
        """Why its members found no nodes in the last attempt; empty once enough have."""
        self.is_overdue = False
        """Its members have waited for each other longer than its timeout. Written by the queue."""
        self.reserving = Reserving.NO
        """Written by the queue."""
        self.schedulers: Counter[str] = Counter()
        self.last_scheduler = ""
        """schedulerName of the latest member, which may have finished."""
        self.held = 0
        """Pending members that cannot be tried."""

    @property
    def succeeded(self) -> int:
        """Finished members that count: those with the same owner as a living member; all, if none is alive."""
        if not self.owners:
            return self._finished_by.total()
        return sum(count for owner, count in self._finished_by.items() if owner in self.owners)

    def add_finished(self, uid: str, member: FinishedMember) -> None:
        """Adds a finished member, or replaces its record."""
        self.drop_finished(uid)
        self.finished[uid] = member
        self._finished_by[member.owner_uid] += member.may_count

    def drop_finished(self, uid: str) -> None:
        """Drops a finished member, if it is known."""
        member = self.finished.pop(uid, None)
        if member is not None:
            self._finished_by[member.owner_uid] -= member.may_count
            if not self._finished_by[member.owner_uid]:
                del self._finished_by[member.owner_uid]

    @property
    def spec(self) -> GangSpec | None:
        """Its requirements; None if none are declared, or members contradict each other."""
        if self.described is not None:
            return self.described
        return next(iter(self.declared)) if len(self.declared) == 1 else None

    @property
    def problem(self) -> str:
        """Why it cannot start even if members are added; empty for a valid gang."""
        if self.object_problem:
            return self.object_problem
        if len(self.schedulers) > 1:
            names = " and ".join(sorted(self.schedulers)[:NAMED_MAX])
            return f"its members name the schedulers {names}; write the same in all of them"
        counts = sorted({spec.min_members for spec in self.declared})
        if self.described is not None and counts and counts != [self.described.min_members]:
            return (
                f"its PodGroup asks for a minimum of {self.described.min_members}, and its members for"
                f" {' and '.join(map(str, counts[:NAMED_MAX]))}; write the same in both"
            )
        if self.described is None and len(self.declared) > 1:
            what = (
                f"minimums of {' and '.join(map(str, counts[:NAMED_MAX]))}" if len(counts) > 1 else "different things"
            )
            return f"its members ask for {what}; write the same in all of them"
        return "" if self.spec is not None else self._missing

    @property
    def _missing(self) -> str:
        """The object that is missing, for a gang without requirements."""
        api = next((one for one in self.apis if one in DESCRIBED), None)
        if api is None:
            return NO_TERMS
        trouble = self._troubles.get(api, "")
        return f"PodGroup {self.key} of {api.value} is missing{f': {trouble}' if trouble else '; create it'}"

    @property
    def timeout_s(self) -> float:
        """Time after which its members get the message that it has not started."""
        return TIMEOUT_S if self.spec is None else self.spec.timeout_s

    @property
    def overdue_text(self) -> str:
        """The part of the message after that time."""
        if self.placed_count:
            return f"has been below its minimum for {self.timeout_s:g} s"
        return f"has not started within {self.timeout_s:g} s"

    @property
    def needs(self) -> int:
        """Members that still have to start together; 0 or less: each may start alone."""
        spec = self.spec
        if spec is None:
            return 1
        if self.starts_members_singly:
            return 0
        return spec.min_members - (self.placed_count - self.tentative) - self.succeeded

    @property
    def starts_members_singly(self) -> bool:
        """True if further members need not wait for others."""
        return self.spec is not None and self.spec.is_once and self.has_started

    @property
    def placed_uids(self) -> Sequence[str]:
        """uids of the `placed_count` members."""
        return [uid for uid, member in self.members.items() if member.is_placed]

    @property
    def surplus(self) -> int:
        """How many of those can be removed without falling below the minimum; 0 if its requirements are unknown."""
        spec, placed = self.spec, self.placed_count
        return 0 if spec is None else min(max(placed + self.succeeded - spec.min_members, 0), placed)

    @property
    def wait_reason_key(self) -> tuple[object, ...]:
        """Everything that determines why pods wait for the gang's members: if equal, the reason is unchanged."""
        spec = self.spec
        is_complete = spec is not None and self.present >= spec.min_members
        return len(self.schedulers), len(self.declared), spec, self.held, is_complete, self.lacks, max(self.needs, 0)

    @property
    def lacks(self) -> int:
        """Members missing for its minimum, not counting assumed ones, which may be forgotten."""
        spec = self.spec
        if spec is None or self.needs <= 0:
            return 0
        return max(spec.min_members - self.bound - self.succeeded, 0)

    @property
    def present(self) -> int:
        """Members that are placed, could be tried, or have finished."""
        return len(self.members) + self.succeeded - self.held - self.leaving


class GangRoster:
    """All gangs of the cluster."""

    def __init__(self) -> None:
        self._gangs: dict[str, Gang] = {}
        self.version = 0
        """Raised with each change of `placed_count` or `surplus`."""
        self._key_of: dict[str, str] = {}
        self._declared_by: dict[str, GangSpec] = {}
        self._objects: dict[tuple[GangApi, str], tuple[GangSpec | None, str]] = {}
        self.troubles: dict[GangApi, str] = {}
        """Why the PodGroups of an API are unknown; written by `note_kind`."""
        self._named_by: dict[str, set[str]] = {}
        """Gang -> the gangs that must start with it."""
        self._finished: dict[str, tuple[str, str]] = {}
        """uid -> key of its gang and NAMESPACE/NAME, oldest first."""
        self._finished_uids: dict[str, str] = {}
        """NAMESPACE/NAME -> uid of the finished pods that exist in the API server."""
        self._departed: dict[str, None] = {}
        """uids of placed members of started gangs that left the watch without being deleted, oldest first. The watch of
        running pods does not show how they ended, and may be ahead of the watch of succeeded pods.
        """
        self.on_first: Callable[[], None] = _ignore
        """Called when the first gang appears."""
        self.on_change: Callable[[str], None] = _ignore_key
        """Called with the key of a gang whose members may have another reason to wait."""
        self.on_count: Callable[[str], None] = _ignore_key
        """Called with the key of a gang whose `counts` changed."""

    def __len__(self) -> int:
        return len(self._gangs)

    def gangs(self) -> Iterable[Gang]:
        return self._gangs.values()

    def gang(self, key: str) -> Gang | None:
        return self._gangs.get(key)

    def key_of(self, uid: str) -> str | None:
        """Returns the pod's gang; None for a pod without one."""
        return self._key_of.get(uid)

    def together_with(self, key: str) -> Sequence[str]:
        """Returns the gangs that start together with this one, including itself."""
        gang = self._gangs.get(key)
        spec = None if gang is None else gang.spec
        return spec.together_with if spec is not None and spec.together_with else (key,)

    def needs(self, key: str, *, missing: int = 0) -> int:
        """Returns how many more members must start together, not counting `missing` of the placed ones; 0: each may start alone."""
        gang = self._gangs.get(key)
        if gang is None or (missing and gang.starts_members_singly):
            return 0
        return max(gang.needs + missing, 0)

    def has_started(self, key: str) -> bool:
        """Reports whether no member of the gang has to wait for others."""
        return not self.needs(key)

    # -- `PlacedGangMembers` -------------------------------------------------------------------------------------------

    def placed_members(self, key: str) -> Collection[str]:
        """Returns the uids of members that are bound or assumed, and are neither being deleted nor victims."""
        gang = self._gangs.get(key)
        return () if gang is None else gang.placed_uids

    def surplus(self, key: str) -> int:
        """Returns how many of those can be removed without falling below the minimum; 0 if the requirements are unknown."""
        gang = self._gangs.get(key)
        return 0 if gang is None else gang.surplus

    def counts(self, key: str) -> GangCounts | None:
        """Returns the gang's counts and state; None for an unknown one."""
        gang = self._gangs.get(key)
        return None if gang is None else counts_of(gang, self.why_not_yet(key))

    # -- why members wait ------------------------------------------------------------------------------------------

    def why_not_yet(self, key: str) -> str:
        """Returns why members cannot be tried now; empty: they can, or need not wait for others."""
        about, why = _obstacle(self._gangs, key, self.together_with) if self.needs(key) else ("", "")
        return why and _sentence(self._gangs[key], about, why)

    # -- written by ingest -----------------------------------------------------------------------------------------

    def set(self, pod: Pod) -> Membership | None:
        """Adds or updates a pod in any state. Returns the membership that it declares."""
        membership = membership_of(pod)
        known = self._key_of.get(pod.uid)
        if membership is None:
            if known is not None:
                self.remove(pod.uid)
            return None
        if pod.uid in self._finished:
            if self._gangs[self._finished[pod.uid][0]].finished[pod.uid].is_there:
                return membership  # the watch of running pods is behind
            self._forget_finished(pod.uid)  # after the restore of a backup in which the pod has not finished
        key = f"{pod.namespace}/{membership.name}"
        gang = self._gang(key, membership)
        before_it = gang.wait_reason_key
        member = _member(pod, membership)
        before = None
        if known is not None:
            before = self._gangs[known].members[pod.uid]
            member.node, member.is_bound, member.is_running = before.node, before.is_bound, before.is_running
            member.is_victim |= before.is_victim and not member.is_deleting
            member.is_tentative = before.is_tentative
            if known != key:
                self.remove(pod.uid)
                before = None
        if before != member:
            self._replace(gang, pod.uid, before, member)
        if member.is_running != (pod.phase == "Running"):  # does not change `placed_count`, so `version` is not raised
            gang.members[pod.uid].is_running = not member.is_running
            self.on_count(key)
        asked = gang.spec
        self._declare(gang, pod.uid, membership.spec)
        if gang.spec != asked:
            gang.refusal = ""
        if gang.wait_reason_key != before_it:
            self._changed(key)
        else:
            self._link(gang, self.together_with(key))
        return membership

    def remove(self, uid: str) -> None:
        """Removes a pod that was deleted, or no longer belongs to its gang."""
        key = self._key_of.get(uid)
        if key is None:
            return
        gang = self._gangs[key]
        member = gang.members[uid]
        if gang.has_started and member.node and not member.is_deleting:
            self._departed[uid] = None
            if len(self._departed) > DEPARTED_MAX:
                del self._departed[next(iter(self._departed))]
        self._declare(gang, uid, None)
        self._replace(gang, uid, member, None)
        self._tidy(gang)
        self._changed(key)

    def finish(self, pod: Pod) -> None:
        """Records that the pod succeeded: it counts for its gang, and holds nothing."""
        membership = membership_of(pod)
        if membership is None or pod.uid in self._finished:
            return
        gang = self._gang(f"{pod.namespace}/{membership.name}", membership)
        self.version += 1
        gang.last_scheduler = pod.spec.scheduler_name
        # Added before the pod is removed from the members, so that the gang is not dropped in between.
        gang.add_finished(pod.uid, FinishedMember(_owner_uid(pod)))
        self.remove(pod.uid)
        if pod.uid in self._departed:
            del self._departed[pod.uid]
            # The gang counted as ended only because the success of this member was not known yet.
            gang.has_started |= not gang.owners or _owner_uid(pod) in gang.owners
        self._finished[pod.uid] = gang.key, pod.key
        self._finished_uids[pod.key] = pod.uid
        if len(self._finished) > FINISHED_MAX:
            self._forget_finished(next(iter(self._finished)))
        self.on_count(gang.key)
        self._changed(gang.key)

    def on_finished_deleted(self, pod_key: str) -> None:
        """Handles the deletion of a finished pod. If it has an owner, it still counts as long as its gang has other pods."""
        uid = self._finished_uids.pop(pod_key, "")
        if uid:
            self.version += 1
            gang = self._gangs[self._finished[uid][0]]
            gang.add_finished(uid, FinishedMember(gang.finished[uid].owner_uid, is_there=False))
            _note_end(gang)
            self._tidy(gang)
            self.on_count(gang.key)
            self._changed(gang.key)

    def set_object(self, api: GangApi, key: str, spec: GangSpec | None, problem: str = "") -> None:
        """Sets the gang's own object; None without a problem: it was deleted."""
        self.version += 1
        if spec is None and not problem:
            self._objects.pop((api, key), None)
        else:
            self._objects[api, key] = spec, problem
        gang = self._gangs.get(key)
        if gang is not None and api in gang.apis:
            self._describe(gang)
            self._changed(key)

    def note_kind(self, api: GangApi, trouble: str) -> None:
        """Sets why the PodGroups of this API are unknown, for members that wait for theirs; empty: they are known."""
        if self.troubles.get(api, "") == trouble:
            return
        self.troubles[api] = trouble
        for gang in self._gangs.values():
            if gang.spec is None and api in gang.apis:
                self.on_change(gang.key)

    # -- written by queues -----------------------------------------------------------------------------------------

    def note_overdue(self, key: str) -> None:
        """Records that members of the gang have waited longer than its timeout."""
        gang = self._gangs.get(key)
        if gang is not None:
            gang.is_overdue = gang.needs > 0
            self.on_count(key)

    def note_in_time(self, key: str) -> None:
        """Clears `is_overdue` after the gang's timeout was raised."""
        gang = self._gangs.get(key)
        if gang is not None:
            gang.is_overdue = False
            self.on_count(key)

    def reserving(self, key: str) -> Reserving:
        """Returns whether the gang may reserve capacity; NO for an unknown one."""
        return Reserving.NO if (gang := self._gangs.get(key)) is None else gang.reserving

    def note_refusal(self, key: str, message: str) -> None:
        """Records why a member that must start with others was not placed."""
        gang = self._gangs.get(key)
        if gang is not None and gang.refusal != message:
            gang.refusal = message
            self.on_count(key)

    # -- written by the cache --------------------------------------------------------------------------------------

    def set_member_node(self, uid: str, node: str, *, is_bound: bool = False, is_tentative: bool = False) -> None:
        """Sets the node on which the pod was assumed or seen; empty: none any more. `is_tentative`: as in `GangMember`."""
        key = self._key_of.get(uid)
        if key is None:
            return
        gang = self._gangs[key]
        member, before = gang.members[uid], gang.wait_reason_key
        is_foreign = is_bound and not member.node and not member.is_leaving
        self.version += node != member.node
        _tally(gang, member, -1)
        member.node, member.is_bound, member.is_tentative = node, is_bound, is_tentative
        member.is_victim &= bool(node)
        _tally(gang, member, 1)
        if is_bound:
            _note_start(gang, is_foreign=is_foreign)
        else:
            _note_end(gang)
        self.on_count(key)
        if gang.wait_reason_key != before:
            self._changed(key)

    def set_victim(self, uid: str, *, is_victim: bool) -> None:
        """The same as `ClusterCache.set_victim`."""
        key = self._key_of.get(uid)
        if key is None:
            return
        gang = self._gangs[key]
        member, before = gang.members[uid], gang.wait_reason_key
        _tally(gang, member, -1)
        member.is_victim = is_victim
        _tally(gang, member, 1)
        self.version += 1
        if gang.wait_reason_key != before:
            self._changed(key)

    # -- internal --------------------------------------------------------------------------------------------------

    def _changed(self, key: str) -> None:
        gang = self._gangs.get(key)
        if gang is not None:
            if gang.needs <= 0:
                gang.is_overdue, gang.refusal = False, ""
            self._link(gang, self.together_with(key))
        for one in dict.fromkeys((key, *self.together_with(key), *sorted(self._named_by.get(key, ())))):
            self.on_change(one)

    def _link(self, gang: Gang, linked: Sequence[str]) -> None:
        linked = tuple(one for one in linked if one != gang.key)
        if gang.linked == linked:
            return
        for one in gang.linked:
            self._named_by[one].discard(gang.key)
            if not self._named_by[one]:
                del self._named_by[one]
        gang.linked = linked
        for one in gang.linked:
            self._named_by.setdefault(one, set()).add(gang.key)

    def _gang(self, key: str, membership: Membership) -> Gang:
        gang = self._gangs.get(key)
        if gang is None:
            if not self._gangs:
                self.on_first()
            gang = self._gangs[key] = Gang(key, self.troubles)
            for other in (key, *sorted(self._named_by.get(key, ()))):
                self.on_change(other)
        if membership.api not in gang.apis or any(api not in gang.apis for api in membership.also):
            gang.apis += [api for api in (membership.api, *membership.also) if api not in gang.apis]
            self._describe(gang)
        return gang

    def _describe(self, gang: Gang) -> None:
        """Reads the object of the first of its APIs that has one."""
        self.version += 1
        before = gang.spec
        found = (self._objects.get((api, gang.key)) for api in gang.apis)
        gang.described, gang.object_problem = next((one for one in found if one is not None), (None, ""))
        if gang.spec != before:
            gang.refusal = ""  # it applied to the old requirements
        if gang.bound:
            _note_start(gang, is_foreign=before is None)

    def _replace(self, gang: Gang, uid: str, before: GangMember | None, after: GangMember | None) -> None:
        """Adds, removes or replaces a member."""
        self.version += 1
        for member, sign in ((before, -1), (after, 1)):
            if member is not None:
                _tally(gang, member, sign)
                _count(gang.schedulers, member.scheduler_name, sign)
        if after is None:
            del gang.members[uid], self._key_of[uid]
        else:
            gang.members[uid] = after
            gang.last_scheduler = after.scheduler_name
            self._key_of[uid] = gang.key
        _note_end(gang)
        self.on_count(gang.key)

    def _forget_finished(self, uid: str) -> None:
        self.version += 1
        key, pod_key = self._finished.pop(uid)
        self._finished_uids.pop(pod_key, None)
        gang = self._gangs[key]
        gang.drop_finished(uid)
        self._tidy(gang)

    def _declare(self, gang: Gang, uid: str, spec: GangSpec | None) -> None:
        before = self._declared_by.pop(uid, None)
        self.version += before != spec
        if before is not None:
            _count(gang.declared, before, -1)
        if spec is not None:
            self._declared_by[uid] = spec
            _count(gang.declared, spec, 1)

    def _tidy(self, gang: Gang) -> None:
        if gang.members or any(one.is_there for one in gang.finished.values()):
            return
        del self._gangs[gang.key]
        self._link(gang, ())
        for uid in gang.finished:
            self._finished.pop(uid, None)

    def statistics(self) -> Mapping[str, int]:
        return {"gangs": len(self._gangs), "members": len(self._key_of), "finished": len(self._finished)}


def _member(pod: Pod, membership: Membership) -> GangMember:
    member = GangMember(pod.name, pod.spec.scheduler_name, _held(pod, membership))
    member.is_deleting, member.is_victim = pod.is_deleting, pod.is_victim
    member.owner, member.owner_uid = "" if pod.owner is None else pod.owner.name, _owner_uid(pod)
    return member


def _owner_uid(pod: Pod) -> str:
    return "" if pod.owner is None else pod.owner.uid


def counts_of(gang: Gang, why: str) -> GangCounts:
    """Returns the gang's counts. `why`: why its members cannot be tried now."""
    members = gang.members.values()
    return GangCounts(
        least=0 if gang.spec is None else gang.spec.min_members,
        present=gang.present,
        bound=gang.bound,
        running=sum(member.is_running for member in members if not member.is_leaving),
        finished=gang.succeeded,
        has_started=gang.has_started,
        is_overdue=gang.is_overdue,
        refusal=gang.refusal,
        problem=gang.problem,
        why=why,
        waiting=tuple(
            islice((member.name for member in members if not (member.is_bound or member.is_leaving)), NAMED_MAX + 1)
        ),
        owners=tuple(sorted({member.owner for member in members if member.owner})[:NAMED_MAX]),
        schedulers=frozenset(gang.schedulers or {gang.last_scheduler}),
    )


def _tally(gang: Gang, member: GangMember, sign: int) -> None:
    """Adds the member to the counts of its gang, or subtracts it."""
    gang.placed_count += sign * member.is_placed
    gang.tentative += sign * (member.is_tentative and member.is_placed)
    gang.bound += sign * (member.is_bound and not member.is_leaving)
    gang.leaving += sign * member.is_leaving
    gang.held += sign * (member.is_held and not member.is_leaving)
    if not member.is_leaving:
        _count(gang.owners, member.owner_uid, sign)


def _note_end(gang: Gang) -> None:
    """Resets the gang's start if no member is placed and no finished one counts: later members start as a new gang.

    Victims count as placed: their eviction may fail.
    """
    if not gang.has_started or gang.placed_count or gang.succeeded:
        return
    gang.has_started = any(one.node and not one.is_deleting for one in gang.members.values())


def _note_start(gang: Gang, *, is_foreign: bool) -> None:
    """Updates the gang's start. `is_foreign`: bound before this process started or knew its requirements: it counts as started."""
    spec = gang.spec
    if spec is not None and gang.bound:
        gang.has_started |= (is_foreign and spec.is_once) or gang.bound + gang.succeeded >= spec.min_members


def _sentence(gang: Gang, about: str, why: str) -> str:
    """Returns the message for members of the gang. `about`: the gang with the problem."""
    if not gang.is_overdue:
        return f"gang {about}: {why}"
    so = "" if about == gang.key else f"gang {about}: "
    return f"gang {gang.key} {gang.overdue_text}: {so}{why}"


def _obstacle(gangs: Mapping[str, Gang], key: str, together_with: Callable[[str], Sequence[str]]) -> tuple[str, str]:
    """Returns what keeps a gang from starting: (the gang with the problem, the reason); an empty reason: it can start."""
    together = together_with(key)
    for one in together:
        about, why = _obstacle_of(gangs, one, key, together_with)
        if why and _namespace(one) != _namespace(key):  # reveals nothing about another namespace
            return key, f"starts with gang {one}, which is missing, cannot start yet, or names other gangs"
        if why:
            return about, why
    return key, _too_many_levels([gangs[one] for one in together]) if len(together) > 1 else ""


def _obstacle_of(
    gangs: Mapping[str, Gang], one: str, key: str, together_with: Callable[[str], Sequence[str]]
) -> tuple[str, str]:
    """Returns the obstacle of one of the gangs that start together with `key`."""
    gang = gangs.get(one)
    if gang is None:
        return key, f"starts with gang {one}, which has no members"
    if gang.problem:
        return one, gang.problem
    if one != key and tuple(together_with(one)) != tuple(together_with(key)):
        return one, f"does not name the gangs that gang {key} starts with; write the same in both"
    if gang.schedulers.keys() != gangs[key].schedulers.keys():
        names = " and ".join(sorted({*gang.schedulers, *gangs[key].schedulers})[:NAMED_MAX])
        return one, f"must start with gang {key}, but they name the schedulers {names}"
    return one, _why_incomplete(gang)


def _why_incomplete(gang: Gang) -> str:
    spec = gang.spec
    assert spec is not None, "a gang without a problem has requirements"
    if gang.needs <= 0 or gang.present >= spec.min_members:
        return ""
    left_out = [f"{member.name}: {member.held}" for member in _held_members(gang)] if gang.held else []
    left_out += [f"{gang.leaving} that {'is' if gang.leaving == 1 else 'are'} being deleted"] if gang.leaving else []
    but = f", not counting {'; '.join(left_out)}" if left_out else ""
    what = _present(gang, spec) if gang.is_overdue else f"waits until {spec.min_members} members are there"
    return f"{what}{but}"


def _namespace(key: str) -> str:
    return key.partition("/")[0]


def _too_many_levels(gangs: Sequence[Gang]) -> str:
    """Returns why gangs cannot start together because their joint topology has more levels than one gang may have; empty if it fits."""
    levels = {level.key for gang in gangs if gang.spec is not None for level in gang.spec.topology}
    if len(levels) <= LEVELS_MAX:
        return ""
    return f"names {len(levels)} topology levels with those it starts with; {LEVELS_MAX} is the most"


def _present(gang: Gang, spec: GangSpec) -> str:
    """Returns which members are present, of a gang that waits for members."""
    here = [member.name for member in gang.members.values() if not (member.is_held or member.is_leaving)]
    names = f" ({', '.join(here[:NAMED_MAX])}{', ...' if len(here) > NAMED_MAX else ''})" if here else ""
    finished = f", {gang.succeeded} of them finished" if gang.succeeded else ""
    return f"{gang.present} of {spec.min_members} members are there{names}{finished}"


def _held(pod: Pod, membership: Membership) -> str:
    if membership.problem or pod.malformed:
        return membership.problem or pod.malformed
    return GATED if pod.gates else ""


def _held_members(gang: Gang) -> list[GangMember]:
    return list(
        islice((member for member in gang.members.values() if member.is_held and not member.is_leaving), NAMED_MAX)
    )


def _count(tally: Counter[Any], what: Hashable, sign: int) -> None:
    tally[what] += sign
    if not tally[what]:
        del tally[what]


def _ignore() -> None:
    """Does nothing: the default callback."""


def _ignore_key(key: str) -> None:
    """Does nothing: the default callback."""
