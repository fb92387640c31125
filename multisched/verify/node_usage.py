"""The usage of one node by its pods: resources, host ports, disks, attachable volumes, GPU devices, loans.

A `NodeUsage` is created for a node, filled with earlier pods, and then asked for the faults of one pod after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from multisched.verify.cards import UNKNOWN_TO_NODES, NodeCards
from multisched.verify.demands import HostPort, Requests
from multisched.verify.devices import CardUsage, DeviceUsage
from multisched.verify.findings import Fault
from multisched.verify.loan_rules import LoanUsage
from multisched.verify.objects import Disk, Node, Pod

PODS = "pods"
_UNITS = {"cpu": " milli-CPU", "memory": " bytes", "ephemeral-storage": " bytes"}


class NodeUsage:
    """The usage of one node."""

    def __init__(
        self,
        node: Node,
        limits: Mapping[str, int],
        attached: Mapping[str, str],
        cards: NodeCards,
        binds_devices: Callable[[Pod], bool],
        loans: LoanUsage,
        elastic: frozenset[str] = frozenset(),
    ) -> None:
        """`limits`: driver -> volumes. `attached`: attached volume -> its driver. `binds_devices`: see `DeviceUsage`. `elastic`: resources
        that limit nothing on the node.
        """
        self._room = _ResourceUsage(node, elastic)
        self._loans = loans
        self._ports: dict[tuple[str, int], list[tuple[HostPort, Pod]]] = {}
        self._disks: list[tuple[Disk, Pod]] = []
        self._limits = limits
        self._attached = dict(attached)
        self._devices = CardUsage(node, cards) if cards.mode else DeviceUsage(node, binds_devices)

    def faults(self, pod: Pod, volumes: Mapping[str, str]) -> Iterator[Fault]:
        """Yields the faults of a pod in addition to the pods added before. `volumes`: its volumes -> their drivers."""
        yield from self._room.faults(pod)
        taken = self._taken_port(pod)
        if taken is not None:
            yield Fault("hostPorts", f"host port {taken[0]} is taken by {taken[1].key}")
        for disk, other in self._disks:
            if any(disk.collides(mine) for mine in pod.disks):
                yield Fault("volumes", f"its {disk.kind} is used by {other.key} on the same node")
                break
        yield from self._volume_faults(volumes)
        yield from self._devices.faults(pod)
        yield from self._loans.faults(pod)

    def add(self, pod: Pod, volumes: Mapping[str, str]) -> None:
        self._room.add(pod)
        for port in pod.ports:
            self._ports.setdefault((port.protocol, port.port), []).append((port, pod))
        self._disks.extend((disk, pod) for disk in pod.disks)
        self._attached.update(volumes)
        self._devices.add(pod)
        self._loans.add(pod)

    def _taken_port(self, pod: Pod) -> tuple[HostPort, Pod] | None:
        for port in pod.ports:
            for other, holder in self._ports.get((port.protocol, port.port), ()):
                if port.collides(other):
                    return port, holder
        return None

    def _volume_faults(self, volumes: Mapping[str, str]) -> Iterator[Fault]:
        new = {volume: driver for volume, driver in volumes.items() if volume not in self._attached}
        if not new or not self._limits:
            return
        counts = Counter({**self._attached, **new}.values())
        for driver in sorted(set(new.values()) & self._limits.keys()):
            if counts[driver] > self._limits[driver]:
                yield Fault(
                    "volumes",
                    f"with it, the node has {counts[driver]} volumes of {driver}; the limit is {self._limits[driver]}",
                )


class _ResourceUsage:
    """Sums of requests: the largest and the smallest that pods may have had when they were placed."""

    def __init__(self, node: Node, elastic: frozenset[str]) -> None:
        self._elastic = elastic
        self._room = node.allocatable
        self._capacity = node.capacity
        self._most: Counter[str] = Counter()
        self._least: Counter[str] = Counter()

    def add(self, pod: Pod) -> None:
        for sums, requests in ((self._most, pod.demand.most), (self._least, pod.demand.least)):
            sums[PODS] += 1
            for resource, amount in requests.items():
                sums[resource] += amount

    def faults(self, pod: Pod) -> Iterator[Fault]:
        """Yields one fault for all resources that are exceeded."""
        if self._room is None:
            return
        over = self._over(self._most, pod.demand.most, self._room)
        if not over:
            return
        surely_over = self._over(self._least, pod.demand.least, self._room)
        is_sure = any(not self._was_more(resource, self._least[resource] + amount) for resource, amount in surely_over)
        text = "; ".join(
            f"{self._most[resource] + amount} of {self._room.get(resource, 0)}{_UNITS.get(resource, '')} {resource}"
            for resource, amount in over
        )
        yield Fault("resources", f"with it, the node's pods request {text}", is_sure)

    def _over(self, sums: Mapping[str, int], requests: Requests, room: Requests) -> list[tuple[str, int]]:
        wanted = {**requests, PODS: 1}
        return [
            (name, amount)
            for name, amount in wanted.items()
            if amount > 0
            and name not in self._elastic
            and sums[name] + amount > room.get(name, 0)
            and (name in room or name not in UNKNOWN_TO_NODES)
        ]

    def _was_more(self, resource: str, amount: int) -> bool:
        """Reports whether failed devices explain the excess: they are not allocatable, but still part of the capacity."""
        return "/" in resource and amount <= self._capacity.get(resource, 0)
