"""The scoring strategies of NodeResourcesFit: the weighted mean of scores by the utilization of each resource.

Source: kube-scheduler 1.36, plugins/noderesources: resource_allocation.go, least_allocated.go, most_allocated.go,
requested_to_capacity_ratio.go and plugins/helper/shape_score.go.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from enum import Enum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import Amount, Float64, Int64, NodeView, Rows, Scores
from multisched.framework.normalize import MAX_SCORE
from multisched.framework.plugin_args import Fields
from multisched.model.near_names import did_you_mean
from multisched.model.objects import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, PodSpec
from multisched.model.resources import is_scalar_resource
from multisched.plugins.columns import EXACT_BELOW, HUNDRED, NOUGHT, ONE

QUOTIENTS_EXACT_BELOW = EXACT_BELOW // MAX_SCORE
"""Below this capacity, 100 * capacity is exact in float64, and a truncated float64 quotient equals the integer quotient."""

SCORED = (CPU, MEMORY, EPHEMERAL_STORAGE)
"""Resources without a prefix that count in scores."""
WEIGHT_MAX = 100
UTILIZATION_MAX = 100
SHAPE_SCORE_MAX = 10


class ResourceWeight(msgspec.Struct, frozen=True):
    """A resource and its weight in the mean, 1..100."""

    name: str
    weight: int = 1


class ShapePoint(msgspec.Struct, frozen=True):
    """A point of a score curve: utilization, 0..100 percent, and score, 0..10."""

    utilization: int
    score: int


DEFAULT_RESOURCES = (ResourceWeight(CPU), ResourceWeight(MEMORY))


class StrategyType(Enum):
    """The function from the utilization of a resource to its score."""

    LEAST_ALLOCATED = "LeastAllocated"
    MOST_ALLOCATED = "MostAllocated"
    REQUESTED_TO_CAPACITY_RATIO = "RequestedToCapacityRatio"


class ScoredDemand(msgspec.Struct, frozen=True):
    """The resources of a pod that count in a score."""

    resources: tuple[str, ...]
    amounts: Int64
    """int64[resources, 1]"""
    weights: Int64
    """int64[resources, 1]"""
    weight: int
    """The sum of the weights."""


class ScoringStrategy(msgspec.Struct, frozen=True):
    """Upstream's ScoringStrategy; `shape` is used by RequestedToCapacityRatio only."""

    type: StrategyType = StrategyType.LEAST_ALLOCATED
    resources: tuple[ResourceWeight, ...] = DEFAULT_RESOURCES
    shape: tuple[ShapePoint, ...] = ()

    def amounts(self, spec: PodSpec) -> tuple[int, ...]:
        """Returns the amount of each resource for scoring, from which `demand` is computed."""
        return tuple(scoring_amount(spec, resource.name) for resource in self.resources)

    def demand(self, spec: PodSpec) -> ScoredDemand:
        """Returns the pod's resources that count in the score; equal for all pods of an equivalence class."""
        amounts = zip(self.resources, self.amounts(spec), strict=True)
        counted = [(r.name, r.weight, amount) for r, amount in amounts if counts_in_scores(r.name, amount)]
        weights = [weight for _, weight, _ in counted]
        return ScoredDemand(
            tuple(name for name, _, _ in counted),
            _column([amount for _, _, amount in counted]),
            _column(weights),
            sum(weights),
        )

    def score(self, nodes: NodeView, demand: ScoredDemand, rows: Rows) -> Scores:
        """Returns int64[rows], 0..100: the weighted mean over the resources that the row has.

        A scalar resource counts only if the pod requests it. For containers without a request of cpu or memory, a default
        counts. RequestedToCapacityRatio leaves resources with score 0 out of the mean, and rounds the mean.
        """
        if not demand.resources or not len(rows):
            return np.zeros(len(rows), np.int64)
        capacity = nodes.capacities(demand.resources, rows)
        used = nodes.amounts(Amount.SCORING, demand.resources, rows) + demand.amounts
        lowest, highest = nodes.capacity_range(demand.resources)
        has_all = lowest > 0 or capacity.item(capacity.argmin()) > 0  # allocatable is never below zero
        weights = demand.weights
        if self.type is StrategyType.REQUESTED_TO_CAPACITY_RATIO:
            allocatable = nodes.amounts(Amount.ALLOCATABLE, demand.resources, rows)
            scores = _on_curve(self._curve(), used, np.maximum(allocatable, 1))
            weights = weights * ((allocatable > 0) & (scores > 0))
            total, weight = _sum(scores * weights), _sum(weights)
            return (2 * total + weight) // np.maximum(2 * weight, 1)
        if highest < QUOTIENTS_EXACT_BELOW:
            scores = self._of_resources(used, capacity if has_all else np.maximum(capacity, 1.0))
        else:
            scores = self._of_large(used, np.maximum(nodes.amounts(Amount.ALLOCATABLE, demand.resources, rows), 1))
        if not has_all:
            weights = weights * (capacity > 0)
            return _sum(scores * weights) // np.maximum(_sum(weights), 1)
        if demand.weight == 2 == len(demand.resources):
            mean: Int64 = scores[0] + scores[1]
            mean >>= ONE  # faster than a division
            return mean
        if demand.weight != len(demand.resources):
            scores *= weights
        total = _sum(scores)
        total //= demand.weight
        return total

    def _of_resources(self, used: Int64, capacity: Float64) -> Int64:
        """Returns int64[resources, rows], 0..100, for capacities below QUOTIENTS_EXACT_BELOW, where float64 is exact.

        A used amount may be too large for float64 to be exact; it then exceeds the capacity in any case.
        """
        counted = used.astype(np.float64)
        self._count(counted, capacity)
        counted *= HUNDRED
        counted /= capacity
        return counted.astype(np.int64)

    def _of_large(self, used: Int64, capacity: Int64) -> Int64:
        """Returns int64[resources, rows], 0..100, for capacities of any size; overwrites `used`."""
        self._count(used, capacity)
        used *= MAX_SCORE
        return used // capacity

    def _count(self, used: NDArray[Any], capacity: NDArray[Any]) -> None:
        """Replaces the used amounts by the amounts that count: free capacity for LeastAllocated, else used capacity."""
        if self.type is StrategyType.LEAST_ALLOCATED:
            np.subtract(capacity, used, out=used)
            np.maximum(used, NOUGHT, out=used)
        else:
            np.minimum(used, capacity, out=used)

    def _curve(self) -> Int64:
        return score_curve(self.shape)


