"""Limits the cost of one long search. The shell limits the time of each step, and this module limits the number of pauses.

The core reads no clock. It checks the `StepBudget` between two placements and counts the pauses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from multisched.framework.runner import PluginFailure
from multisched.framework.status import Status
from multisched.framework.step_budget import StepBudget

T = TypeVar("T")

PAUSES_MAX: Final = 500
"""Pauses after which a search is stopped; the next attempt starts a new one. With steps of 20 ms that is ten seconds of work.
A gang of 5,000 plain pods takes one pause, and a reclaim for a gang of 1,000 about five."""
NOT_TESTED: Final = Status.unschedulable(f"node(s) were not tested, as the search for victims took {PAUSES_MAX} steps")

GIVEN_UP: Final = Status.unschedulable(
    f"preemption: the search for victims was stopped after {PAUSES_MAX} steps and will be retried; it is shorter if pods share their"
    " labels, or PodDisruptionBudgets select pods by the value of a label"
)


class PauseDue(BaseException):
    """Interrupts a search. The attempt pauses, and then repeats the search, which reuses the results kept in `RowResults`.

    It is not a subclass of Exception, so that no plugin catches it.
    """


class Effort:
    """Counts the pauses of one search, and decides when it must pause or end."""

    def __init__(self, budget: StepBudget, pauses_max: int = PAUSES_MAX) -> None:
        self._budget = budget
        self._pauses_max = pauses_max
        self.pauses = 0
        """How many times the search has paused."""

    def is_pause_due(self) -> bool:
        """Reports whether the search must pause now, and counts the pause if so."""
        if not self._budget.is_spent():
            return False
        self.pauses += 1
        return True

    def begin_step(self) -> None:
        """Begins a new step after a pause.

        Called after changes that were undone for the pause are made again, so that the time for this is not part of the step.
        """
        self._budget.begin()

    @property
    def is_step_spent(self) -> bool:
        """True if the step has used up its time."""
        return self._budget.is_spent()

    @property
    def is_exhausted(self) -> bool:
        """True if the search has used up its pauses. It then ends with the results so far."""
        return self.pauses >= self._pauses_max


class RowResults:
    """Results of tests of single rows by one attempt, kept while the attempt pauses.

    A result is valid while its row is unchanged. Since pods on other rows may also matter, the row that is finally chosen is tested again
    if its result is from before the latest pause (`is_old`).
    """

    def __init__(self, effort: Effort | None = None) -> None:
        """`effort`: the attempt's pauses; None if the attempt must not pause."""
        self._effort = effort
        self._step = self._part_step = -1
        """Number of pauses at the latest test, and at the latest part of a computation. The first test and the first part after a pause
        run even if the step has no time left, so that each step makes progress."""
        self.kept: dict[str, Any] = {}
        """Other results to keep during pauses. Their owner chooses the key."""
        self._searches = 0
        self._again: set[Hashable] = set()
        """Keys of tests that must run again in this step, even if it has no time left."""
        self._known: dict[Hashable, tuple[Hashable, int, Any]] = {}
        """Key of a test -> version of the row, number of pauses before the test, and the result."""

    def begin_search(self) -> int:
        """Returns a number for a search, counted from the last pause. Test keys contain it, because searches may have different rules."""
        self._searches += 1
        return self._searches

    def of(self, key: Hashable, version: Hashable, test: Callable[[], T]) -> T | Status:
        """Returns the known result, or else runs the test. Returns NOT_TESTED if the search has used up its pauses. Raises PauseDue."""
        known = self._known.get(key)
        if known is not None and known[0] == version:
            result: T = known[2]
            return result
        effort = self._effort
        if effort is not None and key not in self._again:
            if effort.is_exhausted:
                return NOT_TESTED
            if self._step == effort.pauses:
                self._pause_if_due(effort)
            self._step = effort.pauses
        result = test()
        self._known[key] = version, self._pauses, result
        return result

    def pause(self) -> None:
        """Must be called before each part of a computation that keeps the results of earlier parts. Raises PauseDue.

        Raises PluginFailure if the last step has used up its time.
        """
        effort = self._effort
        if effort is None:
            return
        if self._part_step == effort.pauses:
            if effort.is_exhausted and effort.is_step_spent:
                raise PluginFailure(GIVEN_UP)
            if not effort.is_exhausted:
                self._pause_if_due(effort)
        self._part_step = effort.pauses

    def _pause_if_due(self, effort: Effort) -> None:
        if effort.is_pause_due():
            self._searches = 0
            raise PauseDue

    @property
    def has_paused(self) -> bool:
        """Whether the attempt has paused."""
        return self._pauses > 0

    def is_old(self, key: Hashable) -> bool:
        """Reports whether the result is from before the latest pause."""
        known = self._known.get(key)
        return known is not None and known[1] < self._pauses

    def forget(self, key: Hashable) -> None:
        """Drops the result, so that the test runs again in this step."""
        self._known.pop(key, None)
        self._again.add(key)

    @property
    def _pauses(self) -> int:
        return 0 if self._effort is None else self._effort.pauses
