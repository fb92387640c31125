"""Plugins that fail, or refuse where they only keep count: what that costs the pod whose attempt it was, and nobody else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from multisched.cycle.results import Placed, Unplaced
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows, Scores
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.runner import PluginFailure
from multisched.framework.scalar import ScalarPlugin
from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.objects import CPU, Node, Pod, PodSpec
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain, FilterBy, Reserves

ONE_CPU = PodSpec(requests={CPU: 1000}, placed_cpu_milli=1000)
URGENT = PodSpec(requests={CPU: 1000}, priority=10)


def _broken(**points: Callable[..., Any]) -> Any:
    """A plugin object with these extension points and a reason table."""
    found: dict[str, Any] = {"name": "Broken", "depends_on": Dependency.ROW, "reasons": ReasonTable("Broken")}
    return type("Broken", (), {**found, "sign": lambda self, pod: (), **points})()


def _raises(*_: object) -> Any:
    raise RuntimeError("boom")


FAULTS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "PreFilter raises": {"pre_filter": _raises},
    "PreFilter answers nonsense": {"pre_filter": lambda self, cycle, pod: None},
    "Filter raises": {"filter": _raises},
    "Filter has another shape": {"filter": lambda self, cycle, pod, rows: np.zeros(len(rows) + 1, np.uint8)},
    "Filter has another type": {"filter": lambda self, cycle, pod, rows: np.zeros(len(rows), np.int64)},
    "Filter returns a list": {"filter": lambda self, cycle, pod, rows: [0] * len(rows)},
    "PreScore raises": {"pre_score": _raises},
    "PreScore refuses": {"pre_score": lambda self, cycle, pod, rows: Status.error("boom")},
    "Score raises": {"score": _raises},
    "Score is out of range": {"score": lambda self, cycle, pod, rows: np.full(len(rows), 101)},
    "Score is negative": {"score": lambda self, cycle, pod, rows: np.full(len(rows), -1)},
    "Score is float": {"score": lambda self, cycle, pod, rows: np.zeros(len(rows))},
    "NormalizeScore raises": {
        "score": lambda self, cycle, pod, rows: np.zeros(len(rows), np.int64),
        "normalize_score": _raises,
    },
    "Sign raises": {"score": lambda self, cycle, pod, rows: np.zeros(len(rows), np.int64), "sign": _raises},
    "Sign is no key": {
        "score": lambda self, cycle, pod, rows: np.zeros(len(rows), np.int64),
        "sign": lambda self, pod: ["a", "list"],
    },
    "Reserve raises": {"reserve": _raises, "unreserve": _raises},
    "Permit raises": {"permit": _raises},
    "Permit answers nonsense": {"permit": lambda self, cycle, pod, node: True},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_failed_plugin_fails_one_attempt_without_a_trace(fault: str) -> None:
    domain = Domain(make_node("a"), make_node("b", cpu_milli=500), plugins=[_broken(**FAULTS[fault])])
    for attempt in (1, 2, 3):
        result = domain.schedule(make_pod("p", spec=ONE_CPU), attempt)
        assert isinstance(result, Unplaced)
        assert result.is_error
        assert result.message
        assert len(domain.cache) == 0
    domain.cache.validate()
    assert domain.heard.failures or fault == "PreScore refuses"


def test_plugin_may_return_own_or_read_only_arrays() -> None:
    shared = np.zeros(2, np.uint8)
    shared.flags.writeable = False
    domain = Domain(
        make_node("a"), make_node("b"), plugins=[_broken(filter=lambda self, cycle, pod, rows: shared[: len(rows)])]
    )
    for name in ("p", "q", "r"):
        assert isinstance(domain.schedule(make_pod(name)), Placed)
    assert shared.tolist() == [0, 0]


def test_failed_scorer_leaves_no_class_with_equal_scores() -> None:
    """Found by review: such a class passed for scored, with -1 on every row, and full rows were taken."""
    failures = iter([True, True])

    def score(self: object, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        if next(failures, False):
            raise RuntimeError("boom")
        return np.zeros(len(rows), np.int64)

    nodes = [make_node(f"full{i}", cpu_milli=500) for i in range(20)]
    domain = Domain(*nodes, make_node("free"), plugins=[_broken(score=score)])
    ends = [domain.schedule(make_pod(f"p{i}", spec=ONE_CPU)) for i in range(4)]

    assert [isinstance(end, Unplaced) for end in ends] == [True, True, False, False]
    assert {end.node for end in ends if isinstance(end, Placed)} == {"free"}
    assert (domain.cache.nodes.requested(CPU) <= domain.cache.nodes.allocatable(CPU)).all()


@pytest.mark.parametrize("answer", [_raises, lambda self, cycle, pod, refusals: None])
def test_failed_post_filter_keeps_the_refusal(answer: Callable[..., Any]) -> None:
    domain = Domain(make_node("a", cpu_milli=500), plugins=[_broken(post_filter=answer)])
    result = domain.schedule(make_pod("p", spec=ONE_CPU))
    assert isinstance(result, Unplaced)
    assert result.rejectors == {"NodeResourcesFit"}
    assert result.message.startswith("0/1 nodes are available: 1 Insufficient cpu. ")
    assert [point for _, point, _ in domain.heard.failures] == ["PostFilter"]


def test_raising_add_pod_fails_the_attempt() -> None:
    plugin = _broken(
        pre_filter=lambda self, cycle, pod: PreFilterResult(),
        filter=lambda self, cycle, pod, rows: np.zeros(len(rows), np.uint8),
        add_pod=_raises,
        remove_pod=_raises,
    )
    domain = Domain(make_node("a"), plugins=[plugin])
    domain.nominator.set(make_pod("urgent", spec=URGENT, nominated_node="a"))
    result = domain.schedule(make_pod("p"))
    assert isinstance(result, Unplaced)
    assert result.is_error
    assert "AddPod" in result.message


def test_failed_reserve_unreserves_the_other_plugins() -> None:
    calls: list[str] = []
    broken = _broken(reserve=_raises, unreserve=_raises)
    domain = Domain(make_node("a"), plugins=[Reserves("A", calls), broken, Reserves("C", calls)])
    assert isinstance(domain.schedule(make_pod("p")), Unplaced)
    assert calls == ["reserve A", "unreserve C", "unreserve A"]


def test_failed_attempt_keeps_the_class_valid_for_the_next_pod() -> None:
    failures = iter([False, True])

    def codes(self: object, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        if next(failures, False):
            raise RuntimeError("boom")
        return (cycle.nodes.pod_count[rows] > 0).astype(np.uint8)

    domain = Domain(make_node("a"), make_node("b"), plugins=[_broken(filter=codes)])
    first, second, third, fourth = (domain.schedule(make_pod(n)) for n in "pqrs")
    assert isinstance(first, Placed)
    assert isinstance(second, Unplaced)
    assert isinstance(third, Placed)
    assert third.node != first.node
    assert isinstance(fourth, Unplaced)
    assert not fourth.is_error


def test_filter_error_about_a_row_fails_the_attempt_as_upstream() -> None:
    """Kube-scheduler asks a node's filters in order, and gives the whole attempt up where one of them fails."""
    broken, full = {"b"}, {"b"}
    rule = FilterBy("Broken", lambda pod, name: "odd disk" if name in broken else "", code=Code.ERROR)
    earlier = FilterBy("Earlier", lambda pod, name: "full" if name in full else "", depends_on=Dependency.ROW)
    silent = FilterBy("Silent", lambda pod, name: "", code=Code.ERROR)
    domain = Domain(make_node("a"), make_node("b"), plugins=[earlier, silent, rule])
    assert isinstance(domain.schedule(make_pod("p")), Placed)

    full.clear()
    domain.cache.set_node(make_node("b", version=2, pods=111))
    for attempt in (1, 2):
        result = domain.schedule(make_pod("q"), attempt)
        assert isinstance(result, Unplaced)
        assert result.is_error
        assert result.message == 'running "Broken" filter plugin on node b: odd disk'
    assert domain.heard.failures == []

    broken.clear()
    domain.cache.set_node(make_node("b", version=3, pods=110))
    assert isinstance(domain.schedule(make_pod("q"), 3), Placed)


