"""The documents of `multisched gpu nodes` and `gpu node`: cards, holds, unconfirmed holds, locks, fragments, problems of node data.

`NodeCopy` is copied on the event loop; the documents are made from copies alone. Imported on the first request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from domains.gpu.card_row import CardRow
from domains.gpu.cards import CARD_MILLI, Amount, Card, Mode
from domains.gpu.dialects import gpushare, hami, volcano
from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.held_cards import fragments_of, places_of, unit_names
from domains.gpu.hold import Hold
from domains.gpu.typical_pods import Typical
from multisched.framework.node_view import NodeView, Rows
from multisched.framework.views import NUMBER_MAX, Document, NoViewError, ViewQuery, unknown_parameter
from multisched.model.near_names import did_you_mean
from multisched.model.objects import CPU, Node, Pod

ROWS_PER_PIECE: Final = 256
"""Rows copied before yielding to the event loop."""
BIND_TIMES: Final[Mapping[str, int]] = {hami.BIND_TIME: 1, volcano.TIME: 1, gpushare.ASSUME_TIME: 10**9}
"""Annotation with the time of the binding -> its units per second since 1970."""
TIME_DIGITS_MAX: Final = 19
LOCKS: Final = (hami.LOCK, volcano.LOCK)
UNITS: Final[Mapping[Mode, str]] = {
    Mode.KOORDINATOR: "bytes",
    Mode.HAMI: "MiB",
    Mode.VOLCANO: "MiB",
    Mode.GPUSHARE: gpushare.GPU_MEMORY,
}
"""Unit of `Card.memory`; in mode `whole` MiB, if a label of the node names it."""
NOTES: Final[Mapping[Mode, str]] = {
    Mode.DRA: "mode dra: no GPU pod is placed there, because pods with resource claims are refused",
    Mode.GPUSHARE: "mode gpushare: cards in the ConfigMap kube-system/unhealthy-gpu-NODE count as healthy, because it is not read; "
    "cordon such a node until its cards are replaced",
}
"""Mode -> a note on what is not read of its nodes."""
DOCUMENTS: Final[Mapping[str, tuple[str, ...]]] = {"nodes": ("limit",), "node": ("name",)}
"""Document -> its options, besides `domain`."""


class NodeCopy(msgspec.Struct, frozen=True):
    """A node with GPUs at one moment."""

    node: Node
    row: CardRow
    pods: Mapping[str, Pod]
    """uid -> pod, of those that request or hold GPUs."""
    problems: tuple[str, ...]
    idle_milli: int
    """Idle CPU."""


class Snapshot(msgspec.Struct, frozen=True):
    """The input of the documents."""

    domain: str
    now: datetime
    copies: Sequence[NodeCopy]
    """The copies, sorted by name."""
    others: Sequence[str]
    """The domain's nodes without GPUs."""
    typical: Typical
    """The typical pods, against which fragments are measured."""


async def take(
    ledger: GpuLedger, nodes: NodeView, rows: Rows, domain: str, now: datetime, typical: Typical
) -> Snapshot:
    """Copies what is known of the domain's nodes, in pieces."""
    copies: list[NodeCopy] = []
    others: list[str] = []
    known = frozenset(row for row, _, _ in ledger.rows_with_cards())
    for number, row in enumerate(rows.tolist()):
        if number % ROWS_PER_PIECE == ROWS_PER_PIECE - 1:
            await asyncio.sleep(0)
        node = nodes.node(row)
        if row not in known:
            others.append(node.name)
            continue
        pods = {pod.uid: pod for pod in nodes.pods_on(row) if ledger.is_used_by(pod)}
        idle = max(0, int(nodes.allocatable(CPU)[row]) - int(nodes.requested(CPU)[row]))
        copies.append(NodeCopy(node, ledger.cards(row).copy(), pods, tuple(ledger.problems(row, nodes)), idle))
    return Snapshot(domain, now, sorted(copies, key=lambda one: one.node.name), others, typical)


def document_of(query: ViewQuery) -> Callable[[Snapshot], Document]:
    """Returns the function that makes the document. Raises NoViewError for an unknown name or option."""
    if query.name not in DOCUMENTS:
        raise NoViewError(f"gpu has no document {query.name}; write one of {', '.join(DOCUMENTS)}")
    if unknown := unknown_parameter(query.options, [*DOCUMENTS[query.name], "domain"]):
        raise NoViewError(unknown, status=400)
    name = query.option("name") if query.name == "node" else ""
    limit = query.number("limit", NUMBER_MAX)
    return lambda snapshot: _node(snapshot, name) if name else _nodes(snapshot, limit)


def _nodes(snapshot: Snapshot, limit: int) -> Document:
    shown = snapshot.copies[:limit]
    left_out = len(snapshot.copies) - len(shown)
    return {**_head(snapshot, shown), "nodes": _rows(snapshot, shown), "nodesLeftOut": left_out}


def _rows(snapshot: Snapshot, copies: Sequence[NodeCopy]) -> list[Document]:
    fragments = fragments_of([copy.row for copy in copies], [copy.idle_milli for copy in copies], snapshot.typical)
    return [_row(copy, snapshot.now, of_cards) for copy, of_cards in zip(copies, fragments, strict=True)]


def _node(snapshot: Snapshot, name: str) -> Document:
    names = [copy.node.name for copy in snapshot.copies]
    if name in snapshot.others:
        raise NoViewError(f"node {name} has no GPUs; multisched gpu nodes lists those that have")
    if name not in names:
        near = did_you_mean(name, [*names, *snapshot.others], "multisched gpu nodes lists its nodes with GPUs")
        raise NoViewError(f"domain {snapshot.domain} has no node {name}; {near}")
    copy = snapshot.copies[names.index(name)]
    [row] = _rows(snapshot, [copy])
    holds = sorted((_hold(copy, uid, hold, snapshot.now) for uid, hold in copy.row.holds.items()), key=_by_card)
    return {**_head(snapshot, [copy]), "node": {**row, "holds": holds}}


