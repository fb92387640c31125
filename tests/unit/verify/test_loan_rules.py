"""The judge on loans: what pods of a borrower may request on nodes of the lender, and how much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from multisched.config import loading
from multisched.config.domains import judged_domains
from multisched.verify import Domain, Loan, judge
from multisched.verify.selectors import LabelSelector
from tests.unit.verify.clusters import GPU, Told, certain, make_node, make_pod, possible

NODE = make_node("n", cpu="16", memory="64Gi", more={GPU: "4", "kubernetes.io/batch-cpu": "4000"})
EVERY_NODE = LabelSelector()
USUAL = frozenset({"cpu", "memory", "ephemeral-storage"})
HALF = Loan(
    "gpu", EVERY_NODE, is_limited=True, resources=USUAL, share_percent=50, headroom=(("cpu", 1000), ("memory", 2**30))
)
IDLE = Loan("gpu", EVERY_NODE, is_limited=True, is_idle=True, resources=frozenset({"cpu"}))
WISH = {"multisched.io/idle-request": "cpu=2"}


def domains(*loans: Loan) -> tuple[Domain, ...]:
    return (
        Domain("gpu", frozenset({"gpu-scheduler"}), "gpu"),
        Domain("job", frozenset({"job-scheduler", "cron-scheduler"}), "virtual", loans=loans),
        Domain("batch", frozenset({"batch-scheduler"}), "labelled", loans=loans),
    )


def job(name: str, cpu: str = "", second: int = 60, scheduler: str = "job-scheduler", **fields: Any) -> Told:
    requests = {**({"cpu": cpu} if cpu else {}), **fields.pop("requests", {})}
    return make_pod(name, "n", second=second, schedulerName=scheduler, requests=requests, **fields)


def faults_in_order(*pods: Told, loans: tuple[Loan, ...] = (HALF,)) -> list[tuple[str, str, bool]]:
    """(pod, message, certain), where the pods are bound in this order."""
    order = [pod["metadata"]["uid"] for _, pod in pods]
    found = judge([NODE, *pods], order=order, domains=domains(*loans))
    assert {one.rule for one in found} <= {"loans"}
    return [(one.pod.removeprefix("default/"), one.message, one.is_sure) for one in found]


def test_pods_of_a_borrower_request_at_most_the_share_less_the_headroom() -> None:
    own, other = (
        make_pod("own", "n", schedulerName="gpu-scheduler", requests={"cpu": "4"}),
        make_pod("foreign", "n", requests={"cpu": "2"}),
    )
    a, b, c = job("a", "2"), job("b", "2", scheduler="cron-scheduler"), job("c", "1m")
    # (16 - 4 - 2) / 2 - 1 = 4
    assert faults_in_order(own, other, a, b) == []
    assert faults_in_order(own, other, a, b, c) == [
        ("c", "with it, pods of job request 4001 of cpu; gpu lends 4000 there", True)
    ]
    assert faults_in_order(own, other, a, b, job("d", "4", scheduler="batch-scheduler")) == [], (
        "each borrower by itself"
    )
    assert [name for name, _, _ in faults_in_order(a, b, c, own, other)] == [], "the lender's pods came later"
    assert [name for name, _, _ in faults_in_order(own, other, job("m", requests={"memory": "32Gi"}))] == ["m"]


def test_amounts_are_a_possible_violation_if_the_order_is_unknown() -> None:
    own = make_pod("own", "n", second=10, schedulerName="gpu-scheduler", requests={"cpu": "12"})
    pods = [job("a", "1", 20), job("b", "1", 30)]
    assert certain(NODE, own, *pods, domains=domains(HALF)) == set()
    assert possible(NODE, own, *pods, domains=domains(HALF)) == {("b", "loans")}


@pytest.mark.parametrize(
    ("loans", "pod", "message"),
    [
        ((HALF,), job("x", "1", requests={GPU: "1"}), "gpu does not lend nvidia.com/gpu, of which it requests 1"),
        ((HALF,), job("x", "1", requests={GPU: "0"}), ""),
        ((HALF,), job("x", annotations=WISH), "gpu lends no idle capacity there"),
        ((HALF,), job("x", requests={"kubernetes.io/batch-cpu": "500"}), "gpu lends no idle capacity there"),
        ((HALF,), job("x", "1", annotations=WISH), ""),
        ((IDLE,), job("x", "1"), "gpu lends idle capacity only there"),
        ((IDLE,), job("x"), "gpu lends idle capacity only there"),
        ((IDLE,), job("x", annotations=WISH), ""),
        (
            (IDLE,),
            job("x", requests={GPU: "1"}, annotations=WISH),
            "gpu does not lend nvidia.com/gpu, of which it requests 1",
        ),
        ((HALF, IDLE), job("x", "1"), ""),
        ((HALF, IDLE), job("x", annotations=WISH), ""),
        ((Loan("gpu", EVERY_NODE),), job("x", "15", requests={GPU: "1"}), ""),
        ((HALF, Loan("gpu", EVERY_NODE)), job("x", "15"), ""),
        ((HALF,), make_pod("x", "n", schedulerName="gpu-scheduler", requests={"cpu": "15", GPU: "4"}), ""),
    ],
)
def test_pods_on_loan_request_only_what_is_lent(loans: tuple[Loan, ...], pod: Told, message: str) -> None:
    assert faults_in_order(pod, loans=loans) == ([("x", message, True)] if message else [])


def test_loans_of_the_configuration_are_judged() -> None:
    path = Path(__file__).parents[3] / "config/examples/lend-gpu-nodes.yaml"
    free, idle = (loan for domain in judged_domains(loading.load(path)) for loan in domain.loans)
    assert (free.lender, free.is_limited, free.is_idle, free.resources) == (
        "gpu",
        True,
        False,
        frozenset({"cpu", "memory"}),
    )
    assert (free.share_percent, dict(free.headroom)) == (50, {"cpu": 4000, "memory": 16 * 2**30})
    assert (idle.lender, idle.is_limited, idle.is_idle, idle.resources) == ("forecast", True, True, frozenset({"cpu"}))
