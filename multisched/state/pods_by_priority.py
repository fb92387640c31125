"""PodsByPriority: the pods on every row in columns, most important first, for preemption on thousands of rows at once.

Owns matrices [k, row] with priority, start, label set and requests of the k-th pod of a row. They are filled lazily: a row is written at
the first read after it changed, and its label sets and requests only when these are read. So they need no memory without preemptions,
and little if no pod can be displaced. The first read of a whole cluster is done in parts, and the reader may pause between two parts.
Rows with more than WIDTH_MAX pods (virtual nodes) get new matrices of their own at each read. There is one instance per NodeTable. Dry
runs read it, synchronously.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import Bools, Int32, Int64, Rows, all_true, columns_at
from multisched.framework.preemption import ABOVE_EVERY_PRIORITY, LabelSet
from multisched.model.objects import Pod
from multisched.state.node_table import NodeTable

WIDTH_MAX = 128
"""Maximum number of pods of a row in the shared matrices, which then need 1 KB per row and matrix."""

WIDTH_STEP = 8
PODS_AT_ONCE = 4_096
"""Number of pods in one part, which takes 1 to 8 ms."""
LABEL_SETS_MAX = 65_536
"""Maximum number of numbered label sets, or twice the number of placed pods if that is more. Beyond it, all are renumbered."""

Float64 = NDArray[np.float64]
Order = tuple[Pod, ...]
Numbered = tuple[Int32, Sequence[LabelSet]]
"""The number of each pod's label set, and the label sets by number."""
A = TypeVar("A", bound=NDArray[Any])
Pause = Callable[[], None]
"""Called between two parts. It may raise an exception, which ends the read; parts written before are kept."""


def no_pause() -> None:
    """The `Pause` for a reader that must not pause."""


class PodColumns:
    """Implements `framework.preemption.PlacedPods`, and adds the requests of the pods."""

    __slots__ = ("_label_sets", "_number", "has_ports", "order", "pause", "priority", "requested", "rows", "started_s")

    def __init__(
        self,
        rows: Rows,
        columns: tuple[Int64, Float64, Bools],
        number: Callable[[], Numbered],
        order: Callable[[int], Order],
        requested: Callable[[str], Int64],
        pause: Pause = no_pause,
    ) -> None:
        self.rows = rows
        self.pause = pause
        self.priority, self.started_s, self.has_ports = columns
        self._number = number
        self._label_sets: Numbered | None = None
        self.order = order
        """Returns the pods at a position in `rows`, most important first. It is the same object until the row changes."""
        self.requested = requested
        """Returns int64[k, rows]: the request of each pod for a resource, which must not be `pods`; undefined for empty entries."""

    @property
    def label_set(self) -> Int32:
        return self._numbered()[0]

    @property
    def label_sets(self) -> Sequence[LabelSet]:
        return self._numbered()[1]

    def pod(self, k: int, i: int) -> Pod:
        return self.order(i)[k]

    def _numbered(self) -> Numbered:
        if self._label_sets is None:
            self._label_sets = self._number()
        return self._label_sets


class _LazyColumn:
    """A matrix [k, row] whose rows are filled when they are first read."""

    __slots__ = ("is_stale", "read", "values")

    def __init__(self, values: NDArray[Any], read: Callable[[Sequence[Pod]], NDArray[Any]]) -> None:
        """`read`: returns the values of some pods."""
        self.values = values
        self.read = read
        self.is_stale: Bools = np.ones(values.shape[1], np.bool_)

    def enlarge(self, shape: tuple[int, int]) -> None:
        self.values = _enlarged(self.values, shape, 0)
        self.is_stale = _enlarged(self.is_stale, shape[1:], True)


