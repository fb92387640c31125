"""Gangs: pods that start together or not at all. One model for several APIs.

Labels, annotations or a field of a pod name its gang. The terms of the gang are on the pod, too, or in a separate object
(a PodGroup). Sources: scheduler-plugins `scheduling.x-k8s.io/v1alpha1`, ACK's pod groups, Koordinator's gangs,
and Kubernetes (group scheduling.k8s.io).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Final

import msgspec

from multisched.model.go_duration import parse_go_duration
from multisched.model.objects import Pod

MEMBERS_MAX: Final = 20_000
"""Upper bound of a gang's minimum."""
GROUP_MAX: Final = 32
"""Most gangs that can start together."""
LEVELS_MAX: Final = 8
"""Most topology keys of one gang."""
TIMEOUT_S: Final = 600.0
"""Default time after which a gang that has not started is reported as overdue."""
SHOWN_MAX: Final = 63

SP_LABEL: Final = "scheduling.x-k8s.io/pod-group"
SIGS_LABEL: Final = "pod-group.scheduling.sigs.k8s.io"
ACK_NAME: Final = "pod-group.scheduling.sigs.k8s.io/name"
ACK_MIN: Final = "pod-group.scheduling.sigs.k8s.io/min-available"
KOORDINATOR: Final = "gang.scheduling.koordinator.sh/"
KOORDINATOR_NAME: Final = f"{KOORDINATOR}name"
NAMES: Final = frozenset({SP_LABEL, SIGS_LABEL, ACK_NAME})
"""Labels of pods that name a gang."""
TOPOLOGY_ANNOTATION: Final = "multisched.io/gang-topology"
"""On a pod with the terms of its gang, or on a PodGroup: label keys, each `KEY` (preferred) or `KEY:required`."""

_QUALIFIED = re.compile(r"[A-Za-z0-9./_-]{1,316}\Z")


ACK_TOPOLOGY: Final = "alibabacloud.com/topology-aware-constraint"
KOORDINATOR_TOPOLOGY: Final = f"{KOORDINATOR}network-topology-spec"

ANNOTATIONS: Final = frozenset(
    {TOPOLOGY_ANNOTATION, ACK_TOPOLOGY, KOORDINATOR_TOPOLOGY}
    | {f"{KOORDINATOR}{key}" for key in ("name", "min-available", "waiting-time", "timeout", "groups", "match-policy")}
)
"""Annotations of pods that are read here."""


class GangApi(Enum):
    """The API by which a pod names its gang."""

    KUBERNETES = "scheduling.k8s.io"
    SCHEDULER_PLUGINS = "scheduling.x-k8s.io"
    SIGS = "scheduling.sigs.k8s.io"
    ACK = "pod-group.scheduling.sigs.k8s.io"
    KOORDINATOR = "gang.scheduling.koordinator.sh"


_NAMED_BY: Final[Mapping[GangApi, str]] = {
    GangApi.KUBERNETES: "spec.schedulingGroup.podGroupName",
    GangApi.SCHEDULER_PLUGINS: f"label {SP_LABEL}",
    GangApi.SIGS: f"label {SIGS_LABEL}",
    GangApi.ACK: f"label {ACK_NAME}",
    GangApi.KOORDINATOR: f"annotation {KOORDINATOR_NAME}",
}
"""The field, label or annotation in which a pod names its gang."""
MATCH_POLICIES: Final = ("once-satisfied", "waiting-and-running", "only-waiting")


class TopologyLevel(msgspec.Struct, frozen=True):
    """A topology key: all members of a gang go into one domain of it, if possible."""

    key: str
    is_required: bool = False
    """If no single domain has room, the gang does not start."""


class GangSpec(msgspec.Struct, frozen=True):
    """The terms of a gang."""

    min_members: int
    """Fewer members do not start."""
    timeout_s: float = TIMEOUT_S
    together_with: tuple[str, ...] = ()
    """Keys of the gangs that start together, including this one, sorted; empty: it starts alone."""
    topology: tuple[TopologyLevel, ...] = ()
    """Unordered."""
    is_once: bool = False
    """Once the gang has started, later members need not start together (Koordinator: once-satisfied)."""


class Membership(msgspec.Struct, frozen=True):
    """The gang that a pod belongs to."""

    api: GangApi
    name: str
    spec: GangSpec | None = None
    """Terms given on the pod; None if a PodGroup has them or if they cannot be read."""
    problem: str = ""
    """Why the pod cannot be placed; empty if it can."""
    also: tuple[GangApi, ...] = ()
    """Further APIs by which the pod names the same gang."""


def membership_of(pod: Pod) -> Membership | None:
    """Returns the gang of a pod; None if it has none. Results for equal labels and annotations are cached."""
    labels, annotations, group = pod.labels, pod.annotations, pod.spec.pod_group
    if not group and NAMES.isdisjoint(labels) and KOORDINATOR_NAME not in annotations:
        return None
    read = {key: text for key, text in annotations.items() if key in ANNOTATIONS}
    said = tuple((key, labels[key]) for key in (SP_LABEL, SIGS_LABEL, ACK_NAME, ACK_MIN) if key in labels)
    return _membership(pod.namespace, group, said, tuple(sorted(read.items())))


