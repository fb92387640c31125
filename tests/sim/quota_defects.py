"""Defects of elastic quotas: each breaks the ledger, the tree, or a reclaim in one way that somebody could write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from multisched.framework.events import Hint
from multisched.framework.points import PostFilterResult
from multisched.framework.status import Status
from multisched.plugins.quota import elastic_quota
from multisched.plugins.quota.elastic_quota import ElasticQuota
from multisched.plugins.quota.quota_ledger import NOTHING, Level, QuotaLedger, items_of
from multisched.plugins.quota.quota_source import QuotaSource
from multisched.plugins.quota.reclaim import Giving
from tests.sim.recent_defects import DEFECTS, defect, put

__all__ = ["DEFECTS"]


@defect
def leaves_alone_have_a_max() -> None:
    """The levels above a leaf are not looked at."""

    def refusal(self: QuotaLedger, pod: Any, nominated: Any = NOTHING) -> str:
        levels = self.levels_of(pod)
        return levels[0].refusal(items_of(pod), nominated.get(levels[0].at, {})) if levels else ""

    put(QuotaLedger, "refusal", refusal)


@defect
def quotas_of_cpu_alone() -> None:
    """Other resources pass any max."""
    genuine = Level.refusal
    put(
        Level,
        "refusal",
        lambda self, items, nominated: genuine(self, tuple(one for one in items if one[0] == "cpu"), nominated),
    )


@defect
def quotas_not_asked_at_commit() -> None:
    """PreFilter alone looks at quotas: cycles that ran beside each other pass a max together."""
    put(QuotaLedger, "fits", lambda self, pod: "")


@defect
def quotas_keep_what_has_ended() -> None:
    """What a pod held of its quota stays held."""
    put(QuotaLedger, "release", lambda self, uid: None)


@defect
def resized_pods_keep_their_quota() -> None:
    """A pod that was resized counts as before."""
    genuine = QuotaLedger.restore
    put(QuotaLedger, "restore", lambda self, pod: None if self.holds(pod.uid) else genuine(self, pod))


@defect
def edited_trees_count_nobody() -> None:
    """When another tree comes into force, pods that stand already are forgotten."""

    def renew(self: QuotaLedger) -> None:
        if self._source is not None and self._source.renew() != self._generation:
            self._generation = self._source.generation
            self._put_in_force(self._source.tree)

    put(QuotaLedger, "renew", renew)


@defect
def edited_trees_stay_out_of_force() -> None:
    """The first tree stays for ever."""
    genuine = QuotaSource._choose
    put(QuotaSource, "_choose", lambda self: genuine(self) if self.in_force is None else None)


@defect
def broken_trees_lift_all_quotas() -> None:
    """A tree with problems is as good as none."""
    genuine = QuotaSource._chosen_tree

    def chosen_tree(self: QuotaSource, trees: Sequence[Any]) -> Any:
        self.in_force = None
        return genuine(self, trees)

    put(QuotaSource, "_chosen_tree", chosen_tree)


@defect
def reclaim_beyond_the_min() -> None:
    """Whoever waits takes back what others have borrowed, whether its own min covers that or not."""
    genuine = elastic_quota.claim_of

    def claim_of(*arguments: Any) -> Any:
        claim = genuine(*arguments)
        return replace(claim, entitled=len(claim.levels))

    put(elastic_quota, "claim_of", claim_of)


@defect
def reclaim_from_whoever_is_there() -> None:
    """A leaf that has borrowed nothing gives all the same."""
    put(Giving, "borrows", lambda self, levels, resource: True)


@defect
def reclaim_takes_one_too_many() -> None:
    """One borrower more than is needed goes, to be sure."""
    genuine = elastic_quota.room_for

    def room_for(ledger: Any, claim: Any, standing: Any, first: Any = ()) -> Any:
        found = genuine(ledger, claim, standing, first)
        giving = Giving(ledger, claim)
        more = [] if not found else [one for one in standing if one not in found and giving.may_go(one)]
        return found if found is None else [*found, *more[:1]]

    put(elastic_quota, "room_for", room_for)


@defect
def nobody_reclaims() -> None:
    """Who is entitled waits until borrowers end by themselves."""
    put(ElasticQuota, "post_filter", lambda self, cycle, pod, refusals: PostFilterResult(Status.unschedulable()))


@defect
def freed_quotas_wake_nobody() -> None:
    """A pod that leaves its quota helps nobody."""
    put(ElasticQuota, "_after_leaving", lambda self, pod, old, new: Hint.SKIP)


@defect
def edited_trees_wake_nobody() -> None:
    """Who is held by its quota hears nothing of a tree that has changed."""
    genuine = ElasticQuota.events_to_register
    put(ElasticQuota, "events_to_register", lambda self: genuine(self)[:3])
