"""Ports to what is measured: ranges of a Prometheus-compatible server, and the metrics API's look at the moment.

`multisched.client` implements them over HTTP; plugins are given them by `PluginContext.measures`. Values only: nothing here
reads a clock or a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.framework.ports import ExtenderTrust

POINTS_MAX = 11_000
"""Steps that one range query may have: Prometheus refuses more, and so do those that speak like it."""
TIMEOUT_S = 60.0
ANSWER_BYTES_MAX = 32 * 1024 * 1024
"""Of one answer: a million samples. A range whose answer is larger is asked for in shorter pieces."""
CONCURRENCY = 4
TRIES = 4
QUERY_CHARS_SHOWN = 120
"""Of a query, in what people read."""


def shown_query(query: str) -> str:
    """The beginning of a query, in one line: for messages."""
    line = " ".join(query.split())
    return line if len(line) <= QUERY_CHARS_SHOWN else f"{line[: QUERY_CHARS_SHOWN - 1]}…"


class Grid(msgspec.Struct, frozen=True):
    """`steps` moments at equal distance, the first at `start_s` (epoch seconds)."""

    start_s: float
    step_s: float
    steps: int

    @property
    def end_s(self) -> float:
        """The last moment."""
        return self.start_s + (self.steps - 1) * self.step_s


class MeterSettings(msgspec.Struct, frozen=True):
    """One Prometheus-compatible server and how it is asked."""

    url: str
    """With the prefix before `/api/v1`, as `http://mimir:8080/prometheus`."""
    token_file: str = ""
    """Bearer token; read before each request, for it is rotated."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Sent along, as `X-Scope-OrgID`."""
    parameters: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Sent along with each query, as Thanos' `dedup` and `partial_response`, or VictoriaMetrics' `nocache`."""
    timeout_s: float = TIMEOUT_S
    answer_bytes_max: int = ANSWER_BYTES_MAX
    points_max: int = POINTS_MAX
    concurrency: int = CONCURRENCY
    """Requests at a time."""
    tries: int = TRIES
    """Requests for one piece until it counts as failed."""
    trust: ExtenderTrust = ExtenderTrust()


class MeterError(Exception):
    """A query got no usable answer; the message names the server, the query and what was wrong."""


class Dropped(msgspec.Struct):
    """Samples that count as gaps."""

    nan: int = 0
    """NaN, Inf and -Inf."""
    negative: int = 0
    off_grid: int = 0
    """At another moment than one that was asked for, or a second time at the same."""

    def add(self, other: Dropped) -> None:
        self.nan += other.nan
        self.negative += other.negative
        self.off_grid += other.off_grid

    def __bool__(self) -> bool:
        return bool(self.nan or self.negative or self.off_grid)


class Piece(msgspec.Struct, frozen=True):
    """Some steps of the grid for all series: `ends[i]` is the end of series i in `steps` and `values`."""

    labels: tuple[Mapping[str, str], ...]
    ends: NDArray[np.int64]
    steps: NDArray[np.int64]
    """Of the whole grid; rising within a series."""
    values: NDArray[np.float64]
    """Finite and not negative."""


Take = Callable[[Piece], None]
"""Called in a worker thread, with one piece at a time and never while the last one is being taken. What it raises ends the query."""


class RangeReport(msgspec.Struct):
    """Further remarks about a range that was read."""

    requests: int = 0
    series: int = 0
    """Summed over the pieces: a series counts once in each that has it."""
    samples: int = 0
    dropped: Dropped = msgspec.field(default_factory=Dropped)
    warnings: dict[str, int] = msgspec.field(default_factory=dict)
    """What the server warned of (partial answers), with how often; some ten kinds at most."""


class Meter(Protocol):
    """Range queries to one server.

    Border: the client has it (`PrometheusMeter`), and no plugin sees the client.
    """

    async def ranges(self, query: str, grid: Grid, take: Take) -> RangeReport:
        """Hands over every piece, in the order of time. Raises MeterError; what was taken by then is not the whole."""
        ...


class PodUse(msgspec.Struct, frozen=True):
    """What one pod uses now, by the metrics API."""

    namespace: str
    pod: str
    cpu_cores: float
    memory_bytes: float


class LoadReader(Protocol):
    """The metrics API (metrics.k8s.io): the load of the moment.

    Border: the client has it (`client.pod_metrics`), and no plugin sees the client.
    """

    async def pods(self) -> tuple[PodUse, ...]:
        """Raises MeterError."""
        ...


class Meters(Protocol):
    """Opens meters."""

    def meter(self, settings: MeterSettings) -> Meter:
        """Raises MeterError for certificates that cannot be used."""
        ...


class Measures(Meters, Protocol):
    """How plugins come to what is measured.

    Border: the shell has them (`NetworkMeasures`), and no plugin sees the shell.
    """

    def load(self) -> LoadReader: ...
