"""Reads the queues, gauges and health of a running program, for its HTTP endpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from multisched.client.reflector import Reflector
from multisched.client.request_counts import RequestCounts
from multisched.framework.durations import Durations
from multisched.framework.introspection import HealthPlugin, MetricsPlugin, PluginMetric
from multisched.framework.leading import FindLeader, NotLeadingError, led_here
from multisched.framework.preemption import PreemptingPlugin
from multisched.framework.registry import PluginSet, implementing, implements
from multisched.framework.runner import PluginFailure
from multisched.model.near_names import did_you_mean
from multisched.observe.queue_view import DomainQueue, NoDomainError, QueueView, WaitingPod, longest_waiting_first
from multisched.observe.readings import (
    BackgroundReading,
    DomainReading,
    JudgeReading,
    Readings,
    ReflectorReading,
    RequestReading,
)
from multisched.queueing.entry import QueueEntry
from multisched.queueing.transitions import POPPED, QueueState
from multisched.shell.domain import DomainWorker
from multisched.shell.program import Program

if TYPE_CHECKING:
    from multisched.shell.audit.cluster_judge import ClusterJudge

K = TypeVar("K", bound=Hashable)


class ProgramQueues:
    """The `observe.queue_view.QueueSource` of a running program."""

    def __init__(self, program: Program, identity: str, find_leader: FindLeader = led_here) -> None:
        self._program = program
        self._identity = identity
        self._find_leader = find_leader

    def queue(self, *, domain: str | None, limit: int) -> QueueView:
        """Returns pending pods, the longest waiting first; pods in a binding cycle come last."""
        now_s = self._program.clock.monotonic()
        led = [(worker, self._find_leader(worker.name)) for worker in self.workers(domain)]
        workers, elsewhere = [w for w, other in led if other is None], [other for _, other in led if other is not None]
        if domain is not None and elsewhere:
            raise NotLeadingError(elsewhere[0])
        pods = []
        for worker in workers:
            at_permit = {pod.uid for pod in worker.waiting.waiting()}
            pods += [self.waiting_pod(worker, entry, at_permit, now_s) for entry in worker.queue.entries()]
        pods += self.refused_pods({worker.name for worker in workers}, now_s)
        pods.sort(key=longest_waiting_first)
        return QueueView(
            domains=tuple(
                DomainQueue(
                    domain=w.name,
                    scheduler_names=self._program.scheduler_names[w.name],
                    is_leading=w.is_leading,
                    counts=self.counts(w),
                    binds_in_flight=w.limit.in_flight,
                    bind_limit=w.limit.width,
                    cycle_limit=w.cycle_limit,
                )
                for w in workers
            ),
            pods=tuple(pods[:limit]),
            left_out=max(0, len(pods) - limit),
            elsewhere=tuple(elsewhere),
            identity=self._identity,
        )

    def waiting_pod(
        self, worker: DomainWorker, entry: QueueEntry, at_permit: Container[str], now_s: float
    ) -> WaitingPod:
        """Returns one pod of a queue. `at_permit`: uids of the domain's pods that wait at Permit."""
        pod, is_at_permit = entry.pod, entry.uid in at_permit
        return WaitingPod(
            domain=worker.name,
            state="quarantined" if entry.is_quarantined else _state(entry.state, is_at_permit=is_at_permit),
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            priority=pod.spec.priority,
            qos=pod.spec.qos.value,
            attempts=entry.attempts,
            waiting_s=now_s - entry.added_s,
            # Only PreEnqueue runs again for a gated pod: that is not an attempt.
            retry_in_s=0.0 if entry.state is QueueState.GATED else max(0.0, (entry.retry_at_s or now_s) - now_s),
            plugins=entry.plugins,
            message=entry.message,
        )

    def refused_pods(self, domains: Container[str], now_s: float) -> Iterator[WaitingPod]:
        """Yields the refused pods of these domains, which are in no queue."""
        for uid, refused in self._program.pods.refused.items():
            if refused.domain in domains:
                yield WaitingPod(
                    domain=refused.domain,
                    state="refused",
                    namespace=refused.pod.namespace,
                    name=refused.pod.name,
                    uid=uid,
                    priority=refused.pod.spec.priority,
                    qos=refused.pod.spec.qos.value,
                    waiting_s=now_s - refused.since_s,
                    message=refused.message,
                )

    def workers(self, domain: str | None) -> list[DomainWorker]:
        """Returns the worker of the domain of this name, or all workers for None. Raises NoDomainError."""
        by_name = {worker.name: worker for worker in self._program.router.workers()}
        if domain is None:
            return list(by_name.values())
        if domain not in by_name:
            hint = did_you_mean(domain, by_name, f"there are {', '.join(by_name)}")
            raise NoDomainError(f"domain {domain}: no such domain; {hint}")
        return [by_name[domain]]

    def counts(self, worker: DomainWorker) -> dict[str, int]:
        """Returns the number of a domain's pods in each of STATES."""
        queue = worker.queue.statistics()
        counts = {str(place): count for place, count in queue.pending.items()}
        counts |= {"unschedulable": counts["unschedulable"] - queue.quarantined, "quarantined": queue.quarantined}
        counts["refused"] = sum(refused.domain == worker.name for refused in self._program.pods.refused.values())
        permit = len(worker.waiting)
        return counts | {"permit": permit, "binding": queue.in_flight - permit}


