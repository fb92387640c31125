"""DefaultPreemption: makes room for a pod that fits nowhere by removing pods of lower priority from one node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from multisched.framework.events import ASSIGNED_POD_DELETE, EventObject, EventRegistration, Hint
from multisched.framework.node_view import Bools, Int64
from multisched.framework.objects_view import ObjectKind
from multisched.framework.plugin import CycleView, PluginContext, PostFilterResult, Refusals
from multisched.framework.preemption import DryRun, Preemption, StandingPods
from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.objects import Pod
from multisched.plugins.default_preemption_args import DefaultPreemptionArgs
from multisched.plugins.disruption_budgets import DisruptionBudgets

PRIORITY_OFFSET: Final = 2**31
"""Added to each victim's priority before they are summed, so that a few negative ones do not look cheaper than one."""

NEVER = "not eligible due to preemptionPolicy=Never."
TERMINATING = "not eligible due to a terminating pod on the nominated node."
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"
RUNNING = "waiting for the preemption for this pod to be finished"


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows of one block on which the pod would fit without its victims there, and how much each would cost."""

    pods: StandingPods
    at: NDArray[np.intp]
    """Positions in `pods.rows`."""
    victims: Bools
    """bool[k, candidates]"""
    costs: Sequence[NDArray[np.float64]]
    """float64[candidates] by criterion, the first deciding most; the least is the best."""


class DefaultPreemption:
    """Source: kube-scheduler 1.36, plugins/defaultpreemption and framework/preemption, with every candidate looked at."""

    name = "DefaultPreemption"
    reads_objects = (ObjectKind.POD_DISRUPTION_BUDGET,)

    def __init__(self, context: PluginContext, args: DefaultPreemptionArgs | None = None) -> None:
        self.args = args or DefaultPreemptionArgs()
        """How many candidates are enough; all that there are always is."""
        self._preemptions = context.preemptions
        self._budgets = DisruptionBudgets(context.objects)
        self.preemption_attempts = 0
        """How often it was asked to make room; read by metrics."""

    # -- PreEnqueue ------------------------------------------------------------------------------------------------

    def pre_enqueue(self, pod: Pod) -> Status:
        """Keeps a preemptor from being tried, and from preempting once more, while its victims are being removed."""
        if self._preemptions.is_preempting(pod.uid):
            return Status.unresolvable(RUNNING).by(self.name)
        return SUCCESS

    def events_to_register(self) -> Sequence[EventRegistration]:
        """None helps: the pods this plugin holds are let go when their preemption has ended."""
        return (EventRegistration(ASSIGNED_POD_DELETE, _never_helps),)

    # -- PostFilter ------------------------------------------------------------------------------------------------

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        self.preemption_attempts += 1
        why_not = self._ineligible(cycle, pod, refusals)
        if why_not:
            return PostFilterResult(_refused(why_not))
        dry_run = refusals.dry_run()
        reasons: Counter[str] = Counter()
        found = self.candidates(pod, dry_run, reasons)
        if not found:
            return PostFilterResult(_refused(fit_error(dry_run.node_count, reasons)), nominated_node="")
        preemption = self.choose(cycle, found)
        return PostFilterResult(SUCCESS, preemption.node, preemption)

    def candidates(self, pod: Pod, dry_run: DryRun, reasons: Counter[str]) -> list[Candidates]:
        """All rows on which victims make room; `reasons` takes up why the others are none, once for each node."""
        found = []
        rows = dry_run.candidates()
        if dry_run.node_count > len(rows):
            reasons[NOT_HELPFUL] += dry_run.node_count - len(rows)
        for pods in dry_run.standing(rows):
            lower = pods.priority < pod.spec.priority
            has_lower = lower.any(axis=0)
            if not has_lower.all():
                reasons[NO_VICTIMS] += int((~has_lower).sum())
                if not has_lower.any():
                    continue
            violating = self._budgets.violating(pods, lower)
            spared = dry_run.spare(pods, lower, violating)
            for status, count in spared.refusals:
                for reason in status.reasons:
                    reasons[reason] += count
            at = np.flatnonzero(spared.fits & spared.victims.any(axis=0))
            if len(at):
                found.append(_costs(pods, at, spared.victims[:, at], violating[:, at]))
        return found

    def choose(self, cycle: CycleView, found: Sequence[Candidates]) -> Preemption:
        """The node that costs least: fewest violated budgets, lowest highest priority, lowest sum of priorities, fewest
        victims, latest start among those of the highest priority; then the first."""
        best, at = found[0], 0
        least: tuple[float, ...] | None = None
        for block in found:
            here = _cheapest(block.costs)
            cost = tuple(float(column[here]) for column in block.costs)
            if least is None or cost < least:
                best, at, least = block, here, cost
        i = int(best.at[at])
        victims = tuple(best.pods.pod(int(k), i) for k in np.flatnonzero(best.victims[:, at]))
        return Preemption(cycle.nodes.node(int(best.pods.rows[i])).name, victims, self.name)

    def _ineligible(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> str:
        if not pod.spec.can_preempt:
            return NEVER
        if not pod.nominated_node:
            return ""
        if refusals.status_of(pod.nominated_node).code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
            return ""  # nothing that goes from there will help: it may look elsewhere
        row = cycle.nodes.row_of(pod.nominated_node)
        for other in cycle.nodes.pods_on(row) if row is not None else ():
            if other.is_deleting and other.is_preempted and other.spec.priority < pod.spec.priority:
                return TERMINATING
        return ""


def _costs(pods: StandingPods, at: NDArray[np.intp], victims: Bools, violating: Bools) -> Candidates:
    """Source: kube-scheduler 1.36, framework/preemption, pickOneNodeForPreemption."""
    priority, started_s = pods.priority[:, at], pods.started_s[:, at]
    low = np.iinfo(np.int64).min
    highest: Int64 = np.where(victims, priority, low).max(axis=0)
    offset = np.where(victims, priority + PRIORITY_OFFSET, 0).sum(axis=0)
    first_start = np.where(victims & (priority == highest), started_s, np.inf).min(axis=0)
    costs = (
        (victims & violating).sum(axis=0).astype(np.float64),
        highest.astype(np.float64),
        offset.astype(np.float64),
        victims.sum(axis=0).astype(np.float64),
        -first_start,
    )
    return Candidates(pods, at, victims, costs)


def _cheapest(costs: Sequence[NDArray[np.float64]]) -> int:
    """The first of the positions that no other undercuts."""
    left = np.arange(len(costs[0]))
    for column in costs:
        here = column[left]
        left = left[here == here.min()]
        if len(left) == 1:
            break
    return int(left[0])


def _refused(sentence: str) -> Status:
    return Status.unschedulable(f"preemption: {sentence}")


def fit_error(node_count: int, reasons: Counter[str]) -> str:
    """As the scheduler's own sentence: reasons with their counts, sorted as texts."""
    tally = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    return f"0/{node_count} nodes are available: {tally}."


def _never_helps(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    return Hint.SKIP
