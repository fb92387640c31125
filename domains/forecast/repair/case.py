"""RepairCase: input of the planner: nodes and pods with their curves, budgets, quotas and gangs. Arrays are never written.

Created from a snapshot for the controller and for `multisched repair plan`, read by the planner (`repair/plan.py`).
Loads and peaks are shares of a node's capacity; a *cell* is one dimension at one slot of the week. Arrays are checked on
creation: a `ValueError` names the field, the problem and the expected value.
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
"""Pod number -> bool[nodes]: nodes that pass all filters except the predicted load. It ignores earlier moves of the plan, so
the controller runs the filters again before each move. Requests should be checked by `Nodes.free`, which the planner
updates with each move."""

NO_GANG: Final = -1
MOVABLE: Final = ""
SERVICES_MAX: Final = 10_000_000


class Nodes(msgspec.Struct, frozen=True):
    """Nodes by number."""

    names: tuple[str, ...]
    loads: Floats
    """float[nodes, dimensions, slots]: predicted use of all pods / capacity; NaN where the capacity is unknown."""
    capacity: Floats
    """float[nodes, dimensions], in the unit of the curves; NaN if unknown, then the dimension is ignored on that node."""
    free: Ints
    """int64[nodes, resources]: allocatable - requested; the number of pods is a resource. Without columns it is not checked."""


class Disruptions(msgspec.Struct, frozen=True):
    """One PodDisruptionBudget."""

    name: str
    """`namespace/name`"""
    allowed: int
    """status.disruptionsAllowed."""
    pods: tuple[int, ...]


class Pods(msgspec.Struct, frozen=True):
    """Pods by number. Contains only pods on the nodes of the case."""

    names: tuple[str, ...]
    """`namespace/name`"""
    node: Ints
    """int64[pods]: number of the node."""
    curve: Ints
    """int64[pods]: index of the curve."""
    service: Ints
    """int64[pods]: number of the service, by which replicas and budgets are counted."""
    namespace: Ints
    """int64[pods]: row of `quota_room`."""
    requests: Ints
    """int64[pods, resources]: same columns as `Nodes.free`."""
    gang: Ints
    """int64[pods]: row of `gang_spare`, or NO_GANG."""
    fixed: NDArray[np.uint8]
    """uint8[pods]: why the pod cannot move, an index of `fixed_reasons`; 0: it can."""
    cold_start: NDArray[np.uint8]
    """uint8[pods]: rank of the service's start time, 0 is fastest; among equal pods the plan moves the fastest first."""


class RepairCase(msgspec.Struct, frozen=True):
    """The input of one plan."""

    dimensions: tuple[str, ...]
    nodes: Nodes
    pods: Pods
    curves: Floats
    """float[curves, dimensions, slots]: predicted use of one pod; NaN counts as 0."""
    disruptions: tuple[Disruptions, ...] = ()
    gang_spare: Ints = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))
    """int64[gangs]: number of running members beyond the gang's minimum."""
    quota_room: Ints = msgspec.field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """int64[namespaces, resources]: unused quota; no rows: no quotas. An evicted pod counts until it has ended, so its
    replacement needs unused quota."""
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
                raise ValueError(f"{field}: expected shape {wanted}, got {found}")
        if not (nodes and dimensions and slots):
            raise ValueError("nodes.loads: nothing to plan for; give at least one node, one dimension and one slot")

    def _check_numbers(self) -> None:
        """Checks arrays of indices of other arrays."""
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
        raise ValueError(f"{field}: {int(wrong[0])} is not a number from {lowest} to {count - 1}")