def _state(place: QueueState, *, is_at_permit: bool) -> str:
    if place not in POPPED:
        return place.value
    return "permit" if is_at_permit else "binding"


def read(program: Program) -> Readings:
    """Returns the current counters of all parts. Called at each scrape, on the event loop."""
    events = program.events.statistics()
    dropped = events.dropped_full + events.dropped_refused + events.dropped_unreachable
    assumed = program.cache.assumed_count()
    audit = program.audit.statistics()
    conditions = program.conditions.statistics()
    statuses = program.statuses.statistics()
    workers = program.router.workers()
    return Readings(
        domains={worker.name: _read_domain(program, worker) for worker in workers},
        reflectors={
            "nodes": _read_reflector(program.reflectors["nodes"], program.nodes.malformed),
            "pods": _read_reflector(program.reflectors["pods"], program.pods.malformed),
            **{
                kind.resource: _read_reflector(reflector, program.objects.ingests[kind].malformed)
                for kind, reflector in program.objects.reflectors.items()
            },
        },
        cached={
            "nodes": program.cache.nodes.node_count,
            "pods": len(program.cache) - assumed,
            "assumed_pods": assumed,
        },
        events={"stored": events.stored, "aggregated": events.aggregated, "dropped": dropped},
        audits=audit.audits,
        audit_differences=audit.differences,
        throttled=program.limiter.statistics().throttled,
        calls_pending={
            "pod_status_patch": conditions.backlog,
            "pod_binding": sum(worker.limit.in_flight for worker in workers),
        },
        calls_ended={
            ("pod_status_patch", "success"): conditions.written,
            ("pod_status_patch", "error"): conditions.dropped_refused + conditions.dropped_unreachable,
        },
        event_durations=_copied(program.event_times.durations),
        volume_writes=_copied(program.volumes.durations),
        status_writes={(kind.resource, result): count for (kind, result), count in statuses.results.items()},
        statuses_pending=statuses.backlog,
        background_tasks={
            (d.plugin, d.domain): BackgroundReading(d.failures, d.is_running) for d in program.background.states()
        },
        judge=_read_judge(program.judge),
        leases=program.leases.held(),
    )


def requests_of(host: str, counts: Iterable[RequestCounts]) -> RequestReading:
    """Returns the summed counters of transports. `host`: the API server's address."""
    total = RequestCounts()
    for one in counts:
        total.add(one.copy())
    return RequestReading(urlsplit(host).netloc.rpartition("@")[2], total.results, total.durations)


def statistics_of(program: Program) -> Mapping[str, Mapping[str, object]]:
    """Returns per domain: pending pods per queue, bound pods, latencies, and conflicts."""
    found: dict[str, Mapping[str, object]] = {}
    for worker in program.router.workers():
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


def _copied(durations: Mapping[K, Durations]) -> dict[K, Durations]:
    """Returns copies, which a thread can render while the event loop continues to count."""
    return {key: one.copy() for key, one in durations.items()}


