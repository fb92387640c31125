"""DefaultPreemption: evicts pods of lower priority from one node for a pod that fits on no node."""

from __future__ import annotations

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
"""Added to each victim's priority before summing, so that several negative priorities do not cost less than one."""

NEVER = "not eligible due to preemptionPolicy=Never."
TERMINATING = "not eligible due to a terminating pod on the nominated node."
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"
NO_VICTIMS_FOR_ALL = "No preemption victims found that would make room for all that must start together."
NO_CANDIDATE = "no candidate node for preemption"
RUNNING = "waiting for the preemption for this pod to be finished"


class LowerPriority:
    """`framework.preemption.DisplacementRule`: pods of lower priority may be evicted, those protected by a budget last."""

    def __init__(self, priority: int, budgets: DisruptionBudgets) -> None:
        self.below = priority
        self._budgets = budgets
        self.mark: Hashable = budgets.version

    def displaceable(self, pods: PlacedPods) -> Bools:
        return pods.priority < self.below

    def first(self, pods: PlacedPods, displaceable: Bools) -> Bools:
        return self._budgets.violating(pods, displaceable)

    def costs(self, pods: PlacedPods, victims: Bools, first: Bools, whole_gangs: Int64) -> Costs:
        """Returns the costs by descending weight; broken gangs are not in upstream and come second, after violated budgets.

        Source: kube-scheduler 1.36, framework/preemption, pickOneNodeForPreemption.
        """
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
    """Source: kube-scheduler 1.36, plugins/defaultpreemption and framework/preemption. Examines every candidate node."""

    name = "DefaultPreemption"
    traits = Traits(reads_objects=(ObjectKind.POD_DISRUPTION_BUDGET,))

    def __init__(self, context: PluginContext, args: DefaultPreemptionArgs | None = None) -> None:
        self.args = args or DefaultPreemptionArgs()
        """Upstream's limits on the number of candidates; without effect, since every candidate is examined."""
        self._preemptions = context.preemptions
        self._objects = context.objects
        self._budgets = DisruptionBudgets(context.objects, context.victims)
        self.preemption_attempts = 0
        """Number of PostFilter calls; read by metrics."""

    # -- PreEnqueue ------------------------------------------------------------------------------------------------

    def pre_enqueue(self, pod: Pod) -> Status:
        """Gates a preemptor while its victims are being evicted, so that it neither is attempted nor preempts again."""
        if self._preemptions.is_preempting(pod.uid):
            return Status.unresolvable(RUNNING)
        return SUCCESS

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Returns no events: pods gated by this plugin are released when their preemption ends.

        So no hint runs for the deletion of each victim. (Upstream registers the deletion with a hint that skips.)
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
        """Finds victims for pods that must start together, among pods of lower priority than each of them."""
        self.preemption_attempts += 1
        why_not = self._ineligible_group(cycle, pods) or self._unseen_budgets()
        if why_not:
            return PostFilterResult(_refused(why_not))
        found = yield from dry_run.displace(LowerPriority(min(pod.spec.priority for pod in pods), self._budgets))
        if found is None:
            return PostFilterResult(_refused(NO_VICTIMS_FOR_ALL), nominated_node="")
        if not found.victims:  # as for a single pod: the refusal has another cause than a lack of resources
            return PostFilterResult(Status.error("preemption: expected at least one victim pod"))
        preemption = Preemption(found.victims, found.nominations, self.name, group=dry_run.name)
        return PostFilterResult(SUCCESS, preemption=preemption)

    def offers(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> Sequence[Offer] | PostFilterResult:
        """Returns the candidates that HTTP extenders review before one is chosen: those with all victims on the candidate node.

        If there is no candidate, returns the PostFilterResult that `post_filter` would return.
        """
        found = self._found(cycle, pod, refusals)
        if isinstance(found, PostFilterResult):
            return found
        offers: dict[str, Offer] = {}
        for at, row in enumerate(found.rows.tolist()):
            name, victims = cycle.nodes.node(row).name, found.victims_at(at)
            if set(victims) == {name}:  # the extender API cannot express victims on other nodes
                offers.setdefault(name, Offer(name, victims[name], int(found.costs[0][at])))
        return list(offers.values())

    def accept(self, pod: Pod, offers: Sequence[Offer]) -> PostFilterResult:
        """Returns the best offer that the extenders kept, by the criteria of `choose`."""
        if not offers:
            return PostFilterResult(_refused(NO_CANDIDATE))
        best = min(offers, key=_cost_of)
        return PostFilterResult(SUCCESS, best.node, preemption_of_one(pod, best.node, best.victims, self.name))

    def on_extender_failure(self, why: str) -> PostFilterResult:
        """Returns the error result of a preemption in which a non-ignorable extender failed: no pod is evicted."""
        return PostFilterResult(Status.error(f"preemption: {why}"))

    def _found(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> Candidates | PostFilterResult:
        """Returns the candidates or, if there are none, the result of PostFilter."""
        found = self._searched(cycle, pod, refusals)
        self.preemption_attempts += 1
        return found

    def _searched(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> Candidates | PostFilterResult:
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
            # As upstream: the dry run needs no victim on these nodes although the filters refused the pod, which is an error.
            text = ", ".join(f'expected at least one victim pod on node "{node}"' for node in found.needless)
            return PostFilterResult(Status.error(f"preemption: {text}"))
        return PostFilterResult(_refused(fit_error(dry_run, found)), nominated_node="")

    def choose(self, cycle: CycleView, pod: Pod, found: Candidates) -> Preemption:
        """Returns the preemption on the node with the lowest cost.

        The criteria, in this order: fewest violated budgets, fewest gangs evicted whole, lowest highest priority of a victim,
        lowest sum of priorities, fewest victims, latest start among the victims of the highest priority, lowest row.
        """
        best = found.best()
        node = cycle.nodes.node(int(found.rows[best])).name
        return Preemption(found.victims_at(best), (Nomination(pod, node),), self.name)

    def _unseen_budgets(self) -> str:
        """Returns why preemption is disabled: budgets cannot be read. Empty if they can.

        Upstream does not start in this case; here, pods that fit without preemption are still scheduled.
        """
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
            return ""  # no deletion on that node helps, so the pod may preempt on another node
        return TERMINATING if _has_victims_going(cycle, pod) else ""


def _has_victims_going(cycle: CycleView, pod: Pod) -> bool:
    """Reports whether pods that may have been preempted for this one are still terminating on its nominated node."""
    row = cycle.nodes.row_of(pod.nominated_node) if pod.nominated_node else None
    return any(
        other.is_deleting and other.is_preempted and other.spec.priority < pod.spec.priority
        for other in (cycle.nodes.pods_on(row) if row is not None else ())
    )


def _cost_of(offer: Offer) -> tuple[float, ...]:
    """Returns `LowerPriority.costs` of one node. An extender may have chosen the victims; the first counts as the most important."""
    priorities = [victim.spec.priority for victim in offer.victims]
    highest = max(priorities)
    started_s = min(victim.started_s or np.inf for victim in offer.victims if victim.spec.priority == highest)
    total = sum(priority + PRIORITY_OFFSET for priority in priorities)
    return (float(offer.violations), float(priorities[0]), float(total), float(len(priorities)), -started_s)


def _refused(sentence: str) -> Status:
    return Status.unschedulable(f"preemption: {sentence}")


def fit_error(dry_run: DryRun, found: Candidates) -> str:
    """Returns upstream's FitError message: reasons with their counts, sorted as texts."""
    reasons = {NO_VICTIMS: found.undisplaceable, NOT_HELPFUL: dry_run.node_count - dry_run.candidate_count}
    for status, count in found.refusals.items():
        for reason in status.reasons:
            reasons[reason] = reasons.get(reason, 0) + count
    tally = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items() if count))
    return f"0/{dry_run.node_count} nodes are available: {tally}."
