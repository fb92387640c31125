"""When capacity that has to come back is late: each part of it has its own deadline."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multisched.plugins.loans.pools import Pool
from multisched.plugins.loans.recalls import Recall
from multisched.plugins.loans.terms import Borrower, LoanTerms

DEADLINE_S = 5.0
LOAN = LoanTerms("lender", "borrower", lambda node: True, "all nodes", is_idle=True)
POOL = Pool(Borrower("borrower", frozenset(), (LOAN,)), is_idle=True)


def late_at(excesses: list[int]) -> int | None:
    """Returns the second in which the recall is late; None if it never is."""
    recall = Recall(POOL, LOAN, 0, 0.0, "")
    for second, excess in enumerate(excesses):
        recall.update({"cpu": excess} if excess else {}, float(second), DEADLINE_S)
        if recall.is_late:
            return second
    return None


def test_need_that_keeps_rising_is_not_late_while_each_part_comes_back() -> None:
    assert late_at([2] + [3, 2] * 20) is None


def test_amount_that_does_not_come_back_is_late_after_its_deadline() -> None:
    assert late_at([1] * 10) == DEADLINE_S + 1


def test_part_that_came_later_has_a_later_deadline() -> None:
    assert late_at([2, 2, 2, 3, 1, 1, 1, 1, 1, 1, 1]) == 3 + DEADLINE_S + 1


@given(st.lists(st.integers(0, 4), max_size=40))
def test_late_means_that_the_oldest_unit_is_older_than_the_deadline(excesses: list[int]) -> None:
    units: list[int] = []
    expected = None
    for second, excess in enumerate(excesses):
        units = units[max(0, len(units) - excess) :]
        units += [second] * (excess - len(units))
        if expected is None and units and second - units[0] > DEADLINE_S:
            expected = second
    assert late_at(excesses) == expected
