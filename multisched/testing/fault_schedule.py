"""One run's arrivals and disruptions, in the order that its setting has drawn.

`struck` counts what really happened; a disruption that found nothing to disrupt does not count.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from multisched.testing.disruptions.catalog import BY_NAME
from multisched.testing.disruptions.endings import end
from multisched.testing.disruptions.scene import Scene
from multisched.testing.workloads import Workloads

if TYPE_CHECKING:
    from multisched.testing.scenario import Run

STORM_S = 30.0
"""Virtual seconds in which pods arrive and faults strike; what strikes last may go on for longer."""
LULL = 10
"""So many disruptions at least share the time: few are not stretched over all of it."""
CLEARED_EVERY_S = 4.0
BURSTS = (1, 1, 5, 20, 40)


class FaultSchedule:
    """The arrivals and disruptions of one run, in their drawn order."""

    def __init__(self, run: Run) -> None:
        self._scene = Scene(run)
        self._setting = run.setting
        self._rng = run.rng
        self._workloads = Workloads(run.world, run.seed)
        self.struck: Counter[str] = Counter()

    async def run(self) -> None:
        """Returns when the last disruption is over."""
        kinds = self._setting.kinds
        tasks = [asyncio.ensure_future(self._arrive()), asyncio.ensure_future(self._roll_out())]
        for kind in kinds:
            await asyncio.sleep(self._rng.uniform(0.1, 2 * STORM_S / max(len(kinds), LULL)))
            tasks.append(asyncio.ensure_future(self._strike(kind)))
        clearing = asyncio.ensure_future(self._clear())
        try:
            await asyncio.gather(*tasks)
            clearing.cancel()
            await end(self._scene, self.struck)
        finally:
            for task in [*tasks, clearing]:
                task.cancel()

    async def _strike(self, kind: str) -> None:
        self.struck[kind] += await BY_NAME[kind].act(self._scene)

    async def _clear(self) -> None:
        while True:
            await asyncio.sleep(CLEARED_EVERY_S)
            await self._scene.world.clear_crowds(self._scene.run.clock.now().timestamp())

    async def _arrive(self) -> None:
        left = self._setting.arrivals
        while left:
            burst = min(left, self._rng.choice(BURSTS))
            left -= burst
            for _ in range(burst):
                await self._scene.world.add_pod()
            await asyncio.sleep(self._rng.uniform(0.0, STORM_S / 8))

    async def _roll_out(self) -> None:
        """Workloads one after the other, each in two rounds."""
        for number in range(self._setting.workloads):
            await asyncio.sleep(self._rng.uniform(0.2, STORM_S / 5))
            self.struck[await self._workloads.create(number)] += 1
            await asyncio.sleep(self._rng.uniform(0.5, STORM_S / 6))
            await self._workloads.repeat(number)
