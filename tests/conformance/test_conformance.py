"""Our answers against those of kube-scheduler 1.36.3 (README.md says where they come from)."""

from __future__ import annotations

import gzip
from collections import defaultdict
from pathlib import Path
from typing import Any

import orjson
import pytest

from multisched.model.decode import Decoder
from multisched.plugins import IN_TREE
from tests.conformance.answer import answer

HERE = Path(__file__).parent
EXACT = ("resources", "scoring", "taints", "node_affinity", "ports", "images")
"""Families for which every plugin exists."""

POST_FILTER = ". no new claims to deallocate"
NATIVE_REASONS = ("Too many pods", "Insufficient cpu", "Insufficient memory", "Insufficient ephemeral-storage")


def _lines(name: str) -> list[dict[str, Any]]:
    with gzip.open(HERE / name) as file:
        return [orjson.loads(line) for line in file]


ANSWERS = {one["id"]: one for one in _lines("answers.jsonl.gz")}
PROBLEMS: dict[str, list[dict[str, Any]]] = defaultdict(list)
for _problem in _lines("problems.jsonl.gz"):
    PROBLEMS[_problem["family"]].append(_problem)

OTHERS = tuple(sorted(set(PROBLEMS) - set(EXACT)))


def comparable(found: dict[str, Any]) -> dict[str, Any]:
    """An answer without PostFilter's part and without the order of scalar resources."""
    kept = {k: v for k, v in found.items() if k != "preemptions"}
    kept["rejected"] = {node: _ordered(refusal) for node, refusal in found["rejected"].items()}
    if "fitError" in kept:
        sentence = kept["fitError"].split(POST_FILTER)[0]
        kept["fitError"] = sentence if sentence.endswith(".") else f"{sentence}."
    return kept


def _ordered(refusal: dict[str, Any]) -> dict[str, Any]:
    reasons = refusal["reasons"]
    native = [r for r in reasons if r in NATIVE_REASONS]
    return {**refusal, "reasons": [*native, *sorted(r for r in reasons if r not in NATIVE_REASONS)]}


def _uses_only_ours(expected: dict[str, Any]) -> bool:
    """True if every plugin that refused or scored anything exists here, so that the whole answer must be ours."""
    named = {refusal["plugin"] for refusal in expected["rejected"].values()} | set(expected.get("scores", ()))
    return "preFilter" not in expected and named <= set(IN_TREE)


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("family", EXACT)
def test_a_family_whose_plugins_exist_is_answered_exactly(family: str, warm: bool) -> None:
    decoder = Decoder()
    found = {p["id"]: comparable(answer(p, decoder, warm=warm)) for p in PROBLEMS[family]}

    assert len(found) == 60
    assert found == {one: comparable(ANSWERS[one]) for one in found}


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("family", OTHERS)
def test_another_family_is_answered_exactly_where_only_our_plugins_spoke(family: str, warm: bool) -> None:
    decoder = Decoder()
    ours = [p for p in PROBLEMS[family] if _uses_only_ours(ANSWERS[p["id"]])]
    found = {p["id"]: comparable(answer(p, decoder, warm=warm)) for p in ours}

    assert found == {one: comparable(ANSWERS[one]) for one in found}


@pytest.mark.parametrize("family", OTHERS)
def test_no_node_is_refused_that_upstream_accepts_and_our_refusals_are_upstreams(family: str) -> None:
    """Plugins that do not exist yet can only refuse more: what ours refuse, and why, does not depend on them."""
    decoder = Decoder()
    for problem in PROBLEMS[family]:
        found, expected = comparable(answer(problem, decoder)), comparable(ANSWERS[problem["id"]])
        refused = {node: r for node, r in expected["rejected"].items() if r["plugin"] in IN_TREE}
        if "preFilter" not in expected:
            assert {n: found["rejected"].get(n) for n in refused} == refused, problem["id"]
        assert set(expected["feasible"]) <= set(found["feasible"]), problem["id"]
