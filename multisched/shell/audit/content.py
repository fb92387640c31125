"""Compares the content of a cached pod or node with its API object: resources, ports, labels, terms, claims, taints.

The API object is read by the judge (`multisched.verify`), which shares no code with the decoder, because the decoder would
repeat its own mistake. Pure; called by the audit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

import msgspec
import orjson

from multisched.model.decode_metadata import with_valid_text
from multisched.model.objects import Node, Pod
from multisched.model.resources import REQUEST_MAX
from multisched.verify.demands import ANY_ADDRESS
from multisched.verify.fields import Json, Unreadable, mapping, objects, text
from multisched.verify.objects import Problems, read_node, read_pod

SHOWN_MAX: Final = 200
"""Maximum number of characters per value in a message."""


class PodContent(msgspec.Struct, frozen=True):
    """The parts of a pod that affect the scheduling of other pods."""

    requests: dict[str, int] | None
    """None while the pod is being resized: the amounts then depend on spec, status and allocated resources."""
    ports: list[tuple[str, int, str]]
    labels: dict[str, str]
    affinity_terms: int
    """Number of required terms."""
    anti_affinity_terms: int
    """Number of required terms."""
    claims: list[str]


class NodeContent(msgspec.Struct, frozen=True):
    """The parts of a node that affect scheduling."""

    labels: dict[str, str]
    taints: list[tuple[str, str, str]]
    is_unschedulable: bool
    allocatable: dict[str, int]


C = TypeVar("C", PodContent, NodeContent)


def pod_fault(pod: Pod, raw: bytes | msgspec.Raw, other_labels: Collection[str] = ()) -> str:
    """Returns how a cached pod differs from the API object of the same version; empty if it is equal or cannot be compared.

    `other_labels`: label keys that may differ, because `ClusterCache` fixes their values or sets them before the API shows them.
    """
    here, there = _counted(pod), _read(raw, _pod_content)
    for content in (here, there) if there is not None else ():
        for key in other_labels:
            content.labels.pop(key, None)
    return _fault(here, there)


def node_fault(node: Node, raw: bytes | msgspec.Raw) -> str:
    """The same as `pod_fault`, for a node."""
    taints = sorted((one.key, one.value, one.effect) for one in node.taints)
    here = NodeContent(dict(node.labels), taints, node.is_unschedulable, _positive(node.allocatable))
    return "" if node.malformed else _fault(here, _read(raw, _node_content))


def _fault(here: C, there: C | None) -> str:
    if there is None:
        return ""
    differing = [
        name
        for name in here.__struct_fields__
        if getattr(here, name) != getattr(there, name) and getattr(there, name) is not None
    ]
    return "; ".join(
        f"{name} {_shown(here, name)} in the cache, {_shown(there, name)} in the API" for name in differing
    )


def _shown(content: msgspec.Struct, name: str) -> str:
    return str(getattr(content, name))[:SHOWN_MAX]


def _positive(amounts: Mapping[str, int]) -> dict[str, int]:
    return {name: min(amount, REQUEST_MAX) for name, amount in amounts.items() if amount}


def _read(raw: bytes | msgspec.Raw, read: Callable[[Json, Problems], C]) -> C | None:
    """Reads a document. Returns None if the judge cannot read every part, because the decoder may read such a part differently."""
    problems = Problems()
    try:
        document = orjson.loads(with_valid_text(raw))
        content = read(document, problems) if isinstance(document, dict) else None
    except (orjson.JSONDecodeError, Unreadable):
        return None
    return None if problems.found else content


def _counted(pod: Pod) -> PodContent:
    affinity = pod.spec.pod_affinity
    claims = [one.claim or f"{pod.name}-{one.name}" for one in pod.spec.volumes if one.claim or one.is_ephemeral]
    return PodContent(
        _positive(pod.requests),
        sorted((one.protocol, one.port, one.ip) for one in pod.spec.host_ports),
        dict(pod.labels),
        len(affinity.required) if affinity is not None else 0,
        len(affinity.anti_required) if affinity is not None else 0,
        sorted(claims),
    )


def _pod_content(document: Json, problems: Problems) -> PodContent:
    pod = read_pod(document, problems)
    return PodContent(
        None if _is_being_resized(document) else _positive(pod.demand.most),
        sorted((one.protocol, one.port, "" if one.address == ANY_ADDRESS else one.address) for one in pod.ports),
        dict(pod.labels),
        len(pod.affinity),
        len(pod.anti_affinity),
        sorted(pod.claims),
    )


def _is_being_resized(document: Json) -> bool:
    """Reports whether the status shows a resize, or other amounts than the spec."""
    spec, status = mapping(document, "spec"), mapping(document, "status")
    if any(text(one, "type").startswith("PodResize") for one in objects(status, "conditions")):
        return True
    containers = {text(one, "name"): one for field in ("containers", "initContainers") for one in objects(spec, field)}
    statuses = [one for field in ("containerStatuses", "initContainerStatuses") for one in objects(status, field)]
    pairs = [(containers.get(text(one, "name"), spec), one) for one in statuses]
    return any(_differ(asked, given) for asked, given in [*pairs, (spec, status)])


def _differ(asked: Json, given: Json) -> bool:
    wanted = mapping(mapping(asked, "resources"), "requests")
    sides = mapping(mapping(given, "resources"), "requests"), mapping(given, "allocatedResources")
    return any(side and side != wanted for side in sides)


def _node_content(document: Json, problems: Problems) -> NodeContent:
    node = read_node(document, problems)
    taints = sorted((one.key, one.value, one.effect) for one in node.taints)
    return NodeContent(dict(node.labels), taints, node.is_unschedulable, _positive(node.allocatable or {}))
