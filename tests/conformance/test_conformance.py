"""Our answers against those of kube-scheduler 1.36.3 (README.md says where they come from)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from multisched.model.decode import Decoder
from tests.conformance.answer import cold_and_warm
from tests.conformance.families import CLAIMED
from tests.conformance.vectors import differences, recorded_answers, recorded_problems

ANSWERS = recorded_answers()
PROBLEMS: dict[str, list[dict[str, Any]]] = defaultdict(list)
for _problem in recorded_problems():
    PROBLEMS[_problem["family"]].append(_problem)


def test_all_recorded_problems_are_present() -> None:
    assert {family: len(problems) for family, problems in PROBLEMS.items() if family != "large"} == dict.fromkeys(
        PROBLEMS.keys() - {"large"}, 60
    )
    assert len(PROBLEMS) == 15
    assert len(PROBLEMS["large"]) == 20
    assert ANSWERS.keys() == {p["id"] for problems in PROBLEMS.values() for p in problems}


@pytest.mark.parametrize("family", CLAIMED)
def test_answers_of_a_claimed_family_are_exact_with_cold_and_warm_caches(family: str) -> None:
    decoder = Decoder()
    found = {p["id"]: cold_and_warm(p, decoder) for p in PROBLEMS[family]}
    cold = {one: differences(answers[0], ANSWERS[one]) for one, answers in found.items()}
    warm = {one: differences(answers[1], ANSWERS[one]) for one, answers in found.items()}

    assert {one: lines for one, lines in cold.items() if lines} == {}
    assert {one: lines for one, lines in warm.items() if lines} == {}
