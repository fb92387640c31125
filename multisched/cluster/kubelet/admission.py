"""The kubelet's admission check, which detects overcommit: whether a bound pod fits on its node.

Owns the sum of requests of the admitted pods of each node, computed from the pod's manifest without any code of the
scheduler. Called only by Kubelets.
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
    """The fields of a container that a kubelet reads."""

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
    activeDeadlineSeconds: int | None = None
    tolerations: tuple[dict[str, str | int], ...] | None = None


class _ContainerStatus(msgspec.Struct, frozen=True, gc=False):
    state: dict[str, dict[str, object]] = {}


class _PodStatus(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""
    reason: str = ""
    podIP: str | None = None
    startTime: str | None = None
    conditions: tuple[Condition, ...] | None = None
    containerStatuses: tuple[_ContainerStatus, ...] | None = None


class KubeletPod(msgspec.Struct, frozen=True, gc=False):
    """The fields of a pod that a kubelet reads."""

    metadata: Meta
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

    @property
    def is_terminal(self) -> bool:
        return self.status.phase in TERMINAL

    @property
    def is_running(self) -> bool:
        """Reports whether a container neither waits nor has terminated (pkg/kubelet/kubelet_pods.go)."""
        states = [status.state for status in self.status.containerStatuses or ()]
        return any("terminated" not in state and "waiting" not in state for state in states)


def amounts(quantities: Quantities | None) -> Amounts:
    """Parses quantities; ignores invalid ones (the API server rejects such pods)."""
    parsed: Amounts = {}
    for name, text in (quantities or {}).items():
        try:
            parsed[name] = parse_milli(text) if name == "cpu" else parse_value(text)
        except QuantityError:
            continue
    return parsed


def pod_requests(pod: KubeletPod) -> Amounts:
    """Returns overhead plus the higher of the sum of containers and sidecars, and the peak of init containers.

    Pod-level requests replace that sum or peak.
    """
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
    """Why a pod was rejected: reason and message of its status, as the kubelet writes them."""

    reason: str
    message: str


@dataclass(slots=True)
class NodeAccount:
    """The allocatable resources of one node, and the requests of its admitted pods."""

    allocatable: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    pods: dict[str, Amounts] = field(default_factory=dict)
    """Pod uid -> requests."""

    def refusal(self, requests: Amounts) -> Refusal | None:
        """Returns why the requests do not fit, or None. Ignores extended resources unknown to the node, as the kubelet does."""
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
        """Counts the pod with these requests, replacing earlier ones."""
        self.release(uid)
        self.pods[uid] = requests
        _add(self.used, requests)

    def release(self, uid: str) -> None:
        """Stops counting the pod; does nothing if it is not counted."""
        requests = self.pods.pop(uid, None)
        for name, amount in (requests or {}).items():
            self.used[name] -= amount

    def overcommitted(self) -> Iterable[str]:
        """Returns resources of which the admitted pods request more than is allocatable, as after a restart or if allocatable shrank."""
        return [
            name
            for name, used in self.used.items()
            if used > self.allocatable.get(name, 0) and not ("/" in name and name not in self.allocatable)
        ]

    def validate_state(self) -> None:
        """Asserts that the sums match the admitted pods."""
        sums: Amounts = {}
        for requests in self.pods.values():
            _add(sums, requests)
        assert sums == {name: used for name, used in self.used.items() if used or name in sums}
