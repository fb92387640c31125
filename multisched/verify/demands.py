"""The demands of a pod on its node: resources and host ports.

A pod that is being resized counts with the larger of the amounts in its spec and its status. Source: the API's documentation of resource
requests, init containers, sidecars, pod overhead, pod-level resources and in-place resizing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple

from multisched.verify.fields import Json, integer, mapping, objects, text
from multisched.verify.quantities import Amounts, amounts, whole_units

Requests = Mapping[str, int]
"""Thousandths of a CPU, bytes, counts."""

ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - compared with, not bound to
_NAMED = ("cpu", "memory", "ephemeral-storage")
_EXTENDED = re.compile(
    r"(?=.{1,253}/)[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII
)


class Demand(NamedTuple):
    """Resources that a pod takes: the largest and the smallest amounts that the API leaves possible."""

    most: Requests
    least: Requests
    """Without what a resize in progress may have added since the pod was placed."""


class HostPort(NamedTuple):
    protocol: str
    port: int
    address: str

    def collides(self, other: HostPort) -> bool:
        is_same = (self.protocol, self.port) == (other.protocol, other.port)
        return is_same and (self.address == other.address or ANY_ADDRESS in (self.address, other.address))

    def __str__(self) -> str:
        return f"{self.address}:{self.port}/{self.protocol}"


def is_counted(resource: str) -> bool:
    """Reports whether schedulers count the resource: native, huge pages, attachable volumes, and names with a domain."""
    if resource in _NAMED or resource.startswith(("hugepages-", "attachable-volumes-")) or "kubernetes.io/" in resource:
        return True
    return not resource.startswith("requests.") and _EXTENDED.fullmatch(resource) is not None


def demand_of(pod: Json) -> Demand:
    """Computes the demand of a pod. Raises Unreadable."""
    spec, status = mapping(pod, "spec"), mapping(pod, "status")
    given = {text(one, "name"): one for one in _statuses(status)}
    is_infeasible = any(
        text(one, "type") == "PodResizePending" and text(one, "reason") == "Infeasible"
        for one in objects(status, "conditions")
    )
    most = _total(spec, lambda one: _asked(one, given.get(text(one, "name")), max, is_infeasible=is_infeasible))
    if not given and not status.get("resources") and not status.get("allocatedResources"):
        counted = _counted(_with_pod_level(most, spec, status, max))
        return Demand(counted, counted)
    least = _total(spec, lambda one: _asked(one, given.get(text(one, "name")), min, is_infeasible=is_infeasible))
    return Demand(
        _counted(_with_pod_level(most, spec, status, max)), _counted(_with_pod_level(least, spec, status, min))
    )


def _statuses(status: Json) -> Iterator[Json]:
    yield from objects(status, "containerStatuses")
    yield from objects(status, "initContainerStatuses")


def _asked(container: Json, status: Json | None, pick: Callable[..., Fraction], *, is_infeasible: bool) -> Amounts:
    """Returns a container's requests; during a resize, the larger (or smaller) of spec and status."""
    spec = amounts(mapping(container, "resources"), "requests")
    if status is None or not status.get("resources"):
        return spec
    actual, allocated = amounts(mapping(status, "resources"), "requests"), amounts(status, "allocatedResources")
    sides = [actual, allocated] if is_infeasible else [spec, actual, allocated]
    if pick is min:
        sides = [side for side in sides if side]
    return {name: pick(side.get(name, Fraction(0)) for side in sides) for side in sides for name in side}


def _total(spec: Json, asked: Callable[[Json], Amounts]) -> Amounts:
    """Returns the larger of all running containers together and the largest init container with the sidecars before it."""
    running: Amounts = {}
    for container in objects(spec, "containers"):
        _add(running, asked(container))
    sidecars: Amounts = {}
    starting: Amounts = {}
    for container in objects(spec, "initContainers"):
        if text(container, "restartPolicy") == "Always":
            own = asked(container)
            _add(running, own)
            _add(sidecars, own)
            now = dict(sidecars)
        else:
            now = amounts(mapping(container, "resources"), "requests")
            _add(now, sidecars)
        for name, amount in now.items():
            starting[name] = max(starting.get(name, Fraction(0)), amount)
    for name, amount in starting.items():
        running[name] = max(running.get(name, Fraction(0)), amount)
    return running


def _with_pod_level(total: Amounts, spec: Json, status: Json, pick: Callable[..., Fraction]) -> Amounts:
    """Replaces requests of containers by pod-level requests, where present, and adds the overhead."""
    level = amounts(mapping(spec, "resources"), "requests")
    sides = [level, amounts(mapping(status, "resources"), "requests"), amounts(status, "allocatedResources")]
    for name in level:
        if name in ("cpu", "memory") or name.startswith("hugepages-"):
            total[name] = pick(side[name] for side in sides if name in side)
    _add(total, amounts(spec, "overhead"))
    return total


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total[name] + amount if name in total else amount


def _counted(total: Amounts) -> Requests:
    return {name: whole_units(name, amount) for name, amount in total.items() if amount and is_counted(name)}


def host_ports(pod: Json) -> tuple[HostPort, ...]:
    """Returns the host ports of containers and sidecars. Raises Unreadable."""
    spec = mapping(pod, "spec")
    sidecars = [one for one in objects(spec, "initContainers") if text(one, "restartPolicy") == "Always"]
    found = []
    for container in (*objects(spec, "containers"), *sidecars):
        for port in objects(container, "ports"):
            number = integer(port, "hostPort")
            if number > 0:
                address = text(port, "hostIP") or ANY_ADDRESS
                found.append(HostPort(text(port, "protocol") or "TCP", number, address))
    return tuple(found)
