"""What a pod that stands on a node holds of its devices: by its spec and by what the scheduler wrote when it was bound.

Pure functions over pods. What the pod's author wrote is not asked. It may change while the pod runs; anybody may write
it into a pod that no scheduler of ours bound. README.md states the same for programs that read these annotations.
"""

from __future__ import annotations

import msgspec

from domains.gpu.demand import (
    DEVICE_MILLI,
    DEVICES_MAX,
    GPU,
    GPU_ALLOCATED,
    GPU_DEVICES,
    GPU_MILLI,
    devices_of,
    devices_text,
    has_demand,
    integer_within,
)
from multisched.model.objects import Pod


class Hold(msgspec.Struct, frozen=True):
    """What one pod holds. No `devices`: nobody knows which ones, see `DeviceRow`."""

    milli: int
    count: int
    is_whole: bool
    devices: tuple[int, ...]

    def annotations(self) -> dict[str, str]:
        """What the binding carries. The amount of whole devices is in the pod's spec, which nobody changes."""
        devices = {GPU_DEVICES: devices_text(self.devices)}
        return devices if self.is_whole else {**devices, GPU_ALLOCATED: str(self.milli)}


def may_hold(pod: Pod) -> bool:
    """True if the pod asks for devices, or says that it was given some."""
    return GPU_DEVICES in pod.annotations or has_demand(pod)


def hold_of(pod: Pod, *, is_ours: bool) -> Hold | None:
    """What a pod on a node holds; None if it holds no device. `is_ours`: a scheduler of this program serves it.

    Whole devices count for any scheduler's pod: the kubelet hands them out by the request. A fraction is known to its
    scheduler alone, so that only the annotation of one of ours says that it was given one.
    """
    whole = pod.requests.get(GPU, 0)
    if whole > 0:
        count = min(whole, DEVICES_MAX + 1)
        devices = devices_of(pod)
        return Hold(DEVICE_MILLI, count, is_whole=True, devices=devices if len(devices) == count else ())
    if not is_ours or GPU_DEVICES not in pod.annotations:
        return None
    devices = devices_of(pod)
    return Hold(_allocated_milli(pod), len(devices) or 1, is_whole=False, devices=devices)


def _allocated_milli(pod: Pod) -> int:
    """What was written at bind; else what the pod asks for; else a whole device, since nobody knows."""
    written = integer_within(pod.annotations.get(GPU_ALLOCATED), DEVICE_MILLI)
    return written or integer_within(pod.annotations.get(GPU_MILLI), DEVICE_MILLI) or DEVICE_MILLI
