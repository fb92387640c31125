"""GPU demands of pods: whole devices by resource request, fractions by annotation; and the names of all annotations.

Pure functions over pods. An invalid demand is a value with a `problem`, with which pending pods are refused. `hold.py`
computes what a placed pod holds.
"""

from __future__ import annotations

import msgspec

from multisched.model.objects import Pod

GPU = "nvidia.com/gpu"
GPU_MILLI = "multisched.io/gpu-milli"
GPU_COUNT = "multisched.io/gpu-count"
GPU_DEVICES = "multisched.io/gpu-devices"
GPU_ALLOCATED = "multisched.io/gpu-allocated-milli"
DEMAND_ANNOTATIONS = (GPU_MILLI, GPU_COUNT)
"""Written by the pod's author, before it is bound."""
ALLOCATION_ANNOTATIONS = (GPU_DEVICES, GPU_ALLOCATED)
"""Written by the scheduler, with the binding."""
GPU_INDICES = "multisched.io/gpu-indices"
"""Node label. Its value `honoured` means that the node's device plugin allocates the devices in the pod's annotation."""
HONOURED = "honoured"

DEVICE_MILLI = 1000
"""Thousandths of a whole device."""
DEVICES_MAX = 256
"""Maximum number of devices per node; further devices are not used."""
_TEXT_SHOWN = 32


class GpuDemand(msgspec.Struct, frozen=True):
    """A demand for `milli` of each of `count` devices. Whole devices are exclusive, and the kubelet allocates them."""

    milli: int
    count: int
    is_whole: bool
    problem: str = ""
    """The problem with the pod's annotations, and the fix; empty for a valid demand."""


def has_demand(pod: Pod) -> bool:
    """Reports whether the pod requests GPUs in any way, valid or not."""
    annotations = pod.annotations
    return GPU_MILLI in annotations or GPU_COUNT in annotations or pod.requests.get(GPU, 0) > 0


def demand_of(pod: Pod) -> GpuDemand | None:
    """Returns the pod's demand; None if it requests no GPU."""
    whole = pod.requests.get(GPU, 0)
    milli_text, count_text = pod.annotations.get(GPU_MILLI), pod.annotations.get(GPU_COUNT)
    if milli_text is None and count_text is None:
        return GpuDemand(DEVICE_MILLI, min(whole, DEVICES_MAX + 1), is_whole=True) if whole > 0 else None
    if whole > 0:
        extra = GPU_MILLI if milli_text is not None else GPU_COUNT
        problem = f"annotation {extra}: the pod also requests whole {GPU}; remove the annotation or the request"
        return GpuDemand(DEVICE_MILLI, min(whole, DEVICES_MAX + 1), is_whole=True, problem=problem)
    milli = integer_within(milli_text, DEVICE_MILLI)
    count = 1 if count_text is None else integer_within(count_text, DEVICES_MAX)
    problem = ""
    if milli_text is None:
        problem = f"annotation {GPU_COUNT}: requires {GPU_MILLI}; write how much of each device the pod takes"
    elif milli is None:
        problem = f"annotation {GPU_MILLI}: {_shown(milli_text)} is not an integer of 1..{DEVICE_MILLI}"
        problem += f"; write thousandths of one device, or request {GPU} for several whole ones"
    elif count is None:
        problem = f"annotation {GPU_COUNT}: {_shown(count_text or '')} is not an integer of 1..{DEVICES_MAX}"
        problem += "; write the number of devices"
    return GpuDemand(milli or DEVICE_MILLI, count or 1, is_whole=False, problem=problem)


def devices_of(pod: Pod) -> tuple[int, ...]:
    """Returns the device indices in the pod's annotation, ascending; empty if it is missing or invalid."""
    text = pod.annotations.get(GPU_DEVICES, "")
    if len(text) > 8 * DEVICES_MAX:
        return ()
    found = [_index(part.strip()) for part in text.split(",")]
    devices = {index for index in found if index is not None}
    return tuple(sorted(devices)) if len(devices) == len(found) else ()


def devices_text(devices: tuple[int, ...]) -> str:
    """Returns the annotation's value, for example `0,1`."""
    return ",".join(map(str, devices))


def integer_within(text: str | None, largest: int) -> int | None:
    """Returns the integer in the text if it is within 1..largest, otherwise None."""
    if text is None or len(text) > len(str(largest)) or not (text.isascii() and text.isdigit()):
        return None
    return int(text) if 1 <= int(text) <= largest else None


def _index(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 4 and int(text) < DEVICES_MAX else None


def _shown(text: str) -> str:
    return repr(text[:_TEXT_SHOWN])
