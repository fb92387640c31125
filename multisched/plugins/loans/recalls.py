"""Recalls: the notices of a borrower's pods, which will be evicted because their lent capacity must be returned. No clock, no I/O.

Owned by the background task of the borrower. The loan ledger computes how much pods hold beyond their loan; this module adds only the
time of each notice. The time is also in an annotation of the pod, so that a new leader can continue the notices of the former one.
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
KEEP_NOTICES_S: Final = 10.0
"""For this time a new leader withdraws no notices of its predecessor, because it does not know yet what waiting pods need."""
RETRIES_SPARED: Final = 3
"""Pods whose jobs have at most this many retries left are evicted after other pods. Each retry less multiplies the weight by ten."""
FEW_RETRIES_FACTOR: Final = 2
"""A pod with at most RETRIES_SPARED retries starts on idle capacity only if this multiple of its demand is free."""
HOUR_S: Final = 3_600.0
OWNERS_MAX: Final = 10_000


class Notice(msgspec.Struct):
    """A notice that a pod will be evicted, because its capacity must be returned. Times are epoch seconds."""

    pod: Pod
    row: int
    loan: LoanTerms
    since_s: float
    why: str
    is_written: bool = False
    """The notice period has begun: the annotation was written, or the API server refused it for good."""
    is_chosen: bool = False
    """This pod must be evicted in any case, because a pod that must be evicted together with it was evicted."""
    evicted_s: float | None = None
    """When the eviction of the pod was sent, by the Eviction API, which respects PodDisruptionBudgets; None: not yet."""
    deleted_s: float | None = None
    """When the deletion of the overdue pod was last sent, which ignores PodDisruptionBudgets; None: never."""
    reported_s: float = 0.0
    """When a refused eviction of the pod was last reported."""

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
        """The time from which on the pod is deleted without regard to PodDisruptionBudgets and with a shorter grace period."""
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
    """Resource -> amount held beyond the loan at the last check, including that of terminating pods."""
    owed: dict[str, deque[tuple[float, int]]] = {}
    """Resource -> parts of the excess, the oldest first: the time at which each was recalled, and its amount."""
    is_late: bool = False
    """At least one part was not returned by its deadline."""

    def update(self, excess: Mapping[str, int], now_s: float, deadline_s: float) -> None:
        """Sets the excess. A decrease is subtracted from the oldest parts; an increase is a new part with its own deadline."""
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
    """Counts since the start of the process."""

    recalls: int = 0
    late: int = 0
    """Recalls of which at least one part was not returned by its deadline."""
    notices: int = 0
    withdrawn: int = 0
    """Notices withdrawn because other pods returned the capacity, or it was no longer needed."""
    evicted: int = 0
    deleted: int = 0
    """Pods deleted after `Notice.overdue_s`. They are counted in `evicted`, too."""
    refused: int = 0
    """Evictions that the API server or a PodDisruptionBudget refused."""
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
        self._withdrawn: dict[str, Notice] = {}
        """uid -> withdrawn notice whose annotation must still be removed from the pod."""
        self._evictions: dict[str, deque[float]] = {}
        """uid of an owner -> times at which its pods were evicted within the last hour."""
        self._leads_since_s: float | None = None
        """None while this process does not lead the borrower."""

    # -- leadership --------------------------------------------------------------------------------------------------

    def set_leading(self, *, leads: bool, now_s: float) -> bool:
        """Records whether the process leads: only a leader gives notices. Returns True after a takeover; the caller then calls `adopt`."""
        if not leads:
            self.notices.clear()
            self._withdrawn.clear()
            self._leads_since_s = None
        elif self._leads_since_s is None:
            self._leads_since_s = now_s
            return True
        return False

    def adopt(self, pool: Pool, loan: LoanTerms, row: int, now_s: float) -> None:
        """Takes over the notices that the former leader wrote on pods of the row.

        Annotations that appear later are ignored, because this process keeps the notices that it gives in memory.
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

    def update(self, pool: Pool, loan: LoanTerms, row: int, excess: Mapping[str, int], why: str, now_s: float) -> None:
        """Updates the recall of a row on which the pool holds `excess` beyond its loan. `why`: the reason, for the pods' events.

        Gives notices if terminating pods and pods with a notice free too little.
        """
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
        left = self._remaining(excess, pods)
        if not left or self._leads_since_s is None:
            return
        for whole in (False, True):
            units = self.units(pool, row, pods, left, now_s, whole=whole)
            if covers(units, left):
                break
        for unit in self._needing_notice(units, left, loan.returns.notice_s, now_s):
            for pod in unit.pods:
                self._give_notice(pod, row, loan, why, now_s)

    def remove_complete(self, keys: Iterable[tuple[int, int]]) -> None:
        """Removes recalls (number of the pool, row) that are complete: pods no longer hold more than the loan."""
        for key in keys:
            del self.open[key]

    def due(self, recall: Recall, now_s: float) -> list[list[Notice]]:
        """Returns the pods to evict now: of those whose notice has ended, the set that loses the least work.

        The pods of one inner list must be evicted together.
        """
        pods = self._pods(recall.pool, recall.row)
        left = self._remaining(recall.excess, pods)
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
        """Withdraws notices of pods on rows without a recall. Returns all withdrawn notices whose annotation must still be removed.

        Also forgets the notices of pods that are no longer on a node.
        """
        assert self._leads_since_s is not None, "only a leader writes"
        is_sure = now_s >= self._leads_since_s + KEEP_NOTICES_S
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
                self._withdrawn[uid] = notice
        for uid in [uid for uid in self._withdrawn if uid in self.notices or self._context.hold.placed(uid) is None]:
            del self._withdrawn[uid]
        return list(self._withdrawn.values())

    def on_annotation_removed(self, notice: Notice) -> None:
        """Records that the annotation of a withdrawn notice was removed, or that the API server refused its removal for good."""
        self._withdrawn.pop(notice.pod.uid, None)

    def on_eviction_sent(self, notice: Notice, now_s: float) -> None:
        """Records that the pod's eviction was sent, with the work that it loses."""
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
        """Returns the units in which pods of the row can be evicted, without terminating pods.

        `whole`: a unit is a whole gang; otherwise a unit is one pod, and members that their gang's minimum needs are left out.
        `left`: the excess to free. Only these resources, and the number of pods, count in `Unit.frees`.
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
        """Returns the pod's part of `Unit.spared`: 0 for most pods; more if few retries are left, or its owner recently lost many pods."""
        left = retries_of(pod, self._context.objects)
        if left is not None and left <= RETRIES_SPARED:
            return int(10 ** (RETRIES_SPARED - left))
        owner = pod.owner
        return int(owner is not None and self._evicted_last_hour(owner.uid, now_s) >= self._evictions_per_owner(pod))

    def _evictions_per_owner(self, pod: Pod) -> int:
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
        """Returns the units that need a notice, so that all units with a notice together free at least `left`.

        Includes all units that will probably complete within the notice period; the others are those that lose the least work.
        """
        rest = _remaining_without(left, [unit for unit in units if self._has_notice(unit)])
        if not rest:
            return []
        found, others = list[Unit](), list[Unit]()
        for unit in units:
            if not self._has_notice(unit):
                (found if self._will_complete(unit, notice_s, now_s) else others).append(unit)
        rest = _remaining_without(rest, found)
        return found + (least_loss(others, rest) if rest else [])

    def _has_notice(self, unit: Unit) -> bool:
        return all(pod.uid in self.notices for pod in unit.pods)

    def _will_complete(self, unit: Unit, within_s: float, now_s: float) -> bool:
        """Reports whether the unit frees something and all its pods will probably complete within this time."""
        times = [self._run_times.residual_s(pod, now_s) for pod in unit.pods]
        return any(unit.frees.values()) and all(left_s is not None and left_s <= within_s for left_s in times)

    def _give_notice(self, pod: Pod, row: int, loan: LoanTerms, why: str, now_s: float) -> None:
        if pod.uid in self.notices:
            return
        self.notices[pod.uid] = Notice(pod, row, loan, now_s, why)
        self.counts.notices += 1

    def _pods(self, pool: Pool, row: int) -> list[Pod]:
        placed = map(self._context.hold.placed, self._ledger.holders(pool, row))
        return [one.pod for one in placed if one is not None]

    def _remaining(self, excess: Mapping[str, int], pods: Sequence[Pod]) -> dict[str, int]:
        """Returns the excess that remains when all terminating pods have ended."""
        left = dict(excess)
        for pod in pods:
            if pod.is_leaving and (held := self._ledger.hold(pod.uid)) is not None:
                for name in left:
                    left[name] -= 1 if name == PODS else held.amounts.get(name, 0)
        return {name: amount for name, amount in left.items() if amount > 0}


