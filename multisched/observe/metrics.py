"""The program's metrics: kube-scheduler's names with the prefix `multisched_` and a `domain` label, and a few of our own.

Owns one CollectorRegistry. Label values are enums, plugin names and domains, never names of pods or nodes. Children are
bound once, so that what a bind costs here stays under 15 microseconds; gauges are read when someone asks, not kept up
to date. Written on the event loop only; rendered in a thread, so that a scrape never stops a cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import anyio.to_thread
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

CONTENT_TYPE: Final = OPENMETRICS
NAMESPACE: Final = "multisched"

ATTEMPT_RESULTS: Final = ("scheduled", "unschedulable", "error")
QUEUES: Final = ("active", "backoff", "unschedulable", "gated")
BIND_OUTCOMES: Final = ("bound", "refused", "unknown")
CACHE_TYPES: Final = ("nodes", "pods", "assumed_pods")
EVENT_RESULTS: Final = ("stored", "aggregated", "dropped", "failed")
CONFLICT_KINDS: Final = ("true", "false")

_FAST: Final = tuple(0.00001 * 2**i for i in range(20))
"""10 us to 5 s: a plugin, an extension point."""
_ATTEMPT: Final = tuple(0.0001 * 2**i for i in range(18))
"""100 us to 13 s: one attempt."""
_WAIT: Final = tuple(0.01 * 2**i for i in range(20))
"""10 ms to 87 min: from seen to bound, as kube-scheduler counts it."""
_ATTEMPTS: Final = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class DomainGauges:
    """What a domain has right now; asked at each scrape."""

    pending: Mapping[str, int]
    """Queue name (QUEUES) -> pods."""
    unschedulable_by_plugin: Mapping[str, int]
    """Plugin -> waiting pods it refused last."""
    binds_in_flight: int
    bind_limit: int
    permit_waiting: int
    is_lease_held: bool


@dataclass(frozen=True, slots=True)
class ProcessGauges:
    """What the process has right now; asked at each scrape."""

    cached: Mapping[str, int]
    """CACHE_TYPES -> count."""
    domains: Mapping[str, DomainGauges]
    log_lines_dropped: int = 0
    certificate_expiry_s: float = 0.0
    """Seconds since the epoch at which the server's certificate ends; 0 without one."""


