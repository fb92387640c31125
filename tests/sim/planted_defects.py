"""Forty defects of gangs, binding, quotas, queueing, reload, handover and GPUs, written without knowledge of the tests (issue 40).

Each edits the source of one function, as a maintainer could by mistake. `python -m tests.sim.mutants --planted` plays them. If the
edited text is no longer there, the defect fails loudly: then choose another edit of the same kind.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from functools import partial
from typing import Any

from domains.gpu.card_row import CardRow
from domains.gpu.dialects.own import OwnDialect
from domains.gpu.gpu_ledger import GpuLedger
from multisched.cycle.gang_attempt import GangAttempts
from multisched.plugins.quota.elastic_quota import ElasticQuota
from multisched.plugins.quota.quota_ledger import Level, QuotaLedger
from multisched.plugins.quota.removal import Removal
from multisched.queueing import pod_changes
from multisched.queueing.entry_states import EntryStates
from multisched.queueing.gang_entries import GangEntries
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.readmission import Readmission
from multisched.queueing.representatives import Representatives
from multisched.queueing.requeue_judge import RequeueJudge
from multisched.shell.binding.bind_sender import BindSender
from multisched.shell.binding.gang_barrier import GangBarriers
from multisched.shell.binding.send_check import SendCheck
from multisched.shell.leadership.handover import Handover
from multisched.shell.leadership.leases import _Trusting
from multisched.shell.reload import Reload
from multisched.state.gang_roster import Gang, GangRoster
from tests.sim.defects import DEFECTS, put


def edit(owner: object, name: str, old: str, new: str) -> None:
    """Replaces `old`, which must occur once, in the function's source. Both are without the indentation of the class body."""
    genuine: Any = inspect.getattr_static(owner, name)
    function: Any = genuine.fget if isinstance(genuine, property) else genuine
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{name} has {source.count(old)} times: {old}"
    code = compile(source.replace(old, new), __file__, "exec", __future__.annotations.compiler_flag, dont_inherit=True)
    made: dict[str, object] = {}
    exec(code, function.__globals__, made)
    put(owner, name, made[name])


