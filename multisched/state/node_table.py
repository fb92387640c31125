"""NodeTable: a struct of arrays with one row per node; the state of every node.

Owns the rows: which node is in which, which pods are on it, its version. The properties of a row are kept in columns;
each part in `state/columns` owns those of one kind, and the table passes nodes and pods to it.
Columns are int64 throughout (floats never decide a fit) and grow by doubling. Each row has one version counter, raised
at each write. Rows of deleted nodes are reused. Only `ClusterCache` writes; plugins read it as a `NodeView`.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from multisched.framework.node_view import Amount, Bools, Derive, Float64, Int32, Int64, Rows
from multisched.framework.pod_counts import PodCounts
from multisched.framework.port_users import PortKey
from multisched.framework.preemption import ABOVE_EVERY_PRIORITY
from multisched.framework.volume_users import VolumeUsers
from multisched.model.objects import PODS, Node, Pod, differ_in_version_only
from multisched.model.selectors import Taint
from multisched.state.change_log import ChangeLog
from multisched.state.columns.arrays import frozen, grown
from multisched.state.columns.derived import DerivedColumns
from multisched.state.columns.image_users import ImageUsers
from multisched.state.columns.labels import LabelColumn, LabelColumns
from multisched.state.columns.port_users import PortUsers
from multisched.state.columns.resources import ResourceColumns
from multisched.state.columns.taint_sets import TaintSets

ROWS_INITIAL = 64


class NodeTable:
    """Nodes and pods by row, with columns of each row's properties."""

    def __init__(self) -> None:
        self._capacity = ROWS_INITIAL
        self.size = 0
        """Rows ever used; all rows with a node are below it."""
        self._free: list[int] = []
        self._nodes: list[Node | None] = []
        self._row_of: dict[str, int] = {}
        self._pods: list[dict[str, Pod]] = []
        self._versions: list[int] = []
        self.node_log = ChangeLog()
        """Rows whose node object changed."""
        self.row_log = ChangeLog()
        """Rows whose node object or pods changed."""
        self.start_log = ChangeLog()
        """Rows on which a pod has started after it was added."""
        self.nodes_version = 0
        self.priority_min = ABOVE_EVERY_PRIORITY
        """Lower bound of the priorities of all pods on rows: the lowest of a pod that was ever on one."""
        self._resources = ResourceColumns(self._pods, self.row_log, ROWS_INITIAL)
        self._derived = DerivedColumns(self.row_log)
        self._labels = LabelColumns(self._nodes, ROWS_INITIAL)
        self._taints = TaintSets(ROWS_INITIAL)
        self._unschedulable = np.zeros(ROWS_INITIAL, np.bool_)
        self._images = ImageUsers()
        self._ports = PortUsers()
        self._volume_users = VolumeUsers()
        self._pod_counts = PodCounts(self._labels.is_on_nodes)

    # -- what plugins read (NodeView) ------------------------------------------------------------------------------

    def allocatable(self, resource: str) -> Int64:
        return self._resources.allocatable(resource)

    def requested(self, resource: str) -> Int64:
        return self._resources.requested(resource)

    def scoring_requested(self, resource: str) -> Int64:
        return self._resources.scoring_requested(resource)

    def amounts(self, kind: Amount, resources: tuple[str, ...], rows: Rows) -> Int64:
        return self._resources.amounts(kind, resources, rows)

    def capacities(self, resources: tuple[str, ...], rows: Rows) -> Float64:
        return self._resources.capacities(resources, rows)

    def capacity_range(self, resources: tuple[str, ...]) -> tuple[float, float]:
        return self._resources.capacity_range(resources, self.nodes_version)

    def derived(self, key: Hashable, derive: Derive, rows: Rows) -> Int64:
        return self._derived.at(key, derive, self, self.size, rows)

    @property
    def pod_count(self) -> Int64:
        return self._resources.requested(PODS)

    @property
    def is_unschedulable(self) -> Bools:
        return frozen(self._unschedulable)

    @property
    def taint_set(self) -> Int32:
        return self._taints.codes

    @property
    def taint_sets(self) -> Sequence[tuple[Taint, ...]]:
        return self._taints.sets

    def label_codes(self, key: str) -> Int32:
        return frozen(self._labels.column(key).codes)

    def label_values(self, key: str) -> Sequence[str]:
        return self._labels.column(key).values

    def label_code(self, key: str, value: str) -> int:
        return self._labels.column(key).code(value)

    def port_users(self, protocol: str, port: int) -> Mapping[int, Mapping[str, int]]:
        return self._ports.of(protocol, port)

    @property
    def pod_counts(self) -> PodCounts:
        return self._pod_counts

    @property
    def volume_users(self) -> VolumeUsers:
        return self._volume_users

    def image_users(self, name: str) -> Mapping[int, int]:
        return self._images.of(name)

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
        """Puts a node into its row, a new one if needed; keeps the pods on it. Returns the row.

        A heartbeat changes nothing that is read: it raises no version, so no result is computed again.
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
            raise AssertionError(f"row {row} of node {name} is freed while it has {len(self._pods[row])} pods")
        before, self._nodes[row] = self._nodes[row], None
        self._images.write(row, before, None)
        self._labels.write(row, before, None)
        self._resources.write(row, None)
        self._taints.write(row, ())
        self._unschedulable[row] = False
        heapq.heappush(self._free, row)
        self._volume_users.note_row(row)
        self._note_node(row)
        return row

    def add_pod(self, row: int, pod: Pod) -> None:
        """Accounts for a pod on a row, whether it fits or not."""
        if pod.uid in self._pods[row]:
            raise AssertionError(f"pod {pod.key} ({pod.uid}) is already on row {row}")
        self._pods[row][pod.uid] = pod
        if pod.spec.priority < self.priority_min:
            self.priority_min = pod.spec.priority
        self._account(row, pod, 1)

    def remove_pod(self, row: int, uid: str) -> Pod:
        """Removes a pod from a row; returns the pod that was accounted for."""
        pod = self._pods[row].pop(uid)
        self._account(row, pod, -1)
        return pod

    def replace_pod(self, row: int, pod: Pod) -> None:
        """Replaces a pod on the row with a newer object that uses the same amounts (labels or phase may differ)."""
        before = self._pods[row][pod.uid]
        self._pods[row][pod.uid] = pod
        self._pod_counts.replace(row, before, pod)
        is_read_alike = before.labels == pod.labels and before.annotations == pod.annotations
        if not is_read_alike or (before.is_deleting, before.is_victim) != (pod.is_deleting, pod.is_victim):
            self.touch(row)
        elif before.started_s != pod.started_s:
            self.start_log.note(row)  # separate log: masks and scores do not depend on it

    def recount(self, row: int, pods: dict[str, Pod]) -> None:
        """Rebuilds the row from its node and these pods, after the audit found that its columns are not their sum."""
        self._pods[row] = {}
        for part in (self._resources, self._volume_users, self._pod_counts, self._ports):
            part.forget_row(row)
        for pod in pods.values():
            self.add_pod(row, pod)
        node = self.node(row)
        self._write_node(row, node, node)

    def reorder(self, row: int, uids: Sequence[str]) -> None:
        """Sets the order of the row's pods, which breaks ties; changes nothing else."""
        pods = self._pods[row]
        assert pods.keys() == set(uids), f"row {row} has other pods"
        self._pods[row] = {uid: pods[uid] for uid in uids}
        self.touch(row)

    # -- introspection ---------------------------------------------------------------------------------------------

    def live_rows(self) -> Iterable[tuple[int, Node]]:
        """Returns the rows with a node, ascending."""
        return ((row, node) for row, node in enumerate(self._nodes) if node is not None)

    def pods_by_uid(self, row: int) -> Mapping[str, Pod]:
        """Returns the row's pods; a live view for the cache and the audit."""
        return self._pods[row]

    def node_at(self, row: int) -> Node | None:
        """Returns the row's node; None for a free row."""
        return self._nodes[row]

    @property
    def ports(self) -> Mapping[PortKey, Mapping[int, Mapping[str, int]]]:
        """(protocol, port) -> row -> ip -> pods that use it."""
        return self._ports.by_port

    def label_columns(self) -> Iterable[tuple[str, LabelColumn]]:
        """Returns the label keys in use, with their columns."""
        return self._labels.columns()

    @property
    def resources(self) -> Iterable[str]:
        """Names of all resources with a column."""
        return self._resources.names

    def has_column(self, resource: str) -> bool:
        """Reports whether any node ever had the resource: requests for other resources are not counted."""
        return self._resources.has(resource)

    @property
    def capacity(self) -> int:
        """Length of every column."""
        return self._capacity

    def validate(self) -> None:
        """Raises AssertionError unless every sum of every row is the sum over its pods (I4)."""
        for row, node in self.live_rows():
            fault = self._resources.fault(row)
            if fault:
                raise AssertionError(f"row {row} ({node.name}): {fault}")
        faults = self._pod_counts.faults({row: p.values() for row, p in enumerate(self._pods)}, is_whole=True)
        if faults:
            raise AssertionError(f"rows {faults}")

    # -- internal --------------------------------------------------------------------------------------------------

    def _write_node(self, row: int, before: Node | None, node: Node) -> None:
        """Writes a node into all columns. `before`: the row's previous node."""
        self._resources.write(row, node)
        self._unschedulable[row] = node.is_unschedulable
        self._taints.write(row, node.taints)
        if self._labels.write(row, before, node):
            self._pod_counts.demands.topology_added()
        if before is None or before.images != node.images:
            self._images.write(row, before, node)
        self._note_node(row)

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
        for part in (self._resources, self._labels, self._taints):
            part.grow(self._capacity)
        self._unschedulable = grown(self._unschedulable, self._capacity)

    def _account(self, row: int, pod: Pod, sign: int) -> None:
        self._resources.account(row, pod, sign)
        if pod.spec.host_ports:
            self._ports.account(row, pod, sign)
        if pod.spec.volumes:
            self._volume_users.account(row, pod, sign)
        self._pod_counts.account(row, pod, sign)
        self.touch(row)

    def _note_node(self, row: int) -> None:
        """Records that the row's node object changed."""
        self.nodes_version += 1
        self.node_log.note(row)
        self.touch(row)

    def touch(self, row: int) -> None:
        """Raises the row's version: what is computed from the row may have changed."""
        self._versions[row] += 1
        self.row_log.note(row)
