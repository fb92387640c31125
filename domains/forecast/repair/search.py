"""The search for the best plan: the most hot nodes brought below their thresholds, then the fewest moves.

Branch and bound over the hot nodes (nodes above a threshold). The *least* number of moves of a node is the smallest
number of its pods whose removal brings it below its thresholds; the sum over the nodes is a lower bound of a plan's moves.
For each node in turn its *alternatives* are made on the working placement, the smallest first. An alternative is a set of
pods to remove, each with a feasible target. If another pod must leave the target first, the two moves form a *chain*; an
exchange of two pods is a chain, too. A *cell* is one dimension in one time slot (`case.py`).

The first descent gives a plan. If it exceeds the bound, the next descent begins with the nodes that needed more moves than
their least. Then further plans are tried until `work_max` cells were evaluated. With many feasible targets the first plan
meets the bound, and the search evaluates each hot node once. In small, full clusters it is nearly exhaustive.
Deterministic.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from typing import Final

import msgspec
import numpy as np

from domains.forecast.repair.case import Floats, Ints
from domains.forecast.repair.moves import EVALUATION_WORK, TOLERANCE, Move, WorkingPlacement

HOT_MAX: Final = 400
"""Limit of hot nodes in one plan; the others are left for the next plan."""
SET_MAX: Final = 12
"""Limit of pods moved from one hot node in one plan."""
BEAM_MAX: Final = 256
"""Width of the beam: sets of one size that are extended."""
BEYOND_LEAST_MAX: Final = 3
"""Largest number of moves tried for a node, beyond its least."""
TRIES_MAX: Final = 4_000
"""Limit of sets of pods tried for a node at one point of the search."""
FIRST_ORDERS_MAX: Final = 3
"""Number of orders of the hot nodes tried for the first plan."""
FIRST_WORK_MAX: Final = 600_000_000
"""Limit of cells evaluated for the first plan, divided among the hot nodes."""
NODE_WORK_MIN: Final = 1_500_000
NODE_WORK_MAX: Final = 60_000_000
"""Bounds of one hot node's part of FIRST_WORK_MAX."""
ORDERS_MAX: Final = 4
"""With up to this many hot nodes left, each of them is tried as the next one."""
SET_WORK: Final = 2_000
"""Fixed cost of a set in addition to its cells, in cells."""
CHUNK_SETS: Final = 2_048
"""Sets summed together: some megabytes."""
SEEN_MAX: Final = 100_000
"""Limit of stored positions, which are not searched twice."""


class NodeRepair(msgspec.Struct, frozen=True):
    """The moves that bring one hot node below its thresholds, in order."""

    node: int
    moves: tuple[Move, ...]


def _moves(repairs: Iterable[NodeRepair]) -> int:
    return sum(len(one.moves) for one in repairs)