def _by_card(hold: Document) -> tuple[list[str], str]:
    return [f"{card['card']:>4}" for card in hold["cards"]], hold["pod"]


def _head(snapshot: Snapshot, copies: Sequence[NodeCopy]) -> Document:
    """`copies`: the nodes that the document shows."""
    return {
        "domain": snapshot.domain,
        "now": snapshot.now.isoformat(timespec="seconds"),
        "typicalPods": len(snapshot.typical),
        "notes": [NOTES[mode] for mode in NOTES if any(copy.row.node.mode is mode for copy in copies)],
    }


def _row(copy: NodeCopy, now: datetime, fragments: Sequence[int]) -> Document:
    """`fragments`: of each card."""
    row = copy.row
    cards = [_card(copy, place, fragment) for place, fragment in enumerate(fragments)]
    waiting = [
        {"pod": _name(copy, uid), "ageSeconds": _age_s(copy.pods.get(uid), now)}
        for uid, hold in row.holds.items()
        if hold.awaits
    ]
    return {
        "node": copy.node.name,
        "mode": row.node.mode.value,
        "pods": len(row.holds.keys() | _uids_with_units(copy)),
        "cards": cards,
        "units": _units(copy),
        "unconfirmed": sorted(waiting, key=lambda one: (-(one["ageSeconds"] or 0), one["pod"])),
        "lock": _lock(copy.node, now),
        "fragmentMilli": sum(fragments),
        "problems": list(copy.problems),
    }


def _card(copy: NodeCopy, place: int, fragment: int) -> Document:
    row, mode = copy.row, copy.row.node.mode
    card, free = row.node.cards[place], row.free[place]
    unit = _unit(mode, card)
    return {
        "card": card.index,
        "id": card.id,
        "model": card.model,
        "numa": card.numa if card.numa >= 0 else None,
        "link": card.link,
        "isHealthy": card.is_healthy,
        "memory": card.memory if unit else None,
        "unit": unit,
        "cores": card.cores,
        "freeMilli": row.free_milli[place],
        "freeMemory": free.memory // card.scale if unit else None,
        "freeCores": free.cores,
        "fragmentMilli": fragment,
        "pods": sum(place in places_of(row, hold) for hold in row.holds.values()),
    }


def _hold(copy: NodeCopy, uid: str, hold: Hold, now: datetime) -> Document:
    row = copy.row
    places = places_of(row, hold)
    shares = zip(places, hold.shares, strict=True) if places else ()
    return {
        "pod": _name(copy, uid),
        "dialect": hold.dialect,
        "count": hold.count,
        "isWhole": hold.is_whole,
        "cards": [_held(copy, place, hold, share.amount) for place, share in shares],
        "missing": [] if places else [str(name) for name in hold.devices],
        "isConfirmed": not hold.awaits,
        "ageSeconds": _age_s(copy.pods.get(uid), now) if hold.awaits else None,
    }


def _held(copy: NodeCopy, place: int, hold: Hold, amount: Amount) -> Document:
    card = copy.row.node.cards[place]
    use = card.whole if hold.is_whole else amount.of(card)
    unit = _unit(copy.row.node.mode, card)
    return {
        "card": card.index,
        "milli": CARD_MILLI * use.memory // card.size,
        "memory": use.memory // card.scale if unit else None,
        "unit": unit,
        "cores": use.cores,
    }


def _unit(mode: Mode, card: Card) -> str:
    """Returns the unit of the card's memory; empty if its memory is unknown."""
    return UNITS.get(mode, "MiB" if card.memory > 1 else "")


def _name(copy: NodeCopy, uid: str) -> str:
    pod = copy.pods.get(uid)
    return uid if pod is None else pod.key


def _uids_with_units(copy: NodeCopy) -> set[str]:
    names = unit_names(copy.row.node.mode, copy.node)
    return {uid for uid, pod in copy.pods.items() if any(pod.requests.get(name, 0) for name in names)}


def _units(copy: NodeCopy) -> list[Document]:
    """Returns resource, allocatable and requested amount of each unit."""
    return [
        {
            "resource": name,
            "allocatable": copy.node.allocatable[name],
            "requested": sum(pod.requests.get(name, 0) for pod in copy.pods.values()),
        }
        for name in unit_names(copy.row.node.mode, copy.node)
    ]


def _age_s(pod: Pod | None, now: datetime) -> int | None:
    """Returns the seconds since the pod was bound, by the binding's annotations; None if they do not show it yet."""
    for key, units in BIND_TIMES.items() if pod is not None else ():
        text = pod.annotations.get(key, "") if pod is not None else ""
        if text.isascii() and text.isdigit() and len(text) <= TIME_DIGITS_MAX:
            return max(0, int(now.timestamp()) - int(text) // units)
    return None


def _lock(node: Node, now: datetime) -> Document | None:
    """Returns the lock by which the node's device plugin finds its pod; None if it is not held."""
    text = next((node.annotations[key] for key in LOCKS if node.annotations.get(key)), "")
    if not text:
        return None
    since, _, holder = text.partition(",")
    try:
        at = datetime.fromisoformat(since)
        age_s = max(0, int((now - (at if at.tzinfo else at.replace(tzinfo=UTC))).total_seconds()))
    except (ValueError, OverflowError):
        return {"text": text[:256], "pod": "", "ageSeconds": None}
    return {"text": text[:256], "pod": holder.replace(",", "/")[:256], "ageSeconds": age_s}