def _read_domain(program: Program, worker: DomainWorker) -> DomainReading:
    queue = worker.queue.statistics()
    lease = program.leases.get(worker.name)
    return DomainReading(
        pending=queue.pending,
        unschedulable_by_plugin=queue.unschedulable_by_plugin,
        incoming=queue.incoming,
        in_flight=queue.in_flight,
        events_in_flight=worker.queue.events_in_flight(),
        event_overflows=queue.event_overflows,
        hint_calls=queue.hint_calls,
        bound_after_flush=queue.bound_after_flush,
        quarantined=queue.quarantined,
        quarantines=queue.quarantines,
        gangs_reserving=queue.gangs_reserving,
        reservations=queue.reservations,
        reservations_expired=queue.reservations_expired,
        passed_over=queue.passed_over,
        namespaces_retrying=queue.namespaces_retrying,
        namespaces_ahead=queue.namespaces_ahead,
        attempt_pauses=worker.long_attempts.pauses,
        attempts_undone=worker.long_attempts.undone,
        permit_waiting=len(worker.waiting),
        binds_in_flight=worker.limit.in_flight,
        bind_limit=worker.limit.width,
        bind_unloaded_s=worker.limit.unloaded_s,
        cycle_limit=worker.cycle_limit,
        unknown_binds=worker.counters.unknown,
        conflicts_true=worker.cycle.conflicts.true,
        conflicts_false=worker.cycle.conflicts.false,
        class_hits=worker.cycle.classes.hits,
        class_misses=worker.cycle.classes.misses,
        unsigned=worker.cycle.classes.unsigned,
        preemption_attempts=_preemption_attempts(worker.plugins),
        records=worker.cycle.records.statistics(),
        hints=_copied(worker.queue.hints.durations),
        plugin_metrics=_plugin_metrics(program, worker),
        is_lease_held=worker.is_leading if lease is None else lease.may_bind(),
    )


def _preemption_attempts(plugins: PluginSet) -> int:
    found = 0
    for plugin in implementing(plugins.post_filter, PreemptingPlugin):
        found += plugin.preemption_attempts
    return found


def _plugin_metrics(program: Program, worker: DomainWorker) -> list[PluginMetric]:
    """Returns the metrics of the domain's plugins. A plugin that fails is logged; its metrics are missing in this scrape."""
    now_s, found = program.clock.now().timestamp(), list[PluginMetric]()
    for built in worker.plugins.built:
        plugin = built.plugin
        if implements(plugin, MetricsPlugin):
            with contextlib.suppress(PluginFailure):
                found += worker.runner.call(plugin, "Metrics", partial(plugin.metrics, now_s))
    return found


def health_of(program: Program) -> str:
    """Returns the text that `/readyz?verbose` shows after its checks: stale data, objects without effect, repeated failures."""
    now_s, remarks = program.clock.now().timestamp(), list[str]()
    if not program.history.is_trusted:
        remarks.append("the API server's lists are older than the cache: scheduling is paused until this is resolved")
    unserved = program.nodes.unserved
    if unserved:
        name, why = next(iter(unserved.items()))
        more = f" (and {len(unserved) - 1} more)" if len(unserved) > 1 else ""
        remarks.append(f"no domain uses node {name}{more}: {why}")
    said: dict[tuple[str, str], list[str]] = {}  # (plugin, text) -> domains: plugins of several domains may share state
    for worker in program.router.workers():
        for built in worker.plugins.built:
            plugin = built.plugin
            if implements(plugin, HealthPlugin):
                with contextlib.suppress(PluginFailure):
                    text = worker.runner.call(plugin, "Health", partial(plugin.health, now_s))
                    if text:
                        said.setdefault((plugin.name, text), []).append(worker.name)
    remarks += [f"{', '.join(domains)}/{name}: {text}" for (name, text), domains in said.items()]
    remarks += program.missing_plugins.remarks()
    for task in program.background.states():
        if task.failures:
            since_s = now_s - task.last_error_s
            how = "runs again" if task.is_running else "will be restarted soon"
            remarks.append(
                f"{task.domain}/{task.plugin}: its background task has ended {task.failures}x, last {since_s:.0f} s ago, and {how}:"
                f" {task.last_error}"
            )
    return "; ".join(remarks)


def _read_judge(judge: ClusterJudge | None) -> JudgeReading | None:
    if judge is None:
        return None
    looks = judge.statistics
    return JudgeReading(looks.runs, looks.failures, looks.ended_at_s, looks.seconds, looks.violations)


def _read_reflector(reflector: Reflector, unusable: int) -> ReflectorReading:
    """`unusable`: number of objects that were received but are malformed."""
    counted = reflector.statistics()
    return ReflectorReading(
        lists=counted.lists,
        events=counted.events,
        errors=counted.list_failures + counted.watch_failures,
        malformed=counted.malformed + unusable,
        lag_s=reflector.staleness_s(),
    )
