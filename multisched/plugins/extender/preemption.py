"""What extenders make of a preemption: the candidates they are shown, and those they leave, with the victims they want.

Source: kube-scheduler 1.36, extender.go (ProcessPreemption) and framework/preemption (callExtenders). It is stricter
than upstream on nonsense: a node that was not shown, or a victim whose priority is not below the pod's.
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
"""Victims that are sent whole in one request; one that knows the nodes is sent their uids only."""


class Standing(msgspec.Struct, frozen=True):
    """A pod on a node that is offered."""

    namespace: str
    name: str
    priority: int


class Victims(msgspec.Struct, frozen=True):
    """Who must go from a node, by uid, and how many budgets that breaks."""

    uids: tuple[str, ...]
    violations: int


class PreemptionRequest(msgspec.Struct, frozen=True):
    """One preemptor with its candidates, self-contained."""

    namespace: str
    name: str
    resources: frozenset[str]
    priority: int
    offered: Mapping[str, Victims]
    """Node -> victims."""
    standing: Mapping[str, Mapping[str, Standing]]
    """Node -> uid -> every pod there: an extender may want other victims."""


class PreemptionVerdict(msgspec.Struct, frozen=True):
    """Node -> victims, as far as the extenders leave them."""

    left: Mapping[str, Victims]


def request_of(cycle: CycleView, pod: Pod, offers: Sequence[Offer]) -> PreemptionRequest:
    standing: dict[str, dict[str, Standing]] = {}
    for offer in offers:
        row = cycle.nodes.row_of(offer.node)
        pods = cycle.nodes.pods_on(row) if row is not None else ()
        standing[offer.node] = {p.uid: Standing(p.namespace, p.name, p.spec.priority) for p in pods}
    return PreemptionRequest(
        pod.namespace,
        pod.name,
        frozenset(pod.spec.requests),
        pod.spec.priority,
        {o.node: Victims(tuple(victim.uid for victim in o.victims), o.violations) for o in offers},
        standing,
    )


def offers_left(cycle: CycleView, verdict: PreemptionVerdict) -> list[Offer]:
    """The offers as they are now: a node whose victims have all gone meanwhile is none any more."""
    found = []
    for node, victims in verdict.left.items():
        row = cycle.nodes.row_of(node)
        pods = {pod.uid: pod for pod in cycle.nodes.pods_on(row)} if row is not None else {}
        there = tuple(pods[uid] for uid in victims.uids if uid in pods)
        if there:
            found.append(Offer(node, there, victims.violations))
    return found


def meta_arguments(pod: bytes, offered: Mapping[str, Victims]) -> bytes:
    """ExtenderPreemptionArgs for one that knows the nodes: victims by uid."""
    victims = {
        node: {"Pods": [{"UID": uid} for uid in one.uids], "NumPDBViolations": one.violations}
        for node, one in offered.items()
    }
    return b'{"Pod":%b,"NodeNameToVictims":null,"NodeNameToMetaVictims":%b}' % (pod, json.dumps(victims).encode())


def whole_arguments(pod: bytes, offered: Mapping[str, Victims], pods: Mapping[str, bytes]) -> bytes:
    """ExtenderPreemptionArgs with whole victims; those that are gone are left out."""
    parts = []
    for node, one in offered.items():
        whole = b",".join(pods[uid] for uid in one.uids if uid in pods)
        parts.append(b'%b:{"Pods":[%b],"NumPDBViolations":%d}' % (json.dumps(node).encode(), whole, one.violations))
    return b'{"Pod":%b,"NodeNameToVictims":{%b},"NodeNameToMetaVictims":null}' % (pod, b",".join(parts))


def read_preemption_answer(body: bytes) -> dict[str, Victims]:
    """ExtenderPreemptionResult. Raises ValueError."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any] | None) or {}
        by_name = {name.lower(): value for name, value in fields.items()}
        found = msgspec.convert(by_name.get("nodenametometavictims"), dict[str, dict[str, Any] | None] | None)
        return {node: _victims(one or {}) for node, one in (found or {}).items()}
    except UNREADABLE as error:
        raise ValueError(f"answered what cannot be read: {str(error)[:200]}") from error


def _victims(document: Mapping[str, Any]) -> Victims:
    fields = {name.lower(): value for name, value in document.items()}
    pods = msgspec.convert(fields.get("pods"), list[dict[str, Any]] | None) or []
    uids = ({name.lower(): value for name, value in pod.items()}.get("uid", "") for pod in pods)
    violations = msgspec.convert(fields.get("numpdbviolations", 0), int)
    return Victims(msgspec.convert(tuple(uids), tuple[str, ...]), violations)


def checked(
    found: Mapping[str, Victims], shown: Mapping[str, Victims], request: PreemptionRequest, *, is_ignorable: bool
) -> dict[str, Victims]:
    """The answer of one extender. Raises ExtenderError, in words without its name, for what cannot be meant."""
    left: dict[str, Victims] = {}
    for node, victims in found.items():
        if node not in shown:
            raise ExtenderError(f'claims to preempt on node "{node[:253]}", which it was not shown')
        for uid in victims.uids:
            pod = request.standing[node].get(uid)
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
