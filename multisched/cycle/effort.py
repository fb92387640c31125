"""Limits the cost of one long search: the shell bounds the time of each step, this module the number of pauses.

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
"""Pauses after which one search is given up for now. With steps of 20 ms that is ten seconds of work. A gang of 5,000
plain pods takes one pause, and a reclaim for a gang of 1,000 about five."""
NOT_TESTED: Final = Status.unschedulable(f"node(s) were not tested, as the search for victims took {PAUSES_MAX} steps")

GIVEN_UP: Final = Status.unschedulable(
    f"preemption: the search for victims was given up for now after {PAUSES_MAX} steps; it is shorter if pods share their"
    " labels, or PodDisruptionBudgets select pods by the value of a label"
)


class PauseDue(BaseException):
    """Ends a search that can be repeated: its attempt pauses, and begins the search again with the results of `RowResults`.

    It is no Exception, so that no plugin handles it on the way.
    """


class Effort:
    """Counts the pauses of one search, and decides when it must pause or end."""

    def __init__(self, budget: StepBudget, pauses_max: int = PAUSES_MAX) -> None:
        self._budget = budget
        self._pauses_max = pauses_max
        self.pauses = 0
        """How often the search has paused."""

    def is_pause_due(self) -> bool:
        """Reports whether the search must pause now, and counts the pause if so."""
        if not self._budget.is_spent():
            return False
        self.pauses += 1
        return True

    def begin_step(self) -> None:
        """Restarts the step's budget after a pause. Called once the changes that the pause undid are made again, which is not counted."""
        self._budget.begin()

    @property
    def is_step_spent(self) -> bool:
        """True if the step has lasted long enough."""
        return self._budget.is_spent()

    @property
    def is_exhausted(self) -> bool:
        """True if the search has used up its pauses. It then ends with what it has found."""
        return self.pauses >= self._pauses_max


class RowResults:
    """Results of tests of single rows by one attempt, kept while the attempt pauses.

    A result is valid as long as the row is unchanged. Pods on other rows may matter to it too, so whatever is chosen is tested once
    more if it was tested before the latest pause (`is_old`).
    """

    def __init__(self, effort: Effort | None = None) -> None:
        """`effort`: of the attempt; None: it must not pause."""
        self._effort = effort
        self._step = self._part_step = -1
        """Numbers of pauses before the latest test and the latest part: each step does at least one of each it needs, whatever
        time has passed before."""
        self.kept: dict[str, Any] = {}
        """Other results that the attempt keeps while it pauses, by a name that their owner chooses."""
        self._searches = 0
        self._again: set[Hashable] = set()
        """Tests that are run again, whatever time has passed before."""
        self._known: dict[Hashable, tuple[Hashable, int, Any]] = {}
        """Key of the test -> version of the row, number of pauses before the test, and the result."""

    def begin_search(self) -> int:
        """Returns the number of a search since the attempt began or paused: two searches may follow different rules."""
        self._searches += 1
        return self._searches

    def of(self, key: Hashable, version: Hashable, test: Callable[[], T]) -> T | Status:
        """Returns the known result, or runs the test; NOT_TESTED if the search has used up its pauses. Raises PauseDue."""
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
        """Called before each part of a computation that keeps the results of earlier parts. Raises PauseDue.

        Raises PluginFailure in the last step, once that has lasted long enough, too.
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
        """Reports whether the result stems from before the latest pause."""
        known = self._known.get(key)
        return known is not None and known[1] < self._pauses

    def forget(self, key: Hashable) -> None:
        """Has the test run again in this step."""
        self._known.pop(key, None)
        self._again.add(key)

    @property
    def _pauses(self) -> int:
        return 0 if self._effort is None else self._effort.pauses
