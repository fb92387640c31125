"""Checks gangs over the history of the API server: none starts in part, and none falls below its minimum by our evictions (I13).

A member runs from its bind until it is being deleted, has ended or is deleted. Members that have succeeded count for their owner.
If no member of a gang runs any more, the gang must start together again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from multisched.verify.fields import Json, mapping, objects, text
from multisched.verify.gang_objects import GangKey
from multisched.verify.objects import node_name_of

EVICTIONS_MAX_S: Final = 12.0
"""Time within which all evictions of one decision are sent: each is tried several times."""
UNSEEN_MAX_S: Final = 30.0
"""Time for which a process may not know that another client has removed a member or raised the minimum."""

IsInterrupted = Callable[[str], bool]
"""Reports whether a process has ended, or was paused."""


class _Member(NamedTuple):
    owner: str
    is_running: bool
    has_succeeded: bool
    is_living: bool
    nominated: str


class _BelowMinimum(NamedTuple):
    """The state after one of our evictions has left a gang below its minimum."""

    since_s: float
    sender: str
    left: frozenset[str]
    """uids of the members that continued to run."""


@dataclass(slots=True)
class _GangRun:
    """One gang since it last had no running member."""

    members: dict[str, _Member] = field(default_factory=dict)
    """By uid. Members that have succeeded remain after their pods are deleted, as long as the gang has other pods."""
    there: set[str] = field(default_factory=set)
    """uids of the gang's pods in the API server."""
    minimum: int | None = None
    was_whole: bool = False
    external_change_s: float = -1.0
    """Time at which another client last removed a member or the minimum was raised; negative if never since the gang began to
    start.
    """
    below: _BelowMinimum | None = None

    @property
    def running(self) -> frozenset[str]:
        return frozenset(uid for uid, one in self.members.items() if one.is_running)

    @property
    def count(self) -> int:
        """The number of members that count for the minimum."""
        owners = {one.owner for one in self.members.values() if one.is_living}
        return sum(one.is_running or (one.has_succeeded and one.owner in owners) for one in self.members.values())

    @property
    def is_partial(self) -> bool:
        return self.minimum is not None and bool(self.running) and self.count < self.minimum


