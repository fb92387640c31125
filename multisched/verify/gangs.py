"""Judges gangs from API documents: a gang must run with at least its minimum of members, or with none.

Members that have succeeded count with living members of the same owner. Terminating members do not count. If a gang that had
its minimum loses some members, it recovers, which is not a fault; if it loses all of them, it starts as a new gang. A gang
that has not started and has some members on nodes must reach its minimum within its timeout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from multisched.verify.fields import Json, Unreadable, flag, mapping, objects, text
from multisched.verify.gang_objects import GangKey, GroupObject, Member, read_group, read_member
from multisched.verify.objects import name_of, node_name_of

TIMEOUT_DEFAULT_S: Final = 600.0
"""Default of a gang without a timeout, as in Koordinator; the longest default of the APIs."""
GROUP_KIND: Final = "PodGroup"


@dataclass(slots=True)
class GangState:
    """One gang, computed from its pods and its object."""

    key: GangKey
    minimum: int | None
    """None: unknown, so nothing is judged."""
    timeout_s: float
    bound: frozenset[str]
    """uids of members that have a node and are not terminating, or have succeeded."""
    waiting: frozenset[str]
    group: GroupObject | None
    """Its object, if it has one."""
    groups: tuple[GangKey, ...] = ()
    required: tuple[str, ...] = ()
    """Label keys: all members must be on nodes with the same value of each."""

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
    """It has a node and is not terminating, or it has succeeded."""
    is_over: bool
    """It has ended or is terminating."""
    owner: str
    """uid of its controller; empty if it has none."""


@dataclass(slots=True)
class GangJudge:
    """Tracks the pods and group objects of a cluster, document by document."""

    _pods: dict[str, _Pod] = field(default_factory=dict)
    _of: dict[GangKey, dict[str, _Pod]] = field(default_factory=dict)
    _groups: dict[GangKey, GroupObject] = field(default_factory=dict)
    _started: set[GangKey] = field(default_factory=set)
    """Gangs that reached their minimum and have had a bound member ever since."""
    _partial_since_s: dict[GangKey, float] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    """Pod or group -> why it is not judged."""

    def add(self, kind: str, document: Json) -> None:
        """Adds a new or changed object. Ignores kinds without influence on gangs."""
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
        """Removes a deleted object."""
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
        """Removes a pod, and returns its gang."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return None
        del self._of[pod.member.key][uid]
        return pod.member.key

    def _note(self, key: GangKey | None) -> None:
        """Updates the state of a gang after a member was added or removed."""
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
        """Returns the state of a gang with members. The object's minimum counts; without an object, the largest of its members."""
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
        """Yields every gang that has pods."""
        for key in list(self._of):
            yield self.state(key)

    def has_started(self, key: GangKey) -> bool:
        """Reports whether the gang reached its minimum and has had a bound member ever since."""
        return key in self._started

    def look(self, now_s: float) -> list[GangState]:
        """Returns gangs that have been partially bound for longer than their timeout. To be called periodically."""
        overdue = []
        for state in self.states():
            if not state.is_partial or self.has_started(state.key):
                self._partial_since_s.pop(state.key, None)
            elif now_s - self._partial_since_s.setdefault(state.key, now_s) > state.timeout_s:
                overdue.append(state)
        return overdue

    def held_without_start(self, held: Collection[str]) -> list[GangState]:
        """Returns gangs for which room is held without a start: they, or gangs they start with, miss their minimum even with these pods.

        `held`: uids of all pods for which room is assumed at this moment.
        """
        keys = {key for uid in held if (key := self.gang_of(uid)) is not None}
        states = (self.state(key) for key in sorted(keys))
        return [one for one in states if not self.has_started(one.key) and self._are_short(one, held)]

    def _are_short(self, state: GangState, held: Collection[str]) -> bool:
        """Reports whether the gang, or one that starts together with it, misses its minimum."""
        return any(
            not self.has_started(key) and _is_short(self.state(key), held) for key in state.groups or (state.key,)
        )


def _counts(pod: _Pod, living: Collection[str]) -> bool:
    """Returns False for a member that succeeded in an earlier run. `living`: owners of living members."""
    return not pod.is_over or not living or pod.owner in living


def _owner_of(document: Json) -> str:
    owners = objects(mapping(document, "metadata"), "ownerReferences")
    return next((text(one, "uid") for one in owners if flag(one, "controller")), "")


def _is_short(state: GangState, held: Iterable[str]) -> bool:
    there = state.bound | (state.waiting & frozenset(held))
    return state.minimum is not None and len(there) < state.minimum
