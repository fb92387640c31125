"""The order in which the demo creates objects, and when it is over. Each act begins after the one before has settled.

The first act creates the workload, the gang without its last member, the borrowing team, and jobs on loan. The second creates the last
member and the team that owns the borrowed quota. Then, unless `--once` is given, a pod of the gpu domain causes a recall of CPU that is
on loan, and small changes continue until the demo is stopped.
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
from multisched.demo.world import IMAGE_CPU, World, cron, feasible_pods, first_act, gang_pods, late_act, recalling
from multisched.embedded_app import create_all
from multisched.model.wire import Transport, TransportError
from multisched.shell.program import Program
from multisched.shell.telemetry import statistics_of

SETTLED_S: Final = 2.0
"""Unbound pods count as infeasible if no pod was bound for this time, plus the longest backoff if some pod is in backoff."""
CHECK_INTERVAL_S: Final = 0.05
ACT_PAUSE_S: Final = 5.0
"""Pause between two acts, so that viewers see the state."""
PULSE_S: Final = 4.0
CRON_PODS: Final = 20
"""Number of pods of each small burst, for 300 nodes."""
_PODS: Final = "/api/v1/namespaces/default/pods"
_REPLACED: Final = "web"
"""The service whose pods are deleted one by one, so that the forecast domain places the replacements."""


class DemoScenario:
    """One run: `play` creates the objects, `is_over` reports whether all feasible pods are bound."""

    def __init__(
        self, program: Program, reader: FactReader, world: World, job_pods: int | None, backoff_max_s: float
    ) -> None:
        self._program = program
        self._reader = reader
        self._world = world
        self._workload = demo_workload(job_pods, world.nodes)
        self._backoff_max_s = backoff_max_s
        self._feasible = self._by_domain(
            pods_by_scheduler(self._workload), {"job-scheduler": world.borrowers + world.images}
        )
        self._seen: tuple[int, ...] = ()
        self._since_s = time.monotonic()
        self.is_late = False
        """Whether the objects of the second act were created."""

    def expected(self) -> dict[str, int]:
        """Returns domain -> number of pods in all manifests, including the infeasible one."""
        others = {"forecast-scheduler": 1}
        return self._by_domain(pods_by_scheduler(self._workload), feasible_pods(self._world), others)

    def _by_domain(self, *counts: Mapping[str, int]) -> dict[str, int]:
        return {
            domain: sum(each.get(name, 0) for each in counts for name in names)
            for domain, names in self._program.scheduler_names.items()
        }

    async def play(self, transport: Transport, *, is_watched: bool) -> None:
        """Creates the objects of all acts. With `is_watched`, pauses between the acts and continues until it is cancelled."""
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
            await anyio.sleep(ACT_PAUSE_S)
            await self._recall(transport)
            await self._go_on(transport)

    async def _until_settled(self) -> None:
        while not self.is_settled():  # noqa: ASYNC110 -- polls counters of many parts, which send no events
            await anyio.sleep(CHECK_INTERVAL_S)

    async def _recall(self, transport: Transport) -> None:
        """Creates a pod of the gpu domain that needs CPU that a job pod has on loan."""
        borrowed = self._reader.borrowed_node()
        if borrowed is not None:
            node, free_milli = borrowed
            await create_all(transport, recalling(node, free_milli + 1000 * IMAGE_CPU // 2))

    async def _go_on(self, transport: Transport) -> None:
        """Alternates between a small burst of jobs and the replacement of one pod of a service."""
        rng, number = random.Random(0), 0  # noqa: S311 - which pod is replaced
        while True:
            await anyio.sleep(PULSE_S)
            number += 1
            await create_all(transport, cron(number, max(1, scaled(CRON_PODS, self._world.nodes))))
            await anyio.sleep(PULSE_S)
            await _replace_one(transport, rng)

    # -- the end ---------------------------------------------------------------------------------------------------

    def is_over(self) -> bool:
        """Reports whether all acts have been played and all feasible pods are bound."""
        return self.is_late and self.is_settled()

    def is_settled(self) -> bool:
        """Reports whether all feasible pods are bound, or no pod is active and none was bound for SETTLED_S."""
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
        """Reports whether the watch has delivered the act's final state of gang, quota and refused pod."""
        self._reader.look()
        facts = self._reader.scenario()
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
    """Deletes one pod of a service; its Deployment replaces it."""
    try:
        answer = await transport.request("GET", f"{_PODS}?labelSelector=app%3D{_REPLACED}")
        pods: list[Document] = orjson.loads(answer.body).get("items", [])
        names = [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")]
        if names:
            await transport.request("DELETE", f"{_PODS}/{rng.choice(names)}")
    except TransportError:
        return  # the cluster is stopping or busy; the next pulse tries again
