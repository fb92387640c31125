"""GpuLedger: which pod holds how much of which GPU device, on every node, for all domains of the process.

Owns the device books (DESIGN 3, Ledger) and mirrors them in arrays over rows, which GpuShare reads. Promises that no
device is given out beyond 1000 milli (I1), and that whole and fractional pods never meet on a node whose device plugin
picks devices by itself: the kubelet would hand a shared device to a whole pod. Written by the cache and commit only.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from domains.gpu.demand import GPU_DEVICES, demand_of, devices_text, has_demand
from domains.gpu.device_row import ABSENT, DeviceRow, Hold, hold_of
from multisched.framework.node_view import Bools, Int64, Rows
from multisched.model.objects import Node, Pod

ROWS_FIRST, DEVICES_FIRST = 64, 8
"""Sizes of the arrays at the start; both double when needed."""

Milli = NDArray[np.int16]
"""Thousandths of a device, 0..DEVICE_MILLI, or ABSENT."""


class GpuLedger:
    """Implements `framework.ledger.Ledger`."""

    name = "gpu-devices"

    def __init__(self) -> None:
        self._rows: dict[int, DeviceRow] = {}
        self._row_of: dict[str, int] = {}
        self._version: Int64 = np.zeros(ROWS_FIRST, np.int64)
        self._free: Milli = np.full((ROWS_FIRST, DEVICES_FIRST), ABSENT, np.int16)
        self._has_whole: Bools = np.zeros(ROWS_FIRST, np.bool_)
        self._has_fractions: Bools = np.zeros(ROWS_FIRST, np.bool_)
        self._is_honoured: Bools = np.zeros(ROWS_FIRST, np.bool_)

    # -- Ledger ----------------------------------------------------------------------------------------------------

    def concerns(self, pod: Pod) -> bool:
        return has_demand(pod)

    def version(self, row: int) -> int:
        return int(self._version[row]) if row < len(self._version) else 0

    def fits(self, pod: Pod, row: int) -> str:
        """Empty if `take` would succeed on the row now, else the reason, as users should read it."""
        demand = demand_of(pod)
        if demand is None or self._row_of.get(pod.uid) == row:
            return ""
        return self.devices(row).refusal(demand)

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        """Holds the best fitting devices and returns the annotation that names them; the same ones when asked again."""
        demand = demand_of(pod)
        if demand is None:
            return {}
        held = self._rows[row].holds[pod.uid] if self._row_of.get(pod.uid) == row else None
        if held is None:
            refusal = self.devices(row).refusal(demand)
            assert not refusal, f"I1: pod {pod.key} takes GPUs where they do not fit: {refusal}"
            held = Hold(demand.milli, demand.count, demand.is_whole, self.devices(row).choose(demand))
            self._hold(pod.uid, row, held)
        return {GPU_DEVICES: devices_text(held.devices)}

    def place(self, pod: Pod, row: int) -> None:
        """Accounts a bound pod by its request and annotations; bad ones count conservatively, see DeviceRow."""
        hold = hold_of(pod)
        known = self._row_of.get(pod.uid)
        if hold is None:
            self.give(pod.uid)
        elif known != row or self._rows[row].holds[pod.uid] != hold:
            self._hold(pod.uid, row, hold)

    def give(self, uid: str) -> None:
        row = self._row_of.pop(uid, None)
        if row is not None:
            self._rows[row].give(uid)
            self._mirror(row)

    def set_node(self, row: int, node: Node | None) -> None:
        devices = self._rows.get(row)
        if devices is None:
            devices = self._rows[row] = DeviceRow()
        before = (devices.device_count, devices.is_honoured)
        devices.set_node(node)
        if (devices.device_count, devices.is_honoured) != before:
            self._mirror(row)
        self._drop_if_empty(row)

    def held(self) -> Mapping[str, object]:
        """uid -> (row, Hold)."""
        return {uid: (row, self._rows[row].holds[uid]) for uid, row in self._row_of.items()}

    def twin(self) -> GpuLedger:
        return GpuLedger()

    # -- reading ---------------------------------------------------------------------------------------------------

    def devices(self, row: int) -> DeviceRow:
        """The row's books, to read; `copy()` them for an overlay."""
        return self._rows.get(row) or DeviceRow()

    def free(self, rows: Rows) -> Milli:
        """int16[len(rows), devices]: milli free, ABSENT where the node has no such device."""
        return self._free[self._covered(rows)]

    def has_whole(self, rows: Rows) -> Bools:
        """bool[len(rows)]: a pod holds whole devices there."""
        return self._has_whole[self._covered(rows)]

    def has_fractions(self, rows: Rows) -> Bools:
        """bool[len(rows)]: a pod holds a fraction there."""
        return self._has_fractions[self._covered(rows)]

    def is_honoured(self, rows: Rows) -> Bools:
        """bool[len(rows)]: the node's device plugin takes the devices that the annotation names."""
        return self._is_honoured[self._covered(rows)]

    # -- keeping ---------------------------------------------------------------------------------------------------

    def _covered(self, rows: Rows) -> Rows:
        """The same rows, once the arrays reach to the last of them."""
        if len(rows):
            self._grow_rows(int(rows.max()) + 1)
        return rows

    def _hold(self, uid: str, row: int, hold: Hold) -> None:
        if self._row_of.get(uid, row) != row:
            self.give(uid)
        if row not in self._rows:
            self._rows[row] = DeviceRow()
        self._rows[row].hold(uid, hold)
        self._row_of[uid] = row
        self._mirror(row)

    def _mirror(self, row: int) -> None:
        """Writes a row's books to the arrays and raises its version."""
        self._grow_rows(row + 1)
        devices = self._rows[row]
        count = devices.device_count
        while count > self._free.shape[1]:
            wider = np.full((len(self._free), 2 * self._free.shape[1]), ABSENT, np.int16)
            wider[:, : self._free.shape[1]] = self._free
            self._free = wider
        self._free[row, :count] = devices.free
        self._free[row, count:] = ABSENT
        self._has_whole[row] = devices.has_whole
        self._has_fractions[row] = devices.has_fractions
        self._is_honoured[row] = devices.is_honoured
        self._version[row] += 1

    def _grow_rows(self, needed: int) -> None:
        size = len(self._version)
        if needed <= size:
            return
        while size < needed:
            size *= 2
        more = size - len(self._version)
        self._version = np.concatenate([self._version, np.zeros(more, np.int64)])
        self._free = np.concatenate([self._free, np.full((more, self._free.shape[1]), ABSENT, np.int16)])
        empty = np.zeros(more, np.bool_)
        self._has_whole = np.concatenate([self._has_whole, empty])
        self._has_fractions = np.concatenate([self._has_fractions, empty])
        self._is_honoured = np.concatenate([self._is_honoured, empty])

    def _drop_if_empty(self, row: int) -> None:
        """Rows without devices and holds cost nothing: most nodes have no GPU."""
        devices = self._rows[row]
        if not devices.holds and not devices.device_count:
            del self._rows[row]
