"""ColumnOverlay: an overlay that moves whole columns, to remove and restore pods on thousands of rows in one operation.

For plugins that depend only on amounts and host ports (`wants_room_only`): nothing else of the moved pods is
accounted for. Used within one synchronous step and never kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from multisched.framework.node_view import Bools, Int64, Rows
from multisched.framework.port_users import PortKey, Users, copied, count_port
from multisched.model.objects import PODS, Pod
from multisched.state.columns.arrays import frozen
from multisched.state.node_table import NodeTable
from multisched.state.nominator import NominatedRequests
from multisched.state.overlay import Overlay
from multisched.state.pods_by_priority import PodColumns


class ColumnOverlay(Overlay):
    """The node table with nominated pods added, and some of its pods removed."""

    def __init__(
        self,
        table: NodeTable,
        nominated: NominatedRequests | None,
        nominated_pods: Callable[[], Iterable[tuple[int, Pod]]],
    ) -> None:
        """`nominated_pods`: yields row and pod of those in `nominated`; called only if ports are read."""
        super().__init__(table)
        self._nominated = nominated
        self._nominated_pods = nominated_pods
        self._candidates: PodColumns | None = None
        self._removed_mask: Bools | None = None
        self._columns: dict[str, Int64] = {}
        self._amounts: dict[str, Int64] = {}
        self._users: dict[PortKey, Users] = {}

    def remove(self, pods: PodColumns, removed: Bools) -> None:
        """Removes pods. `removed`: bool[k, rows of `pods`]. Called once, before anything is read."""
        self._candidates = pods
        self._removed_mask = removed.copy()

    def restore(self, first: int, at: Rows, restored: Bools) -> None:
        """Restores removed pods of the rows at these positions. `restored`: bool[k, len(at)], of the k-th pods from `first` on."""
        self._move(first, at, restored, 1)

    def remove_again(self, first: int, at: Rows, removed: Bools) -> None:
        """Undoes `restore`."""
        self._move(first, at, removed, -1)

    def _move(self, first: int, at: Rows, moved: Bools, sign: int) -> None:
        pods, mask = self._candidates, self._removed_mask
        assert pods is not None
        assert mask is not None
        ks = slice(first, first + len(moved))
        mask[ks, at] ^= moved
        rows = pods.rows[at]
        for resource, column in self._columns.items():
            if resource == PODS:
                column[rows] += sign * np.count_nonzero(moved, axis=0)
            elif resource in self._amounts:
                column[rows] += sign * (self._amounts[resource][ks].take(at, axis=1) * moved).sum(axis=0)
        if self._users:
            for k, i in np.argwhere(moved & pods.has_ports[ks].take(at, axis=1)).tolist():
                self._account_ports(int(rows[i]), pods.pod(first + k, int(at[i])), sign, self._users)

    # -- NodeView --------------------------------------------------------------------------------------------------

    def requested(self, resource: str) -> Int64:
        column = self._columns.get(resource)
        if column is None:
            column = self._columns[resource] = self._column(resource)
        return frozen(column)

    @property
    def pod_count(self) -> Int64:
        return self.requested(PODS)

    def port_users(self, protocol: str, port: int) -> Mapping[int, Mapping[str, int]]:
        key = (protocol, port)
        users = self._users.get(key)
        if users is None:
            users = copied(self._table.port_users(protocol, port))
            self._add_ports({key: users})
            self._users[key] = users
        return users

    # -- internal --------------------------------------------------------------------------------------------------

    def _column(self, resource: str) -> Int64:
        column = np.array(self._table.requested(resource))
        if not self._table.has_column(resource):
            return column  # no node has this resource, so the requests for it are not counted
        if self._candidates is not None and self._removed_mask is not None:
            if resource == PODS:
                column[self._candidates.rows] -= self._removed_mask.sum(axis=0)
            else:
                amounts = self._amounts[resource] = self._candidates.requested(resource)
                column[self._candidates.rows] -= (amounts * self._removed_mask).sum(axis=0)
        if self._nominated is not None:
            column[self._nominated.rows] += self._nominated.amounts(resource)
        return column

    def _add_ports(self, users: dict[PortKey, Users]) -> None:
        if self._candidates is not None and self._removed_mask is not None:
            for k, i in np.argwhere(self._removed_mask & self._candidates.has_ports).tolist():
                self._account_ports(int(self._candidates.rows[i]), self._candidates.pod(k, i), -1, users)
        if self._nominated is not None:
            for row, pod in self._nominated_pods():
                self._account_ports(row, pod, 1, users)

    @staticmethod
    def _account_ports(row: int, pod: Pod, sign: int, users: dict[PortKey, Users]) -> None:
        for port in pod.spec.host_ports:
            at = users.get((port.protocol, port.port))
            if at is not None:
                count_port(at, row, port.ip, sign)
