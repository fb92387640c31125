"""Scenarios of gangs that compete with a stream of small pods of their priority: each gets a turn to reserve capacity, and starts
in time.

They are run if gangs may reserve (`Setting.reserve`), after all disruptions. That reservations are one at a time, limited and
followed by a pause is always checked (`checkers/api/reservation_history.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from multisched.framework.gangs import ReservePolicy
from tests.kit.disruptions.run_context import RunContext
from tests.kit.processes.process import Process
from tests.kit.scenarios.steps import leaders
from tests.kit.settings.setting import RESERVING_DOMAIN, RESERVING_SCHEDULER
from tests.kit.world.gang_actions import GROUPED
from tests.kit.world.gang_workloads import GangWorkload, GangWorkloads
from tests.kit.world.pod_streams import PodStream

TURNS: Final = (1, 2)
"""Minimum and maximum number of scenarios in a run."""
CPU: Final = 2
"""CPUs of each node, and of each member."""
FILLED_S: Final = 20.0
"""Time until a stream uses its nodes. If it does not, the scenario is skipped: no process leads."""
CLEARED_S: Final = 20.0
"""Time from the begin of a reservation to the start of its gang: the last small pod ends, and a backoff of 10 s."""
LED_S: Final = 45.0
"""Time until another process leads: a lease expires, then the last binds and a list are awaited."""
RELEASED_S: Final = 10.0
"""Time until the end of a reservation is written."""


@dataclass(slots=True)
class StreamScenario:
    """One pool of nodes with its stream of pods."""

    context: RunContext
    gangs: GangWorkloads
    policy: ReservePolicy
    rng: random.Random
    pool: str
    stream: PodStream
    nodes: int

    @property
    def in_time_s(self) -> float:
        """The longest time that a gang waits if it can be tried and no other gang waits."""
        return self.policy.after_s + CLEARED_S

    def leader(self) -> Process | None:
        """Returns the process that leads the domain of these gangs; None for none."""
        return next((process for process, _ in leaders(self.context, RESERVING_DOMAIN)), None)

    async def gang(self, *, extra: int = 0, is_grouped: bool = False) -> GangWorkload:
        """Creates a gang that needs all nodes of the pool, with `extra` more members. Returns when all its members exist."""
        gang = await self.gangs.gang(
            self.pool,
            self.nodes + extra,
            self.nodes,
            cpu=str(CPU),
            form=GROUPED if is_grouped else None,
            scheduler=RESERVING_SCHEDULER,
        )
        await self.gangs.until(lambda: len(self.gangs.members(gang)) == gang.replicas)
        return gang

    def has_started(self, gang: GangWorkload) -> bool:
        return len(self.gangs.running(gang)) >= gang.plan.minimum

    def is_reserved_for(self, gang: GangWorkload) -> bool:
        return any(pod.nominated_node and not pod.node for pod in self.gangs.members(gang))

    async def expect_start(self, within_s: float, *gangs: GangWorkload) -> None:
        """Waits until one of the gangs starts. Reports a violation if none does."""
        before = self.leader()
        is_over = await self.gangs.until(lambda: any(map(self.has_started, gangs)), within_s)
        if not is_over and before is self.leader() and before is not None:
            names = " and ".join(gang.plan.name for gang in gangs)
            self.report_violation(f"gang {names} has not started {within_s:g} s after it could")

    async def expect_release(self, gang: GangWorkload) -> None:
        """Waits until the stream uses the capacity that was reserved for the gang. Reports a violation if it does not."""
        before = self.leader()
        full = CPU * self.nodes
        is_over = await self.gangs.until(
            lambda: not self.is_reserved_for(gang) and self.stream.running() == full, RELEASED_S
        )
        if not is_over and before is self.leader() and before is not None:
            found = f"{self.stream.running()} of {full} small pods run"
            self.report_violation(f"room is not given up that was reserved for gang {gang.plan.name}: {found}")

    def report_violation(self, what: str) -> None:
        if not self.context.bind_checker.was_restored:
            self.context.bind_checker.report_violation(f"I13: {what}")


Turn = Callable[[StreamScenario], Awaitable[None]]


async def run_turn_scenarios(context: RunContext, struck: Counter[str]) -> None:
    """Runs some scenarios, one after the other."""
    gangs, policy = context.world.gang_workloads, context.setting.reserve
    if gangs is None or policy is None:
        return
    rng = random.Random(f"{context.seed}/turns")
    for name in rng.sample(sorted(SCENARIOS), rng.randint(*TURNS)):
        pool, nodes = gangs.pool(), rng.randint(2, 3)
        for _ in range(nodes):
            await gangs.node(pool, CPU, domain=RESERVING_DOMAIN)
        stream = PodStream(gangs, pool, RESERVING_SCHEDULER, rng)
        struck[name] += await _run(StreamScenario(context, gangs, policy, rng, pool, stream, nodes), SCENARIOS[name])


async def _run(scenario: StreamScenario, turn: Turn) -> bool:
    """Runs the scenario with its stream. Returns False if the stream does not use its nodes."""
    stream = scenario.stream
    flowing = asyncio.ensure_future(stream.flow())
    try:
        is_full = await scenario.gangs.until(lambda: stream.running() == CPU * scenario.nodes, FILLED_S)
        if is_full:
            await turn(scenario)
    finally:
        flowing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await flowing
    await stream.clear()
    return is_full


async def _one_gang(scenario: StreamScenario) -> None:
    """Creates one gang, which may have more members than it needs."""
    gang = await scenario.gang(extra=scenario.rng.randint(0, 1))
    await scenario.expect_start(scenario.in_time_s, gang)


async def _two_gangs(scenario: StreamScenario) -> None:
    """Creates two gangs. While the first one runs, the capacity that the second one reserves does not become free."""
    gangs = [await scenario.gang(), await scenario.gang()]
    await scenario.expect_start(scenario.in_time_s, *gangs)
    first = next((gang for gang in gangs if scenario.has_started(gang)), None)
    if first is None:
        return
    (second,) = (gang for gang in gangs if gang is not first)
    await scenario.gangs.pause(1.5 * scenario.policy.for_s)
    first.replicas = 0
    await scenario.gangs.delete_members(first)
    await scenario.expect_start(2 * scenario.policy.for_s + CLEARED_S, second)


async def _with_unplaceable_gang(scenario: StreamScenario) -> None:
    """Creates an urgent gang whose members fit on no node, and another gang: each gets a turn."""
    unplaceable = await scenario.gangs.gang(
        scenario.pool, 2, 2, cpu=str(CPU + 1), is_urgent=True, scheduler=RESERVING_SCHEDULER
    )
    gang = await scenario.gang()
    await scenario.expect_start(scenario.in_time_s + 2 * scenario.policy.for_s, gang)
    unplaceable.replicas = 0
    await scenario.gangs.delete_members(unplaceable)


async def _expired_reservation(scenario: StreamScenario) -> None:
    """Keeps one small pod until a reservation has ended; the stream uses the capacity during the pause."""
    scenario.stream.last()
    gang = await scenario.gang()
    if not await scenario.gangs.until(lambda: scenario.is_reserved_for(gang), scenario.in_time_s):
        scenario.report_violation(f"no room is reserved for gang {gang.plan.name}")
        return
    await scenario.gangs.until(lambda: not scenario.is_reserved_for(gang), scenario.policy.for_s + RELEASED_S)
    await scenario.expect_release(gang)
    await scenario.gangs.pause(scenario.policy.for_s)
    scenario.stream.lasting.clear()
    await scenario.expect_start(2 * scenario.policy.for_s + CLEARED_S, gang)


async def _changed_gang(scenario: StreamScenario) -> None:
    """Makes a gang unable to start while capacity is reserved for it."""
    scenario.stream.last()
    gang = await scenario.gang(is_grouped=True)
    if not await scenario.gangs.until(lambda: scenario.is_reserved_for(gang), scenario.in_time_s):
        scenario.report_violation(f"no room is reserved for gang {gang.plan.name}")
        return
    await scenario.gangs.pause(scenario.policy.for_s / 4)
    kind = scenario.rng.randrange(3)
    if kind == 0:
        gang.is_active = False
        await scenario.gangs.delete_members(gang, 1)
    elif kind == 1:
        await scenario.gangs.delete_group(gang)
    else:
        await scenario.gangs.edit_group(gang, minimum=scenario.nodes + 1)
    await scenario.expect_release(gang)
    gang.is_active, gang.replicas = True, 0
    await scenario.gangs.delete_members(gang)


async def _new_leader(scenario: StreamScenario) -> None:
    """Stops or kills the leader while capacity is reserved."""
    scenario.stream.last()
    gang = await scenario.gang()
    leader = scenario.leader()
    if leader is None or not await scenario.gangs.until(lambda: scenario.is_reserved_for(gang), scenario.in_time_s):
        return
    replicas = scenario.context.replicas
    await (replicas.kill if scenario.rng.random() < 0.5 else replicas.stop)(leader)
    replicas.start()
    if not await scenario.gangs.until(lambda: scenario.leader() is not None, LED_S):
        return
    await scenario.gangs.pause(2 * scenario.policy.for_s)
    scenario.stream.lasting.clear()
    await scenario.expect_start(2 * scenario.policy.for_s + scenario.in_time_s, gang)


SCENARIOS: Final[Mapping[str, Turn]] = {
    "gang beside a stream": _one_gang,
    "two gangs beside a stream": _two_gangs,
    "gang beside a stream and a gang that fits nowhere": _with_unplaceable_gang,
    "gang beside a stream and a pod that lasts": _expired_reservation,
    "gang changed during its reservation": _changed_gang,
    "leader replaced during a reservation": _new_leader,
}
