"""ElasticQuota: refuses pods over a max of their quota, lets them borrow below it, and reclaims what their min entitles them to.

Owns no state of the cluster: `QuotaLedger` does, which every commit asks too. Registered for all domains alike, so that one tree
holds for all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from multisched.framework.caching import SplitCacheKey
from multisched.framework.context import PluginContext
from multisched.framework.dependency import Dependency
from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.framework.node_view import Bools, Rows
from multisched.framework.object_status import ObjectStatus
from multisched.framework.points import CycleView, PostFilterResult, PreFilterResult, Refusals
from multisched.framework.preemption import NOBODY, Candidates, LabelSet, Nomination, PlacedPods, Preemption
from multisched.framework.status import SKIP, SUCCESS, Status
from multisched.framework.traits import Traits
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import CPU, Pod
from multisched.plugins.default_preemption import NEVER, RUNNING, LowerPriority
from multisched.plugins.disruption_budgets import DisruptionBudgets
from multisched.plugins.quota.quota_ledger import EXCEEDED, QUOTA, Items, Level, QuotaLedger, items_of
from multisched.plugins.quota.quota_source import QUOTA_KINDS, QuotaSource
from multisched.plugins.quota.quota_status import QuotaStatuses
from multisched.plugins.quota.reclaim import Claim, Giving, Nominated, claim_of, room_for, standing_in

RANK: Final = NOBODY - 1
"""Of a pod that reclaims: pods of any priority leave it the place that was cleared for it."""
ROWS_TRIED_MAX: Final = 32
"""Nodes on which a reclaim is tried in full, the cheapest first."""

OVER_MIN: Final = "the quota is at its min and may only borrow what is idle"
NO_BORROWER: Final = "nobody who borrows could make room"
NO_NODE: Final = "no node has room, whoever of those that borrow would go"


class Borrowers(LowerPriority):
    """`DisplacementRule`: who borrows may go whatever its priority; of the pod's own leaf, who is less important."""

    def __init__(self, ledger: QuotaLedger, claim: Claim, budgets: DisruptionBudgets) -> None:
        super().__init__(claim.pod.spec.priority, budgets)
        self._priority = claim.pod.spec.priority
        self._ledger = ledger
        self._leaves = Giving(ledger, claim).lenders_leaves()
        self.below = NOBODY
        self.mark = (budgets.version, ledger.generation, self._priority, tuple(self._leaves.items()))

    def displaceable(self, pods: PlacedPods) -> Bools:
        kinds = np.array([self._kind(one) for one in pods.label_sets], np.int8)
        kind = kinds[pods.label_set] if len(kinds) else np.zeros(pods.priority.shape, np.int8)
        is_there = pods.priority < NOBODY
        may_go: Bools = is_there & ((kind == 2) | ((kind == 1) & (pods.priority < self._priority)))
        return may_go

    def _kind(self, pods: LabelSet) -> int:
        """2: borrows; 1: the claim's own leaf; 0: neither."""
        levels = self._ledger.levels_of(pods)
        is_own = self._leaves.get(levels[0].at) if levels else None
        return 0 if is_own is None else 2 - is_own


