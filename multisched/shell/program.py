"""The whole scheduler as one object: built from a configuration and a transport, run until it is stopped.

Composition root of everything behind the ports. `app` passes the real network, clock and seed; the simulation passes an
in-process transport and virtual time. Start: reflectors sync, then leases are acquired, then scheduling begins. Stop: no new
attempts, binds drain, leases are released, events drain, everything else is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import anyio
import msgspec

from multisched.client.binder import ApiBinder
from multisched.client.condition_writer import ApiConditionWriter
from multisched.client.event_sink import ApiEventSink
from multisched.client.history import History
from multisched.client.limits import WriteLimiter
from multisched.client.node_locks import ApiNodeLocks
from multisched.client.object_feed import ReflectorHandler
from multisched.client.pod_writer import ApiPodWriter
from multisched.client.read_troubles import ReadTroubles
from multisched.client.reflector import Reflector
from multisched.client.slice_writer import ApiSliceWriter
from multisched.client.volume_writer import ApiVolumeWriter
from multisched.config.nodes import NodeRouter
from multisched.config.plugins import plugin_registry
from multisched.config.schema import Configuration
from multisched.framework.background import InThread
from multisched.framework.events import ClusterEvent, EventObject
from multisched.framework.isolation import WorkerFactory
from multisched.framework.measures import Measures
from multisched.framework.ports import Clock
from multisched.framework.registry import Registry
from multisched.model.cluster_objects import ClusterObject
from multisched.model.decode import DESCRIPTION_BYTES_MAX, Decoder
from multisched.model.gang import ANNOTATIONS
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.model.selectors import Toleration
from multisched.model.wire import Transport
from multisched.shell.audit.audited_kinds import AuditedEndedPods, AuditedKind, AuditedNodes, AuditedPods
from multisched.shell.audit.auditor import Audit
from multisched.shell.audit.pod_repair import PodRepair
from multisched.shell.binding.volume_writes import CountedVolumeWriter
from multisched.shell.catch_up import CatchUp
from multisched.shell.domain import DomainWorker
from multisched.shell.domain_builder import DomainBuilder, SharedParts, annotations_of
from multisched.shell.domain_slices import SliceShell, own_slices, settle_slices
from multisched.shell.event_time_share import EventTimeShare
from multisched.shell.extenders import Extenders, OpenExtender
from multisched.shell.gangs_below_minimum import GangsBelowMinimum
from multisched.shell.history_guard import HistoryGuard
from multisched.shell.ingest.ended_pods import EndedPods
from multisched.shell.ingest.event_timing import EventTimes
from multisched.shell.ingest.gang_objects import mark_gang, note_gang, note_kind
from multisched.shell.ingest.key_remarks import KeyRemarks
from multisched.shell.ingest.pods_and_nodes import NodeIngest, PodIngest
from multisched.shell.ingest.router import Router
from multisched.shell.kept_objects import KeptObjects
from multisched.shell.leadership.cluster_lists import ClusterLists
from multisched.shell.leadership.handover import Handover
from multisched.shell.leadership.lease_runner import LeaseRunner, LeasesOnLoop
from multisched.shell.leadership.leases import Leases
from multisched.shell.leadership.takeover import Takeover
from multisched.shell.missing_plugins import MissingPlugins
from multisched.shell.mover import MoverView
from multisched.shell.object_watch import ObjectWatch, watched_kinds
from multisched.shell.observer import DomainObserver
from multisched.shell.preemptor import Preemptor
from multisched.shell.reload import Reload, Reloaded
from multisched.shell.removals import Removals
from multisched.shell.repairs import PlanRepair, Repairs
from multisched.shell.statuses import Statuses
from multisched.shell.step_clock import StepClock, Steps
from multisched.shell.workers.background_processes import ChildProcess, OpenProcess
from multisched.shell.workers.background_tasks import BackgroundTasks
from multisched.shell.workers.background_threads import BackgroundThreads
from multisched.shell.workers.plugin_workers import PluginWorkers
from multisched.state.cluster_cache import ClusterCache
from multisched.state.nominator import Nominator
from multisched.state.reservations import Reservations

if TYPE_CHECKING:
    from multisched.shell.audit.cluster_judge import ClusterJudge

logger = logging.getLogger(__name__)

DRAIN_S = 10.0
EVENTS_DRAIN_S = 3.0

RUNNING_PODS = "status.phase!=Succeeded,status.phase!=Failed"
"""Finished pods use no resources. With this selector the API server sends the end of a pod as a deletion."""


class LeaseLostError(Exception):
    """A held lease was lost: the process must exit, because another leader may be binding already."""


class ProgramPorts(msgspec.Struct, frozen=True):
    """The ports and settings that the caller passes to the program."""

    transport: Transport
    clock: Clock
    rng: random.Random
    identity: str
    lease_namespace: str
    observer: Callable[[str], DomainObserver]
    """Domain name -> its observer."""
    on_ready: Callable[[], None] = lambda: None
    """Called once, when all caches have synced for the first time."""
    registry: Registry | None = None
    """Plugins by name; None: the built-in ones."""
    worker_factory: WorkerFactory | None = None
    """Runs isolated plugins; None: in threads and processes."""
    open_extender: OpenExtender | None = None
    """Opens the client of an extender, or of a hook of a plugin; None: over HTTP."""
    measures: Measures | None = None
    """Source of measured values for plugins; None: no source. Closed with the program."""
    lease_runner: LeaseRunner | None = None
    """Renews the leases; None: on the program's own event loop."""
    background_threads: Callable[[], InThread] | None = None
    """Runs the computations of plugins' background tasks and the imports of the first audit; None: in threads."""
    plan_repairs: Callable[[Program], PlanRepair] | None = None
    """Creates the planner of repairs; None: this program has no planner."""
    open_process: OpenProcess = ChildProcess
    """Starts the process of the cluster judge."""
    steps: Steps | None = None
    """Limits the steps of attempts; None: by the clock."""
    pending: Callable[[], Iterable[Pod]] | None = None
    """Returns the pods without a node for plugins; None: those that the watch shows."""


