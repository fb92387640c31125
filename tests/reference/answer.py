"""A whole answer in the form of answers.jsonl, PostFilter's part included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.reference.preemption import preempt
from tests.reference.scheduler import Decision, decide, scores, shown

Json = Mapping[str, Any]
DEVICES = "no new claims to deallocate"
"""What DynamicResources' PostFilter says to a pod without claims on devices, before DefaultPreemption is asked."""


def answer(problem: Json) -> dict[str, Any]:
    """kube-scheduler's answer to a problem."""
    decision = decide(problem)
    given: dict[str, Any] = {
        "id": problem["id"],
        "feasible": list(decision.feasible),
        "rejected": {node: shown(*refusal) for node, refusal in decision.refusals.items()},
    }
    if decision.refused is not None:
        given["preFilter"] = shown(*decision.refused)
    if decision.narrowed is not None:
        given["preFilterNodes"] = sorted(decision.narrowed)
    return {**given, **(scores(decision) if decision.feasible else _unfit(decision))}


def _unfit(decision: Decision) -> dict[str, Any]:
    nothing = [{"nominatedNode": "", "victims": []}]
    sentence = decision.sentence()
    post_filters = decision.search.profile.post_filters
    if decision.refused is not None:
        # DynamicResources' PreFilter was not reached: its PostFilter fails for want of its state and ends the chain.
        text = f"{sentence} not found" if "DynamicResources" in post_filters else sentence
        return {"fitError": text, "preemptions": nothing}
    words = [DEVICES] if "DynamicResources" in post_filters else []
    choices = nothing
    if "DefaultPreemption" in post_filters:
        refusals = {node: refused for node, (_, refused) in decision.refusals.items()}
        said, choices = preempt(decision.search, refusals)
        words = [*words, said] if said else []
    text = ", ".join(words)
    return {"fitError": f"{sentence} {text}" if text else sentence, "preemptions": choices}
