"""Problems are put otherwise to kube-scheduler only where it slips, and mean the same."""

from __future__ import annotations

from typing import Any

import pytest

from multisched.model.decode import Decoder
from tests.conformance.answer import attempted
from tests.conformance.generate import problem
from tests.conformance.slips import NOWHERE, with_explicit_namespaces
from tests.reference.answer import answer as plain_answer

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TEAM_A = {"metadata": {"name": "a", "labels": {"team": "a"}}}
TEAM_B = {"metadata": {"name": "b", "labels": {"team": "b"}}}
SEED_THAT_SHOWED_IT = 424360


@pytest.mark.parametrize(
    ("selector", "names", "said"),
    [
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}, None, ["b"]),
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}, ["c"], ["b", "c"]),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, None, [NOWHERE]),
        ({"matchLabels": {"team": "a"}}, ["c"], None),
        ({}, None, None),
        (None, None, None),
    ],
)
def test_selector_that_unlabelled_namespaces_match_is_replaced_by_names(
    selector: dict[str, Any] | None, names: list[str] | None, said: list[str] | None
) -> None:
    term = {"topologyKey": "zone", "namespaceSelector": selector, "namespaces": names}
    pod = {"spec": {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}}
    found = with_explicit_namespaces({"pod": pod, "namespaces": [TEAM_A, TEAM_B]})
    [put] = found["pod"]["spec"]["affinity"]["podAntiAffinity"][REQUIRED]
    assert put == (term if said is None else {"topologyKey": "zone", "namespaces": said})


def test_replaced_selector_gives_equal_answers() -> None:
    one = problem("odd", SEED_THAT_SHOWED_IT)
    put, decoder = with_explicit_namespaces(one), Decoder()
    assert put["pod"] != one["pod"]
    assert attempted(put, decoder) == attempted(one, decoder)
    assert "n5" in attempted(one, decoder)["feasible"]
    assert plain_answer(one)["feasible"] == plain_answer(put)["feasible"]
