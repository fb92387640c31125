"""History from a Prometheus-compatible server: each dimension's query, as use per service or as totals of nodes.

Caches what it has read. A later reading queries the new steps and the last hour again, because samples can arrive late.
Called by one task at a time. A failed reading does not change the cache.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import anyio
import msgspec
import numpy as np

from domains.forecast.curves.node_usage import LoadRequest, MeasuredLoads, NodeTotals
from domains.forecast.history.placement_intervals import PlacementIntervals
from domains.forecast.history.source import (
    Reading,
    SourceError,
    Table,
    TableFold,
    first_step,
    joined,
    node_names_of,
    service_names_of,
    usage_of,
)
from domains.forecast.service_names import Naming, Owners, PodName, ServiceNames
from domains.forecast.settings.queries import (
    JOB_OWNERS,
    PLACES,
    POD_OWNERS,
    REPLICASET_OWNERS,
    WINDOW,
    Per,
    promql_duration,
)
from domains.forecast.settings.sources import Dimension, PrometheusSettings, QueryCapacity
from multisched.framework.background import InThread
from multisched.framework.measures import Grid, Meter, MeterError, Piece, RangeReport, shown_query
from multisched.model.plural import counted, verb

OVERLAP_S: Final = 3_600
"""Each reading queries this span before its new steps again: samples may arrive late (remote write, a restarted collector)."""
WHOLE_EVERY: Final = 24
"""Every 24th reading queries the whole window again, to pick up backfilled series and renamed services."""

KnownPods = Callable[[], Awaitable[Mapping[PodName, str]]]
"""Returns the service (`service_of`) of each existing pod. The returned mapping is not modified later."""


class PrometheusSource:
    """Implements `Source`."""

    def __init__(
        self, settings: PrometheusSettings, meter: Meter, dimensions: Sequence[Dimension], known: KnownPods
    ) -> None:
        self.name = f"prometheus {settings.meter.url}"
        self._labels = settings.labels
        self._asks_owners = settings.asks_owners and not settings.labels.service
        self._meter = meter
        self._dimensions = [dimension for dimension in dimensions if dimension.query]
        self._asked_capacities = {d.name: d.capacity.query for d in dimensions if isinstance(d.capacity, QueryCapacity)}
        self._known = known
        self._kept: dict[str, Table] = {}
        self._placement_intervals = PlacementIntervals()
        self._step_s = 0.0
        self._readings = 0

    async def read(self, grid: Grid, in_thread: InThread) -> Reading:
        """See `Source`. Queries are evaluated at the end of each step and cover that step."""
        is_whole = grid.step_s != self._step_s or self._readings % WHOLE_EVERY == 0
        kept, placement_intervals = ({}, PlacementIntervals()) if is_whole else (self._kept, self._placement_intervals)
        round_ = _Round(grid, await self._names(grid), in_thread, kept, placement_intervals)
        try:
            async with anyio.create_task_group() as tasks:
                for dimension in self._dimensions:
                    tasks.start_soon(self._read_dimension, dimension, round_)
                for name, query in self._asked_capacities.items():
                    tasks.start_soon(self._read_capacity, name, query, round_)
                if any(dimension.per is Per.NODE for dimension in self._dimensions):
                    tasks.start_soon(self._read_places, round_)
        except* (MeterError, SourceError) as errors:
            raise SourceError(str(_first(errors))) from errors
        self._keep(round_)
        return self._reading(round_)

    async def look(self, asked: LoadRequest) -> MeasuredLoads:
        """See `LoadMeasuringSource`. Evaluates each dimension's query over the step that ends at the requested moment."""
        seen = MeasuredLoads()
        for dimension in self._dimensions:
            latest: dict[PodName, float] = {}

            def take(piece: Piece, dimension: Dimension = dimension, latest: dict[PodName, float] = latest) -> None:
                has_samples = np.diff(piece.ends, prepend=0) > 0
                values = dict(zip(np.flatnonzero(has_samples).tolist(), piece.values.tolist(), strict=True))
                if dimension.per is Per.NODE:
                    names = node_names_of(piece, self._labels)
                    seen.by_node[dimension.name] = {names[number]: value for number, value in values.items()}
                    return
                for number, value in values.items():
                    series = piece.labels[number]
                    latest[series.get(self._labels.namespace, ""), series.get(self._labels.pod, "")] = value

            moment = Grid(asked.now_s, asked.step_s, 1)
            try:
                await self._ask(dimension.promql(asked.step_s), moment, take, dimension.name)
            except MeterError as error:
                raise SourceError(str(error)) from error
            placed = [(asked.row_of_pod[pod], value) for pod, value in latest.items() if pod in asked.row_of_pod]
            if placed:
                rows, values = zip(*placed, strict=True)
                seen.by_row[dimension.name] = np.array(rows, np.int64), np.array(values, np.float64)
        return seen

    def _keep(self, round_: _Round) -> None:
        self._kept = round_.tables
        if round_.placement_intervals is not None:
            self._placement_intervals = round_.placement_intervals
        self._step_s = round_.grid.step_s
        self._readings += 1

    # -- one query each ----------------------------------------------------------------------------------------------

    async def _read_dimension(self, dimension: Dimension, round_: _Round) -> None:
        grid, kept = round_.grid, round_.kept.get(dimension.name)
        asked = self._missing(grid, kept.end if kept is not None else None)
        fold, first = TableFold(asked.steps), first_step(asked)

        def take(piece: Piece) -> None:
            if dimension.per is Per.NODE:
                fold.add(piece, node_names_of(piece, self._labels))
            else:
                fold.add(piece, service_names_of(piece, self._labels, round_.names))

        query = dimension.promql(grid.step_s)
        report = await self._ask(query, _at_ends(asked), take, dimension.name)
        new = await round_.in_thread(lambda: joined(kept, fold.table(first), first_step(grid), grid.steps))
        round_.tables[dimension.name] = new
        notes = _words(report)
        if not report.samples and new.names:
            notes.append("the query returns no samples for the newest steps; older ones are used")
        if not new.names:
            notes.append("the query returns no samples; check that this server has the metric with these labels")
        round_.note(dimension.name, [f"{text} (query: {shown_query(query)})" for text in notes])

    async def _read_capacity(self, name: str, query: str, round_: _Round) -> None:
        """Reads the newest value of each node within the last ten steps."""
        grid = round_.grid
        steps = min(10, grid.steps)
        latest = Grid(grid.end_s + grid.step_s - (steps - 1) * grid.step_s, grid.step_s, steps)
        found: dict[str, float] = {}

        def take(piece: Piece) -> None:
            begin = 0
            for node, end in zip(node_names_of(piece, self._labels), piece.ends.tolist(), strict=True):
                if end > begin:
                    found[node] = float(piece.values[end - 1])
                begin = end

        report = await self._ask(query.replace(WINDOW, promql_duration(grid.step_s)), latest, take, f"{name}, capacity")
        notes = _words(report)
        empty = sorted(node for node, value in found.items() if value <= 0)
        if empty:
            notes.append(f"{len(empty)} nodes have no capacity, such as {empty[0]}")
        round_.note(f"{name}, capacity", [f"{text} (query: {shown_query(query)})" for text in notes])
        if not found:
            raise SourceError(
                f"{self.name}: dimension {name}: capacity: the query returns no samples (query: {shown_query(query)})"
            )
        round_.capacities[name] = found

    async def _read_places(self, round_: _Round) -> None:
        grid = round_.grid
        asked = self._missing(grid, round_.old_placement_intervals.end)
        placement_intervals = round_.old_placement_intervals.before(first_step(asked))

        def take(piece: Piece) -> None:
            # A recreated StatefulSet pod keeps its name, so one name can have intervals on several nodes.
            services = [round_.names.of_pod((labels["namespace"], labels["pod"])) for labels in piece.labels]
            placement_intervals.add(piece, first_step(asked), services)

        await self._ask(PLACES, _at_ends(asked), take, "nodes of pods")
        placement_intervals.end = first_step(grid) + grid.steps
        round_.placement_intervals = placement_intervals
        if not placement_intervals:
            text = "kube_pod_info has no samples: totals of nodes cannot be attributed; scrape kube-state-metrics"
            round_.note("nodes of pods", [text])

    async def _names(self, grid: Grid) -> ServiceNames:
        owners = Owners()
        if self._asks_owners:
            moment = Grid(grid.end_s + grid.step_s, grid.step_s, 1)
            window = promql_duration(grid.steps * grid.step_s)
            for query, table, label in (
                (POD_OWNERS, owners.pods, "pod"),
                (REPLICASET_OWNERS, owners.replica_sets, "replicaset"),
                (JOB_OWNERS, owners.jobs, "job_name"),
            ):

                def take(piece: Piece, table: dict[PodName, tuple[str, str]] = table, label: str = label) -> None:
                    for labels in piece.labels:
                        owners.note(table, label, labels)

                try:
                    await self._ask(query.replace(WINDOW, window), moment, take, "owners of pods")
                except MeterError as error:
                    raise SourceError(f"{error}; if only this query fails, set owners: false") from error
        return ServiceNames(await self._known(), owners, self._labels.service)

    async def _ask(self, query: str, grid: Grid, take: Callable[[Piece], None], what: str) -> RangeReport:
        try:
            return await self._meter.ranges(query, grid, take)
        except MeterError as error:
            raise MeterError(f"{what}: {error}") from error
        except SourceError as error:
            raise SourceError(f"{self.name}: {what}: {error} (query: {shown_query(query)})") from error

    # -- results -----------------------------------------------------------------------------------------------------

    def _missing(self, grid: Grid, end: int | None) -> Grid:
        """Returns the part of the grid to query: steps after `end`, and OVERLAP_S before it again."""
        first, steps = first_step(grid), grid.steps
        begin = first if end is None else max(first, min(end - round(OVERLAP_S / grid.step_s), first + steps - 1))
        return Grid(begin * grid.step_s, grid.step_s, first + steps - begin)

    def _reading(self, round_: _Round) -> Reading:
        grid = round_.grid
        per_pod = {d.name: round_.tables[d.name] for d in self._dimensions if d.per is Per.POD}
        per_node = {d.name: round_.tables[d.name] for d in self._dimensions if d.per is Per.NODE}
        totals = None
        if per_node and round_.placement_intervals is not None:
            sums = usage_of(per_node, grid)
            placement_intervals = round_.placement_intervals.within(first_step(grid), grid)
            totals = NodeTotals(
                grid.start_s, grid.step_s, sums.services, sums.dimensions, sums.values, placement_intervals
            )
        counts = round_.names.counts
        if counts[Naming.POD_NAME]:
            nameless = (
                f"{counts[Naming.POD_NAME]} pods have no known owner; their services are guessed from their names"
            )
            round_.note("services", [f"{nameless}; scrape kube-state-metrics"])
        return Reading(
            usage_of(per_pod, grid),
            totals,
            round_.capacities,
            {naming.value: count for naming, count in counts.items()},
            tuple(round_.notes),
        )


