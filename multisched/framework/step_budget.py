"""How long the core may work in one piece: the shell says when a step has to end, because the core reads no clock.

An attempt that may take long asks `is_spent` between two members or two placements. Once that is true it yields a `Pause`
(`cycle/results.py`), and the event loop runs.
"""

from __future__ import annotations

from typing import Protocol


class StepBudget(Protocol):
    """The budget of the step in progress. There is one step at a time.

    Border: the shell has the clock (`shell/step_clock.py`), and simulations count the calls.
    """

    def begin(self) -> None:
        """A step begins now."""
        ...

    def is_spent(self) -> bool:
        """True if the step has to end at the next place where it can."""
        ...


class UnlimitedSteps:
    """Never spent: for callers that have no event loop to run."""

    def begin(self) -> None:
        """Nothing is measured."""

    def is_spent(self) -> bool:
        return False


UNLIMITED: StepBudget = UnlimitedSteps()
