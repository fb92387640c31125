"""What admission makes of a planned pod's priority: the class it names, the cluster's default, or none.

`read_classes` asks the API server once per question; the rest is pure. Called by those who answer what-if. Source:
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
"""The classes that every API server makes by itself."""


class PriorityClass(msgspec.Struct, frozen=True):
    """What pods of a class are given."""

    name: str
    value: int
    is_default: bool = False
    """For pods that name no class."""
    preemption_policy: str = PREEMPT


class PlannedPod(msgspec.Struct, frozen=True):
    """A pod out of a manifest."""

    pod: Pod
    api_name: str
    """As the API server calls it in refusals: the name, or what the name is to be generated from."""
    priority_class: str = ""
    priority: int | None = None
    """As written."""
    preemption_policy: str | None = None
    """As written."""
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
    """Raises msgspec.DecodeError for what is no PriorityClass."""
    return _decoded(msgspec.json.decode(raw, type=_Wire))


async def read_classes(transport: Transport) -> tuple[PriorityClass, ...] | str:
    """The cluster's priority classes; or why they cannot be known."""
    try:
        answer = await transport.request("GET", CLASSES_PATH, timeout_s=READ_TIMEOUT_S)
        if answer.status != 200:
            return f"the API server answered {answer.status}"
        return tuple(_decoded(one) for one in msgspec.json.decode(answer.body, type=_List).items)
    except (TransportError, *UNREADABLE) as error:
        return str(error)


def admitted(planned: PlannedPod, classes: Sequence[PriorityClass] | None, why: str = "") -> PlannedPod:
    """The pod with the priority and the policy it would have. Raises NotExplainedError for a class that is not there.

    `classes`: None if they are not known, because of `why`. What the manifest itself says goes before, with a note where the
    API server would refuse it.
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
        text = f"what priority class {planned.priority_class} stands for is not known here"
        taken = f"priority {planned.pod.spec.priority} was taken; write priority: N beside priorityClassName"
        notes = (*notes, f"{text}: {taken}, as the API server will")
    if why:
        notes = (*notes, f"priority classes cannot be read: {why}")
    return replace(planned, notes=notes)


def _refusals(planned: PlannedPod, chosen: PriorityClass) -> list[str]:
    """In the API server's words."""
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