LEAST_ALLOCATED = ScoringStrategy()


def score_curve(shape: Sequence[ShapePoint]) -> Int64:
    """Returns int64[101]: score 0..100 by whole percent of utilization, linear between the points of the shape."""
    points = [(p.utilization, p.score * MAX_SCORE // SHAPE_SCORE_MAX) for p in shape]
    return np.array([_between(points, percent) for percent in range(UTILIZATION_MAX + 1)], np.int64)


def scoring_amount(spec: PodSpec, resource: str) -> int:
    """Returns the pending pod's amount for scoring: with defaults for cpu and memory, without pod-level requests."""
    if resource == CPU:
        return spec.scoring_cpu_milli
    if resource == MEMORY:
        return spec.scoring_memory_bytes
    requests = spec.requests if spec.container_requests is None else spec.container_requests
    return requests.get(resource, 0)


def counts_in_scores(resource: str, amount: int) -> bool:
    """Reports whether a resource counts: native resources always, scalar ones if the pod requests them, others never."""
    if resource in SCORED:
        return True
    return amount != 0 and is_scalar_resource(resource)


def _column(values: list[int]) -> Int64:
    return np.array(values, np.int64).reshape(-1, 1)


def _sum(matrix: Int64) -> Int64:
    """Returns the sum over the resources (axis 0). They are few, so adding them one by one is faster than a numpy reduction."""
    total: Int64 = matrix[0].copy() if len(matrix) == 1 else matrix[0] + matrix[1]
    for row in matrix[2:]:
        total += row
    return total


def _on_curve(curve: Int64, used: Int64, capacity: Int64) -> Int64:
    """Returns the curve's score at each utilization; a utilization above 100 percent counts as 100."""
    return curve.take(np.minimum(used, capacity) * UTILIZATION_MAX // capacity)


def _between(points: list[tuple[int, int]], percent: int) -> int:
    """Returns the score at a utilization: constant outside the points; between them rounded towards zero, as Go divides."""
    index = bisect_left(points, percent, key=lambda point: point[0])
    if index == 0:
        return points[0][1]
    if index == len(points):
        return points[-1][1]
    (left, low), (right, high) = points[index - 1], points[index]
    rise = (high - low) * (percent - left)
    return low + (rise // (right - left) if rise >= 0 else -(-rise // (right - left)))


def read_resources(fields: Fields, weight_max: int) -> tuple[ResourceWeight, ...]:
    """Reads `resources` of a configuration. The default is cpu and memory. A weight of 0 means 1, as upstream."""
    found = []
    for entry in fields.entries("resources", ("name", "weight")):
        name = entry.text("name")
        if not name:
            entry.refuse("name", "is missing; write a resource, for example cpu")
        elif name != PODS and not counts_in_scores(name, 1):  # as upstream, pods is valid but never counts
            hint = did_you_mean(name, SCORED, f"write one of {', '.join(SCORED)}, or DOMAIN/NAME")
            entry.refuse("name", f"{name} does not count in scores; {hint}")
        found.append(ResourceWeight(name, entry.integer("weight", 1, 0, weight_max) or 1))
    return tuple(found) or DEFAULT_RESOURCES


def read_scoring_strategy(parent: Fields, name: str) -> ScoringStrategy:
    """Reads `scoringStrategy`; the default is LeastAllocated."""
    if not parent.has(name):
        return LEAST_ALLOCATED
    ratio = "requestedToCapacityRatio"
    fields = parent.below(name, ("type", "resources", ratio))
    kind = StrategyType(fields.choice("type", StrategyType.LEAST_ALLOCATED.value, [t.value for t in StrategyType]))
    resources = read_resources(fields, WEIGHT_MAX)
    if not fields.is_refused("type"):
        if kind is not StrategyType.REQUESTED_TO_CAPACITY_RATIO and fields.has(ratio):
            fields.refuse(ratio, "applies to type RequestedToCapacityRatio only; remove it")
        if kind is StrategyType.REQUESTED_TO_CAPACITY_RATIO and not fields.has(ratio):
            fields.refuse(ratio, "is missing; type RequestedToCapacityRatio needs a shape")
    shape = read_shape(fields.below(ratio, ("shape",))) if fields.has(ratio) else ()
    return ScoringStrategy(kind, resources, shape)


def read_shape(fields: Fields) -> tuple[ShapePoint, ...]:
    """Reads `shape`."""
    points: list[ShapePoint] = []
    for entry in fields.entries("shape", ("utilization", "score")):
        utilization = entry.integer("utilization", 0, 0, UTILIZATION_MAX)
        if points and utilization <= points[-1].utilization:
            entry.refuse(
                "utilization", f"{utilization} is not greater than the previous one; sort the points by utilization"
            )
        point = ShapePoint(utilization, entry.integer("score", 0, 0, SHAPE_SCORE_MAX))
        if not entry.is_refused():
            points.append(point)
    if not points:
        fields.refuse("shape", "is empty; write at least one point with utilization and score")
    return tuple(points)
