"""SliceRows: the amounts of each row that are reserved for borrowers of other processes, and the pods that wait for a claim.

Owned by the LoanLedger, which passes changes of nodes and pods to it. When a state machine changes, the side of the lender or borrower
refreshes the columns before the next await, so that Filter and commit always read current reserved amounts and offers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from multisched.framework.node_view import Int64, NodeView, Rows
from multisched.model.objects import CPU, MEMORY, PODS, Node, Pod
from multisched.model.slice_parts import NOTHING, RESOURCES, SliceAmount
from multisched.plugins.loans.pools import OWN, Held, Pool, at_row, at_rows, grown_to
from multisched.plugins.slices.sides import LoanKey, SliceMachines, sum_of

SliceTrial = Mapping[tuple[int, LoanKey], Mapping[str, int]]
"""(row, loan) -> resource -> amount that pods of the borrower hold there in a trial, minus the amount in the ledger."""
NO_SLICE_TRIAL: Final[SliceTrial] = {}


class WaitingPod(msgspec.Struct, frozen=True):
    """A pod that is assumed on a sliced row, and is bound only after the borrower has claimed its requests."""

    row: int
    amount: SliceAmount


class SliceRows(SliceMachines):
    """The sliced loans of one process. Stores nothing if there are none."""

    def __init__(self, pools: Sequence[Pool], nodes: NodeView) -> None:
        super().__init__()
        self._nodes = nodes
        self.pool_of: dict[LoanKey, Pool] = {}
        self._keys_of_user: dict[str, dict[LoanKey, None]] = {}
        """Domain -> loans for whose borrowers its pods must leave room."""
        self._keys_of_name: dict[str, dict[LoanKey, None]] = {}
        """schedulerName -> loans for whose borrowers its pods must leave room."""
        for pool in pools:
            for loan in pool.loans:
                if loan.is_sliced:
                    key = loan.lender, loan.borrower
                    self.pool_of[key] = pool
                    for user, names in loan.users.items():
                        self._keys_of_user.setdefault(user, {})[key] = None
                        for name in names:
                            self._keys_of_name.setdefault(name, {})[key] = None
        self.version = 0
        """Increases with each change of a column."""
        self.touched: dict[LoanKey, set[str]] = {key: set() for key in self.pool_of}
        """Loan -> uids of nodes whose pods have changed since the borrowing side last read this."""
        self.waiting: dict[str, WaitingPod] = {}
        self._waiting_on: dict[int, dict[str, SliceAmount]] = {}
        """Row -> uid of a waiting pod -> its requests."""
        self._claimed: set[str] = set()
        """uids of assumed pods for which enough is claimed."""
        self._columns: dict[LoanKey, dict[str, Int64]] = {}
        """Loan -> resource -> int64[rows]: reserved amounts."""
        self._row_of: dict[str, int] = {}
        self._uid_of: dict[int, str] = {}
        self.node_number = 0
        """Increases when a row gets or loses a node."""
        self._numbers: Int64 = np.zeros(0, np.int64)
        """int64[rows]: `node_number` when the row got its node."""

    def __bool__(self) -> bool:
        return bool(self.pool_of)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def set_node(self, row: int, node: Node | None) -> None:
        """Sets the node of a row. Called after the pools have it."""
        if not self.pool_of:
            return
        self.touch(row)
        before = self._uid_of.pop(row, None)
        if before is not None and self._row_of.get(before) == row:
            del self._row_of[before]
        if before != (None if node is None else node.uid):
            self.node_number += 1
            self._numbers = grown_to(self._numbers, row)
            self._numbers[row] = self.node_number
        if node is not None:
            self._row_of[node.uid], self._uid_of[row] = row, node.uid
            self.touch(row)
        for key in self.pool_of:
            if key in self._columns:
                self._set(self._column_set(key, row), row, NOTHING)
        if node is not None:
            for key in self.lent:
                self.refresh_reserved(key, (node.uid,))
            for key in self.borrowed:
                self.refresh_offers(key, (node.uid,))

    def row_of(self, uid: str) -> int | None:
        """Returns the row of the node with this uid."""
        return self._row_of.get(uid)

    def uid_of(self, row: int) -> str:
        return self._uid_of.get(row, "")

    def number_of(self, row: int) -> int:
        return self._numbers.item(row)

    def numbers_at(self, rows: Rows) -> Int64:
        """Returns int64[rows]: `node_number` at the time when the row got its node. It differs for each node of the row."""
        return at_rows(self._numbers, rows)

    def is_lent(self, key: LoanKey, row: int) -> bool:
        """Reports whether the row is on this loan now."""
        pool = self.pool_of[key]
        number = pool.loan_of.item(row) if row < len(pool.loan_of) else OWN
        return number >= 0 and pool.loans[number].lender == key[0]

    def touch(self, row: int) -> None:
        """Records that pods of borrowers on the row have changed."""
        uid = self._uid_of.get(row)
        if uid is not None:
            for touched in self.touched.values():
                touched.add(uid)

    # -- the lender's side -----------------------------------------------------------------------------------------

    def refresh_reserved(self, key: LoanKey, uids: Iterable[str]) -> bool:
        """Reads the reserved amounts of these nodes from the machine. Returns True if one has decreased."""
        machine, is_less = self.lent[key], False
        for uid in uids:
            row = self._row_of.get(uid)
            if row is not None:
                is_less |= self._set(self._column_set(key, row), row, machine.reserved(uid))
        return is_less

    def set_reserved(self, key: LoanKey, row: int, resource: str, amount: int) -> None:
        """Sets an amount that another process has reserved. For a copy of the program (sandbox)."""
        self._column_set(key, row)[resource][row] = amount
        self.version += 1

    def entries(self) -> Iterator[tuple[LoanKey, str, int, int]]:
        """Yields (loan, resource, row, reserved amount)."""
        for key, columns in self._columns.items():
            for resource, column in columns.items():
                for row in column.nonzero()[0].tolist():
                    yield key, resource, row, int(column[row])

    def reserved(self, key: LoanKey, resource: str, rows: Rows) -> Int64:
        """Returns int64[rows]: the reserved amount, including what pods of the borrower use of it."""
        return at_rows(self._columns.get(key, {}).get(resource), rows)

    def is_user(self, pod: Pod) -> bool:
        """Reports whether the pod may use rows of a lender, so that it must leave room for what borrowers hold."""
        return pod.spec.scheduler_name in self._keys_of_name

    def keys_of(self, domain: str) -> Sequence[LoanKey]:
        """Returns the loans for whose borrowers pods of the domain must leave room."""
        return tuple(self._keys_of_user.get(domain, ()))

    def kept(self, keys: Iterable[LoanKey], resource: str, rows: Rows, trial: SliceTrial = NO_SLICE_TRIAL) -> Int64:
        """Returns int64[rows]: the reserved amounts minus the requests of the borrowers' pods on the row. Other pods cannot use them.

        Amounts of borrowers' pods that `trial` removes stay kept.
        """
        total: Int64 = np.zeros(len(rows), np.int64)
        for key in keys:
            column = self._columns.get(key, {}).get(resource)
            if column is None:
                continue  # nothing was ever reserved
            held = self.pool_of[key].held_at(resource, rows)
            for (row, loan), amounts in trial.items():
                if loan == key:
                    held[rows == row] += amounts.get(resource, 0)
            total += np.maximum(0, at_rows(column, rows) - held)
        return total

    def refusal_of_user(self, pod: Pod, row: int) -> str:
        """Returns why a pod that belongs to no borrower may not use the row; empty if it may."""
        columns = [
            (self.pool_of[key], self._columns.get(key, {})) for key in self._keys_of_name[pod.spec.scheduler_name]
        ]
        for resource, amount in requests_of(pod).items():
            kept = sum(max(0, at_row(of.get(resource), row) - pool.held_on(resource, row)) for pool, of in columns)
            if not kept:
                continue
            left = self._nodes.allocatable(resource).item(row) - self._nodes.requested(resource).item(row)
            if left - kept < amount:
                return kept_for_borrowers(resource)
        return ""

    # -- the borrower's side ---------------------------------------------------------------------------------------

    def refresh_offers(self, key: LoanKey, uids: Iterable[str]) -> bool:
        """Reads the offered amounts of these nodes from the machine. Returns True if one has increased."""
        machine, pool, is_more = self.borrowed[key], self.pool_of[key], False
        columns = [pool.column(pool.offer, resource) for resource in RESOURCES]
        for uid in uids:
            row = self._row_of.get(uid)
            if row is None or not self.is_lent(key, row):
                continue
            for column, one in zip(columns, machine.offered_of(uid).of_nodes(), strict=True):
                before = column.item(row)
                if one != before:
                    is_more |= one > before
                    self.version += 1
                    column[row] = one
        return is_more

    def added(self, pod: Pod, held: Held, pool: Pool) -> None:
        """Handles a pod of the pool that was added to a row. On a sliced row, it waits for a claim unless it is bound already."""
        if held.is_bound:
            self._claimed.discard(pod.uid)
        if not self.pool_of or held.is_bound or pod.uid in self._claimed:
            return
        number = int(pool.loans_at(np.array([held.row], np.intp))[0])
        if number >= 0 and pool.loans[number].is_sliced:
            self.waiting[pod.uid] = WaitingPod(held.row, amount_of(pod))
            self._waiting_on.setdefault(held.row, {})[pod.uid] = amount_of(pod)

    def released(self, uid: str) -> None:
        """Handles a pod that is no longer on its row, or no longer waits."""
        known = self.waiting.pop(uid, None)
        if known is not None:
            self.touch(known.row)
            del self._waiting_on[known.row][uid]
            if not self._waiting_on[known.row]:
                del self._waiting_on[known.row]

    def claim(self, uid: str) -> None:
        """Ends the wait of a pod at Permit, because enough is claimed for it. It is charged from now on."""
        self._claimed.add(uid)
        self.released(uid)

    def forget_claim(self, uid: str) -> None:
        """Handles a pod that is no longer assumed."""
        self._claimed.discard(uid)

    def waiting_on(self, row: int) -> SliceAmount:
        """Returns the sum of the requests of waiting pods on the row."""
        return sum_of(self._waiting_on[row].values()) if row in self._waiting_on else NOTHING

    def waiting_rows(self) -> Collection[int]:
        return self._waiting_on.keys()

    def pods_waiting_on(self, row: int) -> Mapping[str, SliceAmount]:
        """Returns uid -> amount of the waiting pods on the row, in the order of their arrival."""
        return self._waiting_on.get(row, {})

    def held(self, key: LoanKey, row: int) -> SliceAmount:
        """Returns the sum of the requests of the borrower's pods on the row, including waiting ones."""
        pool = self.pool_of[key]
        if row >= len(pool.pods) or not pool.pods.item(row):
            return NOTHING
        columns = pool.held.get(CPU), pool.held.get(MEMORY), pool.pods
        cpu, memory, pods = (0 if one is None or row >= len(one) else one.item(row) for one in columns)
        return SliceAmount(cpu, memory, pods)

    # -- internals -------------------------------------------------------------------------------------------------

    def _column_set(self, key: LoanKey, row: int) -> dict[str, Int64]:
        """Returns the columns of a loan, in the order of RESOURCES, long enough for the row."""
        return grown_columns(self._columns.setdefault(key, {}), row)

    def _set(self, columns: Mapping[str, Int64], row: int, amount: SliceAmount) -> bool:
        """Sets an amount. Returns True if the amount of a resource has decreased."""
        is_less = False
        for column, one in zip(columns.values(), amount.of_nodes(), strict=True):
            before = column.item(row)
            if one != before:
                is_less |= one < before
                self.version += 1
                column[row] = one
        return is_less


def amount_of(pod: Pod) -> SliceAmount:
    """Returns the amount of a slice that the pod takes."""
    return SliceAmount(pod.requests.get(CPU, 0), pod.requests.get(MEMORY, 0), 1)


def grown_columns(columns: dict[str, Int64], row: int, missing: int = 0) -> dict[str, Int64]:
    """Lengthens the columns, one per resource in the order of RESOURCES, to include the row, and returns them."""
    if not columns or row >= len(columns[PODS]):
        for name in RESOURCES:
            columns[name] = grown_to(columns.get(name, np.zeros(0, np.int64)), row, missing)
    return columns


def requests_of(pod: Pod) -> dict[str, int]:
    """Returns resource -> amount that the pod requests, for the resources of slices."""
    return amount_of(pod).amounts()


def kept_for_borrowers(resource: str) -> str:
    return f"Insufficient {resource}: it is lent to another domain"
