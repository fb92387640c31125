"""Checks gangs at the API server: none remains partly bound past its timeout, and none that fits is pending at the end (I13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from multisched.cluster.api.server import ApiServer
from multisched.verify.gang_objects import GROUP_LABEL, GangKey
from multisched.verify.gangs import GROUP_KIND, GangJudge, GangState
from tests.kit.checkers.api.followed_store import Document, FollowedStore
from tests.kit.checkers.api.gang_history import GangHistory
from tests.kit.checkers.api.reservation_history import ReservationHistory
from tests.kit.world.definitions import POD_GROUP

KINDS: Final = {POD_GROUP.storage: GROUP_KIND, "pods": "Pod"}
LATE_S: Final = 30.0
"""Added to a gang's timeout: a leader may have to take over first, and a bind takes time."""


class GangChecker:
    """The gangs of one run."""

    def __init__(
        self, server: ApiServer, now_s: Callable[[], float], report_violation: Callable[[str], None], *, is_on: bool
    ) -> None:
        """`is_on`: the run may have gangs; otherwise the store is not followed."""
        self.judge = GangJudge()
        self.is_on = is_on
        self.groups: dict[str, Document] = {}
        """Every version of a PodGroup that was written, by resourceVersion."""
        self._now_s = now_s
        self._report_violation = report_violation
        self._overdue: dict[GangKey, float] = {}
        """Gang -> since when it has been partly bound past its timeout although there is room."""
        self._named: set[GangKey] = set()
        self._finishing: set[GangKey] = set()
        """Gangs with members that have succeeded. These members still count after their pods are deleted."""
        self._labelled: set[GangKey] = set()
        """Gangs whose members name a PodGroup by the label of scheduler-plugins. Only these use the timeout of the PodGroup."""
        self._latest: dict[GangKey, Document] = {}
        """The current version of each PodGroup."""
        self._gang_of: dict[str, GangKey] = {}
        self.history = GangHistory(now_s, report_violation)
        self.reservations: ReservationHistory | None = None
        """Reservations in the domain whose gangs may reserve room; None if gangs may not."""
        self._store = FollowedStore(server, KINDS if is_on else {}, self._changed)

    def follow(self) -> None:
        """Reads the changes of the store."""
        self._store.follow()

    def _changed(self, kind: str, before: Document | None, after: Document | None) -> None:
        if kind == GROUP_KIND and after is not None:
            self._latest[after["metadata"]["namespace"], after["metadata"]["name"]] = after
            self.groups[str(after["metadata"]["resourceVersion"])] = after
        if before is not None and (after is None or before["metadata"]["uid"] != after["metadata"]["uid"]):
            self.judge.forget(kind, before)
        if after is not None:
            self.judge.add(kind, after)
            key = self.judge.gang_of(after["metadata"]["uid"])
            if key is not None and GROUP_LABEL in after["metadata"].get("labels", {}):
                self._labelled.add(key)
            if key is not None and after.get("status", {}).get("phase") == "Succeeded":
                self._finishing.add(key)
        self._note_history(kind, before, after)

    def _note_history(self, kind: str, before: Document | None, after: Document | None) -> None:
        if kind == GROUP_KIND:
            metadata = (after or before or {})["metadata"]
            group = metadata["namespace"], metadata["name"]
            self._note_minimum(group)
            return
        documents: dict[str, Document | None] = {} if before is None else {str(before["metadata"]["uid"]): None}
        documents |= {} if after is None else {str(after["metadata"]["uid"]): after}
        for uid, document in documents.items():
            key, was = self.judge.gang_of(uid) if document is not None else None, self._gang_of.pop(uid, None)
            if was is not None and was != key:
                self._note_member(was, uid, None)
            if key is not None:
                self._gang_of[uid] = key
                self._note_member(key, uid, document)

    def _note_minimum(self, key: GangKey) -> None:
        for history in (self.history, self.reservations):
            if history is not None:
                history.minimum_changed(key, self.judge.state(key).minimum)

    def _note_member(self, key: GangKey, uid: str, document: Document | None) -> None:
        for history in (self.history, self.reservations):
            if history is not None:
                history.pod_changed(key, self.judge.state(key).minimum, uid, document)

    def faults(self) -> Iterator[str]:
        """Yields, when the run is quiescent, PodGroups whose status has a wrong number of scheduled members, or does not report a
        timeout.
        """
        self.follow()
        for state in self.judge.states():
            group = self._latest.get(state.key)
            if group is None or state.group is None or state.key in self._finishing:
                continue
            status = group.get("status", {})
            if status.get("scheduled") != len(state.bound):
                yield f"I4: podgroup {'/'.join(state.key)} says {status.get('scheduled')}, and {len(state.bound)} have nodes"
            reasons = [one.get("reason") for one in status.get("conditions", ()) if one.get("type") == "Scheduled"]
            is_late = state.key in self._labelled and state.waiting and not state.bound
            if is_late and reasons not in (["TimedOut"], ["Broken"]):
                yield f"I13: podgroup {'/'.join(state.key)} does not say that it waits too long, but {reasons}"

    def look(self, is_feasible: Callable[[GangState], bool]) -> None:
        """Checks for overdue gangs. Called regularly.

        `is_feasible`: reports whether there is room for the pending members that a gang needs. A gang is not late while there has
        been no room.
        """
        self.follow()
        now_s = self._now_s()
        late = {state.key: state for state in self.judge.look(now_s) if is_feasible(state)}
        self._overdue = {key: self._overdue.get(key, now_s) for key in late}
        for key, since_s in self._overdue.items():
            state = late[key]
            if now_s - since_s > LATE_S and key not in self._named:
                self._named.add(key)
                self._report_violation(
                    f"I13: gang {'/'.join(key)} has {len(state.bound)} of {state.minimum} members on nodes past its timeout,"
                    f" and for {now_s - since_s:.0f} s there has been room for the others"
                )
