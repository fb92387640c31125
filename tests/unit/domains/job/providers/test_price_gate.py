"""Which pods may use units with `waitFirst`, which of them are woken, and what sandboxes cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from domains.job.domain_waits import DomainWaits, Outlook
from domains.job.providers.cost_meter import CostMeter
from domains.job.providers.price_gate import PriceGate
from domains.job.providers.sandbox_ledger import Cause, SandboxLedger
from domains.job.providers.serverless_units import ServerlessUnits
from domains.job.providers.settings import provider_settings
from multisched.model.objects import Pod
from multisched.model.pod_outcome import PodOutcome
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import make_context, make_node, make_pod, make_view

ARGS: dict[str, Any] = {
    "units": [
        {
            "name": "dear",
            "nodeSelector": {"unit": "dear"},
            "rate": {"burst": 40, "perSecond": 4},
            "price": {"cpu": 3.6},
            "roundTo": {"cpu": "1", "memory": "1Gi"},
            "waitFirst": {"maxWait": "10m"},
        },
        {"name": "free", "nodeSelector": {"unit": "free"}},
    ]
}
NOW_S = 10_000.0


class Queue:
    """The queue of a test."""

    def __init__(self, *pods: Pod) -> None:
        self.waiting = pods
        self.tried: list[str] = []

    def pods(self) -> Sequence[Pod]:
        return self.waiting

    def sort_anew(self, uids: Iterable[str]) -> None:
        """Does nothing."""

    def try_again(self, pods: Iterable[Pod], why: str) -> None:
        self.tried += [pod.uid for pod in pods]


class Source:
    """Predictions of a test, by uid."""

    def __init__(self) -> None:
        self.outlooks: dict[str, Outlook] = {}

    def outlook(self, pod: Pod, now_s: float) -> Outlook:
        return self.outlooks.get(pod.uid, Outlook())


def pod(name: str, age_s: float = 0.0, cpu: int = 500) -> Pod:
    made = make_pod(name)
    return replace(made, created_s=NOW_S - age_s, spec=replace(made.spec, requests={"cpu": cpu, "memory": 2**30}))


class Bench:
    def __init__(self, *pods: Pod) -> None:
        self.queue, self.source = Queue(*pods), Source()
        self.ledger = SandboxLedger(provider_settings(ARGS), None)
        self.unit = self.ledger.units[0]
        context = replace(make_context(domain="job"), queue=self.queue)
        context.shared.of(DomainWaits).source = self.source
        self.gate = PriceGate(context, self.ledger)

    def payers(self, now_s: float = NOW_S) -> list[str]:
        asyncio.run(self.gate.decide(now_s))
        return sorted(one.name for one in self.unit.payers.values())


@pytest.mark.parametrize(
    ("outlook", "pays"),
    [
        (Outlook(NOW_S + 100.0, is_predicted=True, wait_s=60.0, finish_s=30.0), False),
        (Outlook(NOW_S + 100.0, is_predicted=True, wait_s=60.0, finish_s=50.0), True),
        (Outlook(NOW_S + 100.0, is_predicted=True, wait_s=None, finish_s=0.0), True),
        (Outlook(NOW_S + 100.0, is_predicted=False, wait_s=None, finish_s=500.0), False),
        (Outlook(NOW_S - 1.0, is_predicted=True, wait_s=0.0), True),
    ],
    ids=["in time", "late", "no start is known", "not predicted yet", "passed"],
)
def test_a_pod_with_a_deadline_pays_if_waiting_makes_it_late(outlook: Outlook, pays: bool) -> None:
    one = pod("p", age_s=5_000.0)
    bench = Bench(one)
    bench.source.outlooks[one.uid] = outlook
    assert bool(bench.payers()) is pays
    assert bench.ledger.cause_with_price(bench.unit, one) is (None if pays else Cause.PRICE)
    assert bench.ledger.cause_of(bench.unit, one) is None, "pods of other domains are not asked for it"


def test_a_pod_without_a_deadline_pays_after_max_wait() -> None:
    bench = Bench(pod("old", age_s=601.0), pod("new", age_s=590.0))
    assert bench.payers() == ["old"]
    assert bench.payers(NOW_S + 11.0) == ["new", "old"]


def test_a_pod_that_may_pay_keeps_the_right_until_it_has_time_to_spare() -> None:
    one = pod("p")
    bench = Bench(one)
    for slack_s, pays in ((5.0, False), (-1.0, True), (20.0, True), (31.0, False), (5.0, False)):
        bench.source.outlooks[one.uid] = Outlook(NOW_S + 100.0, is_predicted=True, wait_s=100.0 - slack_s)
        version = bench.unit.version
        was_open = bool(bench.unit.payers)
        assert bool(bench.payers()) is pays, slack_s
        assert bench.unit.version - version == (was_open is not pays), "answers change with the version only"


def test_late_pods_leave_only_for_a_unit_that_accepts_them() -> None:
    bench = Bench()
    accepts = bench.gate._accepts
    assert not accepts(), "it has no node"
    bench.ledger.set_node(0, make_node("n", labels={"unit": "dear"}))
    assert accepts()
    for _ in range(3):
        attempt = bench.unit.breaker.take(0.0)
        assert attempt is not None
        bench.unit.breaker.on_failure(attempt, 0.0)
    assert not accepts(), "its breaker is open"


def test_price_predicted_wait_and_deadline_are_named() -> None:
    one = pod("p", cpu=1_500)
    bench = Bench(one)
    outlook = Outlook(NOW_S + 600.0, is_predicted=True, wait_s=90.0, finish_s=30.0, median_s=1_800.0)
    bench.source.outlooks[one.uid] = outlook
    assert bench.gate.note(one, NOW_S) == (
        "serverless unit dear costs 7.2 per hour for this pod, 3.6 for its median run; the pod waits for other nodes: predicted wait"
        " elsewhere 1m30s, P90 of run time and start-up 30s, deadline in 10m0s"
    )
    bench.source.outlooks[one.uid] = replace(outlook, wait_s=None)
    bench.payers()
    assert "the pod may use it: predicted wait elsewhere unknown" in bench.gate.note(one, NOW_S)


def test_pods_that_left_are_forgotten() -> None:
    bench = Bench(pod("old", age_s=601.0), pod("new"))
    bench.payers()
    assert len(bench.unit.kept) == 1
    bench.queue.waiting = ()
    assert bench.payers() == []
    assert not bench.unit.kept


def test_payers_are_woken_in_turns() -> None:
    pods = [pod(f"p{number}", age_s=700.0) for number in range(3)]
    plugin, queue = plugin_over(*pods)
    plugin._ledger.units[0].payers = {one.uid: one for one in pods}
    plugin._wake(plugin._ledger.units[0], 2)
    plugin._wake(plugin._ledger.units[0], 2)
    assert queue.tried == [pods[number].uid for number in (0, 1, 2, 0)]


def plugin_over(*pods: Pod) -> tuple[ServerlessUnits, Queue]:
    queue = Queue(*pods)
    return ServerlessUnits(replace(make_context(domain="job"), queue=queue), ARGS), queue


def test_nodes_that_cost_nothing_are_preferred_and_payers_are_another_class() -> None:
    plugin, _ = plugin_over()
    for row, name in enumerate(("dear", "free", "none")):
        plugin._ledger.set_node(row, make_node(name, labels={"unit": name}))
    pays, waits = pod("pays"), pod("waits")
    plugin._ledger.units[0].payers = {pays.uid: pays}
    rows, view = np.arange(3, dtype=np.intp), make_view(ClusterCache())
    assert plugin.score(view, pays, rows).tolist() == [0, 100, 100]
    assert plugin.filter(view, pays, rows).tolist() == [0, 0, 0]
    assert [bool(code) for code in plugin.filter(view, waits, rows).tolist()] == [True, False, False]
    assert plugin.sign(pays) != plugin.sign(waits)
    other, _ = plugin_over()
    other.import_state(plugin.export_state())
    assert other.sign(pays) == plugin.sign(pays)


# -- costs ---------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 1e4), st.floats(0.0, 1e4)), max_size=20))
def test_the_meter_adds_price_and_time_of_each_sandbox(runs: list[tuple[float, float, float]]) -> None:
    meter = CostMeter()
    events = sorted([(at_s, 1, price) for price, at_s, _ in runs] + [(at + took, 0, price) for price, at, took in runs])
    before = 0.0
    for at_s, begins, price in sorted(events, key=lambda one: (one[0], -one[1])):
        (meter.start if begins else meter.stop)(price, at_s)
        assert meter.total(at_s) >= before - 1e-9
        before = meter.total(at_s)
    assert meter.total(1e9) == pytest.approx(sum(price * took / 3600.0 for price, _, took in runs), abs=1e-6)


def outcome(of: Pod, phase: str = "Running", began_s: float = 1.0, ended_s: float = 0.0) -> PodOutcome:
    return PodOutcome(replace(of, phase=phase, node="n"), began_s=began_s, ended_s=ended_s)


def test_what_a_pod_costs_is_spent_where_it_runs_and_saved_where_it_was_kept_from() -> None:
    bench, (paid, kept) = Bench(), (pod("paid", cpu=1_500), pod("kept", cpu=500))
    ledger, unit = bench.ledger, bench.unit
    ledger.set_node(0, make_node("n", labels={"unit": "dear"}))
    unit.payers, unit.kept = {paid.uid: paid}, {kept.uid}
    for one, row in ((paid, 0), (kept, 7)):
        ledger.take(one, row)
        ledger.bound(one.uid)
        ledger.learn(outcome(one))
    ledger.now_s += 1_000.0
    assert (unit.spent.total(ledger.now_s), unit.saved.total(ledger.now_s)) == pytest.approx((2.0, 1.0))
    ledger.set_node(0, make_node("n"))
    ledger.release(kept.uid)
    ledger.now_s += 1_000.0
    ledger.set_node(0, make_node("n", labels={"unit": "dear"}))
    ledger.now_s += 500.0
    ledger.release(paid.uid)
    ledger.now_s += 1_000.0
    totals = unit.spent.total(ledger.now_s), unit.saved.total(ledger.now_s)
    assert totals == pytest.approx((3.0, 1.0)), "a node without the label costs nothing"


def test_a_run_that_is_known_only_when_it_has_ended_is_counted_once() -> None:
    bench, one = Bench(), pod("p")
    ledger, unit = bench.ledger, bench.unit
    ledger.set_node(0, make_node("n", labels={"unit": "dear"}))
    unit.payers = {one.uid: one}
    ledger.take(one, 0)
    ledger.bound(one.uid)
    ended = outcome(one, "Succeeded", began_s=50.0, ended_s=1_050.0)
    ledger.learn(ended)
    ledger.learn(ended)
    ledger.now_s += 500.0
    ledger.release(one.uid)
    assert unit.spent.total(ledger.now_s) == pytest.approx(1.0)
