"""The whole scheduler as one object: built from a configuration and a transport, run until told to stop.

Composition root of everything behind the ports. `app` gives it the real network, clock and seed; the simulation gives
it an in-process transport under virtual time. Start: reflectors sync, then leases, then decisions. Stop: intake ends,
binds drain, leases are given back, events follow, everything else is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import anyio
import msgspec

from multisched.client.binder import ApiBinder
from multisched.client.condition_writer import ApiConditionWriter
from multisched.client.event_sink import ApiEventSink
from multisched.client.evictor import ApiEvictor
from multisched.client.history import History
from multisched.client.kept_document import ConfigMapKeeper
from multisched.client.lease import LeaseKeeper
from multisched.client.lease_record import Holding
from multisched.client.lease_term import LeaseSettings, LeaseState, LeaseTerm
from multisched.client.limits import WriteLimiter
from multisched.client.object_feed import ReflectorHandler
from multisched.client.pod_writer import ApiPodWriter
from multisched.client.reflector import Reflector
from multisched.client.volume_writer import ApiVolumeWriter
from multisched.config.nodes import NodeRouter, lease_groups
from multisched.config.plugins import plugin_registry, resolve_profile
from multisched.config.schema import Configuration, DomainConfig
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.background import InThread
from multisched.framework.context import PluginContext
from multisched.framework.events import ClusterEvent, EventObject
from multisched.framework.isolation import Isolator, Workshop
from multisched.framework.measures import Measures
from multisched.framework.ports import Clock, LeaseHolder
from multisched.framework.registry import PluginSet, Registry, build_profile
from multisched.framework.repair import RepairAsked, RepairPlan, RepairRefusedError
from multisched.framework.runner import Runner
from multisched.model.decode import Decoder
from multisched.model.limited_toleration import LimitedToleration
from multisched.model.selectors import Toleration
from multisched.model.wire import Transport
from multisched.queueing.backoff import BackoffPolicy
from multisched.queueing.pod_queue import PodQueue
from multisched.shell.audit.auditor import Audit
from multisched.shell.audit.sides import NodeSide, PodSide, Side
from multisched.shell.binding.volume_writes import CountedVolumeWriter
from multisched.shell.catch_up import CatchUp
from multisched.shell.domain import DomainWorker
from multisched.shell.extenders import Extenders, OpenExtender
from multisched.shell.ingest.event_timing import EventTimes
from multisched.shell.ingest.gang_objects import note_gang
from multisched.shell.ingest.pods_and_nodes import NodeIngest, PodIngest
from multisched.shell.ingest.router import Router
from multisched.shell.leadership.handover import Handover
from multisched.shell.leadership.lease_runner import LeaseRunner, LeasesOnLoop
from multisched.shell.mover import DomainMover, MoverPorts, MoverView
from multisched.shell.news_share import NewsShare
from multisched.shell.object_watch import ObjectWatch, watched_kinds
from multisched.shell.observer import DomainObserver
from multisched.shell.preemptor import Preemptor
from multisched.shell.scheduling.ports import DomainPorts
from multisched.shell.workers.background_processes import ChildProcess, OpenProcess
from multisched.shell.workers.background_tasks import BackgroundTasks
from multisched.shell.workers.plugin_workers import PluginWorkers
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.state.gang_roster import GangRoster
from multisched.state.nominator import Nominator
from multisched.state.reservations import Reservations

if TYPE_CHECKING:
    from multisched.shell.audit.cluster_judge import ClusterJudge

logger = logging.getLogger(__name__)

DRAIN_S = 10.0
EVENTS_DRAIN_S = 3.0
LEASES_FIRST_S = 0.5
"""How long the first list waits for free leases; with them held it need not be read a second time."""
LEASE_LOOK_MIN_S, LEASE_LOOK_MAX_S = 0.05, 1.0
"""Between two looks at a lease that is held and may not be bound by yet."""

PlanRepair = Callable[[RepairAsked], Awaitable[RepairPlan]]
"""A plan for the cluster as it is; raises RepairRefusedError."""

RUNNING_PODS = "status.phase!=Succeeded,status.phase!=Failed"
"""Ended pods hold nothing; the server sends their end as a deletion under this selector."""


class LeaseLostError(Exception):
    """A lease that was held is lost: the process must end, as another may be binding already."""


class _Always(LeaseHolder):
    """Leadership where only one process can run."""

    def may_bind(self) -> bool:
        return True


class _Trusting(LeaseHolder):
    """A lease that is good for nothing while nobody knows what the cluster is like."""

    def __init__(self, lease: LeaseHolder, history: History) -> None:
        self._lease = lease
        self._history = history

    def may_bind(self) -> bool:
        return self._history.is_trusted and self._lease.may_bind()


class ProgramPorts(msgspec.Struct, frozen=True):
    """What the program needs from outside."""

    transport: Transport
    clock: Clock
    rng: random.Random
    identity: str
    lease_namespace: str
    observer: Callable[[str], DomainObserver]
    """Domain name -> who hears of it."""
    on_ready: Callable[[], None] = lambda: None
    """Called once, when all caches are in step with the server for the first time."""
    registry: Registry | None = None
    """Plugins by name; None: those that ship."""
    workshop: Workshop | None = None
    """Where isolated plugins run; None: in threads and processes."""
    open_extender: OpenExtender | None = None
    """How extenders are reached; None: over HTTP."""
    measures: Measures | None = None
    """How plugins come to what is measured; None: not at all. Closed with the program."""
    lease_runner: LeaseRunner | None = None
    """Where leases are renewed; None: on the program's own loop."""
    background_threads: Callable[[], InThread] | None = None
    """Where the background tasks of plugins compute; None: in threads."""
    plan_repairs: Callable[[Program], PlanRepair] | None = None
    """Who plans repairs on a copy of the program; None: nobody."""
    open_process: OpenProcess = ChildProcess
    """How the process of the cluster's judge is begun."""


