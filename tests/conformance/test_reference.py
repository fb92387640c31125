"""The plain reference (tests/reference) against what kube-scheduler 1.36.3 answered: it must be right to be one."""

from __future__ import annotations

from tests.conformance.vectors import differences, recorded_answers, recorded_problems
from tests.reference.answer import answer


def test_reference_answers_every_recorded_problem_like_kube_scheduler() -> None:
    """And names every node that chance may choose to preempt on, not one of them only."""
    expected = recorded_answers()
    found = {problem["id"]: answer(problem) for problem in recorded_problems()}

    assert len(found) == 860
    assert {one: lines for one in found if (lines := differences(found[one], expected[one]))} == {}
    assert {one: given.get("preemptions") for one, given in found.items()} == {
        one: given.get("preemptions") for one, given in expected.items()
    }