class Metrics:
    """All metrics of the process. Names without `domain` count for all domains together."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._domains: dict[str, DomainMetrics] = {}
        self._gauges: Callable[[], ProcessGauges] | None = None
        self._make_counters()
        self._make_histograms()
        self._make_gauges()

    def domain(self, name: str) -> DomainMetrics:
        """The metrics of one domain, made at first use."""
        found = self._domains.get(name)
        if found is None:
            found = self._domains[name] = DomainMetrics(self, name)
        return found

    def read_gauges_from(self, source: Callable[[], ProcessGauges]) -> None:
        """`source` is called on the event loop at each scrape; it must be cheap."""
        self._gauges = source

    async def render_in_thread(self) -> bytes:
        """OpenMetrics text. Gauges are read here on the loop, the text is made in a thread."""
        if self._gauges is not None:
            self._set_gauges(self._gauges())
        return await anyio.to_thread.run_sync(generate_openmetrics, self.registry)

    # ---- reflectors, cache, API server: whole process

    def relisted(self, kind: str, reason: str) -> None:
        self.reflector_relists.labels(kind, reason).inc()

    def watch_events(self, kind: str, count: int) -> None:
        """`count` events of a kind were applied."""
        self.reflector_events.labels(kind).inc(count)

    def watch_failed(self, kind: str) -> None:
        self.reflector_errors.labels(kind).inc()

    def watch_lagged(self, kind: str, lag_s: float) -> None:
        """Seconds between an object's last write, as the server stamped it, and our applying it."""
        self.watch_lag.labels(kind).set(lag_s)

    def malformed(self, kind: str) -> None:
        self.malformed_objects.labels(kind).inc()

    def audited(self, differences: int) -> None:
        self.audits.inc()
        self.audit_differences.inc(differences)

    def events_sent(self, result: str, count: int = 1) -> None:
        """`result` is one of EVENT_RESULTS."""
        self.events.labels(result).inc(count)

    def request_throttled(self) -> None:
        self.throttled.inc()

    # ---- declarations

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace=NAMESPACE, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, namespace=NAMESPACE, registry=self.registry, buckets=buckets)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, namespace=NAMESPACE, registry=self.registry)

    def _make_counters(self) -> None:
        counter = self._counter
        self.attempts = counter("schedule_attempts_total", "Attempts to schedule pods.", "result", "domain")
        self.incoming = counter("queue_incoming_pods_total", "Pods added to queues.", "queue", "event", "domain")
        self.evaluations = counter(
            "plugin_evaluation_total", "Calls of a plugin.", "plugin", "extension_point", "domain"
        )
        self.conflicts = counter(
            "commit_conflicts_total", "Commits that met a moved row: true, no longer fits; false, still fits.",
            "kind", "domain",
        )  # fmt: skip
        self.outcomes = counter("bind_outcomes_total", "How binding requests ended.", "outcome", "domain")
        self.unknown_binds = counter("unknown_binds_total", "Binds whose outcome had to be asked for.", "domain")
        self.batches = counter(
            "batch_attempts_total", "Pods scheduled as part of a batch, or alone.", "result", "domain"
        )
        self.class_cache = counter("class_cache_total", "Lookups of cached masks and raw scores.", "result", "domain")
        self.unsigned = counter("unsigned_pods_total", "Pods that a plugin could not sign.", "plugin", "domain")
        self.forecast_fallbacks = counter("forecast_fallback_total", "Scores without a forecast.", "reason", "domain")
        self.plugin_errors = counter("plugin_errors_total", "Plugin calls that failed.", "plugin", "domain")
        self.reflector_relists = counter("reflector_relists_total", "Whole lists read.", "kind", "reason")
        self.reflector_events = counter("reflector_events_total", "Watch events applied.", "kind")
        self.reflector_errors = counter("reflector_errors_total", "Lists and watches that failed.", "kind")
        self.malformed_objects = counter("malformed_objects_total", "Objects that could not be used.", "kind")
        self.audits = counter("audits_total", "Comparisons of the cache with the API.")
        self.audit_differences = counter("audit_differences_total", "Differences an audit found.")
        self.events = counter("events_total", "Events about pods.", "result")
        self.throttled = counter("throttled_requests_total", "Answers 429 of the API server.")
        self.log_drops = counter("log_lines_dropped_total", "Log lines dropped because the output was blocked.")
        self._log_drops_seen = 0

    def _make_histograms(self) -> None:
        histogram = self._histogram
        self.attempt_duration = histogram(
            "scheduling_attempt_duration_seconds", "One attempt: scheduling and binding.", _ATTEMPT, "result", "domain"
        )
        self.algorithm_duration = histogram(
            "scheduling_algorithm_duration_seconds", "From the queue to the commit.", _ATTEMPT, "domain"
        )
        self.sli_duration = histogram(
            "pod_scheduling_sli_duration_seconds",
            "From the queue's first sight of a pod, less the time it was gated, to its bind.",
            _WAIT, "attempts", "domain",
        )  # fmt: skip
        self.pod_attempts = histogram("pod_scheduling_attempts", "Attempts a bound pod needed.", _ATTEMPTS, "domain")
        self.extension_point_duration = histogram(
            "framework_extension_point_duration_seconds", "All plugins of a point.", _FAST,
            "extension_point", "status", "domain",
        )  # fmt: skip
        self.plugin_duration = histogram(
            "plugin_execution_duration_seconds", "One plugin at one point (sampled).", _FAST,
            "plugin", "extension_point", "status",
        )  # fmt: skip
        self.permit_wait = histogram("permit_wait_duration_seconds", "Waits in Permit.", _WAIT, "result", "domain")
        self.bind_duration = histogram("bind_duration_seconds", "One binding request.", _ATTEMPT, "domain")

    def _make_gauges(self) -> None:
        gauge = self._gauge
        self.pending = gauge("pending_pods", "Pods waiting.", "queue", "domain")
        self.unschedulable = gauge("unschedulable_pods", "Waiting pods a plugin refused.", "plugin", "domain")
        self.binds_in_flight = gauge("binds_in_flight", "Binding requests on the wire.", "domain")
        self.bind_limit = gauge("bind_concurrency_limit", "The adaptive limit of binding requests.", "domain")
        self.permit_waiting = gauge("permit_waiting_pods", "Assumed pods that wait in Permit.", "domain")
        self.lease_held = gauge("lease_held", "1 while this process may bind for the domain.", "domain")
        self.cache_size = gauge("cache_size", "Objects in the cache.", "type")
        self.watch_lag = gauge("watch_lag_seconds", "Age of the last applied change when it was applied.", "kind")
        self.certificate_expiry = gauge("server_certificate_expiry_seconds", "End of the certificate, Unix time.")

    def _set_gauges(self, now: ProcessGauges) -> None:
        for kind, count in now.cached.items():
            self.cache_size.labels(kind).set(count)
        self.certificate_expiry.set(now.certificate_expiry_s)
        self.log_drops.inc(max(now.log_lines_dropped - self._log_drops_seen, 0))
        self._log_drops_seen = now.log_lines_dropped
        for name, gauges in now.domains.items():
            self.domain(name).set_gauges(gauges)