def test_error_about_several_nodes_names_one_and_counts_the_rest() -> None:
    rule = FilterBy("Broken", lambda pod, name: "odd disk", code=Code.ERROR)
    result = Domain(make_node("a"), make_node("b"), make_node("c"), plugins=[rule]).schedule(make_pod("p"))
    assert isinstance(result, Unplaced)
    assert result.message == 'running "Broken" filter plugin on node a and 2 more: odd disk'


class OddAbout:
    """Raises for one node."""

    name = "Odd"

    def filter(self, pod: Pod, node: Node) -> bool:
        if node.name == "b":
            raise ValueError("odd disk")
        return True


def test_exception_of_a_filter_names_the_node_it_was_asked_about() -> None:
    def fail(self: Any, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        raise ValueError("odd disk")

    one_by_one = Domain(make_node("a"), make_node("b"), plugins=[ScalarPlugin(OddAbout())])
    single = Domain(make_node("b"), plugins=[_broken(filter=fail)])
    for domain in (one_by_one, single):
        result = domain.schedule(make_pod("p"))
        assert isinstance(result, Unplaced)
        assert result.message.endswith("ValueError: odd disk (on node b)"), result.message


def test_failure_status_is_kept_for_the_answer_of_its_plugin() -> None:
    domain = Domain(make_node("a"))
    failure = domain.runner.failure(domain.plugins.filter[0], "Filter", ValueError("odd"))
    assert isinstance(failure, PluginFailure)
    assert failure.status == Status(
        Code.ERROR, "NodeResourcesFit", ('running Filter plugin "NodeResourcesFit": ValueError: odd',)
    )


def _counting(**points: Callable[..., Any]) -> Any:
    """A plugin that keeps count beside nominated pods and in dry runs."""
    usual: dict[str, Callable[..., Any]] = {
        "pre_filter": lambda self, cycle, pod: PreFilterResult(),
        "filter": lambda self, cycle, pod, rows: np.zeros(len(rows), np.uint8),
        "add_pod": lambda self, cycle, pod, other, row: SUCCESS,
        "remove_pod": lambda self, cycle, pod, other, row: SUCCESS,
    }
    return _broken(**{**usual, **points})


def test_plugin_may_refuse_a_row_because_of_nominated_pods() -> None:
    plugin = _counting(add_pod=lambda self, cycle, pod, other, row: Status.unschedulable(f"{other.name} comes"))
    domain = Domain(make_node("a"), plugins=[plugin])
    domain.nominator.set(make_pod("urgent", spec=URGENT, nominated_node="a"))
    result = domain.schedule(make_pod("p", spec=ONE_CPU))
    assert isinstance(result, Unplaced)
    assert (result.message, result.is_error) == ("0/1 nodes are available: 1 urgent comes.", False)
    assert domain.cycle.refusal_of_move(None, make_pod("q", spec=ONE_CPU), "a") == "Broken: urgent comes"


def test_plugin_that_cannot_remove_a_pod_reports_why() -> None:
    plugin = _counting(remove_pod=lambda self, cycle, pod, other, row: Status.unschedulable(f"{other.name} stays"))
    domain = Domain(make_node("a", cpu_milli=1000), plugins=[plugin], in_tree=("NodeResourcesFit", "DefaultPreemption"))
    low = make_pod("low", cpu_milli=1000, node="a", phase="Running")
    domain.cache.place(low)
    assert domain.cycle.refusal_of_move(low, make_pod("q", spec=URGENT), "a") == "Broken: low stays"
    result = domain.schedule(make_pod("p", spec=URGENT))
    assert isinstance(result, Unplaced)
    assert (result.nominated_node, result.victims) == (None, ())
    assert "low stays" in result.message
