"""PeakLedger: what every row is predicted to use, pod by pod, assumed ones included, for all pods whatever their domain.

A ledger that never refuses: it uses the ledger protocol because commit and cache tell ledgers of every pod that comes
and goes. It holds what predictions depend on (`Demand`), which profiles do not change. Sums follow from it: `FlatPeaks`
by requests while there are no profiles, `NodeCurves` with them. Both are exact. After `adopt`, and in a ledger nobody
has read yet (the audit's copies), rows are counted when they are read. `catch_up` counts ahead of that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
"""Rows counted in one piece after profiles changed: some five milliseconds. The first piece sorts all pods by row,
which takes some fifty for a hundred thousand pods."""


class PeakLedger:
    """Implements `framework.ledger.Ledger`. One per domain that scores by forecast: `name` carries the domain."""

    def __init__(
        self,
        name: str,
        predictor: Predictor,
        stated: Mapping[str, Capacity | MeasuredCapacity],
        chosen: tuple[str, ...] = (),
    ) -> None:
        """`stated`: capacities that are configured; other dimensions have `default_capacity`. `chosen`: the dimensions that
        are configured; empty: they go by the profiles."""
        self.name = name
        self.predictor = predictor
        self.stated = dict(stated)
        self.chosen = chosen
        self.sequence = 0
        """Raised at each change of what rows hold or have."""
        self.capacity_changes = 0
        """Raised whenever a node comes or goes, or has another capacity."""
        self.pods: dict[str, Pod] | None = None
        """uid -> pod, while somebody wants to know (`keep_pods`)."""
        self._held: dict[str, tuple[int, Demand]] = {}
        self._reserved: tuple[int, Demand] | None = None
        """Row and demand of a pod that is to come, which no pod's entry says."""
        self._nodes: dict[int, Node] = {}
        self._version = [0] * ROWS_FIRST
        self.adopted = 0
        """How often other profiles were put in force."""
        self._begin()

    # -- Ledger ----------------------------------------------------------------------------------------------------

    def concerns(self, pod: Pod) -> bool:
        return True

    def version(self, row: int) -> int:
        return self.adopted + (self._version[row] if row < len(self._version) else 0)

    def fits(self, pod: Pod, row: int) -> str:
        return ""

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        self.restore(pod, row)
        return NO_ANNOTATIONS

    def restore(self, pod: Pod, row: int) -> None:
        """Counts the pod on the row; a pod that changed (another label, resized) is counted anew."""
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
        before = self._capacity[:, row].tolist()
        if before != amounts:
            self.capacity_changes += 1
            self._capacity[:, row] = amounts
            self._fleet += [max(now, 0) - max(was, 0) for was, now in zip(before, amounts, strict=True)]
            self._version[row] += 1
            self.sequence += 1

    def held(self) -> Mapping[str, object]:
        """uid -> (row, demand): the same under whatever profiles, so that new ones never look like a difference."""
        return dict(self._held)

    def holdings(self) -> dict[str, tuple[int, Demand]]:
        """uid -> (row, demand): a copy, a millisecond's work for a hundred thousand pods."""
        return dict(self._held)

    def holds(self, uid: str, row: int) -> bool:
        """True if the pod counts on the row."""
        entry = self._held.get(uid)
        return entry is not None and entry[0] == row

    def keep_pods(self) -> None:
        """From here on `pods` are those that come; called before any is placed."""
        self.pods = {} if self.pods is None else self.pods

    def empty_copy(self) -> PeakLedger:
        return PeakLedger(self.name, self.predictor, self.stated, self.chosen)

    def sums_like(self, other: PeakLedger) -> bool:
        """True if both are configured alike: with the same profiles they would say the same of any pods and nodes."""
        return self.stated == other.stated and self.chosen == other.chosen

    def restate(self, stated: Mapping[str, Capacity | MeasuredCapacity]) -> None:
        """Reads capacities from these from now on, which are configured alike: whoever fills them may be another one."""
        self.stated = dict(stated)
        self._capacities = self._stated_capacities()

    # -- promises --------------------------------------------------------------------------------------------------

    def reserve(self, pod: Pod, row: int) -> None:
        """A pod like this one counts on the row beside those that are held, until `withdraw`: one at a time. `held` does not
        tell of it, as no pod stands there yet."""
        self.withdraw()
        self._reserved = (row, self.predictor.predict(pod).demand)
        self._add(*self._reserved, 1)

    def withdraw(self) -> None:
        """What was promised counts no more. Idempotent."""
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            self._add(*reserved, -1)

    def has_reservation(self, row: int) -> bool:
        return self._reserved is not None and self._reserved[0] == row

    def _counted(self) -> list[tuple[int, Demand]]:
        """Of all that counts on rows."""
        return [*self._held.values(), *(() if self._reserved is None else (self._reserved,))]

    # -- profiles --------------------------------------------------------------------------------------------------

    def adopt(self, predictor: Predictor) -> None:
        """Puts another predictor in force at once; its sums are counted when they are read, or by `catch_up`."""
        self.predictor = predictor
        self.adopted += 1
        self.sequence += 1
        self._begin()
        for row, node in self._nodes.items():
            amounts = [capacity.of(node) for capacity in self._capacities]
            self._capacity[:, row] = amounts
            self._fleet += [max(now, 0) for now in amounts]

    def catch_up(self) -> bool:
        """Counts a piece of what is still to be counted; True if there is more."""
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
        """None while there are no profiles. Rows are to be read by `outlook` and `settled`, which count them first."""
        return self._curves

    def peak(self, rows: Rows) -> Amounts:
        """float64[dimensions, len(rows)]: milli-units by requests. Rows ascend. Only while there are no profiles."""
        self._grow_to(rows)
        return self._flat.of(rows)

    def capacity(self, rows: Rows) -> Amounts:
        """float64[dimensions, len(rows)]: milli-units the node has, or UNKNOWN."""
        self._grow_to(rows)
        return columns_at(self._capacity, rows)

    def nodes(self) -> Mapping[int, Node]:
        """Row -> node; a view."""
        return self._nodes

    def capacity_sources(self) -> Iterable[tuple[str, Capacity | MeasuredCapacity]]:
        """(dimension, where its capacity comes from)"""
        return zip(self.predictor.dimensions, self._capacities, strict=True)

    def outlook(self, rows: Rows, curve: Curve) -> Outlook:
        """What comes of the rows (ascending) if a pod of this curve comes there."""
        return self.settled(rows).outlook(rows, curve)

    def settled(self, rows: Rows) -> NodeCurves:
        """The curves, with these rows counted."""
        assert self._curves is not None, "there are no profiles"
        self._begin_counting()
        if self._due:
            for row in rows.tolist() if len(rows) < len(self._due) else list(self._due):
                self._settle(row)
        return self._curves

    def fleet_load(self) -> Amounts:
        """float64[dimensions, slots]: what all rows are predicted to use, over what all that say so have."""
        assert self._curves is not None, "there are no profiles"
        assert self.predictor.quantized is not None
        self._begin_counting()
        fleet = np.where(self._fleet > 0, self._fleet, np.inf).reshape(-1, 1)
        return self._total * self.predictor.quantized.quantum_milli / fleet

    def mean_row(self) -> Amounts:
        """float64[dimensions, 1]: as `load_factor`, of the mean capacity of the rows that have any; 0 where none has."""
        quantized = self.predictor.quantized
        assert quantized is not None, "there are no profiles"
        count = (self._capacity > 0).sum(axis=1)
        mean = (self._fleet / np.maximum(count, 1))[:, None]
        factors = load_factor(mean, quantized.quantum_milli, quantized.stand_in_milli)
        return np.where(mean > 0, factors, 0.0)

    def rows(self) -> Rows:
        """Those that have nodes, ascending."""
        return np.array(sorted(self._nodes), np.intp)

    def node_names(self, rows: Rows) -> Iterator[tuple[int, str]]:
        """(row, name) of those that have nodes."""
        for row in rows.tolist():
            node = self._nodes.get(row)
            if node is not None:
                yield row, node.name

    def row_of(self, uid: str) -> int | None:
        """Where the pod counts."""
        entry = self._held.get(uid)
        return None if entry is None else entry[0]

    @property
    def rows_left(self) -> int:
        """Rows that are still to be counted after profiles changed."""
        return len(self._due) if self._is_counting else len(self._nodes)

    def sources(self, rows: Rows) -> NDArray[np.int64]:
        """int64[len(SOURCES)]: pods on these rows (which are counted) by what speaks for them."""
        self._grow_to(rows)
        found: NDArray[np.int64] = self._sources[:, rows].sum(axis=1, dtype=np.int64)
        return found

    def __len__(self) -> int:
        """Pods that are held."""
        return len(self._held)

    # -- keeping ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Empty sums of the predictor's dimensions."""
        dimensions, quantized = self.predictor.dimensions, self.predictor.quantized
        self._capacities = self._stated_capacities()
        self._capacity: Amounts = np.full((len(dimensions), len(self._version)), UNKNOWN, np.float64)
        self._fleet: Amounts = np.zeros(len(dimensions))
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
        """From here on sums follow every pod that comes or goes; rows that hold pods already are due."""
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
        self._sources = np.pad(self._sources, ((0, 0), (0, more)))
        self._capacity = np.pad(self._capacity, ((0, 0), (0, more)), constant_values=UNKNOWN)


def load_factor(capacity: Amounts, quantum_milli: Amounts, stand_in_milli: Amounts) -> Amounts:
    """float64[dimensions, rows]: times a float of curves gives the share of the capacity that it is.

    A node that does not state its capacity has the stand-in's; of one that has none of it, whatever is used is too much.
    """
    known = np.where(capacity >= 0, np.maximum(capacity, quantum_milli), stand_in_milli)
    factors: Amounts = quantum_milli / known / FLOAT_QUANTA
    return factors
