"""What repair decides on: nodes with their curves, pods with theirs, and what binds them. Values only; arrays are never written.

Made by the controller and by `multisched repair plan` from one snapshot, read by the planner (`repair/plan.py`). Loads and peaks
are shares of a node's capacity; a *cell* is one dimension at one slot of the week. Every array is checked once, when the case
is made: a `ValueError` names the field, what is wrong with it and what should stand there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

Fits = Callable[[int], Mask]
"""bool[nodes]: where this pod may stand, by every rule but the predicted load. Asked with the number of the pod. It
does not know pods that the plan moved before, so the controller asks again when it reserves. What depends on requests
is better left to `Nodes.free`, which the planner keeps up to date from step to step."""

NO_GANG: Final = -1
MOVABLE: Final = ""
SERVICES_MAX: Final = 10_000_000


class Nodes(msgspec.Struct, frozen=True):
    """Nodes by number."""

    names: tuple[str, ...]
    loads: Floats
    """float[nodes, dimensions, slots]: predicted use over capacity, all pods included; NaN where the capacity is not known."""
    capacity: Floats
    """float[nodes, dimensions], in the unit of the curves; NaN where it is not known: there the dimension does not count."""
    free: Ints
    """int64[nodes, resources]: allocatable less requested, the number of pods among the resources; no columns: not looked at."""


class Disruptions(msgspec.Struct, frozen=True):
    """One PodDisruptionBudget."""

    name: str
    """`namespace/name`"""
    allowed: int
    """Its status.disruptionsAllowed."""
    pods: tuple[int, ...]


class Pods(msgspec.Struct, frozen=True):
    """Pods by number. Those that stand on no node known here are left out by who makes this."""

    names: tuple[str, ...]
    """`namespace/name`"""
    node: Ints
    """int64[pods]"""
    curve: Ints
    """int64[pods]: which of the curves."""
    service: Ints
    """int64[pods]: a number per service; replicas and budgets are counted by it."""
    namespace: Ints
    """int64[pods]: a row of `quota_room`."""
    requests: Ints
    """int64[pods, resources]: with the columns of `Nodes.free`."""
    gang: Ints
    """int64[pods]: a row of `gang_spare`; NO_GANG."""
    fixed: NDArray[np.uint8]
    """uint8[pods]: why the pod cannot move, a place in `fixed_reasons`; 0: it can."""
    cold_start: NDArray[np.uint8]
    """uint8[pods]: how slowly the service starts, from 0; among equals, the plan moves what starts faster."""


class RepairCase(msgspec.Struct, frozen=True):
    """One snapshot."""

    dimensions: tuple[str, ...]
    nodes: Nodes
    pods: Pods
    curves: Floats
    """float[curves, dimensions, slots]: predicted use of one pod; NaN counts as nothing."""
    disruptions: tuple[Disruptions, ...] = ()
    gang_spare: Ints = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))
    """int64[gangs]: members that run beyond the gang's minimum."""
    quota_room: Ints = msgspec.field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """int64[namespaces, resources]: what each may still request; no rows: no quotas. A pod that leaves is counted until it has
    ended, so a replacement needs room beside it."""
    fixed_reasons: tuple[str, ...] = (MOVABLE, "it has local storage")

    def __post_init__(self) -> None:
        self._check_shapes()
        self._check_numbers()
        self._check_values()

    def _check_shapes(self) -> None:
        nodes, pods, dimensions = len(self.nodes.names), len(self.pods.names), len(self.dimensions)
        slots = self.curves.shape[-1] if self.curves.ndim == 3 else 0
        resources = self.nodes.free.shape[-1] if self.nodes.free.ndim == 2 else 0
        expected: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
            ("curves", self.curves.shape, (len(self.curves), dimensions, slots)),
            ("nodes.loads", self.nodes.loads.shape, (nodes, dimensions, slots)),
            ("nodes.capacity", self.nodes.capacity.shape, (nodes, dimensions)),
            ("nodes.free", self.nodes.free.shape, (nodes, resources)),
            ("pods.requests", self.pods.requests.shape, (pods, resources)),
        ]
        per_pod = ("node", "curve", "service", "namespace", "gang", "fixed", "cold_start")
        expected.extend((f"pods.{name}", getattr(self.pods, name).shape, (pods,)) for name in per_pod)
        if len(self.quota_room):
            expected.append(("quota_room", self.quota_room.shape, (len(self.quota_room), resources)))
        for field, found, wanted in expected:
            if found != wanted:
                raise ValueError(f"{field}: shape {found} in place of {wanted}")
        if not (nodes and dimensions and slots):
            raise ValueError("nodes.loads: nothing to plan for; give at least one node, one dimension and one slot")

    def _check_numbers(self) -> None:
        """Of rows in other arrays."""
        _check_rows("pods.node", self.pods.node, len(self.nodes.names))
        _check_rows("pods.curve", self.pods.curve, len(self.curves))
        _check_rows("pods.service", self.pods.service, SERVICES_MAX)
        _check_rows("pods.fixed", self.pods.fixed, len(self.fixed_reasons))
        _check_rows("pods.gang", self.pods.gang, len(self.gang_spare), lowest=NO_GANG)
        if len(self.quota_room):
            _check_rows("pods.namespace", self.pods.namespace, len(self.quota_room))
        for budget in self.disruptions:
            _check_rows(f"disruptions {budget.name}", np.array(budget.pods, np.int64), len(self.pods.names))

    def _check_values(self) -> None:
        if bool((self.curves < 0).any()) or bool(np.isinf(self.curves).any()):
            raise ValueError("curves: below zero or infinite; a forecast of use is neither, NaN stands for unknown")
        if bool((self.nodes.capacity < 0).any()) or bool(np.isinf(self.nodes.capacity).any()):
            raise ValueError("nodes.capacity: below zero or infinite; NaN stands for unknown")
        if bool((self.nodes.loads < 0).any()) or bool(np.isinf(self.nodes.loads).any()):
            raise ValueError("nodes.loads: below zero or infinite; NaN stands for an unknown capacity")


def _check_rows(field: str, rows: NDArray[np.integer], count: int, lowest: int = 0) -> None:
    wrong = rows[(rows < lowest) | (rows >= count)]
    if len(wrong):
        raise ValueError(f"{field}: {int(wrong[0])} is no number from {lowest} to {count - 1}")
