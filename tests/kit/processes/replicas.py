"""Runs the processes of the program as a Deployment and its kubelets do: started, killed, stopped, paused and restarted."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Collection
from functools import partial

from multisched.config import loading
from multisched.config.nodes import lease_groups_of
from multisched.framework.measures import Measures
from multisched.model.objects import Pod
from multisched.model.wire import Transport
from multisched.shell.program import LeaseLostError, Program, ProgramPorts
from multisched.testing.quiet_observer import QuietObserver
from multisched.testing.sim_loop import PROCESS, SimClock, SimLoop
from multisched.testing.virtual_workers import VirtualProcess, VirtualThreads, VirtualWorkers
from multisched.whatif.repair_source import plans_of
from tests.kit.checkers.api.bind_checker import BindChecker
from tests.kit.checkers.process.process_checker import ProcessChecker
from tests.kit.checkers.process.step_cost import StepCost
from tests.kit.counted_steps import CountedSteps
from tests.kit.processes.configuration_files import ConfigurationFile, FileFollower
from tests.kit.processes.process import Process
from tests.kit.settings.changed_files import ChangedFile
from tests.kit.settings.setting import Setting
from tests.kit.wire.faults import Faults
from tests.kit.wire.faulty_extender import SimExtender
from tests.kit.wire.faulty_transport import FaultyTransport

SPLIT_S = 4.0
"""Time at the start of a run for which each lease can be reached by one process only."""
EVALUATIONS = (1, 2, 5, 20, 1_000)
"""Evaluations in one step of an attempt, by seed: in most runs gangs pause after a few members."""
RESTS_S = (0.0, 0.01, 0.05)
"""Virtual seconds of a pause, by process: events and other attempts are handled meanwhile."""
DEATHS_MAX = 2
"""Number of errors that end a process after which the run is stopped."""
STOP_MAX_S = 20.0


class Replicas:
    """The running and the ended processes of a run."""

    def __init__(
        self,
        setting: Setting,
        seed: int,
        loop: SimLoop,
        rng: random.Random,
        api: Transport,
        faults: Faults,
        bind_checker: BindChecker,
    ) -> None:
        self._setting, self._seed = setting, seed
        self._loop, self._clock = loop, SimClock(loop)
        self._rng = rng
        self._api, self._faults = api, faults
        self._bind_checker = bind_checker
        self._extender_rng = random.Random(seed ^ 0xE)
        self._file = ConfigurationFile(setting, loop.time)
        self._file_rng = random.Random(seed ^ 0xF11E)
        self._first: dict[str, str] = {}
        """Lease group -> process that can reach it first."""
        self.observer = QuietObserver()
        self.running: list[Process] = []
        self.ended: list[Process] = []
        self.started = 0
        self.measures: Measures | None = None
        """What plugins can measure."""
        self.died = 0
        """Number of processes that ended with an error."""
        self.was_paused = False
        self.was_corrupted = False
        """The memory of a process was corrupted."""
        self.disturbed: set[str] = set()
        """Processes that a disruption uses right now."""

    @property
    def has_failed_repeatedly(self) -> bool:
        return self.died > DEATHS_MAX

    def on_restored(self) -> None:
        """Reports to all processes' checkers that the store was restored."""
        for process in self.running:
            process.checker.watches.on_restored()

    def start(self) -> None:
        """Starts one more process, in a context of its own."""
        self.started += 1
        identity = f"process-{self.started}"
        transport = FaultyTransport(self._api, self._faults, identity, self._bind_checker)
        if self._loop.time() < SPLIT_S:
            transport.lost_leases = self._unreachable_leases(identity)
            self._loop.call_later(SPLIT_S, partial(setattr, transport, "lost_leases", ()))
        context = contextvars.copy_context()
        context.run(PROCESS.set, identity)
        ports = ProgramPorts(
            transport,
            self._clock,
            random.Random(self._rng.random()),
            identity,
            "kube-system",
            observer=lambda domain: self.observer,
            background_threads=VirtualThreads,
            open_process=VirtualProcess,
            worker_factory=VirtualWorkers(random.Random(self._seed ^ self.started)),
            open_extender=lambda settings: SimExtender(settings, self._extender_rng, self._faults, transport),
            plan_repairs=plans_of,
            measures=self.measures,
            steps=CountedSteps(EVALUATIONS[self._seed % len(EVALUATIONS)], RESTS_S[self.started % len(RESTS_S)]),
        )
        follower = self._follower() if self._setting.is_reloaded else None
        configuration = self._setting.configuration_of(self.started) if follower is None else follower.configuration
        self._bind_checker.leases.renew_deadlines_s[identity] = configuration.lease.renew_deadline_s
        program = context.run(Program, configuration, ports)
        checker = ProcessChecker(
            program,
            configuration,
            self._bind_checker,
            identity,
            self._loop,
            is_plain=self._setting.is_shipped,
            is_steady=not self._setting.is_drawn,
        )
        if self._setting.has_gang_workloads:
            cost = StepCost(self._loop, self._bind_checker.report_violation)
            for worker in program.router.workers():
                cost.follow(worker.runner)
        task = self._loop.create_task(self._keep(program), context=context)
        self.running.append(Process(identity, program, transport, checker, task, follower))
        if follower is not None:
            follower.start(program, self._loop, context)

    def change_file(self, file: ChangedFile) -> None:
        """Saves another version of the configuration file."""
        if file.is_good:
            self._bind_checker.in_flight.may_send(loading.parse(file.text, "simulated"))
            self._bind_checker.policies.configuration_changed()
        self._file.write(file)

    def _follower(self) -> FileFollower:
        return FileFollower(
            self._file, self._setting, self.started, self._file_rng, self._bind_checker.report_violation
        )

    async def _keep(self, program: Program) -> None:
        """Runs a process. If it ends because it lost its lease, it is restarted, as a kubelet restarts a container."""
        try:
            await program.run()
        except* LeaseLostError:
            self._replace(program)
        except* Exception as died:  # noqa: BLE001 - a process ends here; that is what is judged
            self.died += 1
            self._bind_checker.report_violation(f"{self._identity_of(program)} died: {_leaf(died)!r}")
            self._replace(program)

    def _replace(self, program: Program) -> None:
        process = next((p for p in self.running if p.program is program), None)
        if process is not None:
            self._remove(process)
        if process is not None and not self.has_failed_repeatedly:
            self.start()

    def _identity_of(self, program: Program) -> str:
        return next((p.identity for p in [*self.running, *self.ended] if p.program is program), "a process")

    def _remove(self, process: Process) -> None:
        process.transport.cut()
        self._bind_checker.interrupted.add(process.identity)
        self._bind_checker.leases.believers.pop(process.identity, None)
        self._bind_checker.leases.leaders.pop(process.identity, None)
        process.checker.reserves.check(is_quiescent=False)
        if process.follower is not None:
            process.follower.stop()
        self.running.remove(process)
        self.ended.append(process)

    def split_leases(self) -> None:
        """Draws which process leads each lease group first: the others cannot reach its lease for a while."""
        for group in sorted(set(lease_groups_of(self._setting.configuration).values())):
            self._first[group] = f"process-{self._rng.randint(1, self._setting.replicas)}"

    def _unreachable_leases(self, identity: str) -> list[str]:
        prefix = self._setting.configuration.lease.name_prefix
        return [f"/{prefix}-{group}" for group, first in self._first.items() if first != identity]

    def leader(self) -> Process | None:
        """Returns a process that holds a lease, or any process; None if disruptions use all of them."""
        free = [p for p in self.running if p.identity not in self.disturbed]
        leading = [p for p in free if self._bind_checker.leases.is_holder(p.identity)]
        return self._rng.choice(leading or free) if free else None

    async def kill(self, process: Process) -> None:
        """Kills a process at any moment of its work (SIGKILL)."""
        if process not in self.running:
            return  # it lost its lease meanwhile, and was restarted
        self._remove(process)
        process.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await process.task

    async def stop(self, process: Process) -> None:
        """Stops a process (SIGTERM): it must end in time, with nothing unfinished (I11)."""
        began_s = self._loop.time()
        process.program.stop()
        while not process.task.done() and self._loop.time() - began_s < STOP_MAX_S:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        if process not in self.running:
            return  # it lost its lease meanwhile, which also ends it
        if not process.task.done():
            self._bind_checker.report_violation(f"I11: {process.identity} had not stopped after {STOP_MAX_S:.0f} s")
            process.task.cancel()
        elif process.task.exception() is not None:
            self._bind_checker.report_violation(f"I11: {process.identity} stopped with {process.task.exception()!r}")
        elif not self._bind_checker.was_restored:
            process.checker.events.check_whole(self._bind_checker.events())
        self._remove(process)

    async def pause(self, process: Process, seconds: float) -> None:
        """Pauses a process (SIGSTOP, then SIGCONT)."""
        self.was_paused = True
        self._bind_checker.interrupted.add(process.identity)
        self._loop.pause(process.identity)
        await asyncio.sleep(seconds)
        self._loop.resume(process.identity)

    def knows_placed(self, uid: str) -> bool:
        """Reports whether every process has observed this pod."""
        return all(uid in process.checker.delivered.pods for process in self.running)

    def assumed_pods(self, names: Collection[str]) -> list[Pod]:
        """Returns the pods that a process has assumed and that the watch does not show on a node yet."""
        return [
            pod
            for pod in self._bind_checker.pods().values()
            if pod.name in names and any(process.program.cache.is_assumed(pod.uid) for process in self.running)
        ]


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
