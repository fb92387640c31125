"""Limits the cost of one long search: the shell bounds the time of each step, this module the number of pauses.

The core reads no clock. It checks the `StepBudget` between two placements and counts the pauses.
"""

from __future__ import annotations

from typing import Final

from multisched.framework.step_budget import StepBudget

PAUSES_MAX: Final = 500
"""Pauses after which one search is given up for now. With steps of 20 ms that is ten seconds of work. A gang of 5,000
plain pods takes one pause, and a reclaim for a gang of 1,000 about five."""


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
    def is_exhausted(self) -> bool:
        """True if the search has used up its pauses. It then ends with what it has found."""
        return self.pauses >= self._pauses_max
