"""The program's metrics: kube-scheduler's names with the prefix `multisched_` and a `domain` label, and a few of our own.

Owns one CollectorRegistry. Label values are enums, plugin names and domains, never names of pods or nodes. Children are
bound once, so that what a bind costs here stays under 15 microseconds; what the parts count themselves is read at a
scrape (`readings`). Written on the event loop only; rendered in a thread, so that a scrape never stops a cycle.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import anyio.to_thread
from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from multisched.cycle.bind_outcome import Outcome
from multisched.model.objects import Pod
from multisched.observe.readings import NAMESPACE, Readings, ReadingsCollector

logger = logging.getLogger(__name__)

ATTEMPT_RESULTS: Final = ("scheduled", "unschedulable", "error", "conflict")

_FAST: Final = tuple(0.00001 * 2**i for i in range(20))
"""10 us to 5 s: one plugin."""
_ATTEMPT: Final = tuple(0.0001 * 2**i for i in range(18))
"""100 us to 13 s: one attempt, one request."""
_WAIT: Final = tuple(0.01 * 2**i for i in range(20))
"""10 ms to 87 min: from schedulable to bound, as kube-scheduler counts it."""
_ATTEMPTS: Final = (1, 2, 4, 8, 16)
_VICTIMS: Final = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """All metrics of the process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._readings = ReadingsCollector()
        self.registry.register(self._readings)
        self._source: Callable[[], Readings] = Readings
        self._domains: dict[str, DomainMetrics] = {}
        self._make_counters()
        self._make_histograms()

    def domain(self, name: str) -> DomainMetrics:
        """The observer of one domain, made at first use."""
        found = self._domains.get(name)
        if found is None:
            found = self._domains[name] = DomainMetrics(self, name)
        return found

    def read_from(self, source: Callable[[], Readings]) -> None:
        """`source` is called on the event loop at each scrape; it must be cheap."""
        self._source = source

    async def render_in_thread(self, accept: str = "") -> tuple[bytes, str]:
        """The text and its content type: OpenMetrics for those who accept it, else Prometheus' own format.

        Readings are taken here on the loop, the text is made in a thread.
        """
        self._readings.take(self._source())
        encode, content_type = choose_encoder(accept)
        return await anyio.to_thread.run_sync(encode, self.registry), content_type

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace=NAMESPACE, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, namespace=NAMESPACE, registry=self.registry, buckets=buckets)

    def _make_counters(self) -> None:
        self.attempts = self._counter("schedule_attempts_total", "Attempts to schedule pods.", "result", "domain")
        self.evaluations = self._counter(
            "plugin_evaluation_total", "Timed calls of a plugin (sampled).", "plugin", "extension_point", "domain"
        )
        self.plugin_errors = self._counter(
            "plugin_errors_total", "Plugin calls that failed.", "plugin", "extension_point", "domain"
        )
        self.outcomes = self._counter("bind_outcomes_total", "How binds ended.", "outcome", "domain")
        self.preemptions = self._counter(
            "preemption_goroutines_execution_total", "Preemptions carried out.", "result", "domain"
        )

    def _make_histograms(self) -> None:
        histogram = self._histogram
        self.attempt_duration = histogram(
            "scheduling_attempt_duration_seconds", "One attempt, with its bind.", _ATTEMPT, "result", "domain"
        )
        self.algorithm_duration = histogram(
            "scheduling_algorithm_duration_seconds", "From the queue to the commit.", _ATTEMPT, "domain"
        )
        self.sli_duration = histogram(
            "pod_scheduling_sli_duration_seconds",
            "From the moment a pod could first be scheduled to its bind.",
            _WAIT,
            "attempts",
            "domain",
        )
        self.pod_attempts = histogram("pod_scheduling_attempts", "Attempts a bound pod needed.", _ATTEMPTS, "domain")
        self.point_duration = histogram(
            "framework_extension_point_duration_seconds",
            "Plugins at an extension point (sampled).",
            _FAST,
            "extension_point",
            "domain",
        )
        self.plugin_duration = histogram(
            "plugin_execution_duration_seconds",
            "One plugin at one point (sampled).",
            _FAST,
            "plugin",
            "extension_point",
        )
        self.permit_wait = histogram("permit_wait_duration_seconds", "Waits in Permit.", _WAIT, "result", "domain")
        self.preemption_victims = histogram("preemption_victims", "Victims chosen for one pod.", _VICTIMS, "domain")
        self.preemption_duration = histogram(
            "preemption_goroutines_duration_seconds",
            "Marking and deleting the victims of one pod.",
            _WAIT,
            "result",
            "domain",
        )
        self.bind_duration = histogram("bind_duration_seconds", "Binds, PreBind to outcome.", _ATTEMPT, "domain")


