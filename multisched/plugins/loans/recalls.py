"""Recalls: which pods of a borrower have a notice to give capacity back, and which notices have ended. No clock, no I/O.

Owned by the background task of the borrower. The ledger knows at any moment what pods hold beyond their loan; this adds only the time of
each notice. An annotation on the pod has it, too, so that the next leader continues the notices of this one.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from multisched.framework.context import PluginContext
from multisched.framework.objects_view import ObjectsView
from multisched.framework.run_times import RunTimes
from multisched.model.api_time import timestamp
from multisched.model.cluster_objects import Job
from multisched.model.job_progress import checkpoint_s, retries_left, zoned_seconds
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import CPU, PODS, Pod
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.loans.pools import Pool
from multisched.plugins.loans.terms import LoanTerms, ReturnTerms
from multisched.plugins.loans.victims import Unit, covers, least_loss

LOAN_NOTICE: Final = "multisched.io/loan-notice"
"""Annotation of a pod that has a notice: the earliest time of its eviction (RFC 3339)."""
BELIEVED_S: Final = 10.0
"""Time for which a new leader withdraws none of its predecessor's notices, until it knows what waiting pods need."""
RETRIES_SPARED: Final = 3
"""A pod whose job has at most this many retries left is evicted after others; each retry less counts ten times as much."""
FEW_RETRIES_ROOM: Final = 2
"""Multiple of the demand of such a pod that must be free for it to start on idle capacity."""
HOUR_S: Final = 3_600.0
OWNERS_MAX: Final = 10_000


class Notice(msgspec.Struct):
    """A notice to a pod that its capacity must be given back. Times are epoch seconds."""

    pod: Pod
    row: int
    loan: LoanTerms
    since_s: float
    why: str
    is_written: bool = False
    """The annotation was written, or cannot be written: the notice period has begun."""
    is_chosen: bool = False
    """A pod that must be evicted together with this one was evicted, so this one is evicted in any case."""
    evicted_s: float | None = None
    """When the eviction of the pod was sent."""
    removed_s: float | None = None
    """When the deletion of the pod was sent last."""
    reported_s: float = 0.0

    @property
    def returns(self) -> ReturnTerms:
        assert self.loan.returns is not None, "pods on a loan without a return get no notice"
        return self.loan.returns

    @property
    def due_s(self) -> float:
        """The earliest time of the eviction."""
        return self.since_s + self.returns.notice_s

    def is_due(self, now_s: float) -> bool:
        """Reports whether the notice period has ended."""
        return self.is_written and now_s >= self.due_s

    @property
    def overdue_s(self) -> float:
        """From this time on, the pod is deleted even if budgets protect it, or with a shorter grace period."""
        if self.evicted_s is not None:
            return self.evicted_s + self.returns.grace_s
        return self.since_s + self.returns.deadline_s - self.returns.grace_s

    @property
    def text(self) -> str:
        """The value of the pod's annotation."""
        return timestamp(datetime.fromtimestamp(self.due_s, UTC))


class Recall(msgspec.Struct):
    """Capacity of one row that must be returned."""

    pool: Pool
    loan: LoanTerms
    row: int
    since_s: float
    why: str
    excess: Mapping[str, int] = {}
    """As of the last check, with what leaving pods hold."""
    owed: dict[str, deque[tuple[float, int]]] = {}
    """Resource -> parts of the excess, each with the time at which it was recalled, the oldest first."""
    is_late: bool = False
    """A part of it has passed its deadline."""

    def update(self, excess: Mapping[str, int], now_s: float, deadline_s: float) -> None:
        """Sets the excess. Returned amounts are subtracted from the oldest parts; an increase is a new part with its own deadline."""
        for name in {*self.excess, *excess}:
            parts = self.owed.setdefault(name, deque())
            more = excess.get(name, 0) - self.excess.get(name, 0)
            if more > 0:
                parts.append((now_s, more))
            while more < 0 and parts:
                since_s, amount = parts.popleft()
                more += amount
                if more > 0:
                    parts.appendleft((since_s, more))
        self.excess = excess
        self.is_late |= any(parts and now_s > parts[0][0] + deadline_s for parts in self.owed.values())


