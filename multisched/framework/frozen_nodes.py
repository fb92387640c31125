"""FrozenNodes: a NodeView over copies, for code in threads or other processes.

It shares nothing: records hold immutable objects, and every column is computed from them on request. Rows
keep their numbers. One difference from the live table: an image counts with the size that the lowest row reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from multisched.framework.node_view import Bools, Int32, Int64, NodeView
from multisched.framework.pod_counts import PodCountsView, counts_of
from multisched.framework.port_users import Users, count_port
from multisched.framework.volume_users import VolumeUsers, users_of
from multisched.model.objects import CPU, MEMORY, PODS, Node, Pod
from multisched.model.selectors import Taint


class RowRecord:
    """One row at one moment. `pods` is None for a plugin that declares not to read pods. Immutable; sums are cached."""

    __slots__ = ("_sums", "node", "pods", "row", "version")

    def __init__(self, row: int, version: int, node: Node, pods: tuple[Pod, ...] | None) -> None:
        self.row = row
        self.version = version
        self.node = node
        self.pods = pods
        self._sums: tuple[dict[str, int], dict[str, int]] | None = None

    def __reduce__(self) -> tuple[type[RowRecord], tuple[object, ...]]:
        return RowRecord, (self.row, self.version, self.node, self.pods)

    @property
    def copied_pods(self) -> tuple[Pod, ...]:
        """The pods on the row. Raises LookupError if they were not copied."""
        if self.pods is None:
            raise LookupError("pods are not copied for a plugin that depends on nodes only; declare Dependency.ROW")
        return self.pods

    def sums(self) -> tuple[dict[str, int], dict[str, int]]:
        """Returns (requested, scoring_requested) by resource, over the pods on the row."""
        if self._sums is None:
            requested: dict[str, int] = {}
            cpu = memory = 0
            for pod in self.copied_pods:
                for resource, amount in pod.requests.items():
                    requested[resource] = requested.get(resource, 0) + amount
                scored = pod.scoring_requests
                cpu, memory = cpu + scored[0], memory + scored[1]
            self._sums = requested, {**requested, CPU: cpu, MEMORY: memory}
        return self._sums


class FrozenNodes(NodeView):
    """A `NodeView` over copied records. Columns extend to the highest copied row."""

    node_count: int = 0
    nodes_version: int = 0

    def __init__(self, records: Sequence[RowRecord], node_count: int, nodes_version: int) -> None:
        self.node_count = node_count
        self.nodes_version = nodes_version
        self._records = {record.row: record for record in records}
        self._width = max(self._records, default=-1) + 1
        self._row_of: dict[str, int] | None = None
        self._taints: tuple[list[tuple[Taint, ...]], Int32] | None = None
        self._labels: dict[str, tuple[dict[str, int], Int32]] = {}
        self._volume_users: VolumeUsers | None = None
        self._pod_counts: PodCountsView | None = None

    def _column(self, value: Callable[[RowRecord], int]) -> Int64:
        column = np.zeros(self._width, np.int64)
        for row, record in self._records.items():
            column[row] = value(record)
        column.flags.writeable = False
        return column

    def allocatable(self, resource: str) -> Int64:
        return self._column(lambda r: r.node.limit(resource))

    def requested(self, resource: str) -> Int64:
        if resource == PODS:
            return self.pod_count
        return self._column(lambda r: r.sums()[0].get(resource, 0))

    def scoring_requested(self, resource: str) -> Int64:
        return self._column(lambda r: r.sums()[1].get(resource, 0))

    @property
    def pod_count(self) -> Int64:
        return self._column(lambda r: len(r.copied_pods))

    @property
    def is_unschedulable(self) -> Bools:
        found = self._column(lambda r: int(r.node.is_unschedulable)).astype(np.bool_)
        found.flags.writeable = False
        return found

    @property
    def taint_set(self) -> Int32:
        return self._taint_column()[1]

    @property
    def taint_sets(self) -> Sequence[tuple[Taint, ...]]:
        return self._taint_column()[0]

    def _taint_column(self) -> tuple[list[tuple[Taint, ...]], Int32]:
        if self._taints is None:
            index: dict[tuple[Taint, ...], int] = {(): 0}
            column = self._column(lambda r: index.setdefault(r.node.taints, len(index))).astype(np.int32)
            column.flags.writeable = False
            self._taints = list(index), column
        return self._taints

    def label_codes(self, key: str) -> Int32:
        return self._label(key)[1]

    def label_values(self, key: str) -> Sequence[str]:
        return ["", *self._label(key)[0]]

    def label_code(self, key: str, value: str) -> int:
        return self._label(key)[0].get(value, 0)

    def _label(self, key: str) -> tuple[dict[str, int], Int32]:
        if key not in self._labels:
            index: dict[str, int] = {}

            def code(record: RowRecord) -> int:
                value = record.node.labels.get(key)
                return 0 if value is None else index.setdefault(value, len(index) + 1)

            column = self._column(code).astype(np.int32)
            column.flags.writeable = False
            self._labels[key] = index, column
        return self._labels[key]

    def port_users(self, protocol: str, port: int) -> Mapping[int, Mapping[str, int]]:
        users: Users = {}
        for row, record in self._records.items():
            for pod in record.copied_pods:
                for held in pod.spec.host_ports:
                    if (held.protocol, held.port) == (protocol, port):
                        count_port(users, row, held.ip, 1)
        return users

    @property
    def pod_counts(self) -> PodCountsView:
        if self._pod_counts is None:
            self._pod_counts = counts_of((row, record.copied_pods) for row, record in self._records.items())
        return self._pod_counts

    @property
    def volume_users(self) -> VolumeUsers:
        if self._volume_users is None:
            self._volume_users = users_of((row, record.copied_pods) for row, record in self._records.items())
        return self._volume_users

    def image_users(self, name: str) -> Mapping[int, int]:
        users: dict[int, int] = {}
        for row in sorted(self._records):
            for image in self._records[row].node.images:
                if name in image.names:
                    users.setdefault(row, next(iter(users.values()), image.size_bytes))
        return users

    def node(self, row: int) -> Node:
        return self._records[row].node

    def row_of(self, name: str) -> int | None:
        if self._row_of is None:
            self._row_of = {record.node.name: row for row, record in self._records.items()}
        return self._row_of.get(name)

    def pods_on(self, row: int) -> Sequence[Pod]:
        return list(self._records[row].copied_pods)

    def version(self, row: int) -> int:
        return self._records[row].version
