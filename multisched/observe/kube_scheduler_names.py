"""kube-scheduler's own metrics, `scheduler_…`, for existing dashboards and alerts: ours under its names and labels.

Doubles the cost of those families at a scrape and costs nothing per pod: samples are renamed and summed on request.
`profile` is the domain's first schedulerName. If upstream has no such label, domains are summed. Source: kubernetes
1.36, pkg/scheduler/metrics/metrics.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from multisched.observe.families import NAMESPACE

UPSTREAM: Final = "scheduler"
PER_PROFILE: Final = frozenset(
    {
        "framework_extension_point_duration_seconds",
        "plugin_evaluation",
        "schedule_attempts",
        "scheduling_attempt_duration_seconds",
        "unschedulable_pods",
    }
)
SUMMED: Final = frozenset(
    {
        "async_api_call_execution",
        "cache_size",
        "event_handling_duration_seconds",
        "inflight_events",
        "pending_async_api_calls",
        "pending_pods",
        "permit_wait_duration_seconds",
        "plugin_execution_duration_seconds",
        "pod_scheduled_after_flush",
        "pod_scheduling_attempts",
        "pod_scheduling_sli_duration_seconds",
        "preemption_attempts",
        "preemption_goroutines_duration_seconds",
        "preemption_goroutines_execution",
        "preemption_victims",
        "queue_incoming_pods",
        "queueing_hint_execution_duration_seconds",
        "scheduling_algorithm_duration_seconds",
    }
)
_VALUES: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = {
    "pending_pods": {"queue": {"gang": "unschedulable"}},
    "queue_incoming_pods": {"queue": {"gang": "unschedulable"}},
    "permit_wait_duration_seconds": {"result": {"allowed": "Success", "rejected": "Unschedulable"}},
}
"""Family -> label -> our value -> upstream's. Upstream has no queue for members that wait for another member of their gang."""


class KubeSchedulerNames(Collector):
    """Exposes those families of `sources` that kube-scheduler has, too."""

    def __init__(self, profiles: Mapping[str, str], sources: Collection[Collector]) -> None:
        """`profiles`: domain -> schedulerName."""
        self._profiles = profiles
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        """Yields the families in the order of the sources."""
        for source in self._sources:
            for family in source.collect():
                name = family.name.removeprefix(f"{NAMESPACE}_")
                if name in PER_PROFILE or name in SUMMED:
                    yield self._renamed(family, name)

    def _renamed(self, family: Metric, name: str) -> Metric:
        renamed = Metric(f"{UPSTREAM}_{name}", family.documentation, family.type)
        values, totals = _VALUES.get(name, {}), dict[tuple[str, tuple[tuple[str, str], ...]], float]()
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                labels = {key: values.get(key, {}).get(value, value) for key, value in sample.labels.items()}
                domain = labels.pop("domain", "")
                if name in PER_PROFILE:
                    labels["profile"] = self._profiles.get(domain, domain)
                series = sample.name.removeprefix(f"{NAMESPACE}_"), tuple(labels.items())
                totals[series] = totals.get(series, 0.0) + sample.value
        for (suffixed, labelled), value in totals.items():
            renamed.add_sample(f"{UPSTREAM}_{suffixed}", dict(labelled), value)
        return renamed
