"""`python -m tests.sim.mutants`: deliberate defects, each of which the simulation must catch within its seeds.

A defect that no seed catches means that the invariants, or the faults, do not look where it hides: the check fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from multisched.client import known_objects
from multisched.client.known_objects import KnownObjects, Verdict
from multisched.client.lease import LeaseKeeper
from multisched.cycle import scheduling_cycle
from multisched.cycle.bind_outcome import Action, BindMachine, Outcome, Step
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.framework.ports import BindAnswer, BindReply
from multisched.queueing.gating import Gates
from multisched.shell.domain import DomainWorker
from multisched.shell.ingest import NodeIngest, PodIngest
from multisched.state import commit
from multisched.state.cluster_cache import ClusterCache
from multisched.state.node_table import NodeTable
from multisched.testing.scenario import run_seed

SEEDS = 40


def no_recheck_at_commit() -> None:
    """Commit believes what the cycle saw before it waited."""
    genuine = commit.commit

    def trusting(cache: Any, rows: Any, pod: Any, candidates: Any, still_fits: Any, conflicts: Any) -> Any:
        return genuine(cache, rows, pod, candidates, lambda pod, row: True, conflicts)

    _put(scheduling_cycle, "commit", trusting)


def forget_by_timer() -> None:
    """A bind without an answer is given up, as if it had certainly not happened."""
    genuine = BindMachine.on_reply

    def impatient(self: BindMachine, reply: BindReply) -> Action:
        if reply.answer is BindAnswer.UNKNOWN:
            return Action(Step.END, outcome=Outcome.REFUSED, message="no answer")
        return genuine(self, reply)

    _put(BindMachine, "on_reply", impatient)


def no_synthetic_delete() -> None:
    """What vanished while nobody watched stays for ever."""
    _put(KnownObjects, "end_replace", lambda self, version, now_s: [])


def version_guard_off() -> None:
    """Older objects are applied over newer ones."""

    def gullible(self: KnownObjects, key: str, uid: str, version: str) -> Verdict:
        self._known[key] = known_objects._Known(uid, version, self._pass_number)
        return Verdict.UPSERT

    _put(KnownObjects, "observe", gullible)


def forget_nothing() -> None:
    """A refused bind keeps its room."""
    _put(ClusterCache, "forget", lambda self, uid: False)


def deletions_ignored() -> None:
    """Deleted pods keep their room and their place in the queue."""
    _put(PodIngest, "delete", lambda self, key, raw: None)


def nodes_never_go() -> None:
    """A deleted node's row stays usable."""
    _put(NodeIngest, "delete", lambda self, key, raw: None)


def not_found_is_bound() -> None:
    """404 to a binding is taken for success."""
    genuine = BindMachine.on_reply

    def confused(self: BindMachine, reply: BindReply) -> Action:
        if reply.answer is BindAnswer.NOT_FOUND:
            return Action(Step.END, outcome=Outcome.BOUND)
        return genuine(self, reply)

    _put(BindMachine, "on_reply", confused)


def conflict_is_bound() -> None:
    """409 to a binding is taken for success without reading the pod."""
    genuine = BindMachine.on_reply

    def hasty(self: BindMachine, reply: BindReply) -> Action:
        if reply.answer is BindAnswer.CONFLICT:
            return Action(Step.END, outcome=Outcome.BOUND)
        return genuine(self, reply)

    _put(BindMachine, "on_reply", hasty)


def memory_not_counted() -> None:
    """Pods take their CPU from a row, and nothing else."""
    genuine = NodeTable._account

    def sloppy(self: NodeTable, row: int, pod: Any, sign: int) -> None:
        genuine(self, row, pod, sign)
        memory = pod.requests.get("memory", 0)
        self._requested[1, row] -= sign * memory

    _put(NodeTable, "_account", sloppy)


def gates_open() -> None:
    """Scheduling gates are not looked at."""
    genuine = Gates.ask

    def open_gates(self: Gates, pod: Any, first: str) -> Any:
        from multisched.framework.status import SUCCESS

        genuine(self, pod, first)
        return SUCCESS

    _put(Gates, "ask", open_gates)


def lease_ignored() -> None:
    """Every process binds, whoever leads."""
    _put(LeaseKeeper, "may_bind", lambda self: True)
    _put(LeaseKeeper, "may_bind_in_s", lambda self: 0.0)

    async def at_once(self: LeaseKeeper) -> None:
        return

    _put(LeaseKeeper, "wait_held", at_once)


def refused_pods_dropped() -> None:
    """A pod whose bind was refused is not queued again."""

    def careless(self: DomainWorker, bind: Any, status: Any) -> None:
        self._leave_flight()
        self.cycle.give_up(bind.placed, status)

    _put(DomainWorker, "_abandon", careless)


def no_unreserve() -> None:
    """A failure after commit leaves the assumption in place."""
    genuine = SchedulingCycle.give_up

    def leaky(self: SchedulingCycle, placed: Any, status: Any) -> Any:
        keep = self._cache.forget
        self._cache.forget = lambda uid: False  # type: ignore[method-assign]
        try:
            return genuine(self, placed, status)
        finally:
            self._cache.forget = keep  # type: ignore[method-assign]

    _put(SchedulingCycle, "give_up", leaky)


MUTANTS: dict[str, Callable[[], None]] = {
    mutant.__name__: mutant
    for mutant in (
        no_recheck_at_commit,
        forget_by_timer,
        no_synthetic_delete,
        version_guard_off,
        forget_nothing,
        deletions_ignored,
        nodes_never_go,
        not_found_is_bound,
        conflict_is_bound,
        memory_not_counted,
        gates_open,
        lease_ignored,
        refused_pods_dropped,
        no_unreserve,
    )
}


def _put(owner: object, name: str, replacement: object) -> None:
    setattr(owner, name, replacement)


def hunt(name: str) -> tuple[str, int | None, str]:
    """The first seed that catches the defect, with what it said; None if none does. Runs in a process of its own."""
    MUTANTS[name]()
    for seed in range(SEEDS):
        try:
            broken = run_seed(seed).broken
        except Exception as died:  # noqa: BLE001 - a run that dies has caught the defect too
            return name, seed, f"{type(died).__name__}: {died}"[:200]
        if broken:
            return name, seed, broken[0]
    return name, None, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(MUTANTS), nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    names = options.only or list(MUTANTS)
    survived = 0
    with ProcessPoolExecutor(max_workers=options.jobs, max_tasks_per_child=1) as pool:
        for name, seed, said in pool.map(hunt, names):
            survived += seed is None
            print(f"{name:24} {'SURVIVED' if seed is None else f'caught by seed {seed}: {said}'}", flush=True)
    print(f"{len(names) - survived} passed, {survived} failed")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