class ElasticQuota:
    """Source: ACK's ElasticQuotaTree; rules and terms of reclaiming in `reclaim`."""

    name = QUOTA
    depends_on = Dependency.CACHE_KEY
    traits = Traits(reads_objects=(*QUOTA_KINDS, ObjectKind.POD_DISRUPTION_BUDGET))
    status_kinds = QUOTA_KINDS

    def __init__(self, context: PluginContext) -> None:
        source = QuotaSource(context.objects)
        ledger = context.hold.register(QuotaLedger(source, context.hold.pods))
        assert isinstance(ledger, QuotaLedger)
        self._ledger = ledger
        if ledger.statuses is None:  # else another domain's plugin was here first, and its source is read
            ledger.statuses = QuotaStatuses(ledger, source, context.objects, context.statuses, context.pending)
        self._statuses = ledger.statuses
        self._pods = context.hold.pods
        self._nominations = context.nominations
        self._preemptions = context.preemptions
        self._budgets = DisruptionBudgets(context.objects)
        self._nominated_mark: tuple[int, int, int] = (-1, -1, -1)
        self._nominated: Nominated = {}
        self.preemption_attempts = 0
        """How often it was asked to make room; read by metrics."""

    # -- statuses --------------------------------------------------------------------------------------------------

    def status_of(self, kind: ObjectKind, namespace: str, name: str) -> ObjectStatus | None:
        return self._statuses.status_of(kind, namespace, name)

    def pending_changed(self, pod: Pod) -> None:
        self._statuses.pending_changed(pod)

    # -- classes ---------------------------------------------------------------------------------------------------

    def sign(self, pod: Pod) -> Hashable:
        levels = self._ledger.levels_of(pod)
        return (self._ledger.generation, levels[0].at, pod.spec.priority) if levels else (self._ledger.generation, -1)

    def cache_key(self, cycle: CycleView, pod: Pod) -> SplitCacheKey | None:
        if not self._ledger.levels_of(pod):
            return None
        return SplitCacheKey((self._ledger.version(), self._nominations.sequence), None)

    # -- PreEnqueue, PreFilter -------------------------------------------------------------------------------------

    def pre_enqueue(self, pod: Pod) -> Status:
        """Keeps a pod that reclaims from being tried while its victims go."""
        return Status.unresolvable(RUNNING) if self._preemptions.is_preempting(pod.uid) else SUCCESS

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        if not self._ledger.levels_of(pod):
            return PreFilterResult(SKIP)
        why = self._ledger.refusal(pod, self._nominated_beside_its_like(pod))
        return PreFilterResult(_refused(why)) if why else PreFilterResult()

    def _nominated_beside(self, pod: Pod) -> Nominated:
        """What other pods that are nominated count on, by level."""
        version = self._ledger.version() if self._ledger.has_guarantees else 0
        mark = self._nominations.sequence, self._ledger.generation, version
        if mark != self._nominated_mark:
            self._nominated_mark, self._nominated = mark, self._ledger.nominated_amounts(self._nominations.pods())
        if not self._nominated:
            return self._nominated
        others = [one for one in self._nominations.pods() if one.uid != pod.uid]
        if len(others) == len(self._nominations.pods()):
            return self._nominated
        return self._ledger.nominated_amounts(others)

    def _nominated_beside_its_like(self, pod: Pod) -> Nominated:
        """What nominated pods count on, but for those of its priority that count for the same leaf and as much.

        One of these may ask: the answer is kept for a class. If it held back a pod for its own nomination, nothing would
        wake that pod.
        """
        levels, items, pods = self._ledger.levels_of(pod), items_of(pod), self._nominations.pods()
        others = [one for one in pods if not self._is_like(one, pod, levels, items)]
        return self._nominated_beside(pod) if len(others) == len(pods) else self._ledger.nominated_amounts(others)

    def _is_like(self, one: Pod, pod: Pod, levels: tuple[Level, ...], items: Items) -> bool:
        is_as_important = one.spec.priority == pod.spec.priority
        return is_as_important and self._ledger.levels_of(one) is levels and items_of(one) == items

    # -- who is woken ----------------------------------------------------------------------------------------------

    def events_to_register(self) -> Sequence[EventRegistration]:
        freed = Action.DELETE | Action.UPDATE_POD_SCALE_DOWN | Action.UPDATE_POD_LABEL
        grown = Action.ADD | Action.UPDATE_POD_SCALE_UP | Action.UPDATE_POD_LABEL
        own = Action.UPDATE_POD_SCALE_DOWN | Action.UPDATE_POD_LABEL
        changed = Action.ADD | Action.UPDATE | Action.DELETE
        return (
            EventRegistration(ClusterEvent(Resource.ASSIGNED_POD, freed, "AssignedPodFrees"), self._after_leaving),
            EventRegistration(ClusterEvent(Resource.ASSIGNED_POD, grown, "AssignedPodTakes"), self._after_coming),
            EventRegistration(ClusterEvent(Resource.TARGET_POD, own, "TargetPod"), self._after_own_change),
            *(EventRegistration(ClusterEvent(kind, changed, kind.value)) for kind in QUOTA_KINDS),
        )

    def _after_leaving(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Room below some max that holds it, or below its own min."""
        if not isinstance(old, Pod) or (isinstance(new, Pod) and self._count_alike(old, new)):
            return Hint.SKIP
        return Hint.QUEUE if self._ledger.levels_of(old) and self._ledger.levels_of(pod) else Hint.SKIP

    def _after_coming(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Somebody may borrow now whom an entitled pod can ask for room."""
        if not isinstance(new, Pod) or (isinstance(old, Pod) and self._count_alike(old, new)):
            return Hint.SKIP
        levels, own = self._ledger.levels_of(new), self._ledger.levels_of(pod)
        if not levels or not own or levels[0] is own[0]:
            return Hint.SKIP
        return Hint.QUEUE if claim_of(self._ledger, pod).is_entitled else Hint.SKIP

    def _after_own_change(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """It asks for something else, or of another leaf."""
        is_changed = isinstance(old, Pod) and isinstance(new, Pod) and not self._count_alike(old, new)
        return Hint.QUEUE if is_changed else Hint.SKIP

    def _count_alike(self, old: Pod, new: Pod) -> bool:
        return items_of(old) == items_of(new) and self._ledger.levels_of(old) is self._ledger.levels_of(new)

    # -- PostFilter ------------------------------------------------------------------------------------------------

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        """For pods under a quota, in place of preemption by priority; others pass on."""
        if not self._ledger.levels_of(pod):
            return PostFilterResult(Status.unschedulable())
        self.preemption_attempts += 1
        if not pod.spec.can_preempt:
            return _none(NEVER)
        return self._reclaimed(cycle, claim_of(self._ledger, pod, self._nominated_beside(pod)), refusals)

    def _reclaimed(self, cycle: CycleView, claim: Claim, refusals: Refusals) -> PostFilterResult:
        dry_run = refusals.dry_run()
        standing = list(standing_in(self._ledger, self._pods()))
        fitting = dry_run.fitting() if self._ledger.refusal(claim.pod, claim.nominated) else None
        if fitting is not None and len(fitting):
            victims = room_for(self._ledger, claim, standing)
            if victims is None:
                return _none(NO_BORROWER if claim.is_entitled else OVER_MIN)
            return self._preempted(cycle, claim.pod, self._emptiest(cycle, fitting), victims)
        found = dry_run.displace(Borrowers(self._ledger, claim, self._budgets))
        for at in _cheapest(found, cycle.nodes.row_of(claim.pod.nominated_node)):
            here = [victim for some in found.victims_at(at).values() for victim in some]
            victims = room_for(self._ledger, claim, standing, here)
            if victims is not None:
                return self._preempted(cycle, claim.pod, int(found.rows[at]), victims)
        return _none(NO_NODE if claim.is_entitled else OVER_MIN)

    def _preempted(self, cycle: CycleView, pod: Pod, row: int, victims: Sequence[Pod]) -> PostFilterResult:
        node = cycle.nodes.node(row).name
        if not victims:  # all that has to go is going
            return PostFilterResult(SUCCESS, node)
        ordered = sorted(victims, key=lambda victim: (-victim.spec.priority, victim.started_s or np.inf, victim.uid))
        by_node: dict[str, tuple[Pod, ...]] = {}
        for victim in ordered:  # of an assumed pod only the cache knows the node: it is shown with the preemptor's
            at = victim.node or node
            by_node[at] = (*by_node.get(at, ()), victim)
        return PostFilterResult(SUCCESS, node, Preemption(by_node, (Nomination(pod, node),), self.name, RANK))

    @staticmethod
    def _emptiest(cycle: CycleView, rows: Rows) -> int:
        """Of nodes that need nobody to go, the one with the most idle CPU."""
        idle = cycle.nodes.allocatable(CPU)[rows] - cycle.nodes.requested(CPU)[rows]
        return int(rows[int(idle.argmax())])


def _cheapest(found: Candidates, own: int | None) -> list[int]:
    """Positions of the rows that cost least, `own` before them: where the pod is nominated, its victims may be going already."""
    if not len(found.rows):
        return []
    order = np.lexsort(found.costs[::-1])[:ROWS_TRIED_MAX].tolist()
    here = [] if own is None else np.flatnonzero(found.rows == own).tolist()
    return [*here, *(at for at in order if at not in here)]


def _refused(why: str) -> Status:
    return replace(Status.unschedulable(why), condition_reason=EXCEEDED)


def _none(why: str) -> PostFilterResult:
    return PostFilterResult(Status.unresolvable(f"reclaim: {why}"), nominated_node="")