class DomainMetrics:
    """Hears what happens in one domain (`shell.observer.DomainObserver`) and counts it. Never raises."""

    def __init__(self, metrics: Metrics, domain: str) -> None:
        self._metrics = metrics
        self._domain = domain
        self._attempts = {r: metrics.attempts.labels(r, domain) for r in ATTEMPT_RESULTS}
        self._attempt_duration = {r: metrics.attempt_duration.labels(r, domain) for r in ATTEMPT_RESULTS}
        self._algorithm_duration = metrics.algorithm_duration.labels(domain)
        self._sli_duration = [metrics.sli_duration.labels(text, domain) for text in ("1", "2", "3", "4", "5+")]
        self._pod_attempts = metrics.pod_attempts.labels(domain)
        self._outcomes = {o: metrics.outcomes.labels(o.name.lower(), domain) for o in Outcome}
        self._bind_duration = metrics.bind_duration.labels(domain)
        self._plugins: dict[tuple[str, str], tuple[Histogram, Histogram, Counter]] = {}
        self._failures: dict[tuple[str, str], int] = {}

    def attempt_ended(self, pod: Pod, result: str, seconds: float) -> None:
        """A cycle ended; `result` is one of ATTEMPT_RESULTS. For a placed pod the bind is still to come."""
        self._attempts[result].inc()
        self._algorithm_duration.observe(seconds)
        self._attempt_duration[result].observe(seconds)

    def pod_bound(self, pod: Pod, seconds: float, attempts: int) -> None:
        """Seconds from the moment the pod could first be scheduled."""
        self._sli_duration[min(max(attempts, 1), 5) - 1].observe(seconds)
        self._pod_attempts.observe(attempts)

    def bind_ended(self, pod: Pod, outcome: Outcome, seconds: float) -> None:
        self._outcomes[outcome].inc()
        self._bind_duration.observe(seconds)

    def permit_waited(self, result: str, seconds: float) -> None:
        """`result`: allowed or rejected."""
        self._metrics.permit_wait.labels(result, self._domain).observe(seconds)

    def preemption_began(self, victims: int) -> None:
        self._metrics.preemption_victims.labels(self._domain).observe(victims)

    def preemption_ended(self, result: str, seconds: float) -> None:
        """`result`: success or error."""
        self._metrics.preemptions.labels(result, self._domain).inc()
        self._metrics.preemption_duration.labels(result, self._domain).observe(seconds)

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None:
        """One sampled call."""
        children = self._plugins.get((plugin, point))
        if children is None:
            children = self._plugins[plugin, point] = (
                self._metrics.plugin_duration.labels(plugin, point),
                self._metrics.point_duration.labels(point, self._domain),
                self._metrics.evaluations.labels(plugin, point, self._domain),
            )
        children[0].observe(seconds)
        children[1].observe(seconds)
        children[2].inc()

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        """Counted each time; logged the 1st, 2nd, 4th, 8th ... time, since a plugin may fail for every pod of a burst."""
        self._metrics.plugin_errors.labels(plugin, point, self._domain).inc()
        times = self._failures[plugin, point] = self._failures.get((plugin, point), 0) + 1
        if times & (times - 1) == 0:
            where = {"plugin": plugin, "point": point, "domain": self._domain, "times": times, "error": str(error)}
            logger.error("plugin failed", extra=where, exc_info=error if isinstance(error, BaseException) else None)
