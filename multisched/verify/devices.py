"""GPU devices, by what the gpu domain's documentation says of its annotations (domains/gpu/README.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from multisched.verify.findings import Fault
from multisched.verify.objects import Node, Pod

GPU = "nvidia.com/gpu"
MILLI = "multisched.io/gpu-milli"
COUNT = "multisched.io/gpu-count"
"""Of how many devices the author asks for a part."""
ALLOCATED = "multisched.io/gpu-allocated-milli"
"""Written at bind: what of each device was given."""
DEVICES = "multisched.io/gpu-devices"
"""Written at bind: indices, separated by commas."""
INDICES = "multisched.io/gpu-indices"
"""Node label; `honoured`: the device plugin gives out the devices that the annotation names."""

DEVICE_MILLI = 1000
DEVICES_MAX = 256


class DeviceUsage:
    """Thousandths of each device of one node that its pods hold, and who holds whole ones."""

    def __init__(self, node: Node, is_ours: Callable[[Pod], bool]) -> None:
        """`is_ours`: the scheduler that writes the annotations has bound the pod; what others wrote holds nothing."""
        self._is_ours = is_ours
        self._count = (node.allocatable or {}).get(GPU, 0)
        self._capacity = node.capacity.get(GPU, 0)
        self._is_honoured = node.labels.get(INDICES) == "honoured"
        self._used: dict[int, int] = {}
        self._unnamed = 0
        """Whole devices that pods have, nobody says which."""
        self._whole = ""
        self._shared = ""
        """A pod of either kind."""

    def _shared_milli(self, pod: Pod) -> int:
        return shared_milli(pod) if self._is_ours(pod) else 0

    def _devices(self, pod: Pod) -> Sequence[int]:
        """Those that the pod holds: a list that cannot be read stands for all, a whole pod's names as many as it has."""
        devices = devices_of(pod)
        if _whole(pod):
            return devices if len(devices) == _whole(pod) else ()
        return devices or range(self._count)

    def add(self, pod: Pod) -> None:
        milli = self._shared_milli(pod)
        if milli:
            self._shared = pod.key
        elif _whole(pod):
            self._whole = pod.key
        if milli or (self._is_honoured and _whole(pod)):
            devices = self._devices(pod)
            for device in devices:
                self._used[device] = self._used.get(device, 0) + (milli or DEVICE_MILLI)
            self._unnamed += 0 if devices else _whole(pod)

    def faults(self, pod: Pod) -> Iterator[Fault]:
        """At most one: a pod that stands wrong in several ways is still one pod."""
        milli, whole = self._shared_milli(pod), _whole(pod)
        if not milli and not whole:
            return
        beside = "" if self._is_honoured else (self._whole if milli else self._shared)
        if beside:
            yield Fault("devices", f"whole and shared GPUs meet on the node: {beside} is there")
            return
        if not milli and not self._is_honoured:
            return  # which devices it gets is the kubelet's choice, how many is a matter of resources
        for device in self._devices(pod):
            if device >= self._count:
                message = f"it was given device {device}, the node has {self._count}"
                yield Fault("devices", message, is_sure=device >= self._capacity)
                return
            held = self._used.get(device, 0) + (milli or DEVICE_MILLI)
            if held > DEVICE_MILLI:
                yield Fault("devices", f"with it device {device} is given out for {held} of {DEVICE_MILLI} thousandths")
                return
        yield from self._unnamed_faults(pod, whole)

    def _unnamed_faults(self, pod: Pod, whole: int) -> Iterator[Fault]:
        """Whole devices that nobody names are some of those that nobody has."""
        devices = self._devices(pod)
        named = sum(device < self._count for device in {*self._used, *devices})
        unnamed = self._unnamed + (0 if devices else whole)
        if unnamed and named + unnamed > self._count:
            message = f"with it {named} GPUs are named by pods and {unnamed} more held, of {self._count}"
            yield Fault("devices", message, is_sure=named + unnamed > self._capacity)


def shared_milli(pod: Pod) -> int:
    """What it holds of each of its devices; 0 for a pod that shares none. What cannot be read is a whole device."""
    if DEVICES not in pod.annotations or _whole(pod):
        return 0
    return _milli(pod.annotations.get(ALLOCATED)) or _milli(pod.annotations.get(MILLI)) or DEVICE_MILLI


def shared_total_milli(annotations: Mapping[str, object], *, has_node: bool) -> int:
    """Thousandths of all devices together of which a pod without whole ones has a part, or asks for one; 0 for none.

    Without a node only the author's annotations count, and only if both can be read.
    """
    texts = {key: str(annotations[key]) for key in (MILLI, COUNT, ALLOCATED, DEVICES) if key in annotations}
    if not has_node:
        return _milli(texts.get(MILLI)) * _number(texts.get(COUNT, "1"), DEVICES_MAX)
    if DEVICES not in texts:
        return 0
    milli = _milli(texts.get(ALLOCATED)) or _milli(texts.get(MILLI)) or DEVICE_MILLI
    return milli * (len(_listed(texts[DEVICES])) or 1)


def _milli(written: str | None) -> int:
    """1 to 1000; 0 for anything else."""
    return _number(written, DEVICE_MILLI)


def _number(written: str | None, most: int) -> int:
    """1 to `most`; 0 for anything else."""
    if written is None or not (written.isascii() and written.isdigit() and len(written) <= 4):
        return 0
    return int(written) if 1 <= int(written) <= most else 0


def devices_of(pod: Pod) -> tuple[int, ...]:
    """Indices of the devices that the scheduler wrote; none if there is no annotation that can be read."""
    return _listed(pod.annotations.get(DEVICES, ""))


def _listed(written: str) -> tuple[int, ...]:
    parts = [part.strip() for part in written.split(",", DEVICES_MAX)]
    good = [part for part in parts if part.isascii() and part.isdigit() and len(part) <= 3 and int(part) < DEVICES_MAX]
    return tuple(sorted({int(part) for part in good})) if len(good) == len(parts) else ()


def _whole(pod: Pod) -> int:
    return pod.demand.most.get(GPU, 0)
