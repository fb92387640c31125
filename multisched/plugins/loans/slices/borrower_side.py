"""The borrower's decisions about one lender: how much of which node it claims, and which waiting pods may be bound.

A pod is placed where enough is offered, and waits at Permit until it is claimed (`SliceRows.waiting`). What is charged does not include
waiting pods, so it never exceeds what is usable (S2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from multisched.framework.context import WaitingPods
from multisched.framework.node_view import Rows
from multisched.model.cluster_objects import SliceSet
from multisched.model.slice_parts import NOTHING, SliceAmount
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.loans.slices.borrower_slices import BorrowerSlices, claim_block
from multisched.plugins.loans.slices.slice_rows import RESOURCES, LoanKey

LINGER_S: Final = 30.0
"""What no pod has used for so long is released."""
WITHDRAWN: Final = "the lender offers less of the node than before"


class _Wanted(msgspec.Struct):
    """What should be held of one node."""

    amount: SliceAmount = NOTHING
    is_idle_since_s: float | None = None
    """Since when less is needed."""


_NOTHING_WANTED: Final = _Wanted()


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
        uids = {slices.uid_of(row) for row in self._rows().tolist()} | machine.nodes()
        return slices.refresh_offers(self.key, uids)

    def change(self, name: str, change: Callable[[BorrowerSlices], None]) -> bool:
        """Lets the machine take what concerns one object; returns True if more is offered somewhere."""
        machine = self.machine
        if machine is None:
            return False
        were_readable, before = machine.are_offers_readable(), machine.nodes_in(name)
        change(machine)
        if machine.are_offers_readable() != were_readable:
            return self.refresh()
        return self._ledger.slices.refresh_offers(self.key, before | machine.nodes_in(name))

    def _rows(self) -> Rows:
        """Returns the rows on loan from the lender."""
        numbers = [number for number, loan in enumerate(self._pool.loans) if loan.lender == self.key[0]]
        rows: Rows = np.isin(self._pool.loan_of, numbers).nonzero()[0]
        return rows

    def totals(self) -> Mapping[str, SliceAmount]:
        """Returns what is offered, held and usable of all nodes."""
        machine, totals = self.machine, dict.fromkeys(("offered", "held", "usable"), NOTHING)
        for uid in () if machine is None else machine.nodes():
            assert machine is not None, "it has nodes"
            totals["offered"] += machine.offered_of(uid)
            totals["held"] += machine.held(uid)
            totals["usable"] += machine.usable(uid)
        return totals

    # -- claims ----------------------------------------------------------------------------------------------------

    def charged(self) -> dict[str, SliceAmount]:
        """Returns uid -> what pods request, of nodes on loan; of nodes that have left, no more than what is held."""
        machine, slices, found = self.machine, self._ledger.slices, dict[str, SliceAmount]()
        rows = self._rows()
        rows = rows[self._ledger.has_pods(self._pool, rows)]
        columns = (self._pool.held_at(resource, rows).tolist() for resource in RESOURCES)
        for row, *amounts in zip(rows.tolist(), *columns, strict=True):
            if amount := SliceAmount(*amounts) - slices.waiting_on(row):
                found[slices.uid_of(row)] = amount
        for uid in () if machine is None else machine.nodes():
            left = slices.row_of(uid)
            assert machine is not None, "it has nodes"
            if left is not None and not slices.is_lent(self.key, left):
                found[uid] = slices.held(self.key, left) & machine.held(uid)
        return found

    def _charged_on(self, row: int) -> SliceAmount:
        return self._ledger.slices.held(self.key, row) - self._ledger.slices.waiting_on(row)

    def want(self) -> None:
        """Claims what pods wait for."""
        machine, slices = self.machine, self._ledger.slices
        assert machine is not None, "a term has begun"
        for row in slices.waiting_rows():
            if not slices.is_lent(self.key, row):
                continue
            uid, charged = slices.uid_of(row), self._charged_on(row)
            wanted = self._wanted.get(uid, _NOTHING_WANTED).amount
            if not (charged + slices.waiting_on(row)).is_within(wanted):
                self._set(machine, uid, claim_block(charged, slices.waiting_on(row)) | wanted)

    def release(self, charged: Mapping[str, SliceAmount], now_s: float) -> None:
        """Releases what no pod has used for a while, and nodes that are not on loan any more."""
        machine, slices = self.machine, self._ledger.slices
        assert machine is not None, "a term has begun"
        for uid, wanted in list(self._wanted.items()):
            row = slices.row_of(uid)
            if row is None or not slices.is_lent(self.key, row):
                self._set(machine, uid, NOTHING)
                continue
            need = charged.get(uid, NOTHING) + slices.waiting_on(row)
            if need == wanted.amount or not claim_block(need, NOTHING).is_within(wanted.amount):
                wanted.is_idle_since_s = None
            elif wanted.is_idle_since_s is None:
                wanted.is_idle_since_s = now_s
            elif now_s >= wanted.is_idle_since_s + LINGER_S:
                self._set(machine, uid, need)

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
