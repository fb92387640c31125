"""A snapshot of the forecast at one moment: profiles in force, what every node is predicted to carry, and who stands there.

Values only, taken on the loop in pieces of milliseconds (`take_fleet`) or made of a profiles file alone. Other parts
compute what is shown of it (`documents`, `node_documents`, `report_document`).
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
from domains.forecast.curves.profiles import Profiles
from domains.forecast.curves.quantized_profiles import QuantizedProfiles
from domains.forecast.ledger.peak_ledger import PeakLedger
from domains.forecast.units import MILLI
from multisched.framework.node_view import NodeView, Rows
from multisched.framework.views import NoViewError

ROWS_PER_PIECE: Final = 512
"""Rows copied in one go: 1.7 MB at 5 dimensions and 168 slots."""
PODS_PER_PIECE: Final = 2_000
TRIES: Final = 3
"""New profiles that come into force while a snapshot is taken begin it anew."""


class Standing(msgspec.Struct, frozen=True):
    """One pod of a node."""

    name: str
    """`namespace/name`"""
    demand: Demand


class Fleet(msgspec.Struct, frozen=True):
    """All nodes of a domain. Dimensions are those of the forecast, which may be others than those of the profiles."""

    quantized: QuantizedProfiles
    nodes: tuple[str, ...]
    loads: NDArray[np.int32]
    """int32[nodes, dimensions, slots], in quanta of the profiles."""
    capacity: NDArray[np.float64]
    """float64[dimensions, nodes] in plain units; NaN where a node states none."""
    held: Mapping[str, tuple[int, Demand]]
    """uid -> (row, what its prediction depends on)"""
    places: Mapping[int, int]
    """Row -> number of the node."""
    standing: Mapping[int, Sequence[Standing]] = msgspec.field(default_factory=dict)
    """Number of the node -> its pods, of the nodes that were asked for."""

    @property
    def dimensions(self) -> tuple[str, ...]:
        return self.quantized.dimensions

    def quantum(self) -> NDArray[np.float64]:
        """float64[dimensions]: how much a quantum is, in plain units."""
        return self.quantized.quantum_milli[:, 0] / MILLI

    def counts(self) -> dict[tuple[int, Demand], int]:
        """(row, demand) -> pods. Counted in pieces: one go over a hundred thousand would keep the loop from its turn."""
        found: dict[tuple[int, Demand], int] = {}
        entries = iter(self.held.values())
        while piece := Counter(islice(entries, PODS_PER_PIECE)):
            for entry, pods in piece.items():
                found[entry] = found.get(entry, 0) + pods
        return found

    def predictor(self) -> Predictor:
        """One of its own, for the thread that asks."""
        return Predictor(self.quantized.dimensions, self.quantized)


class ForecastSnapshot(msgspec.Struct, frozen=True):
    """What documents are made of."""

    profiles: Profiles
    now_s: float
    """Epoch seconds."""
    domain: str = ""
    state: str = ""
    """How learning goes, in a sentence."""
    fleet: Fleet | None = None
    """None: only profiles are known, from a file."""

    def known_fleet(self) -> Fleet:
        """Raises NoViewError."""
        if self.fleet is None:
            text = "profiles alone know no nodes; ask a running multisched (--server) or a dump of the cluster (--snapshot)"
            raise NoViewError(text, status=422)
        return self.fleet


async def take_fleet(ledger: PeakLedger, nodes: NodeView, rows: Rows, asked: str = "") -> Fleet:
    """`asked`: the node whose pods are to be named. Rows ascend. Raises NoViewError."""
    names = [nodes.node(row).name for row in rows.tolist()]
    for _ in range(TRIES):
        quantized, adopted = ledger.predictor.quantized, ledger.adopted
        if quantized is None:
            raise NoViewError("no profiles are in force yet", status=503)
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
            # A node that went meanwhile, whose row may be another's by now, is left out.
            kept = np.array([nodes.row_of(name) == row for name, row in zip(names, rows.tolist(), strict=True)], bool)
            capacity = np.where(capacity >= 0, capacity / MILLI, np.nan)[:, kept]
            return _fleet(ledger, nodes, rows[kept], quantized, loads[kept], capacity, asked)
    raise NoViewError("new profiles came into force again and again; ask again in a moment", status=503)


def _fleet(
    ledger: PeakLedger,
    nodes: NodeView,
    rows: Rows,
    quantized: QuantizedProfiles,
    loads: NDArray[np.int32],
    capacity: NDArray[np.float64],
    asked: str,
) -> Fleet:
    places = {row: number for number, row in enumerate(rows.tolist())}
    standing: dict[int, Sequence[Standing]] = {}
    row = nodes.row_of(asked) if asked else None
    if row is not None and row in places:
        standing[places[row]] = tuple(
            Standing(f"{pod.namespace}/{pod.name}", ledger.predictor.predict(pod).demand) for pod in nodes.pods_on(row)
        )
    names = tuple(nodes.node(row).name for row in places)
    return Fleet(quantized, names, loads, capacity, ledger.holdings(), places, standing)
