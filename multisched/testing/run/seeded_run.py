"""A whole-program run under a seed: nodes, pods, faults, then quiet, then the invariants.

The real `Program` (configuration, reflectors, queues, cycles, bind workers, leases, audit) runs against the real embedded
API server in process, under virtual time. `run_seed` returns a report; its `broken` is empty when every invariant held.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import random
import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from multisched.cluster.api.server import ApiServer
from multisched.config.nodes import lease_groups
from multisched.cycle.bind_outcome import Outcome
from multisched.framework.objects_view import ObjectKind
from multisched.model.objects import Pod
from multisched.plugins.extender.http_extender import NAME as EXTENDERS
from multisched.plugins.volumes.volume_binding_args import BIND_TIMEOUT_DEFAULT_S
from multisched.shell.audit.auditor import AUDIT_PERIOD_S
from multisched.shell.object_watch import AUDITED_EVERY
from multisched.shell.program import LeaseLostError, Program, ProgramPorts
from multisched.testing.checkers.api.bind_checker import BindChecker
from multisched.testing.checkers.api.bind_judge import LOST_NEWS_S
from multisched.testing.checkers.invariants import compare
from multisched.testing.checkers.process.mirror import leftover
from multisched.testing.checkers.process.process_checker import ProcessChecker
from multisched.testing.loop.sim_loop import PROCESS, SimClock, SimLoop, simulate
from multisched.testing.loop.virtual_workers import VirtualProcess, VirtualThreads, VirtualWorkers
from multisched.testing.plugins.faulty import FAULTY
from multisched.testing.processes.onlookers import look_at
from multisched.testing.run.fault_schedule import FaultSchedule
from multisched.testing.settings.configurations import EDGE_RANKS
from multisched.testing.settings.setting import Setting, drawn, fault_of_refusals
from multisched.testing.wire.extenders import SimExtender
from multisched.testing.wire.faults import Faults, FaultyTransport
from multisched.testing.world.nodes import NODES
from multisched.testing.world.policies import Policies
from multisched.testing.world.world import World
from multisched.whatif.repair_source import plans_of

QUIET_MAX_S = 75.0
"""Virtual seconds after the last fault within which every feasible pod must be bound and every cache true (I3, I4): a
lease runs out (15), its successor waits for the last binds (5), lists and works off its backoffs (10 each)."""

QUIET_LOST_MAX_S = 210.0
"""The same when a watch has lost a line, or a bind was answered that never arrived: three periods of the audit, a list,
and a backoff."""

QUIET_REWOUND_MAX_S = BIND_TIMEOUT_DEFAULT_S + AUDITED_EVERY * AUDIT_PERIOD_S + QUIET_MAX_S
"""The same after a restored backup: where the new history had overtaken the old one before any watch came back, a claim
that differs is found when the audit next comes to its kind, and a volume's bind that the backup has lost is waited for as
long as any."""

DECEIT = ("lost line", "false answer", "false 404")
"""Faults that nobody but the audit can find out."""

SET_ASIDE = "set aside: the API server has refused this pod"
"""With what the owner of a pod that the server always refuses is told of it."""

SPLIT_S = 4.0
"""How long at the start of a run each lease is within reach of one process alone."""
DEATHS_MAX = 2
"""A program that ends by an error again and again has shown enough."""
STOP_MAX_S = 20.0
HEARD_S = 2.0
"""After the last fault, for what was on its way."""
DRAIN_MAX_S = 30.0
"""At the end, for each process to hear that all pods are gone: a watch may be broken just then."""
LOOK_S = 0.5
ASKED_LOOKS, ASKED_PODS = 20, 4
"""Every so many looks people ask each process how it fares, and about so many pods."""
POLL_S = 3.0
NUDGE_POLLS = 6
"""Polls between two small events. A new leader's Permit may turn pods away, which then wait for an event or five minutes."""

NUDGED = (NODES - 1, NODES - 2, NODES - 4, int(EDGE_RANKS[1]))
"""A virtual node, one with GPUs, one of neither kind, and one that may be
claimed by its label: a domain hears of the nodes that it may use alone."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a run found. `trace` is a digest of every request and its moment, in order: equal for equal seeds (I12)."""

    seed: int
    is_shipped: bool
    """It ran the default configuration, unchanged."""
    broken: tuple[str, ...]
    bound: int
    trace: int
    faults: Mapping[str, int]
    """Kind -> how often it struck."""
    conflicts_true: int
    conflicts_false: int
    mended: int
    """Lost events that the audit found."""
    set_aside: int
    """Times a pod was set aside since the API server refused it again and again."""
    quiet_s: float
    """Virtual seconds from the last fault to rest."""
    virtual_s: float

    @property
    def fault_count(self) -> int:
        return sum(self.faults.values())


