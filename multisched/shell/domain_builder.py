"""Builds the domains of one program over what they share: their profiles, queues and workers.

Owns the plugins of each domain and the runner that calls them, once they are built.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping

import msgspec

from multisched.client.binder import ApiBinder
from multisched.config.nodes import NodeRouter
from multisched.config.plugins import resolve_profile
from multisched.config.schema import Configuration, DomainConfig
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.context import PluginContext
from multisched.framework.gangs import GANG_PLUGIN
from multisched.framework.isolation import Isolator, Workshop
from multisched.framework.measures import Measures
from multisched.framework.object_status import StatusMarks
from multisched.framework.ports import Clock, ConditionWriter, EventSink, VolumeWriter
from multisched.framework.registry import PluginSet, Registry, build_profile
from multisched.framework.runner import Runner
from multisched.model.objects import Pod
from multisched.model.selectors import Toleration
from multisched.queueing.backoff import BackoffPolicy
from multisched.queueing.pod_queue import PodQueue
from multisched.shell.domain import DomainWorker
from multisched.shell.extenders import Extenders
from multisched.shell.ingest.router import Router
from multisched.shell.leadership.leases import Leases
from multisched.shell.news_share import NewsShare
from multisched.shell.observer import DomainObserver
from multisched.shell.preemptor import Preemptor
from multisched.shell.scheduling.ports import DomainPorts
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.state.nominator import Nominator


class SharedParts(msgspec.Struct, frozen=True):
    """What all domains of a program work with."""

    clock: Clock
    rng: random.Random
    """The seeds of cycles come from it."""
    cache: ClusterCache
    nominator: Nominator
    router: Router
    preemptor: Preemptor
    leases: Leases
    binder: ApiBinder
    volumes: VolumeWriter
    events: EventSink
    conditions: ConditionWriter
    statuses: StatusMarks
    pending: Callable[[], Iterable[Pod]]
    """Pods of all domains that the API server has on no node."""
    extenders: Extenders
    news: NewsShare
    workshop: Workshop
    measures: Measures | None
    observer: Callable[[str], DomainObserver]
    """Domain name -> who hears of it."""


class DomainBuilder:
    """Builds each domain from its part of the configuration."""

    def __init__(self, configuration: Configuration, registry: Registry, shared: SharedParts) -> None:
        self.profiles: list[tuple[PluginSet, Runner]] = []
        """Of the domains that were added."""
        self._configuration = configuration
        self._registry = registry
        self._shared = shared

    def add_all(self, nodes: NodeRouter) -> Mapping[str, tuple[Toleration, ...]]:
        """Registers every domain with cache and router. Returns what each schedulerName's domain adds to its pods."""
        tolerations: dict[str, tuple[Toleration, ...]] = {}
        for domain in self._configuration.domains:
            self._add(domain, nodes)
            for name in domain.scheduler_names:
                tolerations[name] = domain.policy.compile()
        return tolerations

    def _add(self, domain: DomainConfig, nodes: NodeRouter) -> None:
        shared = self._shared
        rows = DomainRows(domain.name, nodes.usable_by(domain.name), nodes.why_not(domain.name))
        shared.cache.add_domain(rows)
        waiting = WaitingPodTable()
        plugins = self._plugins(domain, rows, waiting)
        observer = shared.observer(domain.name)
        runner = Runner(observer, shared.clock.monotonic)
        self.profiles.append((plugins, runner))
        worker = DomainWorker(
            domain.name,
            cycle=SchedulingCycle(
                plugins, runner, shared.cache, rows, shared.nominator, seed=shared.rng.getrandbits(32)
            ),
            queue=self._queue(domain, plugins, observer),
            waiting=waiting,
            runner=runner,
            cache=shared.cache,
            outside=DomainPorts(
                shared.clock,
                shared.binder,
                shared.events,
                shared.conditions,
                shared.leases.holder_of(domain.name),
                observer,
                shared.news,
            ),
            cycles=domain.concurrency.cycles,
            bind_workers=min(domain.concurrency.bind_workers, domain.concurrency.max_in_flight_binds),
            bind_timeout_s=self._configuration.client.bind_timeout_s,
            listeners=shared.router,
            preemptor=shared.preemptor,
        )
        shared.router.add(worker, rows, domain.scheduler_names)

    def _plugins(self, domain: DomainConfig, rows: DomainRows, waiting: WaitingPodTable) -> PluginSet:
        shared = self._shared
        context = PluginContext(
            domain.name,
            shared.cache.nodes,
            waiting,
            shared.cache.ledgers,
            shared.cache.objects,
            shared.volumes,
            preemptions=shared.preemptor,
            nominations=shared.nominator,
            gangs=shared.cache.gangs,
            measures=shared.measures,
            rows=lambda: rows.rows,
            scheduler_names=self._configuration.served,
            statuses=shared.statuses,
            pending=shared.pending,
        )
        profile, beside = resolve_profile(domain, self._registry), shared.extenders.plugins_of(domain)
        return build_profile(profile, self._registry, context, Isolator(shared.workshop), beside)

    def _queue(self, domain: DomainConfig, plugins: PluginSet, observer: DomainObserver) -> PodQueue:
        built = [one.plugin for one in plugins.built]
        return PodQueue(
            plugins.queue_sort,
            plugins.pre_enqueue,
            built,
            on_error=observer.plugin_failed,
            backoff=BackoffPolicy(domain.queue.initial_backoff_s, domain.queue.max_backoff_s),
            leftover_s=domain.queue.unschedulable_flush_s,
            stopwatch=self._shared.clock.monotonic,
            gangs=self._shared.cache.gangs if any(plugin.name == GANG_PLUGIN for plugin in built) else None,
        )
