"""The placement policies: scores of nodes for a pod, and the order in which the cards of the chosen node are taken.

Each policy computes for many rows at once, from the arrays of the ledger and the idle CPU. `settings` selects one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.gpu.card_arrays import FREE_MILLI, MEMORY, MODEL, SIZE, CardArrays
from domains.gpu.card_row import CardOrder, CardRow, least_free_first, most_free_first
from domains.gpu.cards import CARD_MILLI, CARD_PERCENT
from domains.gpu.demand import GpuDemand, Part
from multisched.framework.node_view import Amount, Int64, NodeView, Rows, Scores
from multisched.framework.normalize import MAX_SCORE
from multisched.model.objects import CPU, Pod

SHARED_POINTS, TIGHT_POINTS, FULL_POINTS = 50, 40, 10
"""Parts of a fraction's score by `packing`: cards that are already shared, little left on them, utilization of the node."""
BEST_FIT_CPU_MILLI: Final = 128_000
BEST_FIT_GPU_MILLI: Final = 8_000
"""`best-fit` weighs idle CPU and idle GPU against these amounts of one large node; more counts as this much."""
FILTERED_FEW: Final = 4
"""Rows that are filtered in Python numbers, at most: a renewal is mostly about the nodes of a few placed pods."""
SCORED_FEW: Final = 8
"""The same for scores."""
_FULL: Final = np.iinfo(np.int64).max
POINTS_MILLI: Final = 1000
_CPU: Final = (CPU,)
_ALLOCATABLE: Final = Amount.ALLOCATABLE
"""Module constants, because in Python 3.11 looking up an enum member takes as long as three calls."""
_REQUESTED: Final = Amount.REQUESTED
_ZERO: Final = np.array(0)
"""Zero as an array, because numpy takes as long to convert a Python number as for the whole operation."""
A = TypeVar("A", int, Int64)


