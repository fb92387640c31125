"""PeakLedger: predicted use of every row, for assumed and confirmed pods of all domains.

It implements the ledger protocol because commit and cache report all added and removed pods to ledgers; it never
rejects a pod. It stores the inputs of predictions (`Demand`), which do not depend on profiles. The sums derived from
them are exact: `FlatPeaks` from requests without profiles, `NodeCurves` with profiles. After `adopt`, and in a ledger
that was never read (the audit's copies), the sums of a row are computed on its first read; `catch_up` computes them
earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.capacity import UNKNOWN, Capacity, MeasuredCapacity, default_capacity
from domains.forecast.curves.flat_peaks import ROWS_FIRST, Amounts, FlatPeaks
from domains.forecast.curves.node_curves import NodeCurves, Outlook
from domains.forecast.curves.predictor import SOURCES, Demand, Predictor
from domains.forecast.curves.quantized_profiles import FLOAT_QUANTA, Curve
from multisched.framework.node_view import Rows, columns_at
from multisched.model.objects import Node, Pod

NO_ANNOTATIONS: Mapping[str, str] = {}
CATCH_UP_ROWS: Final = 256
"""Rows computed per call of `catch_up`: about 5 ms. The first call also sorts all pods by row: about 50 ms for 100,000 pods."""


class PeakLedger:
    """Implements `framework.ledger.Ledger`. One per domain with PeakForecast; `name` contains the domain."""

    def __init__(
        self,
        name: str,
        predictor: Predictor,
        stated: Mapping[str, Capacity | MeasuredCapacity],
        chosen: tuple[str, ...] = (),
    ) -> None:
        """`stated`: configured capacities; other dimensions use `default_capacity`. `chosen`: configured dimensions; empty: the
        dimensions of the profiles are used."""
        self.name = name
        self.predictor = predictor
        self.stated = dict(stated)
        self.chosen = chosen
        self.sequence = 0
        """Incremented at each change of pods or capacities of a row."""
        self.capacity_changes = 0
        """Incremented when a node is added or removed, or its capacity changes."""
        self.pods: dict[str, Pod] | None = None
        """uid -> pod; None unless recording was enabled by `keep_pods`."""
        self._held: dict[str, tuple[int, Demand]] = {}
        self._reserved: tuple[int, Demand] | None = None
        """Row and demand of the reserved pod, which is not in `_held`."""
        self._nodes: dict[int, Node] = {}
        self._version = [0] * ROWS_FIRST
        self.adopted = 0
        """Number of calls of `adopt`."""
        self._begin()

    # -- Ledger ----------------------------------------------------------------------------------------------------

    def is_used_by(self, pod: Pod) -> bool:
        return True

    def version(self, row: int) -> int:
        return self.adopted + (self._version[row] if row < len(self._version) else 0)

    def fits(self, pod: Pod, row: int) -> str:
        return ""

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        self.restore(pod, row)
        return NO_ANNOTATIONS

    def restore(self, pod: Pod, row: int) -> None:
        """Adds the pod to the row, replacing an earlier entry of a changed pod (new label, resized)."""
        entry = (row, self.predictor.predict(pod).demand)
        if self._held.get(pod.uid) != entry:
            self.release(pod.uid)
            self._add(*entry, 1)
            self._held[pod.uid] = entry
        if self.pods is not None:
            self.pods[pod.uid] = pod

    def release(self, uid: str) -> None:
        entry = self._held.get(uid)
        if entry is not None:
            self._add(*entry, -1)
            del self._held[uid]
        if self.pods is not None:
            self.pods.pop(uid, None)

    def set_node(self, row: int, node: Node | None) -> None:
        self._grow(row + 1)
        if (row in self._nodes) is (node is None):
            self.capacity_changes += 1
        if node is None:
            if self._reserved is not None and self._reserved[0] == row:
                self.withdraw()
            self._nodes.pop(row, None)
        else:
            self._nodes[row] = node
        amounts = [UNKNOWN if node is None else capacity.of(node) for capacity in self._capacities]
        if self._capacity[:, row].tolist() != amounts:
            self.capacity_changes += 1
            self._capacity[:, row] = amounts
            self._version[row] += 1
            self.sequence += 1

    def held(self) -> Mapping[str, object]:
        """Returns uid -> (row, demand). Independent of profiles, so the audit finds no difference after `adopt`."""
        return dict(self._held)

    def holdings(self) -> dict[str, tuple[int, Demand]]:
        """Returns a copy of uid -> (row, demand); takes about 1 ms for 100,000 pods."""
        return dict(self._held)

    def holds(self, uid: str, row: int) -> bool:
        """Reports whether the pod is counted on the row."""
        entry = self._held.get(uid)
        return entry is not None and entry[0] == row

    def keep_pods(self) -> None:
        """Enables recording of `pods`; called before the first pod is added."""
        self.pods = {} if self.pods is None else self.pods

    def empty_copy(self) -> PeakLedger:
        return PeakLedger(self.name, self.predictor, self.stated, self.chosen)

    def has_settings_of(self, other: PeakLedger) -> bool:
        """Reports whether both have equal configuration, and so equal sums for the same profiles, pods and nodes."""
        return self.stated == other.stated and self.chosen == other.chosen

    def replace_capacities(self, stated: Mapping[str, Capacity | MeasuredCapacity]) -> None:
        """Replaces the capacity objects by equally configured ones, which may be filled by another owner."""
        self.stated = dict(stated)
        self._capacities = self._stated_capacities()

    # -- reservation -----------------------------------------------------------------------------------------------

    def reserve(self, pod: Pod, row: int) -> None:
        """Counts a pod like this one on the row until `withdraw`. Replaces an earlier reservation.

        `held` does not include it, because no such pod is assumed or confirmed there.
        """
        self.withdraw()
        self._reserved = (row, self.predictor.predict(pod).demand)
        self._add(*self._reserved, 1)

    def withdraw(self) -> None:
        """Removes the reservation. Idempotent."""
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            self._add(*reserved, -1)

    def has_reservation(self, row: int) -> bool:
        return self._reserved is not None and self._reserved[0] == row

    def _counted(self) -> list[tuple[int, Demand]]:
        """Returns (row, demand) of all held pods and of the reservation."""
        return [*self._held.values(), *(() if self._reserved is None else (self._reserved,))]

    # -- profiles --------------------------------------------------------------------------------------------------

    def adopt(self, predictor: Predictor) -> None:
        """Activates another predictor; sums are recomputed on read, or by `catch_up`."""
        self.predictor = predictor
        self.adopted += 1
        self.sequence += 1
        self._begin()
        for row, node in self._nodes.items():
            self._capacity[:, row] = [capacity.of(node) for capacity in self._capacities]

    def catch_up(self) -> bool:
        """Computes sums of up to CATCH_UP_ROWS rows; returns True if rows remain."""
        if self._curves is None:
            return False
        self._begin_counting()
        if not self._due:
            return self._curves.renew(CATCH_UP_ROWS)
        for row in list(self._due)[:CATCH_UP_ROWS]:
            self._settle(row)
        return True

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def curves(self) -> NodeCurves | None:
        """Returns the curves; None without profiles. To read rows use `outlook` or `settled`, which update them first."""
        return self._curves

    def peak(self, rows: Rows) -> Amounts:
        """Returns float64[dimensions, len(rows)]: sums of requests in milli-units. Rows ascend. Valid only without profiles."""
        self._grow_to(rows)
        return self._flat.of(rows)

    def capacity(self, rows: Rows) -> Amounts:
        """Returns float64[dimensions, len(rows)]: capacity in milli-units, or UNKNOWN."""
        self._grow_to(rows)
        return columns_at(self._capacity, rows)

    def peak_of(self, row: int) -> Sequence[int]:
        """Returns `peak` of one row, by dimension."""
        return self._flat.of_row(row)

    def capacity_of(self, row: int) -> list[float]:
        """Returns `capacity` of one row, by dimension."""
        self._grow(row + 1)
        amounts: list[float] = self._capacity[:, row].tolist()
        return amounts

    def nodes(self) -> Mapping[int, Node]:
        """Returns row -> node; not a copy."""
        return self._nodes

    def capacity_sources(self) -> Iterable[tuple[str, Capacity | MeasuredCapacity]]:
        """Returns (dimension, source of its capacity) for all dimensions."""
        return zip(self.predictor.dimensions, self._capacities, strict=True)

    def outlook(self, rows: Rows, curve: Curve) -> Outlook:
        """Returns the outlook of the rows (ascending) with a pod of this curve added."""
        return self.settled(rows).outlook(rows, curve)

    def settled(self, rows: Rows) -> NodeCurves:
        """Returns the curves, with the sums of these rows up to date."""
        assert self._curves is not None, "there are no profiles"
        self._begin_counting()
        if self._due:
            for row in rows.tolist() if len(rows) < len(self._due) else list(self._due):
                self._settle(row)
        return self._curves

    def fleet_load(self) -> Amounts:
        """Returns float64[dimensions, slots]: predicted use of all rows / sum of all stated capacities."""
        assert self._curves is not None, "there are no profiles"
        assert self.predictor.quantized is not None
        self._begin_counting()
        fleet = self._fleet()
        return self._total * self.predictor.quantized.quantum_milli / np.where(fleet > 0, fleet, np.inf)[:, None]

    def mean_row(self) -> Amounts:
        """Returns float64[dimensions, 1]: `load_factor` of the mean capacity of rows with a capacity above zero; 0 if none has."""
        quantized = self.predictor.quantized
        assert quantized is not None, "there are no profiles"
        count = (self._capacity > 0).sum(axis=1)
        mean = (self._fleet() / np.maximum(count, 1))[:, None]
        factors = load_factor(mean, quantized.quantum_milli, quantized.stand_in_milli)
        return np.where(mean > 0, factors, 0.0)

    def _fleet(self) -> Amounts:
        """Returns float64[dimensions]: the sum of all stated capacities."""
        fleet: Amounts = np.maximum(self._capacity, 0).sum(axis=1)
        return fleet

    def rows(self) -> Rows:
        """Returns the rows with nodes, ascending."""
        return np.array(sorted(self._nodes), np.intp)

    def node_names(self, rows: Rows) -> Iterator[tuple[int, str]]:
        """Yields (row, node name) of the rows with nodes."""
        for row in rows.tolist():
            node = self._nodes.get(row)
            if node is not None:
                yield row, node.name

    def row_of(self, uid: str) -> int | None:
        """Returns the row on which the pod is counted; None if there is none."""
        entry = self._held.get(uid)
        return None if entry is None else entry[0]

    @property
    def rows_left(self) -> int:
        """Returns the number of rows whose sums are not yet recomputed after `adopt`."""
        return len(self._due) if self._is_counting else len(self._nodes)

    def sources(self, rows: Rows) -> NDArray[np.int64]:
        """Returns int64[len(SOURCES)]: number of pods on these rows by source of their prediction. Rows must be up to date."""
        self._grow_to(rows)
        found: NDArray[np.int64] = self._sources[:, rows].sum(axis=1, dtype=np.int64)
        return found

    def __len__(self) -> int:
        """Returns the number of held pods."""
        return len(self._held)

    # -- sums ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Resets all sums; without profiles computes them at once from the held pods."""
        dimensions, quantized = self.predictor.dimensions, self.predictor.quantized
        self._capacities = self._stated_capacities()
        self._capacity: Amounts = np.full((len(dimensions), len(self._version)), UNKNOWN, np.float64)
        self._flat = FlatPeaks(len(dimensions))
        self._curves = None if quantized is None else NodeCurves(len(dimensions), quantized.profiles.slots)
        self._total = np.zeros((len(dimensions), 1 if quantized is None else quantized.profiles.slots), np.int64)
        self._sources: NDArray[np.int32] = np.zeros((len(SOURCES), len(self._version)), np.int32)
        self._due: dict[int, list[Demand]] = {}
        self._is_counting = False
        if quantized is None:
            self._is_counting = True
            for row, demand in self._counted():
                prediction = self.predictor.of(demand)
                self._flat.add(row, prediction.peaks, 1)
                self._sources[prediction.source, row] += 1

    def _stated_capacities(self) -> tuple[Capacity | MeasuredCapacity, ...]:
        return tuple(self.stated.get(name) or default_capacity(name) for name in self.predictor.dimensions)

    def _begin_counting(self) -> None:
        """Starts to update sums on each added or removed pod; marks rows that already hold pods as due."""
        if self._is_counting:
            return
        self._is_counting = True
        counted = self._counted()
        for row, demand in counted:
            self._due.setdefault(row, []).append(demand)
        for demand, pods in Counter(demand for _, demand in counted).items():
            self._total += self._curve(demand).quanta * np.int64(pods)

    def _settle(self, row: int) -> None:
        demands = self._due.pop(row, None)
        if demands is not None:
            assert self._curves is not None
            for demand, pods in Counter(demands).items():
                self._curves.add(row, self._curve(demand), pods)
                self._sources[self.predictor.of(demand).source, row] += pods

    def _curve(self, demand: Demand) -> Curve:
        curve = self.predictor.of(demand).curve
        assert curve is not None, "a predictor with profiles predicts curves"
        return curve

    def _add(self, row: int, demand: Demand, sign: int) -> None:
        self._grow(row + 1)
        self._version[row] += 1
        self.sequence += 1
        if not self._is_counting:
            return
        prediction = self.predictor.of(demand)
        if self._curves is None:
            self._flat.add(row, prediction.peaks, sign)
        else:
            self._settle(row)
            curve = prediction.curve
            assert curve is not None, "a predictor with profiles predicts curves"
            self._curves.add(row, curve, sign)
            self._total += curve.quanta if sign > 0 else -curve.quanta
        self._sources[prediction.source, row] += sign

    def _grow_to(self, rows: Rows) -> None:
        """Grows the arrays to include these rows (ascending)."""
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
        self._sources = np.pad(self._sources, ((0, 0), (0, more)))
        self._capacity = np.pad(self._capacity, ((0, 0), (0, more)), constant_values=UNKNOWN)


def load_factor(capacity: Amounts, quantum_milli: Amounts, stand_in_milli: Amounts) -> Amounts:
    """Returns float64[dimensions, rows]: factors that convert floats of curves to shares of capacity.

    A node without a stated capacity gets the stand-in capacity. A stated zero counts as one quantum, so any use exceeds it.
    """
    known = np.where(capacity >= 0, np.maximum(capacity, quantum_milli), stand_in_milli)
    factors: Amounts = quantum_milli / known / FLOAT_QUANTA
    return factors
