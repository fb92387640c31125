"""Checks the attempts of one domain when they begin and end: the order of pops, whether a refusal is correct, and the backoff.

Wraps the domain's queue. All expected values are computed here from calls and results alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from domains.job.deadlines.deadline import ANNOTATION
from domains.job.deadlines.deadline_sort import DeadlineSort
from multisched.config.schema import Queue
from multisched.framework.gangs import GANG_PLUGIN
from multisched.framework.points import Queued, QueuedGang, QueuedPod
from multisched.framework.registry import PluginSet
from multisched.framework.step_budget import UNLIMITED, StepBudget
from multisched.model.objects import Pod, PodSpec
from multisched.queueing.entry import Failure, QueueEntry, QueueOutcome
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.requeue_judge import CONFLICTS_IN_A_ROW
from multisched.queueing.transitions import QueueState
from multisched.shell.scheduling.long_attempts import LongAttempts
from tests.kit.checkers.process.feasible_nodes import FeasibleNodes, is_judged
from tests.kit.checkers.process.gang_fit import GangFit

TURNS_EVERY: Final = 3
"""Every n-th pop is compared with the other active pods."""
REFUSALS_EVERY: Final = 3
"""Every n-th refusal is compared with what was observed."""
EXACT_S: Final = 1e-6
LEAD_ATTEMPTS, UNIT_S = 17.0, 0.0005
"""How many more units retries may have used than first attempts that wait (ARCHITECTURE.md, shares): 16 attempts and the one in
progress. An attempt of up to UNIT_S seconds counts as one unit, a longer one in proportion.
"""
WINDOW_S: Final = 1.0
"""As in `queueing/backoff.py` and kube-scheduler: backoffs that end in the same second end together."""


@dataclass(slots=True)
class _PodAttempts:
    """The attempts of one pod so far."""

    conflicts: int = 0
    errors: int = 0
    refusals: int = 0
    failed_s: float = 0.0

    @property
    def is_retry(self) -> bool:
        """A conflict is not a refusal."""
        return bool(self.errors or self.refusals)

    def failed(self, failure: Failure, now_s: float) -> int:
        """Counts a failure. Returns the number of failures that determines the backoff; 0 for no backoff."""
        self.failed_s = now_s
        if failure.without_backoff and self.conflicts < CONFLICTS_IN_A_ROW:
            self.conflicts += 1
            return 0
        self.conflicts = 0
        if failure.is_error or not (failure.rejectors or failure.pending):
            self.errors += 1
            return self.errors
        self.errors = 0
        self.refusals += 1
        return self.refusals


@dataclass(slots=True)
class _PopCounts:
    """Units that were popped from the queue, to measure how long a first attempt waits."""

    firsts: float = 0.0
    """Units of first attempts."""
    retries: float = 0.0
    of: Counter[str] = field(default_factory=Counter)
    """Namespace -> units of its retries."""

    def before(self, namespace: str) -> tuple[float, float]:
        """Returns units of first attempts, and of retries of other namespaces."""
        return self.firsts, self.retries - self.of[namespace]


@dataclass(slots=True)
class AttemptChecker:
    """The attempts of one domain in one process."""

    name: str
    queue: PodQueue
    settings: Queue
    report_violation: Callable[[str], None]
    feasible: FeasibleNodes | None
    judged: frozenset[str] = frozenset()
    """Plugins whose refusals depend only on what was observed."""
    gangs: GangFit | None = None
    """Reports whether members fit with their gangs; None if `feasible` is None, or without gangs."""
    long_attempts: LongAttempts | None = None
    """None if `feasible` is None."""
    sorts_by_deadline: bool = False
    """Pods are in the order of their deadlines; those without one, of their creation. `UnitHistory` judges deadlines."""
    _attempts_of: dict[str, _PodAttempts] = field(default_factory=dict)
    _pops: int = 0
    _refused: int = 0
    _pop_counts: _PopCounts = field(default_factory=_PopCounts)
    _waiting: dict[str, tuple[float, float]] = field(default_factory=dict)
    """uid of a pod without an attempt -> units that had been popped when it was added."""

    def follow(self, plugins: PluginSet, settings: Queue) -> None:
        """Uses the profile and the backoffs now in force."""
        self.settings = settings
        self.judged = frozenset(one.name for one in (*plugins.pre_filter, *plugins.filter))
        self.sorts_by_deadline = any(use.plugin.name == DeadlineSort.name for use in plugins.built)

    def begin(self) -> AttemptChecker:
        """Wraps the methods of the queue."""
        fail, pop, add, charge = self.queue.fail, self.queue.pop, self.queue.add, self.queue.charge_attempt

        def checked_add(pod: Pod, now_s: float) -> QueueOutcome:
            is_new = pod.uid not in self.queue
            placement = add(pod, now_s)
            if is_new and placement.state is QueueState.ACTIVE:
                self._waiting[pod.uid] = self._pop_counts.before(pod.namespace)
            return placement

        def checked_charge(uid: str, seconds: float) -> None:
            if not self._is_retry(uid, 1):
                self._pop_counts.firsts += max(seconds / UNIT_S - 1.0, 0.0)
            charge(uid, seconds)

        def checked_fail(uid: str, failure: Failure, now_s: float, budget: StepBudget = UNLIMITED) -> QueueOutcome:
            placement = fail(uid, failure, now_s, budget)
            self._ended(uid, failure, placement, now_s)
            return placement

        def checked_pop(now_s: float, like: PodSpec | None = None) -> Queued | None:
            self._pops += 1
            is_checked = not self._pops % TURNS_EVERY
            is_early = is_checked and next(self.queue.entries(QueueState.ACTIVE), None) is None
            backing_off = list(self.queue.entries(QueueState.BACKOFF)) if is_early else []
            ends_s = {entry.uid: entry.retry_at_s or 0.0 for entry in backing_off}
            popped = pop(now_s, like)
            if isinstance(popped, QueuedGang):
                if self.gangs is not None:
                    self.gangs.popped(popped)
                lead = popped.members[0]
                self._pop_counts.firsts += not self._is_retry(lead.pod.uid, lead.attempts - 1)
                return popped
            if popped is not None:
                self._count_turn(popped)
            if popped is not None and is_checked:
                self._check_turn(popped)
                if ends_s.get(popped.pod.uid, now_s) > now_s:
                    # A pop regroups gangs first: a member in backoff may follow another member now.
                    still = {one.uid for one in self.queue.entries(QueueState.BACKOFF)}
                    self._check_early(popped, [one for one in backing_off if one.uid in still], ends_s)
            return popped

        self.queue.fail = checked_fail  # type: ignore[method-assign]
        self.queue.pop = checked_pop  # type: ignore[method-assign]
        self.queue.add = checked_add  # type: ignore[method-assign]
        self.queue.charge_attempt = checked_charge  # type: ignore[method-assign]
        return self

    # -- order of pops ---------------------------------------------------------------------------------------------

    def _count_turn(self, popped: QueuedPod) -> None:
        """Counts a pop. While a pod waits for its first attempt, retries of other namespaces may use as many units as first
        attempts, plus `LEAD_ATTEMPTS`.
        """
        pod = popped.pod
        came = self._waiting.pop(pod.uid, None)
        if self._is_retry(pod.uid, popped.attempts - 1):
            self._pop_counts.retries += 1
            self._pop_counts.of[pod.namespace] += 1
            return
        if came is not None and popped.attempts == 1:
            firsts, retries = (
                now - then for now, then in zip(self._pop_counts.before(pod.namespace), came, strict=True)
            )
            if retries > firsts + LEAD_ATTEMPTS:
                found = f"{retries:.0f} retries of other namespaces, and {firsts:.0f} first attempts"
                self.report_violation(f"I3: {pod.key} was tried for the first time after {found}")
        self._pop_counts.firsts += 1

    def _check_turn(self, popped: QueuedPod) -> None:
        """Checks that no active pod of the same namespace and kind (first attempt or retry) was before the popped pod
        (`active_pods`).
        """
        is_retry = self._is_retry(popped.pod.uid, popped.attempts - 1)
        for other in self.queue.entries(QueueState.ACTIVE):
            has_equal_state = self._is_retry(other.uid, other.attempts) == is_retry
            is_kin = other.pod.namespace == popped.pod.namespace and has_equal_state
            if is_kin and self._is_before(other, popped):
                self.report_violation(
                    f"I3: {popped.pod.key} had its turn before {other.pod.key}, which was in front of it"
                )
                return

    def _check_early(self, popped: QueuedPod, backing_off: Sequence[QueueEntry], ends_s: Mapping[str, float]) -> None:
        """Checks the order of pods that are popped before their backoff ends: by the second in which it ends, then by priority."""
        mine = ends_s[popped.pod.uid] // WINDOW_S, -popped.pod.spec.priority
        for other in backing_off:
            record = self._attempts_of.get(other.uid)
            theirs = ends_s[other.uid] // WINDOW_S, -other.pod.spec.priority
            may_be_early = (
                record is not None and not record.errors and not record.conflicts and not other.waits_out_backoff
            )
            if may_be_early and theirs < mine:
                self.report_violation(
                    f"I3: {popped.pod.key} was tried early, before {other.pod.key}, which was in front of it"
                )
                return

    def _is_retry(self, uid: str, attempts: int) -> bool:
        record = self._attempts_of.get(uid)
        return record is not None and attempts > 0 and record.is_retry

    def _is_before(self, other: QueueEntry, popped: QueuedPod) -> bool:
        mine, theirs = popped.pod.spec, other.pod.spec
        if mine.priority != theirs.priority:
            return theirs.priority > mine.priority
        if self.sorts_by_deadline:
            has_deadline = any(_may_have_deadline(pod) for pod in (other.pod, popped.pod))
            return not has_deadline and other.pod.created_s < popped.pod.created_s
        if not other.attempts:
            came_s = other.added_s
        elif other.uid in self._attempts_of:
            came_s = self._attempts_of[other.uid].failed_s
        else:
            return False
        record = self._attempts_of.get(popped.pod.uid) if popped.attempts > 1 else None
        since_s = record.failed_s if record is not None else popped.queued_s
        return mine.qos == theirs.qos and came_s < since_s - EXACT_S

    # -- refusals --------------------------------------------------------------------------------------------------

    def _ended(self, uid: str, failure: Failure, placement: QueueOutcome, now_s: float) -> None:
        entry, tried = self.queue.entry(uid), self.gangs.tried_with(uid) if self.gangs is not None else ()
        if entry is None:
            self._attempts_of.pop(uid, None)
            return
        if entry.attempts == 1:
            self._attempts_of[uid] = _PodAttempts()
        record = self._attempts_of.get(uid)
        if record is not None:
            self._check_backoff(entry, record.failed(failure, now_s), placement, now_s)
        by = failure.rejectors - {GANG_PLUGIN} if tried else failure.rejectors
        is_refusal = failure.rejectors and self.judged.issuperset(by)
        if self.long_attempts is not None and any(one.pod.uid == uid for one in self.long_attempts.entries):
            return  # it was decided before its last pauses; its time in the queue is checked
        if self.feasible is not None and is_refusal and not failure.is_error and not failure.pending:
            is_tried_anew = failure.without_backoff and placement.state is QueueState.ACTIVE
            self._check_refusal(self.feasible, entry.pod, failure, tried, is_tried_anew=is_tried_anew)

    def _check_refusal(
        self, feasible: FeasibleNodes, pod: Pod, failure: Failure, tried: Sequence[Pod], *, is_tried_anew: bool
    ) -> None:
        """Checks that no node takes the pod, and, unless it is nominated, that none would after evicting all less important pods.

        `tried`: the members of its gang that were tried with it; they are judged together while the gang lacks members.
        `is_tried_anew`: the decision was a conflict at the commit, and the pod is tried again first; it preempts only then.
        """
        self._refused += 1
        if self.gangs is not None and self.gangs.lacking(pod.uid):
            # Without other members it was tried alone, before its gang lacked it.
            if tried and not self._refused % REFUSALS_EVERY:
                self.gangs.check_refusal(pod, tried, failure.message)
            return
        nodes = feasible.nodes_of(self.name) if is_judged(pod) and not self._refused % REFUSALS_EVERY else None
        node = nodes.node_for(pod) if nodes is not None else ""
        if node:
            self.report_violation(f"I3: {pod.key} was refused, and {node} takes it ({failure.message[:80]})")
        if nodes is None or is_tried_anew or feasible.is_nominated(pod):
            return
        node = nodes.node_by_preemption(pod)
        if node:
            self.report_violation(
                f"I3: {pod.key} preempts nobody, and {node} takes it without ({failure.message[-80:]})"
            )

    def _check_backoff(self, entry: QueueEntry, failures: int, placement: QueueOutcome, now_s: float) -> None:
        if placement.state is not QueueState.BACKOFF or not failures or entry.retry_at_s is None:
            return
        least_s, most_s = self.settings.initial_backoff_s, self.settings.max_backoff_s
        waits_s = min(least_s * 2 ** (min(failures, 60) - 1), most_s)
        until_s = entry.retry_at_s - now_s
        # A gang that held capacity and failed also waits for pods that were refused meanwhile.
        longest_s = max(waits_s, most_s + WINDOW_S) if entry.waits_out_backoff else waits_s
        if not waits_s - EXACT_S <= until_s <= longest_s + EXACT_S:
            found = f"{entry.retry_at_s - now_s:.2f} s after {failures} failures, not for {waits_s:.2f} s"
            self.report_violation(f"I3: {entry.pod.key} backs off for {found}")


def _may_have_deadline(pod: Pod) -> bool:
    return ANNOTATION in pod.annotations or (pod.owner is not None and pod.owner.kind == "Job")
