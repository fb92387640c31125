"""What a whole attempt of the cycle does with an answer: the pod goes to a best node, and can be given back."""

from __future__ import annotations

from typing import Any

from multisched.cycle.results import Placed
from multisched.framework.points import QueuedPod
from multisched.framework.status import Status
from multisched.model.decode import Decoder
from tests.conformance.answer import load
from tests.conformance.vectors import recorded_answers, recorded_problems

EVERY = 5
"""Every fifth problem: whole attempts add little to what test_conformance.py asks of all."""


def right_nodes(problem: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    """The node that preemption promised the pod before, if it is feasible, else those of the highest total."""
    promised = problem["pod"]["status"].get("nominatedNodeName")
    if promised in answer["feasible"]:
        return [promised]
    most = max(answer["total"].values())
    return [node for node, total in answer["total"].items() if total == most]


def placed_on(problem: dict[str, Any], decoder: Decoder) -> str:
    """The node that an attempt assumes the pod on; the assumption is taken back, and nothing may be held any more."""
    scene = load(problem, decoder)
    attempt = scene.cycle.attempt(QueuedPod(scene.pod, queued_s=0.0, attempts=1))
    try:
        next(attempt)
    except StopIteration as end:
        placed = end.value
    assert isinstance(placed, Placed), placed
    scene.cycle.give_up(placed, Status.unschedulable("the test gives it back"))
    scene.cache.validate()
    return placed.node


def test_cycle_places_every_pod_on_a_best_node_and_can_undo_it() -> None:
    answers, decoder = recorded_answers(), Decoder()
    feasible = [p for p in recorded_problems() if answers[p["id"]]["feasible"]][::EVERY]
    wrong = {p["id"]: node for p in feasible if (node := placed_on(p, decoder)) not in right_nodes(p, answers[p["id"]])}

    assert len(feasible) == 138
    assert wrong == {}
