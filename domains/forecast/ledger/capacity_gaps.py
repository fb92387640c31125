"""Capacity gaps: nodes that state no capacity, or zero capacity, in a dimension. Logged once, with their number and the fallback.

Owned by the forecast of one domain, which checks between cycles; a check does nothing unless a capacity changed.
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
"""A gap is logged again if it has this many times as many nodes as at its last report."""
TEXT_SHOWN: Final = 40

logger = logging.getLogger(__name__)

UNSTATED, UNREADABLE, ZERO = "unstated", "unreadable", "zero"
_FALLBACK: Final = (
    f"the score assumes {STAND_IN_REPLICAS} times the heaviest service's peak, the filter ignores the dimension"
)
_MEANING: Final[Mapping[str, str]] = {
    UNSTATED: f"state none; {_FALLBACK}",
    UNREADABLE: f"state a value that is not a quantity above zero; {_FALLBACK}",
    ZERO: "state zero, and any use exceeds it",
}


class Gap(msgspec.Struct, frozen=True):
    """Nodes without a usable capacity of one dimension."""

    dimension: str
    kind: str
    nodes: int
    of: int
    """Number of all nodes."""
    example: str
    """The first of the nodes by name, with its source of capacity."""

    def __str__(self) -> str:
        return f"{self.dimension}: {self.nodes} of {self.of} nodes {_MEANING[self.kind]}; such as {self.example}"


class CapacityGaps:
    """Reports nodes that state no capacity, or zero capacity, of a dimension."""

    def __init__(self) -> None:
        self._seen = (-1, -1)
        self._reported: dict[tuple[str, str], int] = {}
        self.found: tuple[Gap, ...] = ()
        """Gaps found by the last `look`."""

    def look(self, ledger: PeakLedger) -> None:
        """Updates `found` and logs new gaps."""
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
    """Returns the gaps by dimension, in their order; skips dimensions whose capacity query has no answer yet."""
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
    """Returns the node's label or annotation with the capacity; None if missing or if the source is another one."""
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
