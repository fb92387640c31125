"""PeakLedger: the predicted peak of every row, pod by pod, assumed ones included, for all pods whatever their domain.

A ledger that never refuses: it uses the ledger protocol because commit and cache tell ledgers of every pod that comes
and goes. Sums are exact integers, so that adding and removing the same pod leaves no trace; arrays over rows follow
them when someone reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from domains.forecast.capacity import UNKNOWN, Capacity
from domains.forecast.predictor import Predictor
from multisched.framework.node_view import Rows, columns_at
from multisched.model.objects import Node, Pod

Amounts = NDArray[np.float64]
"""Milli-units as scores read them. Floats, since they only rank rows and divide five times faster; no fit hangs on them."""
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
        self._version = [0] * ROWS_FIRST
        self._peak: Amounts = np.zeros((width, ROWS_FIRST))
        self._capacity: Amounts = np.full((width, ROWS_FIRST), UNKNOWN, np.float64)

    # -- Ledger ----------------------------------------------------------------------------------------------------

    def concerns(self, pod: Pod) -> bool:
        return True

    def version(self, row: int) -> int:
        return self._version[row] if row < len(self._version) else 0

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
        amounts = [UNKNOWN if node is None else capacity.of(node) for capacity in self._capacities]
        if self._capacity[:, row].tolist() != amounts:
            self._capacity[:, row] = amounts
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

    def peak(self, rows: Rows) -> Amounts:
        """float64[dimensions, len(rows)]: milli-units at the peak."""
        self._grow_to(rows)
        for row in self._stale:
            self._peak[:, row] = self._sums[row]
        self._stale.clear()
        return columns_at(self._peak, rows)

    def capacity(self, rows: Rows) -> Amounts:
        """float64[dimensions, len(rows)]: milli-units the node has, or UNKNOWN."""
        self._grow_to(rows)
        return columns_at(self._capacity, rows)

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

    def _grow_to(self, rows: Rows) -> None:
        """Rows ascend."""
        if len(rows):
            self._grow(rows.item(-1) + 1)

    def _grow(self, needed: int) -> None:
        size = len(self._version)
        if needed <= size:
            return
        while size < needed:
            size *= 2
        more = size - len(self._version)
        self._version += [0] * more
        self._peak = np.pad(self._peak, ((0, 0), (0, more)))
        self._capacity = np.pad(self._capacity, ((0, 0), (0, more)), constant_values=UNKNOWN)