class GangHistory:
    """The gangs of one run."""

    def __init__(self, now_s: Callable[[], float], report_violation: Callable[[str], None]) -> None:
        self._now_s = now_s
        self._report_violation = report_violation
        self._runs: dict[GangKey, _GangRun] = {}
        self._evicted: dict[str, str] = {}
        """uid of each pod that one of our processes has evicted -> that process."""
        self._sender: dict[str, str] = {}
        """uid -> process that sent its latest bind."""
        self._unanswered: set[str] = set()
        """uids of pods whose bind is in flight."""
        self._misled: set[str] = set()
        """uids of pods whose bind failed or was sent before the minimum was raised, about which a process has missed an event, or
        that were placed when the removal of a member was not known.
        """
        self._removed: dict[GangKey, set[str]] = defaultdict(set)
        """uids of running members that another client has removed."""

    # -- what processes send ---------------------------------------------------------------------------------------

    def evicted(self, sender: str, uid: str) -> None:
        """Records an eviction that is being sent."""
        self._evicted[uid] = sender

    def on_bind_sent(self, uid: str) -> None:
        self._unanswered.add(uid)

    def on_bind_decided(self, uid: str, running: Set[str]) -> None:
        """Records the decision of a bind that is sent. `running`: uids of pods that its process had then observed on nodes."""
        for key, run in self._runs.items():
            if uid in run.there and not running.isdisjoint(self._removed.get(key, ())):
                self._misled.add(uid)

    def on_bind_answered(self, sender: str, uid: str, *, is_bound: bool) -> None:
        self._sender[uid] = sender
        self._unanswered.discard(uid)
        if not is_bound:
            self._misled.add(uid)

    def misled(self, uid: str) -> None:
        """Records that a process received a false response about the pod, or missed an event of it."""
        self._misled.add(uid)

    # -- what the store has ----------------------------------------------------------------------------------------

    def pod_changed(self, key: GangKey, minimum: int | None, uid: str, document: Json | None) -> None:
        """Records a change of a member. `document`: None if it was deleted. `minimum`: of its gang."""
        run = self._runs.setdefault(key, _GangRun())
        before, after = run.members.get(uid), None if document is None else _member(document)
        if after is not None:
            run.members[uid] = after
            run.there.add(uid)
        else:
            run.there.discard(uid)
            if before is not None and before.has_succeeded and run.there:
                run.members[uid] = before._replace(is_living=False)
            else:
                run.members.pop(uid, None)
        was_running = before is not None and before.is_running
        if was_running and not (after is not None and (after.is_running or after.has_succeeded)):
            self._lost(key, run, uid)
        if not run.there:
            del self._runs[key]
        else:
            self._counted(run, minimum)

    def minimum_changed(self, key: GangKey, minimum: int | None) -> None:
        """Records that the gang's PodGroup was changed or deleted."""
        run = self._runs.get(key)
        if run is not None:
            self._counted(run, minimum)

    def _lost(self, key: GangKey, run: _GangRun, uid: str) -> None:
        sender = self._evicted.get(uid)
        if sender is None:
            self._removed[key].add(uid)
            run.external_change_s = self._now_s()
        elif run.below is None and run.is_partial:
            run.below = _BelowMinimum(self._now_s(), sender, run.running)

    def _counted(self, run: _GangRun, minimum: int | None) -> None:
        if minimum is None or minimum > (run.minimum or minimum):
            run.external_change_s = self._now_s()
            self._misled |= run.there & self._unanswered
        run.minimum = minimum
        if not run.running:
            run.was_whole, run.external_change_s, run.below = False, -1.0, None
        elif minimum is not None and run.count >= minimum:
            run.was_whole, run.below = True, None
        elif run.below is not None and not run.below.left & run.running:
            run.below = None

    # -- judging ---------------------------------------------------------------------------------------------------

    def look(self, is_interrupted: IsInterrupted) -> None:
        """Checks for gangs that our evictions have left below their minimum. Called regularly."""
        for key, run in self._runs.items():
            if run.below is not None and self._now_s() - run.below.since_s > EVICTIONS_MAX_S:
                self._report_eviction(key, run, is_interrupted)

    def _report_eviction(self, key: GangKey, run: _GangRun, is_interrupted: IsInterrupted) -> None:
        below, run.below = run.below, None
        if below is None or is_interrupted(below.sender):
            return
        if run.external_change_s >= 0 and below.since_s - run.external_change_s < UNSEEN_MAX_S:
            return
        left = len(below.left & run.running)
        self._report_violation(
            f"I13: evictions by {below.sender} left gang {'/'.join(key)} with {left} of {run.minimum} members"
        )

    def check_quiescent(self, is_interrupted: IsInterrupted) -> None:
        """Checks, when the run is quiescent, that no gang is partly started, unless another client or a fault is the cause, and
        that no gang that cannot start has a nominated node.
        """
        for key, run in self._runs.items():
            self._report_eviction(key, run, is_interrupted)
        for fault in self.faults(is_interrupted):
            self._report_violation(fault)

    def faults(self, is_interrupted: IsInterrupted) -> Iterator[str]:
        for key, run in self._runs.items():
            name, count = "/".join(key), run.count
            is_excused = run.external_change_s >= 0 or any(
                uid in self._misled or is_interrupted(self._sender.get(uid, "")) for uid in run.members
            )
            if run.is_partial and not (run.was_whole or is_excused):
                yield f"I13: gang {name} is started in part, with {count} of {run.minimum} members"
            waiting = {uid: one for uid, one in run.members.items() if one.is_living and not one.is_running}
            nominated = [uid for uid, one in waiting.items() if one.nominated]
            could_be = count + len(waiting)
            if nominated and (run.minimum is None or could_be < run.minimum):
                yield f"I13: gang {name} has {could_be} of {run.minimum} members, and {len(nominated)} with a nominated node"


def _member(document: Json) -> _Member:
    metadata, status = mapping(document, "metadata"), mapping(document, "status")
    phase = text(status, "phase")
    is_living = phase not in ("Succeeded", "Failed") and not text(metadata, "deletionTimestamp")
    return _Member(
        next((text(one, "uid") for one in objects(metadata, "ownerReferences")), ""),
        is_living and bool(node_name_of(document)),
        phase == "Succeeded",
        is_living,
        text(status, "nominatedNodeName"),
    )
