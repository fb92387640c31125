"""What a pod asks of GPU devices: whole ones by resource request, fractions by annotation. And the names of all annotations.

Pure functions over pods. A demand that cannot be read is a value with its `problem`: pending pods are refused with that
sentence. What a pod on a node holds is another question (`hold.py`).
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
"""Node label. `honoured`: the node's device plugin takes the devices that the pod's annotation names."""
HONOURED = "honoured"

DEVICE_MILLI = 1000
"""A whole device."""
DEVICES_MAX = 256
"""Devices of one node that are known one by one; those beyond are not used."""
_TEXT_SHOWN = 32


class GpuDemand(msgspec.Struct, frozen=True):
    """`milli` of each of `count` devices. Whole devices belong to one pod alone and are handed out by the kubelet."""

    milli: int
    count: int
    is_whole: bool
    problem: str = ""
    """What is wrong with the pod's annotations, and the fix; empty for a good demand."""


def has_demand(pod: Pod) -> bool:
    """True if the pod asks for GPUs in any way, well formed or not."""
    annotations = pod.annotations
    return GPU_MILLI in annotations or GPU_COUNT in annotations or pod.requests.get(GPU, 0) > 0


def demand_of(pod: Pod) -> GpuDemand | None:
    """The pod's demand; None if it asks for no GPU."""
    whole = pod.requests.get(GPU, 0)
    milli_text, count_text = pod.annotations.get(GPU_MILLI), pod.annotations.get(GPU_COUNT)
    if milli_text is None and count_text is None:
        return GpuDemand(DEVICE_MILLI, min(whole, DEVICES_MAX + 1), is_whole=True) if whole > 0 else None
    if whole > 0:
        extra = GPU_MILLI if milli_text is not None else GPU_COUNT
        problem = f"annotation {extra}: the pod requests whole {GPU} too; remove the annotation or the request"
        return GpuDemand(DEVICE_MILLI, min(whole, DEVICES_MAX + 1), is_whole=True, problem=problem)
    milli = integer_within(milli_text, DEVICE_MILLI)
    count = 1 if count_text is None else integer_within(count_text, DEVICES_MAX)
    problem = ""
    if milli_text is None:
        problem = f"annotation {GPU_COUNT}: needs {GPU_MILLI} beside it; say how much of each device the pod takes"
    elif milli is None:
        problem = f"annotation {GPU_MILLI}: {_shown(milli_text)} is not an integer of 1..{DEVICE_MILLI}"
        problem += f"; write thousandths of one device, or request {GPU} for several whole ones"
    elif count is None:
        problem = f"annotation {GPU_COUNT}: {_shown(count_text or '')} is not an integer of 1..{DEVICES_MAX}"
        problem += "; write the number of devices"
    return GpuDemand(milli or DEVICE_MILLI, count or 1, is_whole=False, problem=problem)


def devices_of(pod: Pod) -> tuple[int, ...]:
    """The device indices in the pod's annotation, ascending; empty if there is none that can be read."""
    text = pod.annotations.get(GPU_DEVICES, "")
    if len(text) > 8 * DEVICES_MAX:
        return ()
    found = [_index(part.strip()) for part in text.split(",")]
    devices = {index for index in found if index is not None}
    return tuple(sorted(devices)) if len(devices) == len(found) else ()


def devices_text(devices: tuple[int, ...]) -> str:
    """The annotation's value, for instance `0,1`."""
    return ",".join(map(str, devices))


def integer_within(text: str | None, largest: int) -> int | None:
    """The integer that the text is, 1..largest, or None."""
    if text is None or len(text) > len(str(largest)) or not (text.isascii() and text.isdigit()):
        return None
    return int(text) if 1 <= int(text) <= largest else None


def _index(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 4 and int(text) < DEVICES_MAX else None


def _shown(text: str) -> str:
    return repr(text[:_TEXT_SHOWN])
