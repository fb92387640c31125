"""Metrics whose values are read at each scrape from statistics of other parts of the program.

A Readings is an immutable value: it is filled on the event loop and rendered in a thread. So these metrics cost time per scrape, and
none per pod.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from multisched import __version__
from multisched.framework.durations import Durations
from multisched.framework.introspection import PluginMetric
from multisched.observe.families import counter, gauge, histogram

_BUILD: Final = (__version__, platform.python_version(), f"{sys.platform}/{platform.machine()}")
QUEUES: Final = ("active", "backoff", "unschedulable", "gated", "gang")


class DomainReading(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one domain. Counters count from the start of the process."""

    pending: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Queue (one of QUEUES) -> number of pods in it."""
    unschedulable_by_plugin: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Plugin -> number of unschedulable pods that it refused."""
    incoming: Mapping[tuple[str, str], int] = msgspec.field(default_factory=dict)
    """(queue, event) -> pods added to the queue."""
    in_flight: int = 0
    """Popped pods whose attempt has not ended."""
    events_in_flight: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Event -> number in the log of events in flight, which is kept for attempts in progress. `PodPopped` counts the attempts."""
    event_overflows: int = 0
    """How many times the log of events in flight was full and was dropped. Attempts in progress then count as affected by an event."""
    hint_calls: int = 0
    bound_after_flush: int = 0
    """Pods bound in the attempt that followed a flush of unschedulable pods."""
    quarantined: int = 0
    """Pods in quarantine at present, because the API server repeatedly refused their bind."""
    quarantines: int = 0
    """How many times a pod was put in quarantine."""
    gangs_reserving: int = 0
    """Gangs for which freed resources are reserved."""
    reservations: int = 0
    """How many times such a reservation began."""
    reservations_expired: int = 0
    """Reservations that ended before the gang started."""
    passed_over: int = 0
    """Attempts given to other pods while retries waited, because their namespace had used its share."""
    namespaces_retrying: int = 0
    """Namespaces with active pods that were tried before."""
    namespaces_ahead: int = 0
    """Number of these namespaces that have used more than their share of attempts."""
    attempt_pauses: int = 0
    """Pauses of attempts that took several steps."""
    attempts_undone: int = 0
    """Attempts of several steps that were undone because their inputs had changed."""
    permit_waiting: int = 0
    binds_in_flight: int = 0
    bind_limit: int = 0
    bind_unloaded_s: float = 0.0
    """Latency of a bind while few others are in flight, in seconds."""
    cycle_limit: int = 0
    """Maximum number of cycles that wait for external responses."""
    unknown_binds: int = 0
    """Binds whose outcome is being read."""
    conflicts_true: int = 0
    conflicts_false: int = 0
    class_hits: int = 0
    class_misses: int = 0
    unsigned: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Plugin -> number of pods for which it had no signature."""
    preemption_attempts: int = 0
    """How many times a PostFilter plugin was called for a pod."""
    records: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Kind of figure about the attempt records that are kept for `explain` -> count or bytes."""
    is_lease_held: bool = False
    hints: Mapping[tuple[str, str, str], Durations] = msgspec.field(default_factory=dict)
    """(plugin, event, result) -> durations of the sampled queueing hints."""
    plugin_metrics: Sequence[PluginMetric] = ()
    """Metrics provided by the plugins."""


class BackgroundReading(msgspec.Struct, frozen=True):
    """One plugin's background task."""

    failures: int
    """How many times it ended. It ends only by an error."""
    is_running: bool


class ReflectorReading(msgspec.Struct, frozen=True, kw_only=True):
    """Lists and watches of one kind."""

    lists: int = 0
    events: int = 0
    errors: int = 0
    malformed: int = 0
    lag_s: float = 0.0
    """Seconds since the watch last sent anything, bookmarks included."""


class JudgeReading(msgspec.Struct, frozen=True):
    """Runs of the judge, which checks placed pods (`verify` in the configuration)."""

    runs: int
    failures: int
    ended_at_s: float
    """End of the last run, Unix time; 0 before the first run."""
    seconds: float
    """Duration of the last run."""
    violations: Mapping[str, int]
    """Rule -> number of pods that violate it."""


