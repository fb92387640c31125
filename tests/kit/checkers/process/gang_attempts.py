"""Checks attempts of gangs in one domain: an attempt that fails has tried every member, unless too few were left (I3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from multisched.cycle.effort import Effort
from multisched.framework.points import QueuedGang, QueuedPod
from multisched.shell.domain import DomainWorker


class GangAttemptChecker:
    """Wraps the gang attempts of one domain. Changes nothing."""

    def __init__(self, worker: DomainWorker, report_violation: Callable[[str], None]) -> None:
        self._worker, self._report_violation = worker, report_violation
        self._followed: object = None
        self._looked_at: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
        """Try in progress -> uids of the members that it has evaluated."""
        self.follow()

    def follow(self) -> None:
        """Wraps the cycle now in force."""
        attempts: Any = self._worker.cycle._gangs
        if attempts is not self._followed:
            self._followed = attempts
            attempts._try, attempts._place = partial(self._try, attempts._try), partial(self._place, attempts._place)

    def _place(self, place: Callable[..., bool], entry: QueuedPod, found: Any, requests: object) -> bool:
        self._looked_at.setdefault(found, set()).add(entry.pod.uid)
        return place(entry, found, requests)

    def _try(
        self,
        one_try: Callable[..., Any],
        gang: QueuedGang,
        members: Sequence[QueuedPod],
        allowed: object,
        requests: object,
        effort: Effort,
    ) -> Any:
        found = yield from one_try(gang, members, allowed, requests, effort)
        if not effort.is_exhausted:
            self._check(gang, found)
        return found

    def _check(self, gang: QueuedGang, found: Any) -> None:
        looked_at = self._looked_at.pop(found, set())
        left = Counter(gang.gang_of[one.pod.uid] for one in gang.members if one.pod.uid not in looked_at)
        placed = Counter(gang.gang_of[one.pod.uid] for one in found.placed)
        if left and all(placed[key] + left[key] >= need for key, need in gang.needs.items()):
            self._report_violation(
                f"I3: gang {gang.name} was tried with {left.total()} of its {len(gang.members)} members not looked at, and"
                f" {placed.total()} placed of the {sum(gang.needs.values())} that it needs"
            )
