"""Decides how an entry is requeued: after a failed attempt, and after an update of its pod.

Counts the failures of an entry and sets its backoff; calls the hints for events since the pop. It only decides:
`PodQueue`, its only caller, moves the entry. Source: kube-scheduler 1.36, scheduling_queue.go, isPodWorthRequeuing.
"""

from __future__ import annotations

from typing import Any, Final

from multisched.framework.events import ATTEMPT_UNDONE, ClusterEvent
from multisched.framework.step_budget import StepBudget
from multisched.model.objects import Pod
from multisched.queueing.backoff import BackoffPolicy
from multisched.queueing.entry import NO_PLUGINS, Entry, Failure
from multisched.queueing.events_in_flight import EventsInFlight, RecordedEvent
from multisched.queueing.gang_entries import GangEntries
from multisched.queueing.hints import HintTable, Requeue, is_wildcard
from multisched.queueing.quarantine import API_SERVER
from multisched.queueing.transitions import QueueState

CONFLICTS_IN_A_ROW = 3
"""Consecutive commit conflicts after which a pod is requeued to active at once; the next one counts as any other failure."""

EVENTS_PER_CHECK: Final = 64
"""Events that are checked for an entry before the budget of the step is looked at: a millisecond or two."""

BY_SERVER: Final = frozenset({API_SERVER})
"""The rejectors of a quarantined entry."""


class RequeueJudge:
    """Decides how an entry is requeued; the caller moves it."""

    __slots__ = ("_events", "_gangs", "_hints", "policy")

    def __init__(self, hints: HintTable, events: EventsInFlight, gangs: GangEntries, policy: BackoffPolicy) -> None:
        """`events` and `gangs`: read only."""
        self._gangs = gangs
        self._hints = hints
        self._events = events
        self.policy = policy
        """For failures from now on."""

    def after_failure(self, entry: Entry, failure: Failure, now_s: float, budget: StepBudget) -> Requeue:
        """Counts the failure, sets the backoff, and checks the events since the pop.

        `budget`: when it is spent, the events that are left count as one that may help.
        """
        entry.rejectors = entry.pending = NO_PLUGINS
        has_new_follower, entry.has_new_follower = entry.has_new_follower, False
        if failure.without_backoff and entry.conflicts < CONFLICTS_IN_A_ROW:
            entry.conflicts += 1
            entry.backoff_until_s = now_s
            return Requeue.AT_ONCE
        entry.conflicts = 0
        is_error = failure.is_error or not (failure.rejectors or failure.pending)
        if is_error:
            entry.errors += 1
            if failure.refusal and entry.note_refusal(failure.refusal):
                entry.rejectors, is_error = BY_SERVER, False
        else:
            entry.errors, entry.refusals = 0, entry.refusals + 1
            entry.rejectors, entry.pending = failure.rejectors, failure.pending
        entry.backoff_until_s = now_s + self.policy.duration_s(entry.errors or entry.refusals)
        if is_error or has_new_follower or self._gangs.follows_queued_lead(entry):
            return Requeue.AFTER_BACKOFF
        return self._missed(entry, budget)

    def after_update(self, entry: Entry, event: ClusterEvent, known: Pod) -> Requeue:
        """Decides after an update of a parked entry's pod; `known` is the old version. For a gated entry the gates always run again."""
        if entry.state is not QueueState.UNSCHEDULABLE:
            return Requeue.AFTER_BACKOFF
        listeners = self._hints.listeners(event, entry.rejectors | entry.pending)
        return _alone(self._hints.decide(event, listeners, entry.pending, entry.pod, known, entry.pod))

    def _is_own(self, entry: Entry, undone: RecordedEvent) -> bool:
        """Reports whether the undone attempt was that of the entry's own gang."""
        return isinstance(undone.old, Pod) and undone.old.uid in self._gangs.uids_with(entry.uid)

    def _missed(self, entry: Entry, budget: StepBudget) -> Requeue:
        """Returns the strongest result of the hints for all events since the pop; an overflow of the log counts as an event.

        If only another attempt's undone assumptions may have helped, a gang waits until its backoff ends: otherwise two
        attempts that undo each other would alternate without a pause. A single pod assumes nothing during its attempt,
        so it need not wait.
        """
        plugins, pending = entry.rejectors | entry.pending, entry.pending
        since = self._events.since(entry.uid)
        how = Requeue.AFTER_BACKOFF if since.is_incomplete else Requeue.SKIP
        if since.anything and (easy := self._hints.woken_by_anything(plugins)):
            how = Requeue.AT_ONCE if easy & pending else Requeue.AFTER_BACKOFF
        strongest = Requeue.AT_ONCE if pending else Requeue.AFTER_BACKOFF
        listeners: dict[int, Any] = {}
        is_undone = False
        for number, happened in enumerate(since.events, 1):
            if how is strongest:
                break
            if number % EVENTS_PER_CHECK == 0 and budget.is_spent():
                how = max(how, Requeue.AFTER_BACKOFF)
                break
            event = happened.event
            is_of_undone = event.label == ATTEMPT_UNDONE.label  # by label: another domain's event is another object
            if is_of_undone and (is_undone or (event is ATTEMPT_UNDONE and self._is_own(entry, happened))):
                continue  # one is enough, and an attempt of hundreds of members that is undone causes hundreds of events
            if is_wildcard(event):
                how = max(how, Requeue.AFTER_BACKOFF)
                continue
            if (heard := listeners.get(id(event))) is None:
                heard = listeners[id(event)] = self._hints.listeners(event, plugins)
            if heard:
                answer = self._hints.decide(event, heard, pending, entry.pod, happened.old, happened.new)
                if is_of_undone:
                    is_undone = answer is not Requeue.SKIP
                else:
                    how = max(how, answer)
        if how is not Requeue.SKIP or not is_undone:
            return _alone(how)
        entry.waits_out_backoff = self._gangs.must_start_together(entry.uid)
        return Requeue.AFTER_BACKOFF


def _alone(how: Requeue) -> Requeue:
    """Returns the result for a single entry: it is the one."""
    return Requeue.AT_ONCE if how is Requeue.ONE else how
