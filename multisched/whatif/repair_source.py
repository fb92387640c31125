"""Repair plans of a running program: the cluster is copied, and the domain's plugin plans on the copy.

`RepairPlans` implements `observe.repair_view.RepairSource`, and is used by a controller, too. The program's state is
copied in one synchronous step on its loop. A thread builds the sandbox and makes the plan, one plan at a time. It
delays nothing, not even the program's shutdown, and writes nothing. Callers that have a sandbox use `plan_on` directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from multisched.framework.background import InThread
from multisched.framework.leading import FindLeader, led_here, require_led
from multisched.framework.moving import RepairExecutor, RepairStatus
from multisched.framework.registry import Registry, implements
from multisched.framework.repair import RepairingPlugin, RepairPlan, RepairRefusedError, RepairRequest
from multisched.shell.domain import DomainWorker
from multisched.shell.program import Program
from multisched.shell.repairs import PlanRepair
from multisched.shell.workers.background_threads import BackgroundThreads
from multisched.whatif.repair_choice import choose

if TYPE_CHECKING:
    from multisched.whatif.sandbox import ClusterSnapshot

QUESTIONS_MAX = 4
"""Limit of plans that wait or are being made; further queries get a 429."""


class RepairPlans:
    """Makes repair plans for queries to a running program."""

    def __init__(
        self,
        program: Program,
        registry: Registry | None = None,
        in_thread: InThread | None = None,
        find_leader: FindLeader = led_here,
    ) -> None:
        """`in_thread`: another way to compute, for simulations."""
        self._program = program
        self._find_leader = find_leader
        self._registry = registry
        self._in_thread = in_thread if in_thread is not None else BackgroundThreads()
        self._stage = anyio.Lock()
        self._questions = 0

    async def plan(self, asked: RepairRequest) -> RepairPlan:
        """See `RepairSource`."""
        self._choose(asked.domain)
        if self._questions >= QUESTIONS_MAX:
            raise RepairRefusedError("too many plans at once; retry in a moment", status=429)
        if not self._program.is_ready:
            raise RepairRefusedError("the caches are not synced with the API server yet; retry", status=503)
        self._questions += 1
        try:
            async with self._stage:
                # Imported by the first plan, as explanations are by the first query.
                from multisched.whatif.sandbox import ClusterSnapshot

                snapshot = ClusterSnapshot.of(self._program)
                return await self._in_thread(lambda: self._planned(snapshot, asked))
        finally:
            self._questions -= 1

    def status(self, domain: str) -> RepairStatus:
        """See `RepairSource`."""
        return self._executor(domain).repair_status()

    async def run(self, asked: RepairRequest, digest: str) -> RepairStatus:
        """See `RepairSource`."""
        return await self._executor(asked.domain).request_repair(asked, digest)

    def _executor(self, domain: str) -> RepairExecutor:
        worker, plugin = self._choose(domain)
        if not implements(plugin, RepairExecutor):
            raise RepairRefusedError(f"domain {worker.name}: {plugin.name} plans repairs but cannot execute them", 409)
        return plugin

    def _choose(self, domain: str) -> tuple[DomainWorker, RepairingPlugin]:
        worker, plugin = choose(self._program, domain)
        require_led(self._find_leader, worker.name)
        return worker, plugin

    def _planned(self, snapshot: ClusterSnapshot, asked: RepairRequest) -> RepairPlan:
        from multisched.whatif.repair_trial import plan_on
        from multisched.whatif.sandbox import trial

        with trial(self._program.configuration, snapshot, self._registry) as sandbox:
            return plan_on(sandbox, asked)


def plans_of(program: Program) -> PlanRepair:
    """Returns the function that plans the repairs for the program's own background tasks."""
    threads = program.ports.background_threads
    return RepairPlans(program, program.ports.registry, threads() if threads else None).plan
