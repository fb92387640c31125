"""The driver of a process that stops, or loses its lease, during a takeover."""

from __future__ import annotations

from multisched.plugins.loans.sliced_loans import SlicedLoans
from tests.unit.plugins.loans.test_loan_limits import borrower, domain_of, plugin_of


def test_nothing_is_settled_of_slices_that_are_not_owned() -> None:
    job = borrower("job", "test", is_sliced=True, users={"lender": frozenset({"lender-scheduler"})})
    plugin = plugin_of(domain_of(job))
    assert isinstance(plugin, SlicedLoans)
    plugin.settle_slices()
    (shown,) = plugin.driver.document()
    assert (shown["isOwned"], shown["role"]) == (False, "borrower")
