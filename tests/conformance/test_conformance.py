"""Our answers against those of kube-scheduler 1.36.3 (README.md says where they come from)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from multisched.model.decode import Decoder
from tests.conformance.answer import answer
from tests.conformance.families import CLAIMED
from tests.conformance.vectors import differences, recorded_answers, recorded_problems

ANSWERS = recorded_answers()
PROBLEMS: dict[str, list[dict[str, Any]]] = defaultdict(list)
for _problem in recorded_problems():
    PROBLEMS[_problem["family"]].append(_problem)


def test_the_recorded_problems_are_all_there() -> None:
    assert {family: len(problems) for family, problems in PROBLEMS.items() if family != "large"} == dict.fromkeys(
        PROBLEMS.keys() - {"large"}, 60
    )
    assert len(PROBLEMS) == 15
    assert len(PROBLEMS["large"]) == 20
    assert ANSWERS.keys() == {p["id"] for problems in PROBLEMS.values() for p in problems}


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("family", CLAIMED)
def test_a_claimed_family_is_answered_exactly(family: str, warm: bool) -> None:
    decoder = Decoder()
    found = {p["id"]: differences(answer(p, decoder, warm=warm), ANSWERS[p["id"]]) for p in PROBLEMS[family]}

    assert {one: lines for one, lines in found.items() if lines} == {}
