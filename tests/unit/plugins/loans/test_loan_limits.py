"""A borrower's real cycles beside pods that come and go: it gets exactly what a plain sum over the pods of each node allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from multisched.cycle.results import NO_PAUSE, Placed, Result, Unplaced
from multisched.framework.ledger import rebuild
from multisched.framework.points import QueuedPod
from multisched.model.objects import Node, Pod
from multisched.plugins.loans.idle_demand import IDLE_REQUEST
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.loans.loans import BorrowingLoans
from multisched.plugins.loans.terms import BORROWERS_ARG, DOMAIN_ARG, LOANS, Borrower, LoanTerms, ReturnTerms
from multisched.testing.builders import make_node, make_pod
from tests.kit.counted_steps import CountedSteps
from tests.unit.cycle.cycle_kit import Domain, finished

LENT: dict[str, str] = {"lent": "yes"}
CPU_MILLI = 8_000
HEADROOM = 500
RETURNS = ReturnTerms(20.0, 10.0, 60.0, 6)


def lends(node: Node) -> bool:
    return node.labels.get("lent") == "yes"


def terms(borrower: str, **fields: object) -> LoanTerms:
    return LoanTerms("lender", borrower, lends, "nodes of lender", **fields)  # type: ignore[arg-type]


def domain_of(*borrowers: Borrower, nodes: int = 2, **options: Any) -> Domain:
    """A domain that borrows the nodes n0, n1, …, besides a node of its own. `options`: of Domain."""
    args = {LOANS: {BORROWERS_ARG: borrowers, DOMAIN_ARG: "test"}}
    own = make_node("own", cpu_milli=1_000)
    lent = [make_node(f"n{number}", cpu_milli=CPU_MILLI, labels=LENT) for number in range(nodes)]
    return Domain(own, *lent, in_tree=("NodeResourcesFit", LOANS, "DefaultPreemption"), args=args, **options)


def plugin_of(domain: Domain) -> BorrowingLoans:
    (found,) = (one.plugin for one in domain.plugins.built if one.plugin.name == LOANS)
    assert isinstance(found, BorrowingLoans)
    return found


def borrower(name: str, domain: str, **fields: object) -> Borrower:
    return Borrower(domain, frozenset({f"{name}-scheduler"}), (terms(domain, **fields),))


@dataclass
class Sums:
    """The pods on each node, counted plainly."""

    share_percent: int
    pods: dict[str, tuple[Pod, str]] = field(default_factory=dict)
    needs: dict[str, int] = field(default_factory=dict)
    """Node -> what a waiting pod of the lender needs there."""

    def allows(self, pod: Pod, node: str) -> bool:
        cpu = pod.requests.get("cpu", 0)
        here = [one for one, at in self.pods.values() if at == node]
        total = sum(one.requests.get("cpu", 0) for one in here)
        if node == "own":
            return total + cpu <= 1_000
        mine = sum(one.requests.get("cpu", 0) for one in here if one.spec.scheduler_name == "job-scheduler")
        lent = sum(
            one.requests.get("cpu", 0)
            for one in here
            if one.spec.scheduler_name in ("job-scheduler", "other-scheduler")
        )
        unused = CPU_MILLI - (total - lent) - self.needs.get(node, 0)
        limit = unused * self.share_percent // 100 - HEADROOM
        is_within = not cpu or (mine + cpu <= limit and lent + cpu <= unused)
        return is_within and total + cpu <= CPU_MILLI


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(("job", "job", "job", "lender", "other", "remove", "need")),
        st.integers(0, 3_000),
        st.integers(0, 7),
    ),
    max_size=40,
)


@given(OPERATIONS, st.sampled_from((30, 50, 100)))
def test_borrower_gets_exactly_what_a_plain_sum_allows(operations: list[tuple[str, int, int]], share: int) -> None:
    fields = {"share_percent": share, "headroom": {"cpu": HEADROOM}, "returns": RETURNS}
    domain = domain_of(borrower("job", "test", **fields), borrower("other", "second", **fields))
    sums, ledger = Sums(share), plugin_of(domain).ledger
    for number, (what, cpu, choice) in enumerate(operations):
        pod = make_pod(f"p{number}", cpu_milli=cpu, scheduler=f"{what}-scheduler", uid=f"uid-{number}")
        node = ("n0", "n1")[choice % 2]
        if what == "job":
            found = domain.schedule(pod)
            allowed = [name for name in ("own", "n0", "n1") if sums.allows(pod, name)]
            assert isinstance(found, Placed) == bool(allowed), (found, sums)
            if isinstance(found, Placed):
                assert found.node in allowed
                sums.pods[pod.uid] = pod, found.node
        elif what in ("lender", "other"):
            used = sum(one.requests.get("cpu", 0) for one, at in sums.pods.values() if at == node)
            if used + cpu <= CPU_MILLI:
                domain.cache.place(replace(pod, node=node, version=number + 1))
                sums.pods[pod.uid] = pod, node
        elif what == "need":
            ledger.needs.drop(f"uid-{sums.needs.pop('at', '')}")
            for name in list(sums.needs):
                del sums.needs[name]
            for one in ledger.needs.all():
                ledger.needs.drop(one.pod.uid)
            ledger.needs.add(pod, domain.row(node), 0.0)
            sums.needs[node] = cpu
        elif sums.pods:
            uid = sorted(sums.pods)[choice % len(sums.pods)]
            domain.cache.remove(uid)
            del sums.pods[uid]
    _equals_rebuilt(domain, ledger)


def _equals_rebuilt(domain: Domain, ledger: LoanLedger) -> None:
    nodes = list(domain.cache.nodes.live_rows())
    pods = [(entry.pod, entry.row) for entry in domain.cache]
    fresh = rebuild(ledger, nodes, pods)
    assert isinstance(fresh, LoanLedger)
    assert fresh.held() == ledger.held()
    assert [fresh.sums(row) for row, _ in nodes] == [ledger.sums(row) for row, _ in nodes]
    for row, _ in nodes:
        before = ledger.sums(row)
        ledger.recount(row)
        assert ledger.sums(row) == before


def place(domain: Domain, name: str, node: str, cpu: int, scheduler: str = "job", priority: int = 0) -> Pod:
    pod = make_pod(
        name, cpu_milli=cpu, scheduler=f"{scheduler}-scheduler", priority=priority, uid=f"uid-{name}", node=node
    )
    domain.cache.place(pod)
    return pod


def message_of(found: Result) -> str:
    assert isinstance(found, Unplaced)
    return found.message


def test_borrower_preempts_its_own_pods_within_the_loan() -> None:
    """AddPod and RemovePod count on the overlay: without its own less important pod, the new one is within the share."""
    domain = domain_of(borrower("job", "test", share_percent=50), nodes=1)
    place(domain, "low", "n0", 3_500)
    place(domain, "theirs", "n0", 500, scheduler="lender", priority=30)
    found = domain.schedule(make_pod("high", cpu_milli=3_000, priority=10, scheduler="job-scheduler"))
    assert isinstance(found, Unplaced)
    assert found.preemption is not None
    assert [one.name for one in found.preemption.every_victim] == ["low"]
    more = domain.schedule(make_pod("higher", cpu_milli=3_800, priority=20, scheduler="job-scheduler"))
    assert isinstance(more, Unplaced)
    assert more.preemption is None, "half of what the lender leaves is 3,750m"


def test_victims_of_one_borrower_free_no_room_that_is_kept_for_another() -> None:
    """A slice reserves 3,000m for one borrower, of which its pod holds 1,000m. Only what another borrower's pods give back counts."""
    lender = LoanTerms("test", "job", lends, "all", is_sliced=True, users={"test": frozenset({"test-scheduler"})})
    loans = (Borrower("job", frozenset({"job-scheduler"}), (lender,)), borrower("other", "second"))
    domain = Domain(
        make_node("n0", cpu_milli=CPU_MILLI, labels=LENT),
        in_tree=("NodeResourcesFit", LOANS, "DefaultPreemption"),
        args={LOANS: {BORROWERS_ARG: loans, DOMAIN_ARG: "test"}},
    )
    slices = plugin_of(domain).ledger.slices
    slices.set_reserved(("test", "job"), domain.row("n0"), "cpu", 3_000)
    place(domain, "sliced", "n0", 1_000)
    place(domain, "theirs", "n0", 5_000, scheduler="other")
    found = domain.schedule(make_pod("high", cpu_milli=5_000, priority=10, scheduler="test-scheduler"))
    assert isinstance(found, Unplaced)
    assert found.preemption is not None
    assert [one.name for one in found.preemption.every_victim] == ["theirs"]
    more = domain.schedule(make_pod("higher", cpu_milli=5_500, priority=20, scheduler="test-scheduler"))
    assert isinstance(more, Unplaced)
    assert more.preemption is None
    assert "it is lent to another domain" in more.message