class RecallCounts(msgspec.Struct):
    """Counts since the start."""

    recalls: int = 0
    late: int = 0
    """Recalls that were not complete at their deadline."""
    notices: int = 0
    withdrawn: int = 0
    """Notices withdrawn because other pods returned the capacity, or it was no longer needed."""
    evicted: int = 0
    removed: int = 0
    """Pods that were deleted although budgets protected them, or with a shorter grace period."""
    refused: int = 0
    """Refused evictions."""
    lost_core_s: float = 0.0


class Recalls:
    """The recalls of one borrowing domain."""

    def __init__(self, ledger: LoanLedger, context: PluginContext) -> None:
        self._ledger = ledger
        self._context = context
        self._run_times = context.shared.of(RunTimes)
        self.notices: dict[str, Notice] = {}
        self.open: dict[tuple[int, int], Recall] = {}
        """(number of the pool, row) -> the recall."""
        self.counts = RecallCounts()
        self._unremoved: dict[str, Notice] = {}
        """uid -> withdrawn notice whose annotation still has to be removed."""
        self._evictions: dict[str, deque[float]] = {}
        """uid of an owner -> when its pods were evicted within the last hour."""
        self._leads_since_s: float | None = None

    # -- leadership --------------------------------------------------------------------------------------------------

    def follow(self, *, leads: bool, now_s: float) -> bool:
        """Records whether the process leads; only a leader gives notices. Returns True if it has just taken over: call `adopt` next."""
        if not leads:
            self.notices.clear()
            self._unremoved.clear()
            self._leads_since_s = None
        elif self._leads_since_s is None:
            self._leads_since_s = now_s
            return True
        return False

    def adopt(self, pool: Pool, loan: LoanTerms, row: int, now_s: float) -> None:
        """Takes over the notices that the former leader wrote on pods of the row. Annotations that appear later are ignored: this process
        has its own record of the notices that it gave.
        """
        assert loan.returns is not None, "pods on a loan without a return get no notice"
        for pod in self._pods(pool, row):
            until_s = _notice_s(pod)
            if until_s is None or pod.uid in self.notices:
                continue
            since_s = min(now_s, until_s - loan.returns.notice_s)
            notice = Notice(pod, row, loan, since_s, "a former leader gave the notice", is_written=since_s < now_s)
            key = self._context.gangs.key_of(pod.uid)
            notice.is_chosen = key is not None and now_s >= notice.due_s and self._context.gangs.needs(key) > 0
            self.notices[pod.uid] = notice

    # -- one row -----------------------------------------------------------------------------------------------------

    def see(self, pool: Pool, loan: LoanTerms, row: int, excess: Mapping[str, int], why: str, now_s: float) -> None:
        """Handles what the pool holds beyond its loan on a row: gives notices if leaving pods and earlier notices do not free enough."""
        key = self._ledger.pools.index(pool), row
        recall = self.open.get(key)
        if recall is None:
            recall = self.open[key] = Recall(pool, loan, row, now_s, why)
            self.counts.recalls += 1
        pods = self._pods(pool, row)
        assert loan.returns is not None, "a loan without a return is not recalled"
        was_late = recall.is_late
        recall.update(excess, now_s, loan.returns.deadline_s)
        self.counts.late += recall.is_late and not was_late
        left = self._left(excess, pods)
        if not left or self._leads_since_s is None:
            return
        for whole in (False, True):
            units = self.units(pool, row, pods, left, now_s, whole=whole)
            if covers(units, left):
                break
        for unit in self._needing_notice(units, left, loan.returns.notice_s, now_s):
            for pod in unit.pods:
                self._give(pod, row, loan, why, now_s)

    def ended(self, keys: Iterable[tuple[int, int]]) -> None:
        """Ends the recalls of rows on which pods no longer hold more than the loan."""
        for key in keys:
            del self.open[key]

    def due(self, recall: Recall, now_s: float) -> list[list[Notice]]:
        """Returns the pods to evict now, with the least work lost, among those whose notice has ended. Each entry is evicted together."""
        pods = self._pods(recall.pool, recall.row)
        left = self._left(recall.excess, pods)
        if not left:
            return []
        for whole in (False, True):
            units = [
                unit
                for unit in self.units(recall.pool, recall.row, pods, left, now_s, whole=whole)
                if all((notice := self.notices.get(pod.uid)) and notice.is_due(now_s) for pod in unit.pods)
            ]
            if covers(units, left):
                break
        return [[self.notices[pod.uid] for pod in unit.pods] for unit in least_loss(units, left)]

    def withdraw_unneeded(self, now_s: float) -> list[Notice]:
        """Withdraws the notices of pods whose capacity is no longer needed. Returns the withdrawn notices whose annotation must be removed.

        Also forgets the notices of pods that are no longer on a node.
        """
        assert self._leads_since_s is not None, "only a leader writes"
        is_sure = now_s >= self._leads_since_s + BELIEVED_S
        needed = {uid for recall in self.open.values() for uid in self._ledger.holders(recall.pool, recall.row)}
        gangs = self._context.gangs
        if len(gangs):
            keys = {gangs.key_of(uid) for uid in needed if uid in self.notices} - {None}
            needed |= {uid for uid in self.notices if gangs.key_of(uid) in keys}
        for uid, notice in list(self.notices.items()):
            if self._context.hold.placed(uid) is None:
                del self.notices[uid]
            elif is_sure and uid not in needed and notice.evicted_s is None and not notice.is_chosen:
                del self.notices[uid]
                self.counts.withdrawn += 1
                self._unremoved[uid] = notice
        for uid in [uid for uid in self._unremoved if uid in self.notices or self._context.hold.placed(uid) is None]:
            del self._unremoved[uid]
        return list(self._unremoved.values())

    def withdrawn(self, notice: Notice) -> None:
        """Records that the pod's annotation was removed, or cannot be removed."""
        self._unremoved.pop(notice.pod.uid, None)

    def evicted(self, notice: Notice, now_s: float) -> None:
        """Counts an eviction that was sent."""
        notice.evicted_s = now_s
        self.counts.evicted += 1
        self.counts.lost_core_s += self._lost(notice.pod, now_s)
        owner = notice.pod.owner
        if owner is not None:
            if len(self._evictions) >= OWNERS_MAX:
                del self._evictions[next(iter(self._evictions))]
            self._evictions.setdefault(owner.uid, deque()).append(now_s)

    def units(
        self, pool: Pool, row: int, pods: Sequence[Pod], left: Mapping[str, int], now_s: float, *, whole: bool
    ) -> list[Unit]:
        """Returns the pods of the row that are not leaving, each with the pods that must be evicted with it.

        `whole`: gangs are evicted whole; else only members that their gangs can spare are returned.
        """
        gangs, units, seen = self._context.gangs, list[Unit](), set[str]()
        spare: dict[str, int] = {}
        for pod in pods:
            if pod.is_leaving or pod.uid in seen:
                continue
            key = gangs.key_of(pod.uid) if len(gangs) else None
            together = [pod]
            if key is not None and whole:
                members = map(self._context.hold.placed, gangs.placed_members(key))
                together = [one.pod for one in members if one is not None]
            elif key is not None:
                spare.setdefault(key, gangs.surplus(key))
                spare[key] -= 1
                if spare[key] < 0:
                    continue
            seen.update(one.uid for one in together)
            units.append(self._unit(pool, row, tuple(together), left, now_s))
        return units

    def _unit(self, pool: Pool, row: int, pods: tuple[Pod, ...], left: Mapping[str, int], now_s: float) -> Unit:
        frees: Counter[str] = Counter()
        for pod in pods:
            held = self._ledger.hold(pod.uid)
            if held is not None and held.row == row and self._ledger.pools[held.pool] is pool:
                frees.update({name: held.amounts.get(name, 0) for name in left if name != PODS})
                frees[PODS] += 1
        lost = sum(self._lost(pod, now_s) for pod in pods)
        return Unit(pods, frees, lost, sum(self._spared(pod, now_s) for pod in pods))

    def _lost(self, pod: Pod, now_s: float) -> float:
        return lost_core_s(pod, self._ledger.demand(pod).get(CPU, 0), now_s)

    def _spared(self, pod: Pod, now_s: float) -> int:
        """Returns the weight with which the pod is spared; 0 for most pods."""
        left = retries_of(pod, self._context.objects)
        if left is not None and left <= RETRIES_SPARED:
            return int(10 ** (RETRIES_SPARED - left))
        owner = pod.owner
        return int(owner is not None and self._evicted_last_hour(owner.uid, now_s) >= self._cap_of(pod))

    def _cap_of(self, pod: Pod) -> int:
        notice = self.notices.get(pod.uid)
        loans = [notice.loan] if notice is not None else [one.loan for one in self.open.values()]
        return min((loan.returns.evictions_per_owner for loan in loans if loan.returns is not None), default=1)

    def _evicted_last_hour(self, owner: str, now_s: float) -> int:
        times = self._evictions.get(owner)
        if times is None:
            return 0
        while times and times[0] <= now_s - HOUR_S:
            times.popleft()
        if not times:
            del self._evictions[owner]
        return len(times)

    def _needing_notice(
        self, units: Sequence[Unit], left: Mapping[str, int], notice_s: float, now_s: float
    ) -> list[Unit]:
        """Returns the units that need a new notice: those that will probably end in time, then those with the least loss."""
        rest = _without(left, [unit for unit in units if self._has_notice(unit)])
        if not rest:
            return []
        found, others = list[Unit](), list[Unit]()
        for unit in units:
            if not self._has_notice(unit):
                (found if self._ends(unit, notice_s, now_s) else others).append(unit)
        rest = _without(rest, found)
        return found + (least_loss(others, rest) if rest else [])

    def _has_notice(self, unit: Unit) -> bool:
        return all(pod.uid in self.notices for pod in unit.pods)

    def _ends(self, unit: Unit, within_s: float, now_s: float) -> bool:
        """Reports whether all pods of the unit will probably end by themselves, and free something."""
        times = [self._run_times.residual_s(pod, now_s) for pod in unit.pods]
        return any(unit.frees.values()) and all(left_s is not None and left_s <= within_s for left_s in times)

    def _give(self, pod: Pod, row: int, loan: LoanTerms, why: str, now_s: float) -> None:
        if pod.uid in self.notices:
            return
        self.notices[pod.uid] = Notice(pod, row, loan, now_s, why)
        self.counts.notices += 1

    def _pods(self, pool: Pool, row: int) -> list[Pod]:
        placed = map(self._context.hold.placed, self._ledger.holders(pool, row))
        return [one.pod for one in placed if one is not None]

    def _left(self, excess: Mapping[str, int], pods: Sequence[Pod]) -> dict[str, int]:
        """Returns the excess without what leaving pods hold."""
        left = dict(excess)
        for pod in pods:
            if pod.is_leaving and (held := self._ledger.hold(pod.uid)) is not None:
                for name in left:
                    left[name] -= 1 if name == PODS else held.amounts.get(name, 0)
        return {name: amount for name, amount in left.items() if amount > 0}


