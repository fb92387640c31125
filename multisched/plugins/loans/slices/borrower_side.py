"""The borrower's decisions about one lender of nodes: the amount that it claims of each node, and the waiting pods that may be bound.

A pod is placed where enough is offered, and waits at Permit until its requests are claimed (`SliceRows.waiting_on`). The charged amount
does not include waiting pods, so it never exceeds the usable amount (S2).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import numpy as np

from multisched.framework.node_view import Rows
from multisched.model.slice_parts import NOTHING, SliceAmount
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.slices.borrower_slices import BorrowerSlices
from multisched.plugins.slices.sides import BorrowingSide, LoanKey

NO_PODS: Final[Mapping[str, SliceAmount]] = {}


class BorrowerSide(BorrowingSide):
    """The nodes that one domain borrows from another one."""

    withdrawn = "the lender offers less of the node than before"
    claims_ahead = True

    def __init__(self, key: LoanKey, ledger: LoanLedger) -> None:
        super().__init__(key, ledger.slices)
        self._ledger = ledger
        self._pool = ledger.slices.pool_of[key]

    def _new_machine(self, namespace: str) -> BorrowerSlices:
        return BorrowerSlices(*self.key, namespace)

    def refresh(self) -> bool:
        """Reads the offers again. Returns True if one of them has increased."""
        machine, slices = self.machine, self._ledger.slices
        if machine is None:
            return False
        is_readable = machine.are_offers_readable()
        for number, loan in enumerate(self._pool.loans):
            if loan.lender == self.key[0]:
                self._ledger.set_frozen(self._pool, number, is_frozen=not is_readable)
        uids = {slices.uid_of(row) for row in self._rows().tolist()} | machine.slice_keys()
        return slices.refresh_offers(self.key, uids)

    def _refresh_some(self, machine: BorrowerSlices, keys: Collection[str]) -> bool:
        return self._ledger.slices.refresh_offers(self.key, keys)

    def _rows(self) -> Rows:
        """Returns the rows on loan from the lender."""
        numbers = [number for number, loan in enumerate(self._pool.loans) if loan.lender == self.key[0]]
        rows: Rows = np.isin(self._pool.loan_of, numbers).nonzero()[0]
        return rows

    def is_lent(self, key: str) -> bool:
        """Reports whether the node is on this loan now."""
        row = self._ledger.slices.row_of(key)
        return row is not None and self._ledger.slices.is_lent(self.key, row)

    # -- what is charged -------------------------------------------------------------------------------------------

    def _take_touched(self) -> Iterable[str]:
        touched = self._ledger.slices.touched
        uids, touched[self.key] = touched[self.key], set()
        return uids

    def charged(self, key: str) -> SliceAmount:
        """Returns the requests of the pods on the node. If the node is no longer on loan, at most the held amount."""
        machine, slices = self.machine, self._ledger.slices
        row = slices.row_of(key)
        if row is None:
            return NOTHING
        if slices.is_lent(self.key, row):
            return self._charged_on(row)
        return NOTHING if machine is None else slices.held(self.key, row) & machine.held(key)

    def charged_keys(self) -> set[str]:
        """Returns the uids of all nodes whose charged amount may be more than zero."""
        rows, machine = self._rows(), self.machine
        rows = rows[self._ledger.has_pods(self._pool, rows)]
        on_loan = set(map(self._ledger.slices.uid_of, rows.tolist()))
        return on_loan if machine is None else on_loan | machine.slice_keys()

    def _charged_on(self, row: int) -> SliceAmount:
        slices = self._ledger.slices
        held = slices.held(self.key, row)
        return held - slices.waiting_on(row) if row in slices.waiting_rows() else held

    def waiting(self) -> Collection[str]:
        return [uid for row in self._ledger.slices.waiting_rows() if (uid := self._ledger.slices.uid_of(row))]

    def waiting_for(self, key: str) -> Mapping[str, SliceAmount]:
        row = self._ledger.slices.row_of(key)
        return NO_PODS if row is None else self._ledger.slices.pods_waiting_on(row)

    def claim(self, uid: str) -> None:
        self._ledger.slices.claim(uid)
