"""A stream of small pods: each runs for a few seconds, and some always wait for the room of those that end."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from tests.kit.world.gang_workloads import GangWorkloads

RUNS_S: Final = (1.5, 4.0)
WAITING: Final = 3
"""Number of pods of a stream that always wait."""
LOOK_S: Final = 0.25


class PodStream:
    """The small pods of one pool, of one CPU each."""

    def __init__(self, gangs: GangWorkloads, pool: str, scheduler: str, rng: random.Random) -> None:
        self._gangs = gangs
        self._pool = pool
        self._scheduler = scheduler
        self._rng = rng
        self._ends_s: dict[str, float] = {}
        """Name of a bound pod -> time at which it ends."""
        self.lasting: set[str] = set()
        """Names of pods that do not end."""

    async def flow(self) -> None:
        """Ends pods and creates others, until cancelled."""
        while True:
            pods, now_s = self._gangs.pods_of(self._pool), asyncio.get_running_loop().time()
            for name, pod in pods.items():
                if pod.node and name not in self.lasting:
                    ends_s = self._ends_s.setdefault(name, now_s + self._rng.uniform(*RUNS_S))
                    if now_s >= ends_s:
                        await self._gangs.user.delete_pod(pod)
            for _ in range(WAITING - sum(not pod.node for pod in pods.values())):
                await self._gangs.pod(self._pool, "1", scheduler=self._scheduler)
            await asyncio.sleep(LOOK_S)

    def running(self) -> int:
        """Returns the number of its pods with nodes."""
        return sum(bool(pod.node) for pod in self._gangs.pods_of(self._pool).values())

    def last(self) -> str:
        """Makes one bound pod last. Returns its name."""
        name = next(name for name, pod in self._gangs.pods_of(self._pool).items() if pod.node)
        self.lasting.add(name)
        return name

    async def clear(self) -> None:
        """Deletes all pods of the pool that have no gang."""
        for pod in self._gangs.pods_of(self._pool).values():
            await self._gangs.user.delete_pod(pod)
