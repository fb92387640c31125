"""What plugins read about nodes: columns over rows. The node table and overlays on it are both such views.

Shapes: a *column* is an array over all rows of the table, indexed by row; every array handed out is read-only. Rows of
deleted nodes stay in the columns until reused; the rows a plugin is asked about are always live.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from multisched.framework.pod_counts import PodCountsView
from multisched.framework.volume_users import VolumeUsers
from multisched.model.objects import Node, Pod
from multisched.model.selectors import Taint

Rows = NDArray[np.intp]
"""Row numbers, ascending."""
Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Float64 = NDArray[np.float64]
Codes = NDArray[np.uint8]
"""One reason code per row of a Filter call; 0 passes (see ReasonTable)."""
Scores = NDArray[np.int64]
Bools = NDArray[np.bool_]


M = TypeVar("M", bound=NDArray[Any])

NO_ROWS: Rows = np.zeros(0, np.intp)
"""Never written to, so one serves all."""

PASSES = np.array(0, np.uint8)
"""The code of a row that passes, as an array: numpy needs as long to convert a Python number as for the rest."""

VIEW_FROM = 256
"""Rows from which on looking for a run is worth it."""


class Amount(Enum):
    """Which columns `NodeView.amounts` reads."""

    ALLOCATABLE = "allocatable"
    REQUESTED = "requested"
    SCORING = "scoring"


Derive = Callable[["NodeView", Rows], Int64]
"""int64[rows] of what is on each row, and of nothing else."""


class NodeView(Protocol):
    """Read access to the node table. Amounts are int64: milli-CPU, bytes, counts.

    A member with a body does what a view does that has no better way.
    """

    def allocatable(self, resource: str) -> Int64:
        """int64[all rows]; zeros for a resource no node has."""
        ...

    def requested(self, resource: str) -> Int64:
        """int64[all rows]: what pods on the row take, assumed ones included; their number for the resource `pods`."""
        ...

    def scoring_requested(self, resource: str) -> Int64:
        """int64[all rows]: as requested, but cpu and memory count defaults for containers that ask for nothing."""
        ...

    def amounts(self, kind: Amount, resources: tuple[str, ...], rows: Rows) -> Int64:
        """int64[len(resources), len(rows)], read-only: the same columns, several at once and only at these rows.

        A call of a plugin is about a few rows far more often than about all; then the number of calls is what costs.
        """
        read = {Amount.ALLOCATABLE: self.allocatable, Amount.REQUESTED: self.requested}.get(
            kind, self.scoring_requested
        )
        found = np.empty((len(resources), len(rows)), np.int64)
        for index, resource in enumerate(resources):
            found[index] = read(resource)[rows]
        return found

    def capacities(self, resources: tuple[str, ...], rows: Rows) -> Float64:
        """float64[resources, rows], read-only: allocatable amounts, to divide by."""
        return self.amounts(Amount.ALLOCATABLE, resources, rows).astype(np.float64)

    def capacity_range(self, resources: tuple[str, ...]) -> tuple[float, float]:
        """The smallest and the largest of these allocatable amounts on any row, rows without a node (0) included.

        Tells without looking at rows that each of them has all the resources, or that none has too much of one.
        """
        every = [self.allocatable(resource) for resource in resources]
        return float(min(one.min(initial=0) for one in every)), float(max(one.max(initial=0) for one in every))

    def derived(self, key: Hashable, derive: Derive, rows: Rows) -> Int64:
        """int64[rows], read-only: what `derive` makes of the amounts on each row, kept under `key` and renewed where rows changed.

        Worth it for many rows. `derive` is asked about some or all rows, those without a node included.
        """
        return derive(self, rows)

    @property
    def pod_count(self) -> Int64:
        """int64[all rows]: pods on the row, assumed ones included."""
        ...

    @property
    def is_unschedulable(self) -> Bools:
        """bool[all rows]: spec.unschedulable."""
        ...

    @property
    def taint_set(self) -> Int32:
        """int32[all rows]: index into `taint_sets`; equal taints have equal indices."""
        ...

    @property
    def taint_sets(self) -> Sequence[tuple[Taint, ...]]:
        """The distinct taint tuples in use, by index. Grows only."""
        ...

    def label_codes(self, key: str) -> Int32:
        """int32[all rows]: code of the row's value of label `key`; 0 where it has no such label."""
        ...

    def label_values(self, key: str) -> Sequence[str]:
        """The values behind the codes of `label_codes(key)`; entry 0 stands for absence. Grows only."""
        ...

    def label_code(self, key: str, value: str) -> int:
        """The code of `value` in `label_codes(key)`; 0 if no row ever had it."""
        ...

    def port_users(self, protocol: str, port: int) -> Mapping[int, Mapping[str, int]]:
        """Row -> host ip ("" for all addresses) -> number of pods that hold this port there."""
        ...

    @property
    def pod_counts(self) -> PodCountsView:
        """How many pods on each row match a query, and what placed pods demand of others."""
        ...

    @property
    def volume_users(self) -> VolumeUsers:
        """Which rows hold pods that use a claim or an inline disk."""
        ...

    def image_users(self, name: str) -> Mapping[int, int]:
        """Row -> size in bytes, for the rows that have the image: for all of them the size that the first one reported."""
        ...

    @property
    def node_count(self) -> int:
        """Live nodes in the whole cluster, whatever their domain."""
        ...

    @property
    def nodes_version(self) -> int:
        """Raised at each change of any node object (not of pods): the version of a cluster-wide dependency."""
        ...

    def node(self, row: int) -> Node:
        """The node object in a row."""
        ...

    def row_of(self, name: str) -> int | None:
        """The row of a live node."""
        ...

    def pods_on(self, row: int) -> Sequence[Pod]:
        """Pods on the row, assumed ones included. Builds a list: not for loops over all rows."""
        ...

    def version(self, row: int) -> int:
        """The row's version counter, raised at each write to the row."""
        ...


def columns_at(matrix: M, rows: Rows) -> M:
    """The matrix's columns at these rows (ascending), read-only: a view where many rows have no gaps, else a copy."""
    count = len(rows)
    if count > VIEW_FROM and rows.item(-1) - rows.item(0) == count - 1:
        view = matrix[:, rows.item(0) : rows.item(-1) + 1]
        view.flags.writeable = False
        return cast(M, view)
    return cast(M, matrix.take(rows, axis=1))


def any_true(mask: Bools) -> bool:
    """`mask.any()` by a search in its bytes: a tenth of the time for a few rows, no more for many."""
    return b"\x01" in mask.tobytes()


def all_true(mask: Bools) -> bool:
    """`mask.all()`, as `any_true`."""
    return b"\x00" not in mask.tobytes()
