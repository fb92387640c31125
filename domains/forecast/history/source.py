"""Sources of history: their Protocol, the readings they return, and the aggregation of series to use per service.

A source returns readings on the requested grid; `merged` combines readings of several sources. Called by `refit`. Folds
are filled in worker threads, one piece at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.node_usage import NodeTotals
from domains.forecast.service_names import Labels, PodName, ServiceNames
from multisched.forecasting.usage import Samples, Usage
from multisched.framework.background import InThread
from multisched.framework.measures import Grid, Piece

if TYPE_CHECKING:
    from domains.forecast.curves.node_usage import LoadRequest, MeasuredLoads

SERVICES_MAX = 50_000
"""Limit of services in a reading; a larger number suggests that pods were taken for services."""
NODE_LABELS = ("node", "nodename", "kubernetes_node", "instance")
"""Labels that may contain the node's name, tried in this order; the port is removed from `instance`."""
NOTES_MAX = 50
"""Limit of notes in a reading."""


class SourceError(Exception):
    """A source returned no usable data; the message names the source, the dimension and the fix."""


class Reading(msgspec.Struct, frozen=True):
    """The data returned by a source."""

    usage: Usage
    totals: NodeTotals | None = None
    """Dimensions measured per node; None if there are none."""
    capacities: Mapping[str, Mapping[str, float]] = msgspec.field(default_factory=dict)
    """Dimension -> node -> capacity in the dimension's plain unit, for capacities measured by a query."""
    named: Mapping[str, int] = msgspec.field(default_factory=dict)
    """`Naming` -> number of pods whose service was found that way."""
    notes: tuple[str, ...] = ()
    """Messages about everything skipped or guessed."""


class Source(Protocol):
    """A source of history."""

    name: str

    async def read(self, grid: Grid, in_thread: InThread) -> Reading:
        """Returns the use in the grid's steps; each begins at a multiple of the step length.

        Raises SourceError; the data that the source caches is unchanged then.
        """
        ...


@runtime_checkable
class PollingSource(Source, Protocol):
    """A source that can measure only the current load, and records it on each poll.

    `LoadSource` is the only implementation; the Protocol keeps the refit independent of it.
    """

    interval_s: float

    async def poll(self, now_s: float) -> None:
        """Measures and records the current load. Raises SourceError."""
        ...


@runtime_checkable
class LoadMeasuringSource(Source, Protocol):
    """A source that can also return the current load.

    `PrometheusSource` is the only implementation; the Protocol keeps `LearningRun` independent of it.
    """

    async def look(self, request: LoadRequest) -> MeasuredLoads:
        """Returns the load of nodes at the requested moment. Raises SourceError."""
        ...


class Table(msgspec.Struct, frozen=True):
    """Samples of one dimension by name, on consecutive steps; NaN where nothing was measured."""

    first: int
    """Number of the first step since the epoch."""
    names: tuple[str, ...]
    values: Samples
    """float32[names, steps]"""

    @property
    def end(self) -> int:
        return self.first + int(self.values.shape[1])


def first_step(grid: Grid) -> int:
    """Returns the number of the grid's first step since the epoch. Grids begin at multiples of their step."""
    return round(grid.start_s / grid.step_s)


def joined(old: Table | None, new: Table, first: int, steps: int) -> Table:
    """Joins steps `first` to `first + steps` of both tables; where they overlap, uses `new` only. Drops names without samples."""
    parts = (old, new) if old is not None else (new,)
    names = tuple(dict.fromkeys(name for part in parts for name in part.names))
    index_of = {name: index for index, name in enumerate(names)}
    values: Samples = np.full((len(names), steps), np.nan, np.float32)
    for part in parts:
        begin, end = max(first, part.first), min(first + steps, part.end)
        if begin >= end:
            continue
        values[:, begin - first : end - first] = np.nan
        rows = np.array([index_of[name] for name in part.names], np.int64)
        values[rows, begin - first : end - first] = part.values[:, begin - part.first : end - part.first]
    return _without_empty(Table(first, names, values))


def _without_empty(table: Table) -> Table:
    filled = np.flatnonzero(~np.isnan(table.values).all(axis=1))
    return Table(table.first, tuple(table.names[row] for row in filled.tolist()), table.values[filled])


