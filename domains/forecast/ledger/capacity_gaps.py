"""Capacity gaps: nodes that state no capacity of a dimension, or none of it; reported once, with how many they are and the fallback.

Owned by the forecast of one domain, which asks between cycles; looks again only when some node's capacity has changed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from domains.forecast.curves.capacity import Capacity, MeasuredCapacity, Source
from domains.forecast.curves.quantized_profiles import STAND_IN_REPLICAS
from domains.forecast.ledger.peak_ledger import PeakLedger
from multisched.framework.measures import shown_query
from multisched.model.objects import Node

AGAIN_RATIO: Final = 2
"""A gap is reported again when so many times more nodes have it than at its last report."""
TEXT_SHOWN: Final = 40

logger = logging.getLogger(__name__)

UNSTATED, UNREADABLE, ZERO = "unstated", "unreadable", "zero"
_FALLBACK: Final = (
    f"the score takes {STAND_IN_REPLICAS} times the heaviest service's peak for it, the filter leaves the dimension out"
)
_MEANING: Final[Mapping[str, str]] = {
    UNSTATED: f"state none; {_FALLBACK}",
    UNREADABLE: f"state what is no quantity above zero; {_FALLBACK}",
    ZERO: "state zero, and whatever is used of it there is too much",
}


class Gap(msgspec.Struct, frozen=True):
    """Nodes without a usable capacity of one dimension."""

    dimension: str
    kind: str
    nodes: int
    of: int
    """How many nodes there are."""
    example: str
    """The first of them by name, and what it says."""

    def __str__(self) -> str:
        return f"{self.dimension}: {self.nodes} of {self.of} nodes {_MEANING[self.kind]}; such as {self.example}"


class CapacityGaps:
    """Reports nodes that state no capacity, or zero capacity, of a dimension."""

    def __init__(self) -> None:
        self._seen = (-1, -1)
        self._reported: dict[tuple[str, str], int] = {}
        self.found: tuple[Gap, ...] = ()
        """As of the last look."""

    def look(self, ledger: PeakLedger) -> None:
        """Logs what is new."""
        mark = (ledger.adopted, ledger.capacity_changes)
        if mark == self._seen:
            return
        self._seen = mark
        self.found = tuple(gaps_of(ledger))
        now = {(gap.dimension, gap.kind): gap.nodes for gap in self.found}
        self._reported = {key: count for key, count in self._reported.items() if key in now}
        for gap in self.found:
            key = (gap.dimension, gap.kind)
            if gap.nodes >= AGAIN_RATIO * self._reported.get(key, 0):
                self._reported[key] = gap.nodes
                logger.warning("nodes without a capacity", extra={"note": str(gap)})


def gaps_of(ledger: PeakLedger) -> list[Gap]:
    """Of all dimensions, in their order; queries that nobody has answered yet say nothing of any node."""
    nodes = ledger.nodes()
    rows = np.array(sorted(nodes), np.intp)
    capacity, found = ledger.capacity(rows), []
    for number, (dimension, source) in enumerate(ledger.capacity_sources()):
        if isinstance(source, MeasuredCapacity) and not source.is_measured:
            continue
        kinds: dict[str, list[Node]] = {}
        for at in np.flatnonzero(capacity[number] <= 0).tolist():
            node = nodes[rows.item(at)]
            kinds.setdefault(_kind(source, node, capacity.item(number, at)), []).append(node)
        for kind, having in sorted(kinds.items()):
            first = min(having, key=lambda node: node.name)
            found.append(Gap(dimension, kind, len(having), len(nodes), f"{first.name} ({_said(source, first)})"))
    return found


def _kind(source: Capacity | MeasuredCapacity, node: Node, amount: float) -> str:
    if amount == 0:
        return ZERO
    return UNREADABLE if _text(source, node) is not None else UNSTATED


def _text(source: Capacity | MeasuredCapacity, node: Node) -> str | None:
    """What the node itself says, word for word."""
    if isinstance(source, Capacity) and source.source is Source.LABEL:
        return node.labels.get(source.key)
    if isinstance(source, Capacity) and source.source is Source.ANNOTATION:
        return node.annotations.get(source.key)
    return None


def _said(source: Capacity | MeasuredCapacity, node: Node) -> str:
    if isinstance(source, MeasuredCapacity):
        return f"query: {shown_query(source.query)}"
    text = _text(source, node)
    return f"{source.source.value} {source.key}" + ("" if text is None else f": {text[:TEXT_SHOWN]!r}")