class DomainMetrics:
    """One domain's view of Metrics: the methods its queue, cycles and bind workers call."""

    def __init__(self, metrics: Metrics, domain: str) -> None:
        self._metrics = metrics
        self._domain = domain
        self._attempts = {r: metrics.attempts.labels(r, domain) for r in ATTEMPT_RESULTS}
        self._attempt_duration = {r: metrics.attempt_duration.labels(r, domain) for r in ATTEMPT_RESULTS}
        self._algorithm_duration = metrics.algorithm_duration.labels(domain)
        self._sli_duration = [metrics.sli_duration.labels(text, domain) for text in ("1", "2", "3", "4", "5+")]
        self._pod_attempts = metrics.pod_attempts.labels(domain)
        self._outcomes = {o: metrics.outcomes.labels(o, domain) for o in BIND_OUTCOMES}
        self._bind_duration = metrics.bind_duration.labels(domain)
        self._conflicts = {k: metrics.conflicts.labels(k, domain) for k in CONFLICT_KINDS}
        self._unknown_binds = metrics.unknown_binds.labels(domain)
        self._batches = {k: metrics.batches.labels(k, domain) for k in ("batched", "single")}
        self._class_cache = {k: metrics.class_cache.labels(k, domain) for k in ("hit", "partial", "miss")}
        self._incoming: dict[tuple[str, str], Counter] = {}
        self._points: dict[tuple[str, str], Histogram] = {}
        self._plugins: dict[tuple[str, str, str], Histogram] = {}
        self._evaluations: dict[tuple[str, str], Counter] = {}
        self._refusing_plugins: set[str] = set()

    # ---- a pod's way

    def incoming(self, queue: str, event: str) -> None:
        """A pod came to a queue (QUEUES) because of an event."""
        child = self._incoming.get((queue, event))
        if child is None:
            child = self._incoming[queue, event] = self._metrics.incoming.labels(queue, event, self._domain)
        child.inc()

    def decided(self, algorithm_s: float) -> None:
        """A cycle ended with a commit or a refusal, `algorithm_s` after it popped the pod."""
        self._algorithm_duration.observe(algorithm_s)

    def failed(self, result: str, attempt_s: float) -> None:
        """An attempt ended without a bind: `unschedulable` or `error`."""
        self._attempts[result].inc()
        self._attempt_duration[result].observe(attempt_s)

    def bound(self, *, attempts: int, attempt_s: float, sli_s: float, bind_s: float) -> None:
        """A pod was bound. `sli_s` counts from its first enqueue, less gated time; `bind_s` is the request alone."""
        self._attempts["scheduled"].inc()
        self._attempt_duration["scheduled"].observe(attempt_s)
        self._sli_duration[min(attempts, 5) - 1].observe(sli_s)
        self._pod_attempts.observe(attempts)
        self._outcomes["bound"].inc()
        self._bind_duration.observe(bind_s)

    def bind_ended(self, outcome: str) -> None:
        """A bind ended otherwise: `refused` or `unknown` (BIND_OUTCOMES); `bound` is counted by `bound`."""
        self._outcomes[outcome].inc()
        if outcome == "unknown":
            self._unknown_binds.inc()

    def permit_waited(self, result: str, wait_s: float) -> None:
        """A wait in Permit ended: `allowed`, `rejected` or `timeout`."""
        self._metrics.permit_wait.labels(result, self._domain).observe(wait_s)

    # ---- commits, batches, caches

    def conflicted(self, *, true: int, false: int) -> None:
        """Conflicts since the last call."""
        if true:
            self._conflicts["true"].inc(true)
        if false:
            self._conflicts["false"].inc(false)

    def batch(self, pods: int) -> None:
        """One pop of the queue gave so many pods."""
        self._batches["batched" if pods > 1 else "single"].inc(pods)

    def class_lookup(self, result: str) -> None:
        """`hit`, `partial` (some rows computed again) or `miss`."""
        self._class_cache[result].inc()

    def unsigned(self, plugin: str) -> None:
        self._metrics.unsigned.labels(plugin, self._domain).inc()

    def forecast_fell_back(self, reason: str, count: int = 1) -> None:
        self._metrics.forecast_fallbacks.labels(reason, self._domain).inc(count)

    # ---- plugins

    def extension_point(self, point: str, status: str, duration_s: float) -> None:
        child = self._points.get((point, status))
        if child is None:
            child = self._metrics.extension_point_duration.labels(point, status, self._domain)
            self._points[point, status] = child
        child.observe(duration_s)

    def plugin(self, plugin: str, point: str, status: str, duration_s: float) -> None:
        """One call's duration; callers sample, one attempt in ten is plenty."""
        child = self._plugins.get((plugin, point, status))
        if child is None:
            child = self._plugins[plugin, point, status] = self._metrics.plugin_duration.labels(plugin, point, status)
        child.observe(duration_s)

    def evaluated(self, plugin: str, point: str, count: int = 1) -> None:
        """`count` calls of a plugin at a point."""
        child = self._evaluations.get((plugin, point))
        if child is None:
            child = self._evaluations[plugin, point] = self._metrics.evaluations.labels(plugin, point, self._domain)
        child.inc(count)

    def plugin_failed(self, plugin: str) -> None:
        self._metrics.plugin_errors.labels(plugin, self._domain).inc()

    # ---- gauges

    def set_gauges(self, now: DomainGauges) -> None:
        """Called at each scrape. A plugin that refuses nobody any more is shown as 0."""
        metrics, domain = self._metrics, self._domain
        for queue in QUEUES:
            metrics.pending.labels(queue, domain).set(now.pending.get(queue, 0))
        self._refusing_plugins |= now.unschedulable_by_plugin.keys()
        for plugin in self._refusing_plugins:
            metrics.unschedulable.labels(plugin, domain).set(now.unschedulable_by_plugin.get(plugin, 0))
        metrics.binds_in_flight.labels(domain).set(now.binds_in_flight)
        metrics.bind_limit.labels(domain).set(now.bind_limit)
        metrics.permit_waiting.labels(domain).set(now.permit_waiting)
        metrics.lease_held.labels(domain).set(now.is_lease_held)