def test_borrower_preempts_no_pods_of_the_lender() -> None:
    """Whatever the priorities: what they leave is what is lent."""
    domain = domain_of(borrower("job", "test", share_percent=50), nodes=1)
    place(domain, "theirs", "n0", 6_000, scheduler="lender")
    found = domain.schedule(make_pod("high", cpu_milli=3_000, priority=1_000, scheduler="job-scheduler"))
    assert isinstance(found, Unplaced)
    assert found.preemption is None
    assert "Insufficient cpu" in found.message


@pytest.mark.parametrize("pauses", range(4))
def test_need_of_the_lender_that_ends_in_a_pause_of_the_search_refuses_its_node_no_longer(pauses: int) -> None:
    """What waiting pods of the lender need belongs to no pod on the node."""
    domain = domain_of(borrower("job", "test"), nodes=3, steps=CountedSteps(0))
    needs = plugin_of(domain).ledger.needs
    for name in ("n0", "n1", "n2"):
        place(domain, f"low-{name}", name, CPU_MILLI)
        needs.add(make_pod(f"next-{name}", cpu_milli=CPU_MILLI), domain.row(name), 0.0)
    urgent = make_pod("urgent", cpu_milli=2_000, priority=10, scheduler="job-scheduler")
    running = domain.cycle.attempt(QueuedPod(urgent, 0.0, 1))
    next(running)
    for _ in range(pauses):
        running.send(NO_PAUSE)
    needs.drop("uid-next-n0")
    result = finished(running)
    assert isinstance(result, Unplaced)
    assert result.nominated_node == "n0"


