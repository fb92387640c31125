"""Encoding of requests to an HTTP extender, and decoding of its responses.

Source: kube-scheduler 1.36, k8s.io/kube-scheduler/extender/v1. Field names are matched without case, as Go does.
Responses are validated: a wrong shape raises a ValueError whose text is shown to the pod's owner.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from multisched.model.wire import UNREADABLE

ANSWER_BYTES_MIN: Final = 1024 * 1024
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Upper limit of a response, whatever the size of the request."""

REASON_CHARS_MAX: Final = 512
SCORE_MAX: Final = 2**31 - 1
"""Upstream accepts scores beyond 0..10, and some extenders return 0..100. Sums of scores up to this limit never overflow."""


class _Meta(msgspec.Struct, gc=False):
    name: str = ""


class _Node(msgspec.Struct, gc=False):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _NodeList(msgspec.Struct, gc=False):
    items: list[_Node] | None = None


class FilterAnswer(msgspec.Struct, frozen=True):
    """An ExtenderFilterResult. `nodes` holds the names of the node objects; None if the field is missing."""

    nodes: tuple[str, ...] | None
    node_names: tuple[str, ...] | None
    failed: Mapping[str, str]
    unresolvable: Mapping[str, str]
    error: str


def answer_bytes_max(request: bytes) -> int:
    """Returns the size limit of a response: it may repeat the request and add reasons."""
    return min(ANSWER_BYTES_MAX, ANSWER_BYTES_MIN + 2 * len(request))


def arguments(pod: bytes, names: Sequence[str], nodes: Iterable[bytes] | None) -> bytes:
    """Encodes ExtenderArgs: the pod with node names or, if `nodes` is given, with node objects."""
    if nodes is None:
        return b'{"Pod":%b,"Nodes":null,"NodeNames":%b}' % (pod, json.dumps(list(names)).encode())
    items = b",".join(nodes)
    return b'{"Pod":%b,"Nodes":{"metadata":{},"items":[%b]},"NodeNames":null}' % (pod, items)


def binding_arguments(namespace: str, name: str, uid: str, node: str) -> bytes:
    """Encodes ExtenderBindingArgs."""
    return json.dumps({"PodName": name, "PodNamespace": namespace, "PodUID": uid, "Node": node}).encode()


def read_filter_answer(body: bytes) -> FilterAnswer:
    """Decodes an ExtenderFilterResult. Raises ValueError."""
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
    """Decodes a HostPriorityList as host -> score; scores of repeated hosts are added. Raises ValueError."""
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
    """Returns the error of an ExtenderBindingResult; empty if it reports success. Raises ValueError."""
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
        raise ValueError(f"sent a response that cannot be decoded: {str(error)[:200]}") from error


def _reasons(found: Mapping[str, str] | None) -> dict[str, str]:
    return {name: text[:REASON_CHARS_MAX] for name, text in (found or {}).items()}
