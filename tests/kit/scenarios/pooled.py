"""The common part of scenarios of workloads on nodes of their own (`world.pooled_workloads`)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from multisched.model.wire import Response
from tests.kit.disruptions.run_context import RunContext
from tests.kit.processes.process import Process
from tests.kit.scenarios.dedicated_nodes import LED_S, leader
from tests.kit.scenarios.steps import sees_objects
from tests.kit.world.api_user import NAMESPACE, pods_path
from tests.kit.world.pooled_workloads import PooledWorkload, PooledWorkloads

GIVES_S: Final = 14.0
"""Time from the growth of pods that others make room for until they are bound: notice, eviction, graceful ends, bind."""
LAST_S: Final = 9.0
"""Pause between two scenarios."""
THROTTLED: Final = Response(429, b'{"kind":"Status","status":"Failure","code":429}', {"retry-after": "1"})
FAILED: Final = Response(500, b'{"kind":"Status","status":"Failure","code":500,"message":"etcd is away (injected)"}')


class GangsInPart(Protocol):
    """A checker that knows gangs of which members were evicted."""

    def in_part(self) -> list[str]:
        """Returns gangs of which members are there that ran when another one was evicted."""
        ...


Workload = TypeVar("Workload", bound=PooledWorkload)
History = TypeVar("History", bound=GangsInPart)


class PooledScenario(Generic[Workload, History]):
    """The nodes and workloads of one scenario, and its checks."""

    invariant: ClassVar[str]
    domain: ClassVar[str]
    """The domain whose leader decides."""

    def __init__(
        self, context: RunContext, workloads: PooledWorkloads[Workload], history: History, rng: random.Random, pool: str
    ) -> None:
        self.context, self.history, self.rng, self.pool = context, history, rng, pool
        self._workloads = workloads
        self.nodes: list[str] = []

    async def until(self, holds: Callable[[], bool], limit_s: float) -> bool:
        await self.context.until(holds, limit_s)
        return holds()

    def leader(self) -> Process | None:
        return leader(self.context, self.domain)

    async def kill_leader(self) -> bool:
        """Kills the process that leads, and starts another one. Returns False if none leads."""
        process = self.leader()
        if process is None:
            return False
        await self.context.replicas.kill(process)
        self.context.replicas.start()
        return True

    async def must_run(self, workload: Workload, why: str, within_s: float) -> None:
        """Reports a violation if not all pods of the workload run in time."""
        before = self.leader()
        if within_s >= LED_S:
            await self.until(lambda: self.leader() is not None, LED_S)
            await self.context.until_in_use(self.nodes[0])  # a new leader may wait for an event of a node
        if not await self.until(lambda: self._workloads.runs(workload), within_s):
            what = f"{self.invariant}: not all pods of {workload.name} run {within_s:g} s after {why}"
            self.report(before, what, within_s)

    async def must_be_whole(self) -> None:
        """Reports gangs that stay in part."""
        if not await self.until(lambda: not self.history.in_part(), LED_S + GIVES_S):
            self.context.bind_checker.report_violation(f"{self.invariant}: {self.history.in_part()} stay in part")

    def report(self, before: Process | None, what: str, within_s: float) -> None:
        """Reports a violation, unless the leader has changed or misses events; a change is expected within LED_S."""
        now = self.leader()
        is_led = now is not None and not now.program.handover.waiting() and (now is before or within_s >= LED_S)
        if is_led and sees_objects(self.context):
            self.context.bind_checker.report_violation(what)

    def answer(self, workload: Workload, what: str, answer: Response, *, member: int = 0) -> str:
        """Answers writes to a member's `eviction` or `status` so. Returns the key of `faults.answers`."""
        pod = self._workloads.pods_of(workload)[member]
        key = f"{pods_path(NAMESPACE)}/{pod.name}/{what}"
        self.context.faults.answers[key] = answer
        return key


Scenario = TypeVar("Scenario", bound=PooledScenario[Any, Any])


async def run_scenarios(
    context: RunContext,
    struck: Counter[str],
    names: list[str],
    scenarios: Mapping[str, Callable[[Scenario], Awaitable[bool]]],
    new: Callable[[], Scenario],
    rng: random.Random,
) -> None:
    """Runs the scenarios of these names, in a drawn order, one after the other. `new`: returns the object that each works with."""
    for name in rng.sample(names, len(names)):
        scenario = new()
        struck[name] += await scenarios[name](scenario)
        context.faults.answers.clear()
        context.faults.unanswered.clear()
        await scenario.must_be_whole()
        await scenario._workloads.clear(scenario.pool, scenario.nodes)
        await context.pause(LAST_S, LAST_S)
