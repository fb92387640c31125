"""The borrower's decisions about one lender: how much of which node it claims, and which waiting pods may be bound.

A pod is placed where enough is offered, and waits at Permit until it is claimed (`SliceRows.waiting`). What is charged does not include
waiting pods, so it never exceeds what is usable (S2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from multisched.framework.context import WaitingPods
from multisched.framework.node_view import Rows
from multisched.framework.slice_writes import SliceRequest
from multisched.model.cluster_objects import SliceSet
from multisched.model.slice_parts import NOTHING, SliceAmount
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.loans.slices.borrower_slices import BorrowerSlices, claim_block
from multisched.plugins.loans.slices.slice_rows import LoanKey

LINGER_S: Final = 15.0
"""What no pod has used for so long is released, at latest after twice the time."""
BLOCK_PERCENT: Final = 10
"""What a claim takes in addition to the pods that wait for it. Each further one takes twice as much more as the one before."""
DOUBLED_MAX: Final = 4
"""How often that is doubled."""
NODES_PER_STEP: Final = 200
"""Nodes that are looked at before other tasks run."""
WITHDRAWN: Final = "the lender offers less of the node than before"


class _Wanted(msgspec.Struct):
    """What should be held of one node."""

    amount: SliceAmount = NOTHING
    most: SliceAmount = NOTHING
    """The most that was needed since `BorrowerSide` began to count."""
    most_before: SliceAmount = NOTHING
    """The same of the time before."""


class BorrowerSide:
    """The slices that one domain borrows from another one."""

    role = "borrower"

    def __init__(self, key: LoanKey, ledger: LoanLedger) -> None:
        self.key = key
        self._ledger = ledger
        self._pool = ledger.slices.pool_of[key]
        self._wanted: dict[str, _Wanted] = {}
        self._doubled = 0
        """How often the block of a claim was doubled: it grows while pods keep coming."""
        self._counts_until_s = 0.0
        """When what was needed before is forgotten."""

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
                self._wanted[uid] = _Wanted(held, most=held)

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

    def change(self, name: str, change: Callable[[BorrowerSlices], bool]) -> bool:
        """Lets the machine take what concerns one object; returns True if more is offered somewhere.

        `change` returns False if nothing has changed."""
        machine = self.machine
        if machine is None:
            return False
        were_readable, before = machine.are_offers_readable(), machine.nodes_in(name)
        if not change(machine):
            return False
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

    def due_count(self) -> int:
        """Returns how many objects may need a request."""
        machine, touched = self.machine, self._ledger.slices.touched
        if machine is None:
            return 0
        uids, touched[self.key] = touched[self.key], set()
        machine.touch(uids)
        return machine.due_count

    def next_requests(self, most: int) -> list[SliceRequest]:
        """Returns the requests that are needed of `most` objects."""
        if not self.due_count():
            return []
        assert self.machine is not None, "an object of it is due"
        return self.machine.next_requests(_ChargedNodes(self), most)

    def charged(self, uid: str) -> SliceAmount:
        """Returns what pods on the node request, if it is on loan; if it has left, no more than what is held."""
        machine, slices = self.machine, self._ledger.slices
        row = slices.row_of(uid)
        if row is None:
            return NOTHING
        if slices.is_lent(self.key, row):
            return self._charged_on(row)
        return NOTHING if machine is None else slices.held(self.key, row) & machine.held(uid)

    def charged_nodes(self) -> set[str]:
        """Returns the uids of all nodes for which something may be charged."""
        rows, machine = self._rows(), self.machine
        rows = rows[self._ledger.has_pods(self._pool, rows)]
        on_loan = set(map(self._ledger.slices.uid_of, rows.tolist()))
        return on_loan if machine is None else on_loan | machine.nodes()

    def _charged_on(self, row: int) -> SliceAmount:
        slices = self._ledger.slices
        held = slices.held(self.key, row)
        return held - slices.waiting_on(row) if row in slices.waiting_rows() else held

    async def want(self) -> None:
        """Claims what pods wait for. Pauses between the nodes."""
        machine, slices = self.machine, self._ledger.slices
        assert machine is not None, "a term has begun"
        is_more, percent = False, BLOCK_PERCENT << self._doubled
        for count, row in enumerate(list(slices.waiting_rows()), 1):
            if count % NODES_PER_STEP == 0:
                await asyncio.sleep(0)
            if row not in slices.waiting_rows() or not slices.is_lent(self.key, row):
                continue
            uid, need = slices.uid_of(row), self._charged_on(row) + slices.waiting_on(row)
            wanted = self._wanted.get(uid) or _Wanted()
            wanted.most |= need
            if not need.is_within(wanted.amount):
                self._set(machine, uid, wanted, claim_block(need, machine.offered_of(uid), percent) | wanted.amount)
                is_more = True
        self._doubled = min(self._doubled + is_more, DOUBLED_MAX)

    async def release(self, now_s: float) -> None:
        """Releases what no pod has used for a while, and nodes that are not on loan any more. Pauses between the nodes."""
        machine, slices = self.machine, self._ledger.slices
        assert machine is not None, "a term has begun"
        machine.return_parts()
        is_over = now_s >= self._counts_until_s
        if is_over:
            self._counts_until_s, self._doubled = now_s + LINGER_S, self._doubled // 2
        for count, uid in enumerate(list(self._wanted), 1):
            if count % NODES_PER_STEP == 0:
                await asyncio.sleep(0)
            wanted, row = self._wanted.get(uid), slices.row_of(uid)
            if wanted is None:
                continue
            if row is None or not slices.is_lent(self.key, row):
                self._set(machine, uid, wanted, NOTHING)
                continue
            need = slices.held(self.key, row)
            wanted.most |= need
            if is_over:
                most = wanted.most | wanted.most_before
                wanted.most, wanted.most_before = need, wanted.most
                offered = machine.offered_of(uid)
                kept = claim_block(most, offered, 0)
                if kept != wanted.amount and claim_block(most, offered, BLOCK_PERCENT).is_within(wanted.amount):
                    self._set(machine, uid, wanted, kept)

    def _set(self, machine: BorrowerSlices, uid: str, wanted: _Wanted, amount: SliceAmount) -> None:
        machine.want(uid, amount)
        wanted.amount = amount
        if amount:
            self._wanted[uid] = wanted
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

    def release_waiting(
        self, rows: Iterable[int], pods: WaitingPods, plugin: str, now_s: float, allow: Callable[[str], None]
    ) -> None:
        """Allows pods at Permit on these rows for which enough is claimed, and rejects those for which too little is offered now."""
        slices, machine = self._ledger.slices, self.machine
        rows = [row for row in rows if row in slices.waiting_rows() and slices.is_lent(self.key, row)]
        if machine is None or not rows:
            return
        at_permit = {pod.uid for pod in pods.waiting()}
        for row in rows:
            for uid in [uid for uid in slices.uids_waiting_on(row) if uid in at_permit]:
                if uid not in slices.waiting:
                    continue
                if self.may_use(uid, now_s):
                    allow(uid)
                    continue
                offered = machine.offered_of(slices.uid_of(row))
                if not (self._charged_on(row) + slices.waiting[uid].amount).is_within(offered):
                    pods.reject(uid, plugin, WITHDRAWN)


class _ChargedNodes(Mapping[str, SliceAmount]):
    """uid -> what is charged, read when it is asked for: of most nodes nobody asks."""

    def __init__(self, side: BorrowerSide) -> None:
        self._side = side

    def __getitem__(self, uid: str) -> SliceAmount:
        return self._side.charged(uid)

    def __iter__(self) -> Iterator[str]:
        return iter(self._side.charged_nodes())

    def __len__(self) -> int:
        return len(self._side.charged_nodes())
