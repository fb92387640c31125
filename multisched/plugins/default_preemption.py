"""DefaultPreemption: makes room for a pod that fits nowhere by removing pods of lower priority from one node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Hashable, Sequence
from typing import Final

import numpy as np

from multisched.framework.context import PluginContext
from multisched.framework.events import EventRegistration
from multisched.framework.extender import Offer
from multisched.framework.node_view import Bools, Int64
from multisched.framework.points import CycleView, PostFilterResult, Refusals
from multisched.framework.preemption import (
    Candidates,
    Costs,
    DryRun,
    GroupDryRun,
    Nomination,
    PlacedPods,
    Preemption,
    preemption_of_one,
)
from multisched.framework.status import SUCCESS, Code, Status
from multisched.framework.traits import Traits
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.plugins.default_preemption_args import DefaultPreemptionArgs
from multisched.plugins.disruption_budgets import DisruptionBudgets

PRIORITY_OFFSET: Final = 2**31
"""Added to each victim's priority before they are summed, so that a few negative ones do not look cheaper than one."""

NEVER = "not eligible due to preemptionPolicy=Never."
TERMINATING = "not eligible due to a terminating pod on the nominated node."
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"
NO_VICTIMS_FOR_ALL = "No preemption victims found that would make room for all that must start together."
NO_CANDIDATE = "no candidate node for preemption"
RUNNING = "waiting for the preemption for this pod to be finished"


class LowerPriority:
    """`framework.preemption.DisplacementRule`: pods of lower priority may go, those that a budget protects last."""

    def __init__(self, priority: int, budgets: DisruptionBudgets) -> None:
        self.below = priority
        self._budgets = budgets
        self.mark: Hashable = budgets.version

    def displaceable(self, pods: PlacedPods) -> Bools:
        return pods.priority < self.below

    def first(self, pods: PlacedPods, displaceable: Bools) -> Bools:
        return self._budgets.violating(pods, displaceable)

    def costs(self, pods: PlacedPods, victims: Bools, first: Bools, whole_gangs: Int64) -> Costs:
        """Source: kube-scheduler 1.36, framework/preemption, pickOneNodeForPreemption. Whole gangs come behind budgets."""
        highest = np.max(pods.priority, axis=0, where=victims, initial=np.iinfo(np.int64).min)
        of_highest = victims & (pods.priority == highest)
        return np.stack(
            (
                np.count_nonzero(victims & first, axis=0),
                whole_gangs,
                highest,
                np.sum(pods.priority + PRIORITY_OFFSET, axis=0, where=victims),
                np.count_nonzero(victims, axis=0),
                -np.min(pods.started_s, axis=0, where=of_highest, initial=np.inf),
            )
        ).astype(np.float64)


