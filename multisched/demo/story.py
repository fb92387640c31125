"""The order in which the demo creates things, and when it is over: acts that begin when what came before is settled.

First the workload, the gang but for one member, and the team that borrows. Then the last member, and the team that wants its own
back. Beyond that, small things go on for as long as somebody looks.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any, Final

import anyio
import orjson

from multisched.cluster.client.object_client import Document
from multisched.cluster.seed import demo_workload, pods_by_scheduler, scaled
from multisched.demo.fact_reader import FactReader
from multisched.demo.world import World, cron, feasible_pods, first_act, gang_pods, late_act
from multisched.embedded_app import create_all
from multisched.model.wire import Transport, TransportError
from multisched.shell.program import Program
from multisched.shell.telemetry import statistics_of

SETTLED_S: Final = 2.0
"""Refused pods are infeasible once nothing was bound for so long, and for the longest backoff where pods back off."""
CHECK_INTERVAL_S: Final = 0.05
ACT_PAUSE_S: Final = 5.0
"""For those who look: the state between two acts stays so long."""
PULSE_S: Final = 4.0
CRON_PODS: Final = 20
"""Of each small burst, on 300 nodes."""
_PODS: Final = "/api/v1/namespaces/default/pods"
_REPLACED: Final = "web"
"""The service of which one pod after the other is deleted, so that the forecast places its successor."""


class Story:
    """One run: `play` creates, `is_over` says when all that can be bound is."""

    def __init__(
        self, program: Program, reader: FactReader, world: World, job_pods: int | None, backoff_max_s: float
    ) -> None:
        self._program = program
        self._reader = reader
        self._world = world
        self._workload = demo_workload(job_pods, world.nodes)
        self._backoff_max_s = backoff_max_s
        self._feasible = self._by_domain(pods_by_scheduler(self._workload), {"job-scheduler": world.borrowers})
        self._seen: tuple[int, ...] = ()
        self._since_s = time.monotonic()
        self.is_late = False
        """The last act has begun, and all of it is created."""

    def expected(self) -> dict[str, int]:
        """Domain -> pods of all manifests, that which fits nowhere included."""
        others = {"forecast-scheduler": 1}
        return self._by_domain(pods_by_scheduler(self._workload), feasible_pods(self._world), others)

    def _by_domain(self, *counts: Mapping[str, int]) -> dict[str, int]:
        return {
            domain: sum(each.get(name, 0) for each in counts for name in names)
            for domain, names in self._program.scheduler_names.items()
        }

    async def play(self, transport: Transport, *, is_watched: bool) -> None:
        """Creates everything. `is_watched`: slowly enough to be seen, and without an end."""
        await create_all(transport, [*first_act(self._world), *self._workload])
        await self._until_settled()
        if is_watched:
            await anyio.sleep(ACT_PAUSE_S)
        feasible = self._by_domain(pods_by_scheduler(self._workload), feasible_pods(self._world))
        await create_all(transport, late_act(self._world))
        self._feasible, self.is_late = feasible, True
        self._since_s = time.monotonic()
        if is_watched:
            await self._until_settled()
            await self._go_on(transport)

    async def _until_settled(self) -> None:
        while not self.is_settled():  # noqa: ASYNC110 -- counters of many parts are read, none of which says when
            await anyio.sleep(CHECK_INTERVAL_S)

    async def _go_on(self, transport: Transport) -> None:
        """A small burst of jobs, and a pod of a service that is replaced, in turn."""
        rng, number = random.Random(0), 0  # noqa: S311 - which pod is replaced
        while True:
            await anyio.sleep(PULSE_S)
            number += 1
            await create_all(transport, cron(number, max(1, scaled(CRON_PODS, self._world.nodes))))
            await anyio.sleep(PULSE_S)
            await _replace_one(transport, rng)

    # -- the end ---------------------------------------------------------------------------------------------------

    def is_over(self) -> bool:
        """All acts have been played, and what can be bound is."""
        return self.is_late and self.is_settled()

    def is_settled(self) -> bool:
        """All feasible pods are bound, or those that are not have been refused and nothing has been bound for a while."""
        statistics = statistics_of(self._program)
        seen = tuple(int(str(statistics[name]["bound"])) for name in self._feasible)
        if all(bound >= pods for bound, pods in zip(seen, self._feasible.values(), strict=True)) and self._is_seen():
            return True
        now_s = time.monotonic()
        if seen != self._seen or not all(_has_come(statistics[name], pods) for name, pods in self._feasible.items()):
            self._seen, self._since_s = seen, now_s
        is_backing_off = any(_waiting(statistics[name], "backoff") for name in self._feasible)
        is_busy = any(_waiting(statistics[name], "active") for name in self._feasible)
        return not is_busy and now_s - self._since_s >= SETTLED_S + is_backing_off * self._backoff_max_s

    def _is_seen(self) -> bool:
        """The watch has brought what the story is about, too."""
        self._reader.look()
        facts = self._reader.story()
        gang, quota = facts.gang, facts.quota
        if gang is None or quota is None or facts.refused is None:
            return False
        if not self.is_late:
            return gang.there == len(gang_pods(self._world)) - 1 and quota.borrower_cpu == quota.total_cpu
        return gang.bound == gang.members and (quota.borrower_cpu, quota.owner_cpu) == (quota.min_cpu, quota.min_cpu)


def _has_come(statistics: Mapping[str, Any], pods: int) -> bool:
    return bool(statistics["bound"] + statistics["in_flight"] + sum(statistics["pending"].values()) >= pods)


def _waiting(statistics: Mapping[str, Any], queue: str) -> int:
    return int(statistics["pending"][queue])


async def _replace_one(transport: Transport, rng: random.Random) -> None:
    """Deletes one pod of a service; its Deployment makes another."""
    try:
        answer = await transport.request("GET", f"{_PODS}?labelSelector=app%3D{_REPLACED}")
        pods: list[Document] = orjson.loads(answer.body).get("items", [])
        names = [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")]
        if names:
            await transport.request("DELETE", f"{_PODS}/{rng.choice(names)}")
    except TransportError:
        return  # the cluster ends, or is busy: the next one then
