"""`python -m tests.sim.mutants`: deliberate defects, each of which the simulation must catch within its seeds.

A defect that no seed catches means that the invariants, or the faults, do not look where it hides: the check fails.
Seeds that caught a defect before are tried first (`FIRST`). When the program or the simulation changes, other seeds may be needed:
they are printed at the end, to be written there. Defects of which no such seed is known (`UNSHOWN`) are named and not tried.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.kit.run.seeded_run import run_seed
from tests.kit.settings.setting import (
    EDITED_FROM,
    LENT_FROM,
    OWNED_FROM,
    RELOADED_FROM,
    SERVERLESS_FROM,
    TEAMED_FROM,
    TIDED_FROM,
)
from tests.kit.world.gang_plans import PACKED_FROM
from tests.sim import (
    card_defects,
    edit_defects,
    gang_defects,
    job_defects,
    loan_defects,
    planted_defects,
    quota_defects,
    quota_room,
    quota_room_defects,
    reload_defects,
    slice_defects,
    slices,
    tide_defects,
)
from tests.sim.planted_defects import PLANTED
from tests.sim.recent_defects import DEFECTS
from tests.sim.run import played, quiet

STARTS = {
    gang_defects.__name__: TEAMED_FROM,
    quota_defects.__name__: TEAMED_FROM,
    reload_defects.__name__: RELOADED_FROM,
    card_defects.__name__: OWNED_FROM,
    edit_defects.__name__: EDITED_FROM,
    tide_defects.__name__: TIDED_FROM,
    job_defects.__name__: SERVERLESS_FROM,
    loan_defects.__name__: LENT_FROM,
    slice_defects.__name__: slices.WIDE_FROM,
    quota_room_defects.__name__: 0,
}
"""Module of defects -> the first seed of the runs that can catch them; other modules: 0."""
SLICED = {name for name, one in DEFECTS.items() if one.__module__ == slice_defects.__name__}
"""Defects that `tests.sim.slices` plays: they need several processes."""
SHARED = {name for name, one in DEFECTS.items() if one.__module__ == quota_room_defects.__name__}
"""Defects that `tests.sim.quota_room` plays."""
SEEDS_MAX = 16
"""Default number of seeds after which a defect counts as not caught. A hunt through 48 can take half an hour."""

FIRST: dict[str, int] = {
    "active_deadlines_count_from_the_creation": 802,
    "all_serverless_units_are_elastic": 801,
    "all_units_are_alike": 801,
    "allocations_confirm_nothing": 702,
    "amounts_are_compared_by_leaf_alone": 501,
    "annotations_are_no_own_change": 501,
    "answers_of_plugins_are_not_read": 300,
    "arrivals_of_the_lender_recall_nothing": 1104,
    "assumed_pods_are_not_charged_to_leaves": 5,
    "assumed_pods_keep_their_size": 11,
    "assumed_pods_miss_the_next_tree": 1000,
    "attempts_await_no_events": 1,
    "attempts_end_with_one_spare_member": 300,
    "audit_off": 3,
    "audit_repairs_nothing": 3,
    "backoff_never_ends": 0,
    "bad_text_ends_the_process": 7,
    "bare_pods_are_evicted": 804,
    "begun_evictions_are_left": 601,
    "bindings_carry_no_times": 300,
    "borrowers_gangs_are_evicted_in_part": 1105,
    "breakers_never_close": 801,
    "breakers_never_open": 801,
    "broken_trees_lift_all_quotas": 120,
    "budgets_ignored": 2,
    "budgets_of_pods_on_loan_are_ignored": 1103,
    "cancelled_members_count_at_the_barrier": 1000,
    "cards_are_shared_by_any_number": 307,
    "changed_pod_groups_regroup_no_members": 300,
    "changed_pods_stay_parked_as_they_were": 300,
    "changed_policies_reach_no_pod": 501,
    "changed_weights_alone_retry_pods": 221,
    "compared_versions_are_swapped": 900,
    "conflict_is_refusal": 0,
    "conflicted_pods_dropped": 5,
    "containers_share_the_same_room": 702,
    "cordons_ignored": 1,
    "corrected_annotations_are_no_change": 503,
    "counts_of_units_are_lost_after_a_restart": 802,
    "deleted_nodes_requeue_no_spread": 22,
    "deleted_nodes_stay_usable": 3,
    "deleted_pods_counted": 0,
    "deleted_quotas_wake_nobody": 501,
    "deletions_ignored": 36,
    "dependent_gangs_not_updated": 101,
    "devices_given_twice": 1,
    "doubtful_history_allows_binds": 1,
    "early_tries_in_exact_order": 1,
    "edited_trees_count_no_pods": 103,
    "edited_trees_requeue_nothing": 152,
    "edited_trees_stay_out_of_force": 153,
    "elastic_units_are_limited": 900,
    "ended_locks_requeue_nothing": 300,
    "ended_needs_requeue_no_borrower": 1107,
    "ended_nominations_requeue_only_lower_priority": 6,
    "epochs_are_not_awaited": 102,
    "equals_are_reclaimed": 221,
    "equals_preempted": 0,
    "events_in_flight_kept": 2,
    "events_in_flight_lost": 21,
    "every_process_checks_each_max_by_itself": 0,
    "evicted_pods_hold_nothing": 1103,
    "evictions_do_not_wait_for_the_notice": 1102,
    "expired_lease_not_waited_for": 0,
    "external_changes_are_not_compared": 102,
    "external_pods_elsewhere_ignored": 10,
    "external_pods_on_the_node_ignored": 52,
    "failed_gangs_keep_their_room": 100,
    "forbidden_binds_quarantine_pods": 14,
    "foreign_binds_ignored": 5,
    "forged_answers_stay": 301,
    "forged_notices_are_believed": 612,
    "forget_by_timer": 22,
    "forget_nothing": 1,
    "freed_quotas_requeue_nothing": 122,
    "freed_room_requeues_nothing": 1,
    "freed_rows_keep_their_use": 11,
    "frozen_tides_evict": 601,
    "further_members_wake_no_lead": 503,
    "gang_quorum_off_by_one": 102,
    "gangs_claim_by_their_first_member": 503,
    "gangs_start_without_their_group": 106,
    "gangs_wait_for_ever": 103,
    "gated_members_of_started_gangs_stay": 1000,
    "gates_open": 1,
    "half_written_notices_count_as_begun_evictions": 602,
    "headroom_is_ignored": 1104,
    "holds_are_lost_after_a_restart": 1100,
    "invalid_configurations_reported_in_force": 221,
    "joined_rows_used_at_once": 30,
    "labels_left_out_of_parked_classes": 4,
    "labels_of_units_are_not_written": 805,
    "last_retries_go_first": 1105,
    "later_members_pass_the_barrier": 1000,
    "lease_not_checked_before_bind": 0,
    "lease_released_too_early": 10,
    "leases_of_others_need_no_list": 0,
    "leaves_alone_have_a_max": 122,
    "leaving_pods_hold_nothing": 1103,
    "ledgers_not_rolled_back": 2,
    "lenders_keep_the_epoch": 102,
    "living_borrowers_count_as_dead": 0,
    "loan_notices_of_a_former_leader_are_lost": 1103,
    "locks_of_others_are_overwritten": 302,
    "locks_of_others_are_stale_at_once": 308,
    "lost_binds_requeue_nothing": 40,
    "lost_leases_stay_settled": 1,
    "max_counts_all_groups": 801,
    "members_bound_elsewhere_retry_nothing": 301,
    "members_of_earlier_runs_count": 303,
    "members_tried_alone": 101,
    "memory_not_counted": 1,
    "models_of_cards_are_ignored": 601,
    "most_work_is_lost": 1105,
    "needs_of_deleted_pods_stay": 1103,
    "new_leaders_leave_gangs_in_part": 1105,
    "new_members_leave_the_lead_parked": 228,
    "new_message_counts_as_repeat": 0,
    "new_tolerations_reach_no_pending_pod": 503,
    "no_forget_after_failure": 3,
    "no_gang_gets_a_turn": 400,
    "no_list_before_leading": 3,
    "no_pod_reclaims": 122,
    "no_recheck_at_commit": 1,
    "no_synthetic_delete": 14,
    "no_unreserve": 5,
    "no_unreserve_after_permit": 1,
    "nodes_are_not_locked": 300,
    "nodes_are_seen_while_binds_are_in_flight": 220,
    "nominated_pods_count_nowhere": 122,
    "nominated_room_given_away": 1,
    "not_found_is_bound": 5,
    "nothing_is_kept_for_borrowers": 101,
    "nothing_of_quotas_is_kept": 1,
    "notices_end_at_once": 600,
    "notices_run_from_the_recall": 1106,
    "numbers_of_cards_are_not_compared": 302,
    "offers_are_used_unclaimed": 107,
    "offers_ignore_what_others_may_use": 7,
    "oldest_borrowers_go_first": 122,
    "one_allow_is_enough": 1,
    "one_namespace_retries_for_nothing": 16,
    "only_held_slices_are_reserved": 100,
    "others_terms_ignored": 1,
    "own_nominations_count_against_the_max": 221,
    "own_rules_are_not_checked_before_the_send": 1000,
    "own_updates_lost": 14,
    "parked_pods_keep_earlier_sort_keys": 220,
    "partial_gangs_start_over": 140,
    "paused_attempts_count_as_started": 300,
    "permit_never_times_out": 1,
    "permit_timeout_forgets_the_pod": 1,
    "permit_waits_for_the_last": 1,
    "pod_counts_never_change": 101,
    "pods_do_not_wait_for_claims": 107,
    "pods_go_on_while_their_victims_terminate": 803,
    "pods_in_flight_end_by_the_new_profile": 223,
    "pods_of_other_domains_requeue_nothing": 28,
    "pods_that_are_gone_count_as_terminating": 301,
    "pods_that_end_slowly_give_their_cards_at_once": 300,
    "pods_under_quotas_do_not_wait_for_claims": 3,
    "ports_ignored": 2,
    "processes_that_do_not_lead_choose_pods": 1103,
    "protected_training_is_evicted": 600,
    "quarantine_ignores_namespaces": 9,
    "quarantine_never_ends": 9,
    "queue_never_flushed": 0,
    "quota_room_is_free_at_its_recall": 6,
    "quotas_count_one_card_of_several": 300,
    "quotas_keep_what_has_ended": 122,
    "quotas_of_cpu_alone": 180,
    "raised_offers_are_reserved_when_they_are_seen": 100,
    "rates_are_ignored": 800,
    "read_once_after_unknown": 1,
    "reclaim_beyond_the_min": 122,
    "reclaim_evicts_all_tried": 121,
    "reclaim_takes_one_too_few": 122,
    "reclaims_ignore_terminating_pods": 122,
    "refused_notices_count_as_given": 1104,
    "refused_pods_dropped": 1,
    "refused_pods_never_quarantined": 1,
    "refused_profiles_count_as_in_force": 1000,
    "refused_templates_are_tried_again": 801,
    "relabelled_pods_requeue_nothing": 29,
    "reloads_compare_with_the_first_profile": 220,
    "reloads_drop_a_queued_pod": 220,
    "reparked_pod_blocks_others": 7,
    "replaced_holds_add_up": 702,
    "representatives_refused_otherwise_wake_no_pod": 1000,
    "required_domains_left": 218,
    "resized_pods_keep_their_quota": 122,
    "resized_pods_keep_their_share_of_a_quota": 502,
    "resized_pods_not_recounted": 0,
    "resizes_count_when_they_are_requested": 1,
    "restarts_forget_unserved_pods": 300,
    "retries_forget_the_need": 1106,
    "returned_gangs_are_evicted_at_once": 601,
    "roles_left_out_of_the_signature": 4,
    "room_for_a_waiting_gang_is_lent_again": 1108,
    "room_for_one_member_more": 204,
    "rows_not_checked_at_commit": 24,
    "searches_begin_anew_after_each_pause": 1100,
    "second_containers_hold_nothing": 300,
    "seen_before_the_last_binds_end": 200,
    "selectors_ignored": 1,
    "shares_are_ignored": 1105,
    "slots_of_a_card_are_whole_cards": 302,
    "some_of_a_gang_are_enough": 100,
    "spread_ignored": 1,
    "stale_locks_are_left": 305,
    "statuses_of_earlier_plugins": 228,
    "statuses_of_quotas_never_change": 102,
    "statuses_written_without_the_lease": 1,
    "stop_never_ends": 1,
    "strays_forgotten": 1,
    "stuck_pods_are_left": 800,
    "tentative_members_count_as_started": 102,
    "terminating_pods_always_count": 800,
    "terminating_pods_are_not_charged": 114,
    "timeouts_of_units_are_ignored": 805,
    "tombstones_off": 5,
    "totals_of_memory_are_not_compared": 302,
    "trials_change_real_holds": 600,
    "turns_follow_without_a_pause": 400,
    "turns_never_end": 400,
    "uid_not_sent": 1,
    "unanswered_binds_are_sent_unchecked": 401,
    "uncordoned_nodes_requeue_nothing": 20,
    "undone_members_are_waited_for": 321,
    "undone_members_stay_missing": 303,
    "units_are_ordered_by_score": 801,
    "unknown_is_bound": 1,
    "unsent_binds_not_rechecked": 2,
    "unserved_pods_refuse_nothing": 306,
    "untainted_nodes_requeue_nothing": 18,
    "updates_spare_victims": 303,
    "users_deletion_costs_are_overwritten": 800,
    "vanished_cards_are_free_when_they_are_back": 300,
    "version_guard_off": 7,
    "victims_room_free_at_once": 2,
    "volumes_never_assumed": 0,
    "volumes_never_released": 8,
    "waiting_inference_is_not_counted": 601,
    "waiting_members_count_as_scheduled": 102,
    "watched_victims_count_as_staying": 300,
    "withdrawn_binds_forgotten": 14,
    "withdrawn_loan_notices_are_carried_out": 1103,
    "withdrawn_notices_are_carried_out": 601,
}
"""Defect -> the seed to begin with: the first that caught it when it was last looked for."""

UNSHOWN = frozenset(
    {
        "new_leaders_use_lists_from_before_their_lease",  # tests/unit/shell/leadership/test_handover_edge_cases.py catches it
        "unknown_binds_forgotten_when_refused",  # tests/unit/cycle/test_bind_outcome.py catches it
        "shorter_flushes_ignored_for_parked_pods",  # tests/unit/queueing/test_pod_queue.py catches it
        "late_refusals_keep_their_victims",  # tests/unit/cycle/preemption/test_dry_run.py catches it
        "claims_are_taken_from_the_watch",  # tests/unit/plugins/loans/slices/test_slice_protocol.py catches it
        # Seed 2 did before offers rose at regular looks only.
        "only_bound_pods_are_charged",
        # Wide seeds 100 to 115 do not since borrowers claim more at once, and later ones are offered less.
        "offers_ignore_what_other_borrowers_hold",  # tests/integration/loans/test_sliced_loans.py catches it
        # tests/unit/plugins/quota/shared/test_quota_room.py catches it. Here borrowers check each max by what they see as well.
        "offers_of_leaves_ignore_levels_above",
        "only_offers_are_reserved",  # tests/unit/plugins/loans/slices/test_slice_protocol.py catches it
        "forged_loan_notices_are_believed",  # tests/integration/loans/test_loan_notices.py catches it
        "deleted_representatives_end_the_turn",  # tests/unit/queueing/test_events_for_one_pod.py catches it
        "leaders_ahead_are_no_obstacle",  # tests/unit/shell/leadership/test_handover_edge_cases.py catches it
        "maxes_ignore_guarantees_below",  # tests/unit/plugins/quota/test_elastic_quota.py catches it: no world has guarantees
        "members_that_join_attempts_requeue_nothing",  # tests/unit/queueing/test_gang_entries.py catches it
        "pods_removed_together_do_not_add_up",  # tests/unit/plugins/quota/test_wake_ups.py catches it
        "equal_pods_are_not_tried_in_turn",  # tests/unit/shell/test_equal_pods_in_turn.py catches it
        "victims_that_stay_stay_marked",  # tests/unit/shell/test_removals.py catches it
        "replacements_are_probes",  # tests/unit/domains/job/providers/test_sandbox_ledger.py catches it
        "refused_binds_keep_their_tokens",  # tests/unit/domains/job/providers/test_sandbox_ledger.py catches it
        "only_the_first_member_is_evicted",  # tests/integration/gpu/test_tide.py catches it
        "new_leaders_forget_notices",  # tests/integration/gpu/test_tide.py catches it
        "evictions_need_no_notice_on_all_members",  # members that are told late move the deadline too
        "answers_of_plugins_requeue_nothing",  # tests/integration/gpu/test_plugin_picks.py catches it
        "cores_of_cards_are_not_counted",  # tests/unit/domains/gpu/commands/test_cli_gpu.py catches it
        "ended_nominations_stay_written",  # tests/unit/shell/test_refused_nominations.py catches it
        "ended_fractions_requeue_nothing",  # tests/unit/domains/gpu/test_gpu_share.py catches it
        "volumes_reached_from_everywhere",  # tests/unit/plugins/volumes/test_volume_binder.py catches it
        "conflict_is_bound",  # tests/unit/shell/test_domain_worker.py catches it
        "bound_members_count_twice",
        "conditions_overtake",
        "deleted_leases_hold_no_nodes",
        "deleted_leases_not_waited_for",
        "detached_volumes_counted",
        "returned_devices_requeue_nothing",
        # What a pod was given stands in annotations that the scheduler alone may write; worlds edit what authors may.
        "edits_release_devices",
        "equals_lose_their_nominations",  # tests/unit/shell/test_group_preemptions.py catches it
        "exact_fits_not_preempted",
        "false_answers_believed",
        "finished_members_not_counted",
        # The gpu domain's default policy is fragmentation now. tests/unit/domains/gpu/test_gpu_choices.py catches it.
        "fractions_scored_by_the_freest",
        "full_nodes_keep_the_scale",  # tests/unit/cycle/classes/test_warm_relations.py catches it
        "gangs_lose_their_nominations_during_evictions",
        "gangs_evicted_below_minimum",
        "changed_gangs_requeue_nothing",
        "gangs_woken_twice",  # tests/unit/queueing/test_gang_entries.py catches it
        "deleting_pods_counted_for_spread",
        "deleted_pods_decided",
        "images_count_by_row_alone",  # tests/unit/cycle/classes/test_warm_classes.py catches it
        "later_domains_not_tried",
        "lease_ignored",
        "lease_not_checked_before_deletion",
        "lists_dated_at_their_end",
        "locks_of_pods_that_were_not_bound_are_left",  # tests/integration/gpu/test_hami_locks.py catches it
        "lost_cards_count_nowhere",  # tests/unit/domains/gpu/dialects/test_dialects.py catches it
        "malformed_lines_skipped",  # tests/unit/client/test_reflector.py catches it
        "bound_members_do_not_wake_the_loop",
        "bound_members_fix_no_domain",
        "changes_marked_before_counted",
        "nodes_seen_later_by_others_used_at_once",  # tests/unit/shell/leadership/test_handover_edge_cases.py catches it
        "ended_reclaim_nominations_requeue_nothing",  # tests/unit/shell/ingest/test_ingest.py catches it
        "ports_of_other_addresses_requeue_nothing",
        "preemptors_not_held",
        "nominated_ports_ignored",  # tests/unit/cycle/test_reservations.py catches it
        "repeats_on_the_way_are_not_counted",
        "restored_history_forgets_first",
        "device_shares_from_current_requests",  # tests/unit/domains/gpu/test_gpu_in_cache.py catches it
        "starts_leave_victims_as_they_were",
        # Seed 186 alone did: it has quotas now.
        "unanswered_conditions_forgotten",
        "volumes_not_waited_for",
        "volumes_assumed_twice",
    }
)
"""Defects that no known seed catches since the draws of the simulation changed; `--only` and `--all` try them."""


def hunt(name: str, seeds_max: int = SEEDS_MAX) -> tuple[str, int | None, str, float]:
    """Returns name, first seed that catches the defect, its violation, and the time in seconds; the seed is None if none does. Runs
    in a process of its own.
    """
    began = time.monotonic()
    DEFECTS[name]()
    seeds = played(seeds_max) if name in PLANTED else _seeds_from(name, seeds_max)
    first = FIRST.get(name, seeds[0])
    for seed in [first, *(seed for seed in seeds if seed != first)]:
        try:
            broken = _broken(name, seed)
        except Exception as died:  # noqa: BLE001 - a run that dies has caught the defect too
            return name, seed, f"{type(died).__name__}: {died}"[:200], time.monotonic() - began
        if broken:
            return name, seed, broken[0], time.monotonic() - began
    return name, None, "", time.monotonic() - began


def _broken(name: str, seed: int) -> Sequence[str]:
    """Returns what a seed's run finds wrong."""
    if name in SLICED:
        return slices.run(seed, moves=False).found
    if name in SHARED:
        return quota_room.run(seed, edits=False).found
    return run_seed(seed, stops_at_first=True).broken