class DefaultPreemption:
    """Source: kube-scheduler 1.36, plugins/defaultpreemption and framework/preemption, with every candidate looked at."""

    name = "DefaultPreemption"
    traits = Traits(reads_objects=(ObjectKind.POD_DISRUPTION_BUDGET,))

    def __init__(self, context: PluginContext, args: DefaultPreemptionArgs | None = None) -> None:
        self.args = args or DefaultPreemptionArgs()
        """How many candidates are enough; all that there are always is."""
        self._preemptions = context.preemptions
        self._objects = context.objects
        self._budgets = DisruptionBudgets(context.objects, context.victims)
        self.preemption_attempts = 0
        """How often it was asked to make room; read by metrics."""

    # -- PreEnqueue ------------------------------------------------------------------------------------------------

    def pre_enqueue(self, pod: Pod) -> Status:
        """Keeps a preemptor from being tried, and from preempting once more, while its victims are being removed."""
        if self._preemptions.is_preempting(pod.uid):
            return Status.unresolvable(RUNNING)
        return SUCCESS

    def events_to_register(self) -> Sequence[EventRegistration]:
        """None: the pods this plugin holds are let go when their preemption has ended.

        Thousands of victims that go meanwhile cost them no hint. (Upstream registers their deletion, with a hint that
        skips.)
        """
        return ()

    # -- PostFilter ------------------------------------------------------------------------------------------------

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        found = self._found(cycle, pod, refusals)
        if isinstance(found, PostFilterResult):
            return found
        preemption = self.choose(cycle, pod, found)
        return PostFilterResult(SUCCESS, preemption.node_of(pod.uid), preemption)

    def post_filter_group(
        self, cycle: CycleView, pods: Sequence[Pod], dry_run: GroupDryRun
    ) -> Generator[None, None, PostFilterResult]:
        """Room for pods that must start together, from pods that are less important than each of them."""
        self.preemption_attempts += 1
        why_not = self._ineligible_group(cycle, pods) or self._unseen_budgets()
        if why_not:
            return PostFilterResult(_refused(why_not))
        found = yield from dry_run.displace(LowerPriority(min(pod.spec.priority for pod in pods), self._budgets))
        if found is None:
            return PostFilterResult(_refused(NO_VICTIMS_FOR_ALL), nominated_node="")
        if not found.victims:  # as for a single pod: something else than room is wrong
            return PostFilterResult(Status.error("preemption: expected at least one victim pod"))
        preemption = Preemption(found.victims, found.nominations, self.name, group=dry_run.name)
        return PostFilterResult(SUCCESS, preemption=preemption)

    def offers(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> Sequence[Offer] | PostFilterResult:
        """As `post_filter`, but every candidate whose victims are on its node: HTTP extenders look at them before one is taken."""
        found = self._found(cycle, pod, refusals)
        if isinstance(found, PostFilterResult):
            return found
        offers: dict[str, Offer] = {}
        for at, row in enumerate(found.rows.tolist()):
            name, victims = cycle.nodes.node(row).name, found.victims_at(at)
            if set(victims) == {name}:  # what goes elsewhere an extender cannot be shown
                offers.setdefault(name, Offer(name, victims[name], int(found.costs[0][at])))
        return list(offers.values())

    def accept(self, pod: Pod, offers: Sequence[Offer]) -> PostFilterResult:
        """The best of what the extenders left, by the criteria of `choose`."""
        if not offers:
            return PostFilterResult(_refused(NO_CANDIDATE))
        best = min(offers, key=_cost_of)
        return PostFilterResult(SUCCESS, best.node, preemption_of_one(pod, best.node, best.victims, self.name))

    def spoiled(self, why: str) -> PostFilterResult:
        """An extender failed that may not be passed over: nobody is removed."""
        return PostFilterResult(Status.error(f"preemption: {why}"))

    def _found(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> Candidates | PostFilterResult:
        """The candidates; the result where there are none."""
        self.preemption_attempts += 1
        why_not = self._ineligible(cycle, pod, refusals)
        if why_not:
            return PostFilterResult(_refused(why_not))
        hidden = self._unseen_budgets()
        if hidden:
            return PostFilterResult(_refused(hidden))
        dry_run = refusals.dry_run()
        found = dry_run.displace(LowerPriority(pod.spec.priority, self._budgets))
        if len(found.rows):
            return found
        if found.needless:
            # As upstream: nobody has to go there, and yet the pod was refused. Something else is wrong.
            text = ", ".join(f'expected at least one victim pod on node "{node}"' for node in found.needless)
            return PostFilterResult(Status.error(f"preemption: {text}"))
        return PostFilterResult(_refused(fit_error(dry_run, found)), nominated_node="")

    def choose(self, cycle: CycleView, pod: Pod, found: Candidates) -> Preemption:
        """The node that costs least.

        It has the fewest violated budgets, fewest gangs that go whole, and lowest highest priority. Then come the lowest sum
        of priorities, fewest victims, and latest start among those of the highest priority. Of equals the first.
        """
        left = np.arange(len(found.rows))
        for criterion in found.costs:
            here = criterion[left]
            left = left[here == here.min()]
            if len(left) == 1:
                break
        best = int(left[0])
        node = cycle.nodes.node(int(found.rows[best])).name
        return Preemption(found.victims_at(best), (Nomination(pod, node),), self.name)

    def _unseen_budgets(self) -> str:
        """Why nobody may go: upstream does not start then; here the pods that fit go on. Empty: all budgets are seen."""
        hidden = self._objects.unreadable(ObjectKind.POD_DISRUPTION_BUDGET)
        return f"not tried, since PodDisruptionBudgets cannot be read: {hidden}" if hidden else ""

    def _ineligible_group(self, cycle: CycleView, pods: Sequence[Pod]) -> str:
        if not all(pod.spec.can_preempt for pod in pods):
            return NEVER
        return TERMINATING if any(_has_victims_going(cycle, pod) for pod in pods) else ""

    def _ineligible(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> str:
        if not pod.spec.can_preempt:
            return NEVER
        if not pod.nominated_node:
            return ""
        if refusals.status_of(pod.nominated_node).code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
            return ""  # nothing that goes from there will help: it may look elsewhere
        return TERMINATING if _has_victims_going(cycle, pod) else ""


def _has_victims_going(cycle: CycleView, pod: Pod) -> bool:
    """Pods that may have been preempted for this one still go from its nominated node."""
    row = cycle.nodes.row_of(pod.nominated_node) if pod.nominated_node else None
    return any(
        other.is_deleting and other.is_preempted and other.spec.priority < pod.spec.priority
        for other in (cycle.nodes.pods_on(row) if row is not None else ())
    )


def _cost_of(offer: Offer) -> tuple[float, ...]:
    """`LowerPriority.costs` of one node, whose victims may be an extender's: their first counts as the most important."""
    priorities = [victim.spec.priority for victim in offer.victims]
    highest = max(priorities)
    started_s = min(victim.started_s or np.inf for victim in offer.victims if victim.spec.priority == highest)
    total = sum(priority + PRIORITY_OFFSET for priority in priorities)
    return (float(offer.violations), float(priorities[0]), float(total), float(len(priorities)), -started_s)


def _refused(sentence: str) -> Status:
    return Status.unschedulable(f"preemption: {sentence}")


def fit_error(dry_run: DryRun, found: Candidates) -> str:
    """As the scheduler's own sentence: reasons with their counts, sorted as texts."""
    reasons: Counter[str] = Counter()
    for status, count in found.refusals.items():
        for reason in status.reasons:
            reasons[reason] += count
    reasons[NO_VICTIMS] += found.undisplaceable
    reasons[NOT_HELPFUL] += dry_run.node_count - len(dry_run.candidates())
    tally = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items() if count))
    return f"0/{dry_run.node_count} nodes are available: {tally}."
