"""Chooses the plugin class for a domain's part in loans: lender, borrower, or one of them with a domain of another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from multisched.framework.context import PluginContext
from multisched.plugins.loans.loans import BorrowingLoans, Loans
from multisched.plugins.loans.terms import BORROWERS_ARG, DOMAIN_ARG, Borrower


def loans_class(args: Mapping[str, Any]) -> type[Loans]:
    """Returns the class for the domain's part in loans."""
    borrowers: Sequence[Borrower] = args.get(BORROWERS_ARG, ())
    domain = args.get(DOMAIN_ARG)
    loans = (loan for borrower in borrowers for loan in borrower.loans)
    if any(loan.is_sliced and domain in (loan.borrower, *loan.users) for loan in loans):
        from multisched.plugins.loans.sliced_loans import SlicedLoans

        return SlicedLoans
    borrowing = {borrower.domain for borrower in borrowers}
    return BorrowingLoans if args.get(DOMAIN_ARG) in borrowing else Loans


def loans_of(args: Mapping[str, Any], context: PluginContext) -> Loans:
    """Returns the plugin for the domain's part in loans."""
    return loans_class(args)(context, args)
