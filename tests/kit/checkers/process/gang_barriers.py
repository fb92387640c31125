"""Recounts the barriers at which members of gangs wait before their binds are sent: every awaited member will arrive (I5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from multisched.shell.binding.gang_barrier import Barrier
from multisched.shell.domain import DomainWorker
from multisched.state.gang_roster import GangRoster
from tests.kit.checkers.process.gang_roster import recount

WRITES: Final = ("expect", "begin", "arrive", "leave")
"""Methods after which all barriers are recounted."""


class BarrierChecker:
    """Wraps the gang barriers of one domain. Changes nothing."""

    def __init__(self, worker: DomainWorker, roster: GangRoster, report_violation: Callable[[str], None]) -> None:
        self._barriers = worker.binding._barriers
        self._roster, self._report_violation = roster, report_violation
        for name in WRITES:
            setattr(self._barriers, name, self._checked(getattr(self._barriers, name)))

    def _checked(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*args: Any) -> Any:
            answer = write(*args)
            for barrier in self._barriers.all():
                missing = _missing(barrier)
                for key in barrier.members:
                    if barrier.missing[key] != missing[key]:
                        self._report_violation(
                            f"I5: {barrier.missing[key]} members of gang {key} are waited for before it is bound, and"
                            f" {missing[key]} have not arrived"
                        )
            return answer

        return checked

    def look(self) -> None:
        """Checks that no barrier is closed although enough members have arrived. Called regularly."""
        for barrier in self._barriers.all():
            missing = _missing(barrier)
            is_closed = not (barrier.is_open or barrier.failure is not None or barrier.not_begun)
            if is_closed and barrier.arrived and not any(self._is_short(key, missing[key]) for key in barrier.members):
                self._report_violation(
                    f"I5: {len(barrier.arrived)} members of gang {'/'.join(barrier.members)} may be bound, and wait"
                )

    def _is_short(self, key: str, missing: int) -> bool:
        gang = self._roster.gang(key)
        if gang is None or (missing and gang.starts_members_singly):
            return False
        return recount(gang).needs + missing > 0


def _missing(barrier: Barrier) -> Counter[str]:
    return Counter(key for uid, key in barrier.gang_of.items() if uid not in barrier.arrived)
