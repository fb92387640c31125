"""NodeTable: a struct of arrays, one row per node; the truth about what is on every node.

Promises: int64 columns throughout (float never decides a fit); one version counter per row, raised at each write; rows
of deleted nodes are reused, columns grow by doubling. Only `ClusterCache` writes; plugins read it as a `NodeView`.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import (
    VIEW_FROM,
    Amount,
    Bools,
    Derive,
    Float64,
    Int32,
    Int64,
    NodeView,
    Rows,
    columns_at,
)
from multisched.framework.pod_counts import PodCounts
from multisched.framework.volume_users import VolumeUsers
from multisched.model.objects import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, Node, Pod, differ_in_version_only
from multisched.model.selectors import Taint
from multisched.state.change_log import ChangeLog

ROWS_INITIAL = 64
LABEL_COLUMNS_MAX = 512
"""Label keys with a column; beyond it the column unused for longest goes (it is rebuilt when asked for again)."""

RESOURCES_MAX = 256
"""Distinct resource names with a column: those that nodes have. A node's further ones are not schedulable."""

SCORED = (CPU, MEMORY)
NOTHING, PODS_INDEX = 0, 1
NATIVE_END = 5
"""The rows before are what nearly every call asks for: see `NodeTable._resources`."""
SCORING = slice(NATIVE_END, NATIVE_END + len(SCORED))
"""Rows of `NodeTable._requested` with what scores count of SCORED; such rows of the other matrices stay zero."""

DERIVED_MAX = 16
"""Derived columns that are kept; 8 bytes a row each."""

BLOCKS_MAX = 1_024
"""Combinations of resources whose place is remembered."""

A = TypeVar("A", bound=NDArray[Any])
_NO_USERS: Mapping[int, Mapping[str, int]] = {}
_NO_SIZES: Mapping[int, int] = {}
_NO_COLUMN: Int64 = np.zeros(0, np.int64)


class LabelColumn:
    """Codes of one label key over all rows; code 0 is absence."""

    __slots__ = ("_index", "codes", "values")

    def __init__(self, capacity: int) -> None:
        self.codes = np.zeros(capacity, np.int32)
        self.values: list[str] = [""]
        self._index: dict[str, int] = {}

    def set(self, row: int, value: str | None) -> None:
        if value is None:
            self.codes[row] = 0
            return
        code = self._index.get(value)
        if code is None:
            code = self._index[value] = len(self.values)
            self.values.append(value)
        self.codes[row] = code

    def code(self, value: str) -> int:
        return self._index.get(value, 0)

    def grow(self, capacity: int) -> None:
        self.codes = grown(self.codes, capacity)


class _FewRows:
    """Amounts of a few rows as they were at one moment (`row_log`): views to be cut by a block of native resources."""

    __slots__ = ("allocatable", "at", "capacities", "requested", "rows")

    def __init__(self, rows: Rows | None, at: int, allocatable: Int64, requested: Int64) -> None:
        self.rows = rows
        self.at = at
        if rows is None:
            rows = np.zeros(0, np.intp)
        self.allocatable: Int64 = allocatable[:NATIVE_END].take(rows, axis=1)
        self.requested: Int64 = requested[: SCORING.stop].take(rows, axis=1)
        self.capacities: Float64 = self.allocatable.astype(np.float64)
        for array in (self.allocatable, self.requested, self.capacities):
            array.flags.writeable = False


