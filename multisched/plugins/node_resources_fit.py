"""NodeResourcesFit: refuses rows with too few free resources for the pod's requests, and scores the others by utilization."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from multisched.framework.cycle_state import StateKey
from multisched.framework.dependency import Dependency
from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.framework.node_view import Amount, Bools, Codes, Int64, Rows, Scores, any_true
from multisched.framework.plugin_args import Fields
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import Code
from multisched.framework.traits import Traits
from multisched.model.objects import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, Node, Pod, Requests
from multisched.model.resources import is_extended_resource
from multisched.model.selectors import is_qualified_name
from multisched.plugins.columns import zeros
from multisched.plugins.resource_scoring import LEAST_ALLOCATED, ScoredDemand, ScoringStrategy, read_scoring_strategy

NATIVE = (CPU, MEMORY, EPHEMERAL_STORAGE)
"""Checked first, in this order, which is the order of upstream's reasons."""

BITS_MAX = 62
"""Maximum number of resources with a separate reason per row; all further ones share the last bit."""

PACKED_MAX = 7
"""Up to this many resources, pods included, what a row lacks is one byte, and codes are looked up in a table."""

_ALLOCATABLE: Final = Amount.ALLOCATABLE
"""Module constants, because in Python 3.11 looking up an enum member takes as long as three calls."""
_REQUESTED: Final = Amount.REQUESTED

UNKNOWN = 255
"""No code of a combination of resources, unless there are more reasons than codes."""

_BITS = 1 << np.arange(8, dtype=np.uint8)


class Wanted(msgspec.Struct, frozen=True):
    """The amounts to check: one pod, then the pod's requests in the order of upstream's reasons."""

    resources: tuple[str, ...]
    amounts: Int64
    """int64[resources, 1]"""
    codes: Codes = msgspec.field(default_factory=lambda: np.array([0] + [UNKNOWN] * 255, np.uint8))
    """uint8[256]: the code of each combination of lacking resources that was found so far; UNKNOWN: not found yet."""


_WANTED: StateKey[Wanted] = StateKey("NodeResourcesFit.wanted")
_SCORED: StateKey[ScoredDemand] = StateKey("NodeResourcesFit.scored")


class NodeResourcesFitArgs(msgspec.Struct, frozen=True):
    """Upstream's NodeResourcesFitArgs."""

    ignored_resources: frozenset[str] = frozenset()
    """Extended resources that are not checked."""
    ignored_resource_groups: frozenset[str] = frozenset()
    """Prefixes (before the slash) of extended resources that are not checked."""
    scoring_strategy: ScoringStrategy = LEAST_ALLOCATED

    @classmethod
    def from_config(cls, document: Mapping[str, Any], path: str = "args") -> NodeResourcesFitArgs:
        """Reads the arguments from a configuration. Raises PluginArgsError."""
        with Fields(document, path, ("ignoredResources", "ignoredResourceGroups", "scoringStrategy")) as fields:
            resources, groups = fields.texts("ignoredResources"), fields.texts("ignoredResourceGroups")
            for at, name in (*resources, *groups):
                if not is_qualified_name(name):
                    fields.refuse_at(at, f"{name!r} is not a resource name; write for example example.com/fpga")
            for at, group in groups:
                if "/" in group:
                    fields.refuse_at(at, f"{group!r} has a slash; write only the part before it")
            return cls(
                ignored_resources=frozenset(name for _, name in resources),
                ignored_resource_groups=frozenset(group for _, group in groups),
                scoring_strategy=read_scoring_strategy(fields, "scoringStrategy"),
            )


