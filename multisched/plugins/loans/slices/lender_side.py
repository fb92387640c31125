"""The lender's decisions about one borrower: the amount that it offers of each node.

Offers and `reserved` are computed in one step, so that no pod is placed in between (S1). No I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from multisched.framework.node_view import Bools, Int64, Rows, any_true
from multisched.model.objects import PODS
from multisched.model.slice_parts import NOTHING, RESOURCES, SliceAmount, SliceOffer, buckets_for
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.loans.needs import Need
from multisched.plugins.loans.pools import Pool, at_rows, grown_to
from multisched.plugins.loans.slices.slice_rows import grown_columns
from multisched.plugins.loans.terms import LoanTerms
from multisched.plugins.slices.lender_slices import LenderSlices
from multisched.plugins.slices.sides import KEYS_PER_STEP, LendingSide, LoanKey

ROWS_PER_STEP: Final = 25
"""Rows whose offers change before other tasks run."""
GATHER_S: Final = 1.0
"""Time for which pending pods are collected before capacity is recalled for them, so that one write recalls for many pods."""
TYPICAL: Final = SliceAmount(500, 1 << 29, 4)
"""An offer that changes by less than this and by less than a tenth is not written."""


class LenderSide(LendingSide):
    """The slices that one domain lends to another one."""

    write_pause_max_s = 8.0

    def __init__(self, key: LoanKey, ledger: LoanLedger) -> None:
        super().__init__(key, ledger.slices)
        self._ledger = ledger
        self._pool = ledger.slices.pool_of[key]
        self._numbers = [number for number, loan in enumerate(self._pool.loans) if loan.lender == key[0]]
        self._columns: dict[str, Int64] = {}
        """Resource -> int64[rows]: what was offered last; only rows with other amounts are checked again."""
        self._noted: Int64 = np.zeros(0, np.int64)
        """int64[rows]: the number of the node of these amounts."""
        self._checked_at = (-1, -1)
        """Versions of loans and nodes for which offers of other rows were withdrawn."""

    def _new_machine(self, namespace: str) -> LenderSlices:
        rows = sum(len(self._rows(number)) for number in self._numbers)
        return LenderSlices(*self.key, namespace, buckets_for(rows))

    def _forget_offers(self) -> None:
        self._columns.clear()
        self._noted = np.zeros(0, np.int64)
        self._checked_at = (-1, -1)

    def refresh(self) -> bool:
        """Reads the reserved amounts of all slices from the machine. Returns True if an amount has decreased."""
        machine = self.machine
        return machine is not None and self._ledger.slices.refresh_reserved(self.key, self._uids(machine))

    def _refresh_some(self, machine: LenderSlices, keys: Collection[str]) -> bool:
        self._note(machine, keys)
        return self._ledger.slices.refresh_reserved(self.key, keys)

    def _uids(self, machine: LenderSlices) -> set[str]:
        rows = (self._ledger.slices.uid_of(row) for number in self._numbers for row in self._rows(number).tolist())
        return machine.slice_keys().union(rows)

    def _rows(self, number: int) -> Rows:
        rows: Rows = (self._pool.loan_of == number).nonzero()[0]
        return rows

    # -- offers ----------------------------------------------------------------------------------------------------

    def gather_s(self) -> float:
        """Returns 0 if waiting pods need, on at least one node, only amounts that the borrower does not hold; a write makes these free."""
        machine, slices = self.machine, self._ledger.slices
        rows = np.array(sorted({need.row for need in self._needs()}), np.intp)
        uids = map(slices.uid_of, rows.tolist())
        held = [(NOTHING if machine is None else machine.held(uid)).of_nodes() for uid in uids]
        columns = np.array(held, np.int64).reshape(-1, len(RESOURCES)).T
        is_enough = np.ones(len(rows), np.bool_)
        for name, amounts in zip(RESOURCES, columns, strict=True):
            kept = np.maximum(amounts, self._pool.held_at(name, rows))
            unheld = self._room(name, rows) + slices.reserved(self.key, name, rows) - kept
            is_enough &= unheld >= self._ledger.needs.at(name, rows)
        return 0.0 if any_true(is_enough) else GATHER_S

    def is_short(self) -> bool:
        return bool(self._needs())

    def _needs(self) -> list[Need]:
        """Returns the needs of the lender's waiting pods on nodes of this loan."""
        every = self._ledger.needs.all()
        numbers = self._pool.loans_at(np.array([need.row for need in every], np.intp)).tolist()
        return [need for need, number in zip(every, numbers, strict=True) if number in self._numbers]

    async def offer(self, now_s: float, may_write: Callable[[], bool], *, raises: bool) -> None:
        """Sets the offer of each row on loan to what the loan's terms allow now, and withdraws offers of other rows.

        If `raises` is False, offers are only lowered: while many pods of the lender are created, capacity that was freed for the first
        pods is kept for the next ones. Lets other tasks run between rows.
        """
        machine = self.machine
        assert machine is not None, "a term has begun"
        for number in self._numbers:
            rows = self._rows(number)
            is_other = self._is_other(rows)
            for name, amounts in self._wanted(rows)[0].items():
                is_other |= amounts != at_rows(self._columns.get(name), rows, -1)
            rows = rows[is_other]
            for first in range(0, len(rows), ROWS_PER_STEP):
                await asyncio.sleep(0)
                if not may_write():
                    return
                self._offer_rows(machine, number, rows[first : first + ROWS_PER_STEP], now_s, raises=raises)
            await asyncio.sleep(0)
        await self._withdraw_others(machine, now_s, may_write)

    async def _withdraw_others(self, machine: LenderSlices, now_s: float, may_write: Callable[[], bool]) -> None:
        """Withdraws the offers of nodes that are no longer on loan. Lets other tasks run between nodes."""
        slices = self._ledger.slices
        versions = self._ledger.loans_version, slices.node_number
        if versions == self._checked_at:
            return
        self._checked_at = versions
        for count, uid in enumerate(machine.slice_keys(), 1):
            if count % KEYS_PER_STEP == 0:
                await asyncio.sleep(0)
                if not may_write():
                    return
            row = slices.row_of(uid)
            if (row is None or not slices.is_lent(self.key, row)) and machine.offer_of(uid).amount:
                machine.recall(uid, NOTHING, int(now_s))
                slices.refresh_reserved(self.key, (uid,))
                self._note(machine, (uid,))

    def _offer_rows(self, machine: LenderSlices, number: int, rows: Rows, now_s: float, *, raises: bool) -> None:
        """Sets the offers of these rows to what the terms allow and the nodes have. The ledger's `reserved` includes them afterwards."""
        slices, loan, changed = self._ledger.slices, self._pool.loans[number], list[str]()
        rows = rows[self._pool.loans_at(rows) == number]
        (wanted, kept), room = self._wanted(rows), {name: self._room(name, rows) for name in RESOURCES}
        until_s = self._until_s(loan, now_s)
        for at, row in enumerate(rows.tolist()):
            uid = slices.uid_of(row)
            changed.append(uid)
            amount = _amount_at(wanted, at) | (machine.held(uid) & _amount_at(kept, at))
            if self.has_no_leader or self._ledger.needs.on(row):
                amount &= machine.held(uid)  # nothing new is lent
            if not raises:
                amount &= machine.offer_of(uid).amount
            self._offer_row(machine, row, uid, SliceOffer(amount, until_s), _amount_at(room, at), loan, now_s)
        slices.refresh_reserved(self.key, changed)
        self._note(machine, changed)

    def _is_other(self, rows: Rows) -> Bools:
        """Returns bool[rows]: rows to check even if the terms allow the same amount as the last offer."""
        if self.has_no_leader:
            return np.ones(len(rows), np.bool_)
        is_other: Bools = at_rows(self._noted, rows, -1) != self._ledger.slices.numbers_at(rows)
        return is_other

    def _note(self, machine: LenderSlices, uids: Iterable[str]) -> None:
        """Records the last offer of each of these nodes."""
        for uid in uids:
            row = self._ledger.slices.row_of(uid)
            if row is None:
                continue
            self._noted = grown_to(self._noted, row, -1)
            self._noted[row] = self._ledger.slices.number_of(row)
            columns = grown_columns(self._columns, row, -1).values()
            for column, one in zip(columns, machine.offer_of(uid).amount.of_nodes(), strict=True):
                column[row] = one

    def _offer_row(
        self,
        machine: LenderSlices,
        row: int,
        uid: str,
        wanted: SliceOffer,
        room: SliceAmount,
        loan: LoanTerms,
        now_s: float,
    ) -> None:
        """Raises or lowers the offer of one node. An offered amount that is not held is withdrawn by the write; a held one is recalled."""
        before = machine.offer_of(uid)
        if wanted.amount == before.amount:
            return
        if wanted.amount.is_within(before.amount) and not machine.held(uid).is_within(wanted.amount):
            notice_s = 0.0 if loan.returns is None else loan.returns.notice_s
            machine.recall(uid, wanted.amount, int(now_s + notice_s))
            return
        is_needed = bool(self._ledger.needs.on(row))
        node = self._ledger.nodes.node(row).name
        machine.offer(uid, node, wanted, room, typical=NOTHING if is_needed or not wanted.amount else TYPICAL)

    def _wanted(self, rows: Rows) -> tuple[Mapping[str, Int64], Mapping[str, Int64]]:
        """Returns resource -> int64[rows] twice. Both are what the terms allow the borrower, minus amounts of earlier borrowers.

        The first subtracts what the terms allow the earlier borrowers, and is for new offers. The second subtracts only what they hold or
        may hold, and is the limit for what this borrower already holds.
        """
        wanted, kept = {}, {}
        for name in RESOURCES:
            terms = self._terms(self._pool, name, rows)
            held_before, wanted_before = self._kept_for_earlier(name, rows)
            wanted[name], kept[name] = np.maximum(0, terms - wanted_before), np.maximum(0, terms - held_before)
        return wanted, kept

    def _terms(self, pool: Pool, resource: str, rows: Rows) -> Int64:
        """Returns int64[rows]: what the terms allow the pool's borrower to hold of this lender, without regard to other borrowers."""
        found: Int64 = np.zeros(len(rows), np.int64)
        numbers = pool.loans_at(rows)
        for number, loan in enumerate(pool.loans):
            if loan.lender == self.key[0] and pool.is_open[number] and resource in loan.resources:
                at = (numbers == number).nonzero()[0]
                found[at] = np.maximum(0, self._ledger.lendable(pool, loan, resource, rows[at]))
        return found

    def _room(self, resource: str, rows: Rows) -> Int64:
        """Returns int64[rows]: allocatable minus what is charged to the lender and reserved for all its borrowers."""
        nodes, slices = self._ledger.nodes, self._ledger.slices
        free: Int64 = nodes.allocatable(resource).take(rows) - nodes.requested(resource).take(rows)
        own = self._pool.held_at(resource, rows) - slices.reserved(self.key, resource, rows)
        room: Int64 = free + own - slices.kept(self._others(), resource, rows)
        return room

    def _kept_for_earlier(self, resource: str, rows: Rows) -> tuple[Int64, Int64]:
        """Returns int64[rows] twice, for borrowers that the configuration lists before this one.

        The first is what they hold or may hold. The second is at least what their terms allow, even if they do not need it now. Otherwise a
        later borrower would keep an offer that an earlier one did not need for a while.
        """
        slices = self._ledger.slices
        held: Int64 = np.zeros(len(rows), np.int64)
        wanted: Int64 = np.zeros(len(rows), np.int64)
        for key, pool in slices.pool_of.items():
            if key == self.key:
                break
            if key[0] == self.key[0]:
                of_one = np.maximum(slices.reserved(key, resource, rows), pool.held_at(resource, rows))
                wanted += np.maximum(of_one, self._terms(pool, resource, rows) - wanted)
                held += of_one
        return held, wanted

    def _others(self) -> Sequence[LoanKey]:
        return [key for key in self._ledger.slices.pool_of if key[0] == self.key[0] and key != self.key]

    @staticmethod
    def _until_s(loan: LoanTerms, now_s: float) -> int:
        closes_s = loan.closes_s(now_s)
        before_s = 0.0 if loan.returns is None else loan.returns.deadline_s
        return 0 if closes_s is None or closes_s == float("inf") else int(closes_s - before_s)

    def rows_with_foreign(self) -> Rows:
        """Returns the rows whose foreign pods request more than the loan keeps for them."""
        ledger, found = self._ledger, [np.zeros(0, np.intp)]
        for number in self._numbers:
            rows = self._rows(number)
            allocatable = {name: ledger.nodes.allocatable(name).take(rows) for name in RESOURCES}
            found.append(ledger.foreign.beyond(self._pool.loans[number], rows, allocatable))
        return np.concatenate(found)

    def pods_on(self, rows: Rows) -> Int64:
        """Returns int64[rows]: pods of the borrower there."""
        return self._pool.held_at(PODS, rows)

    def _charged(self, machine: LenderSlices) -> dict[str, SliceAmount]:
        """Returns uid of a node -> what the borrower's pods request there, for nodes of the loan."""
        slices, charged = self._ledger.slices, {}
        for uid in machine.slice_keys():
            row = slices.row_of(uid)
            if row is not None and slices.is_lent(self.key, row):
                charged[uid] = slices.held(self.key, row)
        return charged


def _amount_at(amounts: Mapping[str, Int64], at: int) -> SliceAmount:
    return SliceAmount.of({name: max(0, int(amounts[name][at])) for name in RESOURCES})
