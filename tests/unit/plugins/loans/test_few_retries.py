"""Pods of jobs with few retries left: where they start on idle capacity, and when they are chosen for eviction."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from multisched.cycle.results import Placed
from multisched.model.job_progress import RETRIES_LEFT
from multisched.model.objects import Pod
from multisched.plugins.loans.idle_demand import IDLE_REQUEST
from multisched.plugins.loans.recalls import Recalls
from multisched.plugins.loans.victims import least_loss
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain
from tests.unit.plugins.loans.test_loan_limits import RETURNS, borrower, domain_of, plugin_of

IDLE = {"is_idle": True, "resources": frozenset({"cpu"}), "returns": RETURNS}


def offering(cpu_milli: int) -> Domain:
    """One node that lends so much idle CPU."""
    domain = domain_of(borrower("job", "test", **IDLE), nodes=1)
    domain.cache.set_node(make_node("own", cpu_milli=1, pods=0))
    ledger = plugin_of(domain).ledger
    ledger.set_rows(ledger.pools[1].offer, ledger.pools[1], "cpu", np.array([domain.row("n0")]), np.array([cpu_milli]))
    return domain


def job_pod(name: str, retries: str, **fields: object) -> Pod:
    pod = make_pod(name, uid=name, annotations={IDLE_REQUEST: "cpu=1", RETRIES_LEFT: retries})
    return replace(pod, spec=replace(pod.spec, scheduler_name="job-scheduler"), **fields)


@pytest.mark.parametrize(
    ("retries", "offer", "is_placed"), [("3", 1_999, False), ("3", 2_000, True), ("4", 1_000, True)]
)
def test_pod_with_few_retries_starts_where_twice_its_demand_is_free(retries: str, offer: int, is_placed: bool) -> None:
    domain = offering(offer)
    assert isinstance(domain.schedule(job_pod("p", retries)), Placed) == is_placed


def test_the_fewer_retries_are_left_the_later_a_pod_is_chosen() -> None:
    domain = offering(8_000)
    pods = [job_pod(str(left), str(left), node="n0", started_s=100.0 * left) for left in (2, 0, 5, 1, 4, 3)]
    for pod in pods:
        domain.cache.place(pod)
    plugin = plugin_of(domain)
    pool, recalls = plugin.ledger.pools[1], Recalls(plugin.ledger, plugin._context)

    def chosen(count: int) -> set[str]:
        left = {"cpu": 1_000 * count}
        units = recalls.units(pool, domain.row("n0"), pods, left, 1_000.0, whole=False)
        return {pod.name for unit in least_loss(units, left) for pod in unit.pods}

    assert [chosen(count) for count in range(1, 7)] == [set("543210"[:count]) for count in range(1, 7)]