class NodeResourcesFit:
    """Source: kube-scheduler 1.36, plugins/noderesources/fit.go. Without DRA-backed extended resources."""

    name = "NodeResourcesFit"
    depends_on = Dependency.ROW
    traits = Traits(signs_spec_only=True, wants_room_only=True)

    def __init__(self, args: NodeResourcesFitArgs | None = None) -> None:
        args = args or NodeResourcesFitArgs()
        self._ignored = args.ignored_resources
        self._ignored_groups = args.ignored_resource_groups
        self._strategy = args.scoring_strategy
        self.reasons = ReasonTable(self.name)

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        cycle.state.write(_WANTED, self._wanted(pod.spec.requests))
        return PreFilterResult()

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: a code for the resources that a row lacks; unresolvable if even the empty node would lack one."""
        wanted = cycle.state.find(_WANTED)
        if wanted is None:
            wanted = self._wanted(pod.spec.requests)
        allocatable = cycle.nodes.amounts(_ALLOCATABLE, wanted.resources, rows)
        short = allocatable - cycle.nodes.amounts(_REQUESTED, wanted.resources, rows) < wanted.amounts
        if not any_true(short):
            return zeros(rows)
        return (
            self._packed_codes(short, allocatable, wanted)
            if len(short) <= PACKED_MAX
            else self._many_codes(short, allocatable, wanted)
        )

    def _packed_codes(self, short: Bools, allocatable: Int64, wanted: Wanted) -> Codes:
        """Returns uint8[rows]. `short`: bool[resources, rows], with the resources that each row lacks."""
        lacking: Codes = _BITS[1 : 1 + len(short)].dot(short.view(np.uint8))
        too_small = allocatable[1:] < wanted.amounts[1:]
        if any_true(too_small):
            lacking |= np.logical_or.reduce(too_small, axis=0).view(np.uint8)
        codes = wanted.codes.take(lacking)
        if UNKNOWN in codes.tobytes():
            for kind in np.flatnonzero(np.bincount(lacking)).tolist():
                wanted.codes[kind] = self._code(kind, wanted.resources[1:])
            codes = wanted.codes.take(lacking)
        return codes

    def _many_codes(self, short: Bools, allocatable: Int64, wanted: Wanted) -> Codes:
        """Like `_packed_codes`, for any number of resources."""
        lacking = np.zeros(short.shape[1], np.int64)
        for index in np.flatnonzero(short.any(axis=1)).tolist():
            lacking |= short[index].astype(np.int64) << min(index + 1, BITS_MAX)
            if index:
                lacking |= allocatable[index] < wanted.amounts[index]
        kinds, position = np.unique(lacking, return_inverse=True)
        codes = np.array([self._code(kind, wanted.resources[1:]) for kind in kinds.tolist()], np.uint8)
        return codes.take(position)

    def _code(self, lacking: int, wanted: tuple[str, ...]) -> int:
        """Returns the code for `lacking`: bit 0 if the empty node is too small, bit 1 for too many pods, then a bit per resource."""
        if not lacking:
            return 0
        code = Code.UNSCHEDULABLE_AND_UNRESOLVABLE if lacking & 1 else Code.UNSCHEDULABLE
        reasons = ["Too many pods"] if lacking & 2 else []
        reasons += [
            f"Insufficient {resource}" for i, resource in enumerate(wanted[: BITS_MAX - 1]) if lacking >> i + 2 & 1
        ]
        return self.reasons.code(code, *reasons)

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[rows], 0..100, by the scoring strategy."""
        demand = cycle.state.find(_SCORED)
        if demand is None:
            demand = self._strategy.demand(pod.spec)
            cycle.state.write(_SCORED, demand)
        return self._strategy.score(cycle.nodes, demand, rows)

    def sign(self, pod: Pod) -> Hashable:
        return tuple(sorted(pod.spec.requests.items())), self._strategy.amounts(pod.spec)

    def events_to_register(self) -> Sequence[EventRegistration]:
        freed = Action.DELETE | Action.UPDATE_POD_SCALE_DOWN
        return (
            EventRegistration(ClusterEvent(Resource.ASSIGNED_POD, freed, "AssignedPodFrees"), self._after_pod_event),
            EventRegistration(
                ClusterEvent(Resource.TARGET_POD, Action.UPDATE_POD_SCALE_DOWN, "TargetPodScaleDown"),
                self._after_pod_event,
            ),
            EventRegistration(
                ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE, "NodeAddOrAllocatable"),
                self._after_node_change,
            ),
        )

    def _wanted(self, requests: Requests) -> Wanted:
        checked = self._checked(requests)
        return Wanted(
            (PODS, *(name for name, _ in checked)), np.array([[1], *([amount] for _, amount in checked)], np.int64)
        )

    def _checked(self, requests: Requests) -> list[tuple[str, int]]:
        """Returns the requests to check, in the order of upstream's reasons (upstream does not order scalar resources)."""
        native = [(name, requests[name]) for name in NATIVE if name in requests]
        others = [item for item in sorted(requests.items()) if item[0] not in NATIVE and not self._is_ignored(item[0])]
        return [*native, *others]

    def _is_ignored(self, resource: str) -> bool:
        if not (self._ignored or self._ignored_groups) or not is_extended_resource(resource):
            return False
        return resource in self._ignored or resource.split("/")[0] in self._ignored_groups

    def _after_pod_event(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Queues the pod if a pod with a node or a nominated node was deleted, or if that pod or the pending pod was scaled down."""
        if not isinstance(old, Pod):
            return Hint.QUEUE
        if not isinstance(new, Pod):
            return Hint.QUEUE if old.node or old.nominated_node else Hint.SKIP
        if new.uid == pod.uid:
            return Hint.QUEUE
        if not new.node:
            return Hint.SKIP
        frees = any(old.requests.get(name, 0) > new.requests.get(name, 0) for name in pod.spec.requests)
        return Hint.QUEUE if frees else Hint.SKIP

    def _after_node_change(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Queues the pod if the empty node could hold it and the node has more of a resource that the pod requests.

        Ignored resources are left out. Upstream does not leave them out, so such a pod waits for the periodic flush.
        """
        if not isinstance(new, Node):
            return Hint.SKIP
        wanted = self._checked(pod.spec.requests)
        if new.limit(PODS) < 1 or any(amount > new.limit(name) for name, amount in wanted):
            return Hint.SKIP
        if not isinstance(old, Node):
            return Hint.QUEUE
        grown = any(new.limit(name) > old.limit(name) for name in (PODS, *(name for name, _ in wanted)))
        return Hint.QUEUE if grown else Hint.SKIP
