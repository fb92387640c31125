"""The topology domains that a gang may use, in the order in which they are tried.

A topology domain is the set of nodes with the same values of a level's label key and of the keys of all wider levels. The
level with fewer domains is the wider one. The narrowest level is tried first. Its domains are sorted by the number of running
members of the gang, then (if more members are pending than must start) how many of the pending members fit, then the least
room left over for members of the same kind, so that large domains stay whole.
If no single domain has room, as few domains as possible within one domain of the next wider level are tried together, then
that whole wider domain. A required level is never left; if no level is required, all nodes are tried last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from multisched.framework.node_view import NO_ROWS, Bools, Int32, Int64, NodeView, Rows
from multisched.model.gang import TopologyLevel
from multisched.model.objects import CPU, PODS, Requests

DOMAINS_MAX: Final = 64
"""Domains of one level that are tried for a gang, best first; also the most that are tried together."""


class Need(msgspec.Struct, frozen=True):
    """Identical members, and the rows on which one of them alone would fit."""

    count: int
    requests: Requests
    rows: Rows
    """Feasible rows, ascending."""


class GangTopology:
    """The topology domains of one gang at one moment."""

    def __init__(
        self,
        nodes: NodeView,
        rows: Rows,
        levels: Sequence[TopologyLevel],
        needs: Sequence[Need],
        placed_rows: Rows,
        waiting: Sequence[Need] = (),
    ) -> None:
        """`rows`: of the scheduling domain. `needs`: the members that must start.

        `placed_rows`: rows of running members; required levels apply to those rows, too. `waiting`: all pending members, if there are
        more of them than must start.
        """
        self._nodes = nodes
        self._needs = needs
        self._size = len(nodes.pod_count)
        self._fits = [_fits(nodes, need) for need in needs]
        self._waiting = [(need.count, _fits(nodes, need)) for need in waiting]
        self._idle = nodes.allocatable(CPU) - nodes.requested(CPU)
        self._placed_rows = placed_rows
        levels = self._levels = sorted(levels, key=lambda level: _count(nodes.label_codes(level.key).take(rows)))
        self._narrowest = max((at for at, level in enumerate(levels) if level.is_required), default=-1)
        for level in levels:
            if level.is_required:
                codes = nodes.label_codes(level.key)
                rows = rows[codes.take(rows) > 0]
                for row in placed_rows.tolist():
                    rows = rows[codes.take(rows) == codes.item(row)]
        self._rows = rows
        self._domains = [_Domains(nodes, rows, levels[: at + 1]) for at in range(len(levels))]

    def masks(self) -> Iterator[Bools | None]:
        """Yields the masks to be tried, in order: bool[rows of the table], or None for all rows."""
        last = len(self._domains) - 1
        for at in range(last, max(self._narrowest, 0) - 1, -1):
            level = self._domains[at]
            for domain in self._single(level):
                rows = level.rows_of(domain)
                if at < last:
                    yield from self._fewest(self._domains[at + 1], rows, len(rows))
                yield self._mask(rows)
        if self._narrowest < 0 and self._domains:
            yield from self._fewest(self._domains[0], self._domains[0].rows, len(self._rows))
            yield None

    def to_clear(self) -> tuple[Bools, ...]:
        """Returns masks (bool[rows of the table]) of domains that are large enough when emptied, the least short of room first.

        Domains of the narrowest required level; at most DOMAINS_MAX.
        """
        level = self._domains[self._narrowest]
        short, is_large = np.zeros(level.count, np.int64), np.ones(level.count, np.bool_)
        for room, need in zip(self._rooms(level), self._needs, strict=True):
            short += np.maximum(need.count - room, 0)
            is_large &= level.sums(_fits(self._nodes, need, is_empty=True)) >= need.count
        order: list[int] = np.lexsort((np.arange(level.count), short)).tolist()
        large = [domain for domain in order if is_large[domain]]
        return tuple(self._mask(level.rows_of(domain)) for domain in large[:DOMAINS_MAX])

    def shortage(self) -> str:
        """Returns a message saying why no domain of the required level has room."""
        at = max(self._narrowest, 0)
        key, level = self._levels[at].key, self._domains[at]
        if not level.count:
            scope = " among those open to the gang" if len(self._placed_rows) else ""
            return f"no node{scope} has the label {key}"
        rooms = self._rooms(level)
        most = int(
            np.argmax(np.min([room / need.count for room, need in zip(rooms, self._needs, strict=True)], axis=0))
        )
        short = next(
            (
                (room.item(most), need.count)
                for room, need in zip(rooms, self._needs, strict=True)
                if room[most] < need.count
            ),
            None,
        )
        if short is None:
            return f"no domain of {key} takes all members that must start together"
        members = "one more member" if short[1] == 1 else f"the {short[1]} members that must start together"
        return f"no domain of {key} has room for {members}, {short[0]} at most"

    # -- inside ----------------------------------------------------------------------------------------------------

    def _rooms(self, level: _Domains) -> list[Int64]:
        """Returns, for each need, how many members each domain has room for: int64[domains]."""
        return [level.sums(fit) for fit in self._fits]

    def _single(self, level: _Domains) -> list[int]:
        """Returns the domains with room for the members of every need, in the order in which they are tried."""
        has_room, left = np.ones(level.count, np.bool_), np.zeros(level.count, np.int64)
        for room, need in zip(self._rooms(level), self._needs, strict=True):
            has_room &= room >= need.count
            left += room - need.count
        left_out = np.zeros(level.count, np.int64)
        for count, fit in self._waiting:
            left_out += np.maximum(count - level.sums(fit), 0)
        is_home = np.zeros(level.count, np.bool_)
        is_home[level.number[np.isin(level.rows, self._placed_rows)]] = True
        order = np.lexsort((np.arange(level.count), level.sums(self._idle), left, left_out, ~is_home))
        found: list[int] = order[has_room[order]][:DOMAINS_MAX].tolist()
        return found

    def _fewest(self, level: _Domains, within: Rows, most: int) -> Iterator[Bools]:
        """Yields the smallest set of domains that has room together: domains with running members first, then by most room.

        Yields nothing if the set has `most` rows or more: those rows are tried next anyway.
        """
        is_within = np.isin(level.rows, within)
        inside = np.unique(level.number[is_within])
        if len(inside) < 2 or not self._needs:
            return
        rooms = [room[inside] for room in self._rooms(level)]
        share = np.min([room / need.count for room, need in zip(rooms, self._needs, strict=True)], axis=0)
        is_home = np.isin(inside, level.number[np.isin(level.rows, self._placed_rows)])
        order = np.lexsort((np.arange(len(inside)), -share, ~is_home))
        for count in range(2, min(len(inside), DOMAINS_MAX) + 1):
            chosen = order[:count]
            if all(int(room[chosen].sum()) >= need.count for room, need in zip(rooms, self._needs, strict=True)):
                rows = level.rows[is_within & np.isin(level.number, inside[chosen])]
                if len(rows) < most:
                    yield self._mask(rows)
                return

    def _mask(self, rows: Rows) -> Bools:
        found = np.zeros(self._size, np.bool_)
        found[rows] = True
        return found


class _Domains:
    """The rows of one level, grouped by domain."""

    def __init__(self, nodes: NodeView, rows: Rows, levels: Sequence[TopologyLevel]) -> None:
        """`levels`: all wider levels, then this one. A node that lacks the label of a preferred wider level may still be included."""
        codes = np.stack([nodes.label_codes(level.key).take(rows) for level in levels])
        is_in = codes[-1] > 0
        self.rows = rows[is_in] if len(rows) else NO_ROWS
        self.number = np.zeros(0, np.intp)
        """intp[rows]: the domain of each row."""
        self.count = 0
        if len(self.rows):
            self.number = np.unique(codes[:, is_in], axis=1, return_inverse=True)[1].reshape(-1)
            self.count = int(self.number.max()) + 1

    def rows_of(self, domain: int) -> Rows:
        found: Rows = self.rows[self.number == domain]
        return found

    def sums(self, column: Int64) -> Int64:
        """Sums a column over all rows of the table by domain."""
        return np.bincount(self.number, column.take(self.rows), self.count).astype(np.int64)


def _count(codes: Int32) -> int:
    """Counts the domains of a label; wider levels have fewer."""
    return len(np.unique(codes[codes > 0]))


def _fits(nodes: NodeView, need: Need, *, is_empty: bool = False) -> Int64:
    """Returns int64[rows of the table]: how many of these members fit on each node if no other pod is placed.

    `is_empty`: counts as if no pods were on the nodes.
    """
    most = nodes.allocatable(PODS) - (0 if is_empty else nodes.pod_count)
    for resource, amount in need.requests.items():
        if amount > 0:
            room = nodes.allocatable(resource) - (0 if is_empty else nodes.requested(resource))
            most = np.minimum(most, room // amount)
    feasible = np.zeros(len(most), np.int64)
    feasible[need.rows] = np.clip(most[need.rows], 0, None)
    return feasible


def lacking(nodes: NodeView, rows: Rows, needs: Sequence[Need]) -> tuple[Need, int] | None:
    """Returns the first need for which the rows have too little room in any distribution, and how many fit; None if none.

    Checks free resources only, so members that pass may still fail.
    """
    for need in needs:
        room = int(_fits(nodes, msgspec.structs.replace(need, rows=rows)).sum())
        if room < need.count:
            return need, room
    return None