PLANTED: dict[str, tuple[object, str, str, str]] = {
    # gangs
    "watched_victims_count_as_staying": (
        GangRoster,
        "set",
        "member.is_victim |= before.is_victim and not member.is_deleting",
        "pass",
    ),
    "tentative_members_count_as_started": (Gang, "needs", "(self.placed_count - self.tentative)", "self.placed_count"),
    "changed_pod_groups_regroup_no_members": (GangRoster, "set_object", "self._changed(key)", "pass"),
    "members_of_earlier_runs_count": (Gang, "succeeded", "if not self.owners:", "if True:"),
    "attempts_end_with_one_spare_member": (GangAttempts, "_place_all", "spare[key] < 0", "spare[key] <= 0"),
    "members_bound_elsewhere_retry_nothing": (GangEntries, "_requirements_of", "gang.lacks", "0"),
    # binding
    "undone_members_stay_missing": (GangBarriers, "leave", "barrier.missing[key] -= 1", "pass"),
    "later_members_pass_the_barrier": (GangBarriers, "begin", "self._add(barrier, {uid: key})", "return None"),
    "external_changes_are_not_compared": (
        SendCheck,
        "refusal",
        "self._cache.external_changes(row) == seen.external_changes",
        "True",
    ),
    "own_rules_are_not_checked_before_the_send": (
        SendCheck,
        "_is_affected",
        "changes.end if placed.relates else changes.demanding",
        "changes.demanding",
    ),
    "unanswered_binds_are_sent_unchecked": (
        BindSender,
        "send",
        "= self._check.refusal(",
        "= None if machine.is_unknown else self._check.refusal(",
    ),
    "cancelled_members_count_at_the_barrier": (GangBarriers, "may_send", "bind.cancelled is not None", "0"),
    # quotas
    "amounts_are_compared_by_leaf_alone": (QuotaLedger, "restore", " and holding.items == items", ""),
    "assumed_pods_miss_the_next_tree": (QuotaLedger, "take", "self._next.ledger.restore(pod)", "pass"),
    "maxes_ignore_guarantees_below": (Level, "refusal", " + reserved.get(resource, 0)", ""),
    "equals_are_reclaimed": (Removal, "_reclaim_resource", "unit.priority < self", "unit.priority <= self"),
    "pods_removed_together_do_not_add_up": (
        QuotaLedger,
        "_release",
        "self._removed.add(uid, holding.levels, holding.items)",
        "pass",
    ),
    "own_nominations_count_against_the_max": (
        ElasticQuota,
        "pre_filter",
        "self._nominated_outside_class(pod)",
        "self._all_nominated()",
    ),
    # queueing
    "attempts_await_no_events": (PodQueue, "awaits_events", " or self._events.attempts", ""),
    "deleted_representatives_end_the_turn": (
        Representatives,
        "moved",
        "is not QueueState.UNSCHEDULABLE:\n        self.pass_on(entry)",
        "is QueueState.BACKOFF:\n        self.pass_on(entry)\n    elif entry.state is not QueueState.UNSCHEDULABLE:\n        pass",
    ),
    "representatives_refused_otherwise_wake_no_pod": (
        Representatives,
        "moved",
        "self._due[where], entry.represents = True, None",
        "entry.represents = None",
    ),
    "members_that_join_attempts_requeue_nothing": (RequeueJudge, "after_failure", "or has_new_follower ", ""),
    "gated_members_of_started_gangs_stay": (
        Readmission,
        "_sort",
        "entry.state in (QueueState.GANG, QueueState.GATED)",
        "entry.state is QueueState.GANG",
    ),
    "annotations_are_no_own_change": (pod_changes, "_differs_otherwise", "or old.annotations != new.annotations", ""),
    # reload
    "changed_policies_reach_no_pod": (Reload, "apply", "self._pods.use_policies(tolerations)", "pass"),
    "reloads_compare_with_the_first_profile": (
        Reload,
        "_put_in_force",
        "domain.config, domain.profile = config, prepared.profile",
        "domain.config = config",
    ),
    "changed_weights_alone_retry_pods": (Reload, "_put_in_force", "retry_refused=not ", "retry_refused="),
    "refused_profiles_count_as_in_force": (Reload, "_prepared", "_with_profile_of(config, domain.config)", "config"),
    "parked_pods_keep_earlier_sort_keys": (
        EntryStates,
        "use",
        "for entry in self.entries.values():",
        "for entry in waiting:",
    ),
    # handover
    "lost_leases_stay_settled": (Handover, "lost", "self._settled.discard(group)", "pass"),
    "nodes_are_seen_while_binds_are_in_flight": (
        Handover,
        "_publish",
        "worker.has_strayed_binds for worker in led",
        "False for worker in led",
    ),
    "compared_versions_are_swapped": (
        Handover,
        "_obstacle",
        "is_covered(version, _seen(holding))",
        "is_covered(_seen(holding), version)",
    ),
    "leaders_ahead_are_no_obstacle": (Handover, "open", "if is_behind or ", "if "),
    "doubtful_history_allows_binds": (_Trusting, "may_bind", "self._history.is_trusted and ", ""),
    "leases_of_others_need_no_list": (Handover, "is_settled", " and self._is_alone", ""),
    # GPUs
    "replaced_holds_add_up": (CardRow, "hold", "if is_more and uses", "if uses"),
    "trials_change_real_holds": (CardRow, "copy", "dict(self.holds)", "self.holds"),
    "allocations_confirm_nothing": (
        GpuLedger,
        "restore",
        "held is not None and (hold is None or hold.awaits == held.awaits)",
        "held is not None",
    ),
    "containers_share_the_same_room": (CardRow, "choose", "self._take(part, places, taken)", "pass"),
    "quotas_count_one_card_of_several": (OwnDialect, "demand", "(milli or 0) * (count or 0)", "milli or 0"),
}
"""Defect -> owner and name of a function, a text in its source, and the text that replaces it."""

for defect, edited in PLANTED.items():
    DEFECTS[defect] = partial(edit, *edited)
