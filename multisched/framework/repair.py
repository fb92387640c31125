"""Repair: the interface between callers that ask which pods should move, and the plugin that plans the moves.

The shell (`whatif/repair_source.py`) copies the cluster into a `RepairInput`, in a thread, and asks the domain's
`RepairingPlugin` for a plan; `PeakForecast` is one. Nothing here writes anything.

    request = RepairRequest(domain="forecast", threshold_percent={"log": 90.0}, moves=20)
    plan = await RepairPlans(program).plan(request)     # whatif/repair_source.py; on the loop, plans in a thread
    for move in plan.moves:                            # in this order, one at a time
        move.uid, move.from_node, move.to_node, move.from_peaks_percent, move.to_peaks_percent, move.budgets, move.waits_for

If no plan can be made at all, `RepairRefusedError` says what to do. A node that cannot be repaired is not an error: it is
listed in `plan.unrepaired` with the reason. The plugin's settings apply to fields of the request that are None. Peaks are
percent of a node's capacity in one dimension at its fullest slot of the week.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

import msgspec

from multisched.framework.node_view import Bools, NodeView, Rows
from multisched.framework.objects_view import ObjectsView
from multisched.framework.points import Plugin
from multisched.model.objects import Pod

ALL_DIMENSIONS: Final = ""
"""Key of `RepairRequest.threshold_percent` for every dimension that is not named."""

FitsOn = Callable[[Pod], Bools]
"""Returns bool[len(cluster.rows)]: the rows that could take this placed pod if it were on no row.

Every Filter of its domain applies except two: the repairing plugin's own, and free capacity (`NodeResourcesFit`). The
planner tracks capacity itself as it moves pods.
"""


class RepairRefusedError(Exception):
    """No plan can be made; the message says why and what to do. `status` is the HTTP status of the response."""

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.status = status


class RepairRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request for a plan. None: use the plugin's setting."""

    domain: str = ""
    """Empty: the only domain with a repairing plugin."""
    threshold_percent: Mapping[str, float] = {}
    """Dimension -> percent of capacity that no predicted peak may exceed; ALL_DIMENSIONS: the dimensions not named."""
    moves: int | None = None
    """In the whole plan. A caller that runs several plans in one window subtracts the moves already done."""
    moves_per_node: int | None = None
    moves_per_service: int | None = None


class RepairInput(msgspec.Struct, frozen=True):
    """A private copy of the cluster at one moment: no change of the cluster reaches it while the plugin plans."""

    domain: str
    nodes: NodeView
    rows: Rows
    """The rows of the domain, ascending."""
    placed: Sequence[tuple[Pod, int]]
    """Every pod on any row, in any domain: bound, assumed, or waiting at Permit."""
    nominated: Sequence[tuple[Pod, int]]
    """Pending pods and the rows they are nominated to."""
    objects: ObjectsView
    scheduler_names: frozenset[str]
    """The schedulerNames of the domain."""
    fits: FitsOn
    notes: tuple[str, ...] = ()
    """Limitations of this copy."""


class RepairPeak(msgspec.Struct, frozen=True, rename="camel"):
    """The fullest slot of a node, relative to its threshold."""

    dimension: str
    at: str
    """The slot, for example `Tue 20:00`."""
    percent: float


class RepairBudget(msgspec.Struct, frozen=True, rename="camel"):
    """A PodDisruptionBudget that a move consumes."""

    name: str
    """`namespace/name`"""
    left: int
    """Further disruptions it allows, assuming that all earlier moves of the plan are still in progress."""


class RepairMove(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Moves one pod: it is evicted from one node, and its replacement is placed on another."""

    pod: str
    """`namespace/name`"""
    uid: str
    service: str
    from_node: str
    to_node: str
    repairs: str
    """The node that the move relieves: the pod's own node, or one whose pod needs the freed capacity."""
    gain_percent: float
    """Decrease of the peak of the node in `repairs`, in percentage points; negative for the first move of a swap."""
    from_before: RepairPeak
    from_after: RepairPeak
    to_before: RepairPeak
    to_after: RepairPeak
    from_peaks_percent: Mapping[str, float]
    """Dimension -> predicted peak of the source node after this move; checked after the move."""
    to_peaks_percent: Mapping[str, float]
    replicas: int
    """Replicas of the service; one of them is missing until the replacement is ready."""
    budgets: tuple[RepairBudget, ...] = ()
    waits_for: tuple[int, ...] = ()
    """Indices of moves in the plan whose capacity or disruption this one needs; the previous move is always waited for.
    """


class UnrepairedNode(msgspec.Struct, frozen=True, rename="camel"):
    """A node that stays above its threshold."""

    node: str
    peak: RepairPeak
    why: str


class RepairPlan(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The planned moves, and the nodes that cannot be repaired."""

    domain: str
    profiles_version: int
    """Version of the load profiles that the plan is based on."""
    threshold_percent: Mapping[str, float]
    """For every dimension."""
    moves: tuple[RepairMove, ...]
    repaired: tuple[str, ...]
    unrepaired: tuple[UnrepairedNode, ...]
    least_moves: int
    """No plan that repairs these nodes has fewer moves."""
    worst_before: RepairPeak
    """Over all nodes."""
    worst_after: RepairPeak
    nodes: int
    pods: int
    """On those nodes."""
    movable: int
    """Pods that no rule keeps in place."""
    kept: Mapping[str, int]
    """Reason why the other pods are not moved -> count; most common first."""
    notes: tuple[str, ...] = ()
    """Circumstances that the plan could not take into account."""


@runtime_checkable
class RepairingPlugin(Plugin, Protocol):
    """A plugin that can plan which pods should move.

    A Protocol because callers import no domain; implemented by a domain's plugin (`PeakForecast`).
    """

    def plan_repair(self, cluster: RepairInput, request: RepairRequest) -> RepairPlan:
        """Returns the plan; `cluster.rows` are also rows of the plugin's own ledgers. May take seconds, so it never runs on the loop.

        Raises RepairRefusedError.
        """
        ...
