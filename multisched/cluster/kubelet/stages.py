"""Stages: data that describes what a fake kubelet does to a pod or node, when, and with which probability.

Immutable. A stage file is accepted completely, or rejected with the document, the field and the fix (StageError). The format
follows kwok's Stage objects (resourceRef, selector, delay, weight, next). Instead of kwok's jq and Go templates, a fixed set
of keys and effects is supported. Called by Kubelets and by the command line.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

import msgspec

from multisched.model.selectors import Operator, Requirement
from multisched.model.yaml_text import NotYamlError, yaml_documents

STAGE_FILE_BYTES_MAX = 1024 * 1024
STAGES_MAX = 256
DELAY_SECONDS_MAX = 30 * 86400.0


class StageError(ValueError):
    """An invalid stage file; the message names the document, the field and the fix."""


class _OwnerReference(msgspec.Struct, frozen=True, gc=False):
    kind: str = ""
    uid: str = ""
    controller: bool = False


class Meta(msgspec.Struct, frozen=True, gc=False):
    """The metadata that stages and kubelets read."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletionTimestamp: str | None = None
    deletionGracePeriodSeconds: int | None = None
    ownerReferences: tuple[_OwnerReference, ...] | None = None


class Condition(msgspec.Struct, frozen=True, gc=False):
    """One condition of a pod or node."""

    type: str = ""
    status: str = ""


class StagedObject(msgspec.Struct, frozen=True):
    """The fields of an object that selectors test."""

    metadata: Meta
    phase: str
    conditions: tuple[Condition, ...]
    node: str = ""
    restart_policy: str = ""


_LABEL_KEY = re.compile(r'\.metadata\.(labels|annotations)\["([^"]+)"\]\Z')
_CONDITION_KEY = re.compile(r'\.status\.conditions\.\[\] \| select\( ?\.type == "([^"]+)" ?\) \| \.status\Z')
_KEYS: dict[str, Callable[[StagedObject], list[str]]] = {
    ".metadata.name": lambda subject: [subject.metadata.name],
    ".metadata.namespace": lambda subject: _present(subject.metadata.namespace),
    ".metadata.deletionTimestamp": lambda subject: _present(subject.metadata.deletionTimestamp),
    ".metadata.ownerReferences.[].kind": lambda subject: [r.kind for r in subject.metadata.ownerReferences or ()],
    ".spec.nodeName": lambda subject: _present(subject.node),
    ".spec.restartPolicy": lambda subject: _present(subject.restart_policy),
    ".status.phase": lambda subject: _present(subject.phase),
}


def _present(value: str | None) -> list[str]:
    return [value] if value else []


