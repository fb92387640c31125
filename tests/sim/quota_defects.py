"""Defects of elastic quotas: each breaks the ledger, the tree, or a reclaim in one way that somebody could write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from multisched.framework.events import Hint
from multisched.framework.points import PostFilterResult
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.plugins.quota import elastic_quota, removal
from multisched.plugins.quota.elastic_quota import ElasticQuota
from multisched.plugins.quota.quota_ledger import NO_NOMINATIONS, Level, QuotaLedger
from multisched.plugins.quota.quota_source import QuotaSource
from multisched.plugins.quota.quota_status import QuotaStatuses
from multisched.plugins.quota.reclaim_order import ReclaimOrder
from multisched.plugins.quota.reclaim_search import Search
from multisched.shell.scheduling.nominations import DomainNominations
from tests.sim.defects import defect, put


@defect
def leaves_alone_have_a_max() -> None:
    """The max of levels above a leaf is ignored."""

    def refusal(self: QuotaLedger, pod: Any, nominated: Any = NO_NOMINATIONS) -> str:
        levels = self.levels_of(pod)
        return levels[0].refusal(self.amounts.items(pod), nominated.get(levels[0].at, {}), {}) if levels else ""

    put(QuotaLedger, "refusal", refusal)


@defect
def quotas_of_cpu_alone() -> None:
    """Only the CPU is limited."""
    genuine = Level.refusal
    put(
        Level,
        "refusal",
        lambda self, items, nominated, kept: genuine(
            self, tuple(one for one in items if one[0] == "cpu"), nominated, kept
        ),
    )


@defect
def quotas_keep_what_has_ended() -> None:
    """The amounts of a deleted pod are kept."""
    put(QuotaLedger, "release", lambda self, uid: None)


@defect
def pods_that_are_gone_count_as_terminating() -> None:
    """A released pod stays among those that a reclaim expects to end."""
    genuine = QuotaLedger.release

    def release(self: QuotaLedger, uid: str) -> None:
        was_terminating = uid in self._terminating
        genuine(self, uid)
        if was_terminating:
            self._terminating.add(uid)

    put(QuotaLedger, "release", release)


@defect
def resized_pods_keep_their_quota() -> None:
    """A resized pod counts with its old amounts."""
    genuine = QuotaLedger.restore
    put(QuotaLedger, "restore", lambda self, pod: None if self.holds(pod.uid) else genuine(self, pod))


@defect
def edited_trees_count_no_pods() -> None:
    """When another tree comes into force, existing pods are not counted."""

    def begin_count(self: QuotaLedger, source: QuotaSource) -> None:
        fresh = QuotaLedger(None, tuple, self.amounts.demands)
        fresh._put_in_force(source.tree)
        self._adopt(fresh, source.in_force)

    put(QuotaLedger, "_begin_count", begin_count)


@defect
def edited_trees_stay_out_of_force() -> None:
    """The first tree stays in force forever."""
    genuine = QuotaSource._choose
    put(QuotaSource, "_choose", lambda self: genuine(self) if self.in_force is None else None)


@defect
def broken_trees_lift_all_quotas() -> None:
    """An invalid tree counts as no tree."""
    genuine = QuotaSource._chosen_tree

    def chosen_tree(self: QuotaSource, trees: Sequence[Any]) -> Any:
        found = genuine(self, trees)
        return None if found is self.in_force else found

    put(QuotaSource, "_chosen_tree", chosen_tree)


@defect
def reclaim_beyond_the_min() -> None:
    """Pods reclaim borrowed amounts even beyond their own min."""

    def claim_of(*arguments: Any, **named: Any) -> Any:
        claim = removal.claim_of(*arguments, **named)
        return replace(claim, entitled=len(claim.levels))

    put(elastic_quota, "claim_of", claim_of)


@defect
def reclaim_evicts_all_tried() -> None:
    """All tried victims are evicted, needed or not."""

    def needed(self: Search) -> list[Pod]:
        here = {pod.uid for pod in self._here}
        return [*self._here, *(pod for unit in self._units for pod in unit.pods if pod.uid not in here)]

    put(Search, "needed", needed)


@defect
def reclaim_takes_one_too_few() -> None:
    """The last victim is left out."""
    genuine = Search.needed
    put(Search, "needed", lambda self: found[:-1] if len(found := genuine(self)) > 1 else found)


@defect
def oldest_borrowers_go_first() -> None:
    """Within a leaf priority and age are compared in reverse."""
    genuine = ReclaimOrder._keys

    def keys(self: ReclaimOrder, unit: Any) -> Any:
        return tuple(tuple(-part for part in key) for key in genuine(self, unit))

    put(ReclaimOrder, "_keys", keys)


@defect
def reclaims_ignore_terminating_pods() -> None:
    """Pods that are being deleted still count: others are evicted for room that becomes free anyway."""
    put(QuotaLedger, "terminating", property(lambda self: frozenset()))


@defect
def nominated_pods_count_nowhere() -> None:
    """Two pods reclaim the same capacity."""
    put(ElasticQuota, "_other_nominated", lambda self, pod: NO_NOMINATIONS)


@defect
def no_pod_reclaims() -> None:
    """Entitled pods wait until borrowing pods end by themselves."""
    put(ElasticQuota, "post_filter", lambda self, cycle, pod, refusals: PostFilterResult(Status.unschedulable()))


@defect
def freed_quotas_requeue_nothing() -> None:
    """A pod that leaves its quota requeues no pod."""
    put(ElasticQuota, "_after_pod_freed", lambda self, pod, old, new: Hint.SKIP)


@defect
def edited_trees_requeue_nothing() -> None:
    """A changed tree does not requeue pods that their quota holds back."""
    genuine = ElasticQuota.events_to_register
    put(ElasticQuota, "events_to_register", lambda self: genuine(self)[:3])


@defect
def ended_reclaim_nominations_requeue_nothing() -> None:
    """Pods of a higher priority than a reclaiming pod are not requeued when its nomination ends."""
    put(DomainNominations, "rank_of", lambda self, pod: pod.spec.priority)


@defect
def statuses_of_quotas_never_change() -> None:
    """The status of a tree is written once."""
    put(QuotaStatuses, "changed", lambda self, levels: None)