class PodsByPriority:
    """The columns of one NodeTable."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._sequences: tuple[int, int] | None = None
        """Positions in the table's logs up to which changed rows are marked in `_is_stale`; None before the first read."""
        self._is_stale: Bools = np.zeros(0, np.bool_)
        """bool[rows]: the row changed since it was written."""
        self._counts: NDArray[np.intp] = np.zeros(0, np.intp)
        self._lowest: Int64 = np.zeros(0, np.int64)
        self._is_lowest_known: Bools = np.zeros(0, np.bool_)
        self._orders: list[Order] = []
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._label_sets: list[LabelSet] = []
        self._label_set = _LazyColumn(np.zeros((0, 0), np.int32), self._number)
        self._requested: dict[str, _LazyColumn] = {}
        self._priority: Int64 = np.zeros((0, 0), np.int64)
        self._started_s: Float64 = np.zeros((0, 0))
        self._has_ports: Bools = np.zeros((0, 0), np.bool_)

    def blocks(self, rows: Rows, pause: Pause = no_pause, resources: Iterable[str] = ()) -> list[PodColumns]:
        """Returns the current pods on these rows: one block for all ordinary rows, and one for each wide row. `rows`: ascending.

        `resources`: resources whose requests will be read later. They are filled now, so that the later reads need no pause.
        """
        self._renew()
        if not len(rows):
            return []
        for part in self._parts(rows[self._is_stale[rows]], pause):
            self._write(part)
        counts = self._counts[rows]
        is_wide = counts > WIDTH_MAX
        narrow = rows[~is_wide] if is_wide.any() else rows
        for resource in resources:
            self.requested(resource, narrow, pause)
        blocks = [self._block(narrow, int(counts[~is_wide].max()), pause)] if len(narrow) else []
        return blocks + [self._wide(int(row), pause) for row in rows[is_wide]]

    def order(self, row: int) -> Order:
        """Returns the current pods on the row, most important first."""
        self._renew()
        if self._is_stale[row]:
            self._write(np.array([row], np.intp))
        return self._orders[row]

    def column_of(self, pods: Iterable[Pod]) -> PodColumns:
        """Returns these pods as the column of one row (-1), which is not in the table. The pods may be on different rows."""
        order = sorted(pods, key=lambda pod: (-pod.spec.priority, _started(pod)))
        return self._one_column(np.array([-1], np.intp), tuple(order))

    def shape(self) -> tuple[int, int]:
        """Returns the shape of the current matrices: depth and number of rows."""
        self._renew()
        depth, capacity = self._priority.shape
        return depth, capacity

    def is_wide(self, rows: Rows) -> Bools:
        """Returns bool[rows]: whether the row has too many pods for the shared matrices."""
        self._renew()
        wide: Bools = self._counts[rows] > WIDTH_MAX
        return wide

    def lowest(self, rows: Rows, pause: Pause = no_pause) -> Int64:
        """Returns int64[rows]: the lowest priority of a pod there; ABOVE_EVERY_PRIORITY for an empty row."""
        self._renew()
        is_known = self._is_lowest_known.take(rows)
        for part in self._parts(rows[~is_known], pause) if not all_true(is_known) else ():
            on_rows = map(self._table.pods_by_uid, part.tolist())
            self._lowest[part] = [
                min([pod.spec.priority for pod in pods.values()], default=ABOVE_EVERY_PRIORITY) for pods in on_rows
            ]
            self._is_lowest_known[part] = True
        return self._lowest.take(rows)

    def requested(self, resource: str, rows: Rows, pause: Pause = no_pause) -> Int64:
        """Returns int64[k, rows of the table], valid for these rows only. They must be ordinary rows that were already read."""
        column = self._requested.get(resource)
        if column is None:
            column = _LazyColumn(np.zeros(self._priority.shape, np.int64), lambda pods: _amounts(pods, resource))
            self._requested[resource] = column
        self._fill(column, rows, pause)
        return column.values

    # -- internal --------------------------------------------------------------------------------------------------

    def _parts(self, rows: Rows, pause: Pause) -> Iterator[Rows]:
        """Yields the rows in parts of about `PODS_AT_ONCE` pods; may pause before each of them."""
        if not len(rows):
            return
        part_of = self._counts.take(rows).cumsum() // PODS_AT_ONCE
        if not part_of.item(-1):
            pause()
            yield rows
            return
        for part in np.split(rows, np.flatnonzero(np.diff(part_of)) + 1):
            pause()
            yield part

    def _block(self, rows: Rows, depth: int, pause: Pause) -> PodColumns:
        columns = (
            columns_at(self._priority[:depth], rows),
            columns_at(self._started_s[:depth], rows),
            columns_at(self._has_ports[:depth], rows),
        )
        return PodColumns(
            rows,
            columns,
            lambda: (columns_at(self._numbered(rows, pause)[:depth], rows), self._label_sets),
            lambda i: self._orders[rows[i]],
            lambda resource: columns_at(self.requested(resource, rows, pause)[:depth], rows),
            pause,
        )

    def _wide(self, row: int, pause: Pause) -> PodColumns:
        return self._one_column(np.array([row], np.intp), self._orders[row], pause)

    def _one_column(self, rows: Rows, order: Order, pause: Pause = no_pause) -> PodColumns:
        columns = (
            np.array([pod.spec.priority for pod in order], np.int64)[:, None],
            np.array([_started(pod) for pod in order], np.float64)[:, None],
            np.array([bool(pod.spec.host_ports) for pod in order], np.bool_)[:, None],
        )

        def number() -> Numbered:
            self._limit_label_sets()
            return self._number(order)[:, None], self._label_sets

        return PodColumns(
            rows, columns, number, lambda i: order, lambda resource: _amounts(order, resource)[:, None], pause
        )

    def _renew(self) -> None:
        """Marks rows that have changed as stale, and updates their pod counts."""
        table, known = self._table, self._sequences
        now = table.row_log.sequence, table.start_log.sequence
        if now == known:
            return
        self._sequences = now
        changed = self._changed(known)
        counts = np.fromiter((len(table.pods_by_uid(row)) for row in changed.tolist()), np.intp, len(changed))
        self._fit(int(counts.max(where=counts <= WIDTH_MAX, initial=0)))
        self._counts[changed] = counts
        self._is_lowest_known[changed] = False
        self._is_stale[changed] = True

    def _changed(self, known: tuple[int, int] | None) -> Rows:
        """Returns the rows that were written or had pods started since `known`; all rows if that is too long ago."""
        if known is not None:
            rows, started = self._table.row_log.since(known[0]), self._table.start_log.since(known[1])
            if rows is not None and started is not None:
                return np.union1d(rows, started) if len(started) else rows
        return np.arange(self._table.size)

    def _fit(self, width: int) -> None:
        """Enlarges the matrices for the table's rows and for `width` pods on them."""
        self._orders.extend(() for _ in range(self._table.size - len(self._orders)))
        depth, capacity = self._priority.shape
        if width <= depth and self._table.capacity <= capacity:
            return
        steps = -(-width // WIDTH_STEP) * WIDTH_STEP
        shape = min(max(steps, depth), WIDTH_MAX), max(self._table.capacity, capacity)
        self._priority = _enlarged(self._priority, shape, ABOVE_EVERY_PRIORITY)
        self._started_s = _enlarged(self._started_s, shape, np.inf)
        self._has_ports = _enlarged(self._has_ports, shape, False)
        for column in (self._label_set, *self._requested.values()):
            column.enlarge(shape)
        self._counts = _enlarged(self._counts, shape[1:], 0)
        self._lowest = _enlarged(self._lowest, shape[1:], ABOVE_EVERY_PRIORITY)
        self._is_lowest_known = _enlarged(self._is_lowest_known, shape[1:], False)
        self._is_stale = _enlarged(self._is_stale, shape[1:], False)

    def _write(self, rows: Rows) -> None:
        """Writes these rows, all at once. Label sets and amounts are written when they are read."""
        pods = list(chain.from_iterable(self._table.pods_by_uid(row).values() for row in rows.tolist()))
        counts = self._counts[rows]
        priority = np.fromiter([pod.spec.priority for pod in pods], np.int64, len(pods))
        started = np.fromiter(map(_started, pods), np.float64, len(pods))
        # The most important first. Source: kube-scheduler 1.36, util.MoreImportantPod.
        order = np.lexsort((started, -priority, np.repeat(np.arange(len(rows)), counts)))
        pods = [pods[i] for i in order.tolist()]
        ends = counts.cumsum().tolist()
        for row, start, end in zip(rows.tolist(), [0, *ends], ends, strict=False):
            self._orders[row] = tuple(pods[start:end])
        self._is_stale[rows] = False
        self._priority[:, rows] = ABOVE_EVERY_PRIORITY
        is_narrow = np.repeat(counts <= WIDTH_MAX, counts)
        if not is_narrow.all():
            order, pods = order[is_narrow], [pod for pod, one in zip(pods, is_narrow.tolist(), strict=True) if one]
        at = _places(rows[counts <= WIDTH_MAX], counts[counts <= WIDTH_MAX])
        self._priority[at], self._started_s[at] = priority[order], started[order]
        self._has_ports[at] = [bool(pod.spec.host_ports) for pod in pods]
        for column in (self._label_set, *self._requested.values()):
            column.is_stale[rows] = True

    def _fill(self, column: _LazyColumn, rows: Rows, pause: Pause) -> None:
        """Writes the column's rows that are stale, of these ordinary rows."""
        for part in self._parts(rows[column.is_stale[rows]], pause):
            pods = list(chain.from_iterable(self._orders[row] for row in part.tolist()))
            column.values[_places(part, self._counts[part])] = column.read(pods)
            column.is_stale[part] = False

    # -- label sets ------------------------------------------------------------------------------------------------

    def _numbered(self, rows: Rows, pause: Pause) -> Int32:
        """Returns int32[k, rows of the table], valid for these rows. Labels are rarely needed, and a Job's pods share none."""
        self._limit_label_sets()
        self._fill(self._label_set, rows, pause)
        return self._label_set.values

    def _limit_label_sets(self) -> None:
        if len(self._label_sets) > max(LABEL_SETS_MAX, 2 * int(self._counts.sum())):
            self._numbers.clear()
            self._label_sets = []
            self._label_set.is_stale[:] = True

    def _number(self, pods: Sequence[Pod]) -> Int32:
        """Returns the label set number of each pod. Interned labels and specs are compared by identity; the list keeps them alive."""
        found = []
        for pod in pods:
            spec = pod.spec
            key = (pod.namespace, id(pod.labels), id(spec) if spec.volumes or spec.pod_affinity else 0)
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self._label_sets)
                self._label_sets.append(LabelSet(pod.namespace, pod.labels, pod))
            found.append(number)
        return np.array(found, np.int32)