class _Expression(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()


class _Selector(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    matchLabels: dict[str, str] = {}
    matchAnnotations: dict[str, str] = {}
    matchExpressions: tuple[_Expression, ...] = ()


class _DurationFrom(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    annotation: str


class _Delay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    durationMilliseconds: int = 0
    jitterDurationMilliseconds: int | None = None
    durationFrom: _DurationFrom | None = None


class _ResourceRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: Literal["Pod", "Node"]
    apiGroup: str = "v1"


class StageEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An Event about the pod, written when the stage is played."""

    reason: str
    message: str = ""
    type: Literal["Normal", "Warning"] = "Normal"


class Next(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The effect of a stage: phase, readiness or deletion of a pod; or readiness of a node. With the reason.

    Failed with an `exitCode` means that the containers failed; without one, that the pod failed (status.reason is set).
    """

    phase: Literal["Running", "Succeeded", "Failed"] | None = None
    ready: bool | None = None
    reason: str = ""
    message: str = ""
    exitCode: int | None = None
    delete: bool = False
    event: StageEvent | None = None


class _Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    resourceRef: _ResourceRef
    next: Next
    selector: _Selector = _Selector()
    delay: _Delay = _Delay()
    weight: int = 1


class _StageMeta(msgspec.Struct, frozen=True):
    name: str


class _StageDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    apiVersion: str
    kind: Literal["Stage"]
    metadata: _StageMeta
    spec: _Spec


@dataclass(frozen=True, slots=True)
class Stage:
    """One compiled stage."""

    name: str
    kind: str
    next: Next
    weight: int
    delay_s: float
    jitter_to_s: float | None
    """With jitter, the delay is uniform between `delay_s` and this value."""
    delay_annotation: str
    tests: tuple[tuple[Callable[[StagedObject], list[str]], Requirement], ...]

    def matches(self, subject: StagedObject) -> bool:
        return all(_holds(requirement, read(subject)) for read, requirement in self.tests)

    def draw_delay_s(self, metadata: Meta, rng: random.Random) -> float:
        """Draws the delay in seconds; an annotation that exists and is a number replaces the fixed delay."""
        text = (metadata.annotations or {}).get(self.delay_annotation) if self.delay_annotation else None
        if text is not None:
            try:
                return min(max(float(text), 0.0), DELAY_SECONDS_MAX)
            except ValueError:
                pass  # not a number, so probably not meant for this stage: use the stage's own delay
        if self.jitter_to_s is None:
            return self.delay_s
        return rng.uniform(self.delay_s, max(self.delay_s, self.jitter_to_s))


def _holds(requirement: Requirement, values: list[str]) -> bool:
    match requirement.operator:
        case Operator.IN:
            return any(value in requirement.values for value in values)
        case Operator.NOT_IN:
            return not any(value in requirement.values for value in values)
        case Operator.EXISTS:
            return bool(values)
        case _:
            return not values


@dataclass(frozen=True, slots=True)
class StageSet:
    """The stages of pods and of nodes."""

    pods: tuple[Stage, ...]
    nodes: tuple[Stage, ...]

    def matching(self, subject: StagedObject, *, kind: str) -> tuple[Stage, ...]:
        """Returns the stages whose selector matches the object, in file order."""
        return tuple(stage for stage in (self.pods if kind == "Pod" else self.nodes) if stage.matches(subject))


def choose(stages: Sequence[Stage], rng: random.Random) -> Stage | None:
    """Draws one stage by weight; the first if all weights are 0; None if there are no stages."""
    if len(stages) < 2 or not any(stage.weight for stage in stages):
        return stages[0] if stages else None
    return rng.choices(stages, [stage.weight for stage in stages])[0]


def load_stages(text: str, *, source: str) -> StageSet:
    """Reads a stage file: YAML or JSON, one Stage per document. Raises StageError."""
    if len(text) > STAGE_FILE_BYTES_MAX:
        raise StageError(f"{source}: larger than {STAGE_FILE_BYTES_MAX} bytes; split it or remove stages")
    try:
        documents = yaml_documents(text)
    except NotYamlError as error:
        raise StageError(f"{source}: not YAML: {error}") from error
    if not 0 < len(documents) <= STAGES_MAX:
        raise StageError(f"{source}: {len(documents)} stages; write 1 to {STAGES_MAX} documents of kind Stage")
    stages: list[Stage] = []
    for number, document in enumerate(documents, 1):
        stage = _compile(_convert(document, f"{source}: stage {number}"), f"{source}: stage {number}")
        if any(other.name == stage.name for other in stages):
            raise StageError(f"{source}: stage {number}: metadata.name: {stage.name!r} is used twice; rename one")
        stages.append(stage)
    return StageSet(
        pods=tuple(stage for stage in stages if stage.kind == "Pod"),
        nodes=tuple(stage for stage in stages if stage.kind == "Node"),
    )


_FIELDS = {
    name: name
    for struct in (_StageDocument, _Spec, _ResourceRef, _Selector, _Expression, _Delay, _DurationFrom, Next, StageEvent)
    for name in struct.__struct_fields__
}
_REPLACED = {
    "statusTemplate": "Go templates are not supported; write next.phase, next.ready, next.reason and next.message",
    "expressionFrom": "write durationFrom.annotation with the annotation's name",
    "jitterDurationFrom": "write jitterDurationMilliseconds, a number",
    "finalizers": "fake kubelets do not change finalizers; remove the field",
}


def _convert(document: object, where: str) -> _StageDocument:
    try:
        return msgspec.convert(document, _StageDocument)
    except msgspec.ValidationError as error:
        text = str(error)
        unknown = re.search(r"unknown field `([^`]*)`", text)
        if unknown is None:
            raise StageError(f"{where}: {text}") from error
        name = unknown[1]
        close = get_close_matches(name, _FIELDS, n=1)
        fix = _REPLACED.get(name) or (f"did you mean {close[0]!r}?" if close else "remove it")
        raise StageError(f"{where}: {text}; {fix}") from error


def _compile(document: _StageDocument, where: str) -> Stage:
    spec = document.spec
    where = f"{where} ({document.metadata.name})"
    _check(document, where)
    tests = [(_reader(key, where), requirement) for key, requirement in _requirements(spec.selector)]
    jitter = spec.delay.jitterDurationMilliseconds
    return Stage(
        name=document.metadata.name,
        kind=spec.resourceRef.kind,
        next=spec.next,
        weight=spec.weight,
        delay_s=spec.delay.durationMilliseconds / 1000,
        jitter_to_s=None if jitter is None else jitter / 1000,
        delay_annotation=spec.delay.durationFrom.annotation if spec.delay.durationFrom else "",
        tests=tuple(tests),
    )


def _check(document: _StageDocument, where: str) -> None:
    spec, action = document.spec, document.spec.next
    longest_ms = int(DELAY_SECONDS_MAX * 1000)
    for name in ("durationMilliseconds", "jitterDurationMilliseconds"):
        value = getattr(spec.delay, name)
        if value is not None and not 0 <= value <= longest_ms:
            raise StageError(f"{where}: spec.delay.{name}: {value} is out of range; write 0 to {longest_ms}")
    if spec.weight < 0:
        raise StageError(f"{where}: spec.weight: {spec.weight} is negative; write 0 or more")
    is_pod = spec.resourceRef.kind == "Pod"
    if is_pod and not (action.phase or action.delete or action.event or action.ready is not None):
        raise StageError(f"{where}: spec.next: does nothing to a pod; write phase, ready, delete or event")
    if not is_pod and (action.phase or action.delete or action.event or action.exitCode is not None):
        raise StageError(f"{where}: spec.next: a node takes ready, reason and message; remove the other fields")
    if not is_pod and action.ready is None:
        raise StageError(f"{where}: spec.next: does nothing to a node; write ready")
    if action.phase and action.delete:
        raise StageError(f"{where}: spec.next: phase and delete exclude each other; use two stages")
    for expression in spec.selector.matchExpressions:
        wants_values = expression.operator in ("In", "NotIn")
        if wants_values != bool(expression.values):
            fix = "give at least one value" if wants_values else "remove values"
            raise StageError(
                f"{where}: spec.selector.matchExpressions {expression.key} {expression.operator}: values: {fix}"
            )


def _requirements(selector: _Selector) -> list[tuple[str, Requirement]]:
    pairs: list[tuple[str, Requirement]] = []
    matches: tuple[tuple[str, Mapping[str, str]], ...] = (
        ("labels", selector.matchLabels),
        ("annotations", selector.matchAnnotations),
    )
    for field, wanted in matches:
        for name, value in wanted.items():
            key = f'.metadata.{field}["{name}"]'
            pairs.append((key, Requirement(key, Operator.IN, (value,))))
    return pairs + [
        (test.key, Requirement(test.key, Operator(test.operator), test.values)) for test in selector.matchExpressions
    ]


def _reader(key: str, where: str) -> Callable[[StagedObject], list[str]]:
    reader = _KEYS.get(key)
    if reader is not None:
        return reader
    label = _LABEL_KEY.match(key)
    if label is not None:
        field, name = label.groups()
        return lambda subject: _entry(getattr(subject.metadata, field), name)
    condition = _CONDITION_KEY.match(key)
    if condition is not None:
        wanted = condition[1]
        return lambda subject: [c.status for c in subject.conditions if c.type == wanted]
    known = ", ".join([*_KEYS, '.metadata.labels["NAME"]', '.metadata.annotations["NAME"]'])
    raise StageError(
        f"{where}: spec.selector.matchExpressions: key {key!r} is not known; write one of {known}, or "
        '.status.conditions.[] | select( .type == "NAME" ) | .status'
    )


def _entry(entries: Mapping[str, str] | None, name: str) -> list[str]:
    return [entries[name]] if entries and name in entries else []
