"""The GPU devices that pods hold, according to the annotations of the node's sharing system, or else to those of the gpu domain.

Source of the latter: domains/gpu/README.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction

from multisched.verify.cards import NodeCards
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

WHOLE_NAMES = (GPU, "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe")
ALLOCATED_MIB = "multisched.io/gpu-allocated-mib"
"""In place of `ALLOCATED` for pods that request MiB (KAI's annotation gpu-memory)."""
FGD_MILLI, FGD_INDEX, FGD_COUNT = (f"alibabacloud.com/gpu-{what}" for what in ("milli", "index", "count"))
"""FGD: the author's amount; indices written at bind, separated by `-`; allocatable cards of a node."""
MEMORY_LABEL = "nvidia.com/gpu.memory"
"""Node label: MiB of each card."""


class CardUsage:
    """The amounts that a node's pods hold of each card that the node publishes, according to the annotations of its sharing system.

    Annotations of any scheduler count, since the device plugins allocate by them.
    """

    def __init__(self, node: Node, cards: NodeCards) -> None:
        self._name = node.name
        self._mode = cards.mode
        self._cards = cards.cards
        self._known_max = cards.known_max
        self._used: dict[tuple[str, str], int] = {}

    def add(self, pod: Pod) -> None:
        for card, measure, amount in self._amounts(pod):
            self._used[card, measure] = self._used.get((card, measure), 0) + amount

    def faults(self, pod: Pod) -> Iterator[Fault]:
        """Yields at most one fault: a pod with several faults counts once."""
        for card, measure, amount in self._amounts(pod):
            if card not in self._cards:
                message = f"it has card {card}, but the node publishes {len(self._cards)} cards without it"
                yield Fault("devices", message, is_sure=0 < self._known_max <= int(card))
                return
            size = self._cards[card].get(measure)
            held = self._used.get((card, measure), 0) + amount
            if size is not None and amount and held > size:
                yield Fault("devices", f"with it, pods hold {held} of {size} {UNITS[measure]} of card {card}")
                return

    def _amounts(self, pod: Pod) -> Iterator[tuple[str, str, int]]:
        """Yields card, measure and amount of everything that the pod holds here; nothing if the node's cards are unreadable."""
        held = pod.held.get(self._mode)
        if held is None or not self._cards or held.node not in ("", self._name):
            return
        for card, amounts in held.cards.items():
            for measure, amount in amounts.items():
                yield card, measure, amount


UNITS = {
    "memory": "units of memory",
    "cores": "percent of the cores",
    "ratio": "percent of memory",
    "sharers": "sharers",
}


class DeviceUsage:
    """Thousandths of each device of one node that its pods hold, and pods with whole devices."""

    def __init__(self, node: Node, is_ours: Callable[[Pod], bool]) -> None:
        """`is_ours`: whether the scheduler that writes the annotations bound the pod; annotations of other pods hold nothing."""
        self._is_ours = is_ours
        room = node.allocatable or {}
        name = next(
            (name for name in (*WHOLE_NAMES, FGD_COUNT) if room.get(name, 0) or node.capacity.get(name, 0)), GPU
        )
        self._count = room.get(name, 0)
        self._capacity = node.capacity.get(name, 0)
        self._memory_mib = number_of(node.labels.get(MEMORY_LABEL), MEMORY_MIB_MAX)
        self._is_honoured = node.labels.get(INDICES) == "honoured"
        self._used: dict[int, Fraction] = {}
        self._unnamed = 0
        """Whole devices held by pods, of unknown index."""
        self._whole = ""
        self._shared = ""
        """A pod of each kind."""

    def _share(self, pod: Pod) -> Fraction:
        """Returns the part of each of its devices that the pod holds; 0 if it shares none."""
        return share_of(pod, self._memory_mib) if self._is_ours(pod) else NO_SHARE

    def _devices(self, pod: Pod) -> Sequence[int]:
        """Returns the devices that the pod holds. An unreadable list means all; a pod with whole devices must list as many."""
        devices = devices_of(pod)
        if _whole(pod):
            return devices if len(devices) == _whole(pod) else ()
        return devices or range(self._count)

    def add(self, pod: Pod) -> None:
        share = self._share(pod)
        if share:
            self._shared = pod.key
        elif _whole(pod):
            self._whole = pod.key
        if share or (self._is_honoured and _whole(pod)):
            devices = self._devices(pod)
            for device in devices:
                self._used[device] = self._used.get(device, NO_SHARE) + (share or WHOLE_SHARE)
            self._unnamed += 0 if devices else _whole(pod)

    def faults(self, pod: Pod) -> Iterator[Fault]:
        """Yields at most one fault: a pod with several faults counts once."""
        share, whole = self._share(pod), _whole(pod)
        if not share and not whole:
            return
        other_kind = "" if self._is_honoured else (self._whole if share else self._shared)
        if other_kind:
            yield Fault("devices", f"whole and shared GPUs are used on one node: {other_kind} is there, too")
            return
        if not share and not self._is_honoured:
            return  # the kubelet chooses the devices; their number is checked as a resource
        for device in self._devices(pod):
            if device >= self._count:
                message = f"it has device {device}, but the node has {self._count} devices"
                yield Fault("devices", message, is_sure=device >= self._capacity)
                return
            held = self._used.get(device, NO_SHARE) + (share or WHOLE_SHARE)
            if held > WHOLE_SHARE:
                thousandths = math.ceil(held * DEVICE_MILLI)
                message = f"with it, {thousandths} of {DEVICE_MILLI} thousandths of device {device} are allocated"
                yield Fault("devices", message)
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


NO_SHARE, WHOLE_SHARE = Fraction(0), Fraction(1)
MEMORY_MIB_MAX = (1 << 44) // DEVICE_MILLI


def share_of(pod: Pod, memory_mib: int) -> Fraction:
    """Returns the part of each of its devices that a pod holds; 0 if it shares none. An unreadable amount counts as all.

    `memory_mib`: of one device; 0 if unknown.
    """
    annotations = pod.annotations
    if (DEVICES not in annotations and FGD_INDEX not in annotations) or _whole(pod):
        return NO_SHARE
    written = number_of(annotations.get(ALLOCATED_MIB), MEMORY_MIB_MAX)
    if DEVICES in annotations and written and ALLOCATED not in annotations:
        return Fraction(written, memory_mib) if memory_mib else WHOLE_SHARE
    requested = MILLI if DEVICES in annotations else FGD_MILLI
    return Fraction(
        milli_of(annotations.get(ALLOCATED)) or milli_of(annotations.get(requested)) or DEVICE_MILLI, DEVICE_MILLI
    )


def requested_total_milli(annotations: Mapping[str, str]) -> int:
    """Returns thousandths of devices that multisched's own annotations request, in total; 0 if one of them is unreadable."""
    return milli_of(annotations.get(MILLI)) * number_of(annotations.get(COUNT, "1"), DEVICES_MAX)


def milli_of(written: str | None) -> int:
    """Parses 1 to 1000; returns 0 for anything else."""
    return number_of(written, DEVICE_MILLI)


def number_of(written: str | None, most: int) -> int:
    """Parses 1 to `most`; returns 0 for anything else."""
    if written is None or not (written.isascii() and written.isdigit() and len(written) <= len(str(most))):
        return 0
    return int(written) if 1 <= int(written) <= most else 0


def devices_of(pod: Pod) -> tuple[int, ...]:
    """Returns the device indices that the scheduler wrote; none if the annotation is missing or unreadable."""
    if DEVICES not in pod.annotations:
        return listed(pod.annotations.get(FGD_INDEX, ""), "-")
    return listed(pod.annotations[DEVICES])


def listed(written: str, separator: str = ",") -> tuple[int, ...]:
    """Parses distinct indices; returns none if one of them is unreadable, or appears twice."""
    parts = [part.strip() for part in written.split(separator, DEVICES_MAX)]
    good = {int(part) for part in parts if part.isascii() and part.isdigit() and len(part) <= 3}
    return tuple(sorted(good)) if len(good) == len(parts) and max(good) < DEVICES_MAX else ()


def _whole(pod: Pod) -> int:
    """Returns the number of whole devices that it requests, of any vendor."""
    return next((pod.demand.most[name] for name in WHOLE_NAMES if pod.demand.most.get(name, 0) > 0), 0)
