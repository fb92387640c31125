"""GpuLedger: the amounts of GPU devices that pods hold, on every node, for all domains of the process.

Owns the device rows and mirrors them in arrays over rows, which GpuShare reads. No device is overcommitted beyond 1000
milli (I1). If a node's device plugin chooses devices itself, whole and fractional pods never share the node, since the
kubelet could allocate a shared device to a whole pod. A pod's hold is fixed when it is taken, or when the pod is first seen on
its node; later changes of a running pod do not change it. Written only by the cache and commit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from domains.gpu.demand import (
    ALLOCATION_ANNOTATIONS,
    DEMAND_ANNOTATIONS,
    DEVICE_MILLI,
    GPU,
    GPU_DEVICES,
    GPU_MILLI,
    GpuDemand,
    demand_of,
    devices_text,
)
from domains.gpu.device_row import ABSENT, DeviceRow
from domains.gpu.hold import Hold, hold_of, may_hold
from multisched.framework.device_demand import NO_DEMAND
from multisched.framework.node_view import Bools, Int64, Rows
from multisched.model.objects import Node, Pod

ROWS_FIRST, DEVICES_FIRST = 64, 8
"""Initial sizes of the arrays; both double when needed."""

SUMS = 6
VERSION, WHOLE_FREE, USED_PERCENT, IS_HELD, BARS_WHOLE, BARS_FRACTIONS = range(SUMS)
"""Rows of the array of sums, with one column per node row."""

Milli = NDArray[np.int16]
"""Thousandths of a device, 0..DEVICE_MILLI, or ABSENT."""


class GpuLedger:
    """Implements `AnnotatedLedger`, `DeviceLedger`, `SummingLedger` and `ChoiceLedger` of `framework.ledger`.

    A choice is a tuple of device indices.
    """

    name = "gpu-devices"
    annotations = frozenset((*DEMAND_ANNOTATIONS, *ALLOCATION_ANNOTATIONS))
    written = frozenset(ALLOCATION_ANNOTATIONS)

    def __init__(self, served: frozenset[str] | None = None) -> None:
        """`served`: the schedulerNames of this program's domains; None: all names."""
        self._served = served
        self._rows: dict[int, DeviceRow] = {}
        self._row_of: dict[str, int] = {}
        self._ranked: Milli = np.full((DEVICES_FIRST, ROWS_FIRST), ABSENT, np.int16)
        self._sums: Int64 = np.zeros((SUMS, ROWS_FIRST), np.int64)

    # -- Ledger ----------------------------------------------------------------------------------------------------

    def concerns(self, pod: Pod) -> bool:
        return may_hold(pod)

    def version(self, row: int) -> int:
        return int(self._sums[VERSION, row]) if row < self._sums.shape[1] else 0

    def fits(self, pod: Pod, row: int, choice: object = None) -> str:
        """Returns why `take` would fail on the row, as text for users; empty if it would succeed."""
        demand = demand_of(pod)
        if demand is None:
            return ""
        held = self.hold(pod.uid, row)
        if held is not None:
            return "" if choice in (None, held.devices) else f"the pod holds GPUs {devices_text(held.devices)} there"
        devices = self.devices(row)
        return devices.refusal(demand) if choice is None else devices.refusal_of(demand, _indices(choice))

    def take(self, pod: Pod, row: int, choice: object = None) -> Mapping[str, str]:
        """Takes the chosen devices, by default the best-fitting ones, and returns the annotations with them.

        Returns the same devices if the pod already holds some there. Fails an assertion if the demand does not fit, and
        raises TypeError or ValueError for an invalid choice.
        """
        demand = demand_of(pod)
        if demand is None:
            return {}
        refusal = self.fits(pod, row, choice)
        assert not refusal, f"I1: pod {pod.key} takes GPUs where they do not fit: {refusal}"
        held = self.hold(pod.uid, row)
        if held is None:
            devices = self.devices(row).choose(demand) if choice is None else _indices(choice)
            held = Hold(demand.milli, demand.count, demand.is_whole, devices)
            self._hold(pod.uid, row, held)
        return held.annotations()

    def restore(self, pod: Pod, row: int) -> None:
        """Adds a bound pod's hold, from its spec and the annotations written at bind. Keeps an existing hold on this row."""
        if self._row_of.get(pod.uid) == row:
            return
        hold = self._hold_of(pod)
        if hold is None:
            self.release(pod.uid)
        else:
            self._hold(pod.uid, row, hold)

    def release(self, uid: str) -> None:
        row = self._row_of.pop(uid, None)
        if row is not None:
            self._rows[row].give(uid)
            self._mirror(row)

    def set_node(self, row: int, node: Node | None) -> None:
        devices = self._rows.get(row)
        if devices is None:
            if not DeviceRow.is_for(node):
                return
            devices = self._rows[row] = DeviceRow()
        before = (devices.device_count, devices.is_honoured)
        devices.set_node(node)
        if (devices.device_count, devices.is_honoured) != before:
            self._mirror(row)
        self._drop_if_empty(row)

    def held(self) -> Mapping[str, object]:
        """Returns uid -> (row, Hold)."""
        return {uid: (row, self._rows[row].holds[uid]) for uid, row in self._row_of.items()}

    def empty_copy(self) -> GpuLedger:
        return GpuLedger(self._served)

    def sums(self, row: int) -> object:
        """Returns the row's entries in the two arrays that filters and scores read."""
        self._grow_rows(row + 1)
        ranked = self._ranked[:, row]
        return ranked[ranked != ABSENT].tolist(), self._sums[VERSION + 1 :, row].tolist()

    def recount(self, row: int) -> None:
        self._rows.setdefault(row, DeviceRow()).renew()
        self._mirror(row)
        self._drop_if_empty(row)

    def device_demand(self, pod: Pod) -> Mapping[str, int]:
        """See `framework.ledger.DeviceLedger`. Whole devices are in the pod's requests already; an invalid demand counts as none."""
        annotations = pod.annotations
        if GPU_MILLI not in annotations and GPU_DEVICES not in annotations:
            return NO_DEMAND
        found = self._hold_of(pod) if pod.node else demand_of(pod)
        if found is None or found.is_whole or (isinstance(found, GpuDemand) and found.problem):
            return NO_DEMAND
        return {GPU: found.milli * found.count}

    # -- reading ---------------------------------------------------------------------------------------------------

    def devices(self, row: int) -> DeviceRow:
        """Returns the row's devices, read only; use `copy()` for an overlay."""
        return self._rows.get(row) or DeviceRow()

    def hold(self, uid: str, row: int) -> Hold | None:
        """Returns the pod's hold on this row; None if it has none."""
        return self._rows[row].holds[uid] if self._row_of.get(uid) == row else None

    def room(self, rows: Rows, count: int) -> Milli:
        """Returns int16[len(rows)]: milli free on each of the `count` freest devices; ABSENT if the node has fewer."""
        if count > len(self._ranked):
            return np.full(len(rows), ABSENT, np.int16)
        at = self._at(rows)
        return self._ranked[count - 1, at]

    def ranked(self, rows: Rows) -> Milli:
        """Returns int16[devices, len(rows)]: milli free per device, the freest first; ABSENT beyond the last device."""
        at = self._at(rows)
        return self._ranked[:, at]

    def whole_free(self, rows: Rows) -> Int64:
        """Returns int64[len(rows)]: number of completely free devices."""
        return self._sum(WHOLE_FREE, rows)

    def used_percent(self, rows: Rows) -> Int64:
        """Returns int64[len(rows)], 0..100: the held percentage of all devices."""
        return self._sum(USED_PERCENT, rows)

    def is_held(self, rows: Rows) -> Bools:
        """Returns bool[len(rows)]: whether any pod holds GPUs on the row."""
        return self._sum(IS_HELD, rows) > 0

    def bars(self, rows: Rows, *, is_whole: bool) -> Bools:
        """Returns bool[len(rows)]: whether pods of the other kind exclude this kind from the node, whatever is free."""
        return self._sum(BARS_WHOLE if is_whole else BARS_FRACTIONS, rows) > 0

    def _sum(self, which: int, rows: Rows) -> Int64:
        at = self._at(rows)
        return self._sums[which, at]

    # -- updates ---------------------------------------------------------------------------------------------------

    def _at(self, rows: Rows) -> Rows | slice:
        """Returns the index of these rows (ascending): a slice, which avoids copies, if they are contiguous.

        May replace the arrays by larger ones.
        """
        if not len(rows):
            return rows
        first, last = int(rows[0]), int(rows[-1])
        self._grow_rows(last + 1)
        return slice(first, last + 1) if last - first + 1 == len(rows) else rows

    def _hold_of(self, pod: Pod) -> Hold | None:
        return hold_of(pod, is_ours=self._served is None or pod.spec.scheduler_name in self._served)

    def _hold(self, uid: str, row: int, hold: Hold) -> None:
        if self._row_of.get(uid, row) != row:
            self.release(uid)
        if row not in self._rows:
            self._rows[row] = DeviceRow()
        self._rows[row].hold(uid, hold)
        self._row_of[uid] = row
        self._mirror(row)

    def _mirror(self, row: int) -> None:
        """Writes a row's devices to the arrays and increases the row's version."""
        self._grow_rows(row + 1)
        devices = self._rows[row]
        count = devices.device_count
        if count > len(self._ranked):
            more = max(count, 2 * len(self._ranked)) - len(self._ranked)
            self._ranked = np.pad(self._ranked, ((0, more), (0, 0)), constant_values=ABSENT)
        self._ranked[:count, row] = sorted(devices.free, reverse=True)
        self._ranked[count:, row] = ABSENT
        self._sums[:, row] = (
            self._sums[VERSION, row] + 1,
            devices.free.count(DEVICE_MILLI),
            100 - 100 * sum(devices.free) // (count * DEVICE_MILLI) if count else 0,
            bool(devices.holds),
            devices.has_fractions and not devices.is_honoured,
            devices.has_whole and not devices.is_honoured,
        )

    def _grow_rows(self, needed: int) -> None:
        size = self._sums.shape[1]
        if needed > size:
            more = max(needed, 2 * size) - size
            self._ranked = np.pad(self._ranked, ((0, 0), (0, more)), constant_values=ABSENT)
            self._sums = np.pad(self._sums, ((0, 0), (0, more)))

    def _drop_if_empty(self, row: int) -> None:
        """Drops a row without devices and holds, since most nodes have no GPU. Keeps one whose node honours indices."""
        devices = self._rows[row]
        if not devices.holds and not devices.device_count and not devices.is_honoured:
            del self._rows[row]


def _indices(choice: object) -> tuple[int, ...]:
    """Returns a plugin's choice as device indices. Raises TypeError if it is something else."""
    if not isinstance(choice, tuple) or not all(type(index) is int for index in choice):
        raise TypeError(f"{choice!r} is not a tuple of device indices")
    return choice
