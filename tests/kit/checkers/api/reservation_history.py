"""Reservations of gangs over the history of the API server: one at a time, each for a limited time, with a pause after it.

A gang that has not the priority to preempt, and that is in no quota, has nominated members only while room is reserved for
it. So a reservation is the time in which a waiting member of such a gang has a nominated node.
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
"""What may pass until a nomination is written: the server may be away, and a leader that follows another one lists first."""
SETTLED_S: Final = 8.0
"""Within this all members of a gang have been nominated, bound, or deprived of their nominated nodes."""
SAME_TURN_S: Final = 2.0
"""A turn begins by so much at most before its nominations are written."""


@dataclass(slots=True)
class _Members:
    """Of one gang, by uid."""

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
    """Of the gangs of one domain."""

    def __init__(
        self,
        policy: ReservePolicy,
        scheduler: str,
        now_s: Callable[[], float],
        complain: Callable[[str], None],
        leaders: Callable[[], frozenset[str]],
    ) -> None:
        """`leaders`: the processes that decide for the domain now."""
        self._policy, self._scheduler = policy, scheduler
        self._now_s, self._complain, self._leaders = now_s, complain, leaders
        self._gangs: dict[GangKey, _Members] = {}
        self._open: dict[GangKey, float] = {}
        """Gang with a reservation -> since when."""
        self._inherited: set[GangKey] = set()
        """Gangs in `_open` for which a leader before the present one has reserved: the present one owes no pause after that."""
        self._ended: _Ended | None = None
        """The last reservation that ended and whose gang did not start, if it ended under the present leader."""
        self._led_by: frozenset[str] = frozenset()
        self._led_since_s = 0.0
        self._doubts: dict[str, float] = {}
        """What must not last -> since when it is so."""
        self.count = 0
        """Reservations that have begun."""

    # -- what the store has ----------------------------------------------------------------------------------------

    def pod_changed(self, key: GangKey, minimum: int | None, uid: str, document: Json | None) -> None:
        """A member as it is now; None: it was deleted. `minimum`: of its gang."""
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
            self._complain(
                f"I13: room is reserved for gang {'/'.join(key)} {now_s - last.at_s:.1f} s after it was reserved for"
                f" {'/'.join(last.key)}, which did not start; the pause is {for_s:g} s"
            )

    # -- judging ---------------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """What was is not known any more: the store was restored, or a leader may have done nothing for a while."""
        self._open = dict.fromkeys(self._open, self._now_s())
        self._inherited = set(self._open)
        self._ended = None
        self._doubts.clear()

    def look(self) -> None:
        """Now and then."""
        leaders, now_s = self._leaders(), self._now_s()
        if leaders != self._led_by:
            self._led_by, self._led_since_s = leaders, now_s
            self.forget()
        doubts = dict.fromkeys(self._doubtful(now_s), now_s) if len(leaders) == 1 else {}
        self._doubts = {one: self._doubts.get(one, since_s) for one, since_s in doubts.items()}
        for one, since_s in self._doubts.items():
            if 0 <= since_s <= now_s - SETTLED_S:
                self._doubts[one] = -1.0
                self._complain(f"I13: {one}")

    def _doubtful(self, now_s: float) -> Iterator[str]:
        """What may be so for a moment only."""
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