class Search:
    """One search on one working placement, which it restores at the end."""

    def __init__(self, placement: WorkingPlacement) -> None:
        self._placement = placement
        self.hot = placement.hot().tolist()
        self._least = {node: self._least_moves(node) for node in self.hot}
        self._best: tuple[NodeRepair, ...] | None = None
        self._best_moves = 0
        self._steps: list[NodeRepair] = []
        self._is_first_search = True
        """True while searching a first plan; each descent then stops at its first complete plan."""
        self._has_complete_plan = False
        self._seen: set[tuple[frozenset[Move], tuple[int, ...]]] = set()

    def run(self) -> tuple[NodeRepair, ...]:
        """Searches and returns the best plan found: repairs of nodes in order of execution."""
        order = [node for node in self.hot if self._least[node] <= SET_MAX]
        order.sort(key=lambda node: self._least[node])  # stable: the worst first among equals
        order = order[:HOT_MAX]
        for _ in range(FIRST_ORDERS_MAX):
            self._has_complete_plan = False
            self._seen.clear()
            self._descend(tuple(order))
            hard = self._hard(order)
            if not hard or order[: len(hard)] == hard or self._placement.work >= FIRST_WORK_MAX:
                break
            order = hard + [node for node in order if node not in set(hard)]
        self._is_first_search, self._has_complete_plan = False, False
        self._seen.clear()
        self._placement.work_end = self._placement.work + self._placement.limits.work_max
        self._descend(tuple(order))
        return self._best or ()

    def _hard(self, order: list[int]) -> list[int]:
        """Returns the nodes that the best plan leaves hot, or for which it needs more moves than their least."""
        moves = {one.node: len(one.moves) for one in self._best or ()}
        return [node for node in order if moves.get(node, SET_MAX + 1) > self._least[node]]

    def least(self, node: int) -> int:
        """Returns the least number of moves for a hot node; more than SET_MAX if it cannot be brought below its thresholds."""
        return self._least[node]

    # The whole cluster

    def _descend(self, left: tuple[int, ...]) -> None:
        if self._can_prune(left):
            return
        if not left:
            self._store_plan()
            return
        for node in left if len(left) <= ORDERS_MAX else left[:1]:
            rest = tuple(other for other in left if other != node)
            with closing(self._alternatives(node, self._allowance(left, node))) as alternatives:
                for moves in alternatives:
                    if self._mark_seen(rest):
                        self._steps.append(NodeRepair(node, moves))
                        self._descend(rest)
                        self._steps.pop()
                    if self._can_prune(left):
                        return
        if self._mark_seen(left[1:]):
            self._descend(left[1:])

    def _store_plan(self) -> None:
        """Stores a complete plan if it is better than the best so far."""
        self._has_complete_plan = True
        repaired, moves = len(self._steps), len(self._placement.moves)
        if self._best is None or (-repaired, moves) < (-len(self._best), self._best_moves):
            self._best, self._best_moves = tuple(self._steps), moves

    def _mark_seen(self, left: tuple[int, ...]) -> bool:
        """Stores the position: the moves made and the nodes left. Reports whether it is new, as far as positions are stored."""
        if len(self._seen) >= SEEN_MAX:
            return True
        key = (frozenset(self._placement.moves), left)
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def _can_prune(self, left: tuple[int, ...]) -> bool:
        """Reports whether this branch cannot contain a better plan, or the work limit is reached."""
        if self._is_first_search or self._best is None:
            return self._has_complete_plan
        if self._placement.is_spent():
            return True
        repaired, best = len(self._steps) + len(left), len(self._best)
        moves = _moves(self._steps) + sum(self._least[node] for node in left)
        return repaired < best or (repaired == best and moves >= self._best_moves)

    def _allowance(self, left: tuple[int, ...], node: int) -> int:
        """Returns the largest number of moves for this node that the budgets allow and that can still beat the best plan."""
        made = len(self._placement.moves)
        allowed = min(SET_MAX, self._placement.limits.moves_per_window - made)
        if not self._is_first_search and self._best is not None and len(self._steps) + len(left) <= len(self._best):
            others = sum(self._least[other] for other in left if other != node)
            allowed = min(allowed, self._best_moves - 1 - made - others)
        return allowed

    # One node

    def _alternatives(self, node: int, allowance: int) -> Generator[tuple[Move, ...], None, None]:
        """Yields alternatives for the node, the fewest moves first. Each is made on the working placement until the next is requested."""
        placement, tries = self._placement, 0
        begun = len(placement.moves)
        if self._is_first_search:
            placement.work_end = placement.work + max(
                NODE_WORK_MIN, min(NODE_WORK_MAX, FIRST_WORK_MAX // len(self.hot))
            )
        pods = placement.movable_on(node)
        pool, first = pods, self._least_of(node, pods)
        count, last = first, min(allowance, SET_MAX)
        while count <= last:
            if count == first + 1:
                # The filter by feasible targets is deferred: sets of the first size usually suffice and need few calls of `Fits`.
                pool = self._placeable(pods)
                least = self._least_of(node, pool)
                last = min(last, (least if least <= SET_MAX else first) + BEYOND_LEAST_MAX)
            for helpers in range(count // 2 + 1):
                for leaving in self._sets(node, pods if helpers else pool, count - helpers, redundant=helpers > 0):
                    tries += 1
                    if tries > TRIES_MAX or placement.is_spent():
                        return
                    for _ in self._move_away(node, leaving, helpers):
                        yield tuple(placement.moves[begun:])
            count += 1

    def _placeable(self, pods: Ints) -> Ints:
        """Returns the pods that have a feasible target now."""
        return np.array([pod for pod in pods.tolist() if self._placement.targets(pod)], np.int64)

    def _move_away(self, node: int, leaving: tuple[int, ...], helpers: int) -> Iterator[None]:
        """Yields once for each combination of targets of these pods, in order, with `helpers` other pods moved first (chains)."""
        placement = self._placement
        if not leaving:
            if helpers == 0 and placement.is_below_threshold(node):
                yield
            return
        pod, rest = leaving[0], leaving[1:]
        if not placement.may_leave(pod):
            return
        if len(leaving) > helpers:
            for target in placement.targets(pod):
                if placement.is_spent():
                    return
                with placement.moved(Move(pod, node, target)):
                    yield from self._move_away(node, rest, helpers)
        if helpers:
            for pair in placement.chains(pod):
                with ExitStack() as stack:
                    for move in pair:
                        stack.enter_context(placement.moved(move))
                    yield from self._move_away(node, rest, helpers - 1)

    # Which pods

    def _least_moves(self, node: int) -> int:
        return self._least_of(node, self._placement.movable_on(node))

    def _least_of(self, node: int, pods: Ints) -> int:
        """Returns a lower bound of the number of these pods to remove, from the largest shares in each cell; more than SET_MAX
        if all of them do not suffice."""
        shares, excess = self._over_cells(node, pods)
        if not len(excess):
            return 0
        largest = np.cumsum(-np.sort(-shares, axis=0), axis=0)
        enough = (largest >= excess - TOLERANCE).all(axis=1)
        if not bool(enough.any()):
            return SET_MAX + 1
        count = int(np.argmax(enough)) + 1
        if count == 1 and not bool((shares >= excess - TOLERANCE).all(axis=1).any()):
            return 2
        return count

    def _over_cells(self, node: int, pods: Ints) -> tuple[Floats, Floats]:
        """Returns float64[pods, cells] and float64[cells]: shares of pods and excess, in the cells above the threshold."""
        placement = self._placement
        excess = placement.loads[node] - placement.threshold[:, None]
        cells = excess > TOLERANCE
        placement.work += EVALUATION_WORK + len(pods) * excess.size
        return placement.shares(pods, node)[:, cells], excess[cells]

    def _sets(self, node: int, pods: Ints, size: int, *, redundant: bool) -> Iterator[tuple[int, ...]]:
        """Yields sets of `size` pods whose removal suffices: fast starting services first, then the largest relief.

        A beam search: extends the sets with the smallest remaining excess. Of pods of one kind only the first ones are used.
        Skips a set if a subset suffices. `redundant` keeps such sets: a pod moved in by an exchange may make the larger set necessary.
        """
        shares, excess = self._over_cells(node, pods)
        cold = self._placement.case.pods.cold_start[pods].astype(np.int64)
        before = self._same_kind_before(pods)
        sets: list[tuple[int, ...]] = [()]
        for number in range(1, size + 1):
            grown: dict[tuple[int, ...], None] = {}
            for chosen in sets:
                for row in range(len(pods)):
                    if row not in chosen and (before[row] is None or before[row] in chosen):
                        grown[tuple(sorted((*chosen, row)))] = None
            ranked = self._rank(list(grown), shares, excess, cold)
            if number == size:
                yield from (
                    tuple(int(pods[row]) for row in sorted(chosen, key=lambda row: (-float(shares[row].sum()), row)))
                    for chosen, lacking in ranked
                    if lacking <= TOLERANCE
                )
                return
            sets = [chosen for chosen, lacking in ranked if redundant or lacking > TOLERANCE][:BEAM_MAX]

    def _same_kind_before(self, pods: Ints) -> list[int | None]:
        """Returns for each pod the row of the previous pod of its kind, which must be in a set before it."""
        latest: dict[int, int] = {}
        before: list[int | None] = []
        for row, pod in enumerate(pods.tolist()):
            kind = self._placement.kind(pod)
            before.append(latest.get(kind))
            latest[kind] = row
        return before

    def _rank(
        self, sets: list[tuple[int, ...]], shares: Floats, excess: Floats, cold: Ints
    ) -> list[tuple[tuple[int, ...], float]]:
        """Returns the sets with their remaining excess in the worst cell, the smallest excess first."""
        self._placement.work += EVALUATION_WORK + len(sets) * SET_WORK
        if not sets:
            return []
        rows = np.array(sets)
        lacking, relief = np.empty(len(rows)), np.empty(len(rows))
        for start in range(0, len(rows), CHUNK_SETS):
            part = slice(start, start + CHUNK_SETS)
            sums = shares[rows[part, 0]]
            for column in range(1, rows.shape[1]):
                sums += shares[rows[part, column]]
            lacking[part] = np.maximum((excess - sums).max(axis=1, initial=0.0), 0.0)
            relief[part] = sums.sum(axis=1)
            self._placement.work += sums.size
        order = np.lexsort((np.arange(len(sets)), -relief, cold[rows].sum(axis=1), lacking))
        return [(sets[i], float(lacking[i])) for i in order.tolist()]
