"""Preemption candidates sent to extenders, and the candidates that they keep, with their choice of victims.

Source: kube-scheduler 1.36, extender.go (ProcessPreemption) and framework/preemption (callExtenders). Unlike upstream, it
rejects a node that was not in the request, and a victim whose priority is not lower than the pod's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from multisched.framework.extender import Offer
from multisched.framework.points import CycleView
from multisched.framework.ports import ExtenderError
from multisched.model.objects import Pod
from multisched.model.wire import UNREADABLE

WHOLE_PODS_MAX: Final = 1_000
"""Maximum number of whole victims in one request. An extender with `nodeCacheCapable` is sent uids only."""


class PodOnNode(msgspec.Struct, frozen=True):
    """A pod on a candidate node."""

    namespace: str
    name: str
    priority: int


class Victims(msgspec.Struct, frozen=True):
    """The victims on a node, by uid, and the number of budget violations."""

    uids: tuple[str, ...]
    violations: int


class PreemptionRequest(msgspec.Struct, frozen=True):
    """One preemptor with its candidates, as plain values without references to the cycle."""

    namespace: str
    name: str
    resources: frozenset[str]
    priority: int
    offered: Mapping[str, Victims]
    """Node -> victims."""
    pods_on: Mapping[str, Mapping[str, PodOnNode]]
    """Node -> uid -> every pod on the node, since an extender may choose other victims."""


class PreemptionVerdict(msgspec.Struct, frozen=True):
    """The candidates that the extenders kept: node -> victims."""

    left: Mapping[str, Victims]


def request_of(cycle: CycleView, pod: Pod, offers: Sequence[Offer]) -> PreemptionRequest:
    pods_on: dict[str, dict[str, PodOnNode]] = {}
    for offer in offers:
        row = cycle.nodes.row_of(offer.node)
        pods = cycle.nodes.pods_on(row) if row is not None else ()
        pods_on[offer.node] = {p.uid: PodOnNode(p.namespace, p.name, p.spec.priority) for p in pods}
    return PreemptionRequest(
        pod.namespace,
        pod.name,
        frozenset(pod.spec.requests),
        pod.spec.priority,
        {o.node: Victims(tuple(victim.uid for victim in o.victims), o.violations) for o in offers},
        pods_on,
    )


def offers_left(cycle: CycleView, verdict: PreemptionVerdict) -> list[Offer]:
    """Returns the offers as of now, without nodes whose victims have all been deleted in the meantime."""
    found = []
    for node, victims in verdict.left.items():
        row = cycle.nodes.row_of(node)
        pods = {pod.uid: pod for pod in cycle.nodes.pods_on(row)} if row is not None else {}
        there = tuple(pods[uid] for uid in victims.uids if uid in pods)
        if there:
            found.append(Offer(node, there, victims.violations))
    return found


def meta_arguments(pod: bytes, offered: Mapping[str, Victims]) -> bytes:
    """Encodes ExtenderPreemptionArgs for an extender with `nodeCacheCapable`: victims by uid."""
    victims = {
        node: {"Pods": [{"UID": uid} for uid in one.uids], "NumPDBViolations": one.violations}
        for node, one in offered.items()
    }
    return b'{"Pod":%b,"NodeNameToVictims":null,"NodeNameToMetaVictims":%b}' % (pod, json.dumps(victims).encode())


def whole_arguments(pod: bytes, offered: Mapping[str, Victims], pods: Mapping[str, bytes]) -> bytes:
    """Encodes ExtenderPreemptionArgs with whole victims, without those that were deleted."""
    parts = []
    for node, one in offered.items():
        whole = b",".join(pods[uid] for uid in one.uids if uid in pods)
        parts.append(b'%b:{"Pods":[%b],"NumPDBViolations":%d}' % (json.dumps(node).encode(), whole, one.violations))
    return b'{"Pod":%b,"NodeNameToVictims":{%b},"NodeNameToMetaVictims":null}' % (pod, b",".join(parts))


def read_preemption_answer(body: bytes) -> dict[str, Victims]:
    """Decodes an ExtenderPreemptionResult. Raises ValueError."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any] | None) or {}
        by_name = {name.lower(): value for name, value in fields.items()}
        found = msgspec.convert(by_name.get("nodenametometavictims"), dict[str, dict[str, Any] | None] | None)
        return {node: _victims(one or {}) for node, one in (found or {}).items()}
    except UNREADABLE as error:
        raise ValueError(f"sent a response that cannot be decoded: {str(error)[:200]}") from error


def _victims(document: Mapping[str, Any]) -> Victims:
    fields = {name.lower(): value for name, value in document.items()}
    pods = msgspec.convert(fields.get("pods"), list[dict[str, Any]] | None) or []
    uids = ({name.lower(): value for name, value in pod.items()}.get("uid", "") for pod in pods)
    violations = msgspec.convert(fields.get("numpdbviolations", 0), int)
    return Victims(msgspec.convert(tuple(uids), tuple[str, ...]), violations)


def checked(
    found: Mapping[str, Victims], shown: Mapping[str, Victims], request: PreemptionRequest, *, is_ignorable: bool
) -> dict[str, Victims]:
    """Validates one extender's response. Raises ExtenderError, with a text that does not name the extender."""
    left: dict[str, Victims] = {}
    for node, victims in found.items():
        if node not in shown:
            raise ExtenderError(f'claims to preempt on node "{node[:253]}", which was not in the request')
        for uid in victims.uids:
            pod = request.pods_on[node].get(uid)
            if pod is None:
                text = f"claims to preempt pod (UID: {uid[:64]}) on node: {node}, but the pod is not found on that node"
                raise ExtenderError(text)
            if pod.priority >= request.priority:
                text = f"claims to preempt pod {pod.namespace}/{pod.name} on node {node}, whose priority is not lower"
                raise ExtenderError(text)
        if victims.uids:
            left[node] = victims
        elif not is_ignorable:
            raise ExtenderError(f'expected at least one victim pod on node "{node}"')
    return left
