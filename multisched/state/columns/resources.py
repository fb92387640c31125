"""Amounts of resources: what each row has (allocatable), and what its pods request. int64 throughout.

Owns one matrix for each, and the line of each resource in them. The resources that most calls read are adjacent,
so that one slice reads them; the line NOTHING stays zero. Used by `NodeTable` only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from multisched.framework.node_view import VIEW_FROM, Amount, Float64, Int64, M, Rows, columns_at
from multisched.model.objects import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, Node, Pod, PodSpec
from multisched.state.change_log import ChangeLog
from multisched.state.columns.arrays import frozen, grown

RESOURCES_MAX = 256
"""Distinct resource names with a column: those that nodes have. Further ones of a node are not schedulable."""

NATIVE = (CPU, MEMORY, EPHEMERAL_STORAGE)
SCORED = (CPU, MEMORY)
PODS_INDEX = 0
NATIVE_END = PODS_INDEX + 1 + len(NATIVE)
"""The lines before this one hold the resources that most calls read; see `ResourceColumns._index`."""
SCORING = slice(NATIVE_END, NATIVE_END + len(SCORED))
"""Lines of `ResourceColumns._requested` with the scoring amounts of SCORED; these lines of the other matrices stay zero."""
NOTHING = SCORING.stop
"""The line of every resource that no node has; it stays zero."""

SPECS_MAX = 1_024
"""Pod specs whose amounts are cached, by identity."""

BLOCKS_MAX = 1_024
"""Combinations of resources whose lines are cached."""

_ALLOCATABLE: Final = Amount.ALLOCATABLE
"""Module constants, because in Python 3.11 looking up an enum member takes as long as three calls."""
_SCORING: Final = Amount.SCORING


class _FewRows:
    """Amounts of a few rows at one position of `row_log`; callers slice the native resources that they need."""

    __slots__ = ("_capacities", "allocatable", "at", "requested", "rows")

    def __init__(self, rows: Rows | None, at: int, allocatable: Int64, requested: Int64) -> None:
        self.rows = rows
        self.at = at
        if rows is None:
            rows = np.zeros(0, np.intp)
        self.allocatable: Int64 = allocatable[:NATIVE_END].take(rows, axis=1)
        self.requested: Int64 = requested[:NATIVE_END].take(rows, axis=1)
        self.allocatable.setflags(write=False)  # three times faster than `flags.writeable`
        self.requested.setflags(write=False)
        self._capacities: Float64 | None = None

    @property
    def capacities(self) -> Float64:
        """Made when first read: filters do not."""
        if self._capacities is None:
            self._capacities = self.allocatable.astype(np.float64)
            self._capacities.flags.writeable = False
        return self._capacities


def _column_of(matrix: M, lines: slice, rows: Rows) -> M:
    """Returns these lines of a single row, read-only: a view, because a copy costs more than the whole call."""
    row = rows.item()
    view = matrix[lines, row : row + 1]
    view.setflags(write=False)
    return view  # type: ignore[return-value]


class ResourceColumns:
    """Resource -> int64[all rows], for each kind of amount. `NodeView` documents the readers."""

    __slots__ = (
        "_absent",
        "_allocatable",
        "_amounts_by_spec",
        "_blocks",
        "_capacities",
        "_few",
        "_index",
        "_pods",
        "_ranges",
        "_requested",
        "_row_log",
        "_views",
    )

    def __init__(self, pods: Sequence[Mapping[str, Pod]], row_log: ChangeLog, capacity: int) -> None:
        """`pods`: the table's, by row; `row_log`: its changes. Both are read only."""
        self._pods = pods
        self._row_log = row_log
        self._index: dict[str, int] = {name: at for at, name in enumerate((PODS, *NATIVE))}
        """Resource -> its line in the matrices."""
        self._allocatable = np.zeros((8, capacity), np.int64)
        self._capacities = np.zeros((8, capacity))
        """`_allocatable` as float64: quotients are computed in float64, and converting costs as much as dividing."""
        self._requested = np.zeros((8, capacity), np.int64)
        self._absent: Int64 = frozen(np.zeros(capacity, np.int64))
        """The column of every resource that no node has."""
        self._blocks: dict[tuple[str, ...], slice | Rows] = {}
        self._ranges: dict[tuple[str, ...], tuple[int, float, float]] = {}
        """Resources -> `nodes_version` at which they were computed, smallest and largest capacity."""
        self._views: dict[tuple[str, str], Int64] = {}
        self._amounts_by_spec: dict[int, tuple[PodSpec, Int64, Sequence[tuple[str, int]]]] = {}
        """Id of a spec -> the spec, so that its id stays unique, and `_amounts_of` its pods."""
        self._few = _FewRows(None, 0, self._allocatable, self._requested)
        """The rows read last: three plugins read the same ones."""

    # -- what plugins read -----------------------------------------------------------------------------------------

    def allocatable(self, resource: str) -> Int64:
        return self._column("allocatable", self._allocatable, resource)

    def requested(self, resource: str) -> Int64:
        return self._column("requested", self._requested, resource)

    def scoring_requested(self, resource: str) -> Int64:
        if resource not in SCORED:
            return self.requested(resource)
        key = ("scoring", resource)
        if key not in self._views:
            self._views[key] = frozen(self._requested[SCORING][SCORED.index(resource)])
        return self._views[key]

    def amounts(self, kind: Amount, resources: tuple[str, ...], rows: Rows) -> Int64:
        if kind is not _SCORING:
            block = self._blocks.get(resources)
            if block is None:
                block = self._block(resources)
        elif resources == SCORED:
            block = SCORING
        else:
            block = self._scoring_block(resources)
        array = self._allocatable if kind is _ALLOCATABLE else self._requested
        if not isinstance(block, slice):
            found: Int64 = array[block, rows]
            return found
        if len(rows) == 1:
            return _column_of(array, block, rows)
        if block.stop <= NATIVE_END and len(rows) <= VIEW_FROM:
            few = self._few
            if few.rows is not rows or few.at != self._row_log.sequence:
                few = self._take_few(rows)
            return (few.allocatable if kind is _ALLOCATABLE else few.requested)[block]
        return columns_at(array[block], rows)

    def capacities(self, resources: tuple[str, ...], rows: Rows) -> Float64:
        block = self._blocks.get(resources)
        if block is None:
            block = self._block(resources)
        if not isinstance(block, slice):
            found: Float64 = self._capacities[block, rows]
            return found
        if len(rows) == 1:
            return _column_of(self._capacities, block, rows)
        if block.stop <= NATIVE_END and len(rows) <= VIEW_FROM:
            few = self._few
            if few.rows is not rows or few.at != self._row_log.sequence:
                few = self._take_few(rows)
            return few.capacities[block]
        return columns_at(self._capacities[block], rows)

    def capacity_range(self, resources: tuple[str, ...], nodes_version: int) -> tuple[float, float]:
        known = self._ranges.get(resources)
        if known is None or known[0] != nodes_version:
            every = self.capacities(resources, np.arange(len(self._pods)))
            ends = (float(every.min()), float(every.max())) if every.size else (0.0, 0.0)
            if len(self._ranges) >= BLOCKS_MAX:
                self._ranges.clear()
            known = self._ranges[resources] = (nodes_version, *ends)
        return known[1], known[2]

    @property
    def names(self) -> Iterable[str]:
        """All resources with a column."""
        return self._index

    def has(self, resource: str) -> bool:
        """Reports whether any node ever had the resource."""
        return resource in self._index

    # -- what the table writes -------------------------------------------------------------------------------------

    def write(self, row: int, node: Node | None) -> None:
        """Writes the amounts of the row's node; None: it was removed."""
        self._allocatable[:, row] = 0
        if node is not None and not node.malformed:
            for name in (*node.allocatable, *sorted(node.elastic)):
                index = self._index_of(name)
                if index is not None:
                    self._allocatable[index, row] = node.limit(name)
        self._capacities[:, row] = self._allocatable[:, row]

    def account(self, row: int, pod: Pod, sign: int) -> None:
        """Adds a pod to the row (`sign` 1) or removes it (-1)."""
        first, others = self._amounts_of(pod)
        column = self._requested[: SCORING.stop, row]
        if sign > 0:
            column += first
        else:
            column -= first
        for name, amount in others:
            index = self._index.get(name)
            if index is not None:
                self._requested[index, row] += sign * amount

    def forget_row(self, row: int) -> None:
        """Zeroes the requests on the row."""
        self._requested[:, row] = 0

    def grow(self, capacity: int) -> None:
        self._allocatable = grown(self._allocatable, capacity)
        self._capacities = grown(self._capacities, capacity)
        self._requested = grown(self._requested, capacity)
        self._absent = frozen(np.zeros(capacity, np.int64))
        self._views.clear()

    def fault(self, row: int) -> str:
        """Returns how the row's columns differ from the sum of its pods; empty if they do not."""
        pods = self._pods[row]
        sums = {**dict.fromkeys(self._index, 0), PODS: len(pods)}
        cpu = memory = 0
        for pod in pods.values():
            for name, amount in pod.requests.items():
                if name in sums:
                    sums[name] += amount
            scored = pod.scoring_requests
            cpu, memory = cpu + scored[0], memory + scored[1]
        found = {name: int(self._requested[index, row]) for name, index in self._index.items()}
        is_right = found == sums and [cpu, memory] == self._requested[SCORING, row].tolist()
        return "" if is_right else f"columns say {found}, its pods {sums}"

    # -- internal --------------------------------------------------------------------------------------------------

    def _amounts_of(self, pod: Pod) -> tuple[Int64, Sequence[tuple[str, int]]]:
        """Returns what the pod adds to its row: int64[SCORING.stop] for the first lines, and its other resources."""
        is_as_specified = pod.held is None and pod.held_scoring is None
        known = self._amounts_by_spec.get(id(pod.spec)) if is_as_specified else None
        if known is not None:
            return known[1], known[2]
        requests = pod.requests
        native = [requests.get(name, 0) for name in NATIVE]
        first = np.array([1, *native, *pod.scoring_requests], np.int64)
        # The resource `pods` cannot be requested; its line holds the number of pods.
        others = [(name, amount) for name, amount in requests.items() if name != PODS and name not in NATIVE]
        if is_as_specified:
            if len(self._amounts_by_spec) >= SPECS_MAX:
                self._amounts_by_spec.clear()
            self._amounts_by_spec[id(pod.spec)] = pod.spec, first, others
        return first, others

    def _column(self, kind: str, array: Int64, resource: str) -> Int64:
        key = (kind, resource)
        view = self._views.get(key)
        if view is None:
            index = self._index.get(resource)
            if index is None:
                return self._absent
            view = self._views[key] = frozen(array[index])
        return view

    def _take_few(self, rows: Rows) -> _FewRows:
        """Reads the rows and keeps them for the next callers with the same array, which is never changed (`NodeView`)."""
        self._few = _FewRows(rows, self._row_log.sequence, self._allocatable, self._requested)
        return self._few

    def _block(self, resources: tuple[str, ...]) -> slice | Rows:
        """Returns the lines of the resources: a slice if they are adjacent."""
        if len(self._blocks) >= BLOCKS_MAX:
            self._blocks.clear()
        at = [self._index.get(name, NOTHING) for name in resources]
        is_run = bool(at) and at == list(range(at[0], at[0] + len(at)))
        block = slice(at[0], at[-1] + 1) if is_run else np.array(at, np.intp)[:, None]
        self._blocks[resources] = block
        return block

    def _scoring_block(self, resources: tuple[str, ...]) -> Rows:
        """Returns the lines with the scoring amounts of the resources in `_requested`."""
        scored = dict(zip(SCORED, range(SCORING.start, SCORING.stop), strict=True))
        at = [scored.get(name, self._index.get(name, NOTHING)) for name in resources]
        return np.array(at, np.intp)[:, None]

    def _index_of(self, name: str) -> int | None:
        """Returns the line of a node's resource, adding it if it is new. Pods add none: their authors are not trusted."""
        index = self._index.get(name)
        if index is not None:
            return index
        if len(self._index) >= RESOURCES_MAX:
            return None
        index = self._index[name] = NOTHING + 1 + len(self._index) - NATIVE_END
        self._blocks.clear()  # some blocks may use NOTHING for this resource
        if index >= len(self._allocatable):
            empty = np.zeros_like(self._allocatable)
            self._allocatable = np.concatenate((self._allocatable, empty))
            self._capacities = np.concatenate((self._capacities, np.zeros_like(self._capacities)))
            self._requested = np.concatenate((self._requested, empty))
            self._views.clear()
        for row, pods in enumerate(self._pods):
            self._requested[index, row] = sum(pod.requests.get(name, 0) for pod in pods.values())
        return index
