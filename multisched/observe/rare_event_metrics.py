"""Metrics of events that do not occur for every pod. Owned by `Metrics`, written through `DomainMetrics`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from multisched.observe.families import NAMESPACE, WAIT_S

_VICTIMS: Final = (1, 2, 4, 8, 16, 32, 64)


class RareEventMetrics(Collector):
    """Metrics of events that do not occur for every pod."""

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
        self.preemptions = counter("preemption_goroutines_execution_total", "Preemptions executed.", *ended)
        self.permit_wait = histogram("permit_wait_duration_seconds", "Duration of waits in Permit.", WAIT_S, *ended)
        self.preemption_victims = histogram("preemption_victims", "Victims chosen for one pod.", _VICTIMS, "domain")
        text = "Duration of marking and deleting the victims of one pod."
        self.preemption_duration = histogram("preemption_goroutines_duration_seconds", text, WAIT_S, *ended)
        self._made = made

    def collect(self) -> Iterator[Metric]:
        """Yields all families."""
        for one in self._made:
            yield from one.collect()