def usage_of(tables: Mapping[str, Table], grid: Grid) -> Usage:
    """Combines the tables of all dimensions to one Usage; each table must have exactly the grid's steps."""
    services = tuple(sorted({name for table in tables.values() for name in table.names}))
    index_of = {name: index for index, name in enumerate(services)}
    values: Samples = np.full((len(services), len(tables), grid.steps), np.nan, np.float32)
    for number, table in enumerate(tables.values()):
        values[[index_of[name] for name in table.names], number] = table.values
    return Usage(grid.start_s, grid.step_s, services, tuple(tables), values)


def merged(readings: Sequence[Reading], steps_max: int) -> Reading:
    """Merges the last `steps_max` steps of all readings; for a sample in several readings, the first reading wins.

    All readings must have the same step and begin at a multiple of it. Node totals are those of the first reading that
    has any.
    """
    step_s = readings[0].usage.step_s
    tables: dict[str, Table] = {}
    ends = [_start(r.usage) + r.usage.values.shape[2] for r in readings]
    end = max(ends)
    first = max(min(_start(r.usage) for r in readings), end - steps_max)
    for reading in readings:
        assert reading.usage.step_s == step_s, "sources return readings on the requested grid"
        for number, dimension in enumerate(reading.usage.dimensions):
            own = Table(_start(reading.usage), reading.usage.services, reading.usage.values[:, number])
            found = tables.get(dimension)
            tables[dimension] = joined(None, own, first, end - first) if found is None else _filled(found, own)
    return Reading(
        usage_of(tables, Grid(first * step_s, step_s, end - first)),
        next((r.totals for r in readings if r.totals is not None), None),
        {dimension: nodes for r in reversed(readings) for dimension, nodes in r.capacities.items()},
        _summed([r.named for r in readings]),
        tuple(note for r in readings for note in r.notes)[:NOTES_MAX],
    )


def _start(usage: Usage) -> int:
    return round(usage.start_s / usage.step_s)


def _filled(table: Table, other: Table) -> Table:
    """Returns the table with its gaps filled from another one."""
    steps = table.values.shape[1]
    more = joined(None, other, table.first, steps)
    names = tuple(dict.fromkeys((*table.names, *more.names)))
    index_of = {name: index for index, name in enumerate(names)}
    values: Samples = np.full((len(names), steps), np.nan, np.float32)
    values[[index_of[name] for name in more.names]] = more.values
    rows = [index_of[name] for name in table.names]
    values[rows] = np.where(np.isnan(table.values), values[rows], table.values)
    return Table(table.first, names, values)


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            found[name] = found.get(name, 0) + count
    return found


# -- folds: aggregation of series by name ------------------------------------------------------------------------------


class TableFold:
    """Aggregates series to the mean use per replica, by name and step.

    A pod that starts or ends within a step used resources for a part of it only. If other pods of the same name existed
    for the whole step, only those are averaged. So scaling a service up does not lower its measured use per replica.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._rows: dict[str, int] = {}
        self._values: Samples = np.zeros((0, steps), np.float32)

    def add(self, piece: Piece, names: Sequence[str]) -> None:
        """Adds a piece, which must contain all series of its steps. `names`: the name of each series.

        Raises SourceError for more than SERVICES_MAX names.
        """
        if not len(piece.steps):
            return
        rows = self._rows_of(names)
        low, high = int(piece.steps.min()), int(piece.steps.max())
        width = high - low + 1
        cells = np.repeat(rows, np.diff(piece.ends, prepend=0)) * width + (piece.steps - low)
        size, is_whole = len(self._rows) * width, _is_whole(piece, low, high)
        whole = _means(cells[is_whole], piece.values[is_whole], size)
        means = np.where(np.isnan(whole), _means(cells, piece.values, size), whole).reshape(-1, width)
        window = self._values[: len(means), low : high + 1]
        np.copyto(window, means.astype(np.float32), where=~np.isnan(means))

    def table(self, first: int) -> Table:
        """Returns the means; NaN where no series had a sample."""
        return _without_empty(Table(first, tuple(self._rows), self._values[: len(self._rows)]))

    def _rows_of(self, names: Sequence[str]) -> NDArray[np.int64]:
        rows = np.array([self._rows.setdefault(name, len(self._rows)) for name in names], np.int64)
        size = len(self._rows)
        if size > SERVICES_MAX:
            raise SourceError(
                f"more than {SERVICES_MAX} services; set labels.service to a label that names services, not pods"
            )
        if size > len(self._values):
            grown = max(64, 2 * len(self._values), size) - len(self._values)
            more: Samples = np.full((grown, self._steps), np.nan, np.float32)
            self._values = np.concatenate([self._values, more])
        return rows


def _is_whole(piece: Piece, low: int, high: int) -> NDArray[np.bool_]:
    """Returns bool[samples]: whether the sample's series also has samples in the steps before and after (as far as the piece
    has such steps)."""
    begins = np.zeros(len(piece.steps), np.bool_)
    begins[(piece.ends - np.diff(piece.ends, prepend=0))[np.diff(piece.ends, prepend=0) > 0]] = True
    comes = begins | (np.diff(piece.steps, prepend=low) != 1)
    goes = np.append(comes[1:], True)
    found: NDArray[np.bool_] = ~((comes & (piece.steps > low)) | (goes & (piece.steps < high)))
    return found


def _means(cells: NDArray[np.int64], values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Returns float64[size]: the mean of the values of each cell; NaN for a cell without values."""
    counts = np.bincount(cells, minlength=size)
    means = np.full(size, np.nan)
    np.divide(np.bincount(cells, values, size), counts, out=means, where=counts > 0)
    return means