class Program:
    """The scheduler: all domains over one cache."""

    def __init__(self, configuration: Configuration, ports: ProgramPorts) -> None:
        self._ports = ports
        self._configuration = configuration
        """The configuration at the start."""
        self._registry = ports.registry if ports.registry is not None else plugin_registry()
        self.clock, self.transport = ports.clock, ports.transport
        self.worker_factory = ports.worker_factory if ports.worker_factory is not None else PluginWorkers()
        self.limiter = WriteLimiter(ports.clock, writes_per_s=configuration.client.writes_per_second)
        self.binder = ApiBinder(ports.transport, self.limiter)
        self.volumes = CountedVolumeWriter(ApiVolumeWriter(ports.transport, self.limiter), ports.clock.monotonic)
        self.events = ApiEventSink(ports.transport, self.limiter, ports.clock, instance=ports.identity)
        self.conditions = ApiConditionWriter(ports.transport, self.limiter, ports.clock)
        self._extenders = Extenders(configuration.domains, ports.transport, ports.open_extender)
        self.background = BackgroundTasks(ports.clock, ports.rng, ports.background_threads, ports.open_extender)
        self.history = History()
        self._read_troubles = ReadTroubles(ports.clock)
        self.cache = ClusterCache()
        self.nominator = Nominator()
        self.reservations = Reservations(self.nominator)
        self.router = Router()
        self.cache.gangs.on_change = self.router.gang_changed
        self.cache.gangs.on_count = lambda key: mark_gang(self.statuses, self.cache.objects, key)
        self.statuses = self._statuses()
        self.event_times = EventTimes(ports.clock.monotonic, self.router)
        self.preemptor = Preemptor(
            ApiPodWriter(ports.transport, self.limiter, ports.clock),
            self.events,
            ports.clock,
            self.nominator,
            Removals(self.cache),
            self.router.worker_of,
        )
        self.decoder = Decoder()
        self.scheduler_names = {domain.name: domain.scheduler_names for domain in configuration.domains}
        self.leases = Leases(
            configuration,
            ports.lease_runner or LeasesOnLoop(ports.transport),
            ports.clock,
            ports.rng,
            self.history,
            identity=ports.identity,
            namespace=ports.lease_namespace,
            on_lost=lambda group: self.handover.lost(group),
        )
        self._closing, self._is_ready = asyncio.Event(), False
        nodes, domains = NodeRouter(configuration), self._domain_builder()
        self.pods = self._pod_ingest(domains.add_all(nodes))
        on_rewritten = (self.conditions.forget_written, self.statuses.history_rewritten, self.pods.history_rewritten)
        self.history.on_change(HistoryGuard(self.history, self.router, on_rewritten).changed)
        self.ended_pods = EndedPods(self.cache.gangs, self.decoder, self.pods, self.router.worker_of, self._watch_ended)
        self.statuses.serve(self.router.workers())
        self.pods.on_pending = self.statuses.pending_changed if self.statuses.has_pending_pods_plugins else None
        self.half_gangs = GangsBelowMinimum(self.cache, self.router, self.events, ports.clock)
        self.pod_repair = self._pod_repair()
        reporter = configuration.domains[0].scheduler_names[0]
        self.nodes = _node_ingest_of(self, nodes, reporter)
        self.reflectors = self._reflectors()
        self.objects = self._object_watch(reporter)
        self.statuses.reflectors = self.objects.reflectors
        self.missing_plugins = MissingPlugins(self.transport, self.objects, self.router.workers)
        self.lists = ClusterLists(self.reflectors, self.objects, ports.clock)
        self.handover = self._handover()
        self._reload = self._reloader(domains)
        self.repairs = _repairs_of(self)
        self.kept_objects = _kept_objects_of(self)
        self._slices = _slices_of(self)
        self._takeover = Takeover(self.leases, self.handover, self.lists, ports.clock, self._before_opening)
        self.catch_up = CatchUp(lambda: [(worker.plugins, worker.runner) for worker in self.router.workers()])
        self.audit = self._audit()
        self.judge = _judge_of(self, reporter)

    # -- building --------------------------------------------------------------------------------------------------

    def _domain_builder(self) -> DomainBuilder:
        ports = self._ports
        shared = SharedParts(
            clock=self.clock,
            rng=ports.rng,
            cache=self.cache,
            nominator=self.nominator,
            router=self.router,
            preemptor=self.preemptor,
            leases=self.leases,
            binder=self.binder,
            volumes=self.volumes,
            node_locks=partial(
                ApiNodeLocks,
                ports.transport,
                self.limiter,
                self.clock,
                timeout_s=self._configuration.client.bind_timeout_s,
            ),
            events=self.events,
            conditions=self.conditions,
            statuses=self.statuses,
            pending=ports.pending or (lambda: self.pods.pending.values()),
            extenders=self._extenders,
            event_time_share=EventTimeShare(lambda: self.event_times.handled, self.clock.monotonic),
            steps=ports.steps if ports.steps is not None else StepClock(self.clock.monotonic),
            worker_factory=self.worker_factory,
            measures=ports.measures,
            observer=ports.observer,
        )
        return DomainBuilder(self._configuration, self._registry, shared)

    def _reloader(self, domains: DomainBuilder) -> Reload:
        return Reload(
            self._configuration,
            domains,
            self._registry,
            self.pods,
            self.statuses,
            self.background,
            watched=self.objects.ingests,
            keep_annotations=self.decoder.keep,
        )

    def _pod_ingest(self, tolerations: Mapping[str, tuple[Toleration, ...]]) -> PodIngest:
        """`tolerations`: schedulerName -> tolerations that its domain adds to its pods."""
        self.decoder.keep(self.cache.ledgers.node_annotations, DESCRIPTION_BYTES_MAX)
        self.decoder.keep(self.cache.ledgers.read_annotations.union(ANNOTATIONS, annotations_of(tolerations)))
        return PodIngest(
            self.cache,
            self.nominator,
            self.router,
            self.decoder,
            self.clock,
            tolerations=tolerations,
            on_deleting=self.preemptor.on_victim_deleting,
            offer=self.reservations.offer,
            remark=KeyRemarks(self.events).see,
        )

    def _watch_ended(self, selector: str, handler: ReflectorHandler) -> Reflector:
        """Builds the reflector of ended pods, which the audit compares from then on."""
        reflector = self._reflector("/api/v1/pods", handler, selector, name="/api/v1/pods, ended")
        self.audit.add(AuditedEndedPods(reflector, selector))
        return reflector

    def _pod_repair(self) -> PodRepair:
        return PodRepair(
            self.pods, self.cache, self.router, self.decoder, self.clock, on_deleting=self.preemptor.on_victim_deleting
        )

    def _handover(self) -> Handover:
        handover = Handover(
            self._configuration,
            self.transport,
            self.clock,
            self._ports.lease_namespace,
            self.cache,
            self.router,
            self.pods,
            self.reflectors["nodes"],
            RUNNING_PODS,
            self.lists.see_all_binds_before,
        )
        handover.guard(self.leases.keepers, {w.name: self.router.rows_of(w) for w in self.router.workers()})
        return handover

    def _reflectors(self) -> dict[str, Reflector]:
        """Builds the reflectors that every program has."""
        nodes = self.event_times.watching("Node", self._extenders.watching(self.nodes))
        pods = self.event_times.watching("Pod", self.pods)
        return {
            "nodes": self._reflector("/api/v1/nodes", nodes),
            "pods": self._reflector("/api/v1/pods", pods, RUNNING_PODS),
        }

    def _statuses(self) -> Statuses:
        timeout_s = self._configuration.client.bind_timeout_s
        return Statuses(self.transport, self.limiter, self.clock, self.cache.objects, timeout_s=timeout_s)

    def _object_watch(self, reporter: str) -> ObjectWatch:
        times, statuses = self.event_times, self.statuses
        return ObjectWatch(
            watched_kinds(worker.plugins for worker in self.router.workers()),
            self.cache.objects,
            self._reflector,
            notify=self._notify_all,
            events=self.events,
            reporter=reporter,
            watching=lambda kind, handler: times.watching(kind.value, statuses.watching(kind, handler)),
            on_state=partial(note_kind, self.cache.gangs),
            reads_nothing=lambda: all(one.staleness_s() > 0.0 for one in self.reflectors.values()),
        )

    def _reflector(
        self,
        path: str,
        handler: ReflectorHandler,
        selector: str = "",
        *,
        on_refused: Callable[[str], None] | None = None,
        is_optional: bool = False,
        or_paths: Sequence[str] = (),
        name: str = "",
    ) -> Reflector:
        return Reflector(
            self._ports.transport,
            path,
            handler=handler,
            clock=self.clock,
            rng=random.Random(self._ports.rng.random()),  # noqa: S311 - jitter, not a secret
            field_selector=selector,
            on_refused=on_refused,
            history=self.history,
            is_optional=is_optional,
            or_paths=or_paths,
            name=name,
            troubles=self._read_troubles,
        )

    def _audit(self) -> Audit:
        audited_kinds: list[AuditedKind] = [
            AuditedNodes(self.cache, self.nodes, self.reflectors["nodes"]),
            AuditedPods(self.cache, self.pods, self.pod_repair, self.reflectors["pods"], RUNNING_PODS),
            *self.objects.audited_kinds(),
        ]
        rng = random.Random(self._ports.rng.random())  # noqa: S311 - jitter, not a secret
        threads = self._ports.background_threads
        return Audit(
            self._ports.transport,
            self.binder,
            self.cache,
            self.pods,
            self.pod_repair,
            audited_kinds,
            self.history,
            self.clock,
            rng,
            in_thread=BackgroundThreads() if threads is None else threads(),
            bind_deadline_s=self._configuration.client.bind_timeout_s,
            period_s=self._configuration.client.audit_period_s,
        )

    def _notify_all(self, event: ClusterEvent, old: EventObject, new: EventObject) -> None:
        note_gang(self.cache.gangs, event.resource, old, new)
        changed = new or old
        if isinstance(event.resource, ObjectKind) and isinstance(changed, ClusterObject):
            self.cache.object_changed(event.resource, changed)
        self.router.notify(event, old, new, self.clock.monotonic())

    # -- running ---------------------------------------------------------------------------------------------------

    @property
    def configuration(self) -> Configuration:
        """The configuration in force."""
        return self._reload.in_force

    def reload(self, configuration: Configuration) -> Reloaded:
        """Applies the changes of another configuration that need no restart.

        If a plugin cannot be built, raises PluginSetupError and changes nothing.
        """
        return self._reload.apply(configuration)

    @property
    def ports(self) -> ProgramPorts:
        return self._ports

    @property
    def is_ready(self) -> bool:
        """True once all caches have synced, until the program stops."""
        return self._is_ready and not self._closing.is_set()

    @property
    def is_closing(self) -> bool:
        return self._closing.is_set()

    def stop(self) -> None:
        """Begins the graceful stop; `run` returns when it is complete."""
        self._closing.set()

    async def run(self) -> None:
        """Runs until `stop`. Raises LeaseLostError if a held lease is lost."""
        try:
            await self._run()
        finally:
            with anyio.CancelScope(shield=True):
                await self.worker_factory.close()
                await self._extenders.close()

    async def _run(self) -> None:
        async with anyio.create_task_group() as tasks:
            if self.leases.keepers:
                tasks.start_soon(self.leases.run)
            await self.leases.try_all()
            self.lists.begin()
            self.handover.held_before_list(self.leases.may_be_bound_by())
            for reflector in (*self.reflectors.values(), *self.objects.reflectors.values()):
                tasks.start_soon(reflector.run)
            parts = (self.ended_pods, self.half_gangs, self.missing_plugins, self.events)
            shown = (self.kept_objects, self.conditions, *((self.statuses,) if self.statuses.kinds else ()))
            judges = (self.judge,) if self.judge is not None else ()
            for part in (*parts, *shown, self.preemptor, self.audit, self.catch_up, *judges, self.handover):
                tasks.start_soon(part.run)
            for worker in self.router.workers():
                tasks.start_soon(worker.run)
                tasks.start_soon(self._lead, worker)
                tasks.start_soon(self._run_background, worker)
            await self._closing.wait()
            await self._drain()
            tasks.cancel_scope.cancel()

    async def _lead(self, worker: DomainWorker) -> None:
        """Starts scheduling once the caches have synced and the lease is held; raises LeaseLostError if it is lost."""
        await self.lists.complete()
        await self.catch_up.once()
        if not self._is_ready:
            self._is_ready = True
            self._ports.on_ready()
        await self._takeover.open(worker)
        settle_slices(worker)
        worker.lead()
        self.statuses.lead(worker)
        self.pods.notify_owners(worker)
        logger.info("scheduling", extra={"domain": worker.name, "schedulerNames": self.scheduler_names[worker.name]})
        if self.leases.get(worker.name) is None:
            return
        await self.leases.until_lost(worker.name)
        if not self._closing.is_set():
            raise LeaseLostError(f"the lease of domain {worker.name} was lost")

    async def _before_opening(self, worker: DomainWorker) -> None:
        await self.kept_objects.read(worker)  # may restore a quota tree, under which all pods are then counted
        await self.catch_up.once()
        await own_slices(worker, self._slices)

    async def _run_background(self, worker: DomainWorker) -> None:
        """Runs background tasks once the caches have synced. An earlier result would be incomplete and stay in use until the next."""
        await self.lists.complete()
        await self.background.run(worker.name, worker.plugins, self.repairs.mover(worker))

    async def _drain(self) -> None:
        workers = self.router.workers()
        for worker in workers:
            worker.close_intake()
        with anyio.move_on_after(DRAIN_S):
            for worker in workers:
                await worker.drained()
        with anyio.move_on_after(EVENTS_DRAIN_S):
            await self.leases.release(workers)
        await self.events.drain(EVENTS_DRAIN_S)


