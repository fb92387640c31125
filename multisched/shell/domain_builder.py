"""Builds the domains of one program (profiles, queues and workers) over the parts that they share.

Owns the inputs of each domain, so that another profile can be built for it while it runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import msgspec
from msgspec.structs import replace

from multisched.client.binder import ApiBinder
from multisched.config.loans import borrowers_of, loans_use
from multisched.config.nodes import NodeRouter
from multisched.config.plugins import resolve_profile
from multisched.config.quota_sharing import quota_sharing_of, sharing_profile
from multisched.config.schema import Configuration, DomainConfig
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.context import Placed, PluginContext
from multisched.framework.events import Action, ClusterEvent, Resource
from multisched.framework.gangs import GANG_PLUGIN
from multisched.framework.isolation import Isolator, Worker, WorkerFactory
from multisched.framework.ledger import ClusterLedger, Ledger, LedgerSettingsError
from multisched.framework.measures import Measures
from multisched.framework.object_status import StatusMarks
from multisched.framework.points import Plugin
from multisched.framework.ports import Clock, ConditionWriter, EventSink, LeaseHolder, NodeLocks, VolumeWriter
from multisched.framework.registry import PluginSet, PluginUse, Profile, Registry, RestartNeededError, build_profile
from multisched.framework.runner import Runner
from multisched.model.limited_toleration import LimitedToleration
from multisched.model.objects import Pod
from multisched.model.selectors import Toleration
from multisched.queueing.backoff import BackoffPolicy
from multisched.queueing.pod_queue import PodQueue
from multisched.shell.adaptive_width import Bounds
from multisched.shell.domain import DomainWorker, Sizes
from multisched.shell.event_time_share import EventTimeShare
from multisched.shell.extenders import Extenders
from multisched.shell.ingest.router import Router
from multisched.shell.leadership.leases import Leases
from multisched.shell.observer import DomainObserver
from multisched.shell.preemptor import Preemptor
from multisched.shell.scheduling.ports import DomainPorts
from multisched.shell.step_clock import Steps
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.state.ledgers import LedgerRegistry
from multisched.state.nominator import Nominator


class SharedParts(msgspec.Struct, frozen=True):
    """The parts that all domains of a program share."""

    clock: Clock
    rng: random.Random
    """Source of the cycles' seeds."""
    cache: ClusterCache
    nominator: Nominator
    router: Router
    preemptor: Preemptor
    leases: Leases
    binder: ApiBinder
    volumes: VolumeWriter
    node_locks: Callable[[LeaseHolder], NodeLocks]
    """The lease of a domain -> its writer of locks."""
    events: EventSink
    conditions: ConditionWriter
    statuses: StatusMarks
    pending: Callable[[], Iterable[Pod]]
    """Returns the pods of all domains without a node, according to the API server."""
    extenders: Extenders
    event_time_share: EventTimeShare
    steps: Steps
    worker_factory: WorkerFactory
    measures: Measures | None
    observer: Callable[[str], DomainObserver]
    """Domain name -> its observer."""


class RegisteredLedgers:
    """The `framework.context.Ledgers` for plugins that are built at run time: refuses new ledgers.

    A new ledger would lack the pods that are already on nodes.
    """

    def __init__(self, ledgers: LedgerRegistry) -> None:
        self._ledgers = ledgers
        self.demands = ledgers.demands

    def register(self, ledger: Ledger | ClusterLedger) -> Ledger | ClusterLedger:
        """Returns the registered ledger of that name. Raises LedgerSettingsError if there is none."""
        if all(known.name != ledger.name for known in self._ledgers):
            raise LedgerSettingsError(f"ledger {ledger.name} does not hold the pods already on nodes")
        return self._ledgers.register(ledger)

    def pods(self) -> Iterable[Pod]:
        return self._ledgers.pods()

    def placed(self, uid: str) -> Placed | None:
        return self._ledgers.placed(uid)


