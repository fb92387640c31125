"""The borrower's decisions about one lender: how much of which node it claims, and which waiting pods may be bound.

A pod is placed where enough is offered, and waits at Permit until it is claimed (`SliceRows.waiting`). What is charged does not include
waiting pods, so it never exceeds what is usable (S2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from multisched.framework.context import WaitingPods
from multisched.model.cluster_objects import SliceSet
from multisched.model.slice_parts import NOTHING, SliceAmount
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.loans.slices.borrower_slices import BorrowerSlices, claim_block
from multisched.plugins.loans.slices.slice_rows import LoanKey

LINGER_S: Final = 30.0
"""What no pod has used for so long is released."""
WITHDRAWN: Final = "the lender offers less of the node than before"


class _Wanted(msgspec.Struct):
    """What should be held of one node."""

    amount: SliceAmount = NOTHING
    is_idle_since_s: float | None = None
    """Since when less is needed."""


class BorrowerSide:
    """The slices that one domain borrows from another one."""

    role = "borrower"

    def __init__(self, key: LoanKey, ledger: LoanLedger) -> None:
        self.key = key
        self._ledger = ledger
        self._pool = ledger.slices.pool_of[key]
        self._wanted: dict[str, _Wanted] = {}

    @property
    def machine(self) -> BorrowerSlices | None:
        """None before the first term."""
        return self._ledger.slices.borrowed.get(self.key)

    def begin_term(self, listed: Sequence[SliceSet], namespace: str) -> BorrowerSlices:
        machine = self.machine
        if machine is None:
            machine = self._ledger.slices.borrowed[self.key] = BorrowerSlices(*self.key, namespace)
        machine.begin_term(listed)
        self._wanted.clear()
        self.refresh()
        return machine

    def settle(self) -> None:
        machine = self.machine
        assert machine is not None, "a term has begun"
        machine.settle()
        for uid in machine.nodes():
            if held := machine.held(uid):
                self._wanted[uid] = _Wanted(held)

    def refresh(self) -> bool:
        """Reads again what is offered; returns True if that is more somewhere."""
        machine, slices = self.machine, self._ledger.slices
        if machine is None:
            return False
        is_readable = machine.are_offers_readable()
        for number, loan in enumerate(self._pool.loans):
            if loan.lender == self.key[0]:
                self._ledger.set_frozen(self._pool, number, is_frozen=not is_readable)
        uids = {slices.uid_of(row) for row in self._rows()} | machine.nodes()
        return slices.refresh_offers(self.key, uids)

    def _rows(self) -> list[int]:
        """Returns the rows on loan from the lender."""
        numbers = [number for number, loan in enumerate(self._pool.loans) if loan.lender == self.key[0]]
        return [row for number in numbers for row in (self._pool.loan_of == number).nonzero()[0].tolist()]

    # -- claims ----------------------------------------------------------------------------------------------------

    def charged(self) -> dict[str, SliceAmount]:
        """Returns uid -> what pods request, of nodes on loan; of nodes that have left, what binds that may be in flight request."""
        machine, slices, found = self.machine, self._ledger.slices, dict[str, SliceAmount]()
        rows = {row for row in self._rows() if self._ledger.has_borrowers(row)}
        for uid in () if machine is None else machine.nodes():
            row = slices.row_of(uid)
            if row is not None:
                rows.add(row)
        for row in rows:
            amount = self._charged_on(row)
            if amount:
                found[slices.uid_of(row)] = amount
        return found

    def _charged_on(self, row: int) -> SliceAmount:
        slices = self._ledger.slices
        if slices.is_lent(self.key, row):
            return slices.held(self.key, row) - slices.waiting_on(row)
        return self._unbound_on(row)

    def _unbound_on(self, row: int) -> SliceAmount:
        """Returns what pods request on the row that the API server does not show there: they may be bound yet."""
        total = NOTHING
        for uid in self._ledger.holders(self._pool, row):
            held = self._ledger.hold(uid)
            if held is not None and not held.is_bound and uid not in self._ledger.slices.waiting:
                total += self._ledger.slices.amount_held(held)
        return total

    def want(self, now_s: float) -> None:
        """Updates what should be held: at once for pods that wait, and later for what no pod uses."""
        machine, slices = self.machine, self._ledger.slices
        assert machine is not None, "a term has begun"
        rows = set(slices.waiting_rows()) | {row for uid in self._wanted if (row := slices.row_of(uid)) is not None}
        for uid in [uid for uid in self._wanted if slices.row_of(uid) is None]:
            self._set(machine, uid, NOTHING)
        for row in rows:
            if not slices.is_lent(self.key, row):
                self._set(machine, slices.uid_of(row), NOTHING)
                continue
            uid, charged = slices.uid_of(row), self._charged_on(row)
            need, wanted = charged + slices.waiting_on(row), self._wanted.setdefault(uid, _Wanted())
            if not need.is_within(wanted.amount):
                self._set(machine, uid, claim_block(charged, slices.waiting_on(row)) | wanted.amount)
            elif claim_block(need, NOTHING).is_within(wanted.amount) and need != wanted.amount:
                if wanted.is_idle_since_s is None:
                    wanted.is_idle_since_s = now_s
                elif now_s >= wanted.is_idle_since_s + LINGER_S:
                    self._set(machine, uid, need)
            else:
                wanted.is_idle_since_s = None

    def _set(self, machine: BorrowerSlices, uid: str, amount: SliceAmount) -> None:
        machine.want(uid, amount)
        if amount:
            self._wanted[uid] = _Wanted(amount)
        else:
            self._wanted.pop(uid, None)

    def may_use(self, uid: str, now_s: float) -> bool:
        """Reports whether enough is claimed for a waiting pod, in addition to what is charged."""
        slices, machine = self._ledger.slices, self.machine
        waiting = slices.waiting[uid]
        if machine is None or not slices.is_lent(self.key, waiting.row):
            return False
        limit = machine.limit(slices.uid_of(waiting.row), int(now_s))
        return (self._charged_on(waiting.row) + waiting.amount).is_within(limit)

    def release_waiting(self, pods: WaitingPods, plugin: str, now_s: float, allow: Callable[[str], None]) -> None:
        """Allows pods at Permit for which enough is claimed, and rejects those for which too little is offered now."""
        slices, machine = self._ledger.slices, self.machine
        if machine is None or not slices.waiting:
            return
        for pod in pods.waiting():
            waiting = slices.waiting.get(pod.uid)
            if waiting is None or not slices.is_lent(self.key, waiting.row):
                continue
            if self.may_use(pod.uid, now_s):
                allow(pod.uid)
                continue
            offered = machine.offered_of(slices.uid_of(waiting.row))
            if not (self._charged_on(waiting.row) + waiting.amount).is_within(offered):
                pods.reject(pod.uid, plugin, WITHDRAWN)
