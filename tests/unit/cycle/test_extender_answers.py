"""What HTTP extenders answered, in the middle of a cycle: who is left, and how the others are scored then."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from multisched.client.extender_client import HttpExtenderClient
from multisched.cycle.extender_answers import TOTAL_MAX, add_up, recorded, refuse
from multisched.cycle.results import Placed, Unplaced
from multisched.framework.cycle_state import CycleState
from multisched.framework.node_view import Bools
from multisched.framework.points import CycleView
from multisched.framework.ports import ExtenderSettings
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.status import Code, Status
from multisched.model.selectors import PREFER_NO_SCHEDULE, Taint
from multisched.plugins.extender.http_extender import NAME, ExtenderResult, HTTPExtenders
from multisched.state.node_table import NodeTable
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain, Heard, Waiting
from tests.unit.plugins.extender.extender_kit import WholeObjects

NO = Status(Code.UNSCHEDULABLE, NAME, ("no licence",))


def make_domain(**taints: int) -> Domain:
    """Nodes with so many taints that the pod would rather not meet, and an extender that nobody reaches."""
    nodes = [
        make_node(name, taints=tuple(Taint(f"{name}-{index}", effect=PREFER_NO_SCHEDULE) for index in range(count)))
        for name, count in taints.items()
    ]
    client = HttpExtenderClient(ExtenderSettings("http://127.0.0.1:1", filter_verb="filter"))
    return Domain(*nodes, in_tree=("TaintToleration",), plugins=[HTTPExtenders([client], WholeObjects())])


def placed_on(domain: Domain, verdict: ExtenderResult) -> str:
    result = Waiting.begin(domain, make_pod("p")).answer({NAME: verdict})
    assert isinstance(result, Placed)
    return result.node


def test_scores_are_normalised_over_nodes_the_extenders_keep() -> None:
    # With the worst node b scores 50 of 100 and c 100; without it 0 and 100, three times as heavy as the extender's 200.
    boost = {"b": 200}
    assert placed_on(make_domain(worst=2, b=1, c=0), ExtenderResult({}, boost)) == "b"
    assert placed_on(make_domain(worst=2, b=1, c=0), ExtenderResult({"worst": NO}, boost)) == "c"


def test_pod_without_nodes_reports_the_extender_message() -> None:
    domain = make_domain(a=0, b=0)
    result = Waiting.begin(domain, make_pod("p")).answer({NAME: ExtenderResult({"a": NO, "b": NO}, {})})
    assert isinstance(result, Unplaced)
    assert result.message == "0/2 nodes are available: 2 no licence."
    assert result.rejectors == {NAME}


def test_preemption_without_an_extender_uses_all_offers() -> None:
    client = HttpExtenderClient(ExtenderSettings("http://127.0.0.1:1", preempt_verb="preempt"))
    domain = Domain(
        make_node("a", cpu_milli=1000),
        in_tree=("NodeResourcesFit", "DefaultPreemption"),
        plugins=[HTTPExtenders([client], WholeObjects())],
    )
    domain.cache.place(make_pod("low", cpu_milli=1000, node="a"))
    waiting = Waiting.begin(domain, make_pod("high", cpu_milli=1000, priority=10))
    assert [one.plugin.name for one in waiting.asked] == [NAME]

    result = waiting.answer({})
    assert isinstance(result, Unplaced)
    assert result.nominated_node == "a"
    assert [victim.name for victim in result.victims] == ["low"]


class Says:
    """An extender that has answered; an exception is raised."""

    name = "Says"

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.asked: list[tuple[object, ...]] = []

    def verdicts(self, *asked: object) -> Any:
        return self._said(asked)

    def add_up(self, *asked: object) -> Any:
        return self._said(asked)

    def _said(self, asked: tuple[Any, ...]) -> Any:
        view, pod, rows = asked
        self.asked.append((view, pod, rows.tolist()))
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


VIEW, POD, ROWS = CycleView(NodeTable(), CycleState()), make_pod("p"), np.array([3, 5, 8, 9])
FEASIBLE = np.array([True, False, True, True])


def summed(total: list[int], added: list[int], feasible: Bools = FEASIBLE) -> list[int]:
    says: Any = Says(np.array(added, np.int64))
    found = add_up(Runner(Heard(), lambda: 0.0), says, VIEW, POD, ROWS, feasible, np.array(total, np.int32))
    assert says.asked == ([(VIEW, POD, ROWS[feasible].tolist())] if feasible.any() else [])
    assert found.dtype == np.int32
    sums: list[int] = found.tolist()
    return sums


def test_verdict_positions_refer_to_feasible_rows() -> None:
    says: Any = Says({0: NO, 2: NO})
    feasible = FEASIBLE.copy()
    assert refuse(Runner(Heard(), lambda: 0.0), says, VIEW, POD, ROWS, feasible) == [(0, NO), (3, NO)]
    assert feasible.tolist() == [False, False, True, False]
    assert says.asked == [(VIEW, POD, [3, 8, 9])]


@pytest.mark.parametrize(
    ("total", "added", "found"),
    [
        ([10, -1, 20, 30], [1, 2, 3], [11, -1, 22, 33]),
        ([10, -1, 20, 30], [0, -20, 0], [10, -1, 0, 30]),
        ([10, -1, 20, 30], [0, -50, 0], [40, -1, 0, 60]),
        ([0, -1, 0, 0], [0, 1, TOTAL_MAX], [0, -1, 1, TOTAL_MAX]),
        ([0, -1, 0, 1], [7, 7, TOTAL_MAX], [0, -1, 0, 1]),
    ],
    ids=["added", "down to nothing", "below nothing", "just what fits", "more than fits"],
)
def test_extender_scores_keep_the_order_of_totals(total: list[int], added: list[int], found: list[int]) -> None:
    assert summed(total, added) == found


def test_extenders_are_not_called_without_feasible_rows() -> None:
    assert summed([1, 2, 3, 4], [], np.zeros(4, np.bool_)) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("after", "told"),
    [
        ([0, 0, 0], (1, [0, 0, 0])),
        ([0, 300, 30_000], (300, [0, 1, 100])),
        ([7, 0, 255], (1, [7, 0, 255])),
        ([7, 0, 256], None),
        ([-1, 0, 0], None),
    ],
)
def test_extender_score_is_recorded_if_weighted(after: list[int], told: tuple[int, list[int]] | None) -> None:
    before = np.array([5, 5, 5, 5], np.int32)
    found = recorded("Says", before, np.array([*after, 99], np.int32) + before, np.array([True, True, True, False]))
    assert [(one.plugin, one.weight, one.final.tolist()) for one in found] == (
        [] if told is None else [("Says", told[0], [*told[1], 0])]
    )
    assert recorded("Says", before[:0], before[:0], np.zeros(0, np.bool_)) == []


@pytest.mark.parametrize(
    ("point", "ask"), [("Filter", refuse), ("Score", partial(add_up, total=np.zeros(4, np.int32)))]
)
def test_unreadable_answer_is_reported_under_its_extension_point(point: str, ask: Callable[..., Any]) -> None:
    heard, says = Heard(), Says(RuntimeError("boom"))
    with pytest.raises(PluginFailure, match=f'running {point} plugin "Says": RuntimeError: boom'):
        ask(Runner(heard, lambda: 0.0), says, VIEW, POD, ROWS, feasible=FEASIBLE.copy())
    assert heard.failures == [("Says", point, "boom")]
