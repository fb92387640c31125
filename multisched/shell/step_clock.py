"""How long a step of an attempt may last, by a clock (`framework.step_budget.StepBudget`), and what a pause is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from multisched.framework.step_budget import StepBudget

STEP_S: Final = 0.02
"""Seconds after which a step of an attempt ends. One evaluation of a plugin may go past it: 50 ms is what a step may last in all.

A shorter step would spend more of its time on taking a group's trial off the table and putting it back (`state/trial.py`)."""


class Steps(StepBudget, Protocol):
    """The budget, and what lies between two steps.

    Border: simulations count calls, and let virtual time pass.
    """

    async def rest(self) -> None:
        """Others run before the next step begins."""
        ...


class StepClock:
    """One for the program: its event loop runs one step at a time."""

    def __init__(self, monotonic: Callable[[], float], step_s: float = STEP_S) -> None:
        self._monotonic = monotonic
        self._step_s = step_s
        self._ends_s = 0.0

    def begin(self) -> None:
        self._ends_s = self._monotonic() + self._step_s

    def is_spent(self) -> bool:
        return self._monotonic() >= self._ends_s

    async def rest(self) -> None:
        await asyncio.sleep(0)