Texts = tuple[tuple[str, str], ...]


@lru_cache(maxsize=4096)
def _membership(namespace: str, group: str, labels: Texts, annotations: Texts) -> Membership:
    said, noted = dict(labels), dict(annotations)
    found: list[Membership] = []
    if group:
        found.append(Membership(GangApi.KUBERNETES, group))
    if SP_LABEL in said:
        found.append(Membership(GangApi.SCHEDULER_PLUGINS, said[SP_LABEL]))
    if SIGS_LABEL in said:
        found.append(Membership(GangApi.SIGS, said[SIGS_LABEL]))
    if ACK_NAME in said:
        found.append(_of_ack(said, noted))
    if KOORDINATOR_NAME in noted:
        found.append(_of_koordinator(namespace, noted))
    problem = _nameless(found) or _contradiction(found) or next((one.problem for one in found if one.problem), "")
    best = next((one for one in found if one.spec is not None), found[0])
    also = tuple(one.api for one in found if one is not best and one.name == best.name)
    return msgspec.structs.replace(best, problem=problem, also=also) if problem or also else best


def _nameless(found: Sequence[Membership]) -> str:
    where = next((_NAMED_BY[one.api] for one in found if not one.name), "")
    return where and f"{where} is ''; write the name of a gang, or remove it"


def _contradiction(found: Sequence[Membership]) -> str:
    """Returns a message if several APIs on one pod contradict each other; else ""."""
    if len({one.name for one in found}) > 1:
        where = " and ".join(f"{_shown(one.name)} ({one.api.value})" for one in found)
        return f"the pod belongs to the gangs {where}; keep one of them"
    counted = [(one.spec.min_members, one.api.value) for one in found if one.spec is not None]
    if len({count for count, _ in counted}) > 1:
        where = " and ".join(f"{count} ({api})" for count, api in counted)
        return f"the pod asks for minimums of {where}; write the same in both"
    return ""


