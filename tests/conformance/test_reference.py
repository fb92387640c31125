"""The plain reference (tests/reference) against what kube-scheduler 1.36.3 answered: it must be right to be one."""

from __future__ import annotations

from tests.conformance.vectors import comparable, differences, recorded_answers, recorded_problems
from tests.reference.answer import answer


def test_the_reference_answers_every_recorded_problem_as_kube_scheduler_did() -> None:
    expected = recorded_answers()
    found = {problem["id"]: answer(problem) for problem in recorded_problems()}

    assert len(found) == 860
    assert {one: lines for one in found if (lines := differences(found[one], expected[one]))} == {}


def test_the_reference_names_every_node_that_chance_may_choose_to_preempt_on() -> None:
    expected = recorded_answers()
    preempting = [p for p in recorded_problems() if "preemptions" in expected[p["id"]]]

    assert len(preempting) == 173
    assert [comparable(answer(p))["preemptions"] for p in preempting] == [
        expected[p["id"]]["preemptions"] for p in preempting
    ]