class ReloadReading(msgspec.Struct, frozen=True):
    """Results of changes of the configuration file."""

    applied: int
    rejected: int
    is_last_good: bool
    """The file is valid now."""
    last_good_s: float
    """When the file was last valid, Unix time."""
    waiting: int
    """Changed settings that take effect only after a restart."""


class RequestReading(msgspec.Struct, frozen=True):
    """Requests to the API server."""

    host: str
    results: Mapping[tuple[str, int], int]
    """(method, status code; 0 if there was no response) -> number of requests, including watches."""
    durations: Mapping[str, Durations]
    """Method -> durations of requests other than watches."""


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """Values of the whole process at one moment."""

    domains: Mapping[str, DomainReading] = msgspec.field(default_factory=dict)
    reflectors: Mapping[str, ReflectorReading] = msgspec.field(default_factory=dict)
    cached: Mapping[str, int] = msgspec.field(default_factory=dict)
    """`nodes`, `pods` or `assumed_pods` -> number in the cache."""
    events: Mapping[str, int] = msgspec.field(default_factory=dict)
    """`stored`, `aggregated` or `dropped` -> number of events about pods."""
    audits: int = 0
    audit_differences: int = 0
    throttled: int = 0
    """Responses with status 429."""
    event_durations: Mapping[str, Durations] = msgspec.field(default_factory=dict)
    """Watch event -> durations of its handling, sampled."""
    volume_writes: Mapping[tuple[str, str], Durations] = msgspec.field(default_factory=dict)
    """(kind of volume object, result) -> durations of writes by PreBind."""
    calls_pending: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Kind of write to a pod (pod_binding, pod_status_patch) -> number in flight or waiting to be sent."""
    calls_ended: Mapping[tuple[str, str], int] = msgspec.field(default_factory=dict)
    """(kind of write, `success` or `error`) -> count. For pod_binding, `bind_outcomes_total` has more detail."""
    status_writes: Mapping[tuple[str, str], int] = msgspec.field(default_factory=dict)
    """(kind, result) -> count of status writes of objects other than pods."""
    statuses_pending: int = 0
    """Objects other than pods whose status waits to be written."""
    background_tasks: Mapping[tuple[str, str], BackgroundReading] = msgspec.field(default_factory=dict)
    """(plugin, domain) -> state of its background task."""
    judge: JudgeReading | None = None
    """None if the judge is not configured."""
    reload: ReloadReading | None = None
    """None if there is no configuration file."""
    leases: Mapping[str, bool] = msgspec.field(default_factory=dict)
    """Lease -> whether this process holds it."""
    requests: RequestReading | None = None
    log_lines_dropped: int = 0
    certificate_expiry_s: float | None = None
    """Unix time at which the certificate of the HTTPS server expires; None if it serves HTTP."""


class ReadingsCollector(Collector):
    """Exposes the latest Readings. `take` replaces them as a whole, so that all values that a thread renders are of one scrape."""

    def __init__(self) -> None:
        self._latest = Readings()
        self.taken: Collection[str] = ()
        """Metric names, without the prefix, that plugins must not use because the program does."""

    def take(self, readings: Readings) -> None:
        self._latest = readings

    def collect(self) -> Iterable[Metric]:
        """Yields all families, in a fixed order."""
        now = self._latest
        yield from _process(now)
        yield from _of_client_go(now)
        yield from _reflectors(now.reflectors)
        yield from _domain_gauges(now.domains)
        yield from _domain_counters(now.domains)
        yield from _durations(now)
        yield from _background_tasks(now.background_tasks)
        if now.judge is not None:
            yield from _judge(now.judge)
        if now.reload is not None:
            yield from _reload(now.reload)
        yield from _of_plugins(now.domains, self.taken)


def _process(now: Readings) -> Iterator[Metric]:
    yield gauge("build_info", "Versions of the program; always 1.", ("version", "python", "platform"), {_BUILD: 1})
    yield gauge("cache_size", "Objects in the cache.", ("type",), {(kind,): n for kind, n in now.cached.items()})
    events = {(result,): count for result, count in now.events.items()}
    yield counter("events", "Events about pods, by result.", ("result",), events)
    yield counter("audits", "Comparisons of the cache with the API.", (), {(): now.audits})
    yield counter("audit_differences", "Differences that audits found.", (), {(): now.audit_differences})
    yield counter("throttled_requests", "Responses of the API server with status 429.", (), {(): now.throttled})
    yield counter(
        "log_lines_dropped", "Log lines dropped because the output was blocked.", (), {(): now.log_lines_dropped}
    )
    pending = {(call,): count for call, count in now.calls_pending.items()}
    yield gauge("pending_async_api_calls", "Writes about pods that are queued or in flight.", ("call_type",), pending)
    text = "Completed writes about pods, by result."
    yield counter("async_api_call_execution", text, ("call_type", "result"), now.calls_ended)
    text = "Status writes of objects other than pods, by result."
    yield counter("object_status_writes", text, ("kind", "result"), now.status_writes)
    waiting = {(): now.statuses_pending}
    yield gauge("pending_object_statuses", "Objects other than pods whose status waits to be written.", (), waiting)
    if now.certificate_expiry_s is not None:
        expiry = {(): now.certificate_expiry_s}
        yield gauge("server_certificate_expiry_seconds", "End of the server's certificate, Unix time.", (), expiry)


def _reload(now: ReloadReading) -> Iterator[Metric]:
    results = {("applied",): now.applied, ("rejected",): now.rejected}
    yield counter("config_reloads", "Changes of the configuration file, by result.", ("result",), results)
    text = "1 if the configuration file is valid."
    yield gauge("config_last_reload_successful", text, (), {(): now.is_last_good})
    text = "When the configuration file was last valid, Unix time."
    yield gauge("config_last_reload_success_timestamp_seconds", text, (), {(): now.last_good_s})
    text = "Settings of the configuration file that take effect only after a restart."
    yield gauge("config_settings_waiting_for_restart", text, (), {(): now.waiting})


def _of_client_go(now: Readings) -> Iterator[Metric]:
    """Yields metrics that all Kubernetes components have under the same names, without a prefix."""
    text = "Whether this process holds the lease: 1 leader, 0 standby."
    leases = {(name,): int(is_held) for name, is_held in now.leases.items()}
    yield gauge("leader_election_master_status", text, ("name",), leases, namespace="")
    if now.requests is None:
        return
    host, text = now.requests.host, "Requests to the API server by response."
    results = {(str(status or "<error>"), host, method): n for (method, status), n in now.requests.results.items()}
    yield counter("rest_client_requests", text, ("code", "host", "method"), results, namespace="")
    text = "Duration of requests to the API server until the complete response, without watches."
    took = {(host, method): durations for method, durations in now.requests.durations.items()}
    yield histogram("rest_client_request_duration_seconds", text, ("host", "verb"), took, namespace="")


def _reflectors(kinds: Mapping[str, ReflectorReading]) -> Iterator[Metric]:
    label = ("kind",)
    yield counter("reflector_relists", "Whole lists read.", label, {(k,): r.lists for k, r in kinds.items()})
    yield counter("reflector_events", "Watch events received.", label, {(k,): r.events for k, r in kinds.items()})
    yield counter("reflector_errors", "Failed lists and watches.", label, {(k,): r.errors for k, r in kinds.items()})
    malformed = {(k,): r.malformed for k, r in kinds.items()}
    yield counter("malformed_objects", "Objects that could not be used.", label, malformed)
    yield gauge(
        "watch_lag_seconds",
        "Time since the watch last received anything.",
        label,
        {(k,): r.lag_s for k, r in kinds.items()},
    )


def _domain_gauges(domains: Mapping[str, DomainReading]) -> Iterator[Metric]:
    label = ("domain",)
    pending = {(queue, name): d.pending.get(queue, 0) for name, d in domains.items() for queue in QUEUES}
    yield gauge("pending_pods", "Pending pods, by queue.", ("queue", "domain"), pending)
    refused = {(plugin, name): n for name, d in domains.items() for plugin, n in d.unschedulable_by_plugin.items()}
    yield gauge("unschedulable_pods", "Unschedulable pods that a plugin refused.", ("plugin", "domain"), refused)
    in_flight = {(name,): d.in_flight for name, d in domains.items()}
    yield gauge("in_flight_pods", "Popped pods whose attempt has not ended.", label, in_flight)
    kept = {(event, name): n for name, d in domains.items() for event, n in d.events_in_flight.items()}
    yield gauge("inflight_events", "Events kept for attempts in progress.", ("event", "domain"), kept)
    quarantined = {(name,): d.quarantined for name, d in domains.items()}
    text = "Pods in quarantine, because the API server repeatedly refused their bind."
    yield gauge("quarantined_pods", text, label, quarantined)
    retrying = {(name,): d.namespaces_retrying for name, d in domains.items()}
    yield gauge("retrying_namespaces", "Namespaces with active retries.", label, retrying)
    ahead = {(name,): d.namespaces_ahead for name, d in domains.items()}
    yield gauge("namespaces_ahead_of_share", "Namespaces whose retries wait for others to catch up.", label, ahead)
    waiting = {(name,): d.permit_waiting for name, d in domains.items()}
    yield gauge("permit_waiting_pods", "Assumed pods held by Permit.", label, waiting)
    binds = {(name,): d.binds_in_flight for name, d in domains.items()}
    yield gauge("binds_in_flight", "Binding requests in flight.", label, binds)
    yield gauge("bind_limit", "Adaptive limit of binds.", label, {(n,): d.bind_limit for n, d in domains.items()})
    unloaded = {(name,): d.bind_unloaded_s for name, d in domains.items()}
    yield gauge("bind_unloaded_seconds", "Latency of a bind while few others are in flight.", label, unloaded)
    cycles = {(name,): d.cycle_limit for name, d in domains.items()}
    yield gauge("cycle_limit", "Adaptive limit of cycles that wait for external responses.", label, cycles)
    reserving = {(name,): d.gangs_reserving for name, d in domains.items()}
    yield gauge("gangs_reserving", "Gangs for which freed resources are reserved.", label, reserving)
    unknown = {(name,): d.unknown_binds for name, d in domains.items()}
    yield gauge("unknown_binds", "Binds whose outcome is being read.", label, unknown)
    records = {(kind, name): n for name, d in domains.items() for kind, n in d.records.items()}
    yield gauge("attempt_records", "Attempt records kept for explanations.", ("kind", "domain"), records)
    leading = {(name,): int(d.is_lease_held) for name, d in domains.items()}
    yield gauge("lease_held", "1 while this process may bind for the domain.", label, leading)


def _domain_counters(domains: Mapping[str, DomainReading]) -> Iterator[Metric]:
    incoming = {(queue, event, name): n for name, d in domains.items() for (queue, event), n in d.incoming.items()}
    yield counter("queue_incoming_pods", "Pods added to a queue.", ("queue", "event", "domain"), incoming)
    label = ("domain",)
    flushed = {(name,): d.bound_after_flush for name, d in domains.items()}
    text = "Pods bound after a flush of unschedulable pods; each may be a missing queueing hint."
    yield counter("pod_scheduled_after_flush", text, label, flushed)
    overflows = {(name,): d.event_overflows for name, d in domains.items()}
    yield counter("inflight_event_overflows", "Times that the log of events in flight was full.", label, overflows)
    tries = {(name,): d.preemption_attempts for name, d in domains.items()}
    yield counter("preemption_attempts", "Attempts to make room for a pod by preemption.", label, tries)
    hints = {(name,): d.hint_calls for name, d in domains.items()}
    yield counter("queueing_hints", "Queueing hints evaluated.", label, hints)
    begun = {(name,): d.reservations for name, d in domains.items()}
    yield counter("gang_reservations", "Times that a gang began to reserve freed resources.", label, begun)
    expired = {(name,): d.reservations_expired for name, d in domains.items()}
    text = "Reservations of gangs that ended before the gang started."
    yield counter("gang_reservations_expired", text, label, expired)
    quarantines = {(name,): d.quarantines for name, d in domains.items()}
    yield counter("pods_set_aside", "Times that a pod was put in quarantine.", label, quarantines)
    passed = {(name,): d.passed_over for name, d in domains.items()}
    text = "Attempts given to other pods while retries waited, because their namespace had used its share."
    yield counter("retries_passed_over", text, label, passed)
    pauses = {(name,): d.attempt_pauses for name, d in domains.items()}
    yield counter("attempt_pauses", "Pauses of attempts that took several steps.", label, pauses)
    undone = {(name,): d.attempts_undone for name, d in domains.items()}
    text = "Attempts of several steps that were undone and repeated, because their inputs had changed."
    yield counter("attempts_undone", text, label, undone)
    conflicts = {("true", name): d.conflicts_true for name, d in domains.items()}
    conflicts |= {("false", name): d.conflicts_false for name, d in domains.items()}
    text = "Commits to a node that had changed since the decision: true, the pod no longer fits; false, it still fits."
    yield counter("commit_conflicts", text, ("kind", "domain"), conflicts)
    lookups = {("hit", name): d.class_hits for name, d in domains.items()}
    lookups |= {("miss", name): d.class_misses for name, d in domains.items()}
    yield counter("class_cache", "Lookups of cached masks and raw scores.", ("result", "domain"), lookups)
    unsigned = {(plugin, name): n for name, d in domains.items() for plugin, n in d.unsigned.items()}
    yield counter("unsigned_pods", "Pods for which a plugin had no signature.", ("plugin", "domain"), unsigned)


def _durations(now: Readings) -> Iterator[Metric]:
    text = "Duration of handling one watch event (sampled)."
    handled = {(event,): durations for event, durations in now.event_durations.items()}
    yield histogram("event_handling_duration_seconds", text, ("event",), handled)
    hints = {(*key, name): durations for name, d in now.domains.items() for key, durations in d.hints.items()}
    label = ("plugin", "event", "hint", "domain")
    yield histogram(
        "queueing_hint_execution_duration_seconds", "Duration of one queueing hint (sampled).", label, hints
    )
    text = (
        "Duration of a write to a PersistentVolume or PersistentVolumeClaim by PreBind, including retries, by result."
    )
    yield histogram("volume_write_duration_seconds", text, ("kind", "result"), now.volume_writes)


def _background_tasks(background_tasks: Mapping[tuple[str, str], BackgroundReading]) -> Iterator[Metric]:
    label = ("plugin", "domain")
    failures = {key: task.failures for key, task in background_tasks.items()}
    yield counter("background_failures", "Times that a plugin's background task ended with an error.", label, failures)
    running = {key: int(task.is_running) for key, task in background_tasks.items()}
    yield gauge("background_running", "1 while a plugin's background task runs.", label, running)


def _judge(judge: JudgeReading) -> Iterator[Metric]:
    rules = {(rule,): pods for rule, pods in judge.violations.items()}
    yield gauge(
        "verify_violations", "Pods that violate a required rule, whichever scheduler placed them.", ("rule",), rules
    )
    text = "Runs of the judge, by result."
    yield counter("verify_runs", text, ("result",), {("success",): judge.runs, ("error",): judge.failures})
    yield gauge(
        "verify_last_run_timestamp_seconds", "End of the judge's last run, Unix time.", (), {(): judge.ended_at_s}
    )
    yield gauge("verify_duration_seconds", "Duration of the judge's last run.", (), {(): judge.seconds})


def _of_plugins(domains: Mapping[str, DomainReading], taken: Collection[str]) -> Iterator[Metric]:
    """Yields one family per metric name. If several plugins use a name, values of plugins with other labels or another type than the
    first one's are left out.
    """
    families: dict[str, tuple[PluginMetric, dict[tuple[str, ...], float]]] = {}
    for domain, reading in domains.items():
        for metric in reading.plugin_metrics:
            if metric.name in taken:
                continue
            first, values = families.setdefault(metric.name, (metric, {}))
            if (first.labels, first.is_counter) == (metric.labels, metric.is_counter):
                values |= {(*key, domain): value for key, value in metric.values.items()}
    for metric, values in families.values():
        family = counter if metric.is_counter else gauge
        yield family(metric.name, metric.text, (*metric.labels, "domain"), values)
