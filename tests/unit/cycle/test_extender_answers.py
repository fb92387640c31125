"""What HTTP extenders answered, in the middle of a cycle: who is left, and how the others are scored then."""

from __future__ import annotations

import numpy as np
import pytest

from multisched.client.extender_client import HttpExtenderClient
from multisched.cycle.class_scores import NOWHERE
from multisched.cycle.extender_answers import TOTAL_MAX, add_up, recorded
from multisched.cycle.scheduling_cycle import Placed, Unplaced
from multisched.framework.node_view import Int64, Rows
from multisched.framework.plugin import CycleView
from multisched.framework.ports import ExtenderSettings
from multisched.framework.status import Code, Status
from multisched.model.objects import Pod
from multisched.model.selectors import PREFER_NO_SCHEDULE, Taint
from multisched.plugins.http_extender import NAME, HTTPExtenders, Verdict
from tests.unit.cycle.cycle_kit import Domain, Waiting, make_node, make_pod
from tests.unit.plugins.extender_kit import WholeObjects

NO = Status(Code.UNSCHEDULABLE, NAME, ("no licence",))


def make_domain(**taints: int) -> Domain:
    """Nodes with so many taints that the pod would rather not meet, and an extender that nobody reaches."""
    nodes = [
        make_node(name, taints=tuple(Taint(f"{name}-{index}", effect=PREFER_NO_SCHEDULE) for index in range(count)))
        for name, count in taints.items()
    ]
    client = HttpExtenderClient(ExtenderSettings("http://127.0.0.1:1", filter_verb="filter"))
    return Domain(*nodes, in_tree=("TaintToleration",), plugins=[HTTPExtenders([client], WholeObjects())])


def placed_on(domain: Domain, verdict: Verdict) -> str:
    result = Waiting.begin(domain, make_pod("p")).answer({NAME: verdict})
    assert isinstance(result, Placed)
    return result.node


def test_scores_are_normalised_among_the_nodes_that_extenders_left() -> None:
    # With the worst node b scores 50 of 100 and c 100; without it 0 and 100, three times as heavy as the extender's 200.
    boost = {"b": 200}
    assert placed_on(make_domain(worst=2, b=1, c=0), Verdict({}, boost)) == "b"
    assert placed_on(make_domain(worst=2, b=1, c=0), Verdict({"worst": NO}, boost)) == "c"


def test_a_pod_that_is_left_no_node_is_told_in_the_extenders_words() -> None:
    domain = make_domain(a=0, b=0)
    result = Waiting.begin(domain, make_pod("p")).answer({NAME: Verdict({"a": NO, "b": NO}, {})})
    assert isinstance(result, Unplaced)
    assert result.message == "0/2 nodes are available: 2 no licence."
    assert result.rejectors == {NAME}


def test_a_preemption_that_nobody_is_asked_about_is_chosen_from_all_offers() -> None:
    client = HttpExtenderClient(ExtenderSettings("http://127.0.0.1:1", preempt_verb="preempt"))
    domain = Domain(
        make_node("a", cpu=1000),
        in_tree=("NodeResourcesFit", "DefaultPreemption"),
        plugins=[HTTPExtenders([client], WholeObjects())],
    )
    domain.cache.place(make_pod("low", cpu=1000, node="a"))
    waiting = Waiting.begin(domain, make_pod("high", cpu=1000, priority=10))
    assert [one.plugin.name for one in waiting.asked] == [NAME]

    result = waiting.answer({})
    assert isinstance(result, Unplaced)
    assert result.nominated_node == "a"
    assert [victim.name for victim in result.victims] == ["low"]


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ([0, 0, 0], (1, [0, 0, 0])),
        ([30, 70, 0], (10, [3, 7, 0])),
        ([7, 0, 0], (7, [1, 0, 0])),
        ([255, 254, 0], (1, [255, 254, 0])),
        ([256, 255, 0], None),
        ([-1, 5, 0], None),
        ([], None),
    ],
)
def test_what_extenders_added_is_told_as_a_score_and_its_weight_if_it_can_be(
    part: list[int], told: tuple[int, list[int]] | None
) -> None:
    before = np.full(len(part), 100, np.int32)
    feasible = np.ones(len(part), np.bool_)
    if part:  # what happened to a row that is not feasible says nothing
        feasible[-1] = False
    after = before + np.array(part, np.int32)
    if part:
        after[-1] = NOWHERE
    found = recorded("Extenders", before, after, feasible)
    assert [(one.plugin, one.weight, one.final.tolist()) for one in found] == ([("Extenders", *told)] if told else [])


class Adds:
    """An extender that answers with these scores."""

    name = "Adds"

    def __init__(self, scores: list[int]) -> None:
        self._scores = scores

    def add_up(self, view: CycleView, pod: Pod, rows: Rows) -> Int64:
        assert len(rows) == len(self._scores)
        return np.array(self._scores, np.int64)


@pytest.mark.parametrize(
    ("scores", "totals"),
    [
        ([5, 0], [15, NOWHERE, 30]),
        ([-30, 0], [0, NOWHERE, 50]),
        ([0, TOTAL_MAX - 30], [10, NOWHERE, TOTAL_MAX]),
        ([0, TOTAL_MAX - 29], [0, NOWHERE, 1]),
        ([2**40, 2**41], [0, NOWHERE, 1]),
    ],
)
def test_totals_with_extenders_scores_keep_their_order_within_their_range(scores: list[int], totals: list[int]) -> None:
    domain = Domain(*(make_node(name) for name in "abc"))
    entry = domain.fresh_classes().find(make_pod("p"), 1)
    feasible, before = np.array([True, False, True]), np.array([10, NOWHERE, 30], np.int32)
    found = add_up(domain.runner, Adds(scores), entry.view, entry.pod, entry.rows, feasible, before)  # type: ignore[arg-type]
    assert found.dtype == np.int32
    assert found.tolist() == totals
    nobody = np.zeros(3, np.bool_)
    assert add_up(domain.runner, Adds([]), entry.view, entry.pod, entry.rows, nobody, before) is before  # type: ignore[arg-type]
