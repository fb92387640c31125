"""What one long search may cost: steps that the shell bounds in time, and how many of them.

The core reads no clock. It asks the `StepBudget` between two placements, and counts the pauses that follow.
"""

from __future__ import annotations

from typing import Final

from multisched.framework.step_budget import StepBudget

PAUSES_MAX: Final = 500
"""Pauses of one search before it gives up for now. With steps of 20 ms that is ten seconds of work; a gang of 5,000 plain pods
takes one, and a reclaim for a gang of 1,000 takes about five."""


class Effort:
    """Of one search."""

    def __init__(self, budget: StepBudget, pauses_max: int = PAUSES_MAX) -> None:
        self._budget = budget
        self._pauses_max = pauses_max
        self.pauses = 0
        """How often the search has let the event loop run."""

    def is_pause_due(self) -> bool:
        """True if the search has to pause before it goes on; it then counts as having paused."""
        if not self._budget.is_spent():
            return False
        self.pauses += 1
        return True

    def begin_step(self) -> None:
        """What follows a pause counts from now on: making a trial again does not."""
        self._budget.begin()

    @property
    def is_exhausted(self) -> bool:
        """The search has paused as often as it may, and ends with what it has."""
        return self.pauses >= self._pauses_max
