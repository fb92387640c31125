"""NodeResourcesBalancedAllocation: prefers rows whose resources the pod would make more evenly used."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import Int64, Rows, Scores
from multisched.framework.plugin import MAX_SCORE, CycleView, Dependency
from multisched.framework.status import SKIP, SUCCESS, Status
from multisched.model.objects import Pod
from multisched.plugins.columns import Selection
from multisched.plugins.config_fields import Fields, PluginArgsError
from multisched.plugins.resource_scoring import DEFAULT_RESOURCES, ResourceWeight, counts_in_scores, read_resources

Fractions = NDArray[np.float64]
Present = NDArray[np.bool_] | None
"""Rows that have the resource; None: all."""

HALF = MAX_SCORE // 2


@dataclass(frozen=True, slots=True)
class NodeResourcesBalancedAllocationArgs:
    """As upstream's: which resources are balanced against one another. Each weighs 1."""

    resources: tuple[ResourceWeight, ...] = DEFAULT_RESOURCES

    @classmethod
    def from_config(cls, document: Mapping[str, Any], path: str = "args") -> NodeResourcesBalancedAllocationArgs:
        """Reads NodeResourcesBalancedAllocationArgs of a configuration. Raises PluginArgsError."""
        fields = Fields(document, path, ("resources",))
        resources = read_resources(fields, weight_max=1)
        names = [resource.name for resource in resources]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise PluginArgsError(f"{fields.at('resources')}[{index}].name: {name} is there twice; remove one")
        return cls(resources)


class NodeResourcesBalancedAllocation:
    """Source: kube-scheduler 1.36, plugins/noderesources/balanced_allocation.go.

    All floats are float64 and every operation is in upstream's order, so that truncation gives the same integers.
    """

    name = "NodeResourcesBalancedAllocation"
    depends_on = Dependency.ROW
    signs_spec_only = True

    def __init__(self, args: NodeResourcesBalancedAllocationArgs | None = None) -> None:
        self._resources = tuple(r.name for r in (args or NodeResourcesBalancedAllocationArgs()).resources)

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status:
        """Skips pods that ask for none of the resources: else they would all go to one row."""
        return SUCCESS if any(pod.spec.requests.get(name) for name in self._resources) else SKIP

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """int64[rows], 50..100: 50 + (50 + b(with the pod) - b(without)) / 2; 75 where the pod changes nothing.

        b is (1 - standard deviation of the resources' used fractions) * 100, over the resources the row has.
        """
        at, nodes, spec = Selection(rows), cycle.nodes, pod.spec
        before: list[Fractions] = []
        after: list[Fractions] = []
        present: list[Present] = []
        for resource in self._resources:
            amount = spec.requests.get(resource, 0)
            if not counts_in_scores(resource, amount):
                continue
            allocatable = at.of(nodes.allocatable(resource))
            requested = at.of(nodes.requested(resource))
            has = allocatable > 0
            if has.all():
                capacity = allocatable.astype(np.float64)
                before.append(_fraction(requested, capacity))
                after.append(_fraction(requested + amount, capacity))
                present.append(None)
            else:
                capacity = np.maximum(allocatable, 1).astype(np.float64)
                before.append(_fraction(requested, capacity) * has)
                after.append(_fraction(requested + amount, capacity) * has)
                present.append(has)
        if not present:
            return np.full(len(rows), HALF + HALF // 2, np.int64)
        change = _balance(after, present) - _balance(before, present)
        return HALF + (HALF + change) // 2

    def sign(self, pod: Pod) -> Hashable:
        return tuple(pod.spec.requests.get(name, 0) for name in self._resources)


def _fraction(requested: Int64, capacity: Fractions) -> Fractions:
    """Used part of the capacity, at most 1."""
    used: Fractions = requested / capacity  # int64 becomes float64 first, as Go converts before it divides
    return np.minimum(used, 1.0, out=used)


def _balance(fractions: list[Fractions], present: list[Present]) -> Int64:
    """int64[rows], 50..100. Two resources have a formula of their own, which rounds differently."""
    if len(fractions) == 1:
        return np.full(len(fractions[0]), MAX_SCORE, np.int64)
    if len(fractions) == 2:
        deviation = np.abs((fractions[0] - fractions[1]) / 2)
        for has in present:
            if has is not None:
                deviation *= has
    else:
        deviation = _deviation(fractions, present)
    balance: Int64 = ((1 - deviation) * float(MAX_SCORE)).astype(np.int64)
    return balance


def _deviation(fractions: list[Fractions], present: list[Present]) -> Fractions:
    """Standard deviation over the resources present on each row; adding an absent one's 0.0 changes no sum."""
    everywhere = np.ones(len(fractions[0]), np.bool_)
    held = [everywhere if has is None else has for has in present]
    count = np.zeros(len(everywhere), np.int64)
    total = np.zeros(len(everywhere), np.float64)
    first, second = np.zeros_like(total), np.zeros_like(total)
    for fraction, has in zip(fractions, held, strict=True):
        second = np.where(has & (count == 1), fraction, second)
        first = np.where(has & (count == 0), fraction, first)
        count += has
        total = total + fraction
    mean = total / np.maximum(count, 1)
    squares = np.zeros_like(total)
    for fraction, has in zip(fractions, held, strict=True):
        apart = fraction - mean
        squares = squares + apart * apart * has
    many: Fractions = np.sqrt(squares / np.maximum(count, 1))
    return np.where(count == 2, np.abs((first - second) / 2), np.where(count > 2, many, 0.0))