def _node_ingest_of(program: Program, nodes: NodeRouter, reporter: str) -> NodeIngest:
    return NodeIngest(
        program.cache,
        program.router,
        program.decoder,
        program.clock,
        program.events,
        reporter,
        disputed=nodes.disputed,
        unknown_domain=nodes.unknown_domain,
    )


def _repairs_of(program: Program) -> Repairs:
    plans = program.ports.plan_repairs
    return Repairs(
        MoverView(
            program.cache,
            program.pods,
            program.reservations,
            program.preemptor.removals,
            program.router,
            program.clock,
        ),
        program.transport,
        program.limiter,
        program.binder,
        program.events,
        namespace=program.ports.lease_namespace,
        name_prefix=program.configuration.lease.name_prefix,
        scheduler_names=program.scheduler_names,
        open_planner=None if plans is None else partial(plans, program),
        is_closing=lambda: program.is_closing,
    )


def _kept_objects_of(program: Program) -> KeptObjects:
    return KeptObjects(
        program.transport,
        program.limiter,
        program.clock,
        lambda: program.router.workers(),
        lambda kind, raw: program.objects.ingests[kind].restore_deleted(raw),
        lambda: program.is_closing,
        namespace=program.ports.lease_namespace,
        name_prefix=program.configuration.lease.name_prefix,
    )


