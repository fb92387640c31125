"""NodeResourcesBalancedAllocation: prefers rows whose resources would be used more evenly with the pod."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.framework.cycle_state import StateKey
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import VIEW_FROM, Amount, Int64, NodeView, Rows, Scores
from multisched.framework.normalize import MAX_SCORE
from multisched.framework.plugin_args import Fields
from multisched.framework.points import CycleView
from multisched.framework.status import SKIP, SUCCESS, Status
from multisched.framework.traits import Traits
from multisched.model.objects import Pod
from multisched.plugins.columns import FEW_ROWS, HALF, HUNDRED, ONE
from multisched.plugins.resource_scoring import DEFAULT_RESOURCES, ResourceWeight, counts_in_scores, read_resources

Fractions = NDArray[np.float64]
Present = NDArray[np.bool_] | None
"""bool[resources, rows]: whether the row has the resource; None: all rows have all resources."""

_NOTHING: Int64 = np.zeros((1, 1), np.int64)
_FULL = np.array(1.0)
_MIDDLE = np.array(3 * MAX_SCORE // 2)
"""150"""

Counted = tuple[tuple[str, ...], Int64]
"""Resources, and int64[resources, 1]: the pod's request of each."""
_COUNTED: StateKey[Counted] = StateKey("NodeResourcesBalancedAllocation.counted")


class NodeResourcesBalancedAllocationArgs(msgspec.Struct, frozen=True):
    """Upstream's NodeResourcesBalancedAllocationArgs: the resources to balance, each with weight 1."""

    resources: tuple[ResourceWeight, ...] = DEFAULT_RESOURCES

    @classmethod
    def from_config(cls, document: Mapping[str, Any], path: str = "args") -> NodeResourcesBalancedAllocationArgs:
        """Reads the arguments from a configuration. Raises PluginArgsError."""
        with Fields(document, path, ("resources",)) as fields:
            resources = read_resources(fields, weight_max=1)
            names = [resource.name for resource in resources]
            for index, name in enumerate(names):
                if name in names[:index]:
                    fields.refuse(f"resources[{index}].name", f"{name} is listed twice; remove one")
            return cls(resources)


