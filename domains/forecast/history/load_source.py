"""History from the metrics API (metrics.k8s.io). The API returns only the current load, so the source polls it.

Owns the samples since program start, per service and step, within the window; they are lost on restart. Called by one
task at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import numpy as np

from domains.forecast.history.prometheus_source import KnownPods
from domains.forecast.history.source import Reading, SourceError, Table, first_step, usage_of
from domains.forecast.service_names import Naming, Owners, ServiceNames
from domains.forecast.settings.sources import Aggregation, Dimension, LoadSettings
from multisched.forecasting.usage import Samples
from multisched.framework.background import InThread
from multisched.framework.measures import Grid, LoadReader, MeterError, PodUse
from multisched.model.objects import CPU, MEMORY

SAMPLES_MAX: Final = 50_000_000
"""Limit of kept numbers: three for each service and step. The oldest steps are dropped first."""

PODS_PER_PIECE: Final = 1_000
"""Pods processed before yielding to the event loop: about two milliseconds."""

OnPodUses = Callable[[float, Sequence[PodUse]], Awaitable[None]]
"""(epoch seconds, use of pods)"""


class LoadSource:
    """Implements `PollingSource` for the dimensions `cpu` (cores) and `memory` (bytes)."""

    name = "metrics-api"

    def __init__(
        self,
        settings: LoadSettings,
        reader: LoadReader,
        dimensions: Sequence[Dimension],
        known: KnownPods,
        step_s: float,
        on_pod_uses: OnPodUses | None = None,
    ) -> None:
        """`step_s`: step of the grids passed to `read`. `on_pod_uses`: called with the result of each poll."""
        self.interval_s = float(settings.step_s)
        self._reader = reader
        self._known = known
        self._step_s = step_s
        self._on_pod_uses = on_pod_uses
        self._dimensions = [d for d in dimensions if d.name in (CPU, MEMORY)]
        self._steps: dict[int, dict[str, tuple[float, ...]]] = {}
        """Step -> service -> (sum or maximum over the polls of the mean over replicas, per dimension; number of polls)."""
        self._kept = 0
        self._named: dict[str, int] = {}
        self._error = ""
        """Error of the last poll; empty if it succeeded."""

    async def poll(self, now_s: float) -> None:
        """See `PollingSource`."""
        try:
            pods = await self._reader.pods()
        except MeterError as error:
            self._error = str(error)
            raise SourceError(f"{self.name}: {error}") from error
        self._error = ""
        if self._on_pod_uses is not None:
            await self._on_pod_uses(now_s, pods)
        names = ServiceNames(await self._known(), Owners())
        means = await self._means(pods, names)
        seen = self._steps.setdefault(int(now_s // self._step_s), {})
        for service, values in means.items():
            before = seen.get(service)
            self._kept += before is None
            seen[service] = (*values, 1.0) if before is None else self._together(before, values)
        self._named = {naming.value: count for naming, count in names.counts.items() if naming is not Naming.LABEL}
        while self._kept > SAMPLES_MAX // 3 and len(self._steps) > 1:
            self._kept -= len(self._steps.pop(min(self._steps)))

    def _together(self, before: tuple[float, ...], values: Sequence[float]) -> tuple[float, ...]:
        both = (
            max(old, new) if dimension.aggregation is Aggregation.MAX else old + new
            for dimension, old, new in zip(self._dimensions, before, values, strict=False)
        )
        return (*both, before[-1] + 1)

    async def _means(self, pods: Sequence[PodUse], names: ServiceNames) -> dict[str, list[float]]:
        """Returns service -> mean over its replicas, per dimension."""
        sums: dict[str, list[float]] = {}
        for number, pod in enumerate(pods):
            if number % PODS_PER_PIECE == 0:
                await asyncio.sleep(0)
            use = {CPU: pod.cpu_cores, MEMORY: pod.memory_bytes}
            total = sums.setdefault(names.of_pod((pod.namespace, pod.pod)), [0.0] * (len(self._dimensions) + 1))
            for index, dimension in enumerate(self._dimensions):
                total[index] += use[dimension.name]
            total[-1] += 1
        return {service: [value / total[-1] for value in total[:-1]] for service, total in sums.items()}

    async def read(self, grid: Grid, in_thread: InThread) -> Reading:
        """See `Source`. Without samples it adds a note and does not fail, because other sources may have the data."""
        first = first_step(grid)
        for step in [step for step in self._steps if step < first]:
            self._kept -= len(self._steps.pop(step))
        seen = {step: dict(services) for step, services in self._steps.items() if step < first + grid.steps}
        notes = () if seen else (f"{self.name}: {self._error or 'no poll within the window yet'}",)
        return await in_thread(lambda: self._reading(seen, grid, notes))

    def _reading(self, seen: dict[int, dict[str, tuple[float, ...]]], grid: Grid, notes: tuple[str, ...]) -> Reading:
        first = first_step(grid)
        services = tuple(sorted({service for one in seen.values() for service in one}))
        index_of = {service: index for index, service in enumerate(services)}
        values: Samples = np.full((len(self._dimensions), len(services), grid.steps), np.nan, np.float32)
        divided = np.array([[d.aggregation is not Aggregation.MAX] for d in self._dimensions])
        for step, found in seen.items():
            rows = [index_of[service] for service in found]
            table = np.array(list(found.values())).T
            values[:, rows, step - first] = table[:-1] / np.where(divided, table[-1], 1.0)
        tables = {d.name: Table(first, services, values[n]) for n, d in enumerate(self._dimensions)}
        return Reading(usage_of(tables, grid), named=dict(self._named), notes=notes)
