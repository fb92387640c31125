"""Repair: the seam between whoever asks which pods should move, and the plugin that knows.

Who does what. The shell (`whatif/repair_source.py`) makes a copy of the cluster, a *scene*, in a thread, and asks the domain's
`RepairingPlugin` for a plan; `PeakForecast` is one. Nothing here writes anything.

    asked = RepairAsked(domain="forecast", threshold_percent={"log": 90.0}, moves=20)
    plan = await RepairPlans(program).plan(asked)      # whatif/repair_source.py; on the loop, plans in a thread
    for move in plan.moves:                                           # in this order, one at a time
        move.uid, move.from_node, move.to_node, move.from_peaks_percent, move.to_peaks_percent, move.budgets, move.waits_for

A plan that cannot be made at all is a `RepairRefusedError`, whose message says what to do; a node that cannot be mended is no
error: it stands in `plan.left` with the reason. What a plan may do goes by the plugin's settings where the question does not
say otherwise. Peaks are percent of a node's capacity in one dimension at its fullest slot of the week.
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
"""In `RepairAsked.threshold_percent`: every dimension that is not named."""

FitsOn = Callable[[Pod], Bools]
"""bool[len(scene.rows)]: where this standing pod might stand if it stood nowhere.

Every Filter of its domain counts but two: the repairing plugin's own, and room (`NodeResourcesFit`). The planner counts
room itself as pods come and go."""


class RepairRefusedError(Exception):
    """No plan can be made; the message says why and what to do. `status` is the HTTP answer it makes."""

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.status = status


class RepairAsked(msgspec.Struct, frozen=True, kw_only=True):
    """One question. None: as the plugin's settings say."""

    domain: str = ""
    """Empty: the only domain with a plugin that repairs."""
    threshold_percent: Mapping[str, float] = {}
    """Dimension -> percent of capacity that no predicted peak shall pass; ALL_DIMENSIONS stands for those not named."""
    moves: int | None = None
    """In the whole plan. Who runs several plans in one window takes off what was moved."""
    moves_per_node: int | None = None
    moves_per_service: int | None = None


class RepairScene(msgspec.Struct, frozen=True):
    """The cluster at one moment. Nobody else has it: the plugin may take its time."""

    domain: str
    nodes: NodeView
    rows: Rows
    """Of the domain, ascending."""
    standing: Sequence[tuple[Pod, int]]
    """Every pod on any row, whatever its domain: bound, assumed, waiting in Permit."""
    nominated: Sequence[tuple[Pod, int]]
    """Pending pods and the rows they are nominated to."""
    objects: ObjectsView
    scheduler_names: frozenset[str]
    """Of the domain."""
    fits: FitsOn
    notes: tuple[str, ...] = ()
    """What is not known of this scene."""


class RepairPeak(msgspec.Struct, frozen=True, rename="camel"):
    """Where a node is fullest, measured at its threshold."""

    dimension: str
    at: str
    """The slot, as `Tue 20:00`."""
    percent: float


class RepairBudget(msgspec.Struct, frozen=True, rename="camel"):
    """A PodDisruptionBudget that a move draws on."""

    name: str
    """`namespace/name`"""
    left: int
    """Disruptions it allows beside this one, were all earlier moves of the plan under way still."""


class RepairMove(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One pod leaves one node, and its replacement comes to another."""

    pod: str
    """`namespace/name`"""
    uid: str
    service: str
    from_node: str
    to_node: str
    mends: str
    """The node for whose sake it moves: its own, or one whose pod needs the place."""
    gain_percent: float
    """By how many points the peak of the node in `mends` falls; below zero for the first of two that change places."""
    from_before: RepairPeak
    from_after: RepairPeak
    to_before: RepairPeak
    to_after: RepairPeak
    from_peaks_percent: Mapping[str, float]
    """Per dimension: the predicted peak of the node that is left, once this move is done; for the check after it."""
    to_peaks_percent: Mapping[str, float]
    replicas: int
    """Of the service; one of them is away until its replacement is ready."""
    budgets: tuple[RepairBudget, ...] = ()
    waits_for: tuple[int, ...] = ()
    """Moves, by their place in the plan, whose room or disruption this one needs; the one before it is always waited for."""


class RepairLeft(msgspec.Struct, frozen=True, rename="camel"):
    """A node that stays past its threshold."""

    node: str
    peak: RepairPeak
    why: str


class RepairPlan(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What would be done, and what cannot be."""

    domain: str
    profiles_version: int
    """Of the profiles it stands on: a plan is as good as they are."""
    threshold_percent: Mapping[str, float]
    """Of every dimension."""
    moves: tuple[RepairMove, ...]
    mended: tuple[str, ...]
    left: tuple[RepairLeft, ...]
    least_moves: int
    """No plan that mends these nodes has fewer."""
    worst_before: RepairPeak
    """Of all nodes."""
    worst_after: RepairPeak
    nodes: int
    pods: int
    """Standing on those nodes."""
    movable: int
    """Of them: no rule keeps them where they are."""
    kept: Mapping[str, int]
    """Why the others are not moved -> how many; the commonest first."""
    notes: tuple[str, ...] = ()
    """What the plan could not know."""


@runtime_checkable
class RepairingPlugin(Plugin, Protocol):
    """A plugin that can say which pods should move.

    Border: a domain's plugin is one (`PeakForecast`), and whoever asks knows no domain.
    """

    def plan_repair(self, scene: RepairScene, asked: RepairAsked) -> RepairPlan:
        """The plan for this scene, whose rows the plugin's own ledgers know. May take seconds, so never on the loop. Raises
        RepairRefusedError."""
        ...
