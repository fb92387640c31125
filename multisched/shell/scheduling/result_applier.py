"""Applies the result of an attempt: a placed pod begins its binding cycle, any other pod is requeued.

Runs in the same step as the decision, without an await in between, so the result still holds when it is applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from multisched.cycle.results import Conflicted, GangResult, Placed, Result, Unplaced
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.framework.points import Queued, QueuedPod
from multisched.framework.status import Status
from multisched.framework.step_budget import UNLIMITED, StepBudget
from multisched.model.objects import have_equal_demands
from multisched.queueing.active_pods import UNIT_S
from multisched.queueing.entry import Moved
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.transitions import QueueState
from multisched.shell.observer import DomainObserver
from multisched.shell.scheduling.binding_cycle import BindingCycle
from multisched.shell.scheduling.failure_handler import FailureHandler
from multisched.shell.scheduling.nominations import DomainNominations

NOT_SCHEDULED_HERE: Final = Status.error("the other members of its gang were undone while a node was chosen for it")
"""The pod must start together with these members again."""


class ResultApplier:
    """Applies the results of the attempts of one domain."""

    def __init__(
        self,
        queue: PodQueue,
        nominations: DomainNominations,
        failures: FailureHandler,
        binding: BindingCycle,
        observer: DomainObserver,
    ) -> None:
        self._queue = queue
        self._nominations = nominations
        self._failures = failures
        self._binding = binding
        self._observer = observer

    def apply(
        self,
        queued: Queued,
        result: Result | GangResult,
        seconds: float,
        cycle: SchedulingCycle,
        *,
        charged_s: float = 0.0,
        budget: StepBudget = UNLIMITED,
    ) -> None:
        """Applies a result. `seconds`: duration of the attempt. `charged_s`: part of it already charged to the namespace.

        `budget`: as for `PodQueue.fail`; an attempt that paused may have missed thousands of events.
        """
        if isinstance(queued, QueuedPod):
            assert not isinstance(result, GangResult), "one pod has one result"
            if seconds - charged_s > UNIT_S:
                self._queue.charge_attempt(queued.pod.uid, seconds)
            gangs = self._queue.gangs
            if gangs.are_any and isinstance(result, Placed) and gangs.must_start_together(queued.pod.uid):
                result = cycle.give_up(result, NOT_SCHEDULED_HERE)
            self._apply_one(queued, result, seconds, cycle, budget)
            return
        assert isinstance(result, GangResult), "a gang has a result of its own"
        entries, each_s = {entry.pod.uid: entry for entry in queued.members}, seconds / len(queued.members)
        if seconds - charged_s > UNIT_S:
            self._queue.charge_attempt(queued.members[0].pod.uid, seconds)
        self._binding.expect(result.placed, queued.gang_of)
        results: list[Result] = [*result.placed, *result.unplaced]
        for one in results:
            self._apply_one(entries[one.pod.uid], one, each_s, cycle, budget)

    def _apply_one(
        self, entry: QueuedPod, result: Result, seconds: float, cycle: SchedulingCycle, budget: StepBudget
    ) -> None:
        match result:
            case Placed():
                self._observer.attempt_ended(entry.pod, "scheduled", seconds)
                self._queue.found_node(entry.pod.uid)
                if result.nominated_node not in ("", result.node):
                    self._nominations.nomination_ended(result.pod, result.nominated_node)
                self._binding.begin(result, entry.attempts, cycle)
                latest = self._queue.pod(entry.pod.uid) or entry.pod
                if not have_equal_demands(entry.pod, latest):
                    self._binding.revise(latest)
            case Conflicted():
                self._observer.attempt_ended(entry.pod, "conflict", seconds)
                why = result.refusal or "its node was taken"
                self._failures.retry(
                    entry.pod,
                    why,
                    is_reported=bool(result.refusal),
                    rejector=result.rejector,
                    condition_reason=result.condition_reason,
                )
            case Unplaced():
                self._observer.attempt_ended(entry.pod, "error" if result.is_error else "unschedulable", seconds)
                self._failures.requeue(result, budget=budget)

    def requeue_stale(self, entries: Sequence[QueuedPod], why: str, seconds: float) -> None:
        """Requeues the pods of an attempt whose inputs have changed."""
        for entry in entries:
            if self._queue.where(entry.pod.uid) is QueueState.LEAVING:  # deleted, or bound by another client
                self._queue.done(entry.pod.uid)
                continue
            self._observer.attempt_ended(entry.pod, "conflict", seconds)
            self._failures.retry(entry.pod, why)

    def release_gated(self) -> None:
        """Ends the nominations of gated pods, so that other pods may use the capacity."""
        self._failures.release_gated()

    def report_gated(self, moved: Moved) -> None:
        """Writes the condition of gated pods whose refusal changed."""
        self._failures.report_gated(moved)