class JoinedColumns:
    """Some pods of several blocks in one column, most important first. The column's row (-1) is not in the table."""

    def __init__(self, blocks: Sequence[PodColumns], masks: Sequence[Bools]) -> None:
        """`masks`: for each block bool[k, rows], which of its pods are included. At least one block."""
        self._masks = masks
        self._order: Rows | slice = slice(None)
        started = self.column([some.started_s for some in blocks])
        self._order = np.lexsort((started, -self.column([some.priority for some in blocks])))

        @cache
        def order(i: int) -> Order:
            orders = [(some, np.nonzero(mask)) for some, mask in zip(blocks, masks, strict=True)]
            pods = [some.pod(k, i) for some, (ks, at) in orders for k, i in zip(ks.tolist(), at.tolist(), strict=True)]
            return tuple(pods[j] for j in np.arange(len(pods))[self._order].tolist())

        def requested(resource: str) -> Int64:
            return self.column([some.requested(resource) for some in blocks])[:, None]

        def number() -> Numbered:
            return self.column([some.label_set for some in blocks])[:, None], blocks[0].label_sets

        columns = (
            self.column([some.priority for some in blocks])[:, None],
            self.column([some.started_s for some in blocks])[:, None],
            self.column([some.has_ports for some in blocks])[:, None],
        )
        self.pods = PodColumns(np.array([-1], np.intp), columns, number, order, requested)

    def column(self, of_blocks: Sequence[A]) -> A:
        """Returns the included values of the blocks' arrays ([k, rows] each), in the column's order."""
        parts = [some[mask] for some, mask in zip(of_blocks, self._masks, strict=True)]
        return cast(A, np.concatenate(parts)[self._order])


def _started(pod: Pod) -> float:
    """Returns the pod's start; a pod that has not started sorts after all that have."""
    return pod.started_s or np.inf


def _amounts(pods: Sequence[Pod], resource: str) -> Int64:
    amounts = [(pod.spec.requests if pod.held is None else pod.held).get(resource, 0) for pod in pods]  # `Pod.requests`
    return np.fromiter(amounts, np.int64, len(pods))


def _places(rows: Rows, counts: NDArray[np.intp]) -> tuple[Rows, Rows]:
    """Returns (k, row) of each pod, given the number of pods on each row."""
    starts = np.repeat(counts.cumsum() - counts, counts)
    return np.arange(len(starts)) - starts, np.repeat(rows, counts)


def _enlarged(array: A, shape: tuple[int, ...], fill: float) -> A:
    """Returns a larger array that starts with this one."""
    larger = np.full(shape, fill, array.dtype)
    larger[tuple(slice(length) for length in array.shape)] = array
    return cast(A, larger)
