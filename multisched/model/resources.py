"""Resource requests of a pod: containers, init containers, sidecars, pod-level requests and overhead, as upstream.

Source: component-helpers 0.36 resource/helpers.go (PodRequests). Sums are kept in exact nano-units and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec

from multisched.model.objects import CPU, EPHEMERAL_STORAGE, MEMORY, NO_REQUESTS, ExtendedRequests, QosClass, Requests
from multisched.model.quantity import QuantityError, milli_of_nano, parse_nano, value_of_nano
from multisched.model.selectors import is_qualified_name

SCORING_CPU_MILLI = 100
SCORING_MEMORY_BYTES = 200 * 1024 * 1024
"""Default, for scores only, of a container without a CPU or memory request (source: scheduler util, DefaultMilliCPURequest)."""

REQUEST_MAX = 2**51
"""Larger requests count as this: more than any node has (`decode.ALLOCATABLE_MAX`), small enough that sums cannot overflow."""

NAME_SHOWN_MAX = 63
"""Longest part of a resource name in a message, in characters: names are written by tenants."""

HUGEPAGES_PREFIX = "hugepages-"
_NATIVE_DOMAIN = "kubernetes.io/"
_QUOTA_PREFIX = "requests."

QuantityText = str | int | float
QuantityMap = dict[str, QuantityText] | None
Exact = dict[str, int]
"""Resource name to nano-units."""


class ResourceBlock(msgspec.Struct, gc=False):
    """`resources` of a container or a pod."""

    requests: QuantityMap = None
    limits: QuantityMap = None


class ContainerRequests(msgspec.Struct, gc=False):
    """Requests of a container, or pod-level requests of a pod; the status fields are for in-place resize."""

    name: str
    spec: QuantityMap
    is_sidecar: bool = False
    actuated: QuantityMap = None
    allocated: QuantityMap = None
    has_status: bool = False


def extended_requests(
    containers: Iterable[ContainerRequests], inits: Iterable[ContainerRequests]
) -> tuple[ExtendedRequests, ...]:
    """Returns the extended resources of each container that requests any, init containers first. Raises QuantityError."""
    found = []
    for group, is_init in ((inits, True), (containers, False)):
        for position, container in enumerate(group):
            names = {name: text for name, text in (container.spec or {}).items() if is_extended_resource(name)}
            if names:
                found.append(ExtendedRequests(container.name, position, is_init, amounts(exact_requests(names))))
    return tuple(found)


def exact(quantities: QuantityMap) -> Exact:
    """Parses a map of quantities. Raises QuantityError with the name of the resource."""
    found: Exact = {}
    for name, text in (quantities or {}).items():
        try:
            found[name] = parse_nano(text)
        except QuantityError as error:
            raise QuantityError(f"{name[:NAME_SHOWN_MAX]}: {error}") from error
    return found


def exact_requests(quantities: QuantityMap) -> Exact:
    """Parses a map of requests, as `exact`. Raises QuantityError for a negative amount, too."""
    found = exact(quantities)
    for name, nano in found.items():
        if nano < 0:
            raise QuantityError(f"{name[:NAME_SHOWN_MAX]}: is negative; requests must be 0 or more")
    return found


def amounts(quantities: Mapping[str, int]) -> Requests:
    """Converts nano-units to milli-CPU and whole units. Drops zero amounts and resources that no scheduler counts."""
    return {
        name: min(REQUEST_MAX, milli_of_nano(nano) if name == CPU else value_of_nano(nano))
        for name, nano in quantities.items()
        if nano and (name in (CPU, MEMORY, EPHEMERAL_STORAGE) or is_scalar_resource(name))
    }


def is_scalar_resource(name: str) -> bool:
    """Reports whether fit checks this resource, other than cpu, memory and ephemeral-storage.

    Source: scheduler util IsScalarResourceName. Other names ("pods", "storage", a bare word) are not counted at all.
    """
    return (
        name.startswith((HUGEPAGES_PREFIX, "attachable-volumes-"))
        or _NATIVE_DOMAIN in name
        or is_extended_resource(name)
    )


def is_extended_resource(name: str) -> bool:
    """Reports whether this is a name such as nvidia.com/gpu (source: core v1 helper IsExtendedResourceName)."""
    if "/" not in name or _NATIVE_DOMAIN in name or name.startswith(_QUOTA_PREFIX):
        return False
    return is_qualified_name(_QUOTA_PREFIX + name)


def reduced_capacity(capacity: QuantityMap, allocatable: QuantityMap) -> Requests:
    """See `Node.reduced_capacity`. Amounts that cannot be read are left out: they only say more about devices."""
    if not capacity or not allocatable:
        return NO_REQUESTS
    names = [name for name, text in capacity.items() if "/" in name and allocatable.get(name, text) != text]
    found: dict[str, int] = {}
    for name in filter(is_extended_resource, names):
        with suppress(QuantityError):
            whole, healthy = parse_nano(capacity[name]), parse_nano(allocatable[name])
            if whole > healthy:
                found[name] = min(REQUEST_MAX, value_of_nano(whole))
    return found or NO_REQUESTS


class StatusView(msgspec.Struct, frozen=True):
    """The rule for requests of a pod on a node: its status counts, too, as it may be resized in place."""

    is_resize_infeasible: bool = False

    def effective(self, part: ContainerRequests) -> Exact:
        """Returns, per resource, the largest of spec, actuated and allocated; if the resize is infeasible, without spec."""
        if not part.has_status:
            return exact_requests(part.spec)
        parts = [exact_requests(part.actuated), exact_requests(part.allocated)]
        return _maximum(*parts) if self.is_resize_infeasible else _maximum(exact_requests(part.spec), *parts)


def pod_requests(
    containers: Iterable[ContainerRequests],
    init_containers: Iterable[ContainerRequests],
    pod_level: ContainerRequests | None,
    overhead: QuantityMap,
    *,
    defaults: Mapping[str, int] | None = None,
    status: StatusView | None = None,
) -> Exact:
    """Returns the pod's requests in nano-units.

    `defaults`: for a resource that a container does not request (see `placed_scoring_defaults`). With `status`, the
    requests of containers, sidecars and pod are taken from the status as well.
    """

    def one(container: ContainerRequests, *, may_resize: bool = True) -> Exact:
        found = status.effective(container) if status is not None and may_resize else exact_requests(container.spec)
        return {**defaults, **found} if defaults else found

    total: Exact = {}
    for container in containers:
        _add(total, one(container))
    sidecars: Exact = {}
    init_peak: Exact = {}
    for container in init_containers:
        own = one(container, may_resize=container.is_sidecar)
        if container.is_sidecar:
            _add(total, own)
            _add(sidecars, own)
            running = dict(sidecars)
        else:
            running = dict(own)
            _add(running, sidecars)
        init_peak = _maximum(init_peak, running)
    total = _maximum(total, init_peak)
    if pod_level is not None:
        level = status.effective(pod_level) if status is not None else exact_requests(pod_level.spec)
        total.update({n: level.get(n, 0) for n in pod_level.spec or () if is_pod_level_resource(n)})
    _add(total, exact_requests(overhead))
    return total


SCORING_DEFAULTS: Mapping[str, int] = {CPU: SCORING_CPU_MILLI * 10**6, MEMORY: SCORING_MEMORY_BYTES * 10**9}
"""In nano-units."""


def placed_scoring_defaults(requests: Exact, pod_level: ContainerRequests | None) -> Mapping[str, int]:
    """Returns the defaults for containers of a placed pod without a request.

    With pod-level requests, a default counts only for a resource without any request in the pod
    (source: scheduler framework types.go, getNonMissingContainerRequests).
    """
    if pod_level is None or not any(is_pod_level_resource(name) for name in pod_level.spec or ()):
        return SCORING_DEFAULTS
    return {name: amount for name, amount in SCORING_DEFAULTS.items() if name not in requests}


def is_pod_level_resource(name: str) -> bool:
    """Reports whether spec.resources of a pod may name this resource."""
    return name in (CPU, MEMORY) or name.startswith(HUGEPAGES_PREFIX)


def qos_class(containers: Iterable[ResourceBlock], pod_level: ResourceBlock | None) -> QosClass:
    """Returns the QoS class. Source: pkg/apis/core/v1/helper/qos ComputePodQOS; init containers count as containers."""
    blocks = [pod_level] if pod_level is not None else list(containers)
    requests: Exact = {}
    limits: Exact = {}
    has_both_limits = True
    for block in blocks:
        _add(requests, _counted(block.requests))
        limited = _counted(block.limits)
        _add(limits, limited)
        if block is not pod_level or block.limits:
            has_both_limits = has_both_limits and limited.keys() >= {CPU, MEMORY}
    if not requests and not limits:
        return QosClass.BEST_EFFORT
    if has_both_limits and requests == limits:
        return QosClass.GUARANTEED
    return QosClass.BURSTABLE


def _counted(quantities: QuantityMap) -> Exact:
    return {n: v for n, v in exact(quantities).items() if n in (CPU, MEMORY) and v > 0}


def _add(into: Exact, other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        into[name] = into.get(name, 0) + amount


def _maximum(*parts: Mapping[str, int]) -> Exact:
    largest: Exact = {}
    for part in parts:
        for name, amount in part.items():
            if name not in largest or amount > largest[name]:
                largest[name] = amount
    return largest
