"""Steps of attempts that end after a number of evaluations: equal in every run, since virtual time does not advance while the core
works.
"""

from __future__ import annotations

import asyncio


class CountedSteps:
    """`shell.step_clock.Steps` without a clock."""

    def __init__(self, evaluations_max: int, rest_s: float = 0.0) -> None:
        """`evaluations_max`: limit of one step. `rest_s`: virtual seconds of each pause."""
        self._evaluations_max = evaluations_max
        self._rest_s = rest_s
        self._evaluations = 0
        self.pauses = 0
        self.longest = 0
        """Highest number of evaluations in one step."""

    def begin(self) -> None:
        self._evaluations = 0

    def is_spent(self) -> bool:
        self._evaluations += 1
        self.longest = max(self.longest, self._evaluations)
        return self._evaluations > self._evaluations_max

    async def rest(self) -> None:
        self.pauses += 1
        await asyncio.sleep(self._rest_s)
