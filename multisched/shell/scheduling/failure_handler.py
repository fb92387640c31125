"""What becomes of a pod that was not placed: back into its queue, with a condition that says why.

As kube-scheduler's handleSchedulingFailure: for pods that no node took, and for placed pods whose bind failed.
"""

from __future__ import annotations

from typing import Final

from multisched.cycle.preemption.post_filter import CLEARED
from multisched.cycle.results import Unplaced
from multisched.framework.gangs import GANG_PLUGIN
from multisched.framework.ports import Condition, Event, pod_ref
from multisched.model.objects import Pod
from multisched.queueing.entry import NOBODY, Failure, Moved, Placement
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.transitions import Place
from multisched.shell.scheduling.intake import Intake
from multisched.shell.scheduling.nominations import DomainNominations
from multisched.shell.scheduling.ports import DomainPorts

UNSCHEDULABLE: Final = "Unschedulable"
"""The condition's reason that cluster autoscalers add nodes for."""
MEMBERS_AFTER_S: Final = 1.0
"""Members that wait for others hear of it after so long: a controller makes most gangs whole sooner."""
MEMBERS_MAX: Final = 32_768
"""More of them at once hear of it at once."""


class FailureHandler:
    """Of one domain. Owns the count of pods that were refused, and members of gangs that are to hear why they wait."""

    def __init__(self, queue: PodQueue, nominations: DomainNominations, intake: Intake, outside: DomainPorts) -> None:
        self.refused = 0
        self._queue = queue
        self._nominations = nominations
        self._intake = intake
        self._outside = outside
        self._members: dict[str, float] = {}
        """uid -> when to tell it, the soonest first."""

    def requeue(self, result: Unplaced, refusal: str = "") -> None:
        """Requeues a refused pod, and tells its owner why. `refusal`: what the API server's refusals have in common."""
        self.refused += 1
        pod = result.pod
        failure = Failure(
            result.rejectors, result.pending, is_error=result.is_error, message=result.message, refusal=refusal
        )
        placement, nominated = self._fail(result, failure)
        if placement.place is Place.ABSENT:
            return  # it was deleted meanwhile: no condition is left to write
        reason = result.condition_reason or ("SchedulerError" if result.is_error else UNSCHEDULABLE)
        self.report(pod, reason, placement.set_aside or result.message, nominated)
        self._intake.wake()

    def retry(
        self, pod: Pod, why: str, *, is_reported: bool = False, rejector: str = "", condition_reason: str = ""
    ) -> None:
        """What the decision was made of is no more: the pod is tried again, at once for the first few times.

        `is_reported`: its condition says why, since that may not be over at once. `rejector`: it is refused wherever it
        goes, so it keeps no nominated node, and after these times it waits for the events of this plugin. Empty: it backs
        off as after an error. `condition_reason`: as `Status.condition_reason`.
        """
        if rejector:
            failure = Failure(frozenset({rejector}), without_backoff=True, message=why)
            placement, nominated = self._fail(Unplaced(pod, why), failure)
        else:
            failure = Failure(NOBODY, without_backoff=True, message=why)
            placement, nominated = self._queue.fail(pod.uid, failure, self._outside.clock.monotonic()), None
        if is_reported and placement.place is not Place.ABSENT:
            self.report(pod, condition_reason or UNSCHEDULABLE, why, nominated)
        self._intake.wake()

    def _fail(self, result: Unplaced, failure: Failure) -> tuple[Placement, str | None]:
        """Back to its queue, with what the refusal makes of its nomination; what is to be written of that, if anything."""
        pod = result.pod
        nominated_before = self._nominations.node_of(pod.uid)
        nominated = self._nominations.nominate(result)
        placement = self._queue.fail(pod.uid, failure, self._outside.clock.monotonic())
        if nominated_before and nominated_before != self._nominations.node_of(pod.uid):
            self._nominations.nomination_ended(pod, nominated_before)
        return placement, nominated

    def report_gated(self, moved: Moved) -> None:
        """The condition of pods that a gate holds now with another refusal than before."""
        for pod, status in moved.gated:
            if not self._nominations.is_preempting(pod.uid):  # it has a better reason already than that it is held
                self.report_held(pod, status.plugin, status.message)

    def release_gated(self) -> None:
        """Ends the nominations of gated pods, here and on the API server."""
        for entry in self._nominations.release_gated():
            self.report(entry.pod, "SchedulingGated", entry.message, CLEARED)

    def report_held(self, pod: Pod, plugin: str, why: str) -> None:
        """What a pod that a gate holds gets: a condition. A member that waits for others of its gang gets it later, if it
        is still held then, with an event.

        As upstream, to be held by a gate of its own is no failure. That others are missing its owner can see nowhere else.
        """
        if plugin != GANG_PLUGIN:
            self.report(pod, "SchedulingGated", why)
        elif len(self._members) < MEMBERS_MAX:
            self._members.setdefault(pod.uid, self._outside.clock.monotonic() + MEMBERS_AFTER_S)
        else:
            self._report_member(pod, why)

    def report_members(self, now_s: float) -> None:
        """Tells members of gangs that have been held long enough what holds them now."""
        while self._members:
            uid, due_s = next(iter(self._members.items()))
            if due_s > now_s:
                return
            del self._members[uid]
            entry = self._queue.entry(uid)
            if entry is not None and entry.place is Place.GATED and not self._nominations.is_preempting(uid):
                self._report_member(entry.pod, entry.message)

    def _report_member(self, pod: Pod, why: str) -> None:
        self.report(pod, "SchedulingGated", why)
        self._record(pod, why)

    def report(self, pod: Pod, reason: str, message: str, nominated_node: str | None = None) -> None:
        """The condition and the event a refused pod gets; `nominated_node` as in `Condition`. Who does not lead tells nothing."""
        if not self._intake.is_leading:
            return
        condition = Condition("False", reason, message, nominated_node=nominated_node)
        ref = pod_ref(pod)
        self._outside.conditions.write(ref, condition, self._outside.lease)
        if reason != "SchedulingGated":
            self._record(pod, message)

    def _record(self, pod: Pod, message: str) -> None:
        if self._intake.is_leading:
            event = Event(pod_ref(pod), "Warning", "FailedScheduling", "Scheduling", message, pod.spec.scheduler_name)
            self._outside.events.record(event)
