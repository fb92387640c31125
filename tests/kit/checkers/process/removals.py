"""Checks which pods of one process count as victims: those of a removal in progress or sent just before, and no others (I5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from multisched.model.objects import Pod
from multisched.shell.program import Program
from multisched.shell.removals import UNSEEN_MAX_S

LATE_S: Final = 1.0
"""Tolerance for timers of the program."""


class _VictimRecord:
    """One pod: the plans that evict it, and the time until which a sent deletion counts."""

    __slots__ = ("plans", "sent_until_s")

    def __init__(self) -> None:
        self.plans: list[object] = []
        self.sent_until_s = 0.0

    def must_count(self, now_s: float) -> bool:
        return bool(self.plans) or now_s < self.sent_until_s - LATE_S

    def may_count(self, now_s: float) -> bool:
        return bool(self.plans) or now_s < self.sent_until_s + LATE_S


class RemovalChecker:
    """Wraps the `Removals` of one program, and keeps its own record of the calls."""

    def __init__(self, program: Program, is_paused: Callable[[], bool]) -> None:
        self._program, self._is_paused = program, is_paused
        self._marks: dict[str, _VictimRecord] = {}
        removals = program.preemptor.removals
        self._decide, self._sent, self._release = removals.decide, removals.sent, removals.release
        self._seen, self._forget = removals.seen, program.cache.forget
        removals.decide = self.decide  # type: ignore[method-assign]
        removals.sent = self.sent  # type: ignore[method-assign]
        removals.release = self.release  # type: ignore[method-assign]
        removals.seen = self.seen  # type: ignore[method-assign]
        program.cache.forget = self.forget  # type: ignore[method-assign]
        self.broken: list[str] = []
        """Violations since the last read."""

    # -- the calls -------------------------------------------------------------------------------------------------

    def decide(self, plan: object, victims: Iterable[Pod]) -> None:
        """Wraps `Removals.decide`."""
        victims = tuple(victims)
        for victim in victims:
            entry = self._program.cache.placed(victim.uid)
            if entry is not None and not entry.pod.is_deleting:
                plans = self._marks.setdefault(victim.uid, _VictimRecord()).plans
                if not any(one is plan for one in plans):
                    plans.append(plan)
        self._decide(plan, victims)
        self._look_at(victims)

    def sent(self, uid: str) -> None:
        """Wraps `Removals.sent`: also a consistent read may show that a pod of no plan is gone."""
        entry = self._program.cache.placed(uid)
        if entry is not None and not entry.pod.is_deleting:
            marks = self._marks.setdefault(uid, _VictimRecord())
            marks.sent_until_s = asyncio.get_running_loop().time() + UNSEEN_MAX_S
        self._sent(uid)

    def release(self, plan: object, victims: Iterable[Pod]) -> None:
        """Wraps `Removals.release`."""
        victims = tuple(victims)
        for victim in victims:
            marks = self._marks.get(victim.uid)
            if marks is not None:
                marks.plans = [one for one in marks.plans if one is not plan]
        self._release(plan, victims)
        self._look_at(victims)

    def seen(self, uid: str) -> None:
        """Wraps `Removals.seen`."""
        self._marks.pop(uid, None)
        self._seen(uid)

    def forget(self, uid: str) -> bool:
        """Wraps `ClusterCache.forget`: after a cancelled bind, the pod is no victim at its next assumption."""
        is_forgotten = self._forget(uid)
        if is_forgotten:
            self._marks.pop(uid, None)
        return is_forgotten

    # -- what counts -----------------------------------------------------------------------------------------------

    def _look_at(self, victims: Iterable[Pod]) -> None:
        for victim in victims:
            fault = self._fault_of(victim.uid)
            if fault:
                self.broken.append(fault)

    def _fault_of(self, uid: str) -> str:
        entry, marks = self._program.cache.placed(uid), self._marks.get(uid)
        if entry is None or entry.pod.is_deleting or self._is_paused():
            return ""
        now_s = asyncio.get_running_loop().time()
        if entry.pod.is_victim and not (marks is not None and marks.may_count(now_s)):
            return f"I5: {entry.pod.key} counts as a victim, and nothing is about to remove it"
        if not entry.pod.is_victim and marks is not None and marks.must_count(now_s):
            what = "a plan is to remove it" if marks.plans else "its deletion was sent"
            return f"I5: {entry.pod.key} does not count as a victim, and {what}"
        return ""

    def fault(self) -> str:
        """Returns the first pod with a wrong victim state; empty for none."""
        now_s, cache = asyncio.get_running_loop().time(), self._program.cache
        self._marks = {uid: marks for uid, marks in self._marks.items() if marks.may_count(now_s)}
        for uid in {*self._marks, *(entry.pod.uid for entry in cache if entry.pod.is_victim)}:
            fault = self._fault_of(uid)
            if fault:
                return fault
        return ""

    def fault_when_quiescent(self) -> str:
        """Does the same when nothing is in progress: no plan may remain."""
        for uid, marks in self._marks.items():
            entry = self._program.cache.placed(uid)
            if marks.plans and entry is not None and not entry.pod.is_deleting:
                return f"I5: {entry.pod.key} is a victim of {len(marks.plans)} plans at rest"
        return self.fault()