def retries_of(pod: Pod, objects: ObjectsView) -> int | None:
    """Returns how many more times the pod's job will replace it after an eviction; None if that is unknown or unlimited."""
    left, owner = retries_left(pod.annotations), pod.owner
    if owner is not None and owner.kind == "Job":
        job = objects.get(ObjectKind.JOB, pod.namespace, owner.name)
        if isinstance(job, Job) and job.uid == owner.uid and job.retries_left is not None:
            left = job.retries_left if left is None else min(left, job.retries_left)
    return left


def idle_room_factor(retries_left: int | None) -> int:
    """Returns the multiple of a pod's demand that must be free for it to start on idle capacity.

    It is more than 1 if few retries are left: other pods can then start in the rest, and are evicted before this one.
    """
    return FEW_RETRIES_FACTOR if retries_left is not None and retries_left <= RETRIES_SPARED else 1


def lost_core_s(pod: Pod, cpu_milli: int, now_s: float) -> float:
    """Returns the core-seconds of work that an eviction loses, since the pod's start or its job's last published checkpoint."""
    return max(0.0, now_s - saved_until_s(pod)) * cpu_milli / 1000.0


def saved_until_s(pod: Pod) -> float:
    """Returns the time since which an eviction loses work: the pod's start or a later checkpoint of its job; infinite before the start."""
    if not pod.started_s:
        return math.inf
    return max(pod.started_s, checkpoint_s(pod.annotations) or 0.0)


def _notice_s(pod: Pod) -> float | None:
    """Returns the eviction time in the pod's annotation; None if the annotation is missing or invalid."""
    try:
        return zoned_seconds(pod.annotations[LOAN_NOTICE][:64]) if LOAN_NOTICE in pod.annotations else None
    except (ValueError, OverflowError):
        return None


def _remaining_without(left: Mapping[str, int], units: Iterable[Unit]) -> dict[str, int]:
    """Returns the excess that remains after these units are evicted; empty if they suffice."""
    units = tuple(units)
    if covers(units, left):
        return {}
    found = {name: amount - sum(unit.frees.get(name, 0) for unit in units) for name, amount in left.items()}
    return {name: amount for name, amount in found.items() if amount > 0}
