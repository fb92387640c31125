"""Where a pod that requests GPUs certainly fits, by plain arithmetic on requests and annotations.

The scheduler chooses the device of a fraction, so that the same pods may fill a node or not. But if each placed pod has devices of
its own, and as many devices are left as the pod requests, it fits with any choice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from multisched.model.objects import Node, Pod
from multisched.verify.devices import requested_total_milli
from tests.kit.world.labels import CARDS, GPU, GPU_DEVICES, GPU_INDICES, GPU_MILLI, HONOURED

OURS = "multisched.io/gpu"
"""Prefix of the annotations about devices."""
WHOLE_MILLI = 1000


def wants_devices(pod: Pod) -> bool:
    return bool(pod.requests.get(GPU)) or any(key.startswith(OURS) for key in pod.annotations)


def surely_fits(pod: Pod, node: Node, there: Collection[Pod]) -> bool:
    """Reports whether the node has devices for the pod, with any choice of devices for the pods on it; False if that is unknown."""
    if CARDS in node.labels:
        return False
    whole, fraction, offered = pod.requests.get(GPU, 0), fraction_wanted(pod.annotations), node.allocatable.get(GPU, 0)
    if bool(whole) == bool(fraction) or (whole and any(key.startswith(OURS) for key in pod.annotations)):
        return not wants_devices(pod)
    used, is_honoured = 0, node.labels.get(GPU_INDICES) == HONOURED
    for other in there:
        theirs, held = other.requests.get(GPU, 0), _fraction_held(other, offered)
        if held is None or (is_honoured and theirs and other.node and not _named(other, offered)):
            return False
        if not is_honoured and ((whole and held) or (fraction and theirs)):
            return False
        used += theirs + held
    return used + whole + fraction <= offered


def fault_of_choice(free: Sequence[int], devices: Collection[int], milli: int) -> str:
    """Returns what is wrong with the devices chosen for a fraction; empty for nothing. The devices with the least sufficient room
    must be chosen.

    `free`: room of each device before the choice.
    """
    others = [free[at] for at in range(len(free)) if at not in devices and free[at] >= milli]
    most = max(free[at] for at in devices)
    return (
        f"devices with {most} milli free were chosen, and one has {min(others)}"
        if min(others, default=most) < most
        else ""
    )


def fraction_wanted(annotations: Mapping[str, str]) -> int:
    """Returns the number of devices of which the pod requests a part; 0 for none, or for invalid annotations."""
    total_milli = requested_total_milli(annotations)
    return total_milli // int(annotations[GPU_MILLI]) if total_milli else 0


def _fraction_held(pod: Pod, offered: int) -> int | None:
    """Returns the number of devices of which a placed or assumed pod has a part; None if unknown."""
    if not pod.spec.scheduler_name.startswith("gpu") or pod.requests.get(GPU):
        return 0
    if not pod.annotations.get(GPU_DEVICES):
        return fraction_wanted(pod.annotations) if not pod.node else 0
    return _named(pod, offered) or None


def _named(pod: Pod, offered: int) -> int:
    """Returns the number of devices in the pod's annotation; 0 if the node does not have all of them."""
    devices = [_number(text) for text in pod.annotations.get(GPU_DEVICES, "").split(",")]
    return len(devices) if all(0 <= device < offered for device in devices) else 0


def _number(text: str) -> int:
    """Returns the number; -1 for other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else -1