def _of_ack(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Membership:
    name = labels[ACK_NAME]
    least, problem = _count(labels.get(ACK_MIN), f"label {ACK_MIN}")
    topology, wrong = topology_of(annotations)
    if problem or wrong:
        return Membership(GangApi.ACK, name, problem=problem or wrong)
    return Membership(GangApi.ACK, name, GangSpec(least, topology=topology))


def _of_koordinator(namespace: str, annotations: Mapping[str, str]) -> Membership:
    name = annotations[KOORDINATOR_NAME]
    least, problem = _count(annotations.get(f"{KOORDINATOR}min-available"), f"annotation {KOORDINATOR}min-available")
    timeout_s, unreadable = _timeout(annotations)
    spec, wrong = with_annotations(GangSpec(least, timeout_s, is_once=True), namespace, name, annotations)
    if problem or unreadable or wrong:
        return Membership(GangApi.KOORDINATOR, name, problem=problem or unreadable or wrong)
    return Membership(GangApi.KOORDINATOR, name, spec)


def with_annotations(spec: GangSpec, namespace: str, name: str, annotations: Mapping[str, str]) -> tuple[GangSpec, str]:
    """Returns the terms with those added by annotations of pods or PodGroups, and the problem of these annotations."""
    topology, wrong = topology_of(annotations)
    groups, no_groups = _groups(namespace, name, annotations.get(f"{KOORDINATOR}groups", ""))
    policy = annotations.get(f"{KOORDINATOR}match-policy", "")
    if policy and policy not in MATCH_POLICIES:
        one_of = f"{', '.join(MATCH_POLICIES[:-1])} or {MATCH_POLICIES[-1]}"
        wrong = wrong or f"annotation {KOORDINATOR}match-policy is {_shown(policy)}; write {one_of}"
    is_once = policy == "once-satisfied" if policy else spec.is_once
    added = msgspec.structs.replace(spec, together_with=groups, topology=topology, is_once=is_once)
    return added, wrong or no_groups


def _count(text: str | None, field: str) -> tuple[int, str]:
    """Parses a minimum; None means that the field is missing. Returns it with an error message, empty if it is valid."""
    count = int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 9 else 0
    if not 1 <= count <= MEMBERS_MAX:
        what = "missing" if text is None else _shown(text)
        return 0, f"{field} is {what}; write how many members start together, 1 to {MEMBERS_MAX}"
    return count, ""


def _timeout(annotations: Mapping[str, str]) -> tuple[float, str]:
    """Returns seconds and the problem of the annotation. Koordinator uses its default for invalid text; here it is reported."""
    key = next(
        (f"{KOORDINATOR}{one}" for one in ("waiting-time", "timeout") if annotations.get(f"{KOORDINATOR}{one}")), ""
    )
    if not key:
        return TIMEOUT_S, ""
    try:
        seconds = parse_go_duration(annotations[key])
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        return (
            TIMEOUT_S,
            f"annotation {key} is {_shown(annotations[key])}; write a duration with its unit, for example 90s or 10m",
        )
    return max(seconds, 1.0), ""


def _groups(namespace: str, name: str, text: str) -> tuple[tuple[str, ...], str]:
    if not text:
        return (), ""
    field = f"annotation {KOORDINATOR}groups"
    try:
        names = msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError:
        return (), f'{field} is {_shown(text)}; write a list such as ["namespace/gang-a","namespace/gang-b"]'
    keys = {one if "/" in one else f"{namespace}/{one}" for one in names} | {f"{namespace}/{name}"}
    if len(keys) > GROUP_MAX:
        return (), f"{field} names {len(keys)} gangs; at most {GROUP_MAX} can start together"
    return tuple(sorted(keys)) if len(keys) > 1 else (), ""


def topology_of(annotations: Mapping[str, str]) -> tuple[tuple[TopologyLevel, ...], str]:
    """Returns the levels in annotations of a pod or PodGroup, and their problem. The first annotation present counts."""
    for key, read in _TOPOLOGY_READERS.items():
        text = annotations.get(key, "")
        if text:
            levels, problem = read(text)
            if not problem and len(levels) > LEVELS_MAX:
                problem = f"{len(levels)} levels; at most {LEVELS_MAX} are allowed"
            return ((), f"annotation {key}: {problem}") if problem else (levels, "")
    return (), ""


Levels = tuple[tuple[TopologyLevel, ...], str]


def _own_levels(text: str) -> Levels:
    levels = []
    for part in text.split(","):
        key, _, how = part.strip().rpartition(":") if ":" in part else (part.strip(), "", "preferred")
        if not _QUALIFIED.match(key) or how not in ("required", "preferred"):
            return (), f"{_shown(part)} is not a level; write KEY or KEY:required"
        levels.append(TopologyLevel(key, how == "required"))
    return tuple(levels), ""


class _AckTopology(msgspec.Struct):
    key: str = ""


class _AckRequired(msgspec.Struct):
    topologies: list[_AckTopology] = []
    node_selectors: list[object] = msgspec.field(default_factory=list, name="nodeSelectors")


class _AckConstraint(msgspec.Struct):
    required: _AckRequired = msgspec.field(default_factory=_AckRequired)


def _ack_levels(text: str) -> Levels:
    """Source: ACK's manual, "Topology-aware scheduling"."""
    try:
        found = msgspec.json.decode(text, type=_AckConstraint).required
    except (msgspec.DecodeError, UnicodeDecodeError):
        return (), f'{_shown(text)} cannot be read; write {{"required": {{"topologies": [{{"key": "KEY"}}]}}}}'
    if found.node_selectors:
        return (), "nodeSelectors are not evaluated here; write them as the pods' node affinity"
    keys = [one.key for one in found.topologies]
    if not keys:
        return (), f'{_shown(text)} names no topology; write {{"required": {{"topologies": [{{"key": "KEY"}}]}}}}'
    wrong = next((key for key in keys if not _QUALIFIED.match(key)), None)
    if wrong is not None:
        return (), f"{_shown(wrong)} is not a label key"
    return tuple(TopologyLevel(key, is_required=True) for key in keys), ""


class _Gather(msgspec.Struct):
    layer: str = ""
    strategy: str = ""


class _GatherStrategy(msgspec.Struct):
    gather: list[_Gather] = msgspec.field(default_factory=list, name="gatherStrategy")


def _koordinator_levels(text: str) -> Levels:
    """Takes each layer as a label key: objects that map layers to keys are not read."""
    try:
        found = msgspec.json.decode(text, type=_GatherStrategy).gather
    except (msgspec.DecodeError, UnicodeDecodeError):
        return (
            (),
            f'{_shown(text)} cannot be read; write {{"gatherStrategy": [{{"layer": "KEY", "strategy": "MustGather"}}]}}',
        )
    if not found:
        what = f"{_shown(text)} names no layer"
        return (), f'{what}; write {{"gatherStrategy": [{{"layer": "KEY", "strategy": "MustGather"}}]}}'
    for one in found:
        if not _QUALIFIED.match(one.layer) or one.strategy not in ("MustGather", "PreferGather"):
            return (
                (),
                f"layer {_shown(one.layer)} with strategy {_shown(one.strategy)}; write a label key, and MustGather or PreferGather",
            )
    return tuple(TopologyLevel(one.layer, one.strategy == "MustGather") for one in found), ""


_TOPOLOGY_READERS: Final[Mapping[str, Callable[[str], Levels]]] = {
    TOPOLOGY_ANNOTATION: _own_levels,
    ACK_TOPOLOGY: _ack_levels,
    KOORDINATOR_TOPOLOGY: _koordinator_levels,
}


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}...")