class _Round(msgspec.Struct):
    """Intermediate results of one reading."""

    grid: Grid
    names: ServiceNames
    in_thread: InThread
    kept: Mapping[str, Table]
    """Cached tables of earlier readings; empty if the whole window is queried again."""
    old_placement_intervals: PlacementIntervals
    tables: dict[str, Table] = msgspec.field(default_factory=dict)
    capacities: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    placement_intervals: PlacementIntervals | None = None
    notes: list[str] = msgspec.field(default_factory=list)

    def note(self, what: str, texts: Sequence[str]) -> None:
        self.notes += [f"{what}: {text}" for text in texts]


def _at_ends(grid: Grid) -> Grid:
    """Returns a grid of the moments at which the steps end."""
    return Grid(grid.start_s + grid.step_s, grid.step_s, grid.steps)


def _words(report: RangeReport) -> list[str]:
    dropped = report.dropped
    counts = ((dropped.nan, "not finite"), (dropped.negative, "negative"), (dropped.off_grid, "off the grid"))
    found = [
        f"{counted(count, 'sample')} {how}; {verb(count, 'it counts as a gap', 'they count as gaps')}"
        for count, how in counts
        if count
    ]
    return found + [f"the server warns: {text}" for text in report.warnings]


def _first(errors: BaseExceptionGroup[Exception] | BaseException) -> BaseException:
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return errors
