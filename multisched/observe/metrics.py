"""The program's metrics: kube-scheduler's names with the prefix `multisched_` and a `domain` label, and a few of our own.

Owns one CollectorRegistry. Label values are enums, plugin names and domains, never names of pods or nodes. What happens
for every pod is counted in plain numbers (`domain_metrics`), what the parts count themselves is read at a scrape
(`readings`). Written on the event loop only; rendered in a thread, so that a scrape never stops a cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import anyio.to_thread
from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from multisched.observe.domain_metrics import WAIT_S, DomainCountsCollector, DomainMetrics
from multisched.observe.families import NAMESPACE
from multisched.observe.readings import Readings, ReadingsCollector

_VICTIMS: Final = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """All metrics of the process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._readings, self._counts = ReadingsCollector(), DomainCountsCollector()
        self.registry.register(self._readings)
        self.registry.register(self._counts)
        self._source: Callable[[], Readings] = Readings
        self._domains: dict[str, DomainMetrics] = {}
        self._seldom = SeldomMetrics(self.registry)
        self._readings.taken = self._taken()

    def _taken(self) -> frozenset[str]:
        """Names of our own, without the prefix: a plugin that used one would make the whole page unreadable."""
        own = (*self._readings.collect(), *self._counts.collect(), *self._seldom.collect())
        return frozenset(metric.name.removeprefix(f"{NAMESPACE}_") for metric in own)

    def domain(self, name: str) -> DomainMetrics:
        """The observer of one domain, made at first use."""
        found = self._domains.get(name)
        if found is None:
            found = self._domains[name] = DomainMetrics(self._seldom, name)
        return found

    def read_from(self, source: Callable[[], Readings]) -> None:
        """`source` is called on the event loop at each scrape; it must be cheap."""
        self._source = source

    async def render_in_thread(self, accept: str = "") -> tuple[bytes, str]:
        """The text and its content type: OpenMetrics for those who accept it, else Prometheus' own format.

        Readings and counts are taken here on the loop, the text is made in a thread.
        """
        self._readings.take(self._source())
        self._counts.take({name: domain.counts.copy() for name, domain in self._domains.items()})
        encode, content_type = choose_encoder(accept)
        return await anyio.to_thread.run_sync(encode, self.registry), content_type


class SeldomMetrics:
    """What does not happen for every pod."""

    def __init__(self, registry: CollectorRegistry) -> None:
        made: list[Counter | Histogram] = []

        def counter(name: str, text: str, *labels: str) -> Counter:
            made.append(one := Counter(name, text, labels, namespace=NAMESPACE, registry=registry))
            return one

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            made.append(one := Histogram(name, text, labels, namespace=NAMESPACE, registry=registry, buckets=buckets))
            return one

        failures = ("plugin", "extension_point", "domain")
        self.plugin_errors = counter("plugin_errors_total", "Plugin calls that failed.", *failures)
        ended = ("result", "domain")
        self.preemptions = counter("preemption_goroutines_execution_total", "Preemptions carried out.", *ended)
        self.permit_wait = histogram("permit_wait_duration_seconds", "Waits in Permit.", WAIT_S, *ended)
        self.preemption_victims = histogram("preemption_victims", "Victims chosen for one pod.", _VICTIMS, "domain")
        text = "Marking and deleting the victims of one pod."
        self.preemption_duration = histogram("preemption_goroutines_duration_seconds", text, WAIT_S, *ended)
        self._made = made

    def collect(self) -> Iterator[Metric]:
        """All families."""
        for one in self._made:
            yield from one.collect()
