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
from tests.kit.settings.setting import RESERVING_DOMAIN, RESERVING_SCHEDULER
from tests.kit.world.gang_acts import GROUPED
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
class Stage:
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
        return next(
            (
                process
                for process in self.context.replicas.running
                for worker in process.program.router.workers()
                if worker.name == RESERVING_DOMAIN and worker.is_leading
            ),
            None,
        )

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

    async def starts(self, within_s: float, *gangs: GangWorkload) -> None:
        """Waits until one of the gangs starts. Reports a violation if none does."""
        before = self.leader()
        is_over = await self.gangs.until(lambda: any(map(self.has_started, gangs)), within_s)
        if not is_over and before is self.leader() and before is not None:
            names = " and ".join(gang.plan.name for gang in gangs)
            self.complain(f"gang {names} has not started {within_s:g} s after it could")

    async def is_given_up(self, gang: GangWorkload) -> None:
        """Waits until the stream uses the capacity that was reserved for the gang. Reports a violation if it does not."""
        before = self.leader()
        full = CPU * self.nodes
        is_over = await self.gangs.until(
            lambda: not self.is_reserved_for(gang) and self.stream.running() == full, RELEASED_S
        )
        if not is_over and before is self.leader() and before is not None:
            found = f"{self.stream.running()} of {full} small pods run"
            self.complain(f"room is not given up that was reserved for gang {gang.plan.name}: {found}")

    def complain(self, what: str) -> None:
        if not self.context.bind_checker.was_restored:
            self.context.bind_checker.complain(f"I13: {what}")


Turn = Callable[[Stage], Awaitable[None]]


async def play_turns(context: RunContext, struck: Counter[str]) -> None:
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
        struck[name] += await _play(Stage(context, gangs, policy, rng, pool, stream, nodes), SCENARIOS[name])


async def _play(stage: Stage, turn: Turn) -> bool:
    """Runs the scenario with its stream. Returns False if the stream does not use its nodes."""
    stream = stage.stream
    flowing = asyncio.ensure_future(stream.flow())
    try:
        is_full = await stage.gangs.until(lambda: stream.running() == CPU * stage.nodes, FILLED_S)
        if is_full:
            await turn(stage)
    finally:
        flowing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await flowing
    await stream.clear()
    return is_full


async def _alone(stage: Stage) -> None:
    """Creates one gang, which may have more members than it needs."""
    gang = await stage.gang(extra=stage.rng.randint(0, 1))
    await stage.starts(stage.in_time_s, gang)


async def _one_after_the_other(stage: Stage) -> None:
    """Creates two gangs. While the first one runs, the capacity that the second one reserves does not become free."""
    gangs = [await stage.gang(), await stage.gang()]
    await stage.starts(stage.in_time_s, *gangs)
    first = next((gang for gang in gangs if stage.has_started(gang)), None)
    if first is None:
        return
    (second,) = (gang for gang in gangs if gang is not first)
    await stage.gangs.pause(1.5 * stage.policy.for_s)
    first.replicas = 0
    await stage.gangs.delete_members(first)
    await stage.starts(2 * stage.policy.for_s + CLEARED_S, second)


async def _beside_a_hopeless_one(stage: Stage) -> None:
    """Creates an urgent gang whose members fit on no node, and another gang: each gets a turn."""
    hopeless = await stage.gangs.gang(stage.pool, 2, 2, cpu=str(CPU + 1), is_urgent=True, scheduler=RESERVING_SCHEDULER)
    gang = await stage.gang()
    await stage.starts(stage.in_time_s + 2 * stage.policy.for_s, gang)
    hopeless.replicas = 0
    await stage.gangs.delete_members(hopeless)


async def _in_vain(stage: Stage) -> None:
    """Keeps one small pod until a reservation has ended; the stream uses the capacity during the pause."""
    stage.stream.last()
    gang = await stage.gang()
    if not await stage.gangs.until(lambda: stage.is_reserved_for(gang), stage.in_time_s):
        stage.complain(f"no room is reserved for gang {gang.plan.name}")
        return
    await stage.gangs.until(lambda: not stage.is_reserved_for(gang), stage.policy.for_s + RELEASED_S)
    await stage.is_given_up(gang)
    await stage.gangs.pause(stage.policy.for_s)
    stage.stream.lasting.clear()
    await stage.starts(2 * stage.policy.for_s + CLEARED_S, gang)


async def _changed(stage: Stage) -> None:
    """Makes a gang unable to start while capacity is reserved for it."""
    stage.stream.last()
    gang = await stage.gang(is_grouped=True)
    if not await stage.gangs.until(lambda: stage.is_reserved_for(gang), stage.in_time_s):
        stage.complain(f"no room is reserved for gang {gang.plan.name}")
        return
    await stage.gangs.pause(stage.policy.for_s / 4)
    kind = stage.rng.randrange(3)
    if kind == 0:
        gang.is_kept = False
        await stage.gangs.delete_members(gang, 1)
    elif kind == 1:
        await stage.gangs.delete_group(gang)
    else:
        await stage.gangs.edit_group(gang, minimum=stage.nodes + 1)
    await stage.is_given_up(gang)
    gang.is_kept, gang.replicas = True, 0
    await stage.gangs.delete_members(gang)


async def _led_by_another(stage: Stage) -> None:
    """Stops or kills the leader while capacity is reserved."""
    stage.stream.last()
    gang = await stage.gang()
    leader = stage.leader()
    if leader is None or not await stage.gangs.until(lambda: stage.is_reserved_for(gang), stage.in_time_s):
        return
    replicas = stage.context.replicas
    await (replicas.kill if stage.rng.random() < 0.5 else replicas.stop)(leader)
    replicas.start()
    if not await stage.gangs.until(lambda: stage.leader() is not None, LED_S):
        return
    await stage.gangs.pause(2 * stage.policy.for_s)
    stage.stream.lasting.clear()
    await stage.starts(2 * stage.policy.for_s + stage.in_time_s, gang)


SCENARIOS: Final[Mapping[str, Turn]] = {
    "gang beside a stream": _alone,
    "two gangs beside a stream": _one_after_the_other,
    "gang beside a stream and a gang that fits nowhere": _beside_a_hopeless_one,
    "gang beside a stream and a pod that lasts": _in_vain,
    "gang changed during its reservation": _changed,
    "leader replaced during a reservation": _led_by_another,
}
