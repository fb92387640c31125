"""Ports to measured values: range queries to a Prometheus-compatible server, and current usage from the metrics API.

`multisched.client` implements them over HTTP; plugins get them from `PluginContext.measures`. This module holds values
only: it reads neither a clock nor a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.framework.ports import ExtenderTrust

POINTS_MAX = 11_000
"""Steps per range query: Prometheus and compatible servers reject more."""
TIMEOUT_S = 60.0
ANSWER_BYTES_MAX = 32 * 1024 * 1024
"""Per response: about a million samples. A range with a larger response is queried in shorter pieces."""
CONCURRENCY = 4
TRIES = 4
QUERY_CHARS_SHOWN = 120
"""Characters of a query that messages show."""


def shown_query(query: str) -> str:
    """Returns the beginning of a query in one line, for messages."""
    line = " ".join(query.split())
    return line if len(line) <= QUERY_CHARS_SHOWN else f"{line[: QUERY_CHARS_SHOWN - 1]}…"


class Grid(msgspec.Struct, frozen=True):
    """`steps` moments `step_s` apart, the first at `start_s` (epoch seconds)."""

    start_s: float
    step_s: float
    steps: int

    @property
    def end_s(self) -> float:
        """The last moment, in epoch seconds."""
        return self.start_s + (self.steps - 1) * self.step_s


class MeterSettings(msgspec.Struct, frozen=True):
    """One Prometheus-compatible server and how to query it."""

    url: str
    """Including any prefix before `/api/v1`, for example `http://mimir:8080/prometheus`."""
    token_file: str = ""
    """File with the bearer token; read before each request because tokens are rotated."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Extra request headers, for example `X-Scope-OrgID`."""
    parameters: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Sent with each query, for example Thanos' `dedup` and `partial_response`, or VictoriaMetrics' `nocache`."""
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
    """Not at a requested moment, or a second sample for the same moment."""

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
    """Index into the whole grid; ascending within a series."""
    values: NDArray[np.float64]
    """Finite and not negative."""


Take = Callable[[Piece], None]
"""Called in a worker thread with one piece at a time, never concurrently. An exception ends the query."""


class RangeReport(msgspec.Struct):
    """Statistics and warnings of one range query."""

    requests: int = 0
    series: int = 0
    """Summed over the pieces: a series counts once in each piece that contains it."""
    samples: int = 0
    dropped: Dropped = msgspec.field(default_factory=Dropped)
    warnings: dict[str, int] = msgspec.field(default_factory=dict)
    """Warning of the server (for example partial responses) -> how often; about ten kinds at most."""


class Meter(Protocol):
    """Range queries to one server.

    A Protocol because no plugin imports the client; implemented by the client (`PrometheusMeter`).
    """

    async def ranges(self, query: str, grid: Grid, take: Take) -> RangeReport:
        """Passes each piece to `take`, in order of time. Raises MeterError; the pieces taken before that are incomplete."""
        ...


class PodUse(msgspec.Struct, frozen=True):
    """Current usage of one pod, from the metrics API."""

    namespace: str
    pod: str
    cpu_cores: float
    memory_bytes: float


class LoadReader(Protocol):
    """The metrics API (metrics.k8s.io): current usage.

    A Protocol because no plugin imports the client; implemented by the client (`client.pod_metrics`).
    """

    async def pods(self) -> tuple[PodUse, ...]:
        """Raises MeterError."""
        ...


class Meters(Protocol):
    """Opens meters."""

    def meter(self, settings: MeterSettings) -> Meter:
        """Returns a meter for the server. Raises MeterError for unusable certificates."""
        ...


class Measures(Meters, Protocol):
    """The measured values that plugins can read.

    A Protocol because no plugin imports the shell; implemented by the shell (`NetworkMeasures`).
    """

    def load(self) -> LoadReader: ...
