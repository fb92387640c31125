"""The arrivals and disruptions of one run, in the order in which they were drawn.

`struck` counts what happened; a disruption that found nothing to disrupt does not count.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

from tests.kit.disruptions.catalog import BY_NAME
from tests.kit.disruptions.run_context import RunContext
from tests.kit.processes.configuration_files import LATE_MAX_S, FileFollower
from tests.kit.run.endings import NotQuarantined, end
from tests.kit.scenarios import edits, rare_moments
from tests.kit.scenarios.gang_turns import run_turn_scenarios
from tests.kit.scenarios.jobs import run_job_scenarios
from tests.kit.scenarios.loans import run_loan_scenarios
from tests.kit.scenarios.tides import run_tide_scenarios
from tests.kit.settings import changed_files
from tests.kit.settings.setting import LENT_FROM, RARE_FROM
from tests.kit.world.gang_actions import ACTIONS
from tests.kit.world.gang_workloads import GangWorkloads
from tests.kit.world.workloads import Workloads

FAULTS_S = 30.0
"""Virtual seconds in which pods arrive and disruptions begin; lasting disruptions may end later."""
LULL = 10
"""The pauses are computed for at least this number of disruptions: few are not spread over the whole time."""
CLEARED_EVERY_S = 4.0
ACTIONS_WITH_FAULTS = (1, 3)
ACTIONS_WITHOUT_FAULTS = (2, 3)
"""Number of actions on gangs after all disruptions: their results are known more exactly."""
KILLED = "leader killed"
BURSTS = (1, 1, 5, 20, 40)


class FaultSchedule:
    """The arrivals and disruptions of one run."""

    def __init__(self, context: RunContext, kinds: Sequence[str], not_quarantined: NotQuarantined) -> None:
        """`kinds`: names of disruptions, in their order."""
        self._context = context
        self._setting = context.setting
        self._rng = context.rng
        self._kinds = kinds
        self._not_quarantined = not_quarantined
        self._workloads = Workloads(context.world, context.seed)
        self.struck: Counter[str] = Counter()

    async def run(self) -> None:
        """Runs all. Returns when the last disruption is over."""
        kinds = self._kinds
        tasks = [asyncio.ensure_future(self._arrive()), asyncio.ensure_future(self._roll_out())]
        world = self._context.world
        tasks += [
            asyncio.ensure_future(one.run(self.struck))
            for one in (world.quotas, world.gangs, world.cards)
            if one is not None
        ]
        if world.gang_workloads is not None:
            tasks.append(asyncio.ensure_future(self._change_gangs(world.gang_workloads, ACTIONS_WITH_FAULTS)))
        for kind in kinds:
            await asyncio.sleep(self._rng.uniform(0.1, 2 * FAULTS_S / max(len(kinds), LULL)))
            tasks.append(asyncio.ensure_future(self._strike(kind)))
        if self._setting.is_reloaded and not (self._setting.is_edited or self._setting.has_tide):
            tasks.append(asyncio.ensure_future(self._change_file()))
        clearing = asyncio.ensure_future(self._clear())
        try:
            await asyncio.gather(*tasks)
            clearing.cancel()
            if world.gang_workloads is not None:
                self._context.faults.is_on = False
                await self._change_gangs(world.gang_workloads, ACTIONS_WITHOUT_FAULTS)
            await run_turn_scenarios(self._context, self.struck)
            scenarios = rare_moments if RARE_FROM <= self._context.seed < LENT_FROM else edits
            await edits.run_scenarios(self._context, self.struck, scenarios.SCENARIOS)
            await run_tide_scenarios(self._context, self.struck)
            await run_job_scenarios(self._context, self.struck)
            await run_loan_scenarios(self._context, self.struck)
            await end(self._context, self.struck, self._not_quarantined)
        finally:
            for task in [*tasks, clearing]:
                task.cancel()

    async def _strike(self, kind: str) -> None:
        self.struck[kind] += await BY_NAME[kind].action(self._context)

    async def _change_gangs(self, gangs: GangWorkloads, count: tuple[int, int]) -> None:
        """Applies actions to gangs that controllers own, one after the other."""
        for _ in range(gangs.rng.randint(*count)):
            name = gangs.rng.choice(sorted(ACTIONS))
            await ACTIONS[name](gangs)
            self.struck[name] += 1

    async def _change_file(self) -> None:
        """Changes the configuration file; once a leader is killed when some processes have seen a change.

        Invalid versions before the last valid one also remain for a while.
        """
        context, rng = self._context, random.Random(f"{self._context.seed}/files")
        files = changed_files.drawn(rng, self._setting)
        killing_at = rng.randrange(2 * len(files)) if self._setting.configuration.lease.enabled else -1
        for number, file in enumerate(files):
            await asyncio.sleep(rng.uniform(0.5, 2 * FAULTS_S / len(files)))
            context.replicas.change_file(file)
            self.struck["configuration changed" if file.is_good else "configuration mistaken"] += 1
            if number == killing_at:
                await asyncio.sleep(rng.uniform(0.0, LATE_MAX_S))
                self.struck[KILLED] += await BY_NAME[KILLED].action(context)
        await asyncio.sleep(FileFollower.rest_s())

    async def _clear(self) -> None:
        while True:
            await asyncio.sleep(CLEARED_EVERY_S)
            await self._context.world.crowds.clear(self._context.clock.now().timestamp())

    async def _arrive(self) -> None:
        left = self._setting.arrivals
        while left:
            burst = min(left, self._rng.choice(BURSTS))
            left -= burst
            for _ in range(burst):
                await self._context.world.add_pod()
            await asyncio.sleep(self._rng.uniform(0.0, FAULTS_S / 8))

    async def _roll_out(self) -> None:
        """Creates workloads one after the other, each in two rounds."""
        for number in range(self._setting.workloads):
            await asyncio.sleep(self._rng.uniform(0.2, FAULTS_S / 5))
            self.struck[await self._workloads.create(number)] += 1
            await asyncio.sleep(self._rng.uniform(0.5, FAULTS_S / 6))
            await self._workloads.repeat(number)