def retries_of(pod: Pod, objects: ObjectsView) -> int | None:
    """Returns how often the pod's job will still replace it after an eviction; None if that is not known, or not limited."""
    left, owner = retries_left(pod.annotations), pod.owner
    if owner is not None and owner.kind == "Job":
        job = objects.get(ObjectKind.JOB, pod.namespace, owner.name)
        if isinstance(job, Job) and job.uid == owner.uid and job.retries_left is not None:
            left = job.retries_left if left is None else min(left, job.retries_left)
    return left


def idle_room_factor(retries_left: int | None) -> int:
    """Returns how many times its demand must be free of idle capacity for a pod to start there.

    With few retries left it is more than once, so that there are other pods to give capacity back first.
    """
    return FEW_RETRIES_ROOM if retries_left is not None and retries_left <= RETRIES_SPARED else 1


def lost_core_s(pod: Pod, cpu_milli: int, now_s: float) -> float:
    """Returns the core-seconds of work that an eviction loses: since the start, or the last checkpoint that the job published."""
    return max(0.0, now_s - saved_until_s(pod)) * cpu_milli / 1000.0


def saved_until_s(pod: Pod) -> float:
    """Returns the time from which on work would be lost: the start, or a later checkpoint of the job. Infinite before the start."""
    if not pod.started_s:
        return math.inf
    return max(pod.started_s, checkpoint_s(pod.annotations) or 0.0)


def _notice_s(pod: Pod) -> float | None:
    """Returns the end of the notice on the pod; None if it has none, or one that cannot be read."""
    try:
        return zoned_seconds(pod.annotations[LOAN_NOTICE][:64]) if LOAN_NOTICE in pod.annotations else None
    except (ValueError, OverflowError):
        return None


def _without(left: Mapping[str, int], units: Iterable[Unit]) -> dict[str, int]:
    """Returns the excess that remains after these units are evicted; empty if they suffice."""
    units = tuple(units)
    if covers(units, left):
        return {}
    found = {name: amount - sum(unit.frees.get(name, 0) for unit in units) for name, amount in left.items()}
    return {name: amount for name, amount in found.items() if amount > 0}
