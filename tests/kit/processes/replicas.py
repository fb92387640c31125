"""The program's processes as a Deployment and its kubelets keep them: started, killed, stopped, paused, and begun anew."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Collection
from functools import partial

from multisched.config import loading
from multisched.config.nodes import lease_groups_of
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
"""How long at the start of a run each lease is within reach of one process alone."""
EVALUATIONS = (1, 2, 5, 20, 1_000)
"""Of one step of an attempt, by the seed: in most runs gangs pause after each few members."""
RESTS_S = (0.0, 0.01, 0.05)
"""Virtual seconds of a pause, by the process: watches and other attempts come in between."""
DEATHS_MAX = 2
"""A program that ends by an error again and again has shown enough."""
STOP_MAX_S = 20.0


class Replicas:
    """Those that run, and those that have ended."""

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
        """Lease group -> the process that reaches it first."""
        self.observer = QuietObserver()
        self.running: list[Process] = []
        self.ended: list[Process] = []
        self.started = 0
        self.died = 0
        """Processes that ended by an error."""
        self.was_paused = False
        self.was_corrupted = False
        """A process was made to remember what never was."""
        self.disturbed: set[str] = set()
        """Processes of which a disruption has its hands on right now."""

    @property
    def has_failed_repeatedly(self) -> bool:
        return self.died > DEATHS_MAX

    def on_restored(self) -> None:
        """The store was restored from a backup."""
        for process in self.running:
            process.checker.watches.on_restored()

    def start(self) -> None:
        """One more process, in a context of its own."""
        self.started += 1
        identity = f"process-{self.started}"
        transport = FaultyTransport(self._api, self._faults, identity, self._bind_checker)
        if self._loop.time() < SPLIT_S:
            transport.lost_leases = self._lost_at_first(identity)
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
            cost = StepCost(self._loop, self._bind_checker.complain)
            for worker in program.router.workers():
                cost.follow(worker.runner)
        task = self._loop.create_task(self._keep(program), context=context)
        self.running.append(Process(identity, program, transport, checker, task, follower))
        if follower is not None:
            follower.start(program, self._loop, context)

    def change_file(self, file: ChangedFile) -> None:
        """Somebody saves another configuration."""
        if file.is_good:
            self._bind_checker.in_flight.may_send(loading.parse(file.text, "simulated"))
            self._bind_checker.policies.configuration_changed()
        self._file.write(file)

    def _follower(self) -> FileFollower:
        return FileFollower(self._file, self._setting, self.started, self._file_rng, self._bind_checker.complain)

    async def _keep(self, program: Program) -> None:
        """A process that ends because its lease is lost is started again, as a kubelet does with a container."""
        try:
            await program.run()
        except* LeaseLostError:
            self._replace(program)
        except* Exception as died:  # noqa: BLE001 - a process ends here; that is what is judged
            self.died += 1
            self._bind_checker.complain(f"{self._identity_of(program)} died: {_leaf(died)!r}")
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
        """Which process is to lead which domain: for a moment the others do not reach its lease."""
        for group in sorted(set(lease_groups_of(self._setting.configuration).values())):
            self._first[group] = f"process-{self._rng.randint(1, self._setting.replicas)}"

    def _lost_at_first(self, identity: str) -> list[str]:
        prefix = self._setting.configuration.lease.name_prefix
        return [f"/{prefix}-{group}" for group, first in self._first.items() if first != identity]

    def leader(self) -> Process | None:
        """One that holds a lease, else any; None while each is being stopped, paused or cut off already."""
        free = [p for p in self.running if p.identity not in self.disturbed]
        leading = [p for p in free if self._bind_checker.leases.is_holder(p.identity)]
        return self._rng.choice(leading or free) if free else None

    async def kill(self, process: Process) -> None:
        """SIGKILL in the middle of whatever it does."""
        if process not in self.running:
            return  # it lost its lease meanwhile, and another one was started in its place
        self._remove(process)
        process.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await process.task

    async def stop(self, process: Process) -> None:
        """SIGTERM: it must end in time, with nothing half done (I11)."""
        began_s = self._loop.time()
        process.program.stop()
        while not process.task.done() and self._loop.time() - began_s < STOP_MAX_S:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        if process not in self.running:
            return  # it lost its lease meanwhile, which ends it in its own way
        if not process.task.done():
            self._bind_checker.complain(f"I11: {process.identity} had not stopped after {STOP_MAX_S:.0f} s")
            process.task.cancel()
        elif process.task.exception() is not None:
            self._bind_checker.complain(f"I11: {process.identity} stopped with {process.task.exception()!r}")
        elif not self._bind_checker.was_restored:
            process.checker.events.check_whole(self._bind_checker.events())
        self._remove(process)

    async def pause(self, process: Process, seconds: float) -> None:
        """SIGSTOP, then SIGCONT."""
        self.was_paused = True
        self._bind_checker.interrupted.add(process.identity)
        self._loop.pause(process.identity)
        await asyncio.sleep(seconds)
        self._loop.resume(process.identity)

    def knows_placed(self, uid: str) -> bool:
        """Every process has observed this pod."""
        return all(uid in process.checker.delivered.pods for process in self.running)

    def on_their_way(self, names: Collection[str]) -> list[Pod]:
        """Those of the pods for which some process has decided, and that the watch does not show on a node yet."""
        return [
            pod
            for pod in self._bind_checker.pods().values()
            if pod.name in names and any(process.program.cache.is_assumed(pod.uid) for process in self.running)
        ]


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
