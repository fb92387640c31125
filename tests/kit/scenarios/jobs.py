"""Scenarios of jobs in units: own nodes, then serverless ones, with policies, providers that fail, and deadlines.

Runs from SERVERLESS_FROM on have a sample of them, in an order drawn from the seed, after all disruptions: half of them with an even
seed, the other half with an odd one. `UnitHistory` judges each bind; a scenario reports what does not happen in time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from multisched.model.object_kinds import ObjectKind
from tests.kit.checkers.api.unit_history import LATER_S, UnitHistory
from tests.kit.disruptions.run_context import RunContext
from tests.kit.processes.process import Process
from tests.kit.scenarios.dedicated_nodes import leader
from tests.kit.scenarios.steps import sees_objects
from tests.kit.settings.setting import SERVERLESS_DOMAIN
from tests.kit.world.api_user import NAMESPACE
from tests.kit.world.labels import UNIT
from tests.kit.world.unit_workloads import JOB, OWN, REPLICA_SET, UnitWorkload, UnitWorkloads

RUNS_S: Final = 14.0
"""Time until pods run that have room, at most: they have been tried before, and back off."""
LED_S: Final = 40.0
"""Time until a process leads after another one was killed: its lease expires first."""
SEEN_S: Final = 10.0
"""Time until each process has seen an object."""
SERVERLESS: Final = ("vk-a", "vk-b")


def unit(name: str, **more: Any) -> dict[str, Any]:
    """Returns a unit of a policy, of the nodes with this label UNIT."""
    return {"nodeSelector": {UNIT: name}, **more}


class JobScenario:
    """The nodes, policy and workloads of one scenario, and its checks."""

    def __init__(self, context: RunContext, units: UnitWorkloads, history: UnitHistory, rng: random.Random) -> None:
        self.context, self.units, self.history, self.rng = context, units, history, rng
        self.pool = units.pool()
        self.nodes: list[str] = []

    async def node(self, unit: str = OWN, cpu: int = 2) -> str:
        name = await self.units.node(self.pool, unit, cpu=cpu)
        self.nodes.append(name)
        return name

    async def policy(self, *units: Mapping[str, Any], **more: Any) -> bool:
        """Creates or replaces the policy. Returns False if not every process sees it in time."""
        await self.units.policy(self.pool, units, **more)
        return await self.until(lambda: self._is_seen(units), SEEN_S)

    def _is_seen(self, units: Sequence[Mapping[str, Any]]) -> bool:
        found = [
            process.program.cache.objects.get(ObjectKind.RESOURCE_POLICY, NAMESPACE, self.pool)
            for process in self.context.replicas.running
        ]
        return all(one is not None and getattr(one, "spec", {}).get("units") == list(units) for one in found)

    async def settled(self) -> None:
        """Waits until each leader uses the nodes, and until `UnitHistory` takes everything as known."""
        await self.context.until_in_use(self.nodes[0])
        await self.context.pause(7.0, 8.0)

    def workload(self, replicas: int, **more: Any) -> UnitWorkload:
        return self.units.workload(self.pool, replicas, **more)

    async def until(self, holds: Callable[[], bool], limit_s: float) -> bool:
        await self.context.until(holds, limit_s)
        return holds()

    async def kill_leader(self) -> bool:
        """Kills the process that leads, and starts another one. Returns False if none leads."""
        process = leader(self.context, SERVERLESS_DOMAIN)
        if process is None:
            return False
        self.history.is_order_sure = False
        await self.context.replicas.kill(process)
        self.context.replicas.start()
        return True

    async def must_run(self, workload: UnitWorkload, why: str, within_s: float) -> bool:
        """Reports a violation if not all pods of the workload run in time."""
        return await self.must(lambda: self.units.runs(workload), f"not all pods of {workload.name} run: {why}", within_s)

    async def must(self, holds: Callable[[], bool], what: str, within_s: float) -> bool:
        """Reports a violation if it does not come to hold in time, unless the leader changes or misses events."""
        before = leader(self.context, SERVERLESS_DOMAIN)
        if within_s >= LED_S:
            await self.until(lambda: leader(self.context, SERVERLESS_DOMAIN) is not None, LED_S)
            await self.context.until_in_use(self.nodes[0])  # a new leader may wait for an event of a node
        if await self.until(holds, within_s):
            return True
        self._report(before, f"I16: after {within_s:g} s {what}", within_s)
        return False

    def _report(self, before: Process | None, what: str, within_s: float) -> None:
        now = leader(self.context, SERVERLESS_DOMAIN)
        is_led = now is not None and not now.program.handover.waiting() and (now is before or within_s >= LED_S)
        if is_led and sees_objects(self.context):
            self.context.bind_checker.report_violation(what)

    def in_units(self, workload: UnitWorkload) -> Counter[str]:
        """Returns how many of its pods are in each unit."""
        return Counter(self.units.unit_of(pod) for pod in self.units.pods_of(workload))


Scenario = Callable[[JobScenario], Awaitable[bool]]
"""Returns False if it did not come to its event."""


async def run_job_scenarios(context: RunContext, struck: Counter[str]) -> None:
    """Runs half of the scenarios, one after the other."""
    units, history = context.world.units, context.bind_checker.units
    if units is None or history is None:
        return
    context.faults.is_on = False
    rng = random.Random(f"{context.seed}/job scenarios")
    await context.until(lambda: leader(context, SERVERLESS_DOMAIN) is not None, LED_S)
    names = drawn_names(context.seed)
    for name in rng.sample(names, len(names)):
        scenario = JobScenario(context, units, history, rng)
        history.is_order_sure = True
        struck[name] += await SCENARIOS[name](scenario)
        history.is_order_sure, history.ordered = False, ""
        context.faults.answers.clear()
        context.faults.bind_answers.clear()
        await context.pause(LATER_S, LATER_S + 1.0)  # until doubts are judged
        await units.clear(scenario.pool, scenario.nodes)


# -- order and max -----------------------------------------------------------------------------------------------------------


async def _fill_in_order(scenario: JobScenario) -> bool:
    """Pods fill own nodes, then a serverless unit; pods end, and others take their places."""
    await scenario.node()
    await scenario.node()
    await scenario.node("vk-a", 64)
    if not await scenario.policy(unit(OWN), unit("vk-a")):
        return False
    await scenario.settled()
    workload = scenario.workload(scenario.rng.randint(10, 14), owner=scenario.rng.choice((JOB, REPLICA_SET)))
    if not await scenario.must_run(workload, "own nodes and a serverless unit have room", RUNS_S):
        return False
    own = [pod for pod in scenario.units.pods_of(workload) if scenario.units.unit_of(pod) == OWN]
    for pod in own[: scenario.rng.randint(1, 3)]:
        await scenario.units.delete(pod)
    await scenario.must_run(workload, "pods were deleted", RUNS_S)
    await scenario.context.pause(7.0, 8.0)
    workload.replicas += 3
    await scenario.must_run(workload, "it has grown", RUNS_S)
    return len(own) == 8


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "units filled in order": _fill_in_order,
}


def drawn_names(seed: int) -> list[str]:
    """Returns the names of the scenarios of this seed."""
    return sorted(SCENARIOS)[seed % 2 :: 2] or sorted(SCENARIOS)