def service_names_of(piece: Piece, labels: Labels, names: ServiceNames) -> list[str]:
    """Returns the service of each series. Raises SourceError for missing labels, or two series of one pod."""
    if labels.service:
        return [_by_label(series, labels, names) for series in piece.labels]
    pods = [_pod_of(series, labels) for series in piece.labels]
    _refuse_doubles(pods, piece, f"sum by ({labels.namespace}, {labels.pod}) (…)")
    return [names.of_pod(pod) for pod in pods]


def node_names_of(piece: Piece, labels: Labels) -> list[str]:
    """Returns the node of each series. Raises SourceError for missing labels, or two series of one node."""
    nodes = [_node_of(series, labels) for series in piece.labels]
    _refuse_doubles(nodes, piece, f"sum by ({labels.node or 'node'}) (…)")
    return nodes


def _pod_of(series: Mapping[str, str], labels: Labels) -> PodName:
    namespace, pod = series.get(labels.namespace, ""), series.get(labels.pod, "")
    if not (namespace and pod):
        missing = labels.pod if namespace else labels.namespace
        raise SourceError(
            f"the query returns a series {_shown(series)} without the label {missing!r};"
            f" write sum by ({labels.namespace}, {labels.pod}) (…), or set labels.{'pod' if namespace else 'namespace'}"
        )
    return namespace, pod


def _by_label(series: Mapping[str, str], labels: Labels, names: ServiceNames) -> str:
    service = series.get(labels.service, "")
    if not service:
        raise SourceError(
            f"the query returns a series {_shown(series)} without the label {labels.service!r} (labels.service);"
            " keep it in the query's by (…), or remove labels.service"
        )
    return names.of_label(series.get(labels.namespace, ""), service)


def _node_of(series: Mapping[str, str], labels: Labels) -> str:
    for label in (labels.node,) if labels.node else NODE_LABELS:
        name = series.get(label, "")
        if name:
            return name.rsplit(":", 1)[0] if label == "instance" else name
    wanted = labels.node or " or ".join(NODE_LABELS)
    raise SourceError(
        f"the query returns a series {_shown(series)} without the label {wanted};"
        " write sum by (node) (…), or set labels.node"
    )


def _refuse_doubles(keys: Sequence[object], piece: Piece, fix: str) -> None:
    if len(set(keys)) == len(keys):
        return
    seen: dict[object, int] = {}
    for number, key in enumerate(keys):
        if key in seen:
            both = f"{_shown(piece.labels[seen[key]])} and {_shown(piece.labels[number])}"
            raise SourceError(
                f"two series have the same pod or node: {both}; write {fix}, or max by for replicated Prometheus servers"
            )
        seen[key] = number


def _shown(series: Mapping[str, str]) -> str:
    return ("{" + ", ".join(f'{name}="{value}"' for name, value in sorted(series.items())) + "}")[:200]
