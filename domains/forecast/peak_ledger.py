"""PeakLedger: the predicted peak of every row, pod by pod, assumed ones included, for all pods whatever their domain.

A ledger that never refuses: it uses the ledger protocol because commit and cache tell ledgers of every pod that comes
and goes. Sums are exact integers, so that adding and removing the same pod leaves no trace; arrays over rows follow
them when someone reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from domains.forecast.capacity import UNKNOWN, Capacity
from domains.forecast.predictor import Predictor
from multisched.framework.node_view import Int64, Rows
from multisched.model.objects import Node, Pod

AMOUNT_MAX = 2**55
"""Largest amount in the arrays: a hundred times it still fits int64. The exact sums have no such bound."""
ROWS_FIRST = 64

NO_ANNOTATIONS: Mapping[str, str] = {}


class PeakLedger:
    """Implements `framework.ledger.Ledger`. One per domain that scores by forecast: `name` carries the domain."""

    def __init__(self, name: str, predictor: Predictor, capacities: Sequence[Capacity]) -> None:
        assert len(capacities) == len(predictor.dimensions), "one capacity per dimension"
        self.name = name
        self.predictor = predictor
        self._capacities = tuple(capacities)
        self._held: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._sums: dict[int, list[int]] = {}
        self._stale: set[int] = set()
        width = len(self._capacities)
        self._version: Int64 = np.zeros(ROWS_FIRST, np.int64)
        self._peak: Int64 = np.zeros((ROWS_FIRST, width), np.int64)
        self._capacity: Int64 = np.full((ROWS_FIRST, width), UNKNOWN, np.int64)

    # -- Ledger ----------------------------------------------------------------------------------------------------

    def concerns(self, pod: Pod) -> bool:
        return True

    def version(self, row: int) -> int:
        return int(self._version[row]) if row < len(self._version) else 0

    def fits(self, pod: Pod, row: int) -> str:
        return ""

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        self.place(pod, row)
        return NO_ANNOTATIONS

    def place(self, pod: Pod, row: int) -> None:
        """Counts the pod on the row; a pod whose prediction changed (another label, resized) is counted anew."""
        entry = (row, self.predictor.predict(pod).peaks)
        if self._held.get(pod.uid) != entry:
            self.give(pod.uid)
            self._held[pod.uid] = entry
            self._add(*entry, 1)

    def give(self, uid: str) -> None:
        entry = self._held.pop(uid, None)
        if entry is not None:
            self._add(*entry, -1)

    def set_node(self, row: int, node: Node | None) -> None:
        self._grow(row + 1)
        amounts = [UNKNOWN if node is None else min(AMOUNT_MAX, c.of(node)) for c in self._capacities]
        if self._capacity[row].tolist() != amounts:
            self._capacity[row] = amounts
            self._version[row] += 1

    def held(self) -> Mapping[str, object]:
        """uid -> (row, milli-units per dimension)."""
        return dict(self._held)

    def twin(self) -> PeakLedger:
        return PeakLedger(self.name, self.predictor, self._capacities)

    def sums_like(self, other: PeakLedger) -> bool:
        """True if both would hold the same for any pods and nodes."""
        mine, others = self.predictor, other.predictor
        is_same_history = mine.history.peaks == others.history.peaks and mine.dimensions == others.dimensions
        return is_same_history and self._capacities == other._capacities

    # -- reading ---------------------------------------------------------------------------------------------------

    def peak(self, rows: Rows) -> Int64:
        """int64[len(rows), dimensions]: milli-units at the peak, 0..AMOUNT_MAX."""
        self._cover(rows)
        for row in self._stale:
            self._peak[row] = [min(AMOUNT_MAX, total) for total in self._sums.get(row, ())] or 0
        self._stale.clear()
        return self._peak[rows]

    def capacity(self, rows: Rows) -> Int64:
        """int64[len(rows), dimensions]: milli-units the node has, 0..AMOUNT_MAX, or UNKNOWN."""
        self._cover(rows)
        return self._capacity[rows]

    # -- keeping ---------------------------------------------------------------------------------------------------

    def _add(self, row: int, peaks: tuple[int, ...], sign: int) -> None:
        self._grow(row + 1)
        sums = self._sums.get(row)
        if sums is None:
            sums = self._sums[row] = [0] * len(peaks)
        for dimension, amount in enumerate(peaks):
            sums[dimension] += sign * amount
        self._stale.add(row)
        self._version[row] += 1

    def _cover(self, rows: Rows) -> None:
        if len(rows):
            self._grow(int(rows.max()) + 1)

    def _grow(self, needed: int) -> None:
        size = len(self._version)
        if needed <= size:
            return
        while size < needed:
            size *= 2
        more, width = size - len(self._version), len(self._capacities)
        self._version = np.concatenate([self._version, np.zeros(more, np.int64)])
        self._peak = np.concatenate([self._peak, np.zeros((more, width), np.int64)])
        self._capacity = np.concatenate([self._capacity, np.full((more, width), UNKNOWN, np.int64)])
