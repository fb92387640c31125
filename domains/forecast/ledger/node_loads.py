"""Measured current load of nodes, reported in addition to the predicted load.

Owned by the forecast; written on the loop after a measurement, read by metrics scrapes. Keeps the latest measurement of
each dimension.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.node_usage import MeasuredLoads
from domains.forecast.service_names import PodName
from domains.forecast.units import MILLI
from multisched.framework.measures import PodUse
from multisched.framework.node_view import Rows
from multisched.model.objects import CPU, MEMORY

if TYPE_CHECKING:
    from domains.forecast.ledger.peak_ledger import PeakLedger

PODS_PER_PIECE: Final = 2_000
"""Pods processed before yielding to the event loop: about two milliseconds."""


class NodeLoad(msgspec.Struct, frozen=True):
    """Measured load of one dimension."""

    seen_s: float
    """Time of the measurement, in epoch seconds."""
    shares: NDArray[np.float64]
    """float64[nodes]: load / capacity of the domain's nodes that state a capacity above zero."""


class NodeLoads:
    """The last measured load of nodes, by dimension."""

    def __init__(self, ledger: PeakLedger, rows: Callable[[], Rows]) -> None:
        """`rows` returns the rows of the domain, ascending."""
        self._ledger = ledger
        self._rows = rows
        self._loads: dict[str, NodeLoad] = {}

    def latest(self) -> Mapping[str, NodeLoad]:
        """Returns the loads by dimension; unmeasured dimensions are missing."""
        return self._loads

    async def rows_of_pods(self) -> dict[PodName, int]:
        """Returns assumed and confirmed pods -> row."""
        found: dict[PodName, int] = {}
        pods = list((self._ledger.pods or {}).values())
        for start in range(0, len(pods), PODS_PER_PIECE):
            for pod in pods[start : start + PODS_PER_PIECE]:
                row = self._ledger.row_of(pod.uid)
                if row is not None:
                    found[pod.namespace, pod.name] = row
            await asyncio.sleep(0)
        return found

    async def note_uses(self, now_s: float, uses: Sequence[PodUse]) -> None:
        """Records the use of pods from the metrics API."""
        row_of_pod = await self.rows_of_pods()
        found: list[tuple[int, float, float]] = []
        for start in range(0, len(uses), PODS_PER_PIECE):
            for use in uses[start : start + PODS_PER_PIECE]:
                row = row_of_pod.get((use.namespace, use.pod))
                if row is not None:
                    found.append((row, use.cpu_cores, use.memory_bytes))
            await asyncio.sleep(0)
        table = np.array(found, np.float64).reshape(-1, 3)
        rows = table[:, 0].astype(np.int64)
        self.note(now_s, MeasuredLoads({CPU: (rows, table[:, 1]), MEMORY: (rows, table[:, 2])}))

    def note(self, now_s: float, seen: MeasuredLoads) -> None:
        """Records a measurement. Per pod: nodes without measured pods count as zero. Per node: missing nodes are skipped."""
        own = self._rows()
        for dimension, (rows, values) in seen.by_row.items():
            size = int(max(rows.max(initial=0), own.max(initial=0))) + 1
            self._keep(now_s, dimension, own, np.bincount(rows, values, size)[own].astype(np.float64))
        for dimension, nodes in seen.by_node.items():
            named = [(row, nodes[name]) for row, name in self._ledger.node_names(own) if name in nodes]
            rows = np.array([row for row, _ in named], np.intp)
            self._keep(now_s, dimension, rows, np.array([value for _, value in named]))

    def _keep(self, now_s: float, dimension: str, rows: Rows, loads: NDArray[np.float64]) -> None:
        dimensions = self._ledger.predictor.dimensions
        if dimension in dimensions and len(rows):
            capacity = self._ledger.capacity(rows)[dimensions.index(dimension)]
            states = capacity > 0
            self._loads[dimension] = NodeLoad(now_s, loads[states] * MILLI / capacity[states])
