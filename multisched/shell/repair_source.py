"""Repair plans of a running program, and of a dump: the cluster is copied, and the domain's plugin plans on the copy.

`RepairPlans` implements `observe.repair_view.RepairSource`, and is what a controller asks, too. What is known is taken from the
program in one synchronous step on its loop; the copy is built, and the plan made, in a thread that holds up nothing, the end of
the program included: one plan at a time, nothing is written. `plan_on` is the whole of it, for who has a copy already.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import anyio

from multisched.config_schema import Configuration
from multisched.framework.background import InThread
from multisched.framework.moving import CarriesOutRepairs, RepairStatus
from multisched.framework.registry import Registry, implements
from multisched.framework.repair import RepairAsked, RepairingPlugin, RepairPlan, RepairRefusedError
from multisched.shell.domain import DomainWorker
from multisched.shell.duty_threads import DutyThreads
from multisched.shell.program import Program

if TYPE_CHECKING:
    from multisched.shell.rehearsal import Moment

QUESTIONS_MAX = 4
"""Plans that wait for their turn or are being made; who comes then is told to ask again."""


class RepairPlans:
    """See the module."""

    def __init__(
        self,
        program: Program,
        configuration: Configuration,
        registry: Registry | None = None,
        in_thread: InThread | None = None,
    ) -> None:
        """`in_thread`: another way to compute, for simulations."""
        self._program = program
        self._configuration = configuration
        self._registry = registry
        self._in_thread = in_thread if in_thread is not None else DutyThreads()
        self._stage = anyio.Lock()
        self._questions = 0

    async def plan(self, asked: RepairAsked) -> RepairPlan:
        """Raises RepairRefusedError."""
        choose(self._program, asked.domain)
        if self._questions >= QUESTIONS_MAX:
            raise RepairRefusedError("too many plans are asked for at once; ask again in a moment", status=429)
        if not self._program.is_ready:
            raise RepairRefusedError("the caches are not in step with the API server yet; ask again", status=503)
        self._questions += 1
        try:
            from multisched.shell.rehearsal import Moment

            async with self._stage:
                moment = Moment.of(self._program)
                return await self._in_thread(lambda: self._planned(moment, asked))
        finally:
            self._questions -= 1

    def status(self, domain: str) -> RepairStatus:
        """How repair of a domain stands. Raises RepairRefusedError."""
        return self._carrying(domain).repair_status()

    async def run(self, asked: RepairAsked, digest: str) -> RepairStatus:
        """Has a plan carried out that was shown. Raises RepairRefusedError."""
        return await self._carrying(asked.domain).request_repair(asked, digest)

    def _carrying(self, domain: str) -> CarriesOutRepairs:
        worker, plugin = choose(self._program, domain)
        if not implements(plugin, CarriesOutRepairs):
            raise RepairRefusedError(f"domain {worker.name}: {plugin.name} plans repairs and carries none out", 409)
        return plugin

    def _planned(self, moment: Moment, asked: RepairAsked) -> RepairPlan:
        from multisched.shell.rehearsal import Rehearsal
        from multisched.shell.repair_trial import plan_on

        return plan_on(Rehearsal(self._configuration, moment, self._registry), asked)


def choose(program: Program, domain: str) -> tuple[DomainWorker, RepairingPlugin]:
    """The domain that is meant, and its plugin that plans. Raises RepairRefusedError."""
    found = {worker.name: (worker, plugin) for worker, plugin in _repairing(program)}
    if domain in found:
        return found[domain]
    names = [worker.name for worker in program.router.workers()]
    if domain:
        near = difflib.get_close_matches(domain, found, n=1)
        hint = f"did you mean {near[0]}?" if near else f"those that can: {', '.join(found) or 'none'}"
        what = "no plugin that plans repairs" if domain in names else "no such domain"
        raise RepairRefusedError(f"domain {domain}: {what}; {hint}", status=404)
    if not found:
        raise RepairRefusedError("no domain has a plugin that plans repairs; enable PeakForecast in one", status=404)
    if len(found) > 1:
        raise RepairRefusedError(f"several domains can be repaired; name one of {', '.join(found)}")
    return next(iter(found.values()))


def _repairing(program: Program) -> list[tuple[DomainWorker, RepairingPlugin]]:
    return [
        (worker, built.plugin)
        for worker in program.router.workers()
        for built in worker.plugins.built
        if implements(built.plugin, RepairingPlugin)
    ]