class Program:
    """All domains over one cache."""

    def __init__(self, configuration: Configuration, outside: ProgramPorts) -> None:
        self._configuration = configuration
        self._outside = outside
        self.clock = outside.clock
        self.transport = outside.transport
        self.workshop = outside.workshop if outside.workshop is not None else PluginWorkers()
        self.limiter = WriteLimiter(outside.clock, writes_per_s=configuration.client.writes_per_second)
        self.binder = ApiBinder(outside.transport, self.limiter)
        writer = ApiVolumeWriter(outside.transport, self.limiter)
        self.volumes = CountedVolumeWriter(writer, outside.clock.monotonic)
        self.events = ApiEventSink(outside.transport, self.limiter, outside.clock, instance=outside.identity)
        self.conditions = ApiConditionWriter(outside.transport, self.limiter, outside.clock)
        self._extenders = Extenders(configuration.domains, outside.transport, outside.open_extender)
        self.background = BackgroundTasks(outside.clock, outside.rng, outside.background_threads)
        self.history = History()
        self.history.on_change(self._history_changed)
        self.cache = ClusterCache()
        self.nominator = Nominator()
        self.reservations = Reservations(self.nominator)
        self.router = Router()
        self.cache.gangs.on_change = self.router.tell_gang
        self.event_times = EventTimes(outside.clock.monotonic, self.router)
        self._news = NewsShare(lambda: self.event_times.handled, outside.clock.monotonic)
        self.preemptor = Preemptor(
            ApiPodWriter(outside.transport, self.limiter, outside.clock),
            self.events,
            outside.clock,
            self.nominator,
            self.router.worker_of,
        )
        self.decoder = Decoder()
        self.leases: dict[str, LeaseTerm] = {}
        self.scheduler_names = {domain.name: domain.scheduler_names for domain in configuration.domains}
        runner = outside.lease_runner
        self._lease_runner = runner if runner is not None else LeasesOnLoop(outside.transport)
        self._held: dict[str, asyncio.Event] = {}
        self._lost: dict[str, asyncio.Event] = {}
        """By group, as the program has been told."""
        self._keepers: dict[str, LeaseKeeper] = {}
        self._groups = lease_groups(configuration)
        self._closing = asyncio.Event()
        self._is_ready = False
        self._rewritten = 0
        """Rewritings of history after which everything has been decided anew."""
        self._plan_repair: PlanRepair | None = None
        self._listing_from_s = -math.inf
        self._relisting = asyncio.Lock()
        self._profiles: list[tuple[PluginSet, Runner]] = []
        nodes = NodeRouter(configuration)
        tolerations = self._add_domains(nodes)
        self.pods = self._pod_ingest(tolerations)
        reporter = configuration.domains[0].scheduler_names[0]
        self.nodes = NodeIngest(
            self.cache, self.router, self.decoder, outside.clock, self.events, reporter, disputed=nodes.disputed
        )
        self.reflectors = self._reflectors()
        self.handover = self._handover()
        self.objects = ObjectWatch(
            watched_kinds(worker.plugins for worker in self.router.workers()),
            self.cache.objects,
            self._reflector,
            tell=self._tell_all,
            events=self.events,
            reporter=reporter,
            times=self.event_times,
        )
        self.catch_up = CatchUp(self._profiles)
        self.audit = self._audit()
        self.judge = self._judge(reporter)

    # -- building --------------------------------------------------------------------------------------------------

    def _add_domains(self, nodes: NodeRouter) -> Mapping[str, tuple[Toleration, ...]]:
        """Returns what each schedulerName's domain adds to its pods."""
        registry = self._outside.registry if self._outside.registry is not None else plugin_registry()
        tolerations: dict[str, tuple[Toleration, ...]] = {}
        for domain in self._configuration.domains:
            self._add_domain(domain, nodes, registry)
            for name in domain.scheduler_names:
                tolerations[name] = domain.policy.compile()
        limited = [t for added in tolerations.values() for t in added if isinstance(t, LimitedToleration)]
        self.decoder.keep(self.cache.ledgers.annotations.union(*(t.pods.annotations for t in limited)))
        return tolerations

    def _pod_ingest(self, tolerations: Mapping[str, tuple[Toleration, ...]]) -> PodIngest:
        return PodIngest(
            self.cache,
            self.nominator,
            self.router,
            self.decoder,
            self.clock,
            tolerations=tolerations,
            going=self.preemptor.saw_going,
            offer=self.reservations.offer,
        )

    def _handover(self) -> Handover:
        handover = Handover(
            self._configuration,
            self.transport,
            self.clock,
            self._outside.lease_namespace,
            self.cache,
            self.router,
            self.pods,
            self.reflectors["nodes"],
            RUNNING_PODS,
            self._see_all_binds_before,
        )
        handover.guard(self._keepers, {w.name: self.router.rows_of(w) for w in self.router.workers()})
        return handover

    def _reflectors(self) -> dict[str, Reflector]:
        """Of what every program watches."""
        nodes = self.event_times.watching("Node", self._extenders.watching(self.nodes))
        pods = self.event_times.watching("Pod", self.pods)
        return {
            "nodes": self._reflector("/api/v1/nodes", nodes),
            "pods": self._reflector("/api/v1/pods", pods, RUNNING_PODS),
        }

    def _reflector(
        self,
        path: str,
        handler: ReflectorHandler,
        selector: str = "",
        *,
        on_refused: Callable[[Exception], None] | None = None,
    ) -> Reflector:
        return Reflector(
            self._outside.transport,
            path,
            handler=handler,
            clock=self.clock,
            rng=random.Random(self._outside.rng.random()),  # noqa: S311 - jitter, not a secret
            field_selector=selector,
            on_refused=on_refused,
            history=self.history,
        )

    def _audit(self) -> Audit:
        sides: list[Side] = [
            NodeSide(self.cache, self.nodes, self.reflectors["nodes"]),
            PodSide(self.cache, self.pods, self.reflectors["pods"], RUNNING_PODS),
            *self.objects.sides(),
        ]
        rng = random.Random(self._outside.rng.random())  # noqa: S311 - jitter, not a secret
        period_s = self._configuration.client.audit_period_s
        return Audit(
            self._outside.transport,
            self.binder,
            self.cache,
            self.pods,
            sides,
            self.history,
            self.clock,
            rng,
            bind_deadline_s=self._configuration.client.bind_timeout_s,
            period_s=period_s,
        )

    def _judge(self, reporter: str) -> ClusterJudge | None:
        """Of the configuration's `verify`; the leader of the first domain looks."""
        every_s = self._configuration.verify.every_s
        if every_s is None:
            return None
        from multisched.config.domains import judged_domains
        from multisched.shell.audit.cluster_judge import FACTORY, ClusterJudge

        first = self._configuration.domains[0].name
        lease = self.leases.get(first)
        return ClusterJudge(
            self._outside.transport,
            self._outside.open_process(FACTORY, judged_domains(self._configuration), 0),
            self.events,
            self.clock,
            every_s=every_s,
            reporter=reporter,
            may_look=lambda: lease is None or lease.may_bind(),
        )

    def _add_domain(self, domain: DomainConfig, nodes: NodeRouter, registry: Registry) -> None:
        rows = DomainRows(domain.name, nodes.usable_by(domain.name))
        self.cache.add_domain(rows)
        waiting = WaitingPodTable()
        context = PluginContext(
            domain.name,
            self.cache.nodes,
            waiting,
            self.cache.ledgers,
            self.cache.objects,
            self.volumes,
            preemptions=self.preemptor,
            nominations=self.nominator,
            gangs=self.cache.gangs,
            measures=self._outside.measures,
            rows=lambda: rows.rows,
            scheduler_names=self._configuration.served,
        )
        profile, beside = resolve_profile(domain, registry), self._extenders.plugins_of(domain)
        plugins = build_profile(profile, registry, context, Isolator(self.workshop), beside)
        observer = self._outside.observer(domain.name)
        runner = Runner(observer, self.clock.monotonic)
        self._profiles.append((plugins, runner))
        worker = DomainWorker(
            domain.name,
            cycle=SchedulingCycle(
                plugins, runner, self.cache, rows, self.nominator, seed=self._outside.rng.getrandbits(32)
            ),
            queue=_queue(domain, plugins, observer, self.clock.monotonic, self.cache.gangs),
            waiting=waiting,
            runner=runner,
            cache=self.cache,
            outside=DomainPorts(
                self.clock,
                self.binder,
                self.events,
                self.conditions,
                _Trusting(self._lease(domain.name), self.history),
                observer,
                self._news,
            ),
            cycles=domain.concurrency.cycles,
            bind_workers=min(domain.concurrency.bind_workers, domain.concurrency.max_in_flight_binds),
            bind_timeout_s=self._configuration.client.bind_timeout_s,
            listeners=self.router,
            preemptor=self.preemptor,
        )
        self.router.add(worker, rows, domain.scheduler_names)

    def _lease(self, domain: str) -> LeaseHolder:
        """The lease of the domain's group: domains that share rows by a loan share one lease, and so one process."""
        settings = self._configuration.lease
        if not settings.enabled:
            return _Always()
        group = self._groups[domain]
        keeper = self._keepers.get(group)
        if keeper is None:
            self._held[group], self._lost[group] = asyncio.Event(), asyncio.Event()
            keeper = self._keepers[group] = LeaseKeeper(
                self._lease_runner.transport,
                namespace=self._outside.lease_namespace,
                name=f"{settings.name_prefix}-{group}",
                identity=self._outside.identity,
                clock=self.clock,
                rng=random.Random(self._outside.rng.random()),  # noqa: S311 - jitter, not a secret
                settings=LeaseSettings(
                    settings.duration_s,
                    settings.renew_deadline_s,
                    settings.retry_period_s,
                    self._configuration.client.bind_timeout_s,
                ),
                on_change=partial(self._lease_runner.tell, self._lease_changed, group),
                is_alive=self._lease_runner.is_alive,
            )
        self.leases[domain] = keeper.term
        return keeper.term

    def _lease_changed(self, group: str, state: LeaseState) -> None:
        logger.info("lease", extra={"group": group, "state": state.name})
        held, lost = self._held[group], self._lost[group]
        if state is LeaseState.LEADING:
            lost.clear()
            held.set()
        else:
            held.clear()
            lost.set()
            self.handover.lost(group)

    def _history_changed(self, is_trusted: bool) -> None:
        is_rewritten = is_trusted and self.history.rewritten != self._rewritten
        for worker in self.router.workers():
            if not is_trusted:
                worker.hold()
            elif is_rewritten:
                worker.go_on(turned_back="the server's history went back before the pod was bound")
            else:
                worker.go_on()
        if is_rewritten:
            self._rewritten = self.history.rewritten
            self.conditions.forget_written()

    def _mover(self, worker: DomainWorker) -> DomainMover:
        """What the domain's background tasks move pods with."""
        name = f"{self._configuration.lease.name_prefix}-repair-{worker.name}"
        return DomainMover(
            worker,
            MoverView(self.cache, self.pods, self.reservations, self.router, self.clock),
            MoverPorts(
                self.binder,
                ApiEvictor(self.transport, self.limiter),
                ConfigMapKeeper(self.transport, self.limiter, self._outside.lease_namespace, name),
                self.events,
                self.plan_repair,
                lambda: self.is_closing,
                self.scheduler_names[worker.name][0],
            ),
        )

    async def plan_repair(self, asked: RepairAsked) -> RepairPlan:
        """As the cluster is now, in a thread. Raises RepairRefusedError."""
        if self._plan_repair is None:
            if self._outside.plan_repairs is None:
                raise RepairRefusedError("nobody plans repairs in this process", status=404)
            self._plan_repair = self._outside.plan_repairs(self)
        return await self._plan_repair(asked)

    def _tell_all(self, event: ClusterEvent, old: EventObject, new: EventObject) -> None:
        note_gang(self.cache.gangs, event, old, new)
        self.router.tell(event, old, new, self.clock.monotonic())

    # -- running ---------------------------------------------------------------------------------------------------

    @property
    def configuration(self) -> Configuration:
        return self._configuration

    @property
    def outside(self) -> ProgramPorts:
        return self._outside

    @property
    def is_ready(self) -> bool:
        """True once all caches are in step with the server and intake is open."""
        return self._is_ready and not self._closing.is_set()

    @property
    def is_closing(self) -> bool:
        return self._closing.is_set()

    def stop(self) -> None:
        """Begins the orderly end; `run` returns when it is done."""
        self._closing.set()

    async def run(self) -> None:
        """Runs until `stop`. Raises LeaseLostError when a lease that was held is lost."""
        try:
            await self._run()
        finally:
            with anyio.CancelScope(shield=True):
                await self.workshop.close()
                await self._extenders.close()
                if self._outside.measures is not None:
                    await self._outside.measures.close()

    async def _run(self) -> None:
        async with anyio.create_task_group() as tasks:
            if self._keepers:
                tasks.start_soon(self._lease_runner.run, list(self._keepers.values()))
            await self._try_leases()
            self._listing_from_s = self.clock.monotonic()
            self.handover.held_before_list(
                group for group, keeper in self._keepers.items() if keeper.term.may_bind_if_new()
            )
            for reflector in (*self.reflectors.values(), *self.objects.reflectors.values()):
                tasks.start_soon(reflector.run)
            tasks.start_soon(self.events.run)
            tasks.start_soon(self.conditions.run)
            tasks.start_soon(self.preemptor.run)
            tasks.start_soon(self.audit.run)
            tasks.start_soon(self.catch_up.run)
            if self.judge is not None:
                tasks.start_soon(self.judge.run)
            tasks.start_soon(self.handover.run)
            for worker in self.router.workers():
                tasks.start_soon(worker.run)
                tasks.start_soon(self._lead, worker)
                tasks.start_soon(self._run_background, worker)
            await self._closing.wait()
            await self._drain()
            tasks.cancel_scope.cancel()

    async def _try_leases(self) -> None:
        """A free lease is taken before the first list, which is then new enough to bind by."""
        with anyio.move_on_after(LEASES_FIRST_S):
            for held in self._held.values():
                await held.wait()

    async def _see_all_binds_before(self, since_s: float) -> None:
        """Lists anew unless a list began after `since_s`: a standby's watch may lag behind the last leader's binds.

        Without this a new leader places pods on rows that the old one has filled (found by simulation; I1).
        """
        async with self._relisting:
            if self._listing_from_s >= since_s:
                return
            began_s = self.clock.monotonic()
            for reflector in self.reflectors.values():
                await reflector.relist()
            self._listing_from_s = began_s

    async def _lead(self, worker: DomainWorker) -> None:
        """Opens the domain once its caches are true and its lease is held; a lost lease ends the process."""
        await self._caches_true()
        await self.catch_up.once()
        if not self._is_ready:
            self._is_ready = True
            self._outside.on_ready()
        lease = self.leases.get(worker.name)
        if lease is not None:
            await self._open(worker, lease)
        worker.lead()
        self.pods.tell_owners(worker)
        if lease is None:
            return
        await self._lost[self._groups[worker.name]].wait()
        if not self._closing.is_set():
            raise LeaseLostError(f"the lease of domain {worker.name} is lost")

    async def _open(self, worker: DomainWorker, lease: LeaseTerm) -> None:
        """Returns once the lease is held, and all is known that was bound by it before."""
        term = 0
        while term != lease.number or not lease.may_bind():
            await self._until_may_bind(worker.name, lease)
            term = lease.number  # it may be lost, and won again, while lists are read
            others: Mapping[str, Holding | None] = {}
            if not self.handover.is_settled(worker.name):
                others = await self.handover.others(worker.name)
                await self._see_all_binds_before(self.clock.monotonic())
        self.handover.open(worker, others)

    async def _until_may_bind(self, domain: str, lease: LeaseTerm) -> None:
        """The program hears later than the keeper: a lease that it counts as held may be lost again already."""
        held = self._held[self._groups[domain]]
        await held.wait()
        await self.handover.judge_new_leases(domain)
        while not lease.may_bind():
            await anyio.sleep(min(max(lease.may_bind_in_s(), LEASE_LOOK_MIN_S), LEASE_LOOK_MAX_S))
            await held.wait()

    async def _run_background(self, worker: DomainWorker) -> None:
        """Begun once the caches are true: what a background task learns before it knows the pods stays in force until it learns again."""
        await self._caches_true()
        await self.background.run(worker.name, worker.plugins, self._mover(worker))

    async def _caches_true(self) -> None:
        for reflector in self.reflectors.values():
            await reflector.wait_synced()
        await self.objects.wait_settled()

    async def _drain(self) -> None:
        workers = self.router.workers()
        for worker in workers:
            worker.close_intake()
        with anyio.move_on_after(DRAIN_S):
            for worker in workers:
                await worker.drained()
        with anyio.move_on_after(EVENTS_DRAIN_S):
            for group, keeper in self._keepers.items():
                if all(worker.is_drained for worker in workers if self._groups[worker.name] == group):
                    await self._lease_runner.release(keeper)
                else:
                    logger.warning("lease runs out: binds are still under way", extra={"group": group})
        await self.events.drain(EVENTS_DRAIN_S)

    def statistics(self) -> Mapping[str, Mapping[str, object]]:
        """Per domain: what waits, what was bound, how long it took, how often cycles met."""
        found: dict[str, Mapping[str, object]] = {}
        for worker in self.router.workers():
            queue = worker.queue.statistics()
            found[worker.name] = {
                "pending": dict(queue.pending),
                "in_flight": queue.in_flight,
                "bound": worker.counters.bound,
                "latencies_s": worker.latencies_s,
                "conflicts_true": worker.cycle.conflicts.true,
                "conflicts_false": worker.cycle.conflicts.false,
            }
        return found


def _queue(
    domain: DomainConfig,
    plugins: PluginSet,
    observer: DomainObserver,
    stopwatch: Callable[[], float],
    gangs: GangRoster,
) -> PodQueue:
    return PodQueue(
        plugins.queue_sort,
        plugins.pre_enqueue,
        [built.plugin for built in plugins.built],
        on_error=observer.plugin_failed,
        backoff=BackoffPolicy(domain.queue.initial_backoff_s, domain.queue.max_backoff_s),
        leftover_s=domain.queue.unschedulable_flush_s,
        stopwatch=stopwatch,
        gangs=gangs,
    )
