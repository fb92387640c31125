"""The background task of a borrowing domain: opens and closes loans, and returns the capacity that pods hold beyond their loans.

Every second, it compares the amounts that pods hold on lent rows with the amounts that they may hold. If they hold more, some pods get a
notice, and are evicted after the notice period. All processes do the comparison, so that they know the state if they take over; only the
leader writes. Rows are handled in steps of milliseconds, and other tasks run between the steps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from multisched.framework.background import BackgroundPorts
from multisched.framework.context import PluginContext
from multisched.framework.moving import EvictAnswer, Mover
from multisched.framework.node_view import Int64, Rows
from multisched.framework.ports import Clock, UnreachableError, WriteAnswer, pod_ref
from multisched.model.objects import PODS
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.loans.pools import Pool
from multisched.plugins.loans.recalls import LOAN_NOTICE, Notice, Recalls
from multisched.plugins.loans.terms import LoanTerms

logger = logging.getLogger(__name__)

PERIOD_S: Final = 1.0
ROWS_PER_STEP: Final = 20
WRITES_AT_ONCE: Final = 32
DELETION_GRACE_S: Final = 1
"""Grace period of an overdue deletion: the shortest with which the kubelet still stops the containers."""
REPEAT_S: Final = 10.0
"""Time after which the deletion of an overdue pod is sent again, if the pod still exists."""
REPORT_S: Final = 60.0
"""Interval between reports of refused evictions of one pod."""
NEED_MAX_S: Final = 900.0
"""The need of a gang is forgotten if no attempt of the gang has recorded it again for this time."""
ACTION: Final = "Lending"
RETRIED: Final = frozenset({WriteAnswer.THROTTLED, WriteAnswer.UNKNOWN})
"""Responses after which the write is sent again in the next round, one second later."""


class LoanControl:
    """The loans of one borrowing domain."""

    def __init__(self, ledger: LoanLedger, context: PluginContext, on_opened: Callable[[], None]) -> None:
        """`on_opened`: called when a loan opens or a need ends, so that refused pods may fit."""
        self.recalls = Recalls(ledger, context)
        self._ledger = ledger
        self._context = context
        self._on_opened = on_opened
        self._needed: set[tuple[str, int]] = set()
        """uids and rows of the needs at the last check."""

    async def run(self, ports: BackgroundPorts) -> None:
        while True:
            leads = ports.mover is not None and ports.mover.may_act()
            await self._update(ports.clock, leads=leads)
            if leads and ports.mover is not None and ports.mover.may_act():
                await _Writes(self.recalls, ports.mover, ports.clock).carry_out()
            await asyncio.sleep(PERIOD_S)

    async def _update(self, clock: Clock, *, leads: bool) -> None:
        """Opens and closes loans, and updates the recalls."""
        now_s = clock.now().timestamp()
        self._ledger.now_s = now_s
        self._drop_needs()
        takes_over = self.recalls.set_leading(leads=leads, now_s=now_s)
        seen: set[tuple[int, int]] = set()
        for pool in self._ledger.pools_of(self._context.domain):
            number = self._ledger.pools.index(pool)
            for loan_number, loan, rows in self._ledger.rows_of(pool):
                is_closing = self._set_open(pool, loan_number, loan, now_s)
                if loan.returns is None or (loan.is_sliced and not leads):
                    continue  # only the leader knows the offers, which limit a sliced loan
                held = rows[self._ledger.has_pods(pool, rows)]
                if takes_over:
                    await self._adopt(pool, loan, held, now_s)
                for row, excess in self._excess(pool, loan, held, is_closing=is_closing).items():
                    self.recalls.update(pool, loan, row, excess, self._why(loan, row, is_closing=is_closing), now_s)
                    seen.add((number, row))
                    if len(seen) % ROWS_PER_STEP == 0:
                        await asyncio.sleep(0)
        self.recalls.remove_complete(set(self.recalls.open) - seen)

    async def _adopt(self, pool: Pool, loan: LoanTerms, rows: Rows, now_s: float) -> None:
        for count, row in enumerate(rows.tolist()):
            self.recalls.adopt(pool, loan, row, now_s)
            if count % ROWS_PER_STEP == ROWS_PER_STEP - 1:
                await asyncio.sleep(0)

    def _set_open(self, pool: Pool, number: int, loan: LoanTerms, now_s: float) -> bool:
        """Opens or closes the loan. Returns True if it is closed, and pods must return all that they hold."""
        closes_s = loan.closes_s(now_s)
        before_s = 0.0 if loan.returns is None else loan.returns.deadline_s
        is_open = closes_s is not None and closes_s - now_s > before_s
        if self._ledger.set_open(pool, number, is_open=is_open) and is_open:
            self._on_opened()
        return not is_open and loan.returns is not None

    def _excess(self, pool: Pool, loan: LoanTerms, rows: Rows, *, is_closing: bool) -> dict[int, Mapping[str, int]]:
        """Returns row -> resource -> amount that the pods hold beyond the loan, for rows where they hold more than the loan."""
        if not len(rows):
            return {}
        if is_closing:
            return {row: {PODS: int(count)} for row, count in zip(rows.tolist(), pool.pods.take(rows), strict=True)}
        by_name: dict[str, Int64] = {
            name: self._ledger.excess(pool, loan, name, rows)
            for name in (sorted(loan.resources) if loan.is_sliced else pool.held)
            if name in loan.resources
        }
        is_any = np.zeros(len(rows), np.bool_)
        for amounts in by_name.values():
            is_any |= amounts > 0
        return {
            int(rows[at]): {name: int(amounts[at]) for name, amounts in by_name.items() if amounts[at] > 0}
            for at in is_any.nonzero()[0].tolist()
        }

    def _why(self, loan: LoanTerms, row: int, *, is_closing: bool) -> str:
        if is_closing:
            return f"the loan from {loan.lender} closes"
        needs = self._ledger.needs.on(row)
        if needs:
            return f"pod {needs[0].pod.key} of {loan.lender} needs it"
        return f"{loan.lender} needs it"

    def _drop_needs(self) -> None:
        """Forgets the needs of pods that are no longer pending, or are pending for another row. Refused pods may fit after that."""
        needs = self._ledger.needs
        before, self._needed = self._needed, {(need.pod.uid, need.row) for need in needs.all()}
        if not before <= self._needed:
            self._on_opened()
        if not needs:
            return
        waiting = {pod.uid for pod in self._context.pending()}
        nominations, nodes = self._context.nominations, self._context.nodes
        for need in needs.all():
            uid = need.pod.uid
            is_nominated = not need.is_nominated or nominations.node_of(uid) == nodes.node(need.row).name
            is_old = not need.is_nominated and self._ledger.now_s > need.since_s + NEED_MAX_S
            if uid not in waiting or self._context.hold.placed(uid) is not None or not is_nominated or is_old:
                needs.drop(uid)


class _Writes:
    """The writes of one round."""

    def __init__(self, recalls: Recalls, mover: Mover, clock: Clock) -> None:
        self._recalls = recalls
        self._mover = mover
        self._clock = clock
        self._gate = asyncio.Semaphore(WRITES_AT_ONCE)

    def _now_s(self) -> float:
        return self._clock.now().timestamp()

    async def carry_out(self) -> None:
        """Withdraws notices, writes new notices, and evicts pods whose notice has ended. Evicts each pod at most once."""
        unneeded = self._recalls.withdraw_unneeded(self._now_s())
        fresh = [notice for notice in self._recalls.notices.values() if not notice.is_written]
        async with asyncio.TaskGroup() as tasks:
            for notice in unneeded:
                tasks.create_task(self._withdraw(notice))
            for notice in fresh:
                tasks.create_task(self._write(notice))
        now_s = self._now_s()
        every = self._recalls.notices.values()
        due = [[one] for one in every if one.is_chosen or one.evicted_s is not None]
        started = {one.pod.uid for (one,) in due}
        for count, recall in enumerate(self._recalls.open.values(), 1):
            for unit in self._recalls.due(recall, now_s):
                if started.isdisjoint(one.pod.uid for one in unit):
                    started.update(one.pod.uid for one in unit)
                    due.append(unit)
            if count % ROWS_PER_STEP == 0:
                await asyncio.sleep(0)
        async with asyncio.TaskGroup() as tasks:
            for unit in due:
                tasks.create_task(self._evict_all(unit))

    async def _write(self, notice: Notice) -> None:
        """Writes the notice to the pod, and begins the notice period. If the outcome is unknown or throttled, the next round retries."""
        async with self._gate:
            notice.since_s = self._now_s()
            until = notice.text
            reply = await self._mover.annotate(
                pod_ref(notice.pod), {LOAN_NOTICE: until}, timeout_s=self._mover.write_timeout_s
            )
        if reply.answer in RETRIED:
            return
        notice.is_written = True
        note = f"will be evicted at {until} unless it ends before: the capacity is on loan, and {notice.why}"
        self._record("Normal", notice, "LoanRecalled", note)

    async def _withdraw(self, notice: Notice) -> None:
        async with self._gate:
            reply = await self._mover.annotate(
                pod_ref(notice.pod), {LOAN_NOTICE: None}, timeout_s=self._mover.write_timeout_s
            )
        if reply.answer in RETRIED:
            return
        self._recalls.on_annotation_removed(notice)
        self._record("Normal", notice, "LoanRecallWithdrawn", "not evicted: the capacity is not needed any more")

    async def _evict_all(self, unit: Sequence[Notice]) -> None:
        """Evicts pods that must be evicted together. Evicts none if a PodDisruptionBudget protects one, unless all of them are overdue."""
        now_s = self._now_s()
        if len(unit) > 1 and any(now_s < one.overdue_s for one in unit):
            for one in unit:
                if refusal := self._mover.budget_refusal(one.pod):
                    self._recalls.counts.refused += 1
                    self._report(one, refusal, now_s)
                    return
        for number, one in enumerate(unit):
            await self._evict(one)
            if one.evicted_s is None and number == 0:
                return
            if number == 0:
                for other in unit[1:]:
                    other.is_chosen = True

    async def _evict(self, notice: Notice) -> None:
        """Evicts the pod, or deletes it if it is overdue."""
        async with self._gate:
            now_s = self._now_s()
            if now_s >= notice.overdue_s:
                await self._delete_overdue(notice, now_s)
                return
            if notice.evicted_s is not None:
                return
            ref = pod_ref(notice.pod)
            reply = await self._mover.evict_member(ref, timeout_s=self._mover.write_timeout_s)
            match reply.answer:
                case EvictAnswer.EVICTED:
                    self._recalls.on_eviction_sent(notice, now_s)
                    self._record(
                        "Normal", notice, "LoanReturned", f"evicted: the capacity is on loan, and {notice.why}"
                    )
                case EvictAnswer.UNKNOWN:
                    try:
                        if not await self._mover.still_exists(ref):
                            self._recalls.on_eviction_sent(notice, now_s)
                    except UnreachableError:
                        return  # the next round retries
                case EvictAnswer.GONE:
                    notice.evicted_s = now_s
                case _:
                    self._recalls.counts.refused += 1
                    self._report(notice, reply.message, now_s)

    async def _delete_overdue(self, notice: Notice, now_s: float) -> None:
        if notice.deleted_s is not None and now_s < notice.deleted_s + REPEAT_S:
            return
        why = f"{notice.loan.lender}: capacity on loan is overdue; {notice.why}"
        reply = await self._mover.remove(
            pod_ref(notice.pod), why, grace_s=DELETION_GRACE_S, timeout_s=self._mover.write_timeout_s
        )
        if reply.answer is WriteAnswer.REFUSED:
            self._report(notice, reply.message, now_s)
        if reply.answer is not WriteAnswer.DONE:
            return
        is_first = notice.deleted_s is None
        notice.deleted_s = now_s
        if is_first:
            self._recalls.counts.deleted += 1
            if notice.evicted_s is None:
                self._recalls.on_eviction_sent(notice, now_s)
            self._record("Warning", notice, "LoanOverdue", f"deleted: {why}")

    def _report(self, notice: Notice, message: str, now_s: float) -> None:
        if now_s < notice.reported_s + REPORT_S:
            return
        notice.reported_s = now_s
        self._record("Warning", notice, "LoanReturnRefused", f"could not be evicted yet, and is tried again: {message}")
        logger.warning("loan: eviction refused", extra={"pod": notice.pod.key, "error": message})

    def _record(self, kind: str, notice: Notice, reason: str, note: str) -> None:
        self._mover.record_event(kind, pod_ref(notice.pod), reason, note, action=ACTION)
