"""Defects of loans: limits, notices, evictions, and what a new leader knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from multisched.framework.node_view import Int64, Rows
from multisched.framework.points import CycleView, PostFilterResult, Refusals
from multisched.model.objects import Pod
from multisched.plugins.loans import control, on_loan, recalls, victims
from multisched.plugins.loans.control import LoanControl, _Writes
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.loans.loans import Loans
from multisched.plugins.loans.on_loan import OnLoan
from multisched.plugins.loans.pools import NO_TRIAL, Pool, Trial
from multisched.plugins.loans.recalls import LOAN_NOTICE, Notice, Recalls
from multisched.plugins.loans.terms import LoanTerms
from multisched.plugins.loans.victims import Unit
from tests.sim.defects import defect, put


@defect
def leaving_pods_hold_nothing() -> None:
    """What a pod holds on loan is lent again when it is being deleted, not when it is gone."""
    genuine = LoanLedger.room

    def room(
        self: LoanLedger, pool: Pool, loan: LoanTerms, resource: str, rows: Rows, trial: Trial = NO_TRIAL
    ) -> Int64:
        leaving = [
            sum(
                held.amounts.get(resource, 0)
                for pod in self.nodes.pods_on(row)
                if pod.is_deleting and (held := self.hold(pod.uid)) is not None
            )
            for row in rows.tolist()
        ]
        return genuine(self, pool, loan, resource, rows, trial) + np.array(leaving, np.int64)

    put(LoanLedger, "room", room)


@defect
def evicted_pods_hold_nothing() -> None:
    """Room on loan is added back when an eviction is sent."""
    genuine = Recalls.on_eviction_sent

    def evicted(self: Recalls, notice: Notice, now_s: float) -> None:
        genuine(self, notice, now_s)
        self._ledger.release(notice.pod.uid)

    put(Recalls, "on_eviction_sent", evicted)


@defect
def holds_are_lost_after_a_restart() -> None:
    """A process counts only what it has lent itself."""
    genuine = LoanLedger.restore

    def restore(self: LoanLedger, pod: Pod, row: int) -> None:
        if pod.uid in self._held:
            genuine(self, pod, row)

    put(LoanLedger, "restore", restore)


@defect
def shares_are_ignored() -> None:
    """All that is unused may be held, apart from the headroom."""
    put(LoanLedger, "_limit", _limit_of(lambda loan: msgspec.structs.replace(loan, share_percent=100)))


@defect
def headroom_is_ignored() -> None:
    """Nothing is kept free for the lender."""
    put(LoanLedger, "_limit", _limit_of(lambda loan: msgspec.structs.replace(loan, headroom={})))


def _limit_of(changed: Any) -> Any:
    genuine = LoanLedger._limit

    def limit(self: LoanLedger, pool: Pool, loan: LoanTerms, resource: str, rows: Rows, unused: Int64) -> Int64:
        return genuine(self, pool, changed(loan), resource, rows, unused)

    return limit


@defect
def arrivals_of_the_lender_recall_nothing() -> None:
    """Only a waiting pod of the lender recalls; one that was placed does not lower what may be held already."""
    genuine = LoanLedger.excess

    def excess(self: LoanLedger, pool: Pool, loan: LoanTerms, resource: str, rows: Rows) -> Int64:
        found = genuine(self, pool, loan, resource, rows)
        return np.where(self.needs.at(resource, rows) > 0, found, 0)

    put(LoanLedger, "excess", excess)


@defect
def room_for_a_waiting_gang_is_lent_again() -> None:
    """What waiting pods of the lender need is recalled, and then lent to the next pod."""
    genuine = LoanLedger.room

    def room(
        self: LoanLedger, pool: Pool, loan: LoanTerms, resource: str, rows: Rows, trial: Trial = NO_TRIAL
    ) -> Int64:
        found = genuine(self, pool, loan, resource, rows, trial)
        return found + self.needs.at(resource, rows)

    put(LoanLedger, "room", room)


@defect
def needs_of_deleted_pods_stay() -> None:
    """A need ends only when its pod is placed."""
    put(LoanControl, "_drop_needs", lambda self: None)


@defect
def ended_needs_requeue_no_borrower() -> None:
    """Pods that were refused while the lender needed the capacity wait for another event."""
    genuine = LoanControl._drop_needs

    def drop(self: LoanControl) -> None:
        tell, self._on_opened = self._on_opened, lambda: None
        genuine(self)
        self._on_opened = tell

    put(LoanControl, "_drop_needs", drop)


@defect
def retries_forget_the_need() -> None:
    """A pod of the lender that is tried again while it waits needs nothing any more, and stays nominated."""
    genuine = Loans.post_filter

    def post_filter(self: Loans, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        is_known = self.ledger.needs.of(pod.uid) is not None
        found = genuine(self, cycle, pod, refusals)
        if is_known:
            self.ledger.needs.drop(pod.uid)
        return found

    put(Loans, "post_filter", post_filter)


@defect
def evictions_do_not_wait_for_the_notice() -> None:
    """A pod is due as soon as its notice is written."""
    put(Notice, "is_due", lambda self, now_s: self.is_written)


@defect
def notices_run_from_the_recall() -> None:
    """The notice counts from when its pod was chosen, not from when the notice was written."""
    genuine = _Writes._write

    async def write(self: _Writes, notice: Notice) -> None:
        chosen_s = notice.since_s
        await genuine(self, notice)
        notice.since_s = chosen_s

    put(_Writes, "_write", write)


@defect
def refused_notices_count_as_given() -> None:
    """A notice that the API server did not take is not written again."""
    put(control, "RETRIED", frozenset())


@defect
def processes_that_do_not_lead_choose_pods() -> None:
    """A standby process chooses pods in its memory, and goes on with them when it takes over."""
    genuine = Recalls.set_leading
    put(Recalls, "set_leading", lambda self, *, leads, now_s: genuine(self, leads=True, now_s=now_s))


@defect
def loan_notices_of_a_former_leader_are_lost() -> None:
    """A process that takes over does not know which pods have a notice."""
    put(Recalls, "adopt", lambda self, pool, loan, row, now_s: None)


@defect
def forged_loan_notices_are_believed() -> None:
    """A notice that a user has written counts at any time."""
    genuine = Recalls._give_notice

    def give(self: Recalls, pod: Pod, row: int, loan: LoanTerms, why: str, now_s: float) -> None:
        genuine(self, pod, row, loan, why, now_s)
        until_s, notice = recalls._notice_s(pod), self.notices[pod.uid]
        if LOAN_NOTICE in pod.annotations and until_s is not None and not notice.is_written:
            notice.since_s = min(now_s, until_s - notice.returns.notice_s)
            notice.is_written = notice.since_s < now_s

    put(Recalls, "_give_notice", give)


@defect
def withdrawn_loan_notices_are_carried_out() -> None:
    """The annotation is removed, and the pod is evicted."""
    genuine = Recalls.withdraw_unneeded

    def withdraw_unneeded(self: Recalls, now_s: float) -> list[Notice]:
        found = genuine(self, now_s)
        for notice in found:
            notice.is_chosen = True
            self.notices[notice.pod.uid] = notice
        return found

    put(Recalls, "withdraw_unneeded", withdraw_unneeded)


@defect
def borrowers_gangs_are_evicted_in_part() -> None:
    """Each member of a gang is evicted by itself."""

    def units(
        self: Recalls, pool: Pool, row: int, pods: Sequence[Pod], left: Mapping[str, int], now_s: float, *, whole: bool
    ) -> list[Unit]:
        return [self._unit(pool, row, (pod,), left, now_s) for pod in pods if not pod.is_leaving]

    put(Recalls, "units", units)


@defect
def new_leaders_leave_gangs_in_part() -> None:
    """A gang of which a former leader has evicted some members keeps the others."""
    genuine = Recalls.adopt

    def adopt(self: Recalls, pool: Pool, loan: LoanTerms, row: int, now_s: float) -> None:
        genuine(self, pool, loan, row, now_s)
        for notice in self.notices.values():
            notice.is_chosen = False

    put(Recalls, "adopt", adopt)


@defect
def last_retries_go_first() -> None:
    """Pods whose job has no retry left are not spared."""
    put(Recalls, "_spared", lambda self, pod, now_s: 0)


@defect
def most_work_is_lost() -> None:
    """Pods that have run for longest are evicted first."""

    def longest(units: Sequence[Unit], excess: Mapping[str, int]) -> list[Unit]:
        return victims._needed(sorted(units, key=lambda unit: -unit.lost), excess)

    put(recalls, "least_loss", longest)


@defect
def budgets_of_pods_on_loan_are_ignored() -> None:
    """Pods are deleted against their budgets as soon as their notice ends."""
    put(Notice, "overdue_s", property(lambda self: self.due_s))


@defect
def searches_begin_anew_after_each_pause() -> None:
    """Which pods of a row are on loan is not kept while a search pauses; it pauses for each row, as if there were many."""
    genuine = OnLoan.displaceable

    def displaceable(self: OnLoan, pods: Any) -> Any:
        self._answers.clear()
        return genuine(self, pods)

    put(OnLoan, "displaceable", displaceable)
    put(on_loan, "ROWS_AT_ONCE", 1)
