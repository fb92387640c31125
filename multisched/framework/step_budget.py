"""Limits how long the core works in one step. The shell measures, because the core reads no clock.

A long attempt checks `is_spent` between two members or two placements. If it is True, the attempt yields a `Pause`
(`cycle/results.py`), and the event loop runs.
"""

from __future__ import annotations

from typing import Protocol


class StepBudget(Protocol):
    """The budget of the current step. There is one step at a time.

    A Protocol because the shell reads the clock (`shell/step_clock.py`), and simulations count the calls.
    """

    def begin(self) -> None:
        """Starts a step."""
        ...

    def is_spent(self) -> bool:
        """Reports whether the step must end at the next possible point."""
        ...


class UnlimitedSteps:
    """A budget that is never spent: for callers without an event loop."""

    def begin(self) -> None:
        """Does nothing."""

    def is_spent(self) -> bool:
        return False


UNLIMITED: StepBudget = UnlimitedSteps()