class ClosedWorkerFactory:
    """The `framework.isolation.WorkerFactory` at run time: refuses new workers, which are created only at the start."""

    def worker(self, plugin: Plugin, use: PluginUse) -> Worker:
        raise RestartNeededError(
            f"plugin {use.name}: it runs in a thread or process, which is created only at the start"
        )

    async def close(self) -> None:
        """Does nothing."""


class QueueOfDomain:
    """`OwnQueue` of one domain, whose queue is built after its plugins."""

    def __init__(self, router: Router, clock: Clock, domain: str) -> None:
        self._router = router
        self._clock = clock
        self._domain = domain

    def pods(self) -> Sequence[Pod]:
        return [pod for queue in self._queues() for pod in queue.sorting.pods()]

    def sort_anew(self, uids: Iterable[str]) -> None:
        for queue in self._queues():
            queue.sorting.sort_anew(uids, self._clock.monotonic())

    def try_again(self, pods: Iterable[Pod], why: str) -> None:
        event = ClusterEvent(Resource.WILDCARD, Action.ALL, why)
        for pod in pods:
            self._router.notify(event, None, pod, self._clock.monotonic())

    def _queues(self) -> Iterable[PodQueue]:
        return (worker.queue for worker in self._router.workers() if worker.name == self._domain)


class BuiltDomain(msgspec.Struct):
    """A running domain, and the inputs of its plugins."""

    config: DomainConfig
    profile: Profile
    """The current profile."""
    worker: DomainWorker
    context: PluginContext
    extender_plugins: tuple[Plugin, ...]
    """Plugins in addition to the profile: the extenders' plugin."""


