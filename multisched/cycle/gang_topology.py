"""Which nodes a gang may use together: one topology domain after the other, the best first.

A domain is all nodes with the same values of some label keys. The narrowest level is tried first, and of its domains those
that hold the members with the least left over. A required level is never left. Where only preferred ones are given, as few domains
together as have room come next, the widest level's first, and all nodes last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from multisched.framework.node_view import Bools, Int64, NodeView, Rows
from multisched.model.gang import TopologyLevel
from multisched.model.objects import CPU, PODS, Requests

DOMAINS_MAX: Final = 64
"""Domains of one level that are tried for a gang, the best first."""


class Need(msgspec.Struct, frozen=True):
    """Members that are alike, and where one of them could go if it came alone."""

    count: int
    requests: Requests
    rows: Rows
    """Feasible ones, ascending."""


def masks(
    nodes: NodeView, rows: Rows, levels: Sequence[TopologyLevel], needs: Sequence[Need], standing: Sequence[int]
) -> Iterator[Bools | None]:
    """bool[rows of the table] of the domains to be tried, in their order; None: all rows.

    `rows`: of the scheduling domain. `needs`: what has to find a place. `standing`: rows on which members stand already: whatever is
    required is required of those too.
    """
    if not levels:
        yield None
        return
    required = tuple(level.key for level in levels if level.is_required)
    narrowest = max((at for at, level in enumerate(levels) if level.is_required), default=-1)
    for key in required:
        codes = nodes.label_codes(key)
        for row in standing:
            rows = rows[codes.take(rows) == codes.item(row)]
    fits = [_fits(nodes, need) for need in needs]
    unions: list[Iterator[Bools]] = []
    for at in range(len(levels) - 1, max(narrowest, 0) - 1, -1):
        level = _Domains(nodes, rows, tuple(dict.fromkeys((*required, levels[at].key))))
        if level.count:
            yield from _single(nodes, level, fits, needs, standing)
            if not required:
                unions.append(_fewest(level, fits, needs))
    for union in reversed(unions):
        yield from union
    if not required:
        yield None


def _fits(nodes: NodeView, need: Need) -> Int64:
    """int64[rows of the table]: how many of these members the room of a node would take, were nobody else to come."""
    most = nodes.allocatable(PODS) - nodes.pod_count
    for resource, amount in need.requests.items():
        if amount > 0:
            room = nodes.allocatable(resource) - nodes.requested(resource)
            most = np.minimum(most, room // amount)
    feasible = np.zeros(len(most), np.int64)
    feasible[need.rows] = np.clip(most[need.rows], 0, None)
    return feasible


class _Domains:
    """The rows of one level, by domain."""

    def __init__(self, nodes: NodeView, rows: Rows, keys: tuple[str, ...]) -> None:
        codes = np.stack([nodes.label_codes(key).take(rows) for key in keys])
        is_in = (codes > 0).all(axis=0)
        self.rows = rows[is_in]
        self.number = np.zeros(0, np.intp)
        """intp[rows]: the domain of each."""
        self.count = 0
        if len(self.rows):
            self.number = np.unique(codes[:, is_in], axis=1, return_inverse=True)[1].reshape(-1)
            self.count = int(self.number.max()) + 1
        self._size = len(nodes.pod_count)

    def sums(self, column: Int64) -> Int64:
        """By domain, of a column over all rows of the table."""
        return np.bincount(self.number, column.take(self.rows), self.count).astype(np.int64)

    def mask(self, domains: Sequence[int]) -> Bools:
        found = np.zeros(self._size, np.bool_)
        found[self.rows[np.isin(self.number, domains)]] = True
        return found


def _single(
    nodes: NodeView, level: _Domains, fits: Sequence[Int64], needs: Sequence[Need], standing: Sequence[int]
) -> Iterator[Bools]:
    """Domains in which each kind of members would have room, the one that they fill most first."""
    has_room = np.ones(level.count, np.bool_)
    for need, fit in zip(needs, fits, strict=True):
        has_room &= level.sums(fit) >= need.count
    idle = level.sums(nodes.allocatable(CPU) - nodes.requested(CPU))
    is_home = np.zeros(level.count, np.bool_)
    is_home[level.number[np.isin(level.rows, list(standing))]] = True
    order = np.lexsort((np.arange(level.count), idle, ~is_home))
    for domain in order[has_room[order]][:DOMAINS_MAX].tolist():
        yield level.mask([domain])


def _fewest(level: _Domains, fits: Sequence[Int64], needs: Sequence[Need]) -> Iterator[Bools]:
    """As few domains together as have room, the emptiest first."""
    rooms = [level.sums(fit) for fit in fits]
    order = np.argsort(-np.sum(rooms, axis=0), kind="stable") if rooms else np.zeros(0, np.intp)
    for count in range(2, min(level.count, DOMAINS_MAX) + 1):
        chosen = order[:count]
        if all(int(room[chosen].sum()) >= need.count for room, need in zip(rooms, needs, strict=True)):
            yield level.mask(chosen.tolist())
            return


def lacking(nodes: NodeView, rows: Rows, needs: Sequence[Need]) -> tuple[Need, int] | None:
    """The first kind of members for which the rows have too little room however they are filled; None: there is none.

    With it, how many of them they have room for. Looks at room alone, so that whoever passes may still fail.
    """
    for need in needs:
        room = int(_fits(nodes, msgspec.structs.replace(need, rows=rows)).sum())
        if room < need.count:
            return need, room
    return None
