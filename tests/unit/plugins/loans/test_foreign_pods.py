"""Pods of other schedulers on nodes on loan: what is counted, and what is kept for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from multisched.framework.ledger import rebuild
from multisched.model.objects import PODS, Owner, Pod
from multisched.plugins.loans.foreign_pods import ForeignPods
from multisched.plugins.loans.terms import Borrower
from multisched.testing.builders import make_pod
from tests.unit.plugins.loans.test_loan_limits import CPU_MILLI, borrower, domain_of, plugin_of

OWN = frozenset({"job-scheduler", "lender-scheduler"})
ROWS = np.arange(3, dtype=np.intp)


def job(**fields: Any) -> Borrower:
    return borrower("job", "test", schedulers=OWN, **fields)


def foreign_pod(name: str, cpu_milli: int = 1_000, node: str = "") -> Pod:
    return make_pod(name, cpu_milli=cpu_milli, node=node)


@pytest.mark.parametrize(
    ("pod", "is_foreign"),
    [
        (foreign_pod("a"), True),
        (make_pod("b", scheduler="lender-scheduler"), False),
        (replace(foreign_pod("c"), owner=Owner("ReplicaSet", "r", "u")), True),
        (replace(foreign_pod("d"), owner=Owner("DaemonSet", "d", "u")), False),
        (replace(foreign_pod("e"), owner=Owner("Node", "n0", "u")), False),
    ],
)
def test_pods_that_each_node_has_are_not_foreign(pod: Pod, is_foreign: bool) -> None:
    assert ForeignPods([job(is_sliced=True)]).is_used_by(pod) == is_foreign


def test_loans_in_one_process_without_a_reserve_count_nothing() -> None:
    assert not ForeignPods([job()])
    assert ForeignPods([job(is_sliced=True)])
    assert ForeignPods([job(foreign_percent=10)])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.sampled_from([0, 500, 1_500]))))
def test_sums_equal_those_of_a_fresh_copy(steps: list[tuple[int, int, int]]) -> None:
    ledger, placed = ForeignPods([job(is_sliced=True)]), dict[str, tuple[Pod, int]]()
    for number, row, cpu_milli in steps:
        pod = foreign_pod(f"p{number}", cpu_milli)
        if cpu_milli:
            ledger.restore(pod, row)
            placed[pod.uid] = pod, row
        else:
            ledger.release(pod.uid)
            placed.pop(pod.uid, None)
    fresh = rebuild(ledger, (), placed.values())
    assert isinstance(fresh, ForeignPods)
    assert ledger.held() == fresh.held()
    assert [ledger.sums(row) for row in range(3)] == [fresh.sums(row) for row in range(3)]
    counts = [sum(1 for _, at in placed.values() if at == row) for row in range(3)]
    assert ledger.at(PODS, ROWS).tolist() == counts
    ledger.recount(1)
    assert ledger.sums(1) == fresh.sums(1)


def test_reserve_is_kept_until_foreign_pods_use_it_and_never_lent() -> None:
    domain = domain_of(job(foreign_percent=25), nodes=1)
    ledger = plugin_of(domain).ledger
    pool, row = ledger.pools[0], np.array([domain.row("n0")], np.intp)
    loan = pool.loans[0]

    def lent() -> int:
        return int(ledger.lendable(pool, loan, "cpu", row)[0])

    assert lent() == CPU_MILLI * 3 // 4
    domain.cache.place(foreign_pod("within", 1_500, node="n0"))
    assert lent() == CPU_MILLI * 3 // 4
    domain.cache.place(foreign_pod("beyond", 1_500, node="n0"))
    assert lent() == CPU_MILLI - 3_000
    domain.cache.place(make_pod("own", cpu_milli=2_000, scheduler="lender-scheduler", node="n0"))
    assert lent() == CPU_MILLI - 5_000


def test_only_rows_with_more_than_the_reserve_are_reported() -> None:
    ledger, terms = ForeignPods([job(foreign_percent=25)]), job(foreign_percent=25).loans[0]
    ledger.restore(foreign_pod("a", 1_500), 0)
    ledger.restore(foreign_pod("b", 2_500), 1)
    allocatable = {"cpu": np.full(3, CPU_MILLI), PODS: np.full(3, 100)}
    assert ledger.beyond(terms, ROWS, allocatable).tolist() == [1]
    assert ledger.beyond(replace(terms, foreign_percent=0), ROWS, allocatable).tolist() == [0, 1]
    assert ledger.schedulers_of([foreign_pod("a"), make_pod("b", scheduler="job-scheduler")]) == ["default-scheduler"]
