"""Pods decided one after the other by one cycle, each judged by the plain reference with those before it where they stand."""

from __future__ import annotations

import pytest

from tests.conformance.sequences import FAMILIES, PODS, faults, steps
from tests.reference.answer import answer as reference_answer

SEEDS = range(9_000, 9_015)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_pod_of_a_sequence_is_placed_on_a_best_node(family: str) -> None:
    found = {
        step.problem["id"]: (step, reference_answer(step.problem)) for seed in SEEDS for step in steps(family, seed)
    }
    wrong = {one: lines for one, (step, said) in found.items() if (lines := faults(step, said))}

    assert len(found) == PODS * len(SEEDS)
    assert wrong == {}
    assert any(step.node for step, _ in found.values())
