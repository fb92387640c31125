"""The devices of one node and the amounts that pods hold of them: the arithmetic of ledger and overlays.

Each row has one owner: the ledger or, for a copy, the cycle state of an overlay. Free amounts are always recomputed from the
holds and never updated incrementally, so they cannot become inconsistent.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from domains.gpu.demand import DEVICE_MILLI, DEVICES_MAX, GPU, GPU_INDICES, HONOURED, GpuDemand
from domains.gpu.hold import Hold
from multisched.model.objects import Node

ABSENT = -1
"""The free amount of a device that the node does not have."""
WHOLE_BESIDE_FRACTIONS = "node(s) had GPUs shared by fractional pods"
FRACTION_BESIDE_WHOLE = "node(s) had GPUs taken by whole-GPU pods"
TOO_FEW_WHOLE = f"Insufficient {GPU}"
TOO_LITTLE_MILLI = "Insufficient gpu-milli"
CHOSEN_WITHOUT_ROOM = "the chosen GPUs no longer have enough free capacity"


class DeviceRow:
    """Devices of a node, and the holds on them by pod uid.

    The devices of a hold may be unknown: the pod was bound by another scheduler, or its devices are currently missing. Such a
    hold counts so that no choice of the kubelet can overcommit a device: a fraction counts on every device; a whole pod
    counts on every device of a node that honours indices, otherwise as that many arbitrary devices. If indices are not
    honoured, two whole pods may name the same device, for example because another program wrote the annotation. They
    still count as one device each.
    """

    __slots__ = ("device_count", "free", "has_fractions", "has_whole", "holds", "is_honoured")

    def __init__(self) -> None:
        self.device_count = 0
        self.is_honoured = False
        self.holds: dict[str, Hold] = {}
        self.free: list[int] = []
        """Milli free per device, 0..DEVICE_MILLI."""
        self.has_whole = False
        self.has_fractions = False

    def copy(self) -> DeviceRow:
        copied = DeviceRow()
        copied.device_count, copied.is_honoured = self.device_count, self.is_honoured
        copied.holds, copied.free = dict(self.holds), list(self.free)
        copied.has_whole, copied.has_fractions = self.has_whole, self.has_fractions
        return copied

    @staticmethod
    def is_for(node: Node | None) -> bool:
        """Reports whether the node has devices or the label about indices."""
        return node is not None and bool(node.allocatable.get(GPU) or node.labels.get(GPU_INDICES) == HONOURED)

    def set_node(self, node: Node | None) -> None:
        self.device_count = 0 if node is None else max(0, min(DEVICES_MAX, node.allocatable.get(GPU, 0)))
        self.is_honoured = node is not None and node.labels.get(GPU_INDICES) == HONOURED
        self.renew()

    def hold(self, uid: str, hold: Hold) -> None:
        self.holds[uid] = hold
        self.renew()

    def give(self, uid: str) -> None:
        self.holds.pop(uid, None)
        self.renew()

    # -- queries ---------------------------------------------------------------------------------------------------

    def refusal(self, demand: GpuDemand) -> str:
        """Returns why the demand does not fit; empty if it fits."""
        if demand.problem:
            return demand.problem
        if demand.is_whole:
            if self.has_fractions and not self.is_honoured:
                return WHOLE_BESIDE_FRACTIONS
            return "" if self.free.count(DEVICE_MILLI) >= demand.count else TOO_FEW_WHOLE
        if self.has_whole and not self.is_honoured:
            return FRACTION_BESIDE_WHOLE
        return "" if sum(free >= demand.milli for free in self.free) >= demand.count else TOO_LITTLE_MILLI

    def refusal_of(self, demand: GpuDemand, devices: tuple[int, ...]) -> str:
        """Returns why the demand does not fit on these devices; empty if it fits. Raises ValueError for an invalid choice."""
        wanted = set(devices)
        if len(wanted) != demand.count or tuple(sorted(wanted)) != devices:
            raise ValueError(f"{devices} are not {demand.count} devices in ascending order")
        are_there = devices[0] >= 0 and devices[-1] < self.device_count
        has_room = are_there and all(self.free[device] >= demand.milli for device in devices)
        return self.refusal(demand) or ("" if has_room else CHOSEN_WITHOUT_ROOM)

    def choose(self, demand: GpuDemand) -> tuple[int, ...]:
        """Returns the best-fitting devices: the least free ones that are enough, lowest index first. Requires an empty `refusal`."""
        fitting = [(free, index) for index, free in enumerate(self.free) if free >= demand.milli]
        assert len(fitting) >= demand.count, f"I1: {demand} taken where it does not fit: {self.free}"
        return tuple(sorted(index for _, index in sorted(fitting)[: demand.count]))

    # -- updates ---------------------------------------------------------------------------------------------------

    def renew(self) -> None:
        """Recomputes the free amounts: first holds with known devices, then the others.

        Processes holds in the order of uids, so that equal holds give equal results.
        """
        used = [0] * self.device_count
        anywhere = 0
        whole_anywhere = 0
        for _, hold in sorted(self.holds.items(), key=itemgetter(0)):
            is_known = bool(hold.devices) and hold.devices[-1] < self.device_count
            is_counted = hold.is_whole and not self.is_honoured
            if is_known and not (is_counted and any(used[device] for device in hold.devices)):
                for device in hold.devices:
                    used[device] += hold.milli
            elif is_counted:
                whole_anywhere += hold.count
            else:
                anywhere += hold.milli
        self.free = [max(0, DEVICE_MILLI - anywhere - milli) for milli in used]
        _take_whole(self.free, whole_anywhere)
        self.has_whole = any(hold.is_whole for hold in self.holds.values())
        self.has_fractions = any(not hold.is_whole for hold in self.holds.values())


def _take_whole(free: list[int], count: int) -> None:
    """Marks `count` devices as used, completely free ones first, since no whole pod can be on the others."""
    for device in _freest_first(free)[:count]:
        free[device] = 0


def _freest_first(free: Sequence[int]) -> list[int]:
    return sorted(range(len(free)), key=lambda device: (-free[device], device))
