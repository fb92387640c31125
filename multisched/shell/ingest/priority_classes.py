"""The priority that admission would give a planned pod: from its class, the cluster's default class, or 0.

`read_classes` sends one request to the API server; everything else is pure. Used for what-if requests. Source:
plugin/pkg/admission/priority/admission.go (1.36).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from multisched.model.objects import Pod
from multisched.model.wire import UNREADABLE, Transport, TransportError
from multisched.observe.explain_view import NotExplainedError

CLASSES_PATH: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
READ_TIMEOUT_S: Final = 5.0
PREEMPT: Final = "PreemptLowerPriority"
SYSTEM_PRIORITIES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
"""Classes that every API server creates."""


class PriorityClass(msgspec.Struct, frozen=True):
    """A PriorityClass."""

    name: str
    value: int
    is_default: bool = False
    """Applies to pods that name no class."""
    preemption_policy: str = PREEMPT


class PlannedPod(msgspec.Struct, frozen=True):
    """A pod of a manifest that is not in the cluster."""

    pod: Pod
    api_name: str
    """The name that the API server uses in its error messages: metadata.name or generateName."""
    priority_class: str = ""
    priority: int | None = None
    """As in the manifest."""
    preemption_policy: str | None = None
    """As in the manifest."""
    notes: tuple[str, ...] = ()


class _Named(msgspec.Struct):
    name: str


class _Wire(msgspec.Struct, rename="camel"):
    metadata: _Named
    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None


class _List(msgspec.Struct):
    items: list[_Wire]


def class_of(raw: msgspec.Raw) -> PriorityClass:
    """Decodes a PriorityClass. Raises msgspec.DecodeError for anything else."""
    return _decoded(msgspec.json.decode(raw, type=_Wire))


async def read_classes(transport: Transport) -> tuple[PriorityClass, ...] | str:
    """Returns the cluster's priority classes, or why they cannot be read."""
    try:
        answer = await transport.request("GET", CLASSES_PATH, timeout_s=READ_TIMEOUT_S)
        if answer.status != 200:
            return f"the API server answered {answer.status}"
        return tuple(_decoded(one) for one in msgspec.json.decode(answer.body, type=_List).items)
    except (TransportError, *UNREADABLE) as error:
        return str(error)


def admitted(planned: PlannedPod, classes: Sequence[PriorityClass] | None, why: str = "") -> PlannedPod:
    """Returns the pod with the priority and preemption policy of admission. Raises NotExplainedError if its class does not exist.

    `classes`: None if they cannot be read, because of `why`. Values in the manifest take precedence, with a note if the API
    server would refuse them.
    """
    by_name = {name: PriorityClass(name, value) for name, value in SYSTEM_PRIORITIES.items()}
    by_name |= {one.name: one for one in classes or ()}
    chosen = by_name.get(planned.priority_class)
    if classes is None and chosen is None:
        return _unresolved(planned, why)
    if planned.priority_class and chosen is None:
        reason = f"no PriorityClass with name {planned.priority_class} was found"
        raise NotExplainedError(_forbidden(planned, reason), status=422)
    if chosen is None:
        defaults = [one for one in by_name.values() if one.is_default]
        chosen = min(defaults, key=lambda one: one.value, default=PriorityClass("", 0))
    notes = [*planned.notes, *(f"the API server will refuse it: {text}" for text in _refusals(planned, chosen))]
    if chosen.name and not planned.priority_class:
        notes.append(f"it names no priority class and gets the cluster's default, {chosen.name}: {chosen.value}")
    value = chosen.value if planned.priority is None else planned.priority
    policy = planned.preemption_policy or chosen.preemption_policy
    spec = msgspec.structs.replace(planned.pod.spec, priority=value, can_preempt=policy != "Never")
    return replace(planned, pod=msgspec.structs.replace(planned.pod, spec=spec), notes=tuple(notes))


def _unresolved(planned: PlannedPod, why: str) -> PlannedPod:
    notes = planned.notes
    if planned.priority_class and planned.priority is None:
        text = f"the value of priority class {planned.priority_class} is unknown"
        taken = f"priority {planned.pod.spec.priority} is assumed; write priority: N in addition to priorityClassName"
        notes = (*notes, f"{text}: {taken}, as the API server will")
    if why:
        notes = (*notes, f"priority classes cannot be read: {why}")
    return replace(planned, notes=notes)


def _refusals(planned: PlannedPod, chosen: PriorityClass) -> list[str]:
    """Returns the errors with which the API server would refuse the pod, in its words."""
    computed = "must not be provided in pod spec; priority admission controller computed"
    given = "from the given PriorityClass name"
    found = []
    if planned.priority is not None and planned.priority != chosen.value:
        reason = f"the integer value of priority ({planned.priority}) {computed} {chosen.value} {given}"
        found.append(_forbidden(planned, reason))
    elif planned.preemption_policy not in (None, chosen.preemption_policy):
        policy = chosen.preemption_policy
        reason = f"the string value of PreemptionPolicy ({planned.preemption_policy}) {computed} {policy} {given}"
        found.append(_forbidden(planned, reason))
    return found


def _forbidden(planned: PlannedPod, reason: str) -> str:
    return f'pods "{planned.api_name}" is forbidden: {reason}'


def _decoded(wire: _Wire) -> PriorityClass:
    return PriorityClass(wire.metadata.name, wire.value, wire.global_default, wire.preemption_policy or PREEMPT)
