"""The kubelet's own admission check: whether a pod that was bound to a node fits there. Our overcommit alarm.

Owns how much the admitted pods of each node request. Promises to count on its own, from the pod's manifest, without the
scheduler's code that it watches over. Called by Kubelets only.
Source: pkg/kubelet/lifecycle/predicate.go (1.36), component-helpers resource.PodRequests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from multisched.cluster.kubelet.stages import Condition, Meta
from multisched.model.quantity import QuantityError, parse_milli, parse_value

Quantities = Mapping[str, str | int | float]
Amounts = dict[str, int]
"""Milli-CPU for cpu, whole units (bytes, counts) for everything else."""

POD_LEVEL_RESOURCES = ("cpu", "memory")
TERMINAL = ("Succeeded", "Failed")


class _Resources(msgspec.Struct, frozen=True, gc=False):
    requests: dict[str, str | int | float] | None = None


class Container(msgspec.Struct, frozen=True, gc=False):
    """What a kubelet must know of a container."""

    name: str = ""
    image: str = ""
    resources: _Resources | None = None
    restartPolicy: str | None = None


class _PodSpec(msgspec.Struct, frozen=True, gc=False):
    nodeName: str | None = None
    containers: tuple[Container, ...] = ()
    initContainers: tuple[Container, ...] | None = None
    overhead: dict[str, str | int | float] | None = None
    resources: _Resources | None = None
    restartPolicy: str = "Always"


class _PodStatus(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""
    podIP: str | None = None
    startTime: str | None = None
    conditions: tuple[Condition, ...] | None = None


class KubeletPod(msgspec.Struct, frozen=True, gc=False):
    """A pod as its kubelet reads it."""

    metadata: Meta
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

    @property
    def is_terminal(self) -> bool:
        return self.status.phase in TERMINAL


def amounts(quantities: Quantities | None) -> Amounts:
    """Parsed quantities; one that does not parse counts as nothing (the API server refuses such pods)."""
    parsed: Amounts = {}
    for name, text in (quantities or {}).items():
        try:
            parsed[name] = parse_milli(text) if name == "cpu" else parse_value(text)
        except QuantityError:
            continue
    return parsed


def pod_requests(pod: KubeletPod) -> Amounts:
    """What the pod holds on its node: containers and sidecars together, or the costliest moment of its init containers."""
    total: Amounts = {}
    for container in pod.spec.containers:
        _add(total, _requests_of(container))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in pod.spec.initContainers or ():
        requests = _requests_of(container)
        if container.restartPolicy == "Always":
            _add(sidecars, requests)
            _raise(peak, sidecars)
        else:
            moment = dict(sidecars)
            _add(moment, requests)
            _raise(peak, moment)
    _add(total, sidecars)
    _raise(total, peak)
    if pod.spec.resources is not None:
        for name, amount in amounts(pod.spec.resources.requests).items():
            if name in POD_LEVEL_RESOURCES or name.startswith("hugepages-"):
                total[name] = amount
    _add(total, amounts(pod.spec.overhead))
    total["pods"] = 1
    return total


def _requests_of(container: Container) -> Amounts:
    return amounts(container.resources.requests) if container.resources is not None else {}


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise(total: Amounts, floor: Amounts) -> None:
    for name, amount in floor.items():
        total[name] = max(total.get(name, 0), amount)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod was not admitted, in the kubelet's words."""

    reason: str
    message: str


@dataclass(slots=True)
class NodeAccount:
    """One node: its allocatable and the pods it admitted."""

    allocatable: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    pods: dict[str, Amounts] = field(default_factory=dict)
    """Requests by pod uid."""

    def refusal(self, requests: Amounts) -> Refusal | None:
        """None if the requests fit. Extended resources that the node does not have are not the kubelet's to judge."""
        for name, requested in requests.items():
            capacity = self.allocatable.get(name, 0)
            if not requested or ("/" in name and name not in self.allocatable):
                continue
            used = self.used.get(name, 0)
            if used + requested > capacity:
                return Refusal(
                    f"OutOf{name}",
                    f"Pod was rejected: Node didn't have enough resource: {name}, requested: {requested}, "
                    f"used: {used}, capacity: {capacity}",
                )
        return None

    def admit(self, uid: str, requests: Amounts) -> None:
        """Counts the pod; once, whatever it requested before."""
        self.release(uid)
        self.pods[uid] = requests
        _add(self.used, requests)

    def release(self, uid: str) -> None:
        """Stops counting the pod; nothing happens if it was not counted."""
        requests = self.pods.pop(uid, None)
        for name, amount in (requests or {}).items():
            self.used[name] -= amount

    def overcommitted(self) -> Iterable[str]:
        """Resources of which the admitted pods hold more than there is: after allocatable shrank, or a restart."""
        return [
            name
            for name, used in self.used.items()
            if used > self.allocatable.get(name, 0) and not ("/" in name and name not in self.allocatable)
        ]

    def validate_state(self) -> None:
        """Asserts that the sums are those of the pods."""
        sums: Amounts = {}
        for requests in self.pods.values():
            _add(sums, requests)
        assert sums == {name: used for name, used in self.used.items() if used or name in sums}
