"""Gangs judged from API documents: a gang runs with at least its minimum of members, or with none.

Members that have succeeded count for living ones of the same owner. Members that are being deleted do not count. A gang
that had its minimum and lost some of its members heals, which is not a fault; one that lost all of them starts as if it
were new. A gang that has not started and has some members on nodes has its timeout to reach its minimum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from multisched.verify.fields import Json, Unreadable, flag, mapping, objects, text
from multisched.verify.gang_objects import GangKey, GroupObject, Member, read_group, read_member
from multisched.verify.objects import name_of, node_name_of

TIMEOUT_DEFAULT_S: Final = 600.0
"""Of a gang that names none, as Koordinator has it; longer than any other API's default."""
GROUP_KIND: Final = "PodGroup"


@dataclass(slots=True)
class GangState:
    """One gang as its pods and its object show it."""

    key: GangKey
    minimum: int | None
    """None: nobody says, so nothing is judged."""
    timeout_s: float
    bound: frozenset[str]
    """uids of members that are on a node and not being deleted, or have succeeded."""
    waiting: frozenset[str]
    group: GroupObject | None
    """Its object, where it has one."""
    groups: tuple[GangKey, ...] = ()
    required: tuple[str, ...] = ()
    """Label keys: all members are on nodes with the same value of each."""

    @property
    def is_whole(self) -> bool:
        return self.minimum is not None and len(self.bound) >= self.minimum

    @property
    def is_partial(self) -> bool:
        return self.minimum is not None and 0 < len(self.bound) < self.minimum


@dataclass(slots=True)
class _Pod:
    uid: str
    member: Member
    is_bound: bool
    """On a node and not being deleted, or succeeded."""
    is_over: bool
    """It has ended, or is being deleted."""
    owner: str
    """uid of its controller; empty for none."""


@dataclass(slots=True)
class GangJudge:
    """Follows the pods and group objects of a cluster, document by document."""

    _pods: dict[str, _Pod] = field(default_factory=dict)
    _of: dict[GangKey, dict[str, _Pod]] = field(default_factory=dict)
    _groups: dict[GangKey, GroupObject] = field(default_factory=dict)
    _started: set[GangKey] = field(default_factory=set)
    """Gangs that had their minimum, and have had a bound member ever since."""
    _partial_since_s: dict[GangKey, float] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    """Pod or group -> why nothing is judged by it."""

    def add(self, kind: str, document: Json) -> None:
        """An object that is new or has changed. Kinds that matter to no gang are left out."""
        name, namespace, uid = name_of(document)
        what = f"{kind} {namespace or 'default'}/{name}"
        self.problems.pop(what, None)
        before = self._drop_pod(uid or what) if kind == "Pod" else None
        try:
            if kind == "Pod":
                self._add_pod(uid or what, document)
            elif kind == GROUP_KIND:
                group = read_group(document)
                self._groups[group.key] = group
        except Unreadable as error:
            self.problems[what] = str(error)
        self._note(before)

    def forget(self, kind: str, document: Json) -> None:
        """An object that has been deleted."""
        name, namespace, uid = name_of(document)
        what = f"{kind} {namespace or 'default'}/{name}"
        self.problems.pop(what, None)
        if kind == "Pod":
            self._note(self._drop_pod(uid or what))
        elif kind == GROUP_KIND:
            self._groups.pop((namespace or "default", name), None)

    def _add_pod(self, uid: str, document: Json) -> None:
        member = read_member(document)
        if member is None:
            return
        phase = text(mapping(document, "status"), "phase")
        is_leaving = bool(text(mapping(document, "metadata"), "deletionTimestamp"))
        is_over = is_leaving or phase in ("Succeeded", "Failed")
        is_bound = phase == "Succeeded" or (bool(node_name_of(document)) and not is_over)
        pod = _Pod(uid, member, is_bound, is_over, _owner_of(document))
        self._pods[uid] = pod
        self._of.setdefault(member.key, {})[uid] = pod
        self._note(member.key)

    def _drop_pod(self, uid: str) -> GangKey | None:
        """Returns the gang that it was of."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return None
        del self._of[pod.member.key][uid]
        return pod.member.key

    def _note(self, key: GangKey | None) -> None:
        """A member of the gang was added or removed."""
        if key is None:
            return
        state = self.state(key)
        if state.is_whole:
            self._started.add(key)
        elif not state.bound:
            self._started.discard(key)
        if not self._of.get(key):
            self._of.pop(key, None)
            self._partial_since_s.pop(key, None)

    def gang_of(self, uid: str) -> GangKey | None:
        pod = self._pods.get(uid)
        return pod.member.key if pod is not None else None

    def state(self, key: GangKey) -> GangState:
        """Of a gang with members. The object's minimum counts; without one the largest that a member names."""
        members, group = self._of.get(key, {}), self._groups.get(key)
        named = [pod.member.minimum for pod in members.values() if pod.member.minimum is not None]
        timeouts = [pod.member.timeout_s for pod in members.values() if pod.member.timeout_s is not None]
        living = {pod.owner for pod in members.values() if not pod.is_over}
        timeout_s = group.timeout_s if group is not None else None
        if timeout_s is None:
            timeout_s = max(timeouts, default=TIMEOUT_DEFAULT_S)
        return GangState(
            key,
            group.minimum if group is not None else max(named, default=None),
            timeout_s,
            frozenset(uid for uid, pod in members.items() if pod.is_bound and _counts(pod, living)),
            frozenset(uid for uid, pod in members.items() if not (pod.is_bound or pod.is_over)),
            group,
            next((pod.member.groups for pod in members.values() if pod.member.groups), ()),
            (group.required if group is not None else ())
            or next((pod.member.required for pod in members.values() if pod.member.required), ()),
        )

    def states(self) -> Iterator[GangState]:
        """Every gang that has pods."""
        for key in list(self._of):
            yield self.state(key)

    def has_started(self, key: GangKey) -> bool:
        """It had its minimum at some moment, and has had a bound member ever since."""
        return key in self._started

    def look(self, now_s: float) -> list[GangState]:
        """Gangs that are bound in part, and have been for longer than their timeout. To be asked now and then."""
        overdue = []
        for state in self.states():
            if not state.is_partial or self.has_started(state.key):
                self._partial_since_s.pop(state.key, None)
            elif now_s - self._partial_since_s.setdefault(state.key, now_s) > state.timeout_s:
                overdue.append(state)
        return overdue

    def held_in_vain(self, held: Collection[str]) -> list[GangState]:
        """Gangs that hold room for members, and do not run even if all of these are bound, or start with one that does not.

        `held`: uids of pods for which room is assumed at one moment.
        """
        keys = {key for uid in held if (key := self.gang_of(uid)) is not None}
        states = (self.state(key) for key in sorted(keys))
        return [one for one in states if not self.has_started(one.key) and self._are_short(one, held)]

    def _are_short(self, state: GangState, held: Collection[str]) -> bool:
        """The gang, or one that starts together with it."""
        return any(
            not self.has_started(key) and _is_short(self.state(key), held) for key in state.groups or (state.key,)
        )


def _counts(pod: _Pod, living: Collection[str]) -> bool:
    """False for a member that succeeded in an earlier run. `living`: owners of living members."""
    return not pod.is_over or not living or pod.owner in living


def _owner_of(document: Json) -> str:
    owners = objects(mapping(document, "metadata"), "ownerReferences")
    return next((text(one, "uid") for one in owners if flag(one, "controller")), "")


def _is_short(state: GangState, held: Iterable[str]) -> bool:
    there = state.bound | (state.waiting & frozenset(held))
    return state.minimum is not None and len(there) < state.minimum
