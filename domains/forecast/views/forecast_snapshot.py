"""A snapshot of the forecast at one moment: active profiles, predicted load of each node, and its pods.

Values only, copied on the event loop in slices of milliseconds (`take_fleet`), or created from a profiles file alone.
`documents`, `node_documents` and `report_document` compute documents from it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.predictor import Demand, Predictor
from domains.forecast.curves.quantized_profiles import QuantizedProfiles
from domains.forecast.ledger.peak_ledger import PeakLedger
from domains.forecast.units import MILLI
from multisched.forecasting.profiles import Profiles
from multisched.framework.node_view import NodeView, Rows
from multisched.framework.views import NoViewError

ROWS_PER_PIECE: Final = 512
"""Rows copied before yielding to the event loop: 1.7 MB at 5 dimensions and 168 slots."""
PODS_PER_PIECE: Final = 2_000
TRIES: Final = 3
"""Attempts to take a snapshot; each new set of profiles activated meanwhile restarts it."""


class PlacedPodDemand(msgspec.Struct, frozen=True):
    """A pod on a node."""

    name: str
    """`namespace/name`"""
    demand: Demand


class Fleet(msgspec.Struct, frozen=True):
    """All nodes of a domain. Dimensions are those of the forecast, which can differ from those of the profiles."""

    quantized: QuantizedProfiles
    nodes: tuple[str, ...]
    loads: NDArray[np.int32]
    """int32[nodes, dimensions, slots], in quanta of the profiles."""
    capacity: NDArray[np.float64]
    """float64[dimensions, nodes] in plain units; NaN where a node states none."""
    held: Mapping[str, tuple[int, Demand]]
    """uid -> (row, inputs of its prediction)"""
    index_of_row: Mapping[int, int]
    """Row -> number of the node."""
    pods_on: Mapping[int, Sequence[PlacedPodDemand]] = msgspec.field(default_factory=dict)
    """Number of the node -> its pods, for requested nodes only."""

    @property
    def dimensions(self) -> tuple[str, ...]:
        return self.quantized.dimensions

    def quantum(self) -> NDArray[np.float64]:
        """Returns float64[dimensions]: the quantum in plain units."""
        return self.quantized.quantum_milli[:, 0] / MILLI

    def counts(self) -> dict[tuple[int, Demand], int]:
        """Returns (row, demand) -> number of pods. Counts in pieces, so that a thread does not hold the GIL for long."""
        found: dict[tuple[int, Demand], int] = {}
        entries = iter(self.held.values())
        while piece := Counter(islice(entries, PODS_PER_PIECE)):
            for entry, pods in piece.items():
                found[entry] = found.get(entry, 0) + pods
        return found

    def predictor(self) -> Predictor:
        """Creates a separate predictor, for use in another thread."""
        return Predictor(self.quantized.dimensions, self.quantized)


class ForecastSnapshot(msgspec.Struct, frozen=True):
    """The input of documents."""

    profiles: Profiles
    now_s: float
    """Epoch seconds."""
    domain: str = ""
    state: str = ""
    """State of the profiles and refits, as a sentence."""
    fleet: Fleet | None = None
    """None if the snapshot comes from a profiles file."""

    def known_fleet(self) -> Fleet:
        """Returns the fleet. Raises NoViewError if there is none."""
        if self.fleet is None:
            text = "a profiles file contains no nodes; use a running multisched (--server) or a dump of the cluster (--snapshot)"
            raise NoViewError(text, status=422)
        return self.fleet


async def take_fleet(ledger: PeakLedger, nodes: NodeView, rows: Rows, node_with_pods: str = "") -> Fleet:
    """Copies the state of these rows (ascending). `node_with_pods`: a node whose pods are included. Raises NoViewError."""
    names = [nodes.node(row).name for row in rows.tolist()]
    for _ in range(TRIES):
        quantized, adopted = ledger.predictor.quantized, ledger.adopted
        if quantized is None:
            raise NoViewError("no profiles are active yet", status=503)
        is_behind = True
        while is_behind:
            is_behind = ledger.catch_up()
            await asyncio.sleep(0)
        loads = np.empty((len(rows), len(quantized.dimensions), quantized.profiles.slots), np.int32)
        capacity = np.empty((len(quantized.dimensions), len(rows)))
        for begin in range(0, len(rows), ROWS_PER_PIECE):
            if ledger.adopted != adopted:
                break
            piece = rows[begin : begin + ROWS_PER_PIECE]
            loads[begin : begin + len(piece)] = ledger.settled(piece).of(piece)
            capacity[:, begin : begin + len(piece)] = ledger.capacity(piece)
            await asyncio.sleep(0)
        if ledger.adopted == adopted:
            # Skips nodes deleted meanwhile, whose rows may already belong to other nodes.
            kept = np.array([nodes.row_of(name) == row for name, row in zip(names, rows.tolist(), strict=True)], bool)
            capacity = np.where(capacity >= 0, capacity / MILLI, np.nan)[:, kept]
            return _fleet(ledger, nodes, rows[kept], quantized, loads[kept], capacity, node_with_pods)
    raise NoViewError("new profiles were activated during each attempt; try again in a moment", status=503)


def _fleet(
    ledger: PeakLedger,
    nodes: NodeView,
    rows: Rows,
    quantized: QuantizedProfiles,
    loads: NDArray[np.int32],
    capacity: NDArray[np.float64],
    node_with_pods: str,
) -> Fleet:
    index_of_row = {row: number for number, row in enumerate(rows.tolist())}
    pods_on: dict[int, Sequence[PlacedPodDemand]] = {}
    row = nodes.row_of(node_with_pods) if node_with_pods else None
    if row is not None and row in index_of_row:
        pods_on[index_of_row[row]] = tuple(
            PlacedPodDemand(f"{pod.namespace}/{pod.name}", ledger.predictor.predict(pod).demand)
            for pod in nodes.pods_on(row)
        )
    names = tuple(nodes.node(row).name for row in index_of_row)
    return Fleet(quantized, names, loads, capacity, ledger.holdings(), index_of_row, pods_on)
