"""ElasticQuota: refuses pods that exceed a max of their quota, lets pods borrow up to it, and reclaims up to their min.

Has no state of the cluster: `QuotaLedger` does, which every commit checks too. All domains share one ledger, so that one
tree applies to all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Hashable, Sequence
from functools import partial
from itertools import chain
from typing import Final

import numpy as np
from msgspec.structs import replace

from multisched.framework.caching import SplitCacheKey
from multisched.framework.context import PluginContext
from multisched.framework.dependency import Dependency
from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.framework.introspection import PluginMetric
from multisched.framework.object_status import ObjectStatus
from multisched.framework.points import CycleView, PostFilterResult, PreFilterResult, Refusals
from multisched.framework.preemption import ABOVE_EVERY_PRIORITY, DryRun, GroupDryRun, Nomination, Preemption
from multisched.framework.status import SKIP, SUCCESS, Status
from multisched.framework.traits import Traits
from multisched.framework.views import Document, ViewPorts, ViewQuery
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.plugins.default_preemption import NEVER, RUNNING
from multisched.plugins.disruption_budgets import DisruptionBudgets
from multisched.plugins.quota.elastic_quota_args import ElasticQuotaArgs
from multisched.plugins.quota.evicted_over_needed import EvictionLimit, ReclaimCounts, excess, larger, missing_on_nodes
from multisched.plugins.quota.gang_reclaim import GangReclaim
from multisched.plugins.quota.node_search import Borrowers, LabelSetLeaves, NodeSearch, ReclaimPlan
from multisched.plugins.quota.pod_amounts import Items
from multisched.plugins.quota.quota_ledger import EXCEEDED, QUOTA, Level, ObjectStatuses, QuotaLedger
from multisched.plugins.quota.quota_source import QUOTA_KINDS, QuotaSource
from multisched.plugins.quota.quota_status import QuotaStatuses
from multisched.plugins.quota.reclaim import Reclaim
from multisched.plugins.quota.reclaim_units import GangUnits
from multisched.plugins.quota.removal import (
    NO_FLOORS,
    Claim,
    Floors,
    Nominated,
    added_pod_helps,
    claim_of,
    removed_pod_helps,
)

RANK: Final = ABOVE_EVERY_PRIORITY - 1
"""Nomination rank of a pod that reclaims: pods of any priority keep its nominated node free for it."""

NO_QUOTA: Final = PostFilterResult(Status.unschedulable())
OVER_MIN: Final = "the quota would exceed its min and can borrow only idle capacity"
NO_BORROWER: Final = "evicting pods that borrow would not free enough quota"
COUNTED: Final = ClusterEvent(ObjectKind.ELASTIC_QUOTA_TREE, Action.UPDATE, "ElasticQuotaCounted")
"""Quotas have come into force after the events of their objects."""

SEVERAL: Final = "pods of several quotas that must start together cannot evict other pods"
NO_NODE: Final = "no node would have room even if pods that borrow were evicted"


class ElasticQuota:
    """Source: ACK's ElasticQuotaTree. `removal` and `reclaim` define the terms and rules of reclaims."""

    name = QUOTA
    view = "quotas"
    depends_on = Dependency.CACHE_KEY
    traits = Traits(signs_alike=True, reads_objects=(*QUOTA_KINDS, ObjectKind.POD_DISRUPTION_BUDGET))
    status_kinds = QUOTA_KINDS
    kept_kind = ObjectKind.ELASTIC_QUOTA_TREE

    def __init__(self, context: PluginContext, args: ElasticQuotaArgs | None = None) -> None:
        source = QuotaSource(context.objects)
        hold = context.hold
        ledger = hold.register(QuotaLedger(source, hold.pods, hold.demands, hold.placed))
        assert isinstance(ledger, QuotaLedger)
        self._ledger = ledger
        self._leaves = LabelSetLeaves(ledger)
        if ledger.statuses is None:  # else another domain's plugin has registered the ledger with its source
            ledger.statuses = QuotaStatuses(ledger, source, context.objects, context.statuses, context.pending)
            ledger.on_counted = partial(_announce, ledger.statuses, context.notify)
        self._statuses = ledger.statuses
        self._pending, self._domain = context.pending, context.domain
        self._placed = context.hold.placed
        self._nominations = context.nominations
        self._gangs = context.gangs
        self._preemptions = context.preemptions
        self._budgets = DisruptionBudgets(context.objects, context.victims)
        self._nominated_mark: tuple[int, int, int] = (-1, -1, -1)
        self._nominated: Nominated = {}
        self._args = args or ElasticQuotaArgs()
        self._counts = ReclaimCounts()
        self.preemption_attempts = 0
        """Number of PostFilter calls for pods under a quota; read by metrics."""

    def metrics(self, now_s: float) -> Sequence[PluginMetric]:
        return self._counts.metrics()

    def health(self, now_s: float) -> str:
        """Returns a text about quotas without effect; empty if there are none."""
        return self._statuses.trouble_text()

    async def show(self, query: ViewQuery, ports: ViewPorts) -> Callable[[], Document]:
        """See `framework.views.ViewedPlugin`."""
        from multisched.plugins.quota.figures import document_of

        trouble = self._statuses.trouble_text()
        found = await document_of(self._ledger, trouble, self._pending, query, self._domain)
        return lambda: found

    def catch_up(self) -> bool:
        """Counts the next pods under changed quotas; returns True if they are not in force yet."""
        return self._ledger.catch_up()

    # -- statuses --------------------------------------------------------------------------------------------------

    def status_of(self, kind: ObjectKind, namespace: str, name: str) -> ObjectStatus | None:
        return self._statuses.status_of(kind, namespace, name)

    def pending_changed(self, pod: Pod) -> None:
        self._statuses.pending_changed(pod)

    def kept_object(self) -> bytes:
        """See `KeptObjectPlugin`."""
        return self._statuses.kept_tree()

    # -- classes ---------------------------------------------------------------------------------------------------

    def sign(self, pod: Pod) -> Hashable:
        ledger = self._ledger
        generation = ledger.generation
        if ledger.tree is None:
            return (generation, "")
        levels = ledger.levels_of(pod)
        if not levels or ledger.label_problem(pod):
            return (generation, ledger.label_problem(pod))
        return (generation, levels[0].at, pod.spec.priority, ledger.amounts.beyond_requests(pod))

    def cache_key(self, cycle: CycleView, pod: Pod) -> SplitCacheKey | None:
        if not self._ledger.levels_of(pod):
            return None
        return SplitCacheKey((self._ledger.version(), self._nominations.sequence), None)

    # -- PreEnqueue, PreFilter -------------------------------------------------------------------------------------

    def pre_enqueue(self, pod: Pod) -> Status:
        """Gates a pod that reclaims while its victims are being evicted."""
        return Status.unresolvable(RUNNING) if self._preemptions.is_preempting(pod.uid) else SUCCESS

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        label_problem = self._ledger.label_problem(pod)
        if label_problem:
            return PreFilterResult(Status.unresolvable(label_problem))
        if not self._ledger.levels_of(pod):
            return PreFilterResult(SKIP)
        why = self._ledger.refusal(pod, self._nominated_outside_class(pod))
        return PreFilterResult(_refused(why)) if why else PreFilterResult()

    def _other_nominated(self, pod: Pod) -> Nominated:
        """Returns the amounts of other nominated pods, by level."""
        nominated = self._all_nominated()
        if not nominated or not self._nominations.node_of(pod.uid):
            return nominated
        return self._ledger.nominated_amounts(one for one in self._nominations.pods() if one.uid != pod.uid)

    def _all_nominated(self) -> Nominated:
        """Returns the amounts of all nominated pods, by level."""
        version = self._ledger.version() if self._ledger.has_guarantees else 0
        mark = self._nominations.sequence, self._ledger.generation, version
        if mark != self._nominated_mark:
            self._nominated_mark, self._nominated = mark, self._ledger.nominated_amounts(self._nominations.pods())
        return self._nominated

    def _nominated_outside_class(self, pod: Pod) -> Nominated:
        """Returns the amounts of nominated pods, without those of the same priority, leaf and amounts as this pod.

        The result is cached for the equivalence class, which may contain such a nominated pod. If its own nomination
        counted, the pod would be refused because of it, and no event would requeue it.
        """
        levels, items, pods = self._ledger.levels_of(pod), self._ledger.amounts.items(pod), self._nominations.pods()
        others = [one for one in pods if not self._is_in_same_class(one, pod, levels, items)]
        return self._other_nominated(pod) if len(others) == len(pods) else self._ledger.nominated_amounts(others)

    def _is_in_same_class(self, one: Pod, pod: Pod, levels: tuple[Level, ...], items: Items) -> bool:
        is_as_important = one.spec.priority == pod.spec.priority
        return is_as_important and self._ledger.levels_of(one) is levels and self._ledger.amounts.items(one) == items

    # -- queueing hints --------------------------------------------------------------------------------------------

    def events_to_register(self) -> Sequence[EventRegistration]:
        freed = Action.DELETE | Action.UPDATE_POD_SCALE_DOWN | Action.UPDATE_POD_LABEL
        grown = Action.ADD | Action.UPDATE_POD_SCALE_UP | Action.UPDATE_POD_LABEL
        own = (
            Action.UPDATE_POD_SCALE_DOWN | Action.UPDATE_POD_LABEL | Action.UPDATE_POD_OTHER
        )  # the last one for annotations
        changed = Action.ADD | Action.UPDATE | Action.DELETE
        return (
            EventRegistration(ClusterEvent(Resource.ASSIGNED_POD, freed, "AssignedPodFrees"), self._after_pod_freed),
            EventRegistration(ClusterEvent(Resource.ASSIGNED_POD, grown, "AssignedPodTakes"), self._after_pod_added),
            EventRegistration(ClusterEvent(Resource.TARGET_POD, own, "TargetPod"), self._after_own_change),
            *(EventRegistration(ClusterEvent(kind, changed, kind.value)) for kind in QUOTA_KINDS),
        )

    def _after_pod_freed(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Queues the pod if the departed pod freed quota below a max that refused it, or below a min that now entitles it."""
        if not isinstance(old, Pod) or (isinstance(new, Pod) and self._has_same_amounts(old, new)):
            return Hint.SKIP
        levels = self._ledger.levels_of(pod)
        if not levels:
            return Hint.SKIP
        if self._gangs.key_of(pod.uid) is not None:
            # The gang's members claim together, and the total is not known here.
            return Hint.SKIP if set(levels).isdisjoint(self._ledger.levels_of(old)) else Hint.QUEUE
        claim = replace(self._claim_of_class(pod), nominated=self._all_nominated())
        return Hint.QUEUE if removed_pod_helps(self._ledger, claim, old) else Hint.SKIP

    def _after_pod_added(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Queues an entitled pod if pods borrow now from which it can reclaim."""
        if not isinstance(new, Pod) or (isinstance(old, Pod) and self._has_same_amounts(old, new)):
            return Hint.SKIP
        levels, own = self._ledger.levels_of(new), self._ledger.levels_of(pod)
        if not levels or not own or levels[0] is own[0]:
            return Hint.SKIP
        return Hint.QUEUE if added_pod_helps(self._ledger, self._claim_of_class(pod), new) else Hint.SKIP

    def _claim_of_class(self, pod: Pod) -> Claim:
        """Returns the pod's claim without nominations of its class, of which a hint's answer is for each pod.

        Whichever of them has a node nominated, the claim of each is entitled at no more levels than this one.
        """
        return claim_of(self._ledger, pod, nominated=self._nominated_outside_class(pod))

    def _after_own_change(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Queues the pod if its amounts or its leaf changed."""
        is_changed = isinstance(old, Pod) and isinstance(new, Pod) and not self._has_same_amounts(old, new)
        return Hint.QUEUE if is_changed else Hint.SKIP

    def _has_same_amounts(self, old: Pod, new: Pod) -> bool:
        ledger, items = self._ledger, self._ledger.amounts.items
        is_alike = ledger.levels_of(old) is ledger.levels_of(new) and ledger.label_problem(old) == ledger.label_problem(
            new
        )
        return is_alike and items(old) == items(new)

    # -- PostFilter ------------------------------------------------------------------------------------------------

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        """Reclaims for a pod under a quota, in place of preemption by priority; leaves other pods to the next plugin."""
        if self._ledger.label_problem(pod):
            return PostFilterResult(Status.unresolvable())
        if not self._ledger.levels_of(pod):
            return NO_QUOTA
        result = self._reclaimed(cycle, pod, refusals) if pod.spec.can_preempt else _none(NEVER)
        self.preemption_attempts += 1
        return result

    def _reclaimed(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        claim = claim_of(self._ledger, pod, nominated=self._other_nominated(pod))
        reclaim = self._reclaim(claim)
        if self._ledger.refusal(pod, claim.nominated):
            return self._within_quota(cycle, reclaim, refusals)
        return self._on_a_node(cycle, reclaim, refusals.dry_run())

    def post_filter_group(
        self, cycle: CycleView, pods: Sequence[Pod], dry_run: GroupDryRun
    ) -> Generator[None, None, PostFilterResult]:
        """Reclaims for pods under a quota that must start together: for all of them at once, on any nodes."""
        if any(map(self._ledger.label_problem, pods)):
            return PostFilterResult(Status.unresolvable())
        leaves = {levels[0].at if (levels := self._ledger.levels_of(pod)) else -1 for pod in pods}
        if leaves == {-1}:
            return PostFilterResult(Status.unschedulable())
        self.preemption_attempts += 1
        if len(leaves) > 1:
            return _none(SEVERAL)
        if not all(pod.spec.can_preempt for pod in pods):
            return _none(NEVER)
        claim = self._claim_of_all(pods)
        reclaim = self._reclaim(claim)
        why_not = _none(NO_BORROWER if claim.is_entitled else OVER_MIN)
        if not reclaim.may_suffice() or not (reclaim.reclaimable_leaves or self._ledger.terminating):
            return why_not
        found = yield from dry_run.displace_by_members(
            lambda: GangReclaim(
                cycle.nodes,
                self._reclaim(self._claim_of_all(pods)),
                self._reclaim,
                self._terminating_nodes,
                lambda: self._nominated_outside_group(pods),
                self._leaves,
            )
        )
        reclaim = self._reclaim(self._claim_of_all(pods))  # other pods may have been added during a pause
        if found is None or not found.victims or reclaim.without(chain(*found.victims.values())) is None:
            return why_not
        preemption = Preemption(found.victims, found.nominations, self.name, RANK, dry_run.name)
        evicted = [pod for pod in preemption.every_victim if not pod.is_leaving]
        short, places = missing_on_nodes(cycle.nodes, found.nominations)
        much, limit = (
            excess(claim.items, larger(short, reclaim.missing()), map(self._ledger.amounts.of, evicted)),
            self._eviction_limit(),
        )
        if not limit.allows(much, len(reclaim.together(evicted)), max(places, 1)):
            return self._why_none(limit, NO_NODE)
        self._counts.decided(much)
        return PostFilterResult(SUCCESS, preemption=preemption)

    def _claim_of_all(self, pods: Sequence[Pod]) -> Claim:
        """Returns the current claim of pods that start together."""
        return claim_of(self._ledger, *pods, nominated=self._nominated_outside_group(pods))

    def _nominated_outside_group(self, pods: Sequence[Pod]) -> Nominated:
        members = {pod.uid for pod in pods}
        return self._ledger.nominated_amounts(one for one in self._nominations.pods() if one.uid not in members)

    def nomination_rank(self, pod: Pod) -> int | None:
        """Returns the rank for a pod under a quota: only this plugin nominates nodes for it."""
        return RANK if self._ledger.levels_of(pod) else None

    def _reclaim(self, claim: Claim, evicted: Collection[str] = (), floors: Floors = NO_FLOORS) -> Reclaim:
        own = {key for pod in claim.pods if (key := self._gangs.key_of(pod.uid)) is not None}
        gangs = GangUnits(self._gangs, self._ledger, self._find, evicted, own)
        return Reclaim(self._ledger, claim, self._find, self._budgets, gangs, floors)

    def _find(self, uid: str) -> Pod | None:
        found = self._placed(uid)
        return None if found is None else found.pod

    def _within_quota(self, cycle: CycleView, reclaim: Reclaim, refusals: Refusals) -> PostFilterResult:
        """Handles a pod that its quota refuses; some node may have room for it without evictions."""
        if not reclaim.may_suffice():
            return _none(NO_BORROWER if reclaim.claim.is_entitled else OVER_MIN)
        dry_run = refusals.dry_run()
        rows, rejectors = dry_run.fitting()
        if not len(rows):
            return self._on_a_node(cycle, reclaim, dry_run, rejectors)
        limit = self._eviction_limit()
        plan = self._search(cycle, reclaim, dry_run, limit).anywhere(rows)
        if plan is None:
            return self._why_none(limit, NO_BORROWER if reclaim.claim.is_entitled else OVER_MIN)
        return self._preempted(cycle, reclaim.claim.pod, plan)

    def _on_a_node(
        self, cycle: CycleView, reclaim: Reclaim, dry_run: DryRun, rejectors: frozenset[str] = frozenset()
    ) -> PostFilterResult:
        """Handles a pod for which no node has room without evictions."""
        limit = self._eviction_limit()
        plan = self._search(cycle, reclaim, dry_run, limit).on_a_node()
        if plan is None:
            return self._why_none(limit, NO_NODE if reclaim.claim.is_entitled else OVER_MIN, rejectors)
        return self._preempted(cycle, reclaim.claim.pod, plan)

    def _search(self, cycle: CycleView, reclaim: Reclaim, dry_run: DryRun, limit: EvictionLimit) -> NodeSearch:
        rule = Borrowers(reclaim, self._leaves)
        return NodeSearch(cycle.nodes, reclaim, dry_run, self._terminating_nodes(), rule, limit)

    def _eviction_limit(self) -> EvictionLimit:
        return EvictionLimit(self._args.max_evicted_over_needed)

    def _why_none(self, limit: EvictionLimit, why: str, rejectors: frozenset[str] = frozenset()) -> PostFilterResult:
        """Returns the refusal: the limit on evictions if it stopped a reclaim, else `why`."""
        if limit.over is None:
            return _none(why, rejectors)
        self._counts.stopped()
        resource, ratio = limit.over
        most = self._args.max_evicted_over_needed
        return _none(
            f"{ratio:.2g} times as much {resource} as needed would be evicted, maxEvictedOverNeeded is {most:g}",
            rejectors,
        )

    def _terminating_nodes(self) -> list[str]:
        """Returns the nodes on which pods are terminating."""
        return sorted({one.node for one in map(self._placed, self._ledger.terminating) if one is not None})

    def _preempted(self, cycle: CycleView, pod: Pod, plan: ReclaimPlan) -> PostFilterResult:
        node, victims = cycle.nodes.node(plan.row).name, plan.victims
        if not victims:  # the pods that have to end are terminating already
            return PostFilterResult(SUCCESS, node)
        self._counts.decided(plan.excess)
        ordered = sorted(victims, key=lambda victim: (-victim.spec.priority, victim.started_s or np.inf, victim.uid))
        by_node: dict[str, tuple[Pod, ...]] = {}
        for victim in ordered:  # an assumed pod has no `node` yet and is listed under the preemptor's
            at = victim.node or node
            by_node[at] = (*by_node.get(at, ()), victim)
        return PostFilterResult(SUCCESS, node, Preemption(by_node, (Nomination(pod, node),), self.name, RANK))


def _announce(statuses: ObjectStatuses, notify: Callable[[ClusterEvent], None]) -> None:
    """Has statuses written again, and pods retried that the previous quotas refused."""
    statuses.mark_all()
    notify(COUNTED)


def _refused(why: str) -> Status:
    return replace(Status.unschedulable(why), condition_reason=EXCEEDED)


def _none(why: str, rejectors: frozenset[str] = frozenset()) -> PostFilterResult:
    return PostFilterResult(Status.unresolvable(f"reclaim: {why}"), nominated_node="", rejectors=rejectors | {QUOTA})
