"""References of NodeResourcesFit and NodeResourcesBalancedAllocation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tests.reference.amounts import pod_requests
from tests.reference.world import SKIP, PodState, Refused, Silent, Skip, World

Json = Mapping[str, Any]
NATIVE = ("cpu", "memory", "ephemeral-storage")
DEFAULT_RESOURCES: tuple[Json, ...] = ({"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1})


def is_scalar(resource: str) -> bool:
    return resource not in (*NATIVE, "pods")


class NodeResourcesFit(Silent):
    """Source: plugins/noderesources/fit.go, least_allocated.go, most_allocated.go, requested_to_capacity_ratio.go."""

    name, filters, scores = "NodeResourcesFit", True, True

    def __init__(self, args: Json) -> None:
        self._ignored = set(args.get("ignoredResources") or ())
        self._ignored_groups = set(args.get("ignoredResourceGroups") or ())
        strategy: Json = args.get("scoringStrategy") or {}
        self._type = strategy.get("type") or "LeastAllocated"
        self._resources = strategy.get("resources") or DEFAULT_RESOURCES
        self._shape = (strategy.get("requestedToCapacityRatio") or {}).get("shape") or ()

    def refusal(self, state: Any, world: World, pod: PodState, node: str) -> Refused | None:
        has = world.nodes[node].allocatable
        reasons, is_unresolvable = [], False
        if len(world.on(node)) + 1 > has.get("pods", 0):
            reasons.append("Too many pods")
        asked = pod.asked_requests
        for resource in (*NATIVE, *sorted(r for r in asked if is_scalar(r))):
            amount = asked.get(resource, 0)
            if amount == 0 or self._is_ignored(resource):
                continue
            if amount > has.get(resource, 0) - world.requested(node, resource):
                reasons.append(f"Insufficient {resource}")
                is_unresolvable |= amount > has.get(resource, 0)
        return Refused(tuple(reasons), is_unresolvable) if reasons else None

    def _is_ignored(self, resource: str) -> bool:
        if "/" not in resource:
            return False
        return resource in self._ignored or resource.split("/")[0] in self._ignored_groups

    def scored(self, world: World, pod: PodState, feasible: Sequence[str]) -> dict[str, int] | Skip:
        return {node: self._score(world, pod, node) for node in feasible}

    def _score(self, world: World, pod: PodState, node: str) -> int:
        asked = pod.asked_scoring_requests
        total = weights = 0
        for spec in self._resources:
            resource, weight = spec["name"], spec.get("weight") or 1
            capacity = world.nodes[node].allocatable.get(resource, 0)
            if capacity == 0 or (is_scalar(resource) and not asked.get(resource)):
                continue
            read = world.scoring_requested if resource in ("cpu", "memory") else world.requested
            score = self._of(read(node, resource) + asked.get(resource, 0), capacity)
            if self._type == "RequestedToCapacityRatio" and score <= 0:
                continue
            total += score * weight
            weights += weight
        if weights == 0:
            return 0
        if self._type == "RequestedToCapacityRatio":
            return math.floor(total / weights + 0.5)
        return total // weights

    def _of(self, requested: int, capacity: int) -> int:
        match self._type:
            case "LeastAllocated":
                return 0 if requested > capacity else (capacity - requested) * 100 // capacity
            case "MostAllocated":
                return min(requested, capacity) * 100 // capacity
        return self._on_shape(100 if requested > capacity else requested * 100 // capacity)

    def _on_shape(self, utilization: int) -> int:
        """Straight lines between the points; scores 0..10 of the configuration count tenfold."""
        points = [(point["utilization"], point["score"] * 10) for point in self._shape]
        for at, (upper, score) in enumerate(points):
            if utilization <= upper:
                if at == 0:
                    return int(score)
                lower, before = points[at - 1]
                return int(before + int((score - before) * (utilization - lower) / (upper - lower)))
        return int(points[-1][1])


class NodeResourcesBalancedAllocation(Silent):
    """Source: plugins/noderesources/balanced_allocation.go."""

    name, scores = "NodeResourcesBalancedAllocation", True

    def __init__(self, args: Json) -> None:
        self._resources = [spec["name"] for spec in args.get("resources") or DEFAULT_RESOURCES]

    def scored(self, world: World, pod: PodState, feasible: Sequence[str]) -> dict[str, int] | Skip:
        asked = pod_requests(pod.document)
        if not any(asked.get(resource) for resource in self._resources):
            return SKIP
        scores = {}
        for node in feasible:
            without, with_pod = [], []
            for resource in self._resources:
                capacity = world.nodes[node].allocatable.get(resource, 0)
                if capacity == 0 or (is_scalar(resource) and not asked.get(resource)):
                    continue
                used = world.requested(node, resource)
                without.append(min(used / capacity, 1.0))
                with_pod.append(min((used + asked.get(resource, 0)) / capacity, 1.0))
            gain = 50 + _balance(with_pod) - _balance(without)
            scores[node] = 50 + math.trunc(gain / 2)
        return scores


def _balance(fractions: Sequence[float]) -> int:
    deviation = 0.0
    if len(fractions) == 2:
        deviation = abs((fractions[0] - fractions[1]) / 2)
    elif len(fractions) > 2:
        total = 0.0
        for fraction in fractions:
            total += fraction
        mean = total / len(fractions)
        squares = 0.0
        for fraction in fractions:
            squares += (fraction - mean) * (fraction - mean)
        deviation = math.sqrt(squares / len(fractions))
    return int((1 - deviation) * 100)
