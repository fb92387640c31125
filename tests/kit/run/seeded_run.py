"""A whole-program run under a seed: nodes, pods, faults, then quiet, then the invariants.

The real `Program` (configuration, reflectors, queues, cycles, bind workers, leases, audit) runs against the real embedded
API server in process, under virtual time. `run_seed` returns a report; its `broken` is empty when every invariant held.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence

from multisched.cluster.api.server import ApiServer
from multisched.framework.gangs import ReservePolicy
from multisched.testing.sim_loop import SimClock, SimLoop, simulate
from tests.kit.checkers.api.bind_checker import BindChecker
from tests.kit.checkers.api.bind_judge import UNSEEN_LOST_MAX_S
from tests.kit.checkers.api.card_checker import CardChecker
from tests.kit.checkers.api.loan_history import LoanHistory
from tests.kit.checkers.api.reservation_history import ReservationHistory
from tests.kit.checkers.api.tide_history import TideHistory
from tests.kit.checkers.api.unit_history import UnitHistory
from tests.kit.disruptions.catalog import drawn_kinds
from tests.kit.disruptions.run_context import RunContext
from tests.kit.processes.replicas import Replicas
from tests.kit.processes.status_queries import query_status
from tests.kit.run.fault_schedule import FaultSchedule
from tests.kit.run.quiescence_checker import QuiescenceChecker
from tests.kit.run.report import Report
from tests.kit.settings.setting import (
    RESERVING_DOMAIN,
    RESERVING_SCHEDULER,
    TIDE_MIN_RUN_S,
    TIDE_NOTICE_S,
    Setting,
    drawn,
    fault_of_refusals,
    rng_of,
    serverless_units,
)
from tests.kit.wire.faults import Faults
from tests.kit.world.loan_workloads import LoanMeasures
from tests.kit.world.policies import Policies
from tests.kit.world.world import World

LOOK_S = 0.5
SHORTEST_FLUSH_S = 8.0
"""The shortest flush that a changed configuration file may set (`configurations.QUEUES`)."""
ASKED_LOOKS, ASKED_PODS = 20, 4
"""Every n-th look users query each process, about this number of pods."""


class Run:
    """One run. `stops_at_first`: it ends at the first violation."""

    def __init__(
        self, seed: int, loop: SimLoop, setting: Setting, kinds: Sequence[str], *, stops_at_first: bool
    ) -> None:
        """`kinds`: names of disruptions, in their order."""
        self._seed, self._loop, self._setting, self._stops_at_first = seed, loop, setting, stops_at_first
        self._broken: list[str] = []
        self._trace = 0
        rng, clock = random.Random(seed), SimClock(loop)
        server = ApiServer(clock, seed=seed, rbac=False)
        server.request_log = self._log
        self._faults = Faults(random.Random(seed ^ 0x5EED))
        self._faults.page_items, self._faults.bind_max_s = setting.page_items, setting.bind_max_s
        self._faults.newest = lambda: server.store.version
        policies = Policies(server, seed)
        flush_s = min(domain.queue.unschedulable_flush_s for domain in setting.configuration.domains)
        flush_s = min(flush_s, SHORTEST_FLUSH_S) if setting.is_reloaded else flush_s
        policies.flushes = lambda: int(loop.time() / flush_s)
        self._bind_checker = BindChecker(
            server,
            setting.judged,
            loop.time,
            self._broken,
            policies,
            lambda: UNSEEN_LOST_MAX_S,
            has_quotas=setting.has_quotas,
            has_gangs=setting.has_gangs,
        )
        if setting.reserve is not None:
            self._bind_checker.gangs.reservations = self._reservations(setting.reserve)
        self._world = World(
            server,
            self._bind_checker.objects,
            policies,
            clock,
            rng,
            seed,
            on_bound=self._bind_checker.on_external_bind,
            has_quotas=setting.has_quotas,
            has_gangs=setting.has_gangs,
            has_gang_workloads=setting.has_gang_workloads,
            has_linked_quotas=setting.has_linked_quotas,
            has_card_nodes=setting.has_card_nodes,
            has_tide=setting.has_tide,
            has_card_contests=setting.has_card_contests,
            has_loans=bool(setting.loans),
            units=serverless_units(seed) if setting.has_units else (),
        )
        if setting.has_tide:
            self._bind_checker.tide = TideHistory(
                self._bind_checker.pods,
                self._bind_checker.nodes,
                lambda: clock.now().timestamp(),
                self._bind_checker.report_violation,
                notice_s=TIDE_NOTICE_S,
                min_run_s=TIDE_MIN_RUN_S,
            )
            server.interceptors.append(self._bind_checker.tide)
        if setting.has_units:
            checker = self._bind_checker
            checker.units = UnitHistory(
                checker.pods, checker.nodes, lambda: clock.now().timestamp(), checker.report_violation
            )
            server.interceptors.append(checker.units)
        if setting.loans:
            checker = self._bind_checker
            checker.loans = LoanHistory(
                checker.pods, checker.nodes, lambda: clock.now().timestamp(), checker.report_violation, setting.loans
            )
            server.interceptors.append(checker.loans)
        self._world.schedulers = setting.configuration.served
        self._bind_checker.storage = self._world.storage
        if self._world.cards is not None:
            objects, report_violation = self._bind_checker.objects, self._bind_checker.report_violation
            self._bind_checker.cards = CardChecker(self._world.cards, objects, report_violation)
        self._replicas = Replicas(setting, seed, loop, rng, self._world.user.api, self._faults, self._bind_checker)
        if self._world.loans is not None:
            self._replicas.measures = LoanMeasures(self._world.loans)
        self._context = RunContext(
            seed=seed,
            setting=setting,
            loop=loop,
            clock=clock,
            rng=rng,
            server=server,
            faults=self._faults,
            world=self._world,
            bind_checker=self._bind_checker,
            replicas=self._replicas,
        )
        self._rest = QuiescenceChecker(self._context, self._is_over)
        self._schedule = FaultSchedule(self._context, kinds, self._rest.not_quarantined)

    def _reservations(self, policy: ReservePolicy) -> ReservationHistory:
        """Returns the check of reservations. Times are not checked for processes that were paused."""
        checker = self._bind_checker
        leads = checker.leases.leaders
        return ReservationHistory(
            policy,
            RESERVING_SCHEDULER,
            self._loop.time,
            checker.report_violation,
            lambda: frozenset(one for one in leads if leads[one](RESERVING_DOMAIN) and one not in checker.interrupted),
        )

    def _log(self, method: str, path: str, user: str, status: int) -> None:
        self._trace = zlib.crc32(f"{self._loop.time():.9f} {method} {path} {status}".encode(), self._trace)

    async def main(self) -> Report:
        if self._setting.is_drawn and (fault := fault_of_refusals(self._seed)):
            self._bind_checker.report_violation(fault)
        await self._world.build()
        self._replicas.split_leases()
        for _ in range(self._setting.replicas):
            self._replicas.start()
        looking = self._loop.create_task(self._look())
        self._world.storage.start()
        ending = self._loop.create_task(self._world.kubelets.run())
        controllers = [self._loop.create_task(self._world.budgets.run_controller())]
        if self._world.quotas is not None:
            controllers.append(self._loop.create_task(self._world.quotas.run_controller()))
        if self._world.gang_workloads is not None:
            controllers.append(self._loop.create_task(self._world.gang_workloads.run_controller()))
        if self._world.tides is not None:
            controllers.append(self._loop.create_task(self._world.tides.run_controller()))
        if self._world.loans is not None:
            controllers.append(self._loop.create_task(self._world.loans.run_controller()))
        if self._world.units is not None:
            controllers.append(self._loop.create_task(self._world.units.run()))
        if self._world.cards is not None:
            controllers.append(self._loop.create_task(self._world.cards.kubelets.run()))
        await self._strike()
        self._faults.is_on = False
        if self._bind_checker.was_restored:
            await self._world.repair_storage()
        quiet_s = await self._rest.wait_until_settled() if not self._is_over() else 0.0
        if not self._is_over():
            self._rest.check()
        if not self._broken:
            await self._rest.drain()
        if looking.done():
            looking.result()  # it ends by an error alone
        looking.cancel()
        self._world.storage.stop()
        ending.cancel()
        self._world.disks.close()
        self._world.kubelets.close()
        if self._world.cards is not None:
            self._world.cards.close()
        for task in controllers:
            if task.done():
                task.result()  # it ends by an error alone
            task.cancel()
        for process in self._replicas.running:
            self._loop.resume(process.identity)  # a paused process cannot end
        for process in list(self._replicas.running) if not self._is_over() else ():
            await self._replicas.stop(process)
        return self._report(self._schedule.struck, quiet_s)

    async def _strike(self) -> None:
        """Runs the schedule until the last disruption is over, or the run is given up."""
        running = self._loop.create_task(self._schedule.run())
        while not running.done() and not self._is_over():
            await asyncio.wait([running], timeout=1.0)
        if not running.done():
            running.cancel()
        else:
            running.result()

    def _is_over(self) -> bool:
        return (self._stops_at_first and bool(self._broken)) or self._replicas.has_failed_repeatedly

    async def _look(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(LOOK_S)
            looks += 1
            self._bind_checker.leases.look()
            self._bind_checker.look_at_gangs()
            self._bind_checker.look_at_cards()
            if self._bind_checker.units is not None:
                self._bind_checker.units.look()
            if self._bind_checker.loans is not None:
                self._bind_checker.loans.look()
            for process in self._replicas.running:
                process.checker.look()
                if looks % ASKED_LOOKS == 0:
                    asked = [pod.key for pod in self._world.pods()[-ASKED_PODS:]]
                    query_status(process.program, process.identity, asked)

    def _report(self, struck: Mapping[str, int], quiet_s: float) -> Report:
        every_process = [*self._replicas.running, *self._replicas.ended]
        conflicts = [w.cycle.conflicts for p in every_process for w in p.program.router.workers()]
        return Report(
            seed=self._seed,
            is_shipped=self._setting.is_shipped,
            broken=tuple(self._broken),
            bound=len(self._bind_checker.bound),
            trace=self._trace,
            faults=Counter(self._faults.injected) + Counter(struck),
            conflicts_true=sum(c.true for c in conflicts),
            conflicts_false=sum(c.false for c in conflicts),
            repaired=sum(p.program.audit.statistics().lost for p in every_process),
            quarantines=sum(
                w.queue.statistics().quarantines for p in every_process for w in p.program.router.workers()
            ),
            quiet_s=quiet_s,
            virtual_s=self._loop.time(),
        )


def run_seed(seed: int, *, stops_at_first: bool = False, kinds: Sequence[str] | None = None) -> Report:
    """Runs one seed; the result depends only on the seed. `stops_at_first`: ends at the first violation. `kinds`: only these
    disruptions.
    """
    loop, rng = SimLoop(seed), rng_of(seed)
    setting = drawn(seed, rng)
    run = Run(
        seed, loop, setting, drawn_kinds(seed, rng, setting) if kinds is None else kinds, stops_at_first=stops_at_first
    )
    return simulate(run.main(), loop)
