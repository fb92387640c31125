"""Compares results and refusals with those of a program that is rebuilt from the observed state (I12).

`ClassChecker` runs the same plugin instances again; state that a plugin keeps between attempts is then the same. Here plugins,
their indexes and classes are new, and use the same nodes, pods and objects. Each rebuilt program is used for one pod, since an
attempt leaves state behind. Masks and scores of one pod in one step are compared with one program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from multisched.cycle.classes.cache import ClassCache
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.results import GangResult, Result, Unplaced
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.framework.ledger import Ledger, SummingLedger
from multisched.framework.points import Queued
from multisched.framework.runner import PluginFailure
from multisched.framework.step_budget import UNLIMITED, StepBudget
from multisched.model.objects import Pod
from multisched.plugins.image_locality import normalized
from multisched.shell.domain import DomainWorker
from multisched.shell.program import Program
from multisched.state.domain_rows import DomainRows
from multisched.state.node_table import NodeTable
from multisched.testing.sim_loop import SimLoop
from multisched.whatif.sandbox import ClusterSnapshot, SchedulerSandbox

REFUSALS_EVERY: Final = 192
"""Every n-th refusal is compared."""


class SandboxChecker:
    """Compares classes and attempts of one domain of one program."""

    def __init__(self, program: Program, worker: DomainWorker, report_violation: Callable[[str], None]) -> None:
        self._program = program
        self._worker = worker
        self._rows = program.router.rows_of(worker)
        self._report_violation = report_violation
        self._refused = 0
        self._made: tuple[object, SchedulerSandbox] | None = None
        """The latest rebuilt program of `compare`, with the state that it was built from."""
        self._settle = worker.results.apply  # called before the result takes effect
        worker.results.apply = self.settle  # type: ignore[method-assign]

    def settle(
        self,
        queued: Queued,
        result: Result | GangResult,
        seconds: float,
        cycle: SchedulingCycle,
        *,
        charged_s: float = 0.0,
        budget: StepBudget = UNLIMITED,
    ) -> None:
        """Wraps `ResultApplier.apply`."""
        if isinstance(result, Unplaced) and not result.is_error:
            self._refused += 1
            if not self._refused % REFUSALS_EVERY:
                self._compare_refusals(result)
        self._settle(queued, result, seconds, cycle, charged_s=charged_s, budget=budget)

    @property
    def is_in_trial(self) -> bool:
        """Reports whether the node table has hypothetical changes: a dry run for several pods is in progress (`state.trial`)."""
        cache = self._program.cache
        placed = {entry.pod.uid: entry.row for entry in cache if entry.row >= 0}
        return placed != {uid: row for row, _ in cache.nodes.live_rows() for uid in cache.nodes.pods_by_uid(row)}

    def _sandbox(self, _pod: Pod) -> SchedulerSandbox:
        return SchedulerSandbox(self._program.configuration, ClusterSnapshot.of(self._program))

    def _sandbox_for(self, pod: Pod) -> SchedulerSandbox:
        """Returns the latest program again for the same pod in the same step of a task, unless something was placed or nominated
        since.
        """
        loop, cache = asyncio.get_running_loop(), self._program.cache
        assert isinstance(loop, SimLoop), "a simulation"
        step = loop.iteration, asyncio.current_task(loop)
        moment = step, pod, cache.nodes.row_log.sequence, self._program.nominator.sequence
        if self._made is None or self._made[0] != moment:
            self._made = moment, self._sandbox(pod)
        return self._made[1]

    def _rebuilt(
        self, pod: Pod, make: Callable[[Pod], SchedulerSandbox]
    ) -> tuple[SchedulerSandbox, DomainWorker] | None:
        """Returns the rebuilt program and its domain; None if the two need not give equal results."""
        if not _have_one_size(pod, self._program.cache.nodes):
            return None
        sandbox = make(pod)
        worker = next(one for one in sandbox.program.router.workers() if one.name == self._worker.name)
        usable = _usable(self._program.cache.nodes, self._rows)
        if usable != _usable(sandbox.cache.nodes, sandbox.program.router.rows_of(worker)):
            return None  # a node that has joined is withheld for a while
        concerned = [ledger for ledger in self._program.cache.ledgers if ledger.is_used_by(pod)]
        has_equal_state = all(_has_equal_state(self._program, sandbox, ledger) for ledger in concerned)
        return (sandbox, worker) if has_equal_state else None

    def _compare_refusals(self, result: Unplaced) -> None:
        """Checks that the rebuilt program refuses the pod with the same message and the same priorities of victims."""
        made = self._rebuilt(result.pod, self._sandbox)
        if made is None:
            return
        sandbox, worker = made
        again = sandbox.attempt(worker, result.pod).result
        ours, theirs = _outcome(result), _outcome(again)
        if ours != theirs:
            self._report_violation(f"I12: {result.pod.key} ends with {ours}, and with {theirs} in a program made anew")

    def compare(self, entry: EquivalenceClass, pod: Pod) -> None:
        """Compares a class. `entry`: just found for the pod, or just scored, possibly on some of its rows only."""
        made = self._rebuilt(pod, self._sandbox_for)
        if made is None:
            return
        sandbox, worker = made
        table, others = self._program.cache.nodes, sandbox.cache.nodes
        rows = sandbox.program.router.rows_of(worker)
        classes = ClassCache(worker.cycle.plugins, worker.runner, others, rows)
        try:
            fresh = classes.find(pod, 1)
            if entry.is_scored and entry.refusal is None and fresh.refusal is None:
                taken = {name for name, (takes, _) in _answers(entry, table) if takes}
                here = np.array([others.node(row).name in taken for row in fresh.rows.tolist()], np.bool_)
                fresh = classes.reduced(fresh, fresh.feasible & here)
                if fresh.feasible.any():
                    classes.score(fresh)
        except PluginFailure:
            self._report_violation(f"I12: a plugin fails for {pod.key} in a program made anew")
            return
        if entry.refusal is not None or fresh.refusal is not None:
            if entry.refusal != fresh.refusal:
                found = f"{entry.refusal}, and by {fresh.refusal} in a program made anew"
                self._report_violation(f"I12: {pod.key} is refused by {found}")
            return
        ours, theirs = dict(_answers(entry, table)), dict(_answers(fresh, others))
        wrong = next((name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)), "")
        if wrong:
            found = f"{ours.get(wrong)} on {wrong}, and {theirs.get(wrong)} in a program made anew"
            self._report_violation(f"I12: {pod.key} is answered {found}")


def _outcome(result: Result) -> tuple[str, list[str], list[int]]:
    """Returns the message of the condition, the plugins that refused, and the priorities of the victims."""
    if not isinstance(result, Unplaced):
        return type(result).__name__, [], []
    victims = sorted(victim.spec.priority for victim in result.victims)
    return result.message, sorted(result.rejectors | result.pending), victims


def _have_one_size(pod: Pod, table: NodeTable) -> bool:
    """Reports whether each image has one size on all nodes; otherwise the first report counts (`ImageLocality`)."""
    wanted = {normalized(image) for image in (*pod.spec.images, *pod.spec.image_volumes)}
    found = {
        (name, image.size_bytes)
        for _, node in table.live_rows()
        for image in node.images
        for name in wanted.intersection(image.names)
    }
    return len({name for name, _ in found}) == len(found)


def _has_equal_state(program: Program, sandbox: SchedulerSandbox, ledger: Ledger) -> bool:
    """Reports whether the ledgers are equal. They differ while assumed pods hold chosen devices and volumes that are not written
    yet.
    """
    other = next(one for one in sandbox.cache.ledgers if one.name == ledger.name)
    if not isinstance(ledger, SummingLedger):
        return dict(ledger.held()) == dict(other.held())
    assert isinstance(other, SummingLedger), "a ledger of the same name is of the same kind"
    rows = ((row, sandbox.cache.nodes.row_of(node.name)) for row, node in program.cache.nodes.live_rows())
    return all(there is not None and ledger.sums(row) == other.sums(there) for row, there in rows)


def _usable(table: NodeTable, rows: DomainRows) -> set[str]:
    return {node.name for row, node in table.live_rows() if rows.has(row)}


def _answers(entry: EquivalenceClass, table: NodeTable) -> Iterator[tuple[str, tuple[bool, int | None]]]:
    """Yields the name of a node, whether it takes the pod, and its score."""
    for at, row in enumerate(entry.rows.tolist()):
        takes = bool(entry.feasible[at])
        yield table.node(row).name, (takes, int(entry.total[at]) if takes and entry.is_scored else None)
