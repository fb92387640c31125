"""Makes metric families from plain numbers, so that hot paths count without the client library's locks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

from multisched.framework.durations import Durations, growing

NAMESPACE: Final = "multisched"
WAIT_S: Final = growing(0.01, 2, 20)
"""10 ms to 87 min: from schedulable to bound, with kube-scheduler's buckets."""
_Labels = TypeVar("_Labels", bound=tuple[str, ...])


def histogram(
    name: str,
    text: str,
    labels: tuple[str, ...],
    found: Mapping[_Labels, Durations],
    namespace: str = NAMESPACE,
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(_full(name, namespace), text, labels=labels)
    for values, durations in found.items():
        ends = (*map(floatToGoString, durations.bounds_s), "+Inf")
        buckets = list(zip(ends, accumulate(durations.counts), strict=True))
        family.add_metric(values, buckets, durations.sum_s)
    return family


def counter(
    name: str, text: str, labels: tuple[str, ...], totals: Mapping[_Labels, float], namespace: str = NAMESPACE
) -> Metric:
    """Makes a counter; the exposition adds `_total`."""
    family = CounterMetricFamily(_full(name, namespace), text, labels=labels)
    for values, total in totals.items():
        family.add_metric(values, total)
    return family


def gauge(
    name: str, text: str, labels: tuple[str, ...], values: Mapping[_Labels, float], namespace: str = NAMESPACE
) -> Metric:
    family = GaugeMetricFamily(_full(name, namespace), text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def _full(name: str, namespace: str) -> str:
    return f"{namespace}_{name}" if namespace else name
