"""What is said to an HTTP extender, and what is understood of its answers.

Source: kube-scheduler 1.36, k8s.io/kube-scheduler/extender/v1. Names of fields are read in upper and lower case, as Go
reads them. Nothing of an answer is believed: a wrong shape is a ValueError in words for the pod's owner.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from multisched.model.wire import UNREADABLE

ANSWER_BYTES_MIN: Final = 1024 * 1024
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""No answer is read past this, whatever was asked."""

REASON_CHARS_MAX: Final = 512
SCORE_MAX: Final = 2**31 - 1
"""Upstream counts scores beyond 0..10 as they come, and some extenders give 0..100; this much never overflows."""


class _Meta(msgspec.Struct, gc=False):
    name: str = ""


class _Node(msgspec.Struct, gc=False):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _NodeList(msgspec.Struct, gc=False):
    items: list[_Node] | None = None


class FilterAnswer(msgspec.Struct, frozen=True):
    """An ExtenderFilterResult; `nodes` holds the names of whole nodes, None where none were given."""

    nodes: tuple[str, ...] | None
    node_names: tuple[str, ...] | None
    failed: Mapping[str, str]
    unresolvable: Mapping[str, str]
    error: str


def answer_bytes_max(request: bytes) -> int:
    """How long an answer may be: what was sent may come back, with reasons."""
    return min(ANSWER_BYTES_MAX, ANSWER_BYTES_MIN + 2 * len(request))


def arguments(pod: bytes, names: Sequence[str], nodes: Iterable[bytes] | None) -> bytes:
    """ExtenderArgs: the pod with the nodes' names, or with whole nodes where `nodes` is given."""
    if nodes is None:
        return b'{"Pod":%b,"Nodes":null,"NodeNames":%b}' % (pod, json.dumps(list(names)).encode())
    items = b",".join(nodes)
    return b'{"Pod":%b,"Nodes":{"metadata":{},"items":[%b]},"NodeNames":null}' % (pod, items)


def binding_arguments(namespace: str, name: str, uid: str, node: str) -> bytes:
    """ExtenderBindingArgs."""
    return json.dumps({"PodName": name, "PodNamespace": namespace, "PodUID": uid, "Node": node}).encode()


def read_filter_answer(body: bytes) -> FilterAnswer:
    """Raises ValueError."""
    fields = _fields(body)
    nodes = _field(fields, "nodes", _NodeList | None)
    names = _field(fields, "nodenames", list[str] | None)
    return FilterAnswer(
        None if nodes is None else tuple(node.metadata.name for node in nodes.items or ()),
        None if names is None else tuple(names),
        _reasons(_field(fields, "failednodes", dict[str, str] | None)),
        _reasons(_field(fields, "failedandunresolvablenodes", dict[str, str] | None)),
        (_field(fields, "error", str | None) or "")[:REASON_CHARS_MAX],
    )


def read_priorities(body: bytes) -> dict[str, int]:
    """HostPriorityList as host -> score; a host that is there twice counts twice. Raises ValueError."""
    totals: dict[str, int] = {}
    for item in _decode(body, list[dict[str, Any]] | None) or ():
        entry = {key.lower(): value for key, value in item.items()}
        host, score = entry.get("host") or "", entry.get("score") or 0
        if not isinstance(host, str) or isinstance(score, bool) or not isinstance(score, int):
            raise ValueError(f"gave {str(score)[:32]!r} for the host {str(host)[:64]!r}; a score is a whole number")  # noqa: TRY004
        totals[host] = total = totals.get(host, 0) + score
        if abs(total) > SCORE_MAX:
            raise ValueError(f"gave {total} for the host {host[:64]!r}; scores are 0..10")
    return totals


def read_binding_answer(body: bytes) -> str:
    """The error of an ExtenderBindingResult; empty: it says that the pod is bound. Raises ValueError."""
    return (_field(_fields(body), "error", str | None) or "")[:REASON_CHARS_MAX]


def _fields(body: bytes) -> dict[str, msgspec.Raw]:
    return {name.lower(): raw for name, raw in (_decode(body, dict[str, msgspec.Raw] | None) or {}).items()}


def _field(fields: Mapping[str, msgspec.Raw], name: str, kind: Any) -> Any:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return _decode(bytes(raw), kind)
    except ValueError as error:
        raise ValueError(f"{error} (in {name})") from error


def _decode(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise ValueError(f"answered what cannot be read: {str(error)[:200]}") from error


def _reasons(found: Mapping[str, str] | None) -> dict[str, str]:
    return {name: text[:REASON_CHARS_MAX] for name, text in (found or {}).items()}
