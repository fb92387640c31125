"""`python -m tests.sim.mutants`: deliberate defects, each of which the simulation must catch within its seeds.

A defect that no seed catches means that the invariants, or the faults, do not look where it hides: the check fails.
Seeds that caught a defect before are tried first (`FIRST`), so that the whole check takes two and a half minutes of one core. When
the program changes, other seeds may be needed: a line with many seconds says so.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from multisched.testing.scenario import run_seed
from tests.sim.defects import DEFECTS
from tests.sim.run import quiet

SEEDS_MAX = 48
"""Seeds that a defect may survive before it counts as not caught."""

FIRST: dict[str, int] = {
    "audit_mends_nothing": 15,
    "audit_off": 1,
    "conflict_is_bound": 8,
    "conflict_is_refusal": 13,
    "conflicted_pods_dropped": 3,
    "counts_stand_still": 11,
    "deletions_ignored": 31,
    "devices_given_twice": 4,
    "equals_preempted": 4,
    "events_in_flight_kept": 2,
    "events_in_flight_lost": 13,
    "expired_lease_not_waited_for": 4,
    "foreign_binds_ignored": 5,
    "forget_by_timer": 5,
    "forget_nothing": 1,
    "freed_room_tells_nobody": 1,
    "freed_rows_keep_their_use": 1,
    "gates_open": 1,
    "gone_pods_counted": 1,
    "gone_pods_decided": 11,
    "lease_given_back_too_early": 12,
    "lease_ignored": 1,
    "lease_not_checked_before_bind": 7,
    "lease_not_checked_before_deletion": 9,
    "ledgers_not_rolled_back": 2,
    "memory_not_counted": 1,
    "no_list_before_leading": 23,
    "no_recheck_at_commit": 1,
    "no_synthetic_delete": 1,
    "no_unreserve": 4,
    "no_unreserve_after_permit": 4,
    "nodes_never_go": 9,
    "not_found_is_bound": 14,
    "own_updates_lost": 9,
    "permit_forgets_who_waited": 2,
    "ports_not_looked_at": 18,
    "preemptors_not_held": 4,
    "promised_room_given_away": 4,
    "read_once_after_unknown": 5,
    "refused_pods_dropped": 3,
    "refused_pods_never_set_aside": 4,
    "resized_pods_not_recounted": 1,
    "rows_not_checked_at_commit": 24,
    "selectors_not_looked_at": 2,
    "set_aside_for_good": 1,
    "set_aside_unheard_by_namespaces": 3,
    "strays_forgotten": 1,
    "tombstones_off": 5,
    "uid_not_sent": 1,
    "unknown_is_bound": 2,
    "version_guard_off": 7,
    "volumes_not_waited_for": 12,
    "volumes_promised_to_nobody": 1,
    "volumes_reached_from_everywhere": 2,
}
"""Defect -> the seed to begin with, the cheapest of those tried that catch it; without: 0."""


def hunt(name: str) -> tuple[str, int | None, str, float]:
    """The first seed that catches the defect, with what it said; None if none does. Runs in a process of its own."""
    began = time.monotonic()
    DEFECTS[name]()
    first = FIRST.get(name, 0)
    for seed in [*range(first, SEEDS_MAX), *range(first)]:
        try:
            broken = run_seed(seed, is_hasty=True).broken
        except Exception as died:  # noqa: BLE001 - a run that dies has caught the defect too
            return name, seed, f"{type(died).__name__}: {died}"[:200], time.monotonic() - began
        if broken:
            return name, seed, broken[0], time.monotonic() - began
    return name, None, "", time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(DEFECTS), nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    names = options.only or list(DEFECTS)
    survived: list[str] = []
    began = time.monotonic()
    # Each defect breaks a process of its own, forked from one that has imported the program: importing takes half a second.
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([quiet.__module__, run_seed.__module__, "tests.sim.defects"])
    with ProcessPoolExecutor(options.jobs, forks, initializer=quiet, max_tasks_per_child=1) as pool:
        for name, seed, said, seconds in pool.map(hunt, names):
            verdict = "SURVIVED" if seed is None else f"seed {seed}: {said}"
            print(f"{name:32} {seconds:5.1f} s  {verdict}", flush=True)
            if seed is None:
                survived.append(name)
    print(f"{len(names) - len(survived)} caught, {len(survived)} survived, {time.monotonic() - began:.0f} s")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