class NodeResourcesBalancedAllocation:
    """Source: kube-scheduler 1.36, plugins/noderesources/balanced_allocation.go.

    All floats are float64 and every operation is in upstream's order, so that truncation gives the same integers.
    """

    name = "NodeResourcesBalancedAllocation"
    depends_on = Dependency.ROW
    traits = Traits(signs_spec_only=True)

    def __init__(self, args: NodeResourcesBalancedAllocationArgs | None = None) -> None:
        self._resources = tuple(r.name for r in (args or NodeResourcesBalancedAllocationArgs()).resources)

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status:
        """Skips pods that request none of the resources: all of them would prefer the same row."""
        return SUCCESS if any(pod.spec.requests.get(name) for name in self._resources) else SKIP

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[rows], 50..100: 50 + (50 + b(with the pod) - b(without)) / 2; 75 if the pod does not change b.

        b is (1 - standard deviation of the used fractions of the resources) * 100, over the resources that the row has.
        """
        counted = cycle.state.find(_COUNTED)
        if counted is None:
            counted = self._counted(pod)
            cycle.state.write(_COUNTED, counted)
        resources, amounts = counted
        if not resources:
            return np.full(len(rows), 3 * MAX_SCORE // 4, np.int64)
        if not len(rows):
            return np.zeros(0, np.int64)
        if len(rows) <= FEW_ROWS and len(resources) == 2:
            return np.array(_of_two(cycle.nodes, resources, amounts, rows), np.int64)
        if len(rows) <= VIEW_FROM:
            without, with_pod = _balances(cycle.nodes, resources, (_NOTHING, amounts), rows)
        else:
            (with_pod,) = _balances(cycle.nodes, resources, (amounts,), rows)
            without = cycle.nodes.derived((self.name, resources), partial(_balance_now, resources), rows)
        change: Int64 = with_pod - without
        change += _MIDDLE
        change >>= ONE  # rounds towards minus infinity; _MIDDLE already includes 2 * 50 for the added 50
        return change

    def _counted(self, pod: Pod) -> Counted:
        requests = pod.spec.requests
        found = [name for name in self._resources if counts_in_scores(name, requests.get(name, 0))]
        return tuple(found), np.array([[requests.get(name, 0)] for name in found], np.int64)

    def sign(self, pod: Pod) -> Hashable:
        return tuple(pod.spec.requests.get(name, 0) for name in self._resources)


def _of_two(nodes: NodeView, resources: tuple[str, ...], amounts: Int64, rows: Rows) -> list[int]:
    """Returns the scores of a few rows for two resources."""
    allocatable = nodes.amounts(Amount.ALLOCATABLE, resources, rows).tolist()
    requested = nodes.amounts(Amount.REQUESTED, resources, rows).tolist()
    (more,), (more_too,) = amounts.tolist()
    found = []
    for capacity, capacity_too, used, used_too in zip(*allocatable, *requested, strict=True):
        without = with_pod = MAX_SCORE
        if capacity > 0 and capacity_too > 0:
            first, second = float(capacity), float(capacity_too)
            without = _balance_of(used / first, used_too / second)
            with_pod = _balance_of((used + more) / first, (used_too + more_too) / second)
        found.append(with_pod - without + 3 * MAX_SCORE // 2 >> 1)
    return found


def _balance_of(first: float, second: float) -> int:
    """Returns the balance of two used fractions, 50..100."""
    return int((1.0 - abs(min(first, 1.0) - min(second, 1.0)) * 0.5) * 100.0)


def _balances(nodes: NodeView, resources: tuple[str, ...], more: Sequence[Int64], rows: Rows) -> Int64:
    """Returns int64[len(more), rows], 50..100: the balance with each amount of `more` (int64[resources, 1]) added to every row."""
    capacity = nodes.capacities(resources, rows)
    requested = nodes.amounts(Amount.REQUESTED, resources, rows)
    has_all = nodes.capacity_range(resources)[0] > 0
    present = None if has_all else capacity > 0
    used = np.empty((len(more), *requested.shape), np.float64)
    for index, amounts in enumerate(more):
        # int64 is converted to float64 before the division, as in Go
        if amounts is _NOTHING:
            used[index] = requested
        else:
            np.add(requested, amounts, out=used[index])
    used /= capacity if present is None else np.maximum(capacity, 1.0)
    np.minimum(used, _FULL, out=used)
    if present is not None:
        used *= present
    return _balance(used, present)


def _balance_now(resources: tuple[str, ...], nodes: NodeView, rows: Rows) -> Int64:
    (balance,) = _balances(nodes, resources, (_NOTHING,), rows)
    return cast(Int64, balance)


def _balance(used: Fractions, present: Present) -> Int64:
    """Returns int64[planes, rows], 50..100, of float64[planes, resources, rows].

    Two resources have a separate formula, as upstream, because it rounds differently.
    """
    if used.shape[1] == 1:
        return np.full((len(used), used.shape[2]), MAX_SCORE, np.int64)
    if used.shape[1] == 2:
        deviation: Fractions = used[:, 0] - used[:, 1]
        deviation *= HALF  # exact, and takes a third of the time of a division
        np.abs(deviation, out=deviation)
        if present is not None:
            deviation *= present[0] & present[1]
    else:
        deviation = np.array([_deviation(plane, present) for plane in used])
    np.subtract(_FULL, deviation, out=deviation)
    deviation *= HUNDRED
    return deviation.astype(np.int64)


def _deviation(fractions: Fractions, present: Present) -> Fractions:
    """Returns the standard deviation over the resources that each row has; absent ones add 0.0 to the sums."""
    held = np.ones(fractions.shape, np.bool_) if present is None else present
    count = np.zeros(fractions.shape[1], np.int64)
    total = np.zeros(fractions.shape[1], np.float64)
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
