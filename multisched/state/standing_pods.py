"""The pods on every row, the most important first, as columns: what preemption looks at on thousands of rows at once.

Owns matrices [k, row]: priority, start, label set, and what the k-th pod of a row asks for. They are made when somebody
first asks and renewed for the rows written since; nothing is kept where nobody preempts. Rows with more than WIDTH_MAX pods
(virtual nodes) get matrices of their own each time. One per NodeTable; read by dry runs, synchronously.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import Bools, Int32, Int64, Rows, columns_at
from multisched.framework.preemption import NOBODY, LabelSet
from multisched.model.objects import Pod
from multisched.state.node_table import NodeTable

WIDTH_MAX = 128
"""Pods of one row in the shared matrices: 1 KB per row and column of amounts."""

WIDTH_STEP = 8
LABEL_SETS_MAX = 65_536
"""Distinct label sets that are numbered; beyond it everything is numbered anew."""

Float64 = NDArray[np.float64]
Order = tuple[Pod, ...]


class PodColumns:
    """`framework.preemption.StandingPods`, and the amounts behind it."""

    __slots__ = ("_order_at", "has_ports", "label_set", "label_sets", "priority", "requested", "rows", "started_s")

    def __init__(
        self,
        rows: Rows,
        columns: tuple[Int64, Float64, Int32, Bools],
        label_sets: Sequence[LabelSet],
        order_at: Callable[[int], Order],
        requested: Callable[[str], Int64],
    ) -> None:
        self.rows = rows
        self.priority, self.started_s, self.label_set, self.has_ports = columns
        self.label_sets = label_sets
        self._order_at = order_at
        self.requested = requested
        """int64[k, rows]: what each pod takes of a resource other than `pods`; of no meaning where no pod stands."""

    def pod(self, k: int, i: int) -> Pod:
        return self._order_at(i)[k]


class StandingTable:
    """The columns of one NodeTable."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._sequences: tuple[int, int] | None = None
        """Of the table's logs when the columns were last true; None: never."""
        self._orders: list[Order] = []
        self._counts: NDArray[np.intp] = np.zeros(0, np.intp)
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._label_sets: list[LabelSet] = []
        self._requested: dict[str, Int64] = {}
        self._make(0, 0)

    def blocks(self, rows: Rows) -> list[PodColumns]:
        """The pods on these rows (ascending), up to date: those of ordinary rows in one block, each wide row in its own."""
        self._renew()
        counts = self._counts[rows]
        if not len(rows):
            return []
        is_wide = counts > WIDTH_MAX
        narrow = rows[~is_wide] if is_wide.any() else rows
        blocks = [self._block(narrow, int(counts[~is_wide].max(initial=0)))] if len(narrow) else []
        return blocks + [self._wide(int(row)) for row in rows[is_wide]]

    def shape(self) -> tuple[int, int]:
        """Depth and rows of the matrices, up to date."""
        self._renew()
        depth, capacity = self._priority.shape
        return depth, capacity

    def is_wide(self, rows: Rows) -> Bools:
        """bool[rows]: rows that are looked at one by one, for the many pods on them."""
        self._renew()
        wide: Bools = self._counts[rows] > WIDTH_MAX
        return wide

    def requested(self, resource: str) -> Int64:
        """int64[k, rows of the table] of the ordinary rows."""
        column = self._requested.get(resource)
        if column is None:
            column = self._requested[resource] = np.zeros(self._priority.shape, np.int64)
            for row, order in enumerate(self._orders):
                if 0 < len(order) <= WIDTH_MAX:
                    column[: len(order), row] = [pod.requests.get(resource, 0) for pod in order]
        return column

    # -- inside ----------------------------------------------------------------------------------------------------

    def _block(self, rows: Rows, depth: int) -> PodColumns:
        columns = (
            columns_at(self._priority[:depth], rows),
            columns_at(self._started_s[:depth], rows),
            columns_at(self._label_set[:depth], rows),
            columns_at(self._has_ports[:depth], rows),
        )
        return PodColumns(
            rows,
            columns,
            self._label_sets,
            lambda i: self._orders[rows[i]],
            lambda resource: columns_at(self.requested(resource)[:depth], rows),
        )

    def _wide(self, row: int) -> PodColumns:
        order = self._orders[row]
        columns = (
            np.array([pod.spec.priority for pod in order], np.int64)[:, None],
            np.array([_started(pod) for pod in order], np.float64)[:, None],
            np.array([self._number(pod) for pod in order], np.int32)[:, None],
            np.array([bool(pod.spec.host_ports) for pod in order], np.bool_)[:, None],
        )
        return PodColumns(
            np.array([row], np.intp),
            columns,
            self._label_sets,
            lambda i: order,
            lambda resource: np.array([pod.requests.get(resource, 0) for pod in order], np.int64)[:, None],
        )

    def _renew(self) -> None:
        table, known = self._table, self._sequences
        if len(self._label_sets) > LABEL_SETS_MAX:
            self._numbers.clear()
            self._label_sets = []
            known = None
        now = table.row_log.sequence, table.start_log.sequence
        if now == known:
            return
        self._sequences = now
        changed = self._changed(known)
        self._fit(changed)
        for row in changed:
            self._write(row)

    def _changed(self, known: tuple[int, int] | None) -> list[int]:
        """Rows written, or on which pods have started, since the logs were there; all where that is not known."""
        if known is not None:
            rows, started = self._table.row_log.since(known[0]), self._table.start_log.since(known[1])
            if rows is not None and started is not None:
                changed: list[int] = np.union1d(rows, started).tolist()
                return changed
        return list(range(self._table.size))

    def _fit(self, changed: Sequence[int]) -> None:
        """Makes room for the rows and for the pods on them."""
        table = self._table
        self._orders.extend(() for _ in range(table.size - len(self._orders)))
        counts = [len(table.pods_by_uid(row)) for row in changed]
        width = max((count for count in counts if count <= WIDTH_MAX), default=0)
        depth, capacity = self._priority.shape
        if width > depth or table.capacity > capacity:
            steps = -(-width // WIDTH_STEP) * WIDTH_STEP
            self._make(min(max(steps, depth), WIDTH_MAX), max(table.capacity, capacity))

    def _make(self, depth: int, capacity: int) -> None:
        """Larger matrices, with what there was in the old ones."""
        shape = (depth, capacity)
        old = getattr(self, "_priority", None)
        priority, started = np.full(shape, NOBODY, np.int64), np.full(shape, np.inf)
        labels, ports = np.zeros(shape, np.int32), np.zeros(shape, np.bool_)
        if old is not None:
            k, n = old.shape
            priority[:k, :n], started[:k, :n] = old, self._started_s
            labels[:k, :n], ports[:k, :n] = self._label_set, self._has_ports
        self._priority: Int64 = priority
        self._started_s: Float64 = started
        self._label_set: Int32 = labels
        self._has_ports: Bools = ports
        counts = np.zeros(capacity, np.intp)
        counts[: len(self._counts)] = self._counts
        self._counts = counts
        for name, column in self._requested.items():
            self._requested[name] = np.zeros(shape, np.int64)
            self._requested[name][: column.shape[0], : column.shape[1]] = column

    def _write(self, row: int) -> None:
        order = tuple(sorted(self._table.pods_by_uid(row).values(), key=_importance))
        before, count = self._counts[row], len(order)
        self._orders[row] = order
        self._counts[row] = count
        if before <= WIDTH_MAX:
            self._priority[:before, row] = NOBODY
        if count > WIDTH_MAX or not count:
            return
        self._priority[:count, row] = [pod.spec.priority for pod in order]
        self._started_s[:count, row] = [_started(pod) for pod in order]
        self._label_set[:count, row] = [self._number(pod) for pod in order]
        self._has_ports[:count, row] = [bool(pod.spec.host_ports) for pod in order]
        for resource, column in self._requested.items():
            column[:count, row] = [pod.requests.get(resource, 0) for pod in order]

    def _number(self, pod: Pod) -> int:
        """Labels and specs are interned, so that their identity tells them apart; they are kept, so that it stays theirs."""
        spec = pod.spec
        key = (pod.namespace, id(pod.labels), id(spec) if spec.volumes or spec.pod_affinity else 0)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._label_sets)
            self._label_sets.append(LabelSet(pod.namespace, pod.labels, pod))
        return number


def _started(pod: Pod) -> float:
    """A pod that has not started counts as starting now: later than all that have."""
    return pod.started_s or np.inf


def _importance(pod: Pod) -> tuple[int, float]:
    """Source: kube-scheduler 1.36, util.MoreImportantPod."""
    return -pod.spec.priority, pod.started_s or np.inf
