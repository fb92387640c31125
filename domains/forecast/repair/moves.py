"""The working placement, on which the search tries moves: loads, free resources and budgets.

Owned by one search (`repair/search.py`), which makes moves and undoes them in reverse order. Undo restores saved arrays,
so no rounding errors accumulate. Moves are carried out one after the other, and during a move the pod counts on both nodes.
So only earlier moves can make room on a target: after them, its load with the pod must be within the thresholds. In an exchange,
the peak of the hot node may rise by `RepairLimits.swell`. Budgets are the limits on the number of moves per window, node and service.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.forecast.repair.case import NO_GANG, Fits, Floats, Ints, Mask, RepairCase
from domains.forecast.settings.repair_limits import RepairLimits

TOLERANCE: Final = 1e-9
"""Tolerance of shares of capacity, for rounding errors of sums."""
TARGETS_MAX: Final = 8
"""Targets tried for one pod, the emptiest first."""
CHAIN_NODES_MAX: Final = 12
"""Targets tried for chains, those with the smallest excess over the threshold first."""
EXACT_ROWS_MAX: Final = 512
"""Nodes whose full curves are evaluated for one pod: those that would be least full if all peaks coincided."""
CHUNK_ROWS: Final = 256
"""Number of nodes whose full curves are evaluated at once, which needs some megabytes."""
KNOWN_TARGETS_MAX: Final = 20_000
"""Limit of cached results of `targets`."""
_INVERSE_OF_ZERO: Final = 1e12
"""Used for 1 / capacity if the capacity is 0."""
EVALUATION_WORK: Final = 20_000
"""Work that each evaluation costs in addition to its cells."""


class Move(msgspec.Struct, frozen=True):
    """A move of one pod from its node to another."""

    pod: int
    source: int
    target: int


class WorkingPlacement:
    """Loads, free resources and budgets after the moves made so far."""

    def __init__(self, case: RepairCase, limits: RepairLimits, fits: Fits) -> None:
        self.case, self.limits = case, limits
        self.threshold = limits.thresholds(case.dimensions)
        self.loads: Floats = np.nan_to_num(case.nodes.loads.astype(np.float64), nan=0.0)
        self.peaks: Floats = self.loads.max(axis=2)
        self.free: Ints = case.nodes.free.astype(np.int64)
        self.moves: list[Move] = []
        self.work = 0
        """Cells (node x dimension x slot) evaluated so far, and EVALUATION_WORK for each evaluation."""
        self.work_end = limits.work_max
        """Limit of `work`; set by the search."""
        self.fits_checked = 0
        self._fits, self._known_fits = fits, dict[int, Mask]()
        self._curves: Floats = np.nan_to_num(case.curves.astype(np.float64), nan=0.0)
        self._curve_peaks: Floats = self._curves.max(axis=2)
        self._inverse = _inverse(case.nodes.capacity)
        self._node_moves = np.zeros(len(case.nodes.names), np.int64)
        self._service_moves: dict[int, int] = {}
        self._known_service_pods: dict[int, NDArray[np.int16]] = {}
        self.reason_codes, self.reasons = reasons_not_to_move(case, limits)
        self._pods_by_node, self._first = _by_node(case)
        self._kinds = _kinds(case)
        self._version, self._last_version = 0, 0
        self._known_targets: dict[tuple[int, int], tuple[int, ...]] = {}

    # Nodes and their pods

    def hot(self) -> Ints:
        """Returns the hot nodes: those whose predicted peak exceeds a threshold, the worst first."""
        over = (self.peaks - self.threshold).max(axis=1)
        rows = np.flatnonzero(over > TOLERANCE)
        return rows[np.lexsort((rows, -over[rows]))]

    def is_below_threshold(self, node: int) -> bool:
        return bool((self.peaks[node] <= self.threshold + TOLERANCE).all())

    def pods_on(self, node: int) -> Ints:
        """Returns all pods that were on the node before any move."""
        return self._pods_by_node[self._first[node] : self._first[node + 1]]

    def movable_on(self, node: int) -> Ints:
        """Returns the node's pods that rules and budgets allow to move now, those with the shortest cold start first."""
        if self.limits.moves_per_node <= self._node_moves[node]:
            return np.zeros(0, np.int64)
        pods = self.pods_on(node)
        pods = pods[self.reason_codes[pods] == 0]
        service, moved = self.case.pods.service, {move.pod for move in self.moves}
        most = self.limits.moves_per_service
        allowed = [p for p in pods.tolist() if p not in moved and self._service_moves.get(int(service[p]), 0) < most]
        allowed.sort(key=lambda pod: (int(self.case.pods.cold_start[pod]), pod))
        return np.array(allowed, np.int64)

    def may_leave(self, pod: int) -> bool:
        """Reports whether budgets allow a move of the pod."""
        if len(self.moves) >= self.limits.moves_per_window:
            return False
        used = self._service_moves.get(int(self.case.pods.service[pod]), 0)
        node_moves = self._node_moves[self.case.pods.node[pod]]
        return used < self.limits.moves_per_service and bool(node_moves < self.limits.moves_per_node)

    def first_of_kind(self, pods: Ints) -> Ints:
        """Returns the first pod of each kind, so that pods that differ only in their names are tried once."""
        _, first = np.unique(self._kinds[pods], return_index=True)
        return pods[np.sort(first)]

    def kind(self, pod: int) -> int:
        return int(self._kinds[pod])

    def share(self, pod: int, node: int) -> Floats:
        """Returns float64[dimensions, slots]: the pod's curve as a share of the node's capacity."""
        share: Floats = self._curves[self.case.pods.curve[pod]] * self._inverse[node][:, None]
        return share

    def shares(self, pods: Ints, node: int) -> Floats:
        """Returns float64[pods, dimensions, slots]: the pods' curves as shares of the node's capacity."""
        shares: Floats = self._curves[self.case.pods.curve[pods]] * self._inverse[node][:, None]
        return shares

    # Targets of moves

    def targets(self, pod: int) -> tuple[int, ...]:
        """Returns feasible targets, the emptiest first: the pod fits, budgets allow it, no threshold is exceeded."""
        key = (pod, self._version)
        known = self._known_targets.get(key)
        if known is None:
            if len(self._known_targets) >= KNOWN_TARGETS_MAX:
                self._known_targets.clear()
            known = self._known_targets[key] = tuple(self._find_targets(pod))
        return known

    def _find_targets(self, pod: int) -> list[int]:
        over, allowed = self._over_by_peaks(pod), self._allowed_targets(pod, self.free)
        sure = np.flatnonzero(allowed & (over <= TOLERANCE))
        if len(sure):
            fitting = sure[self.fits(pod)[sure]]
            if len(fitting) >= min(TARGETS_MAX, int(allowed.sum())):
                return _lowest(fitting, over[fitting], TARGETS_MAX)
        rows = self._least_over(np.flatnonzero(np.logical_and(allowed, self._below())), over)
        exact = self._over_by_cells(pod, rows)
        feasible, excess = rows[exact <= TOLERANCE], exact[exact <= TOLERANCE]
        if not len(feasible):
            return []
        fitting_mask = self.fits(pod)[feasible]
        return _lowest(feasible[fitting_mask], excess[fitting_mask], TARGETS_MAX)

    def chains(self, pod: int) -> Iterator[tuple[Move, Move]]:
        """Yields pairs of moves: first another pod moves from the target to a third node, or to this pod's node (an exchange);
        then this pod moves to the target."""
        source = int(self.case.pods.node[pod])
        rows = np.flatnonzero(self._allowed_targets(pod, None) & self._below())
        if not len(rows):
            return
        rows = self._least_over(rows[self.fits(pod)[rows]], self._over_by_peaks(pod))
        over = self._over_by_cells(pod, rows)
        for target in _lowest(rows, over, CHAIN_NODES_MAX):
            for other in self.first_of_kind(self.movable_on(target)).tolist():
                if self.is_spent():
                    return
                if not self._makes_room(other, pod, target):
                    continue
                for third in (*self.targets(other), *self._exchange_target(other, source)):
                    if third != target and self._is_chain_allowed(pod, other, source, target, third):
                        yield Move(other, target, third), Move(pod, source, target)

    def _below(self) -> Mask:
        """Returns bool[nodes]: whether the node exceeds no threshold."""
        return np.asarray((self.peaks <= self.threshold + TOLERANCE).all(axis=1))

    def _least_over(self, rows: Ints, over: Floats) -> Ints:
        """Returns the EXACT_ROWS_MAX rows with the smallest `over`, sorted by row; all if there are fewer."""
        if len(rows) <= EXACT_ROWS_MAX:
            return rows
        return np.sort(np.array(_lowest(rows, over[rows], EXACT_ROWS_MAX), np.int64))

    def is_spent(self) -> bool:
        """Reports whether the current work limit is reached."""
        return self.work >= self.work_end

    def _makes_room(self, other: int, pod: int, target: int) -> bool:
        """Reports whether the pod has room on the target once the other pod has left it."""
        self.work += EVALUATION_WORK
        requests = self.case.pods.requests
        if bool((self.free[target] + requests[other] < requests[pod]).any()):
            return False
        carried = np.maximum(self.loads[target] - self.share(other, target), 0.0) + self.share(pod, target)
        return bool((carried.max(axis=1) <= self.threshold + TOLERANCE).all())

    def _exchange_target(self, other: int, hot: int) -> tuple[int, ...]:
        """Returns (hot,) if the hot node can take the other pod before its own pod leaves (`RepairLimits.swell`), else ()."""
        if not bool((self.free[hot] >= self.case.pods.requests[other]).all()) or not self.fits(other)[hot]:
            return ()
        peaks = self.peaks[hot]
        limit = np.where(peaks > self.threshold, peaks + self.limits.swell, self.threshold)
        risen = (self.loads[hot] + self.share(other, hot)).max(axis=1)
        return (hot,) if bool((risen <= limit + TOLERANCE).all()) else ()

    def _is_chain_allowed(self, pod: int, other: int, source: int, target: int, third: int) -> bool:
        """Reports whether budgets and `RepairLimits.keep_apart` allow both moves together."""
        limits, service = self.limits, self.case.pods.service
        if limits.keep_apart and not self._keeps_apart(pod, other, source, target, third):
            return False
        for node in (source, target, third):
            needed = (node in (source, target)) + (node in (target, third))
            if self._node_moves[node] + needed > limits.moves_per_node:
                return False
        same = service[pod] == service[other]
        used = max(self._service_moves.get(int(service[one]), 0) for one in (pod, other))
        return bool(used + 1 + same <= limits.moves_per_service) and len(self.moves) + 2 <= limits.moves_per_window

    def _keeps_apart(self, pod: int, other: int, source: int, target: int, third: int) -> bool:
        """Reports whether moving `other` from target to third, then the pod from source to target, meets `RepairLimits.keep_apart`."""
        if not self._service_pods(other)[third] < self._service_pods(other)[target]:
            return False
        service_pods = self._service_pods(pod)
        same = self.case.pods.service[pod] == self.case.pods.service[other]
        return bool(service_pods[target] - same < service_pods[source] + (same and third == source))

    def _service_pods(self, pod: int) -> NDArray[np.int16]:
        """Returns int16[nodes]: number of pods of the pod's service on each node, after the moves made so far."""
        service = int(self.case.pods.service[pod])
        service_pods = self._known_service_pods.get(service)
        if service_pods is None:
            pods = np.flatnonzero(self.case.pods.service == service)
            service_pods = np.bincount(self.case.pods.node[pods], minlength=len(self.case.nodes.names)).astype(np.int16)
            for move in self.moves:
                if self.case.pods.service[move.pod] == service:
                    service_pods[move.source] -= 1
                    service_pods[move.target] += 1
            self._known_service_pods[service] = service_pods
        return service_pods

    def fits(self, pod: int) -> Mask:
        """Returns bool[nodes]: the cached result of the caller's `Fits`; all False after `fits_max` distinct pods."""
        known = self._known_fits.get(pod)
        if known is None:
            if self.fits_checked >= self.limits.fits_max:
                return np.zeros(len(self.case.nodes.names), np.bool_)
            self.fits_checked += 1
            known = np.asarray(self._fits(pod), np.bool_)
            if known.shape != (len(self.case.nodes.names),):
                raise ValueError(f"fits: expected shape {(len(self.case.nodes.names),)}, got {known.shape}")
            self._known_fits[pod] = known
        return known

    def _allowed_targets(self, pod: int, free: Ints | None) -> Mask:
        """Returns bool[nodes]: allowed targets by free resources (if given), budgets and `keep_apart`."""
        allowed: Mask = self._node_moves < self.limits.moves_per_node
        if free is not None:
            allowed = allowed & (free >= self.case.pods.requests[pod]).all(axis=1)
        if self.limits.keep_apart:
            service_pods = self._service_pods(pod)
            allowed = allowed & (service_pods < service_pods[self.case.pods.node[pod]])
        allowed[self.case.pods.node[pod]] = False
        if len(self.moves) >= self.limits.moves_per_window:
            allowed[:] = False
        return allowed

    def _over_by_peaks(self, pod: int) -> Floats:
        """Returns float64[nodes]: excess over the threshold with the pod, if all peaks were in the same slot; an upper bound."""
        own = self._curve_peaks[self.case.pods.curve[pod]] * self._inverse
        self.work += EVALUATION_WORK + own.size
        over: Floats = (self.peaks + own - self.threshold).max(axis=1)
        return over

    def _over_by_cells(self, pod: int, rows: Ints) -> Floats:
        """Returns float64[rows]: exact excess over the threshold with the pod; negative if below."""
        curve = self._curves[self.case.pods.curve[pod]]
        over = np.empty(len(rows))
        for start in range(0, len(rows), CHUNK_ROWS):
            part = rows[start : start + CHUNK_ROWS]
            carried = curve * self._inverse[part][:, :, None]
            carried += self.loads[part]
            over[start : start + CHUNK_ROWS] = (carried.max(axis=2) - self.threshold).max(axis=1)
        self.work += EVALUATION_WORK + len(rows) * curve.size
        return over

    # Moves

    @contextmanager
    def moved(self, move: Move) -> Iterator[None]:
        """Makes the move within the `with` block, and undoes it afterwards."""
        ends = [move.source, move.target]
        loads, peaks = self.loads[ends].copy(), self.peaks[ends].copy()
        version = self._version
        self.make(move)
        try:
            yield
        finally:
            latest = self.moves.pop()
            assert latest == move
            self.loads[ends], self.peaks[ends] = loads, peaks
            self._count(move, -1)
            self._version = version

    def make(self, move: Move) -> None:
        """Makes the move; only `moved` undoes it."""
        self.work += 2 * EVALUATION_WORK
        self.loads[move.target] += self.share(move.pod, move.target)
        self.loads[move.source] = np.maximum(self.loads[move.source] - self.share(move.pod, move.source), 0.0)
        for node in (move.source, move.target):
            self.peaks[node] = self.loads[node].max(axis=1)
        self.moves.append(move)
        self._count(move, 1)
        self._last_version += 1
        self._version = self._last_version

    def _count(self, move: Move, sign: int) -> None:
        requests = self.case.pods.requests[move.pod]
        self.free[move.target] -= sign * requests
        self.free[move.source] += sign * requests
        self._node_moves[[move.source, move.target]] += sign
        service = int(self.case.pods.service[move.pod])
        self._service_moves[service] = self._service_moves.get(service, 0) + sign
        service_pods = self._known_service_pods.get(service)
        if service_pods is not None:
            service_pods[move.source] -= sign
            service_pods[move.target] += sign