class DomainBuilder:
    """Builder of each domain from its part of the configuration, and of new profiles at run time."""

    def __init__(self, configuration: Configuration, registry: Registry, shared: SharedParts) -> None:
        self.domains: dict[str, BuiltDomain] = {}
        self._configuration = configuration
        self._registry = registry
        self._shared = shared
        self._borrowers = borrowers_of(configuration)
        self._sharing = quota_sharing_of(configuration, registry)
        self._isolator = Isolator(shared.worker_factory)
        self._runtime_isolator = Isolator(ClosedWorkerFactory())

    def add_all(self, nodes: NodeRouter) -> Mapping[str, tuple[Toleration, ...]]:
        """Registers every domain with cache and router. Returns schedulerName -> tolerations added to its pods."""
        for domain in self._configuration.domains:
            self._add(domain, nodes)
        return tolerations_of(self._configuration)

    def profile_of(self, domain: DomainConfig) -> Profile:
        """Resolves the profile of a domain's configuration, with the loans and shared quotas that were configured at the start."""
        profile = resolve_profile(domain, self._registry, loans_use(domain.name, self._borrowers))
        return sharing_profile(profile, self._sharing, self._registry)

    def rebuild_plugins(self, domain: BuiltDomain, profile: Profile) -> PluginSet:
        """Builds the plugins of another profile for a running domain. Plugins with the same settings are reused.

        Raises PluginSetupError; RestartNeededError if the profile needs another ledger or worker. Does not change the domain.
        """
        hold = RegisteredLedgers(self._shared.cache.ledgers)
        context = replace(domain.context, hold=hold)
        return build_profile(
            profile,
            self._registry,
            context,
            self._runtime_isolator,
            domain.extender_plugins,
            in_force=domain.worker.plugins,
        )

    def cycle_of(self, domain: BuiltDomain, plugins: PluginSet) -> SchedulingCycle:
        """Builds the cycle that replaces the current one."""
        shared, before = self._shared, domain.worker.cycle
        return SchedulingCycle(
            plugins,
            domain.worker.runner,
            shared.cache,
            before.rows,
            shared.nominator,
            seed=shared.rng.getrandbits(32),
            before=before,
            budget=shared.steps,
        )

    def _add(self, domain: DomainConfig, nodes: NodeRouter) -> None:
        shared = self._shared
        name = domain.name
        rows = DomainRows(name, nodes.usable_by(name), nodes.why_not(name), nodes.sliced_for(name))
        shared.cache.add_domain(rows)
        waiting = WaitingPodTable()
        context = self._context(domain, rows, waiting)
        profile, extender_plugins = self.profile_of(domain), shared.extenders.plugins_of(domain)
        plugins = build_profile(profile, self._registry, context, self._isolator, extender_plugins)
        observer = shared.observer(domain.name)
        runner = Runner(observer, shared.clock.monotonic)
        worker = DomainWorker(
            domain.name,
            cycle=SchedulingCycle(
                plugins,
                runner,
                shared.cache,
                rows,
                shared.nominator,
                seed=shared.rng.getrandbits(32),
                budget=shared.steps,
            ),
            queue=self._queue(domain, plugins, observer),
            waiting=waiting,
            runner=runner,
            cache=shared.cache,
            ports=DomainPorts(
                shared.clock,
                shared.binder,
                shared.events,
                shared.conditions,
                shared.leases.holder_of(domain.name),
                observer,
                shared.event_time_share,
                shared.steps,
            ),
            sizes=sizes_of(domain),
            bind_timeout_s=self._configuration.client.bind_timeout_s,
            listeners=shared.router,
            preemptor=shared.preemptor,
        )
        shared.router.add(worker, rows, domain.scheduler_names)
        self.domains[domain.name] = BuiltDomain(domain, profile, worker, context, extender_plugins)

    def _context(self, domain: DomainConfig, rows: DomainRows, waiting: WaitingPodTable) -> PluginContext:
        shared = self._shared
        return PluginContext(
            domain.name,
            shared.cache.nodes,
            waiting,
            shared.cache.ledgers,
            shared.cache.objects,
            shared.volumes,
            preemptions=shared.preemptor,
            victims=shared.preemptor.removals,
            nominations=shared.nominator,
            gangs=shared.cache.gangs,
            measures=shared.measures,
            rows=lambda: rows.rows,
            scheduler_names=self._configuration.served,
            statuses=shared.statuses,
            pending=shared.pending,
            notify=lambda event: shared.router.notify(event, None, None, shared.clock.monotonic()),
            node_locks=cache(lambda: shared.node_locks(shared.leases.holder_of(domain.name))),
            queue=QueueOfDomain(shared.router, shared.clock, domain.name),
        )

    def _queue(self, domain: DomainConfig, plugins: PluginSet, observer: DomainObserver) -> PodQueue:
        built = [one.plugin for one in plugins.built]
        return PodQueue(
            plugins.queue_sort,
            plugins.pre_enqueue,
            built,
            on_error=observer.plugin_failed,
            backoff=backoff_of(domain),
            leftover_s=domain.queue.unschedulable_flush_s,
            stopwatch=self._shared.clock.monotonic,
            gangs=self._shared.cache.gangs if any(plugin.name == GANG_PLUGIN for plugin in built) else None,
        )


def sizes_of(domain: DomainConfig) -> Sizes:
    """Returns the concurrency limits of the domain."""
    cycles, binds = domain.concurrency.cycles, domain.concurrency.binds
    return Sizes(Bounds(cycles.min, cycles.max), Bounds(binds.min, binds.max))


def backoff_of(domain: DomainConfig) -> BackoffPolicy:
    """Returns the backoff of the domain's queue."""
    return BackoffPolicy(domain.queue.initial_backoff_s, domain.queue.max_backoff_s)


def annotations_of(tolerations: Mapping[str, tuple[Toleration, ...]]) -> set[str]:
    """Returns the keys of the pod annotations that decide which pods get one of these tolerations."""
    every = (one for added in tolerations.values() for one in added)
    return {key for one in every if isinstance(one, LimitedToleration) for key in one.pods.annotations}


def tolerations_of(configuration: Configuration) -> Mapping[str, tuple[Toleration, ...]]:
    """Returns schedulerName -> tolerations that its domain adds to its pods."""
    return {name: domain.policy.compile() for domain in configuration.domains for name in domain.scheduler_names}
