"""One run of simulated days: idle capacity of a fleet is lent to jobs, and recalled.

Offers, what may be held, recalls and the choice of pods are those of the product (`multisched.plugins.loans`). Nodes are chosen here:
each job uses the node that lends most.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

import msgspec
import numpy as np

from domains.job.deadlines.deadline_sort import DeadlineSort
from domains.job.simulation.loans.fleet import Floats, Lender
from domains.job.simulation.loans.offline import JobSource, OfflineJob
from domains.job.simulation.loans.section import LoanDaySection
from multisched.config.schema import RETURN_EXTRA_S
from multisched.model.objects import CPU, Pod
from multisched.model.pod_outcome import PodOutcome
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.loans.offers import STEP_S, UseOutlook, idle_offer
from multisched.plugins.loans.recalls import Recalls, idle_room_factor
from multisched.plugins.loans.terms import IDLE_RESOURCES, Borrower, LoanTerms, ReturnTerms
from multisched.simulate.bare_core import BareCore
from multisched.simulate.scenario import Policy

LOOK_S: Final = 10.0
"""How often jobs are started and recalls are handled. The program looks every second."""
SAMPLE_S: Final = 300.0
FORECAST, DAILY_PEAK, CURRENT_USE = "forecast", "daily-peak", "current-use"
MILLI_PER_STEP: Final = 100
"""Resolution of the search for the best set of pods, in thousandths of cores."""


class LoanFigures(msgspec.Struct):
    """Sums of one run. In thousandths of cores times seconds, unless their name says more."""

    online: float = 0.0
    lent: float = 0.0
    over_s: float = 0.0
    """Sum over nodes of the time above the threshold, if they would be below it without lent work."""
    node_s: float = 0.0
    finished: int = 0
    failed: int = 0
    best_lost_core_s: float = 0.0
    """The work that evictions would have lost if each row had returned the pods with the least work lost."""
    samples: list[tuple[float, float]] = []
    """Every SAMPLE_S: shares of all nodes that the lender uses, and that are lent."""


class _Running(msgspec.Struct):
    job: OfflineJob
    pod: Pod
    row: int
    is_leaving: bool = False


class LoanRun:
    """Plays one policy. The figures are in the public fields."""

    def __init__(
        self, section: LoanDaySection, policy: Policy, core: BareCore, lender: Lender, jobs: JobSource
    ) -> None:
        """`core`: without nodes."""
        self._section, self._core, self._lender, self._jobs = section, core, lender, jobs
        self._policy = policy.name
        fleet = lender.fleet
        one = section.returns
        deadline_s = one.notice_s + one.grace_s + RETURN_EXTRA_S if one.deadline_s is None else one.deadline_s
        returns = ReturnTerms(one.notice_s, one.grace_s, deadline_s, one.evictions_per_owner)
        self.returns = returns
        self._loan = LoanTerms(
            "online",
            core.context.domain,
            lambda node: True,
            "all nodes",
            is_idle=True,
            resources=frozenset(IDLE_RESOURCES),
            threshold_percent=section.threshold_percent,
            returns=returns,
        )
        borrower = Borrower(core.context.domain, frozenset({policy.scheduler_name}), (self._loan,))
        self._ledger = LoanLedger([borrower], core.context.nodes)
        core.context.hold.register(self._ledger)
        milli = fleet.node_milli
        for number in range(fleet.nodes):
            status = {"allocatable": {"cpu": f"{milli}m", "memory": "1Ti", "pods": "1000"}}
            core.add_node({"metadata": {"name": f"node-{number}", "uid": f"node-{number}"}, "status": status})
        self._rows = np.arange(fleet.nodes, dtype=np.intp)
        self._names = tuple(core.context.nodes.node(row).name for row in self._rows.tolist())
        self._pool = next(one for one in self._ledger.pools if one.is_idle)
        self._allocatable = np.full(fleet.nodes, milli, np.int64)
        self.limit_milli = milli * section.threshold_percent / 100.0
        self._outlook = UseOutlook(returns.notice_s + returns.grace_s + STEP_S)
        self.recalls = Recalls(self._ledger, core.context)
        self._sort = next((one for one in core.plugins() if isinstance(one, DeadlineSort)), None)
        self._running: dict[str, _Running] = {}
        self._ends: list[tuple[float, str]] = []
        """A heap of times at which pods end, by themselves or after an eviction."""
        self._least_milli = 0.0
        """Room below which none of the jobs that wait fits, of each size one; 0: not known."""
        self.figures = LoanFigures(samples=[])

    def run(self) -> None:
        fleet = self._lender.fleet
        for look in range(int((fleet.end_s - fleet.judged_s) / LOOK_S)):
            now_s = fleet.judged_s + look * LOOK_S
            if now_s % STEP_S == 0:
                self._offer(now_s)
            while self._ends and self._ends[0][0] <= now_s:
                at_s, uid = heappop(self._ends)
                self._end(uid, at_s)
            self._recall(now_s)
            if self._jobs.wake(now_s):
                self._least_milli = 0.0
            self._start_jobs(now_s)
            self._count(self._lender.used(now_s), now_s)

    # -- the lender --------------------------------------------------------------------------------------------------------

    def _offer(self, now_s: float) -> None:
        """Sets what each node lends, as the lender's background task does."""
        lender = self._lender
        if self._policy == DAILY_PEAK:
            needs = lender.day_peaks(now_s), lender.day_peaks(now_s)
        else:
            is_known = self._policy == FORECAST
            predicted = [lender.predicted(now_s, one) for one in self._outlook.ahead_s] if is_known else None
            needs = self._outlook.needs(self._names, self._allocatable, lender.measured(now_s), predicted)
        held = self._ledger.held_idle(CPU, self._rows)
        fresh = idle_offer(np.full(len(self._rows), self.limit_milli), needs, held)
        self._ledger.set_rows(self._pool.offer, self._pool, CPU, self._rows, fresh)

    # -- the borrower ------------------------------------------------------------------------------------------------------

    def _start_jobs(self, now_s: float) -> None:
        """Starts jobs until none of those that wait fits any more."""
        room = self._ledger.room(self._pool, self._loan, CPU, self._rows)
        row = int(room.argmax())
        most = room.item(row)
        if most < self._least_milli:
            return
        refused, sizes, size_count = list[OfflineJob](), set[int](), len(set(self._section.jobs.cores))
        demands = list[float]()
        while most > 0 and len(sizes) < size_count:
            job = self._jobs.next()
            factor = idle_room_factor(job.retries_left)
            if most < factor * job.milli:
                refused.append(job)
                demands.append(factor * job.milli)
                if factor == 1:
                    sizes.add(job.milli)
                continue
            room[row] -= job.milli
            pod = self._jobs.pod(job, self._names[row], now_s)
            self._core.show(pod)
            self._running[pod.uid] = _Running(job, pod, row)
            heappush(self._ends, (now_s + job.run_s, pod.uid))
            row = int(room.argmax())
            most = room.item(row)
        self._jobs.again(refused)
        self._least_milli = min(demands) if len(sizes) == size_count else 0.0

    def _end(self, uid: str, at_s: float) -> None:
        """Removes a pod that has ended by itself, or whose grace period is over."""
        one = self._running.get(uid)
        if one is None:
            return
        del self._running[uid]
        self._core.remove(one.pod)
        if one.is_leaving:
            return
        self.figures.finished += 1
        if self._sort is not None:
            ended = msgspec.structs.replace(one.pod, phase="Succeeded")
            began_s = one.pod.started_s
            self._sort.see_outcome(PodOutcome(ended, scheduled_s=began_s, began_s=began_s, ended_s=at_s))

    def _recall(self, now_s: float) -> None:
        """Runs one turn of the borrower's background task. All its writes succeed at once."""
        self.recalls.set_leading(leads=True, now_s=now_s)
        rows = self._rows[self._ledger.has_pods(self._pool, self._rows)]
        excess = self._ledger.excess(self._pool, self._loan, CPU, rows)
        seen = {(self._ledger.pools.index(self._pool), int(row)) for row in rows[excess > 0]}
        for at in (excess > 0).nonzero()[0].tolist():
            amounts = {CPU: int(excess[at])}
            self.recalls.update(self._pool, self._loan, int(rows[at]), amounts, "it is used", now_s)
        self.recalls.remove_complete(set(self.recalls.open) - seen)
        for notice in self.recalls.withdraw_unneeded(now_s):
            self.recalls.on_annotation_removed(notice)
        for notice in self.recalls.notices.values():
            notice.is_written = True
        for recall in list(self.recalls.open.values()):
            due = [notice for unit in self.recalls.due(recall, now_s) for notice in unit]
            if due:
                on_row = [one for one in self._running.values() if one.row == recall.row]
                left = recall.excess[CPU] - sum(one.job.milli for one in on_row if one.is_leaving)
                self.figures.best_lost_core_s += best_lost_core_s(
                    [(one.job.milli, now_s - one.pod.started_s) for one in on_row if not one.is_leaving],
                    min(left, sum(self._running[notice.pod.uid].job.milli for notice in due)),
                )
            for notice in due:
                self.recalls.on_eviction_sent(notice, now_s)
                self._evict(self._running[notice.pod.uid], now_s)

    def _evict(self, one: _Running, now_s: float) -> None:
        """Evicts the pod, which uses its whole grace period. Its job starts again, unless it has no retry left."""
        one.is_leaving = True
        one.pod = msgspec.structs.replace(one.pod, is_deleting=True)
        self._core.show(one.pod)
        heappush(self._ends, (now_s + self.returns.grace_s, one.pod.uid))
        job = one.job
        if job.retries_left == 0:
            self.figures.failed += 1
            return
        job.retries_left -= 1
        self._jobs.after_eviction(job, now_s + self.returns.grace_s)

    # -- figures -----------------------------------------------------------------------------------------------------------

    def _count(self, used: Floats, now_s: float) -> None:
        held = self._pool.at(self._pool.held, CPU, self._rows)
        found = self.figures
        found.online += float(used.sum()) * LOOK_S
        found.lent += float(held.sum()) * LOOK_S
        found.over_s += LOOK_S * int(np.count_nonzero((used <= self.limit_milli) & (used + held > self.limit_milli)))
        found.node_s += LOOK_S * len(used)
        if now_s % SAMPLE_S == 0:
            whole = float(self._allocatable.sum())
            found.samples.append((float(used.sum()) / whole, float(held.sum()) / whole))


def best_lost_core_s(pods: Sequence[tuple[int, float]], free_milli: int) -> float:
    """Returns the core-seconds lost by the set of pods that frees at least this much and loses least.

    `pods`: thousandths of cores, and seconds since the start. Amounts are counted in steps of MILLI_PER_STEP.
    """
    size = -(-free_milli // MILLI_PER_STEP)
    least = np.full(size + 1, np.inf)
    least[0] = 0.0
    for milli, age_s in pods:
        frees, lost = milli // MILLI_PER_STEP, age_s * milli / 1000.0
        sources = np.maximum(0, np.arange(size + 1) - frees)
        least = np.minimum(least, least[sources] + lost)
    return float(least[size])