def shut(domain: Domain) -> None:
    ledger = plugin_of(domain).ledger
    ledger.set_open(ledger.pools[0], 0, is_open=False)


def freeze(domain: Domain) -> None:
    ledger = plugin_of(domain).ledger
    ledger.set_frozen(ledger.pools[1], 0, is_frozen=True)


@pytest.mark.parametrize(
    ("pod", "fields", "change", "told"),
    [
        (make_pod("p", cpu_milli=5_000), {"share_percent": 50}, None, "Insufficient cpu on loan from lender"),
        (make_pod("p", cpu_milli=2_000), {}, shut, "the loan from lender is closed at this time"),
        (
            make_pod("p", cpu_milli=2_000, extra={"example.com/card": 1}),
            {},
            None,
            "lender does not lend example.com/card",
        ),
        (
            make_pod("p", cpu_milli=2_000),
            {"is_idle": True, "returns": RETURNS},
            None,
            "the node lends only idle capacity",
        ),
        (
            make_pod("p", annotations={IDLE_REQUEST: "cpu=1"}),
            {"share_percent": 50},
            None,
            "the node lends no idle capacity",
        ),
        (
            make_pod("p", annotations={IDLE_REQUEST: "cpu=1"}),
            {"is_idle": True, "resources": frozenset({"cpu"})},
            None,
            "Insufficient cpu on loan from lender",
        ),
        (
            make_pod("p", annotations={IDLE_REQUEST: "cpu=1,memory=1Gi"}),
            {"is_idle": True, "resources": frozenset({"cpu"})},
            None,
            "lender does not lend memory",
        ),
        (
            make_pod("p", annotations={IDLE_REQUEST: "cpu=1"}),
            {"is_idle": True, "resources": frozenset({"cpu"})},
            freeze,
            "lender lends nothing new while its use is not measured",
        ),
    ],
)
def test_refusals_name_what_is_not_lent(
    pod: Pod, fields: dict[str, object], change: Callable[[Domain], None] | None, told: str
) -> None:
    domain = domain_of(borrower("job", "test", **fields), nodes=1)
    extra = {"example.com/card": 4}
    domain.cache.set_node(make_node("n0", cpu_milli=CPU_MILLI, labels=LENT, extra=extra))
    domain.cache.set_node(make_node("own", cpu_milli=1, pods=0, extra=extra))
    if change is not None:
        change(domain)
    asking = replace(pod, spec=replace(pod.spec, scheduler_name="job-scheduler"))
    assert told in message_of(domain.schedule(asking))


def test_state_is_handed_to_a_copy_by_node() -> None:
    """Rows have other numbers in a copy."""
    fields = {"is_idle": True, "resources": frozenset({"cpu"}), "returns": RETURNS}
    domain = domain_of(borrower("job", "test", **fields))
    plugin, row = plugin_of(domain), domain.row("n1")
    pool = plugin.ledger.pools[1]
    plugin.ledger.set_rows(pool.offer, pool, "cpu", np.array([row]), np.array([1_500]))
    plugin.ledger.needs.add(make_pod("waiting", cpu_milli=700, uid="w"), row, 5.0)
    copy = Domain(
        in_tree=("NodeResourcesFit", LOANS), args={LOANS: {BORROWERS_ARG: plugin.ledger.borrowers, DOMAIN_ARG: "test"}}
    )
    plugin_of(copy).import_state(plugin.export_state())
    for name in ("n1", "n0", "own"):
        copy.cache.set_node(make_node(name, cpu_milli=CPU_MILLI, labels=LENT if name != "own" else {}))
    again = plugin_of(copy).ledger
    assert int(again.pools[1].offer["cpu"][copy.row("n1")]) == 1_500
    assert [(one.pod.name, one.row) for one in again.needs.all()] == [("waiting", copy.row("n1"))]
