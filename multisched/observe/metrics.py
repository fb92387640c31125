"""The program's metrics: kube-scheduler's names with the prefix `multisched_` and a `domain` label, and some of our
own.

Owns one CollectorRegistry. Label values are enums, plugin names and domains, never names of pods or nodes. What happens
for every pod is counted in plain numbers (`domain_metrics`); counts that other parts keep are read at a scrape
(`readings`). Written on the event loop only; rendered in a thread, so that a scrape never blocks a cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio.to_thread
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from multisched.observe.domain_metrics import DomainCountsCollector, DomainMetrics
from multisched.observe.families import NAMESPACE
from multisched.observe.kube_scheduler_names import KubeSchedulerNames
from multisched.observe.rare_event_metrics import RareEventMetrics
from multisched.observe.readings import Readings, ReadingsCollector


class Metrics:
    """All metrics of the process."""

    def __init__(self, profiles: Mapping[str, str] | None = None) -> None:
        """`profiles`: domain -> schedulerName, if kube-scheduler's own names are exposed in addition."""
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._readings, self._counts = ReadingsCollector(), DomainCountsCollector()
        self.registry.register(self._readings)
        self.registry.register(self._counts)
        self._source: Callable[[], Readings] = Readings
        self._domains: dict[str, DomainMetrics] = {}
        self._seldom = RareEventMetrics(self.registry)
        self._readings.taken = self._taken()
        if profiles is not None:
            sources = (self._readings, self._counts, self._seldom)
            self.registry.register(KubeSchedulerNames(profiles, sources))

    def _taken(self) -> frozenset[str]:
        """Returns our own names without the prefix: a plugin metric with one of them would make the whole page invalid."""
        own = (*self._readings.collect(), *self._counts.collect(), *self._seldom.collect())
        return frozenset(metric.name.removeprefix(f"{NAMESPACE}_") for metric in own)

    def domain(self, name: str) -> DomainMetrics:
        """Returns the observer of one domain, created at first use."""
        found = self._domains.get(name)
        if found is None:
            found = self._domains[name] = DomainMetrics(self._seldom, name)
        return found

    def read_from(self, source: Callable[[], Readings]) -> None:
        """Sets the source, which is called on the event loop at each scrape and must be cheap."""
        self._source = source

    async def render_in_thread(self, accept: str = "") -> tuple[bytes, str]:
        """Returns the text and its content type: OpenMetrics if `accept` allows it, else Prometheus' own format.

        Readings and counts are taken on the loop; the text is rendered in a thread.
        """
        self._readings.take(self._source())
        self._counts.take({name: domain.counts.copy() for name, domain in self._domains.items()})
        encode, content_type = choose_encoder(accept)
        return await anyio.to_thread.run_sync(encode, self.registry), content_type