class NodeTable:
    """Columns by resource, label and taint set; pods, ports and images by row."""

    def __init__(self) -> None:
        self._capacity = ROWS_INITIAL
        self.size = 0
        """Rows ever used; live rows are below it."""
        self._free: list[int] = []
        self._nodes: list[Node | None] = []
        self._row_of: dict[str, int] = {}
        self._pods: list[dict[str, Pod]] = []
        # What nearly every call asks for stands side by side, so that one slice takes it; row NOTHING stays zero.
        self._resources: dict[str, int] = {PODS: 1, CPU: 2, MEMORY: 3, EPHEMERAL_STORAGE: 4}
        self._blocks: dict[tuple[str, ...], slice | Rows] = {}
        self._allocatable = np.zeros((8, ROWS_INITIAL), np.int64)
        self._capacities = np.zeros((8, ROWS_INITIAL))
        """`_allocatable` again: quotients are taken in float64, and converting costs as much as dividing."""
        self._requested = np.zeros((8, ROWS_INITIAL), np.int64)
        self._unschedulable = np.zeros(ROWS_INITIAL, np.bool_)
        self._taint_set = np.zeros(ROWS_INITIAL, np.int32)
        self._versions: list[int] = []
        self._taint_sets: list[tuple[Taint, ...]] = [()]
        self._taint_index: dict[tuple[Taint, ...], int] = {(): 0}
        self._labels: dict[str, LabelColumn] = {}
        self._label_nodes: Counter[str] = Counter()
        """Label key -> nodes that have it. Keys that only pods name get no column: their authors are not trusted."""
        self._unlabelled = LabelColumn(ROWS_INITIAL)
        """The column of every label that no node has."""
        self._ports: dict[tuple[str, int], dict[int, dict[str, int]]] = {}
        self._volume_users = VolumeUsers()
        self._pod_counts = PodCounts(self._label_nodes.__contains__)
        self._images: dict[str, dict[int, int]] = {}
        self._few = _FewRows(None, 0, self._allocatable, self._requested)
        """Those that were asked about last: three plugins ask about the same ones."""
        self._derived: dict[Hashable, tuple[int, Int64]] = {}
        """What plugins made of each row, and up to which change it holds."""
        self._ranges: dict[tuple[str, ...], tuple[int, float, float]] = {}
        """Resources -> when they were looked at (`nodes_version`), and their smallest and largest capacity."""
        self._absent: Int64 = frozen(np.zeros(ROWS_INITIAL, np.int64))
        self._views: dict[tuple[str, str], Int64] = {}
        self.node_log = ChangeLog()
        """Rows whose node object changed."""
        self.row_log = ChangeLog()
        """Rows whose node object or pods changed."""
        self.start_log = ChangeLog()
        """Rows on which a pod has started since it came."""
        self.nodes_version = 0

    # -- what plugins read (NodeView) ------------------------------------------------------------------------------

    def allocatable(self, resource: str) -> Int64:
        return self._column("allocatable", self._allocatable, resource)

    def requested(self, resource: str) -> Int64:
        return self._column("requested", self._requested, resource)

    def scoring_requested(self, resource: str) -> Int64:
        if resource in SCORED:
            key = ("scoring", resource)
            if key not in self._views:
                self._views[key] = frozen(self._requested[SCORING][SCORED.index(resource)])
            return self._views[key]
        return self.requested(resource)

    def amounts(self, kind: Amount, resources: tuple[str, ...], rows: Rows) -> Int64:
        if kind is not Amount.SCORING:
            block = self._blocks.get(resources)
            if block is None:
                block = self._block(resources)
        elif resources == SCORED:
            block = SCORING
        else:
            return NodeView.amounts(self, kind, resources, rows)
        array = self._allocatable if kind is Amount.ALLOCATABLE else self._requested
        if not isinstance(block, slice):
            found: Int64 = array[block, rows]
            return found
        if block.stop <= SCORING.stop and len(rows) <= VIEW_FROM:
            few = self._few_rows(rows)
            return (few.allocatable if kind is Amount.ALLOCATABLE else few.requested)[block]
        return columns_at(array[block], rows)

    def capacities(self, resources: tuple[str, ...], rows: Rows) -> Float64:
        block = self._blocks.get(resources)
        if block is None:
            block = self._block(resources)
        if not isinstance(block, slice):
            found: Float64 = self._capacities[block, rows]
            return found
        if block.stop <= NATIVE_END and len(rows) <= VIEW_FROM:
            return self._few_rows(rows).capacities[block]
        return columns_at(self._capacities[block], rows)

    def capacity_range(self, resources: tuple[str, ...]) -> tuple[float, float]:
        known = self._ranges.get(resources)
        if known is None or known[0] != self.nodes_version:
            every = self.capacities(resources, np.arange(self.size))
            ends = (float(every.min()), float(every.max())) if every.size else (0.0, 0.0)
            if len(self._ranges) >= BLOCKS_MAX:
                self._ranges.clear()
            known = self._ranges[resources] = (self.nodes_version, *ends)
        return known[1], known[2]

    def derived(self, key: Hashable, derive: Derive, rows: Rows) -> Int64:
        at, column = self._derived.get(key, (0, _NO_COLUMN))
        changed = self.row_log.since(at) if len(column) == self.size else None
        if changed is None:
            if len(self._derived) >= DERIVED_MAX:
                self._derived.clear()
            column = derive(self, np.arange(self.size))
        elif len(changed):
            column[changed] = derive(self, changed)
        self._derived[key] = (self.row_log.sequence, column)
        return cast(Int64, columns_at(column[None], rows)[0])

    @property
    def pod_count(self) -> Int64:
        return self.requested(PODS)

    @property
    def is_unschedulable(self) -> Bools:
        return frozen(self._unschedulable)

    @property
    def taint_set(self) -> Int32:
        return frozen(self._taint_set)

    @property
    def taint_sets(self) -> Sequence[tuple[Taint, ...]]:
        return self._taint_sets

    def label_codes(self, key: str) -> Int32:
        return frozen(self._label(key).codes)

    def label_values(self, key: str) -> Sequence[str]:
        return self._label(key).values

    def label_code(self, key: str, value: str) -> int:
        return self._label(key).code(value)

    def port_users(self, protocol: str, port: int) -> Mapping[int, Mapping[str, int]]:
        return self._ports.get((protocol, port), _NO_USERS)

    @property
    def pod_counts(self) -> PodCounts:
        return self._pod_counts

    @property
    def volume_users(self) -> VolumeUsers:
        return self._volume_users

    def image_users(self, name: str) -> Mapping[int, int]:
        return self._images.get(name, _NO_SIZES)

    @property
    def node_count(self) -> int:
        return len(self._row_of)

    def node(self, row: int) -> Node:
        node = self._nodes[row]
        if node is None:
            raise KeyError(f"row {row} has no node")
        return node

    def row_of(self, name: str) -> int | None:
        return self._row_of.get(name)

    def pods_on(self, row: int) -> Sequence[Pod]:
        return list(self._pods[row].values())

    def version(self, row: int) -> int:
        return self._versions[row]

    # -- what the cache writes -------------------------------------------------------------------------------------

    def set_node(self, node: Node) -> int:
        """Puts a node into its row, a new one if needed; pods on it stay. Returns the row.

        A heartbeat changes nothing that anybody reads: it raises no version, and no answer is computed again for it.
        """
        row = self._row_of.get(node.name)
        if row is None:
            row = self._take_row()
            self._row_of[node.name] = row
            before = None
            self._volume_users.note_row(row)
        else:
            before = self._nodes[row]
            if before is not None and differ_in_version_only(before, node):
                self._nodes[row] = node
                return row
        self._nodes[row] = node
        self._write_node(row, before, node)
        return row

    def remove_node(self, name: str) -> int:
        """Empties and frees the node's row; the caller has moved its pods away. Returns the row."""
        row = self._row_of.pop(name)
        if self._pods[row]:
            raise AssertionError(f"row {row} of node {name} is freed while {len(self._pods[row])} pods stand on it")
        self._write_images(row, self._nodes[row], None)
        self._count_labels(self._nodes[row], None)
        self._nodes[row] = None
        self._allocatable[:, row] = 0
        self._capacities[:, row] = 0
        self._taint_set[row] = 0
        self._unschedulable[row] = False
        for column in self._labels.values():
            column.set(row, None)
        heapq.heappush(self._free, row)
        self._volume_users.note_row(row)
        self.nodes_version += 1
        self.node_log.note(row)
        self._touch(row)
        return row

    def add_pod(self, row: int, pod: Pod) -> None:
        """Accounts a pod on a row, whether it fits or not: what is there is there."""
        if pod.uid in self._pods[row]:
            raise AssertionError(f"pod {pod.key} ({pod.uid}) is on row {row} already")
        self._pods[row][pod.uid] = pod
        self._account(row, pod, 1)

    def remove_pod(self, row: int, uid: str) -> Pod:
        """Takes a pod off a row; returns what was accounted for it."""
        pod = self._pods[row].pop(uid)
        self._account(row, pod, -1)
        return pod

    def replace_pod(self, row: int, pod: Pod) -> None:
        """A newer object of a pod on the row that takes just what the old one took (labels or phase may differ)."""
        before = self._pods[row][pod.uid]
        self._pods[row][pod.uid] = pod
        self._pod_counts.replace(row, before, pod)
        is_read_alike = before.labels is pod.labels and before.annotations is pod.annotations
        if not is_read_alike or before.is_deleting != pod.is_deleting:
            self._touch(row)
        elif before.started_s != pod.started_s:
            self.start_log.note(row)  # apart: masks and scores need not be renewed for it

    def recount(self, row: int, pods: dict[str, Pod]) -> None:
        """Writes the row anew from its node and these pods: the audit found that its columns are not their sum."""
        self._pods[row] = {}
        self._requested[:, row] = 0
        self._volume_users.forget_row(row)
        self._pod_counts.forget_row(row)
        for key in [key for key, users in self._ports.items() if row in users]:
            del self._ports[key][row]
            if not self._ports[key]:
                del self._ports[key]
        for pod in pods.values():
            self.add_pod(row, pod)
        node = self.node(row)
        self._write_node(row, node, node)

    # -- introspection ---------------------------------------------------------------------------------------------

    def live_rows(self) -> Iterable[tuple[int, Node]]:
        """Rows with a node, ascending."""
        return ((row, node) for row, node in enumerate(self._nodes) if node is not None)

    def pods_by_uid(self, row: int) -> Mapping[str, Pod]:
        """The row's pods; a live view for the cache and the audit."""
        return self._pods[row]

    def node_at(self, row: int) -> Node | None:
        """None for a free row."""
        return self._nodes[row]

    @property
    def ports(self) -> Mapping[tuple[str, int], Mapping[int, Mapping[str, int]]]:
        """(protocol, port) -> row -> ip -> pods that hold it."""
        return self._ports

    def label_columns(self) -> Iterable[tuple[str, LabelColumn]]:
        """Label keys that somebody asked for, with their columns."""
        return self._labels.items()

    @property
    def resources(self) -> Iterable[str]:
        """Names of all resources with a column."""
        return self._resources

    def has_column(self, resource: str) -> bool:
        """True if some node had the resource at some time: what pods ask for of others is not counted."""
        return resource in self._resources

    @property
    def capacity(self) -> int:
        """Length of every column."""
        return self._capacity

    def validate(self) -> None:
        """Asserts that every sum of every live row is the sum over its pods (I4)."""
        for row, node in self.live_rows():
            sums = {**dict.fromkeys(self._resources, 0), PODS: len(self._pods[row])}
            cpu = memory = 0
            for pod in self._pods[row].values():
                for name, amount in pod.requests.items():
                    if name in sums:
                        sums[name] += amount
                scored = scoring_amounts(pod)
                cpu, memory = cpu + scored[0], memory + scored[1]
            found = {name: int(self._requested[index, row]) for name, index in self._resources.items()}
            if found != sums or [cpu, memory] != self._requested[SCORING, row].tolist():
                raise AssertionError(f"row {row} ({node.name}): columns say {found}, its pods {sums}")
        faults = self._pod_counts.faults({row: p.values() for row, p in enumerate(self._pods)}, is_whole=True)
        if faults:
            raise AssertionError(f"rows {faults}")

    # -- inside ----------------------------------------------------------------------------------------------------

    def _column(self, kind: str, array: Int64, resource: str) -> Int64:
        key = (kind, resource)
        view = self._views.get(key)
        if view is None:
            index = self._resources.get(resource)
            if index is None:
                return self._absent
            view = self._views[key] = frozen(array[index])
        return view

    def _few_rows(self, rows: Rows) -> _FewRows:
        """Taken once for all who ask about the same array in the same state: nobody changes an array of rows (`NodeView`)."""
        few = self._few
        if few.rows is not rows or few.at != self.row_log.sequence:
            few = self._few = _FewRows(rows, self.row_log.sequence, self._allocatable, self._requested)
        return few

    def _block(self, resources: tuple[str, ...]) -> slice | Rows:
        """Where the resources stand in the matrices: a slice where they stand side by side."""
        if len(self._blocks) >= BLOCKS_MAX:
            self._blocks.clear()
        at = [self._resources.get(name, NOTHING) for name in resources]
        is_run = bool(at) and at == list(range(at[0], at[0] + len(at)))
        block = slice(at[0], at[-1] + 1) if is_run else np.array(at, np.intp)[:, None]
        self._blocks[resources] = block
        return block

    def _write_node(self, row: int, before: Node | None, node: Node) -> None:
        """Whatever columns say of a node. `before`: the row's node until now."""
        self._write_allocatable(row, node)
        self._unschedulable[row] = node.is_unschedulable
        self._taint_set[row] = self._taint_code(node.taints)
        for key, column in self._labels.items():
            column.set(row, node.labels.get(key))
        self._count_labels(before, node)
        if before is None or before.images != node.images:
            self._write_images(row, before, node)
        self.nodes_version += 1
        self.node_log.note(row)
        self._touch(row)

    def _take_row(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        if self.size == self._capacity:
            self._grow_rows()
        self._nodes.append(None)
        self._pods.append({})
        self._versions.append(0)
        self.size += 1
        return self.size - 1

    def _grow_rows(self) -> None:
        self._capacity *= 2
        self._allocatable = grown(self._allocatable, self._capacity)
        self._capacities = grown(self._capacities, self._capacity)
        self._requested = grown(self._requested, self._capacity)
        self._unschedulable = grown(self._unschedulable, self._capacity)
        self._taint_set = grown(self._taint_set, self._capacity)
        self._absent = frozen(np.zeros(self._capacity, np.int64))
        for column in (*self._labels.values(), self._unlabelled):
            column.grow(self._capacity)
        self._views.clear()

    def _resource_index(self, name: str) -> int | None:
        """The column of a resource that a node has, made if need be. Pods make none: their authors are not trusted."""
        index = self._resources.get(name)
        if index is not None:
            return index
        if len(self._resources) >= RESOURCES_MAX:
            return None
        index = self._resources[name] = SCORING.stop + len(self._resources) + 1 - NATIVE_END
        self._blocks.clear()  # some may take this resource for one that no node has
        if index >= len(self._allocatable):
            empty = np.zeros_like(self._allocatable)
            self._allocatable = np.concatenate((self._allocatable, empty))
            self._capacities = np.concatenate((self._capacities, np.zeros_like(self._capacities)))
            self._requested = np.concatenate((self._requested, empty))
            self._views.clear()
        for row, pods in enumerate(self._pods):
            self._requested[index, row] = sum(pod.requests.get(name, 0) for pod in pods.values())
        return index

    def _write_allocatable(self, row: int, node: Node) -> None:
        self._allocatable[:, row] = 0
        for name, amount in () if node.malformed else node.allocatable.items():
            index = self._resource_index(name)
            if index is not None:
                self._allocatable[index, row] = amount
        self._capacities[:, row] = self._allocatable[:, row]

    def _write_images(self, row: int, before: Node | None, after: Node | None) -> None:
        """An image counts everywhere with the size its first node told, for as long as any node has it (as upstream)."""
        for image in before.images if before else ():
            for name in image.names:
                users = self._images.get(name)
                if users is not None and row in users:
                    del users[row]
                    if not users:
                        del self._images[name]
        for image in after.images if after else ():
            for name in image.names:
                users = self._images.setdefault(name, {})
                users.setdefault(row, next(iter(users.values()), image.size_bytes))

    def _account(self, row: int, pod: Pod, sign: int) -> None:
        requested = self._requested
        for name, amount in pod.requests.items():
            index = self._resources.get(name)
            if index == PODS_INDEX:
                continue  # nobody can ask for it; it is the number of pods
            if index is not None:
                requested[index, row] += sign * amount
        cpu, memory = scoring_amounts(pod)
        requested[SCORING.start, row] += sign * cpu
        requested[SCORING.start + 1, row] += sign * memory
        requested[PODS_INDEX, row] += sign
        if pod.spec.host_ports:
            self._account_ports(row, pod, sign)
        if pod.spec.volumes:
            self._volume_users.account(row, pod, sign)
        self._pod_counts.account(row, pod, sign)
        self._touch(row)

    def _account_ports(self, row: int, pod: Pod, sign: int) -> None:
        for port in pod.spec.host_ports:
            users = self._ports.setdefault((port.protocol, port.port), {})
            by_ip = users.setdefault(row, {})
            by_ip[port.ip] = by_ip.get(port.ip, 0) + sign
            if not by_ip[port.ip]:
                del by_ip[port.ip]
            if not by_ip:
                del users[row]
            if not users:
                del self._ports[(port.protocol, port.port)]

    def _taint_code(self, taints: tuple[Taint, ...]) -> int:
        code = self._taint_index.get(taints)
        if code is None:
            code = self._taint_index[taints] = len(self._taint_sets)
            self._taint_sets.append(taints)
        return code

    def _count_labels(self, before: Node | None, after: Node | None) -> None:
        """Keeps the keys that some node has."""
        old, new = (node.labels.keys() if node else set() for node in (before, after))
        for key in old - new:
            self._label_nodes[key] -= 1
            if not self._label_nodes[key]:
                del self._label_nodes[key]
                self._labels.pop(key, None)
        is_news = bool(new - self._label_nodes.keys())
        for key in new - old:
            self._label_nodes[key] += 1
        if is_news:
            self._pod_counts.demands.topology_added()

    def _label(self, key: str) -> LabelColumn:
        column = self._labels.pop(key, None)
        if column is None:
            if key not in self._label_nodes:
                return self._unlabelled
            if len(self._labels) >= LABEL_COLUMNS_MAX:
                del self._labels[next(iter(self._labels))]
            column = LabelColumn(self._capacity)
            for row, node in self.live_rows():
                column.set(row, node.labels.get(key))
        self._labels[key] = column
        return column

    def _touch(self, row: int) -> None:
        self._versions[row] += 1
        self.row_log.note(row)


def scoring_amounts(pod: Pod) -> tuple[int, int]:
    """CPU and memory as scores count them."""
    return pod.scoring_requests


def frozen(array: A) -> A:
    view = array.view()
    view.flags.writeable = False
    return view


def grown(array: A, capacity: int) -> A:
    grown = np.zeros((*array.shape[:-1], capacity), array.dtype)
    grown[..., : array.shape[-1]] = array
    return cast(A, grown)