def _seeds_from(name: str, count: int) -> Sequence[int]:
    """Returns consecutive seeds of the kind that can catch the defect."""
    start = STARTS.get(DEFECTS[name].__module__, 0)
    if start < PACKED_FROM <= FIRST.get(name, 0):
        start = PACKED_FROM
    return range(start, start + count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(DEFECTS), nargs="*")
    parser.add_argument("--all", action="store_true", help="those that no seed is known to catch, too")
    parser.add_argument("--planted", action="store_true", help="the planted defects alone")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="that a defect may survive")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    # CI has no time for all: the planted ones show how much seeds catch, the others that each check still works.
    every = PLANTED if options.planted else {name: one for name, one in DEFECTS.items() if name not in PLANTED}
    names = options.only or [name for name in every if options.all or name not in UNSHOWN]
    survived: list[str] = []
    found: dict[str, int] = {}
    began = time.monotonic()
    # Each defect breaks a process of its own, forked from one that has imported the program: importing takes half a second.
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([quiet.__module__, run_seed.__module__, planted_defects.__name__, *STARTS])
    with ProcessPoolExecutor(options.jobs, forks, initializer=quiet, max_tasks_per_child=1) as pool:
        for name, seed, said, seconds in pool.map(partial(hunt, seeds_max=options.seeds), names):
            verdict = "SURVIVED" if seed is None else f"seed {seed}: {said}"
            print(f"{name:32} {seconds:5.1f} s  {verdict}", flush=True)
            if seed is None:
                survived.append(name)
            elif seed != FIRST.get(name):
                found[name] = seed
    if found:
        print("caught by other seeds than their first:", ", ".join(f'"{name}": {seed}' for name, seed in found.items()))
    if not (options.only or options.all):
        print(f"not tried, since no seed is known to catch them: {', '.join(sorted(UNSHOWN & every.keys()))}")
    print(f"{len(names) - len(survived)} caught, {len(survived)} survived, {time.monotonic() - began:.0f} s")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
