"""Metrics of one domain, kept as plain numbers because every bound pod changes five histograms.

Written on the event loop; a scrape takes a copy there, and a thread makes metric families of it.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Iterator, Mapping
from copy import copy
from typing import Final, TypeVar

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from multisched.cycle.bind_outcome import Outcome
from multisched.framework.durations import Durations, growing
from multisched.framework.ports import ExtenderError
from multisched.model.objects import Pod
from multisched.observe.families import WAIT_S, counter, histogram
from multisched.observe.rare_event_metrics import RareEventMetrics

logger = logging.getLogger(__name__)

_K = TypeVar("_K", bound=Hashable)

ATTEMPT_RESULTS: Final = ("scheduled", "unschedulable", "error", "conflict")

_FAST: Final = growing(0.00001, 2, 20)
"""10 us to 5 s: for one plugin."""
ATTEMPT_S: Final = growing(0.0001, 2, 18)
"""100 us to 13 s: for one attempt or one request."""
_ATTEMPTS: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
_SLI_ATTEMPTS: Final = ("1", "2", "3", "4", "5+")


class DomainCounts:
    """Counts of one domain since start."""

    def __init__(self) -> None:
        self.attempts = {result: Durations(ATTEMPT_S) for result in ATTEMPT_RESULTS}
        self.waits = {attempts: Durations(WAIT_S) for attempts in _SLI_ATTEMPTS}
        """Attempts that a pod needed -> seconds from schedulable to bound."""
        self.tries = Durations(_ATTEMPTS)
        """Attempts that each bound pod needed: its values are numbers of attempts, not seconds."""
        self.binds = Durations(ATTEMPT_S)
        self.outcomes = {outcome.name.lower(): 0 for outcome in Outcome}
        self.plugins: dict[tuple[str, str], Durations] = {}
        """(plugin, extension point) -> its sampled calls."""

    def copy(self) -> DomainCounts:
        """Returns the current counts."""
        copied = copy(self)
        copied.attempts = _copied(self.attempts)
        copied.waits = _copied(self.waits)
        copied.tries, copied.binds = self.tries.copy(), self.binds.copy()
        copied.outcomes = dict(self.outcomes)
        copied.plugins = _copied(self.plugins)
        return copied


class DomainCountsCollector(Collector):
    """Exposes the latest counts of all domains."""

    def __init__(self) -> None:
        self._latest: Mapping[str, DomainCounts] = {}

    def take(self, counts: Mapping[str, DomainCounts]) -> None:
        """Replaces all counts at once, so that a rendering thread reads a consistent copy."""
        self._latest = counts

    def collect(self) -> Iterable[Metric]:
        """Yields all families, in a fixed order."""
        yield from _attempts(self._latest)
        yield from _bound(self._latest)
        yield from _plugins(self._latest)


class DomainMetrics:
    """Observes one domain (`shell.observer.DomainObserver`) and counts its events. Never raises."""

    def __init__(self, seldom: RareEventMetrics, domain: str) -> None:
        self.counts = DomainCounts()
        self._seldom = seldom
        self._domain = domain
        self._failures: dict[tuple[str, str], int] = {}

    def attempt_ended(self, pod: Pod, result: str, seconds: float) -> None:
        """Counts a finished cycle; `result` is one of ATTEMPT_RESULTS. The bind of a placed pod is still to come."""
        self.counts.attempts[result].observe(seconds)

    def pod_bound(self, pod: Pod, seconds: float, attempts: int) -> None:
        """Counts a bound pod. `seconds`: since it could first be scheduled."""
        self.counts.waits[_SLI_ATTEMPTS[min(max(attempts, 1), 5) - 1]].observe(seconds)
        self.counts.tries.observe(attempts)

    def bind_ended(self, pod: Pod, outcome: Outcome, seconds: float) -> None:
        self.counts.outcomes[outcome.name.lower()] += 1
        self.counts.binds.observe(seconds)

    def permit_waited(self, result: str, seconds: float) -> None:
        """Counts a wait; `result`: allowed or rejected."""
        self._seldom.permit_wait.labels(result, self._domain).observe(seconds)

    def preemption_began(self, victims: int) -> None:
        self._seldom.preemption_victims.labels(self._domain).observe(victims)

    def preemption_ended(self, result: str, seconds: float) -> None:
        """Counts a preemption; `result`: success or error."""
        self._seldom.preemptions.labels(result, self._domain).inc()
        self._seldom.preemption_duration.labels(result, self._domain).observe(seconds)

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None:
        """Counts one sampled call."""
        found = self.counts.plugins.get((plugin, point))
        if found is None:
            found = self.counts.plugins[plugin, point] = Durations(_FAST)
        found.observe(seconds)

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        """Counts a failure; logs the 1st, 2nd, 4th, 8th ... one, because a plugin may fail for every pod of a burst."""
        self._seldom.plugin_errors.labels(plugin, point, self._domain).inc()
        times = self._failures[plugin, point] = self._failures.get((plugin, point), 0) + 1
        if times & (times - 1) == 0:
            text = str(error) if isinstance(error, str | ExtenderError) else f"{type(error).__name__}: {error}"
            where = {"plugin": plugin, "point": point, "domain": self._domain, "times": times, "error": text}
            # An unavailable extender is not a program defect whose position a traceback would show.
            logger.error(
                "plugin failed", extra=where, exc_info=None if isinstance(error, str | ExtenderError) else error
            )


def _copied(durations: Mapping[_K, Durations]) -> dict[_K, Durations]:
    return {key: one.copy() for key, one in durations.items()}


def _sum(durations: Iterable[Durations], bounds_s: tuple[float, ...]) -> Durations:
    total = Durations(bounds_s)
    for one in durations:
        total.add(one)
    return total


def _attempts(domains: Mapping[str, DomainCounts]) -> Iterator[Metric]:
    label = ("result", "domain")
    by_result = {(result, name): one for name, counts in domains.items() for result, one in counts.attempts.items()}
    totals = {key: one.count for key, one in by_result.items()}
    yield counter("schedule_attempts", "Attempts to schedule pods.", label, totals)
    yield histogram(
        "scheduling_attempt_duration_seconds", "Duration of an attempt, without its bind.", label, by_result
    )
    whole = {(name,): _sum(counts.attempts.values(), ATTEMPT_S) for name, counts in domains.items()}
    yield histogram("scheduling_algorithm_duration_seconds", "Time from the queue to the commit.", ("domain",), whole)


def _bound(domains: Mapping[str, DomainCounts]) -> Iterator[Metric]:
    waits = {(attempts, name): one for name, counts in domains.items() for attempts, one in counts.waits.items()}
    text = "Time from the moment a pod could first be scheduled to its bind."
    yield histogram("pod_scheduling_sli_duration_seconds", text, ("attempts", "domain"), waits)
    label = ("domain",)
    tries = {(name,): counts.tries for name, counts in domains.items()}
    yield histogram("pod_scheduling_attempts", "Attempts a bound pod needed.", label, tries)
    binds = {(name,): counts.binds for name, counts in domains.items()}
    yield histogram("bind_duration_seconds", "Duration of binds, from PreBind to the outcome.", label, binds)
    outcomes = {(outcome, name): n for name, counts in domains.items() for outcome, n in counts.outcomes.items()}
    yield counter("bind_outcomes", "Binds by outcome.", ("outcome", "domain"), outcomes)


def _plugins(domains: Mapping[str, DomainCounts]) -> Iterator[Metric]:
    calls: dict[tuple[str, str, str], int] = {}
    by_plugin: dict[tuple[str, str], Durations] = {}
    by_point: dict[tuple[str, str], Durations] = {}
    for name, counts in domains.items():
        for (plugin, point), one in counts.plugins.items():
            calls[plugin, point, name] = one.count
            by_plugin.setdefault((plugin, point), Durations(_FAST)).add(one)
            by_point.setdefault((point, name), Durations(_FAST)).add(one)
    label = ("plugin", "extension_point", "domain")
    yield counter("plugin_evaluation", "Timed calls of a plugin (sampled).", label, calls)
    text = "Duration of all plugins at an extension point (sampled)."
    yield histogram("framework_extension_point_duration_seconds", text, ("extension_point", "domain"), by_point)
    text = "Duration of one plugin at one extension point (sampled)."
    yield histogram("plugin_execution_duration_seconds", text, ("plugin", "extension_point"), by_plugin)