def _slices_of(program: Program) -> SliceShell:
    def term_of(domain: str) -> int:
        lease = program.leases.get(domain)
        return 0 if lease is None else lease.number

    def holds(domain: str) -> bool:
        lease = program.leases.get(domain)
        return lease is None or lease.is_leading

    return SliceShell(
        program.transport,
        ApiSliceWriter(program.transport, program.limiter),
        lambda: program.is_closing,
        term_of,
        partial(program.leases.watcher_of, program.transport),
        holds,
        lambda: program.lists.see_all_binds_before(program.clock.monotonic()),
        program.ports.lease_namespace,
    )


def _judge_of(program: Program, reporter: str) -> ClusterJudge | None:
    """Builds the judge if the configuration's `verify` enables it. It runs only on the leader of the first domain."""
    every_s, ports = program.configuration.verify.every_s, program.ports
    if every_s is None:
        return None
    from multisched.config.domains import judged_domains
    from multisched.shell.audit.cluster_judge import FACTORY, ClusterJudge

    lease = program.leases.get(program.configuration.domains[0].name)
    return ClusterJudge(
        ports.transport,
        lambda: ports.open_process(FACTORY, judged_domains(program.configuration), 0),
        program.events,
        program.clock,
        every_s=every_s,
        reporter=reporter,
        may_look=lambda: lease is None or lease.may_bind(),
    )
