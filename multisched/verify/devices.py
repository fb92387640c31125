"""GPU devices, by the gpu domain's documentation of its annotations (domains/gpu/README.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from multisched.verify.findings import Fault
from multisched.verify.objects import Node, Pod

GPU = "nvidia.com/gpu"
MILLI = "multisched.io/gpu-milli"
COUNT = "multisched.io/gpu-count"
"""Number of devices that the author requests a part of."""
ALLOCATED = "multisched.io/gpu-allocated-milli"
"""Written at bind: the allocated part of each device."""
DEVICES = "multisched.io/gpu-devices"
"""Written at bind: indices of devices, separated by commas."""
INDICES = "multisched.io/gpu-indices"
"""Node label; `honoured`: the device plugin allocates the devices that the annotation names."""

DEVICE_MILLI = 1000
DEVICES_MAX = 256


class DeviceUsage:
    """Thousandths of each device of one node that its pods hold, and pods with whole devices."""

    def __init__(self, node: Node, is_ours: Callable[[Pod], bool]) -> None:
        """`is_ours`: whether the scheduler that writes the annotations bound the pod; annotations of other pods hold nothing."""
        self._is_ours = is_ours
        self._count = (node.allocatable or {}).get(GPU, 0)
        self._capacity = node.capacity.get(GPU, 0)
        self._is_honoured = node.labels.get(INDICES) == "honoured"
        self._used: dict[int, int] = {}
        self._unnamed = 0
        """Whole devices held by pods, of unknown index."""
        self._whole = ""
        self._shared = ""
        """A pod of each kind."""

    def _shared_milli(self, pod: Pod) -> int:
        return shared_milli(pod) if self._is_ours(pod) else 0

    def _devices(self, pod: Pod) -> Sequence[int]:
        """Returns the devices that the pod holds. An unreadable list means all; a pod with whole devices must list as many."""
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
        """Yields at most one fault: a pod with several faults counts once."""
        milli, whole = self._shared_milli(pod), _whole(pod)
        if not milli and not whole:
            return
        beside = "" if self._is_honoured else (self._whole if milli else self._shared)
        if beside:
            yield Fault("devices", f"whole and shared GPUs are used on one node: {beside} is there, too")
            return
        if not milli and not self._is_honoured:
            return  # the kubelet chooses the devices; their number is checked as a resource
        for device in self._devices(pod):
            if device >= self._count:
                message = f"it has device {device}, but the node has {self._count} devices"
                yield Fault("devices", message, is_sure=device >= self._capacity)
                return
            held = self._used.get(device, 0) + (milli or DEVICE_MILLI)
            if held > DEVICE_MILLI:
                yield Fault(
                    "devices", f"with it, {held} of {DEVICE_MILLI} thousandths of device {device} are allocated"
                )
                return
        yield from self._unnamed_faults(pod, whole)

    def _unnamed_faults(self, pod: Pod, whole: int) -> Iterator[Fault]:
        """Checks that named and unnamed whole devices together do not exceed those of the node."""
        devices = self._devices(pod)
        named = sum(device < self._count for device in {*self._used, *devices})
        unnamed = self._unnamed + (0 if devices else whole)
        if unnamed and named + unnamed > self._count:
            message = f"with it, pods hold {named} named GPUs and {unnamed} others, of {self._count}"
            yield Fault("devices", message, is_sure=named + unnamed > self._capacity)


def shared_milli(pod: Pod) -> int:
    """Returns what it holds of each of its devices; 0 if it shares none. An unreadable amount counts as a whole device."""
    if DEVICES not in pod.annotations or _whole(pod):
        return 0
    return _milli(pod.annotations.get(ALLOCATED)) or _milli(pod.annotations.get(MILLI)) or DEVICE_MILLI


def shared_total_milli(annotations: Mapping[str, object], *, has_node: bool) -> int:
    """Returns thousandths of devices that a pod without whole devices holds or requests, in total; 0 for none.

    For a pod without a node, only the author's annotations count, and only if both are readable.
    """
    texts = {key: str(annotations[key]) for key in (MILLI, COUNT, ALLOCATED, DEVICES) if key in annotations}
    if not has_node:
        return _milli(texts.get(MILLI)) * _number(texts.get(COUNT, "1"), DEVICES_MAX)
    if DEVICES not in texts:
        return 0
    milli = _milli(texts.get(ALLOCATED)) or _milli(texts.get(MILLI)) or DEVICE_MILLI
    return milli * (len(_listed(texts[DEVICES])) or 1)


def _milli(written: str | None) -> int:
    """Parses 1 to 1000; returns 0 for anything else."""
    return _number(written, DEVICE_MILLI)


def _number(written: str | None, most: int) -> int:
    """Parses 1 to `most`; returns 0 for anything else."""
    if written is None or not (written.isascii() and written.isdigit() and len(written) <= 4):
        return 0
    return int(written) if 1 <= int(written) <= most else 0


def devices_of(pod: Pod) -> tuple[int, ...]:
    """Returns the device indices that the scheduler wrote; none if the annotation is missing or unreadable."""
    return _listed(pod.annotations.get(DEVICES, ""))


def _listed(written: str) -> tuple[int, ...]:
    parts = [part.strip() for part in written.split(",", DEVICES_MAX)]
    good = [part for part in parts if part.isascii() and part.isdigit() and len(part) <= 3 and int(part) < DEVICES_MAX]
    return tuple(sorted({int(part) for part in good})) if len(good) == len(parts) else ()


def _whole(pod: Pod) -> int:
    return pod.demand.most.get(GPU, 0)