class Candidates(msgspec.Struct):
    """The rows that a policy scores for one pod. All of them have the mode for which the demand is."""

    arrays: CardArrays
    rows: Rows
    """Ascending."""
    nodes: NodeView

    @property
    def cpu_milli(self) -> Int64:
        """int64[rows]: idle CPU, without the pod."""
        read, rows = self.nodes.amounts, self.rows
        found: Int64 = read(_ALLOCATABLE, _CPU, rows)[0] - read(_REQUESTED, _CPU, rows)[0]
        idle: Int64 = np.maximum(found, _ZERO)
        return idle

    @property
    def left(self) -> Int64:
        """int64[cards, rows]: thousandths left of each card; 0 for a missing one."""
        found: Int64 = np.maximum(self.arrays.layer(FREE_MILLI, self.rows), _ZERO)
        return found

    @property
    def models(self) -> Int64:
        """int64[rows]: number of the model of the first card, see `CardArrays.models`."""
        found: Int64 = np.maximum(self.arrays.first(MODEL, self.rows), _ZERO)
        return found

    def needed_milli(self, part: Part) -> Int64:
        """Returns int64[rows], or int64[1] if all are equal: thousandths that the part takes of the row's largest card, rounded up."""
        if part.amount.milli:
            return np.array((part.amount.milli,))
        size = np.maximum(np.maximum.reduce(self.arrays.layer(SIZE, self.rows), axis=0), 1)
        needed: Int64 = -(-CARD_MILLI * _needed(part, size, self.arrays.scales(self.rows)) // size)
        return needed


class ChosenNode(msgspec.Struct):
    """A node in Python numbers: for one row, or a few, numpy would take longer."""

    arrays: CardArrays
    cards: CardRow
    """Its cards, which may be those of an overlay."""
    nodes: NodeView
    row: int

    @property
    def cpu_milli(self) -> int:
        """Idle CPU, without the pod."""
        return max(self.nodes.allocatable(CPU).item(self.row) - self.nodes.requested(CPU).item(self.row), 0)

    @property
    def model(self) -> int:
        """Number of the model of the first card, see `CardArrays.models`."""
        cards = self.cards.node.cards
        return self.arrays.number_of(cards[0].model) if cards else 0

    def needed_milli(self, part: Part) -> int:
        """Returns the thousandths that the part takes of the node's largest card, rounded up."""
        if part.amount.milli:
            return part.amount.milli
        size = self.cards.largest
        return -(-CARD_MILLI * _needed(part, size, self.cards.node.cards[0].scale) // size)


class PlacementPolicy(Protocol):
    """How GpuShare scores nodes and chooses cards."""

    name: str
    scores_pods: bool
    """False: all nodes are equally good."""
    scores_all_pods: bool
    """Scores depend on idle CPU, too, and pods without GPUs are scored on nodes with GPUs."""
    prefers_first_row: bool
    """See `Traits.prefers_first_row`."""

    def score(self, candidates: Candidates, demand: GpuDemand | None, cpu_milli: int) -> Scores:
        """Returns int64[rows], 0..100; 0 where the demand does not fit. `demand`: None for a pod without GPUs."""
        ...

    def order(self, node: ChosenNode, demand: GpuDemand, pod: Pod) -> CardOrder:
        """Returns the order in which cards that have room are taken."""
        ...


class Packing:
    """Shared cards first, tight ones before others, and used nodes before others: simple, and independent of the workload."""

    name = "packing"
    scores_pods = True
    scores_all_pods = False
    prefers_first_row = True

    def score(self, candidates: Candidates, demand: GpuDemand | None, cpu_milli: int) -> Scores:
        assert demand is not None, "pods without GPUs are not scored"
        arrays, rows = candidates.arrays, candidates.rows
        return _score_whole(arrays, demand, rows) if demand.is_whole else _score_fraction(arrays, demand, rows)

    def order(self, node: ChosenNode, demand: GpuDemand, pod: Pod) -> CardOrder:
        return least_free_first


class BestFit:
    """The node on which the least CPU and GPU is left, half each; the card with the least left that is enough.

    Source: policy BestFit of the simulator of Weng et al., USENIX ATC 2023.
    """

    name = "best-fit"
    scores_pods = True
    scores_all_pods = True
    prefers_first_row = True

    def score(self, candidates: Candidates, demand: GpuDemand | None, cpu_milli: int) -> Scores:
        gpu = candidates.left.sum(axis=0)
        if demand is not None:
            gpu -= demand.parts[0].count * candidates.needed_milli(demand.parts[0])
        gpu = np.clip(gpu, 0, BEST_FIT_GPU_MILLI)
        cpu = np.clip(candidates.cpu_milli - cpu_milli, 0, BEST_FIT_CPU_MILLI)
        whole = BEST_FIT_CPU_MILLI * BEST_FIT_GPU_MILLI
        left = cpu * BEST_FIT_GPU_MILLI + gpu * BEST_FIT_CPU_MILLI
        found: Scores = (2 * whole - left) * MAX_SCORE // (2 * whole)
        return found

    def order(self, node: ChosenNode, demand: GpuDemand, pod: Pod) -> CardOrder:
        return least_free_first


class Spread:
    """The node with the largest share of its GPU free; the card with the most left. For pods that slow each other down."""

    name = "spread"
    scores_pods = True
    scores_all_pods = False
    prefers_first_row = False

    def score(self, candidates: Candidates, demand: GpuDemand | None, cpu_milli: int) -> Scores:
        sizes = candidates.arrays.layer(SIZE, candidates.rows)
        cards = np.maximum((sizes > 0).sum(axis=0), 1)
        found: Scores = MAX_SCORE * candidates.left.sum(axis=0) // (CARD_MILLI * cards)
        return found

    def order(self, node: ChosenNode, demand: GpuDemand, pod: Pod) -> CardOrder:
        return most_free_first


class RandomNode:
    """Chooses any node that fits and any card, by a hash of the pod, so that equal pods get equal placements. For comparison."""

    name = "random"
    scores_pods = False
    scores_all_pods = False
    prefers_first_row = False

    def score(self, candidates: Candidates, demand: GpuDemand | None, cpu_milli: int) -> Scores:
        return np.zeros(len(candidates.rows), np.int64)

    def order(self, node: ChosenNode, demand: GpuDemand, pod: Pod) -> CardOrder:
        hashed = zlib.crc32(pod.uid.encode())
        return lambda fitting: [_mixed(hashed + place) for place, _ in fitting]


SIMPLE_POLICIES: Final[dict[str, Callable[[], PlacementPolicy]]] = {
    one.name: one for one in (BestFit, Packing, Spread, RandomNode)
}
"""The policies that need nothing but the cards."""


def _mixed(number: int) -> int:
    """Returns 32 bits in which each bit of the number changes many: neighbours, and sums that differ by a constant, get unlike results."""
    number = (number * 0x9E3779B1) & 0xFFFFFFFF
    number = ((number ^ number >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    return number ^ number >> 13


def _score_whole(arrays: CardArrays, demand: GpuDemand, rows: Rows) -> Scores:
    """Returns 100 / (1 + completely free cards left): prefers the fullest node that fits, and exact fits by far."""
    memory, size = arrays.layer(MEMORY, rows), arrays.layer(SIZE, rows)
    left = ((size > 0) & (memory == size)).sum(axis=0) - demand.count
    return np.where(left >= 0, MAX_SCORE // (1 + np.maximum(left, 0)), 0)


def _score_fraction(arrays: CardArrays, demand: GpuDemand, rows: Rows) -> Scores:
    """Returns points for the best-fitting cards of the first part: already shared, little left on them, on a full node."""
    part = demand.parts[0]
    memory, size = arrays.layer(MEMORY, rows), arrays.layer(SIZE, rows)
    if part.count > len(memory):
        return np.zeros(len(rows), np.int64)
    fits = arrays.fitting(demand, part, rows)
    order = lowest(np.where(fits, memory, _FULL), part.count)
    chosen = np.take_along_axis(memory, order, axis=0)
    sizes = np.maximum(np.take_along_axis(size, order, axis=0), 1)
    needed = _needed(part, sizes, arrays.scales(rows))
    shared = (chosen < sizes).sum(axis=0)
    left = (POINTS_MILLI * (chosen - needed) // sizes).sum(axis=0)
    total = np.maximum(size, 0).sum(axis=0)
    free = np.where(size > 0, memory, 0).sum(axis=0)
    used_percent = 100 - 100 * free // np.maximum(total, 1)
    points = SHARED_POINTS * shared // part.count + FULL_POINTS * used_percent // 100
    points += TIGHT_POINTS * (part.count * POINTS_MILLI - left) // (part.count * POINTS_MILLI)
    return np.where(fits.sum(axis=0) >= part.count, points, 0)


def lowest(amounts: Int64, count: int) -> NDArray[np.intp]:
    """Returns intp[count, rows]: the places of the lowest amounts of each column, the first ones of equal amounts."""
    if count == 1:
        return np.expand_dims(amounts.argmin(axis=0), 0)
    return np.argsort(amounts, axis=0, kind="stable")[:count]


def _needed(part: Part, sizes: A, scales: A) -> A:
    """Returns the memory that the part needs of cards of these sizes, see `Amount.of`; arrays broadcast to the shape of `sizes`."""
    amount = part.amount
    if amount.milli:
        return amount.milli * sizes // CARD_MILLI
    if amount.percent:
        return amount.percent * sizes // CARD_PERCENT
    return amount.memory * scales
