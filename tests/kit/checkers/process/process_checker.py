"""Checks one simulated process from inside: what it assumes, what it believes and what it holds.

In addition to the bind checker at the API server, it sees what never leaves the process: assumptions on rows that do not fit (I1,
I7, I8), a cache that goes back (I6), an index past its bound (I10). It changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from multisched.config.schema import Configuration
from multisched.framework.ports import Condition, LeaseHolder, ObjectRef
from multisched.framework.registry import PluginSetupError
from multisched.queueing.events_in_flight import IN_FLIGHT_EVENTS_MAX
from multisched.queueing.gating import FAILED
from multisched.queueing.transitions import QueueState
from multisched.shell.domain import DomainWorker
from multisched.shell.program import Program
from multisched.shell.reload import Reloaded
from multisched.testing.sim_loop import SimLoop
from multisched.verify.gangs import GangJudge
from tests.kit.checkers.api.bind_checker import BindChecker
from tests.kit.checkers.delivered_state import DeliveredState, DomainNodeFilter
from tests.kit.checkers.process.assumptions import AssumptionChecker
from tests.kit.checkers.process.attempts import AttemptChecker
from tests.kit.checkers.process.cache_comparison import (
    EqualPods,
    fault_of_cache,
    fault_of_ledgers,
    fault_of_leftovers,
    fault_of_nominations,
    fault_of_rows,
    unfinished_work,
)
from tests.kit.checkers.process.cards import Cards
from tests.kit.checkers.process.classes import ClassChecker
from tests.kit.checkers.process.custom_objects import CustomObjects
from tests.kit.checkers.process.events import EventChecker
from tests.kit.checkers.process.feasible_nodes import FeasibleNodes
from tests.kit.checkers.process.gang_attempts import GangAttemptChecker
from tests.kit.checkers.process.gang_barriers import BarrierChecker
from tests.kit.checkers.process.gang_fit import GangFit
from tests.kit.checkers.process.gang_roster import RosterChecker
from tests.kit.checkers.process.gang_waits import GangWaits
from tests.kit.checkers.process.gpus import Gpus
from tests.kit.checkers.process.leadership import LeadershipChecker
from tests.kit.checkers.process.preemptions import PreemptionChecker
from tests.kit.checkers.process.reloads import ReloadChecker
from tests.kit.checkers.process.requeues import RequeueChecker
from tests.kit.checkers.process.reserves import ReserveChecker
from tests.kit.checkers.process.sandbox import SandboxChecker
from tests.kit.checkers.process.scores import ScoreChecker
from tests.kit.checkers.process.state_checker import StateChecker
from tests.kit.checkers.process.watches import WatchChecker
from tests.kit.plugins.permit_holds import HoldLonger
from tests.kit.world.api_user import NAMESPACE

DEEP_EVERY, ASKED_EVERY = 8, 4
"""Number of looks between two checks of all rows, and between two checks of queues, parked pods and unchanged state."""
LATE_S = 0.75
"""Tolerance for timers of the program."""


class ProcessChecker:
    """The checks of one program, from its start."""

    def __init__(
        self,
        program: Program,
        configuration: Configuration,
        bind_checker: BindChecker,
        identity: str,
        loop: SimLoop,
        *,
        is_plain: bool,
        is_steady: bool,
    ) -> None:
        """`is_plain`: no plugin needs remote responses or fails, so that each result depends only on what was observed.
        `is_steady`: no drawn plugin refuses or fails by itself.
        """
        self.program = program
        self._bind_checker, report_violation = bind_checker, bind_checker.report_violation
        self._identity = identity
        policies = {domain.name: domain.policy.compile() for domain in configuration.domains}
        self.delivered = bind_checker.delivered[identity] = DeliveredState(
            bind_checker.objects.reader, DomainNodeFilter(configuration).usable_by, policies
        )
        domain_of = {name: d.name for d in configuration.domains for name in d.scheduler_names}
        self._binds_max = dict[str, int]()
        self.is_tampered_with = False
        """Its memory was corrupted and the audit is running: wrong state is not a violation."""
        self._gpus, self._cards = Gpus(program.cache), Cards(program.cache, self.delivered)
        if bind_checker.gangs.is_on:
            self.delivered.gangs = GangJudge()
        CustomObjects(program, self.delivered, bind_checker)
        self.watches = WatchChecker(
            program, self.delivered, bind_checker.policies, identity, report_violation, self._freed
        )
        assumptions = AssumptionChecker(
            program, self.delivered, self.watches, bind_checker, identity, domain_of, self._gpus
        )
        self._quotas, self._gangs = assumptions.quotas, assumptions.gangs
        self._preemptions = PreemptionChecker(
            program, self.delivered, configuration, domain_of, bind_checker, is_plain=is_plain
        )
        self.events = EventChecker(program.events, identity, self.delivered.quota_bounds, report_violation)
        self.reserves = ReserveChecker(program, bind_checker)
        self._leadership = LeadershipChecker(program, self.delivered, bind_checker, identity)
        self._end_nomination = program.nominator.remove
        program.nominator.remove = self.end_nomination  # type: ignore[method-assign]
        self._reload, self._reloads = program.reload, ReloadChecker(program)
        program.reload = self.reload  # type: ignore[method-assign]
        self._write = program.conditions.write
        program.conditions.write = self.write  # type: ignore[method-assign]
        self._looks = 0
        self._equal_pods: EqualPods = {}
        self._seen = (0, 0)
        """Versions of observed state and of rows at the last look."""
        self._has_unchecked_rows = True
        """Something has changed since the last check of all rows."""
        self._is_paused = partial(loop.is_paused, identity)
        self._kept = StateChecker(program, self._quotas, report_violation, self._is_paused)
        self._requeues: list[RequeueChecker] = []
        self._classes: list[ClassChecker] = []
        self._attempts: list[AttemptChecker] = []
        self._permits: list[tuple[DomainWorker, HoldLonger]] = []
        """All instances so far."""
        feasible = FeasibleNodes(program, self.delivered) if is_steady else None
        for worker, domain in zip(program.router.workers(), configuration.domains, strict=True):
            has_gangs = feasible is not None and self.delivered.gangs is not None
            gangs = GangFit(worker.name, feasible, report_violation) if feasible is not None and has_gangs else None
            attempts = AttemptChecker(worker.name, worker.queue, domain.queue, report_violation, feasible, gangs=gangs)
            attempts.long_attempts = worker.long_attempts
            self._attempts.append(attempts.begin())
            requeues = RequeueChecker(program, worker, report_violation, self._is_paused, gangs, is_steady=is_steady)
            self._requeues.append(requeues)
            if is_plain:
                self._check_classes(worker)
        self._gang_attempts: list[GangAttemptChecker] = []
        self._follow()
        has_gangs, roster = bind_checker.gangs.is_on, program.cache.gangs
        self._roster = RosterChecker(program, self._report_violations) if has_gangs else None
        workers = program.router.workers() if has_gangs else ()
        self._waits = [GangWaits(worker, roster, self._report_violations, self._is_paused) for worker in workers]
        self._gang_attempts = [GangAttemptChecker(worker, self._report_violations) for worker in workers]
        self._barriers = [BarrierChecker(worker, roster, self._report_violations) for worker in workers]

    # -- another configuration -------------------------------------------------------------------------------------

    def reload(self, configuration: Configuration) -> Reloaded:
        """Wraps `Program.reload`: no pod leaves a queue, and an invalid configuration changes nothing."""
        before, queued = self.program.configuration, self._queued()
        try:
            done = self._reload(configuration)
        except PluginSetupError:
            if self.program.configuration is not before:
                self._report_violations("a configuration that cannot be used has changed what is in force")
            raise
        finally:
            if lost := queued - self._queued():
                self._report_violations(f"I3: another configuration has {len(lost)} pods leave the queue")
            self._follow()
        self._report_violations(*self._reloads.faults())
        return done

    def _queued(self) -> set[str]:
        return {entry.uid for worker in self.program.router.workers() for entry in worker.queue.entries()}

    def _follow(self) -> None:
        """Uses the cycles, plugins and settings now in force. Work in progress continues with the earlier ones."""
        for domain in self.program.configuration.domains:
            binds = domain.concurrency.binds.max
            self._binds_max[domain.name] = max(binds, self._binds_max.get(domain.name, 0))
        self.delivered.tolerations = {d.name: d.policy.compile() for d in self.program.configuration.domains}
        self.reserves.follow()
        self._report_violations(self._kept.follow())
        self._preemptions.follow()
        for requeues in self._requeues:
            requeues.follow()
        for classes in self._classes:
            classes.follow()
        for tries in self._gang_attempts:
            tries.follow()
        settings = {domain.name: domain.queue for domain in self.program.configuration.domains}
        workers = self.program.router.workers()
        for attempts, worker in zip(self._attempts, workers, strict=True):
            attempts.follow(worker.plugins, settings[worker.name])
        for worker in workers:
            for plugin in worker.plugins.permit:
                if isinstance(plugin, HoldLonger) and (worker, plugin) not in self._permits:
                    self._permits.append((worker, plugin))

    def _check_classes(self, worker: DomainWorker) -> None:
        """Compares the worker's classes with fresh evaluations, and its scores with the formulas."""
        table, report_violation = self.program.cache.nodes, self._bind_checker.report_violation
        scores = ScoreChecker(
            self.delivered,
            table,
            report_violation,
            domain=worker.name,
            plugins=worker.plugins,
            free_devices=self._gpus.free,
        )
        sandbox = SandboxChecker(self.program, worker, report_violation)
        rows = self.program.router.rows_of(worker)
        self._classes.append(ClassChecker(worker, table, rows, scores, sandbox, report_violation))

    def _freed(self, node: str) -> None:
        """Called when requests on the node have decreased."""
        for requeues in self._requeues:
            requeues.on_node_freed(node)

    def end_nomination(self, uid: str) -> str:
        """Wraps `Nominator.remove`: after the current step no pod remains parked that fits into the released capacity."""
        node = self._end_nomination(uid)
        if node:
            self._freed(node)
        return node

    def check_every_class(self, *, is_on: bool) -> None:
        """Compares each class that a cycle uses instead of a sample."""
        for classes in self._classes:
            classes.checks_all = is_on

    def write(self, pod: ObjectRef, condition: Condition, lease: LeaseHolder) -> None:
        """Wraps `ApiConditionWriter.write`: records the latest condition of the pod."""
        self.delivered.last_messages[pod.uid] = condition.message
        self.events.check_condition(pod.uid, condition.message)
        self._write(pod, condition, lease)

    # -- now and then ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Checks I4, I5, I9 and I10 at this moment. Called regularly."""
        if self.is_tampered_with:
            return
        self._looks += 1
        self._report_violations(fault_of_nominations(self.program), *self._gangs.broken, *self._kept.faults())
        self._report_violations(*self._leadership.faults())
        self._gangs.broken.clear()
        has_moved = self._has_moved()
        self._has_unchecked_rows |= has_moved
        if has_moved or not self._looks % ASKED_EVERY:
            self._report_violations(
                fault_of_cache(self.program, self.delivered, self._equal_pods), self._quotas.fault_of_sums()
            )
            self._report_violations(*self._cards.faults())
        if not self._looks % DEEP_EVERY and self._has_unchecked_rows:
            self._has_unchecked_rows = False
            self._look_deep()
        for worker in self.program.router.workers():
            if worker.limit.in_flight > self._binds_max[worker.name]:
                self._bind_checker.report_violation(f"I10: {worker.limit.in_flight} binds of {worker.name} in flight")
        if not self._is_paused():
            self._check_permits()
        for requeues in self._requeues:
            requeues.look_for_work()
            requeues.look()
        for waits in self._waits:
            waits.look()
        if not self._is_paused():
            for barriers in self._barriers:
                barriers.look()
        if self._roster is not None:
            self._report_violations(self._roster.fault())
        if not self._looks % ASKED_EVERY:
            self._look_at_queues()

    def _has_moved(self) -> bool:
        """Reports whether something was observed, or a row was written, since the last look."""
        before, self._seen = self._seen, (self.delivered.changes, self.program.cache.nodes.row_log.sequence)
        return before != self._seen

    def _look_at_queues(self) -> None:
        for worker in self.program.router.workers():
            statistics = worker.queue.statistics()
            if statistics.in_flight and not worker.queue.awaits_events():
                self._bind_checker.report_violation(f"I3: attempts of {worker.name} are in flight and await no events")
            if statistics.in_flight_events > IN_FLIGHT_EVENTS_MAX or (
                statistics.in_flight_events and not statistics.in_flight
            ):
                self._bind_checker.report_violation(f"I10: {worker.name} keeps {statistics.in_flight_events} events")

    def _check_permits(self) -> None:
        """Checks I5: a pod at Permit is rejected when the time of the first plugin is over, and bound when all plugins allow it."""
        for worker, plugin in self._permits:
            late = plugin.overdue(worker.waiting.holders, LATE_S)
            self._report_violations(*plugin.broken, *(f"I5: {uid} is held at Permit past its time" for uid in late))

    def _look_deep(self) -> None:
        self._report_violations(fault_of_rows(self.program, self.delivered), fault_of_ledgers(self.program))
        for worker in self.program.router.workers():
            try:
                worker.queue.validate()
            except AssertionError as error:
                self._report_violations(f"I3: {error}")

    def _report_violations(self, *faults: str) -> None:
        for fault in faults:
            if fault:
                self._bind_checker.report_violation(f"{fault} ({self._identity})")

    def check_quiescent(self) -> None:
        """Checks what must hold when nothing is left to do."""
        self._report_violations(
            unfinished_work(self.program), fault_of_cache(self.program, self.delivered, self._equal_pods)
        )
        self._report_violations(self._quotas.fault_of_sums(), *self._kept.faults_when_quiescent())
        self._look_deep()
        for requeues in self._requeues:
            requeues.check_quiescent()

    def check_conditions(self, since_s: float, condition_of: Callable[[str], str]) -> None:
        """Checks that the condition of each pod that was refused since then has the message of the last refusal (I3)."""
        for worker in self.program.router.workers():
            for entry in worker.queue.entries() if worker.is_leading else ():
                is_late = (
                    entry.state is QueueState.UNSCHEDULABLE and not entry.is_quarantined and entry.since_s >= since_s
                )
                written = (
                    condition_of(entry.pod.name) if is_late and entry.pod.namespace == NAMESPACE else entry.message
                )
                is_of_a_cycle = not written.startswith(FAILED)  # a failure while the pod is requeued
                if written != entry.message and is_of_a_cycle:
                    self._report_violations(
                        f"I3: the owner of {entry.pod.key} reads {written!r}, not {entry.message!r}"
                    )

    def check_nominations(self) -> None:
        """Checks that the nomination written on each pod is the one that the next leader must read (I5)."""
        nominator = self.program.nominator
        leading = [worker.queue for worker in self.program.router.workers() if worker.is_leading]
        for pod in self._bind_checker.pods().values():
            entry = next((queue.entry(pod.uid) for queue in leading if queue.entry(pod.uid) is not None), None)
            nominated = nominator.node_of(pod.uid)
            if entry is not None and not entry.is_quarantined and nominated != pod.nominated_node:
                self._report_violations(
                    f"I5: {pod.key} was promised {nominated!r}, and {pod.nominated_node!r} is written on it"
                )

    def has_seen_all_deletions(self) -> bool:
        """Reports whether the process has observed the deletion of every pod and has nothing left to do."""
        is_deciding = any(len(worker.queue) for worker in self.program.router.workers())
        return not (self.delivered.pods or is_deciding or unfinished_work(self.program))

    def check_empty(self) -> None:
        """Checks that nothing is kept after all pods were deleted (I5)."""
        self.check_quiescent()
        self._report_violations(fault_of_leftovers(self.program))
