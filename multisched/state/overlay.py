"""Overlay: a copy-on-write view of the node table with pods added and removed.

Used for nominated pods and for the dry runs of preemption. It is a `NodeView` like the table itself. Columns of amounts
are copied on the first change (30 us at 5,000 nodes); everything that pods cannot change is read from the table
(`ReadThrough`). Only the plugins that own ledgers can overlay them: AddPod and RemovePod keep a copy of what changes in
the overlay's own cycle state. An overlay is used within one synchronous step and never kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from multisched.framework.cycle_state import CycleState
from multisched.framework.node_view import Bools, Float64, Int32, Int64, NodeView, Rows
from multisched.framework.overlaid_counts import OverlaidCounts
from multisched.framework.pod_counts import PodCountsView
from multisched.framework.points import CycleView, PreFilterExtensions
from multisched.framework.port_users import PortKey, Users, copied, count_port
from multisched.framework.runner import Runner
from multisched.framework.status import SUCCESS, Status
from multisched.framework.volume_users import VolumeUsers
from multisched.model.objects import CPU, MEMORY, PODS, Node, Pod
from multisched.model.selectors import Taint
from multisched.state.columns.arrays import frozen
from multisched.state.node_table import NodeTable


class ReadThrough(NodeView):
    """The columns of a node table that pods cannot change, not copied."""

    _table: NodeTable

    def allocatable(self, resource: str) -> Int64:
        return self._table.allocatable(resource)

    def capacities(self, resources: tuple[str, ...], rows: Rows) -> Float64:
        return self._table.capacities(resources, rows)

    def capacity_range(self, resources: tuple[str, ...]) -> tuple[float, float]:
        return self._table.capacity_range(resources)

    @property
    def is_unschedulable(self) -> Bools:
        return self._table.is_unschedulable

    @property
    def taint_set(self) -> Int32:
        return self._table.taint_set

    @property
    def taint_sets(self) -> Sequence[tuple[Taint, ...]]:
        return self._table.taint_sets

    def label_codes(self, key: str) -> Int32:
        return self._table.label_codes(key)

    def label_values(self, key: str) -> Sequence[str]:
        return self._table.label_values(key)

    def label_code(self, key: str, value: str) -> int:
        return self._table.label_code(key, value)

    def image_users(self, name: str) -> Mapping[int, int]:
        return self._table.image_users(name)

    @property
    def node_count(self) -> int:
        return self._table.node_count

    @property
    def nodes_version(self) -> int:
        return self._table.nodes_version

    def node(self, row: int) -> Node:
        return self._table.node(row)

    def row_of(self, name: str) -> int | None:
        return self._table.row_of(name)

    def version(self, row: int) -> int:
        return self._table.version(row)


class Overlay(ReadThrough):
    """A NodeView in which some pods are on other rows, or on none."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._changed: dict[tuple[str, str], Int64] = {}
        self._pod_count: Int64 | None = None
        self._pods: dict[int, dict[str, Pod]] = {}
        self._ports: dict[PortKey, Users] = {}
        self._volume_users: VolumeUsers | None = None
        self._pod_counts: OverlaidCounts | None = None

    # -- changes ---------------------------------------------------------------------------------------------------

    def add_pod(self, row: int, pod: Pod) -> None:
        """Adds the pod to the row, whether it fits or not."""
        self._row_pods(row)[pod.uid] = pod
        self._account(row, pod, 1)

    def remove_pod(self, row: int, uid: str) -> Pod:
        """Removes the pod from the row. Raises KeyError if it is not there."""
        pod = self._row_pods(row).pop(uid)
        self._account(row, pod, -1)
        return pod

    def _row_pods(self, row: int) -> dict[str, Pod]:
        if row not in self._pods:
            self._pods[row] = dict(self._table.pods_by_uid(row))
        return self._pods[row]

    def _account(self, row: int, pod: Pod, sign: int) -> None:
        for name, amount in pod.requests.items():
            if self._table.has_column(name):  # else no node has the resource, and the table does not count it either
                self._writable("requested", name)[row] += sign * amount
        for name, amount in zip((CPU, MEMORY), pod.scoring_requests, strict=True):
            self._writable("scoring", name)[row] += sign * amount
        if self._pod_count is None:
            self._pod_count = self._table.pod_count.copy()
        self._pod_count[row] += sign
        if self._pod_counts is None:
            self._pod_counts = OverlaidCounts(self._table.pod_counts)
        self._pod_counts.account(row, pod, sign)
        if pod.spec.volumes:
            if self._volume_users is None:
                self._volume_users = VolumeUsers(self._table.volume_users)
            self._volume_users.account(row, pod, sign)
        for port in pod.spec.host_ports:
            key = (port.protocol, port.port)
            if key not in self._ports:
                self._ports[key] = copied(self._table.port_users(*key))
            count_port(self._ports[key], row, port.ip, sign)

    def _writable(self, kind: str, resource: str) -> Int64:
        column = self._changed.get((kind, resource))
        if column is None:
            source = self._table.requested if kind == "requested" else self._table.scoring_requested
            column = self._changed[(kind, resource)] = np.array(source(resource))
        return column

    # -- NodeView: columns that pods change -----------------------------------------------------------------------

    def requested(self, resource: str) -> Int64:
        if resource == PODS:
            return self.pod_count
        changed = self._changed.get(("requested", resource))
        return self._table.requested(resource) if changed is None else frozen(changed)

    def scoring_requested(self, resource: str) -> Int64:
        changed = self._changed.get(("scoring", resource))
        if changed is not None:
            return frozen(changed)
        return self._table.scoring_requested(resource) if resource in (CPU, MEMORY) else self.requested(resource)

    @property
    def pod_count(self) -> Int64:
        return self._table.pod_count if self._pod_count is None else frozen(self._pod_count)

    def port_users(self, protocol: str, port: int) -> Mapping[int, Mapping[str, int]]:
        changed = self._ports.get((protocol, port))
        return self._table.port_users(protocol, port) if changed is None else changed

    @property
    def pod_counts(self) -> PodCountsView:
        return self._table.pod_counts if self._pod_counts is None else self._pod_counts

    @property
    def volume_users(self) -> VolumeUsers:
        return self._table.volume_users if self._volume_users is None else self._volume_users

    def pods_on(self, row: int) -> Sequence[Pod]:
        return list(self._pods[row].values()) if row in self._pods else self._table.pods_on(row)


class OverlayCycle:
    """An overlay with its own copy of the cycle state, updated by the plugins' AddPod and RemovePod."""

    def __init__(
        self,
        table: NodeTable,
        state: CycleState,
        pod: Pod,
        plugins: Sequence[PreFilterExtensions],
        runner: Runner,
        attempt: int,
    ) -> None:
        self._overlay = Overlay(table)
        self._pod = pod
        self._plugins = plugins
        self._runner = runner
        self.view = CycleView(self._overlay, state.copy(), attempt)

    def add_pod(self, other: Pod, row: int) -> Status:
        """Adds the pod. Returns the first status that is no success; the overlay must then be dropped."""
        self._overlay.add_pod(row, other)
        for plugin in self._plugins:
            status = self._runner.status(plugin, "AddPod", plugin.add_pod, self.view, self._pod, other, row)
            if not status.is_success:
                return status
        return SUCCESS

    def remove_pod(self, other: Pod, row: int) -> Status:
        self._overlay.remove_pod(row, other.uid)
        for plugin in self._plugins:
            status = self._runner.status(plugin, "RemovePod", plugin.remove_pod, self.view, self._pod, other, row)
            if not status.is_success:
                return status
        return SUCCESS
