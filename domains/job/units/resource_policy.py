"""ResourcePolicy: places pods in units of nodes in the order of their policy (README.md). Its results depend on `UnitLedger`,
the labels and taints of rows, the time and, for `BeforeNextUnit`, the last unit that each pod may use (its level).
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from domains.job.condition_reasons import WAITING_FOR_UNIT
from domains.job.units.open_units import OpenUnits, open_units, up_to
from domains.job.units.policy import Next, Policy
from domains.job.units.policy_table import Match, PolicyTable
from domains.job.units.reading import configured_policies
from domains.job.units.unit_ledger import UnitLedger
from multisched.framework.background import BackgroundPorts
from multisched.framework.caching import SplitCacheKey
from multisched.framework.context import PluginContext
from multisched.framework.dependency import Dependency
from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.framework.node_view import Bools, Codes, NodeView, Rows, Scores
from multisched.framework.normalize import MAX_SCORE
from multisched.framework.points import CycleView, PostFilterResult, PreFilterResult, Refusals
from multisched.framework.preemption import GroupDryRun
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SKIP, Code, Status
from multisched.framework.traits import Traits
from multisched.model.cluster_objects import ResourcePolicy as PolicyObject
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod

RESOURCE_POLICY: Final = "ResourcePolicy"
UNIT_OPENED: Final = ClusterEvent(Resource.ASSIGNED_POD, Action.UPDATE_POD_OTHER, "ResourcePolicyGoesOn")
"""Sent when a further unit may be open to pods. The event has no pod, so no other plugin requeues pods for it."""
COUNTED: Final = ClusterEvent(Resource.ASSIGNED_POD, Action.UPDATE_POD_OTHER, "ResourcePolicyCounted")
"""Sent when all pods of changed policies have been counted; without a pod, like `UNIT_OPENED`."""
INVALID: Final = "ResourcePolicyInvalid"
"""Reason of the PodScheduled condition, for which no autoscaler adds a node."""
FULL: Final = "node(s) belong to a unit that is at its max"
LATER: Final = "node(s) may be used only after an earlier unit"
PERIOD_MIN_S, PERIOD_MAX_S = 0.25, 15.0
"""Bounds of the check interval, which is a sixtieth of the shortest timeout."""
BATCH: Final = 500
"""Pending pods checked before yielding to other tasks."""
COUNTING_S: Final = 0.25
"""Interval of the check whether policies have changed, after which their pods are counted."""
LEVELS_MAX: Final = 10_000
"""Limit of stored levels; beyond it, the oldest entry is dropped, and its pod starts again with the first unit."""
NO_ARGS: Final[Mapping[str, Any]] = {}


class _Members(NamedTuple):
    """Which rows of the table are in which unit of a policy."""

    policy: Policy
    nodes_version: int
    rows: int
    units: Bools
    """bool[units, rows of the table]"""


class ResourcePolicy:
    """PreFilter, Filter, Score and PostFilter for pods that a policy selects; a background task for timeouts."""

    name = RESOURCE_POLICY
    depends_on = Dependency.CACHE_KEY
    traits = Traits(outranks=True, reads_objects=(ObjectKind.RESOURCE_POLICY,))

    def __init__(self, context: PluginContext, args: Mapping[str, Any] = NO_ARGS) -> None:
        """Raises PluginArgsError."""
        configured = configured_policies(args)
        ledger = context.hold.register(UnitLedger(PolicyTable(context.objects), context.hold))
        assert isinstance(ledger, UnitLedger), f"ledger {ledger.name} belongs to another plugin"
        ledger.table.configure(context.domain, configured)
        self._context = context
        self._ledger = ledger
        self._now_s = 0.0
        self._levels: dict[str, int] = {}
        """With preemptPolicy BeforeNextUnit: uid -> index of the last unit that the pod may use, or the number of units if it may use
        nodes of no unit, too. A pod without an entry may use the first unit only."""
        self._members: dict[str, _Members] = {}
        self.reasons = ReasonTable(self.name)
        self._full = self.reasons.code(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, FULL)
        self._later = self.reasons.code(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, LATER)

    # -- classes ---------------------------------------------------------------------------------------------------

    def sign(self, pod: Pod) -> Hashable:
        match = self._match(pod)
        if match is None:
            return 0
        policy = match.policy
        if match.problem:
            return match.problem
        has_amounts = any(unit.max_resources for unit in policy.units)
        amounts = tuple(sorted(pod.requests.items())) if has_amounts else ()
        return policy.key, match.group, self._timeouts(policy, pod, self._now_s), self._levels.get(pod.uid, 0), amounts

    def cache_key(self, cycle: CycleView, pod: Pod) -> SplitCacheKey | None:
        match = self._match(pod)
        if match is None:
            return None
        key: Hashable = match.problem or (self._ledger.table.generation, self._open(match, pod))
        return SplitCacheKey(key, key)

    def _match(self, pod: Pod) -> Match | None:
        ledger = self._ledger
        ledger.refresh()
        if ledger.table.is_empty:
            return None
        match = ledger.match(pod)
        if match is not None:
            ledger.served.add(pod.spec.scheduler_name)
        return match

    @staticmethod
    def _timeouts(policy: Policy, pod: Pod, now_s: float) -> int:
        """Returns how many timeouts have passed. Computed from the creation time, so a restart changes nothing."""
        if not policy.is_timed or not pod.created_s:
            return 0
        return max(0, min(len(policy.units), int((now_s - pod.created_s) // policy.timeout_s)))

    def _open_at_any_level(self, match: Match, pod: Pod) -> OpenUnits:
        """Returns the units that are open to the pod if its level is ignored."""
        return open_units(self._ledger, match, pod, self._timeouts(match.policy, pod, self._now_s))

    def _open(self, match: Match, pod: Pod) -> OpenUnits:
        found = self._open_at_any_level(match, pod)
        if match.policy.preempts_before_next:
            return up_to(found, self._levels.get(pod.uid, 0), len(match.policy.units))
        return found

    # -- PreFilter, Filter, Score ----------------------------------------------------------------------------------

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        match = self._match(pod)
        if match is None:
            return PreFilterResult(SKIP)
        if match.problem:
            why = INVALID if match.is_counted else WAITING_FOR_UNIT
            status = Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, reasons=(match.problem,), condition_reason=why)
            return PreFilterResult(status)
        return PreFilterResult()

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: refuses rows whose units are all closed to the pod."""
        match = self._match(pod)
        codes: Codes = np.zeros(len(rows), np.uint8)
        if match is None or match.problem:
            return codes
        units, found = self._units_of(match.policy, cycle.nodes, rows), self._open(match, pod)
        is_open = np.array([found.has(index) for index in range(len(units))], np.bool_)
        in_any, in_open = units.any(axis=0), units[is_open].any(axis=0)
        codes[in_any & ~in_open] = self._later
        codes[units[: found.last + 1].any(axis=0) & ~in_open] = self._full
        if not found.is_past_all:
            codes[~in_any] = self._later
        return codes

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[rows]: 100 for the first unit, one less for each further one, 0 for nodes of no unit."""
        match = self._match(pod)
        scores: Scores = np.zeros(len(rows), np.int64)
        if match is None or match.problem:
            return scores
        units, found = self._units_of(match.policy, cycle.nodes, rows), self._open(match, pod)
        for index in reversed(range(len(units))):
            if found.has(index):
                scores[units[index]] = MAX_SCORE - index
        return scores

    def _units_of(self, policy: Policy, nodes: NodeView, rows: Rows) -> Bools:
        """Returns bool[units, len(rows)]."""
        if nodes is not self._context.nodes:
            return _members(policy, nodes, rows)
        count = len(nodes.is_unschedulable)
        known = self._members.get(policy.key)
        if known is None or known[:3] != (policy, nodes.nodes_version, count):
            every = np.arange(count, dtype=np.intp)
            known = _Members(policy, nodes.nodes_version, count, _members(policy, nodes, every))
            self._members[policy.key] = known
        return known.units.take(rows, axis=1)

    def describe(self, pod: Pod, row: int) -> str:
        """See `framework.introspection.ExplainPlugin`."""
        match = self._match(pod)
        if match is None or match.problem:
            return ""
        node = self._context.nodes.node(row)
        index = next((unit.index for unit in match.policy.units if unit.has_node(node)), None)
        where = "in no unit" if index is None else f"in units[{index}]"
        return f"{where} of {match.policy.name}"

    # -- PostFilter ------------------------------------------------------------------------------------------------

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        """Opens the next unit to the pod if preemption found nothing (BeforeNextUnit); else returns what the pod waits for."""
        match = self._match(pod)
        if match is None or match.problem:
            return PostFilterResult(Status.unschedulable())
        if self._raise_level(match, pod):
            return PostFilterResult(Status.unschedulable(), is_tried_again=True)
        return PostFilterResult(self._waiting(match, pod), rejectors=frozenset({self.name}))

    def post_filter_group(
        self, cycle: CycleView, pods: Sequence[Pod], dry_run: GroupDryRun
    ) -> Generator[None, None, PostFilterResult]:
        """Like `post_filter`, for pods that start together; an event requeues those to which a further unit was opened."""
        found = [(match, pod) for pod in pods if (match := self._match(pod)) is not None and not match.problem]
        yield from ()
        raised = sum(self._raise_level(match, pod) for match, pod in found)
        if raised:
            self._context.notify(UNIT_OPENED)
        return PostFilterResult(Status.unschedulable())

    def _raise_level(self, match: Match, pod: Pod) -> bool:
        """Raises the pod's level. Returns False if there is no higher one; the pod then starts again with the first unit.

        A nominated pod keeps its level: its victims are being deleted, and other events may have requeued it before that.
        """
        policy = match.policy
        if not policy.preempts_before_next or self._context.nominations.node_of(pod.uid):
            return False
        level = self._open_at_any_level(match, pod).after(self._levels.pop(pod.uid, 0), len(policy.units))
        if level is None:
            return False
        if len(self._levels) >= LEVELS_MAX:
            del self._levels[next(iter(self._levels))]
        self._levels[pod.uid] = level
        return True

    def _waiting(self, match: Match, pod: Pod) -> Status:
        policy = match.policy
        found = self._open_at_any_level(match, pod)
        if found.waits_in >= 0:
            unit = policy.units[found.waits_in]
            text = f"{policy.name}: the pod waits for room in units[{unit.index}] ({policy.next.value})"
            is_scaled = policy.next is Next.MAX or unit.waits_for_scaling
            return Status(Code.UNSCHEDULABLE, reasons=(text,), condition_reason="" if is_scaled else WAITING_FOR_UNIT)
        full = [unit for unit in policy.units if not found.has(unit.index)]
        if not full:
            return Status.unschedulable()
        text = f"{policy.name}: {', '.join(self._ledger.why_full(match, unit) for unit in full)}"
        has_more = found.bits or not self._are_all_in_units(policy)
        return Status(Code.UNSCHEDULABLE, reasons=(text,), condition_reason="" if has_more else WAITING_FOR_UNIT)

    def _are_all_in_units(self, policy: Policy) -> bool:
        """Reports whether the domain has no node outside the policy's units."""
        rows = None if self._context.rows is None else self._context.rows()
        return rows is None or bool(self._units_of(policy, self._context.nodes, rows).any(axis=0).all())

    # -- queueing hints --------------------------------------------------------------------------------------------

    def events_to_register(self) -> Sequence[EventRegistration]:
        freed = (
            Action.DELETE
            | Action.UPDATE_POD_DELETING
            | Action.UPDATE_POD_LABEL
            | Action.UPDATE_POD_SCALE_DOWN
            | Action.UPDATE_POD_OTHER
        )
        moved = Action.ADD | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_TAINT
        changed = Action.ADD | Action.UPDATE | Action.DELETE
        own = Action.UPDATE_POD_LABEL | Action.UPDATE_POD_SCALE_DOWN
        return (
            EventRegistration(ClusterEvent(Resource.ASSIGNED_POD, freed, "AssignedPodLeavesUnit"), self._after_pod),
            EventRegistration(
                ClusterEvent(Resource.UNSCHEDULED_POD, Action.DELETE, "UnscheduledPodDelete"), self._after_pod
            ),
            EventRegistration(COUNTED, self._after_count),
            EventRegistration(ClusterEvent(Resource.NODE, moved, "NodeChangesUnit"), self._after_node),
            EventRegistration(ClusterEvent(Resource.TARGET_POD, own, "TargetPod")),
            EventRegistration(ClusterEvent(ObjectKind.RESOURCE_POLICY, changed, RESOURCE_POLICY), self._after_policy),
        )

    def _after_pod(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Returns QUEUE for each pod of the policy and group when a pod of the policy has left a unit.

        `QUEUE_ONE` would not be enough: the one pod may get a node of another unit, and the freed room would stay unused.
        """
        match = self._match(pod)
        if match is None:
            return Hint.SKIP
        policy = match.policy
        if old is None and new is None:  # UNIT_OPENED
            return Hint.QUEUE if policy.is_timed or policy.preempts_before_next else Hint.SKIP
        if not isinstance(old, Pod) or not policy.selects(old):
            return Hint.SKIP
        concerns_all = bool(match.problem) or policy.next is Next.LACK_AND_NONE_TERMINATING
        return Hint.QUEUE if concerns_all or policy.group_of(old) == match.group else Hint.SKIP

    def _after_count(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        return Hint.QUEUE if old is new is None and self._match(pod) is not None else Hint.SKIP

    def _after_node(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        return Hint.SKIP if self._match(pod) is None else Hint.QUEUE

    def _after_policy(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        one = new or old
        is_same_namespace = isinstance(one, PolicyObject) and one.namespace == pod.namespace
        return Hint.QUEUE if is_same_namespace else Hint.SKIP

    # -- timeouts --------------------------------------------------------------------------------------------------

    async def run(self, ports: BackgroundPorts) -> None:
        """Advances the time that the other methods see, requeues pods whose timeout has run out, and counts pods after policies have
        changed, until cancelled.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_counted())
            while True:
                await self._advance(ports.clock.now().timestamp())
                timed = [policy.timeout_s for policy in self._ledger.table.policies() if policy.is_timed]
                await asyncio.sleep(min(PERIOD_MAX_S, max(PERIOD_MIN_S, min(timed) / 60.0)) if timed else 1.0)

    async def _keep_counted(self) -> None:
        ledger = self._ledger
        try:
            while True:
                ledger.is_counted_in_background = True
                ledger.refresh()
                if ledger.is_counting:
                    while ledger.is_counting:
                        ledger.count_some()
                        await asyncio.sleep(0)
                    self._context.notify(COUNTED)
                await asyncio.sleep(COUNTING_S)
        finally:
            ledger.is_counted_in_background = False

    async def _advance(self, now_s: float) -> None:
        before_s, self._now_s = self._now_s, now_s
        self._ledger.refresh()
        if not any(policy.is_timed or policy.preempts_before_next for policy in self._ledger.table.policies()):
            self._levels.clear()
            return
        has_moved, levelled, pending = False, set(self._levels), set[str]()
        for number, pod in enumerate(tuple(self._context.pending())):
            match = self._ledger.table.match(pod)
            if match is not None:
                pending.add(pod.uid)
                before, after = (self._timeouts(match.policy, pod, at_s) for at_s in (before_s, now_s))
                has_moved |= after != before
            if number % BATCH == BATCH - 1:
                await asyncio.sleep(0)
        for uid in levelled - pending:
            self._levels.pop(uid, None)
        if has_moved:
            self._context.notify(UNIT_OPENED)

    # -- introspection ---------------------------------------------------------------------------------------------

    def export_state(self) -> object:
        """See `framework.introspection.StateExportPlugin`: the time, and the levels."""
        return self._now_s, dict(self._levels)

    def import_state(self, handed: object) -> None:
        assert isinstance(handed, tuple), "import_state: expected the tuple that export_state returned"
        self._now_s, self._levels = handed[0], dict(handed[1])

    def health(self, now_s: float) -> str:
        """Returns a text about policies that cannot be used or read; empty if there are none."""
        unreadable = self._context.objects.unreadable(ObjectKind.RESOURCE_POLICY)
        if unreadable:
            return f"ResourcePolicy objects have no effect: {unreadable}"
        wrong = [policy.problem for policy in self._ledger.table.policies() if policy.problem]
        return f"{len(wrong)} policies refuse their pods, the first: {wrong[0]}" if wrong else ""


def _members(policy: Policy, nodes: NodeView, rows: Rows) -> Bools:
    return np.array([unit.rows(nodes, rows) for unit in policy.units], np.bool_).reshape(len(policy.units), len(rows))
