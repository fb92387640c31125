"""Rows on loan whose nodes are deleted or leave the loan: what background tasks have set for them does not outlive them."""

from __future__ import annotations

import numpy as np
import pytest

from multisched.model.objects import CPU
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.loans.terms import Borrower, LoanTerms, ReturnTerms
from multisched.state.node_table import NodeTable
from multisched.testing.builders import make_node

LENT = {"lent": "yes"}
RETURNS = ReturnTerms(20.0, 10.0, 60.0, 6)


@pytest.mark.parametrize("successor", [None, make_node("n"), make_node("other", labels=LENT)])
def test_reserve_and_offer_of_a_row_end_with_its_node(successor: object) -> None:
    table = NodeTable()
    loans = [
        LoanTerms(
            "lender", "job", lambda node: node.labels.get("lent") == "yes", "nodes", is_idle=is_idle, returns=RETURNS
        )
        for is_idle in (False, True)
    ]
    ledger = LoanLedger([Borrower("job", frozenset({"job-scheduler"}), tuple(loans))], table)
    row = table.set_node(make_node("n", labels=LENT))
    ledger.set_node(row, table.node(row))
    rows = np.array([row], np.intp)
    free, idle = ledger.pools
    ledger.set_rows(free.reserve, free, CPU, rows, np.array([500]))
    ledger.set_rows(idle.offer, idle, CPU, rows, np.array([500]))

    ledger.set_node(row, None)
    table.remove_node("n")
    if successor is not None:
        ledger.set_node(row, successor)  # type: ignore[arg-type]

    exported = ledger.export()
    assert isinstance(exported, tuple)
    assert exported[0] == {}
    assert [int(pool.at(columns, CPU, rows)[0]) for pool, columns in ((free, free.reserve), (idle, idle.offer))] == [
        0,
        0,
    ]
