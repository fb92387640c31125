"""Reads the gang of a pod and the terms in a PodGroup, for four APIs.

Source: scheduler-plugins' coscheduling (`scheduling.x-k8s.io/v1alpha1`), ACK's pod labels, Koordinator's annotations,
and upstream PodGroups with `spec.schedulingGroup`. Shares no code with the scheduler.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from multisched.verify.fields import Json, Unreadable, integer, mapping, objects, shown, strings, text
from multisched.verify.objects import name_of

SCHEDULER_PLUGINS: Final = "scheduling.x-k8s.io"
UPSTREAM: Final = "scheduling.k8s.io"
GROUP_LABEL: Final = "scheduling.x-k8s.io/pod-group"
ACK: Final = "pod-group.scheduling.sigs.k8s.io/"
KOORDINATOR: Final = "gang.scheduling.koordinator.sh/"
TOPOLOGY: Final = "multisched.io/gang-topology"
"""Annotation of pods with the terms of their gang, and of PodGroups: `KEY` or `KEY:required`, separated by commas."""
MEMBERS_MAX: Final = 100_000
"""More pods than a cluster has: a larger minimum is a mistake."""
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|m|s)")
_UNITS_S: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}

GangKey = tuple[str, str]
"""Namespace and name. The same name in two APIs means the same gang."""


@dataclass(slots=True)
class Member:
    """A pod as a member of its gang."""

    key: GangKey
    minimum: int | None
    """The minimum given on the pod; None if an object must have it."""
    timeout_s: float | None = None
    groups: tuple[GangKey, ...] = ()
    """Gangs that start together with this one."""
    required: tuple[str, ...] = ()
    """Label keys: all members must be on nodes with the same value of each."""


@dataclass(slots=True)
class GroupObject:
    """A PodGroup of any API."""

    key: GangKey
    minimum: int
    timeout_s: float | None
    conditions: tuple[Condition, ...] = field(default=())
    required: tuple[str, ...] = ()
    """See `Member.required`."""


class Condition(NamedTuple):
    type: str
    status: str
    reason: str
    message: str


def read_member(document: Json) -> Member | None:
    """Returns the gang of a pod; None if it has none. Raises Unreadable if the gang or its minimum is ambiguous."""
    name, namespace, _ = name_of(document)
    metadata, namespace = mapping(document, "metadata"), namespace or "default"
    labels, annotations = strings(metadata, "labels"), strings(metadata, "annotations")
    found = [
        member
        for member in (
            _of_label(namespace, labels),
            _of_ack(namespace, labels),
            _of_koordinator(namespace, annotations),
            _of_upstream(namespace, document),
        )
        if member is not None
    ]
    keys = {member.key for member in found}
    minima = {member.minimum for member in found if member.minimum is not None}
    if len(keys) > 1 or len(minima) > 1:
        said = ", ".join(f"{member.key[1]} of {member.minimum}" for member in found)
        raise Unreadable(f"pod {namespace}/{name} belongs to several gangs: {said}")
    if not found:
        return None
    timeouts = [member.timeout_s for member in found if member.timeout_s is not None]
    groups = next((member.groups for member in found if member.groups), ())
    required = _required(annotations)
    return Member(found[0].key, next(iter(minima), None), timeouts[0] if timeouts else None, groups, required)


def _of_label(namespace: str, labels: Json) -> Member | None:
    return Member((namespace, labels[GROUP_LABEL]), None) if labels.get(GROUP_LABEL) else None


def _of_ack(namespace: str, labels: Json) -> Member | None:
    name = labels.get(f"{ACK}name")
    return Member((namespace, name), _minimum(labels, f"{ACK}min-available")) if name else None


def _of_koordinator(namespace: str, annotations: Json) -> Member | None:
    name = annotations.get(f"{KOORDINATOR}name")
    if not name:
        return None
    waiting = annotations.get(f"{KOORDINATOR}waiting-time")
    return Member(
        (namespace, name),
        _minimum(annotations, f"{KOORDINATOR}min-available"),
        duration_s(waiting) if waiting else None,
        _groups(namespace, annotations.get(f"{KOORDINATOR}groups")),
    )


def _of_upstream(namespace: str, document: Json) -> Member | None:
    name = text(mapping(mapping(document, "spec"), "schedulingGroup"), "podGroupName")
    return Member((namespace, name), None) if name else None


def _minimum(fields: Json, name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and 0 < int(value) <= MEMBERS_MAX):
        raise Unreadable(f"{name}: {shown(value)} is not a number of members, 1 or more")
    return int(value)


def _groups(namespace: str, value: str | None) -> tuple[GangKey, ...]:
    """Parses a JSON list of gang names, each with an optional namespace and slash before it."""
    if not value:
        return ()
    try:
        names = json.loads(value)
    except ValueError as error:
        raise Unreadable(f"{KOORDINATOR}groups: {shown(value)} is not a JSON list") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Unreadable(f"{KOORDINATOR}groups: {shown(value)} is not a JSON list of names")
    parts = [name.rpartition("/") for name in names]
    return tuple((before or namespace, name) for before, _, name in parts)


def _required(annotations: Json) -> tuple[str, ...]:
    levels = [level.strip().rpartition(":") for level in annotations.get(TOPOLOGY, "").split(",")]
    return tuple(key for key, _, how in levels if how == "required")


def duration_s(value: str) -> float:
    """Parses a duration in Go's format, for example `1m30s`, to seconds. Raises Unreadable."""
    parts = _DURATION.findall(value)
    if not parts or "".join(number + unit for number, unit in parts) != value:
        raise Unreadable(f"{shown(value)} is not a duration; write for example 90s")
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)


def read_group(document: Json) -> GroupObject:
    """Reads a PodGroup. Raises Unreadable, for example for a minimum of 0."""
    name, namespace, _ = name_of(document)
    spec = mapping(document, "spec")
    if text(document, "apiVersion").startswith(f"{UPSTREAM}/"):
        minimum, timeout = integer(mapping(mapping(spec, "schedulingPolicy"), "gang"), "minCount", 1), 0
        constraints = objects(mapping(spec, "schedulingConstraints"), "topology")
        required = tuple(key for one in constraints if (key := text(one, "key")))
    else:
        minimum, timeout = integer(spec, "minMember", 1), integer(spec, "scheduleTimeoutSeconds")
        required = _required(strings(mapping(document, "metadata"), "annotations"))
    if not 0 < minimum <= MEMBERS_MAX:
        raise Unreadable(f"podgroup {namespace}/{name}: a minimum of {minimum} members; write 1 or more")
    conditions = tuple(
        Condition(text(one, "type"), text(one, "status"), text(one, "reason"), text(one, "message"))
        for one in objects(mapping(document, "status"), "conditions")
    )
    gang, timeout_s = (namespace or "default", name), float(timeout) if timeout > 0 else None
    return GroupObject(gang, minimum, timeout_s, conditions, required)
