"""The pods of borrowers by kind of demand, and what they hold per row. Owned by the LoanLedger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from multisched.framework.node_view import Int64, Rows
from multisched.model.objects import CPU, MEMORY, PODS
from multisched.plugins.loans.terms import Borrower

OWN: Final = -1
"""In `Pool.loan_of`: the row is the borrower's own."""
NO_POOL: Final = -2
"""In `Pool.loan_of`: the row lends nothing to pods of this pool."""

Trial = Mapping[tuple[int, bool], Mapping[str, int]]
"""(row, whether the amount is of the pod's own pool) -> resource -> amount that borrowers' pods hold there in an overlay, minus the amount
in the ledger.
"""
NO_TRIAL: Final[Trial] = {}


def at_rows(column: Int64 | None, rows: Rows, missing: int = 0) -> Int64:
    """Returns int64[rows]: the column's values; `missing` where it is shorter, or None."""
    if column is None or not len(column):
        return np.full(len(rows), missing, np.int64)
    try:
        return column.take(rows)
    except IndexError:
        found: Int64 = np.where(rows < len(column), column.take(rows, mode="clip"), missing)
        return found


def at_row(column: Int64 | None, row: int, missing: int = 0) -> int:
    """Returns the column's value; `missing` where it is shorter, or None."""
    return missing if column is None or row >= len(column) else column.item(row)


def grown_to(column: Int64, row: int, missing: int = 0) -> Int64:
    """Returns the column, or a longer copy if it lacks the row; new entries are `missing`."""
    if row < len(column):
        return column
    return np.concatenate((column, np.full(max(64, 2 * (row + 1)) - len(column), missing, np.int64)))


class Held(msgspec.Struct, frozen=True):
    """The amounts that one pod of a borrower holds; compared by the audit."""

    row: int
    pool: int
    amounts: Mapping[str, int]
    is_bound: bool = False
    """The API server shows the pod on the node."""


class Pool:
    """The pods of one borrower with one kind of demand: requests, or idle demand. Amounts are int64[rows]."""

    def __init__(self, borrower: Borrower, *, is_idle: bool) -> None:
        self.borrower = borrower
        self.is_idle = is_idle
        self.loans = [loan for loan in borrower.loans if loan.is_idle == is_idle]
        sliced = frozenset({CPU, MEMORY}) if any(loan.is_sliced for loan in self.loans) else frozenset[str]()
        self.resources = sliced.union(*(loan.resources for loan in self.loans))
        """The resources that are counted. Requests of other resources are ignored, because there may be any number of them."""
        self.is_open = [loan.hours is None for loan in self.loans]
        """For each loan; set by the background task of the borrower, which knows the time."""
        self.is_frozen = [False] * len(self.loans)
        """For each loan: True if nothing more is lent, and held capacity is not recalled. Set by the background task of the lender."""
        self.held: dict[str, Int64] = {}
        """Resource -> amounts held, on any row."""
        self.reserve: dict[str, Int64] = {}
        """Resource -> the amounts that are kept free for the lender's growth."""
        self.offer: dict[str, Int64] = {}
        """Resource -> the limit of held idle capacity, or of held capacity on rows of sliced loans."""
        self.pods: Int64 = np.zeros(0, np.int64)
        self.loan_of: Int64 = np.zeros(0, np.int64)
        """int64[rows]: index into `loans`, OWN or NO_POOL."""

    def column(self, columns: dict[str, Int64], resource: str) -> Int64:
        """Returns the column of a resource, of the current number of rows."""
        found = columns.get(resource)
        if found is None or len(found) < len(self.pods):
            grown: Int64 = np.zeros(len(self.pods), np.int64)
            if found is not None:
                grown[: len(found)] = found
            columns[resource] = found = grown
        return found

    def at(self, columns: Mapping[str, Int64], resource: str, rows: Rows) -> Int64:
        """Returns int64[rows]: the column at these rows; zeros where nothing was set."""
        return at_rows(columns.get(resource), rows)

    def held_at(self, resource: str, rows: Rows) -> Int64:
        """Returns int64[rows], as a copy: the amount that pods of the pool hold there; for the resource `pods`, their number."""
        return at_rows(self.pods if resource == PODS else self.held.get(resource), rows)

    def held_on(self, resource: str, row: int) -> int:
        """Returns the amount that pods of the pool hold on the row; for the resource `pods`, their number."""
        return at_row(self.pods if resource == PODS else self.held.get(resource), row)

    def set_loan(self, row: int, number: int) -> bool:
        """Sets the loan of a row, and forgets the reserve and offer of its former loan. Returns True if the loan changed."""
        if self.loan_of[row] == number:
            return False
        self.loan_of[row] = number
        for column in (*self.reserve.values(), *self.offer.values()):
            column[row : row + 1] = 0  # it may be shorter
        return True

    def loans_at(self, rows: Rows) -> Int64:
        """Returns int64[rows]: see `loan_of`."""
        return at_rows(self.loan_of, rows, OWN)
