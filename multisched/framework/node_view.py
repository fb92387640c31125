"""NodeView: the nodes as plugins read them, in columns over rows. The node table and overlays on it implement it.

A *column* is an array over all rows of the table, indexed by row; every returned array is read-only. Rows of deleted nodes stay in the
columns until they are reused; the rows passed to a plugin always have a node.
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
"""Shared; never written to."""

PASSES = np.array(0, np.uint8)
"""The code of a row that passes, as an array: converting a Python number takes numpy as long as the whole operation."""

VIEW_FROM = 256
"""Number of rows from which checking for a contiguous range is worth it."""


class Amount(Enum):
    """Which columns `NodeView.amounts` reads."""

    ALLOCATABLE = "allocatable"
    REQUESTED = "requested"
    SCORING = "scoring"


Derive = Callable[["NodeView", Rows], Int64]
"""Returns int64[rows], computed from what is on each row and nothing else."""


class NodeView(Protocol):
    """Read access to the node table. Amounts are int64: milli-CPU, bytes, counts.

    Methods with a body are default implementations for views without a faster one.
    """

    def allocatable(self, resource: str) -> Int64:
        """Returns int64[all rows]; zeros for a resource that no node has."""
        ...

    def requested(self, resource: str) -> Int64:
        """Returns int64[all rows]: requests of the pods on the row, including assumed ones; for the resource `pods` their number."""
        ...

    def scoring_requested(self, resource: str) -> Int64:
        """Returns int64[all rows]: like `requested`, but containers without cpu or memory requests count with defaults."""
        ...

    def amounts(self, kind: Amount, resources: tuple[str, ...], rows: Rows) -> Int64:
        """Returns int64[len(resources), len(rows)], read-only: several columns at once, only at these rows.

        Most calls of a plugin are for few rows; then the number of calls determines the cost.
        """
        read = {Amount.ALLOCATABLE: self.allocatable, Amount.REQUESTED: self.requested}.get(
            kind, self.scoring_requested
        )
        found = np.empty((len(resources), len(rows)), np.int64)
        for index, resource in enumerate(resources):
            found[index] = read(resource)[rows]
        return found

    def capacities(self, resources: tuple[str, ...], rows: Rows) -> Float64:
        """Returns float64[resources, rows], read-only: allocatable amounts, used as divisors."""
        return self.amounts(Amount.ALLOCATABLE, resources, rows).astype(np.float64)

    def capacity_range(self, resources: tuple[str, ...]) -> tuple[float, float]:
        """Returns the smallest and the largest of these allocatable amounts on any row, including rows without a node (0).

        A quick check that every row has all the resources, or that none has too much of one.
        """
        every = [self.allocatable(resource) for resource in resources]
        return float(min(one.min(initial=0) for one in every)), float(max(one.max(initial=0) for one in every))

    def derived(self, key: Hashable, derive: Derive, rows: Rows) -> Int64:
        """Returns int64[rows], read-only: `derive` of each row, cached under `key` and recomputed for changed rows.

        Useful for many rows. `derive` is called with some or all rows, including rows without a node.
        """
        return derive(self, rows)

    @property
    def pod_count(self) -> Int64:
        """int64[all rows]: pods on the row, including assumed ones."""
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
        """The distinct taint tuples in use, by index. Only grows."""
        ...

    def label_codes(self, key: str) -> Int32:
        """Returns int32[all rows]: code of the row's value of label `key`; 0 if the row has no such label."""
        ...

    def label_values(self, key: str) -> Sequence[str]:
        """Returns the values of the codes of `label_codes(key)`; entry 0 means that the label is absent. Only grows."""
        ...

    def label_code(self, key: str, value: str) -> int:
        """Returns the code of `value` in `label_codes(key)`; 0 if no row ever had it."""
        ...

    def port_users(self, protocol: str, port: int) -> Mapping[int, Mapping[str, int]]:
        """Returns row -> host IP ("" for all addresses) -> number of pods that use this port there."""
        ...

    @property
    def pod_counts(self) -> PodCountsView:
        """How many pods on each row match a query, and what placed pods' affinity demands of others."""
        ...

    @property
    def volume_users(self) -> VolumeUsers:
        """Which rows hold pods that use a claim or an inline disk."""
        ...

    def image_users(self, name: str) -> Mapping[int, int]:
        """Returns row -> size in bytes, for the rows that have the image; on every row, the size that was reported first."""
        ...

    @property
    def node_count(self) -> int:
        """Nodes in the whole cluster, in any domain."""
        ...

    @property
    def nodes_version(self) -> int:
        """Raised at each change of any node object (not of pods): the version for plugins that depend on all nodes."""
        ...

    def node(self, row: int) -> Node:
        """Returns the node object in a row."""
        ...

    def row_of(self, name: str) -> int | None:
        """Returns the row of a node; None if there is no such node."""
        ...

    def pods_on(self, row: int) -> Sequence[Pod]:
        """Returns the pods on the row, including assumed ones. Builds a list: not for loops over all rows."""
        ...

    def version(self, row: int) -> int:
        """Returns the row's version counter, raised at each write to the row."""
        ...


def columns_at(matrix: M, rows: Rows) -> M:
    """Returns the matrix's columns at these rows (ascending), read-only: a view if many rows are contiguous, else a copy."""
    count = len(rows)
    if count > VIEW_FROM and rows.item(-1) - rows.item(0) == count - 1:
        view = matrix[:, rows.item(0) : rows.item(-1) + 1]
        view.flags.writeable = False
        return cast(M, view)
    return cast(M, matrix.take(rows, axis=1))


def any_true(mask: Bools) -> bool:
    """Returns `mask.any()` by a search in its bytes: a tenth of the time for a few rows, no slower for many."""
    return 1 in mask.tobytes()


def all_true(mask: Bools) -> bool:
    """Returns `mask.all()`, like `any_true`."""
    return 0 not in mask.tobytes()
