"""What a placed pod holds of the node's devices, from its spec and the annotations that the scheduler wrote at bind.

Pure functions over pods. Annotations of the pod's author are used only as a fallback: they may change while the pod runs, and
any user can set them on a pod that this program did not bind. README.md states these rules for programs that read the
annotations.
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
    """What one pod holds. Empty `devices`: the devices are unknown, see `DeviceRow`."""

    milli: int
    count: int
    is_whole: bool
    devices: tuple[int, ...]

    def annotations(self) -> dict[str, str]:
        """Returns the annotations of the binding. The amount of whole devices is in the pod's spec, which is immutable."""
        devices = {GPU_DEVICES: devices_text(self.devices)}
        return devices if self.is_whole else {**devices, GPU_ALLOCATED: str(self.milli)}


def may_hold(pod: Pod) -> bool:
    """Reports whether the pod requests devices or has an annotation with allocated ones."""
    return GPU_DEVICES in pod.annotations or has_demand(pod)


def hold_of(pod: Pod, *, is_ours: bool) -> Hold | None:
    """Returns what a placed pod holds; None if it holds no device. `is_ours`: it has one of this program's schedulerNames.

    Whole devices count for pods of any scheduler, because the kubelet allocates them by the request. A fraction is known only
    to its scheduler, so the annotation counts only for pods of this program.
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
    """Returns the amount written at bind; if it is invalid, the requested amount; if that is invalid, too, a whole device."""
    written = integer_within(pod.annotations.get(GPU_ALLOCATED), DEVICE_MILLI)
    return written or integer_within(pod.annotations.get(GPU_MILLI), DEVICE_MILLI) or DEVICE_MILLI
