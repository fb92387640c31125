"""Checks how much the plugins of one process evaluate in one step of the event loop: no step may block others for long (I10).

Virtual time does not advance within a step. So cost is counted, which is equal on every machine: one for each call of a plugin, and
one for each row of nodes in its arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np

from multisched.framework.runner import Runner
from multisched.testing.sim_loop import SimLoop

COST_MAX: Final = 10_000
"""Limit of one step. A single pod costs some hundreds, a gang of eight some thousands."""
SPENT: Final = 2_000
"""Cost after which a search that can pause does so."""

R = TypeVar("R")


class StepCost:
    """The cost of one process. Can also serve as the program's step budget: `begin`, `is_spent` and `rest` replace those of a
    clock.
    """

    def __init__(self, loop: SimLoop, report_violation: Callable[[str], None]) -> None:
        self._loop = loop
        self._report_violation = report_violation
        self._step: tuple[int, int] = (0, 0)
        """Iteration of the loop, and task."""
        self._cost = 0
        self._since_begin = 0
        self.highest = 0
        """Highest cost of any step so far."""

    # -- as a budget -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begins a step."""
        self._since_begin = 0

    def is_spent(self) -> bool:
        return self._since_begin >= SPENT

    async def rest(self) -> None:
        """Lets other tasks run before the next step."""
        await asyncio.sleep(0)

    # -- as a judge ------------------------------------------------------------------------------------------------

    def follow(self, runner: Runner) -> None:
        """Counts the calls of this runner from now on."""
        call = runner.call

        def counted(plugin: Any, point: str, function: Callable[..., R], *args: Any) -> R:
            cost = 1
            for one in args:
                if isinstance(one, np.ndarray):
                    cost += len(one)
            self._add(cost)
            return call(plugin, point, function, *args)

        runner.call = counted  # type: ignore[method-assign]

    def _add(self, cost: int) -> None:
        step = self._loop.iteration, id(asyncio.current_task(self._loop))
        if step != self._step:
            self._step, self._cost = step, 0
        before, self._cost = self._cost, self._cost + cost
        self._since_begin += cost
        self.highest = max(self.highest, self._cost)
        if before <= COST_MAX < self._cost:
            self._report_violation(f"I10: one step of the event loop costs more than {COST_MAX}")