class QuietObserver:
    """A DomainObserver that counts plugin failures and nothing else."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None: ...

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        self.failures.append(f"{plugin} {point}: {error!r}")

    def attempt_ended(self, pod: Pod, result: str, seconds: float) -> None: ...

    def pod_bound(self, pod: Pod, seconds: float, attempts: int) -> None: ...

    def bind_ended(self, pod: Pod, outcome: Outcome, seconds: float) -> None: ...

    def permit_waited(self, result: str, seconds: float) -> None: ...

    def preemption_began(self, victims: int) -> None: ...

    def preemption_ended(self, result: str, seconds: float) -> None: ...


@dataclass(slots=True)
class Process:
    """One running program with the cable that can be cut."""

    identity: str
    program: Program
    transport: FaultyTransport
    process_checker: ProcessChecker
    task: asyncio.Task[None]


@dataclass
class Run:
    """Everything of one seed. `is_hasty` ends it at the first broken invariant."""

    seed: int
    loop: SimLoop
    setting: Setting
    is_hasty: bool = False
    broken: list[str] = field(default_factory=list)
    observer: QuietObserver = field(default_factory=QuietObserver)
    processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)  # noqa: S311 - a simulation
        self.clock = SimClock(self.loop)
        self.server = ApiServer(self.clock, seed=self.seed, rbac=False)
        self.server.request_log = self._log
        self.trace = 0
        self.faults = Faults(random.Random(self.seed ^ 0x5EED))  # noqa: S311 - a simulation
        self.faults.page_items, self.faults.bind_max_s = self.setting.page_items, self.setting.bind_max_s
        self.faults.newest = lambda: self.server.store.version
        policies = Policies(self.server, self.seed)
        self.configuration = self.setting.configuration
        flush_s = min(domain.queue.unschedulable_flush_s for domain in self.configuration.domains)
        policies.flushes = lambda: int(self.loop.time() / flush_s)
        self.bind_checker = BindChecker(
            self.server, self.configuration, self.loop.time, self.broken, policies, lambda: LOST_NEWS_S
        )
        self.world = World(
            self.server,
            self.bind_checker.objects,
            policies,
            self.rng,
            self.seed,
            on_bound=self.bind_checker.bound_from_outside,
        )
        self.bind_checker.storage = self.world.storage
        self.world.schedulers = self.configuration.served
        self._extender_rng = random.Random(self.seed ^ 0xE)  # noqa: S311 - a simulation
        self.ended: list[Process] = []
        self.started = 0
        self.was_paused = False
        self.died = 0
        """Processes that ended by an error."""
        self.was_rewound = False
        self.was_corrupted = False
        """A process was made to remember what never was."""
        self.calm_s = math.inf
        """From then on nothing goes wrong any more."""
        self._first: dict[str, str] = {}
        """Lease group -> the process that reaches it first."""
        self._binding: asyncio.Task[None] | None = None
        """The controllers of storage; None while they are away."""
        self.disturbed: set[str] = set()
        """Processes of which a disruption has its hands on right now."""

    def _log(self, method: str, path: str, user: str, status: int) -> None:
        self.trace = zlib.crc32(f"{self.loop.time():.9f} {method} {path} {status}".encode(), self.trace)

    # -- processes -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """One more process, in a context of its own."""
        self.started += 1
        identity = f"process-{self.started}"
        transport = FaultyTransport(self.world.user.api, self.faults, identity, self.bind_checker)
        if self.loop.time() < SPLIT_S:
            transport.lost_leases = self._lost_at_first(identity)
            self.loop.call_later(SPLIT_S, partial(setattr, transport, "lost_leases", ()))
        context = contextvars.copy_context()
        context.run(PROCESS.set, identity)
        ports = ProgramPorts(
            transport,
            self.clock,
            random.Random(self.rng.random()),  # noqa: S311 - a simulation
            identity,
            "kube-system",
            observer=lambda domain: self.observer,
            background_threads=VirtualThreads,
            open_process=VirtualProcess,
            workshop=VirtualWorkers(random.Random(self.seed ^ self.started)),  # noqa: S311 - a simulation
            open_extender=lambda settings: SimExtender(settings, self._extender_rng, self.faults, transport),
            plan_repairs=plans_of,
        )
        configuration = self.setting.configuration_of(self.started)
        self.bind_checker.leases.renew_deadlines_s[identity] = configuration.lease.renew_deadline_s
        program = context.run(Program, configuration, ports)
        process_checker = ProcessChecker(
            program,
            configuration,
            self.bind_checker,
            identity,
            self.loop,
            is_plain=self.setting.is_shipped,
            is_steady=not self.setting.is_drawn,
        )
        task = self.loop.create_task(self._keep(program), context=context)
        self.processes.append(Process(identity, program, transport, process_checker, task))

    async def _keep(self, program: Program) -> None:
        """A process that ends because its lease is lost is started again, as a kubelet does with a container."""
        try:
            await program.run()
        except* LeaseLostError:
            self._replace(program)
        except* Exception as died:  # noqa: BLE001 - a process ends here; that is what is judged
            self.died += 1
            self.bind_checker.complain(f"{self._identity_of(program)} died: {_leaf(died)!r}")
            self._replace(program)

    def _replace(self, program: Program) -> None:
        process = next((p for p in self.processes if p.program is program), None)
        if process is not None:
            self._leave(process)
        if process is not None and self.died <= DEATHS_MAX:
            self.start()

    def _identity_of(self, program: Program) -> str:
        return next((p.identity for p in [*self.processes, *self.ended] if p.program is program), "a process")

    def _leave(self, process: Process) -> None:
        process.transport.cut()
        self.bind_checker.leases.believers.pop(process.identity, None)
        process.process_checker.reserves.check(is_at_rest=False)
        self.processes.remove(process)
        self.ended.append(process)

    def _split_leases(self) -> None:
        """Which process is to lead which domain: for a moment the others do not reach its lease."""
        for group in sorted(set(lease_groups(self.configuration).values())):
            self._first[group] = f"process-{self.rng.randint(1, self.setting.replicas)}"

    def _lost_at_first(self, identity: str) -> list[str]:
        prefix = self.configuration.lease.name_prefix
        return [f"/{prefix}-{group}" for group, first in self._first.items() if first != identity]

    def leader(self) -> Process | None:
        """One that holds a lease, else any; None while each is being stopped, paused or cut off already."""
        free = [p for p in self.processes if p.identity not in self.disturbed]
        leading = [p for p in free if self.bind_checker.leases.is_holder(p.identity)]
        return self.rng.choice(leading or free) if free else None

    def start_storage(self) -> None:
        """The controllers of storage, begun anew after a restore: they keep what they have seen."""
        self.stop_storage()
        self._binding = self.loop.create_task(self.world.storage.run(self.world.user.api, self.clock))

    def stop_storage(self) -> None:
        """They are away until `start_storage`."""
        if self._binding is not None:
            self._binding.cancel()
        self._binding = None

    def knows_placed(self, uid: str) -> bool:
        """Every process has been told of this pod."""
        return all(uid in process.process_checker.told.pods for process in self.processes)

    def on_their_way(self, names: Collection[str]) -> list[Pod]:
        """Those of the pods for which some process has decided, and that the watch does not show on a node yet."""
        return [
            pod
            for pod in self.world.pods()
            if pod.name in names and any(process.program.cache.is_assumed(pod.uid) for process in self.processes)
        ]

    def rewound(self) -> None:
        """The store was restored from a backup."""
        self.was_rewound = True
        self.bind_checker.rewound()
        self.start_storage()
        for process in self.processes:
            process.process_checker.watches.rewound()

    async def kill(self, process: Process) -> None:
        """SIGKILL in the middle of whatever it does."""
        if process not in self.processes:
            return  # it lost its lease meanwhile, and another one was started in its place
        self._leave(process)
        process.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await process.task

    async def stop(self, process: Process) -> None:
        """SIGTERM: it must end in time, with nothing half done (I11)."""
        began_s = self.loop.time()
        process.program.stop()
        while not process.task.done() and self.loop.time() - began_s < STOP_MAX_S:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        if process not in self.processes:
            return  # it lost its lease meanwhile, which ends it in its own way
        if not process.task.done():
            self.bind_checker.complain(f"I11: {process.identity} had not stopped after {STOP_MAX_S:.0f} s")
            process.task.cancel()
        elif process.task.exception() is not None:
            self.bind_checker.complain(f"I11: {process.identity} stopped with {process.task.exception()!r}")
        elif not self.was_rewound:
            process.process_checker.events.check_whole(self.bind_checker.events())
        self._leave(process)

    async def pause(self, process: Process, seconds: float) -> None:
        """SIGSTOP, then SIGCONT."""
        self.was_paused = True
        self.loop.pause(process.identity)
        await asyncio.sleep(seconds)
        self.loop.resume(process.identity)

    # -- the run ---------------------------------------------------------------------------------------------------

    async def main(self) -> Report:
        if self.setting.is_drawn and (fault := fault_of_refusals(self.seed)):
            self.bind_checker.complain(fault)
        await self.world.build()
        self._split_leases()
        for _ in range(self.setting.replicas):
            self.start()
        looking = self.loop.create_task(self._look())
        self.start_storage()
        ending = self.loop.create_task(self.world.kubelets.run())
        keeping = self.loop.create_task(self.world.budgets.keep())
        faults = FaultSchedule(self)
        running = self.loop.create_task(faults.run())
        while not running.done() and not self._is_over():
            await asyncio.wait([running], timeout=1.0)
        if not running.done():
            running.cancel()
        else:
            running.result()
        self.faults.is_on = False
        if self.was_rewound:
            await self.world.mend_storage()
        quiet_s = await self._calm_down() if not self._is_over() else 0.0
        if not self._is_over():
            self._check_rest()
        if not self.broken:
            await self._drain()
        looking.cancel()
        self.stop_storage()
        ending.cancel()
        self.world.disks.close()
        self.world.kubelets.close()
        keeping.cancel()
        for process in self.processes:
            self.loop.resume(process.identity)  # what is paused cannot end
        if not self._is_over():
            await self._end()
        return self._report(faults.struck, quiet_s)

    def _is_over(self) -> bool:
        return (self.is_hasty and bool(self.broken)) or self.died > DEATHS_MAX

    async def _look(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(LOOK_S)
            looks += 1
            self.bind_checker.leases.look()
            for process in self.processes:
                process.process_checker.look()
                if looks % ASKED_LOOKS == 0:
                    look_at(process.program, process.identity, [pod.key for pod in self.world.pods()[-ASKED_PODS:]])

    async def _calm_down(self) -> float:
        """Waits until all is settled, as long as may be; returns how long."""
        began_s, nudges = self.loop.time(), 0
        self.calm_s = began_s + HEARD_S
        limit_s = QUIET_LOST_MAX_S if self._was_deceived() else QUIET_MAX_S
        limit_s = QUIET_REWOUND_MAX_S if self.was_rewound else limit_s
        while self.loop.time() - began_s < limit_s and not self._is_settled() and not self._is_over():
            await asyncio.sleep(POLL_S)
            nudges += 1
            if nudges % NUDGE_POLLS == 0:
                for number in NUDGED:
                    await self.world.nodes.patch(f"node-{number}", {"metadata": {"labels": {"nudge": str(nudges)}}})
        return self.loop.time() - began_s

    def _was_deceived(self) -> bool:
        """Something happened that nobody but the audit can find out, or that takes a reflector long to believe."""
        return self.was_rewound or self.was_corrupted or any(self.faults.injected[kind] for kind in DECEIT)

    def _is_settled(self) -> bool:
        if next(self.bind_checker.unbound_feasible(), None) is not None or self.not_set_aside():
            return False
        return not any(self._differences(p) or leftover(p.program) for p in self.processes)

    def not_set_aside(self) -> list[str]:
        """Pods that the API server always refuses, and that some leader may try all the same."""
        aside = {
            entry.uid
            for process in self.processes
            for worker in process.program.router.workers()
            if worker.is_leading
            for entry in worker.queue.entries()
            if entry.is_quarantined and SET_ASIDE in self.bind_checker.policies.condition_of(entry.pod.name)
        }
        return [pod.key for pod in self.bind_checker.refused_feasible(aside)]

    def _differences(self, process: Process) -> list[str]:
        known = process.program.cache.objects.all(ObjectKind.POD_DISRUPTION_BUDGET)
        found = compare(process.program, self.bind_checker.pods(), self.bind_checker.nodes())
        return [*found, *self.world.budgets.differences(known)]

    def _check_rest(self) -> None:
        """Everything that must hold at rest."""
        late = list(self.bind_checker.unbound_feasible())
        if late:
            self.bind_checker.complain(f"I3: {len(late)} feasible pods are not bound, for instance {late[0].key}")
        self.bind_checker.check_events()
        events = self.bind_checker.events()
        for process in self.processes if not self.was_rewound else ():  # a restored backup has old conditions
            process.process_checker.check_told(self.calm_s, self.bind_checker.policies.condition_of)
            process.process_checker.check_nominations()
            process.process_checker.events.check_true(events)
        aside = self.not_set_aside()
        if aside:
            self.bind_checker.complain(
                f"I10: {len(aside)} pods are refused for ever and not set aside, for instance {aside[0]}"
            )
        for process in self.processes:
            for sentence in self._differences(process):
                self.bind_checker.complain(f"{sentence} ({process.identity})")
            process.process_checker.reserves.check(is_at_rest=True)
            process.process_checker.check_rest()
            audit = process.program.audit.statistics()
            # A faulty plugin's ledger is what the audit is there to mend.
            is_excused = self.setting.has_faulty_plugin or self.was_rewound or self.was_corrupted
            is_excused = is_excused or bool(self.faults.injected["false 404"])
            if audit.inner and not is_excused:
                self.bind_checker.complain(f"I4: the audit had to mend {audit.inner} contradictions inside the cache")
            if audit.lost and not self._was_deceived():
                self.bind_checker.complain(f"I4: the audit found {audit.lost} lost events, and none was lost")
            if audit.unbound and not self._was_deceived():
                self.bind_checker.complain(f"I4: the audit took back {audit.unbound} binds, and no answer was false")
        # To a process that was paused every plugin that waited seems to have hung.
        failures = [f for f in self.observer.failures if not _is_expected(f) and not (self.was_paused and _is_late(f))]
        if failures:
            self.bind_checker.complain(f"plugins failed: {failures[:3]}")

    async def _drain(self) -> None:
        """All pods go, and nothing of them is left in any process (I5). Who waits goes first: nobody is tried for what others leave."""
        for pod in sorted(self.world.pods(), key=lambda pod: bool(pod.node)):
            await self.world.user.delete_pod(pod)
        until_s = self.loop.time() + DRAIN_MAX_S
        while self.loop.time() < until_s and not all(p.process_checker.has_heard_all() for p in self.processes):  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(LOOK_S)
        for process in self.processes:
            process.process_checker.check_emptied()

    def _report(self, struck: Mapping[str, int], quiet_s: float) -> Report:
        everybody = [*self.processes, *self.ended]
        conflicts = [w.cycle.conflicts for p in everybody for w in p.program.router.workers()]
        return Report(
            seed=self.seed,
            is_shipped=self.setting.is_shipped,
            broken=tuple(self.broken),
            bound=len(self.bind_checker.bound),
            trace=self.trace,
            faults=Counter(self.faults.injected) + Counter(struck),
            conflicts_true=sum(c.true for c in conflicts),
            conflicts_false=sum(c.false for c in conflicts),
            mended=sum(p.program.audit.statistics().lost for p in everybody),
            set_aside=sum(w.queue.statistics().set_aside for p in everybody for w in p.program.router.workers()),
            quiet_s=quiet_s,
            virtual_s=self.loop.time(),
        )

    async def _end(self) -> None:
        for process in list(self.processes):
            await self.stop(process)


def run_seed(seed: int, *, is_hasty: bool = False, kinds: Sequence[str] | None = None) -> Report:
    """One whole run; deterministic in the seed. Hasty: over at the first broken invariant. `kinds`: of disruptions, no others."""
    loop = SimLoop(seed)
    run = Run(seed, loop, drawn(seed, kinds), is_hasty)
    return simulate(run.main(), loop)


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _is_expected(failure: str) -> bool:
    """Of a plugin that is there to fail, of extenders, which fail as services do, and about preferences that cannot be read."""
    return failure.startswith((FAULTY, EXTENDERS)) or ("PreScore" in failure and "Invalid value" in failure)


def _is_late(failure: str) -> bool:
    return "TimeoutError" in failure or "no answer" in failure
