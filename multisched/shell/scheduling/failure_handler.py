"""Requeues pods that were not scheduled or whose bind failed, and writes a condition with the reason.

Source: kube-scheduler, handleSchedulingFailure.
"""

from __future__ import annotations

from typing import Final

from multisched.cycle.preemption.post_filter import CLEARED
from multisched.cycle.results import Unplaced
from multisched.framework.gangs import GANG_PLUGIN
from multisched.framework.ports import Condition, Event, pod_ref
from multisched.framework.step_budget import UNLIMITED, StepBudget
from multisched.model.objects import Pod
from multisched.queueing.entry import NO_PLUGINS, Failure, Moved, QueueOutcome
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.transitions import QueueState
from multisched.shell.scheduling.intake import Intake
from multisched.shell.scheduling.nominations import DomainNominations
from multisched.shell.scheduling.ports import DomainPorts

UNSCHEDULABLE: Final = "Unschedulable"
"""Condition reason for which cluster autoscalers add nodes."""
MEMBERS_AFTER_S: Final = 1.0
"""Delay of the condition of a member that waits for other members, because most gangs are complete sooner."""
MEMBERS_MAX: Final = 32_768
"""Maximum number of delayed conditions; beyond it, conditions are written without a delay."""


class FailureHandler:
    """Handles the failed attempts and binds of one domain. Owns the count of refusals and the delayed conditions of gang members."""

    def __init__(self, queue: PodQueue, nominations: DomainNominations, intake: Intake, ports: DomainPorts) -> None:
        self.refused = 0
        self._queue = queue
        self._nominations = nominations
        self._intake = intake
        self._ports = ports
        self._members: dict[str, float] = {}
        """uid -> time at which the pod's condition is due (monotonic seconds), the earliest first."""

    def requeue(self, result: Unplaced, refusal: str = "", budget: StepBudget = UNLIMITED) -> None:
        """Requeues a refused pod and reports the reason.

        `refusal`: if the API server denied the bind, its message without the node's name; else empty. `budget`: as for
        `PodQueue.fail`.
        """
        self.refused += 1
        pod = result.pod
        failure = Failure(
            result.rejectors, result.pending, is_error=result.is_error, message=result.message, refusal=refusal
        )
        placement, nominated = self._fail(result, failure, budget)
        if placement.state is QueueState.ABSENT:
            return  # deleted in the meantime: there is no condition to write
        reason = result.condition_reason or ("SchedulerError" if result.is_error else UNSCHEDULABLE)
        self.report(pod, reason, placement.quarantine_message or result.message, nominated)
        self._intake.wake()

    def retry(
        self, pod: Pod, why: str, *, is_reported: bool = False, rejector: str = "", condition_reason: str = ""
    ) -> None:
        """Requeues a pod whose decision became stale; the first few retries have no backoff.

        `is_reported`: also writes the condition, for causes that may last. `rejector`: plugin that rejects the pod on every
        node; the pod loses its nominated node, and after those retries it waits for events of this plugin. Empty: it backs
        off as after an error. `condition_reason`: as `Status.condition_reason`.
        """
        if rejector:
            failure = Failure(frozenset({rejector}), without_backoff=True, message=why)
            placement, nominated = self._fail(Unplaced(pod, why), failure)
        else:
            failure = Failure(NO_PLUGINS, without_backoff=True, message=why)
            placement, nominated = self._queue.fail(pod.uid, failure, self._ports.clock.monotonic()), None
        if is_reported and placement.state is not QueueState.ABSENT:
            self.report(pod, condition_reason or UNSCHEDULABLE, why, nominated)
        self._intake.wake()

    def _fail(
        self, result: Unplaced, failure: Failure, budget: StepBudget = UNLIMITED
    ) -> tuple[QueueOutcome, str | None]:
        """Updates the nomination and requeues the pod. Returns the queue's outcome and the nominated node to write (None: no write)."""
        pod = result.pod
        nominated_before = self._nominations.node_of(pod.uid)
        nominated = self._nominations.nominate(result)
        if self._nominations.node_of(pod.uid) not in ("", nominated_before):
            self._queue.found_node(pod.uid)
        placement = self._queue.fail(pod.uid, failure, self._ports.clock.monotonic(), budget)
        if nominated_before and nominated_before != self._nominations.node_of(pod.uid):
            self._nominations.nomination_ended(pod, nominated_before)
        return placement, nominated

    def report_gated(self, moved: Moved) -> None:
        """Writes the condition of gated pods whose refusal changed."""
        for pod, status in moved.gated:
            if not self._nominations.is_preempting(pod.uid):  # keeps the condition of the preemption
                self.report_held(pod, status.plugin, status.message)

    def release_gated(self) -> None:
        """Ends the nominations of gated pods, in memory and on the API server."""
        for entry in self._nominations.release_gated():
            self.report(entry.pod, "SchedulingGated", entry.message, CLEARED)

    def report_held(self, pod: Pod, plugin: str, why: str) -> None:
        """Writes the condition of a gated pod. For a member that waits for other members the write is delayed and also records an event.

        As upstream, a scheduling gate is no failure and has no event. A wait for members has one, so that the pod's owner sees it.
        """
        if plugin != GANG_PLUGIN:
            self.report(pod, "SchedulingGated", why)
        elif len(self._members) < MEMBERS_MAX:
            self._members.setdefault(pod.uid, self._ports.clock.monotonic() + MEMBERS_AFTER_S)
        else:
            self._report_member(pod, why)

    def report_members(self, now_s: float) -> None:
        """Writes the delayed conditions that are due by `now_s`, with the current reason."""
        while self._members:
            uid, due_s = next(iter(self._members.items()))
            if due_s > now_s:
                return
            del self._members[uid]
            entry = self._queue.entry(uid)
            if entry is not None and entry.state is QueueState.GATED and not self._nominations.is_preempting(uid):
                self._report_member(entry.pod, entry.message)

    def _report_member(self, pod: Pod, why: str) -> None:
        self.report(pod, "SchedulingGated", why)
        self._record(pod, why)

    def report(self, pod: Pod, reason: str, message: str, nominated_node: str | None = None) -> None:
        """Writes condition and event of a refused pod if this process leads the domain. `nominated_node`: see `Condition`."""
        if not self._intake.is_leading:
            return
        condition = Condition("False", reason, message, nominated_node=nominated_node)
        ref = pod_ref(pod)
        self._ports.conditions.write(ref, condition, self._ports.lease)
        if reason != "SchedulingGated":
            self._record(pod, message)

    def _record(self, pod: Pod, message: str) -> None:
        if self._intake.is_leading:
            event = Event(pod_ref(pod), "Warning", "FailedScheduling", "Scheduling", message, pod.spec.scheduler_name)
            self._ports.events.record(event)
