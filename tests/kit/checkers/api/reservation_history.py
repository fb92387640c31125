"""Checks reservations of gangs over the history of the API server: one at a time, each for a limited time, with a pause after it
(I13).

If a gang has no priority over other pods and no quota, its members have nominated nodes only while room is reserved for it. A
reservation is therefore the time in which a pending member of such a gang has a nominated node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from multisched.framework.gangs import ReservePolicy
from multisched.verify.fields import Json, mapping, text
from multisched.verify.gang_objects import GangKey
from multisched.verify.objects import node_name_of

LATE_S: Final = 15.0
"""Time until a nomination is written: the server may be away, and a new leader lists first."""
SETTLED_S: Final = 8.0
"""Time within which all members of a gang have been nominated, have been bound, or have lost their nominated nodes."""
SAME_TURN_S: Final = 2.0
"""Maximum time between the begin of a turn and its written nominations."""


@dataclass(slots=True)
class _Members:
    """The members of one gang, by uid."""

    waiting: set[str] = field(default_factory=set)
    nominated: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    minimum: int | None = None

    @property
    def has_started(self) -> bool:
        return self.minimum is not None and len(self.running) >= self.minimum


@dataclass(slots=True)
class _Ended:
    """A reservation whose gang did not start."""

    key: GangKey
    began_s: float
    at_s: float


class ReservationHistory:
    """The reservations of the gangs of one domain."""

    def __init__(
        self,
        policy: ReservePolicy,
        scheduler: str,
        now_s: Callable[[], float],
        report_violation: Callable[[str], None],
        leaders: Callable[[], frozenset[str]],
    ) -> None:
        """`leaders`: returns the processes that lead the domain now."""
        self._policy, self._scheduler = policy, scheduler
        self._now_s, self._report_violation, self._leaders = now_s, report_violation, leaders
        self._gangs: dict[GangKey, _Members] = {}
        self._open: dict[GangKey, float] = {}
        """Gang with a reservation -> time at which it began."""
        self._inherited: set[GangKey] = set()
        """Gangs in `_open` whose reservation was made by an earlier leader. The current leader need not pause after these."""
        self._ended: _Ended | None = None
        """The last reservation that ended without a start of its gang, if it ended under the current leader."""
        self._led_by: frozenset[str] = frozenset()
        self._led_since_s = 0.0
        self._doubts: dict[str, float] = {}
        """State that may only be temporary -> time at which it began."""
        self.count = 0
        """Number of reservations that have begun."""

    # -- what the store has ----------------------------------------------------------------------------------------

    def pod_changed(self, key: GangKey, minimum: int | None, uid: str, document: Json | None) -> None:
        """Records a change of a member. `document`: None if it was deleted. `minimum`: of its gang."""
        if document is not None and text(mapping(document, "spec"), "schedulerName") != self._scheduler:
            return
        members = self._gangs.setdefault(key, _Members())
        for uids in (members.waiting, members.nominated, members.running):
            uids.discard(uid)
        status = {} if document is None else mapping(document, "status")
        if (
            document is not None
            and not text(mapping(document, "metadata"), "deletionTimestamp")
            and text(status, "phase") not in ("Succeeded", "Failed")
        ):
            (members.running if node_name_of(document) else members.waiting).add(uid)
            if not node_name_of(document) and text(status, "nominatedNodeName"):
                members.nominated.add(uid)
        self.minimum_changed(key, minimum)

    def minimum_changed(self, key: GangKey, minimum: int | None) -> None:
        members = self._gangs.get(key)
        if members is None:
            return
        members.minimum = minimum
        is_open = bool(members.nominated)
        if is_open and key not in self._open:
            self._begin(key)
        elif not is_open and key in self._open:
            began_s = self._open.pop(key)
            is_owed = not (members.has_started or key in self._inherited)
            self._inherited.discard(key)
            self._ended = _Ended(key, began_s, self._now_s()) if is_owed else None

    def _begin(self, key: GangKey) -> None:
        now_s, for_s, last, self._ended = self._now_s(), self._policy.for_s, self._ended, None
        if last is not None and last.key == key and now_s < last.began_s + for_s - SAME_TURN_S:
            self._open[key] = last.began_s
            return
        self._open[key] = now_s
        self.count += 1
        if last is not None and now_s - last.at_s < for_s / 2:
            self._report_violation(
                f"I13: room is reserved for gang {'/'.join(key)} {now_s - last.at_s:.1f} s after it was reserved for"
                f" {'/'.join(last.key)}, which did not start; the pause is {for_s:g} s"
            )

    # -- judging ---------------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Forgets earlier reservations: the store was restored, or a leader may have been inactive."""
        self._open = dict.fromkeys(self._open, self._now_s())
        self._inherited = set(self._open)
        self._ended = None
        self._doubts.clear()

    def look(self) -> None:
        """Checks the reservations. Called regularly."""
        leaders, now_s = self._leaders(), self._now_s()
        if leaders != self._led_by:
            self._led_by, self._led_since_s = leaders, now_s
            self.forget()
        doubts = dict.fromkeys(self._doubtful(now_s), now_s) if len(leaders) == 1 else {}
        self._doubts = {one: self._doubts.get(one, since_s) for one, since_s in doubts.items()}
        for one, since_s in self._doubts.items():
            if 0 <= since_s <= now_s - SETTLED_S:
                self._doubts[one] = -1.0
                self._report_violation(f"I13: {one}")

    def _doubtful(self, now_s: float) -> Iterator[str]:
        """Yields states that may only be temporary."""
        if len(self._open) > 1:
            yield f"room is reserved at once for gangs {' and '.join('/'.join(key) for key in sorted(self._open))}"
        for key, began_s in self._open.items():
            members, name = self._gangs[key], "/".join(key)
            most, there = members.minimum, len(members.running) + len(members.waiting)
            if now_s - began_s > self._policy.for_s + LATE_S - SETTLED_S:
                yield f"room is reserved for gang {name} for longer than {self._policy.for_s:g} s"
            if most is None or there < most:
                yield f"room is reserved for gang {name}, which has {there} of {most} members"
            elif len(members.nominated) > most:
                yield f"room is reserved for {len(members.nominated)} members of gang {name}, and its minimum is {most}"
