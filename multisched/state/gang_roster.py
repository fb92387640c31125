"""GangRoster: who belongs to which gang, who of them has a place, and how many more have to start.

Owns the membership of every pod of every domain, pending and placed. Ingest writes pods and the objects that describe
gangs, the cache who stands on a node. The queues, which keep a gang as one entity, and the cycles read it. A pod that
has no gang costs a look into a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from multisched.model.gang import GangApi, GangSpec, Membership, membership_of
from multisched.model.objects import Pod

FINISHED_MAX: Final = 100_000
"""Finished members remembered of all gangs together: the oldest are forgotten first."""

NO_OBJECT: Final = "its PodGroup is not there"


class GangMember(msgspec.Struct):
    """One pod of a gang."""

    name: str
    scheduler_name: str
    stands: bool = False
    """It has a node, or is assumed on one."""


class Gang:
    """One gang as its members and its object describe it."""

    def __init__(self, key: str, api: GangApi) -> None:
        self.key = key
        self.api = api
        self.members: dict[str, GangMember] = {}
        """uid -> member; those that have finished are not among them."""
        self.finished: dict[str, bool] = {}
        """uid of members that ended well, which count and hold nothing -> the API server still has the pod."""
        self.standing = 0
        self.has_started = False
        """It had its minimum at some time."""
        self.said: dict[GangSpec, int] = {}
        """What members say themselves -> how many of them do."""
        self.described: GangSpec | None = None
        """What its object says."""
        self.object_problem = ""

    @property
    def spec(self) -> GangSpec | None:
        """What it asks for; None where nobody says, or not all the same."""
        if self.described is not None:
            return self.described
        return next(iter(self.said)) if len(self.said) == 1 else None

    @property
    def problem(self) -> str:
        """Why it cannot start whoever comes; empty for a good one."""
        if self.object_problem:
            return self.object_problem
        schedulers = sorted({member.scheduler_name for member in self.members.values()})
        if len(schedulers) > 1:
            return f"its members name the schedulers {' and '.join(schedulers[:4])}; write the same in all of them"
        if self.described is None and len(self.said) > 1:
            counts = sorted({spec.min_members for spec in self.said})
            what = f"minimums of {' and '.join(map(str, counts[:4]))}" if len(counts) > 1 else "different things"
            return f"its members ask for {what}; write the same in all of them"
        return "" if self.spec is not None else NO_OBJECT

    @property
    def needs(self) -> int:
        """How many more members have to start together; 0 or less: each may start alone."""
        spec = self.spec
        if spec is None:
            return 1
        if spec.is_once and self.has_started:
            return 0
        return spec.min_members - self.standing - len(self.finished)


class GangRoster:
    """All gangs of the cluster."""

    def __init__(self) -> None:
        self._gangs: dict[str, Gang] = {}
        self._key_of: dict[str, str] = {}
        self._said_by: dict[str, GangSpec] = {}
        self._objects: dict[tuple[GangApi, str], tuple[GangSpec | None, str]] = {}
        self._finished: dict[str, tuple[str, str]] = {}
        """uid -> key of its gang and NAMESPACE/NAME, the oldest first."""
        self._finished_uids: dict[str, str] = {}
        """NAMESPACE/NAME -> uid of the finished pods that the API server has."""
        self.on_first: Callable[[], None] = _nothing
        """Called when there is a gang and was none."""
        self.on_change: Callable[[str], None] = _nobody
        """Hears the key of a gang whose needs may have changed otherwise than by its pending pods."""

    def __len__(self) -> int:
        return len(self._gangs)

    def gangs(self) -> Iterable[Gang]:
        return self._gangs.values()

    def gang(self, key: str) -> Gang | None:
        return self._gangs.get(key)

    def key_of(self, uid: str) -> str | None:
        """namespace/name of the pod's gang; None for a pod without one."""
        return self._key_of.get(uid)

    def together_with(self, key: str) -> tuple[str, ...]:
        """Gangs that start with this one, itself among them."""
        gang = self._gangs.get(key)
        spec = None if gang is None else gang.spec
        return spec.together_with if spec is not None and spec.together_with else (key,)

    def needs(self, key: str) -> int:
        """How many more of the gang have to start together; 0: each may start alone."""
        gang = self._gangs.get(key)
        return 0 if gang is None else max(gang.needs, 0)

    def has_started(self, key: str) -> bool:
        """Nobody of this gang, or of those that start with it, has to wait for others."""
        return not any(self.needs(one) for one in self.together_with(key))

    def why_not_yet(self, key: str) -> str:
        """Why members cannot be tried now; empty: they can, or it has started."""
        for one in self.together_with(key):
            gang = self._gangs.get(one)
            if gang is None:
                return f"gang {key}: starts with gang {one}, of which no member is there"
            if gang.problem:
                return f"gang {one}: {gang.problem}"
            spec = gang.spec
            assert spec is not None, "a gang without problem asks for something"
            if gang.needs > 0 and len(gang.members) + len(gang.finished) < spec.min_members:
                return f"gang {one}: waits until {spec.min_members} members are there"
        return ""

    # -- written by ingest -----------------------------------------------------------------------------------------

    def set(self, pod: Pod) -> Membership | None:
        """A pod as it is now, wherever it is. Returns what it says of its gang."""
        membership = membership_of(pod)
        known = self._key_of.get(pod.uid)
        if pod.uid in self._finished:
            return membership  # the watch of running pods is late
        if membership is None:
            if known is not None:
                self.remove(pod.uid)
            return None
        key = f"{pod.namespace}/{membership.name}"
        if known is not None and known != key:
            self.remove(pod.uid)
        gang = self._gang(key, membership)
        member = gang.members.get(pod.uid)
        if member is None:
            gang.members[pod.uid] = GangMember(pod.name, pod.spec.scheduler_name)
            self._key_of[pod.uid] = key
        self._say(gang, pod.uid, membership.spec)
        return membership

    def remove(self, uid: str) -> None:
        """The pod is gone, or belongs to its gang no more."""
        key = self._key_of.pop(uid, None)
        if key is None:
            return
        gang = self._gangs[key]
        member = gang.members.pop(uid)
        self._say(gang, uid, None)
        gang.standing -= member.stands
        self._tidy(gang)
        self.on_change(key)

    def finish(self, pod: Pod) -> None:
        """The pod has ended well: it counts for its gang, and holds nothing."""
        membership = membership_of(pod)
        if membership is None or pod.uid in self._finished:
            return
        gang = self._gang(f"{pod.namespace}/{membership.name}", membership)
        gang.finished[pod.uid] = True  # before it is no member: the gang must not be forgotten between
        self.remove(pod.uid)
        self._finished[pod.uid] = gang.key, pod.key
        self._finished_uids[pod.key] = pod.uid
        if len(self._finished) > FINISHED_MAX:
            self._forget_finished(next(iter(self._finished)))
        self.on_change(gang.key)

    def finished_is_gone(self, pod_key: str) -> None:
        """A finished pod was deleted: it goes on to count as long as its gang has others, living or finished."""
        uid = self._finished_uids.pop(pod_key, "")
        if uid:
            gang = self._gangs[self._finished[uid][0]]
            gang.finished[uid] = False
            self._tidy(gang)

    def set_object(self, api: GangApi, key: str, spec: GangSpec | None, problem: str = "") -> None:
        """The gang's own object as it is now; None and no problem: it is gone."""
        if spec is None and not problem:
            self._objects.pop((api, key), None)
        else:
            self._objects[api, key] = spec, problem
        gang = self._gangs.get(key)
        if gang is not None and gang.api is api:
            gang.described, gang.object_problem = spec, problem
            self.on_change(key)

    # -- written by the cache --------------------------------------------------------------------------------------

    def stands(self, uid: str, *, stands: bool) -> None:
        """The pod was assumed or seen on a node, or holds its place no more. Cheap for a pod without a gang."""
        key = self._key_of.get(uid)
        if key is None:
            return
        gang = self._gangs[key]
        member = gang.members[uid]
        if member.stands != stands:
            member.stands = stands
            gang.standing += 1 if stands else -1
            spec = gang.spec
            if spec is not None and gang.standing + len(gang.finished) >= spec.min_members:
                gang.has_started = True
            self.on_change(key)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _gang(self, key: str, membership: Membership) -> Gang:
        gang = self._gangs.get(key)
        if gang is None:
            if not self._gangs:
                self.on_first()
            gang = self._gangs[key] = Gang(key, membership.api)
            gang.described, gang.object_problem = self._objects.get((membership.api, key), (None, ""))
        return gang

    def _forget_finished(self, uid: str) -> None:
        key, pod_key = self._finished.pop(uid)
        self._finished_uids.pop(pod_key, None)
        gang = self._gangs[key]
        del gang.finished[uid]
        self._tidy(gang)

    def _say(self, gang: Gang, uid: str, spec: GangSpec | None) -> None:
        before = self._said_by.get(uid)
        if before == spec:
            return
        if before is not None:
            del self._said_by[uid]
            gang.said[before] -= 1
            if not gang.said[before]:
                del gang.said[before]
        if spec is not None:
            self._said_by[uid] = spec
            gang.said[spec] = gang.said.get(spec, 0) + 1

    def _tidy(self, gang: Gang) -> None:
        if gang.members or any(gang.finished.values()):
            return
        del self._gangs[gang.key]
        for uid in gang.finished:
            self._finished.pop(uid, None)

    def statistics(self) -> Mapping[str, int]:
        return {"gangs": len(self._gangs), "members": len(self._key_of), "finished": len(self._finished)}


def _nothing() -> None:
    """Nobody waits for the first gang."""


def _nobody(key: str) -> None:
    """Nobody listens yet."""