def _lowest(rows: Ints, over: Floats, most: int) -> list[int]:
    """Returns at most `most` rows, those with the lowest `over` first."""
    if len(rows) > most:
        part = np.argpartition(over, most - 1)
        bar = over[part[most - 1]]
        kept = over <= bar  # includes all ties, so the result does not depend on the order of argpartition
        rows, over = rows[kept], over[kept]
    return [int(row) for row in rows[np.lexsort((rows, over))][:most]]


def _inverse(capacity: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        inverse = 1.0 / capacity
    return np.nan_to_num(inverse, nan=0.0, posinf=_INVERSE_OF_ZERO)


def _by_node(case: RepairCase) -> tuple[Ints, Ints]:
    """Returns the pods sorted by node, and the index of each node's first pod."""
    order = np.argsort(case.pods.node, kind="stable")
    counts = np.bincount(case.pods.node, minlength=len(case.nodes.names))
    return order.astype(np.int64), np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def _kinds(case: RepairCase) -> Ints:
    """Returns int64[pods]: equal numbers for pods that are interchangeable for a plan, apart from their nodes."""
    pods = case.pods
    pdb_of = np.full(len(pods.names), -1, np.int64)
    for number, pdb in enumerate(case.disruptions):
        pdb_of[list(pdb.pods)] = number
    columns = (pods.curve, pods.service, pods.namespace, pods.gang, pods.cold_start, pods.fixed, pdb_of)
    rows = np.column_stack([*(column.astype(np.int64) for column in columns), pods.requests])
    if not len(rows):
        return np.zeros(0, np.int64)
    order = np.lexsort(rows.T)
    new = np.ones(len(rows), np.int64)
    new[0] = 0
    new[1:] = (rows[order[1:]] != rows[order[:-1]]).any(axis=1)
    kinds = np.empty(len(rows), np.int64)
    kinds[order] = np.cumsum(new)
    return kinds


def reasons_not_to_move(case: RepairCase, limits: RepairLimits) -> tuple[Ints, tuple[str, ...]]:
    """Returns int64[pods]: index of the reason why a pod can never move (0: it can), and the reasons."""
    pods, reasons = case.pods, list(case.fixed_reasons)
    codes = pods.fixed.astype(np.int64)

    def forbid(which: Mask, reason: str) -> None:
        if bool(which.any()):
            reasons.append(reason)
            codes[(codes == 0) & which] = len(reasons) - 1

    in_gang: Mask = np.asarray(pods.gang != NO_GANG)
    if limits.move_gangs and len(case.gang_spare):
        forbid(
            np.asarray(in_gang & (case.gang_spare[np.maximum(pods.gang, 0)] < 1)),
            "its gang would fall below its minimum",
        )
    else:
        forbid(in_gang, "it belongs to a gang")
    pdbs = np.zeros(len(pods.names), np.int64)
    for pdb in case.disruptions:
        members = np.array(pdb.pods, np.int64)
        pdbs[members] += 1
        if pdb.allowed < 1:
            reasons.append(f"PodDisruptionBudget {pdb.name} allows no disruption now")
            codes[members[codes[members] == 0]] = len(reasons) - 1
    forbid(np.asarray(pdbs > 1), "more than one PodDisruptionBudget selects it, so the eviction API rejects it")
    if len(case.quota_room):
        short = (case.quota_room[pods.namespace] < pods.requests) & (pods.requests > 0)
        forbid(
            np.asarray(short.any(axis=1)),
            "the quota of its namespace has no room for a replacement while the pod terminates",
        )
    return codes, tuple(reasons)
