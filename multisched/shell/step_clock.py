"""Limits the duration of a step of an attempt by a clock (`framework.step_budget.StepBudget`), and pauses between steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from multisched.framework.step_budget import StepBudget

STEP_S: Final = 0.02
"""Seconds after which a step of an attempt ends. One plugin call may exceed it; a step should last at most 50 ms in total.

With shorter steps, a larger part of the time would go into removing and restoring the trial of a group (`state/trial.py`)."""


class Steps(StepBudget, Protocol):
    """A step budget with a pause between steps.

    Simulations implement it by counting calls and advancing virtual time.
    """

    async def rest(self) -> None:
        """Lets other tasks run before the next step."""
        ...


class StepClock:
    """Step budget by a monotonic clock. One per program, because its event loop runs one step at a time."""

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
