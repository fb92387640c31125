"""Preemption candidates sent to extenders, and the candidates that they keep, with their choice of victims.

Source: kube-scheduler 1.36, extender.go (ProcessPreemption) and framework/preemption (callExtenders). Unlike upstream, it
rejects a node that was not in the request, and a victim whose priority is not lower than the pod's.

There may be thousands of candidates with a hundred thousand victims. Encoding, decoding and checks let other tasks run after each
PODS_AT_ONCE victims.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from multisched.framework.extender import Offer
from multisched.framework.points import CycleView
from multisched.framework.ports import ExtenderError
from multisched.model.objects import Pod
from multisched.model.wire import UNREADABLE

WHOLE_PODS_MAX: Final = 1_000
"""Maximum number of whole victims in one request. An extender with `nodeCacheCapable` is sent uids only."""


PODS_AT_ONCE: Final = 4_096
"""Victims that are encoded or checked in one step: about five milliseconds."""
BYTES_AT_ONCE: Final = 256 * 1024
"""Bytes of an answer that are decoded in one step."""


class Victims(msgspec.Struct, frozen=True):
    """The victims on a node, by uid, and the number of budget violations."""

    uids: tuple[str, ...]
    violations: int


class _MetaPod(msgspec.Struct, forbid_unknown_fields=True, rename={"uid": "UID"}):
    uid: str = ""


class _MetaVictims(
    msgspec.Struct, forbid_unknown_fields=True, rename={"pods": "Pods", "violations": "NumPDBViolations"}
):
    pods: list[_MetaPod] | None = None
    violations: int = 0


class _Result(msgspec.Struct, forbid_unknown_fields=True, rename={"victims": "NodeNameToMetaVictims"}):
    victims: dict[str, msgspec.Raw] | None = None


_RESULT: Final = msgspec.json.Decoder(_Result | None)
_VICTIMS: Final = msgspec.json.Decoder(dict[str, _MetaVictims | None])


class PreemptionRequest(msgspec.Struct, frozen=True):
    """One preemptor with its candidates, without references to the cycle. Pods never change."""

    namespace: str
    name: str
    resources: frozenset[str]
    priority: int
    offered: Mapping[str, Victims]
    """Node -> victims."""
    pods_on: Mapping[str, Sequence[Pod]]
    """Node -> every pod on the node, since an extender may choose other victims."""

    def pods_by_uid(self, node: str) -> Mapping[str, Pod]:
        """Returns the pods on one of the nodes. Not computed for all nodes at once: that are all pods of the cluster."""
        return {pod.uid: pod for pod in self.pods_on[node]}


class PreemptionVerdict(msgspec.Struct, frozen=True):
    """The candidates that the extenders kept: node -> victims."""

    left: Mapping[str, Victims]


def request_of(cycle: CycleView, pod: Pod, offers: Sequence[Offer]) -> PreemptionRequest:
    pods_on: dict[str, Sequence[Pod]] = {}
    for offer in offers:
        row = cycle.nodes.row_of(offer.node)
        pods_on[offer.node] = cycle.nodes.pods_on(row) if row is not None else ()
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


async def meta_arguments(pod: bytes, offered: Mapping[str, Victims]) -> bytes:
    """Encodes ExtenderPreemptionArgs for an extender with `nodeCacheCapable`: victims by uid."""
    parts = list[bytes]()
    async for some in _in_steps(offered):
        victims = {node: _MetaVictims([_MetaPod(uid) for uid in one.uids], one.violations) for node, one in some}
        parts.append(msgspec.json.encode(victims)[1:-1])
    return b'{"Pod":%b,"NodeNameToVictims":null,"NodeNameToMetaVictims":{%b}}' % (pod, b",".join(parts))


async def _in_steps(victims: Mapping[str, Victims]) -> AsyncIterator[Sequence[tuple[str, Victims]]]:
    """Yields the items in parts of about PODS_AT_ONCE victims; other tasks run between two parts."""
    part, count = list[tuple[str, Victims]](), 0
    for item in victims.items():
        part.append(item)
        count += 1 + len(item[1].uids)
        if count >= PODS_AT_ONCE:
            yield part
            part, count = [], 0
            await asyncio.sleep(0)
    if part:
        yield part


def whole_arguments(pod: bytes, offered: Mapping[str, Victims], pods: Mapping[str, bytes]) -> bytes:
    """Encodes ExtenderPreemptionArgs with whole victims, without those that were deleted."""
    parts = []
    for node, one in offered.items():
        whole = b",".join(pods[uid] for uid in one.uids if uid in pods)
        parts.append(b'%b:{"Pods":[%b],"NumPDBViolations":%d}' % (json.dumps(node).encode(), whole, one.violations))
    return b'{"Pod":%b,"NodeNameToVictims":{%b},"NodeNameToMetaVictims":null}' % (pod, b",".join(parts))


async def read_preemption_answer(body: bytes) -> dict[str, Victims]:
    """Decodes an ExtenderPreemptionResult. Raises ValueError.

    An answer with the field names of upstream is read fast, as it may name a hundred thousand pods; as in Go, names may
    differ in case.
    """
    found = dict[str, Victims]()
    try:
        answer = _RESULT.decode(body)
        for part in _parts({} if answer is None else answer.victims or {}):
            if found:
                await asyncio.sleep(0)
            for node, one in _VICTIMS.decode(part).items():
                uids = () if one is None else tuple([pod.uid for pod in one.pods or ()])
                found[node] = Victims(uids, 0 if one is None else one.violations)
    except msgspec.MsgspecError:
        return _read_any_case(body)
    return found


def _parts(victims: Mapping[str, msgspec.Raw]) -> Iterator[bytes]:
    """Yields JSON objects with some of the nodes each."""
    size, part = 0, dict[str, msgspec.Raw]()
    for node, raw in victims.items():
        part[node] = raw
        size += len(bytes(raw))
        if size >= BYTES_AT_ONCE:
            yield msgspec.json.encode(part)
            size, part = 0, {}
    if part:
        yield msgspec.json.encode(part)


def _read_any_case(body: bytes) -> dict[str, Victims]:
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


async def checked(
    found: Mapping[str, Victims], shown: Mapping[str, Victims], request: PreemptionRequest, *, is_ignorable: bool
) -> dict[str, Victims]:
    """Validates one extender's response. Raises ExtenderError, with a text that does not name the extender."""
    left: dict[str, Victims] = {}
    async for some in _in_steps(found):
        for node, victims in some:
            _check(node, victims.uids, shown, request)
            if victims.uids:
                left[node] = victims
            elif not is_ignorable:
                raise ExtenderError(f'expected at least one victim pod on node "{node}"')
    return left


def _check(node: str, uids: Sequence[str], shown: Collection[str], request: PreemptionRequest) -> None:
    if node not in shown:
        raise ExtenderError(f'claims to preempt on node "{node[:253]}", which was not in the request')
    pods = request.pods_by_uid(node)
    for uid in uids:
        pod = pods.get(uid)
        if pod is None:
            text = f"claims to preempt pod (UID: {uid[:64]}) on node: {node}, but the pod is not found on that node"
            raise ExtenderError(text)
        if pod.spec.priority >= request.priority:
            text = f"claims to preempt pod {pod.namespace}/{pod.name} on node {node}, whose priority is not lower"
            raise ExtenderError(text)
