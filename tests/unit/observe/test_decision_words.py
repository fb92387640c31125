"""Why a node was chosen, in words: only a plugin that ranked it above the next one is named."""

from __future__ import annotations

import pytest

from multisched.observe.decision_words import why
from multisched.observe.explain_view import Attempt, Part, Scored


def scored(total: int, **scores: int) -> Scored:
    """`scores`: plugin -> score, each with weight 1."""
    return Scored(
        node="n", total=total, parts=tuple(Part(plugin=name, score=score, weight=1) for name, score in scores.items())
    )


def attempt(winner: Scored, *runners_up: Scored, ties: int = 1, snapshot: str = "own") -> Attempt:
    return Attempt(
        number=1, ago_s=0.0, outcome="placed", winner=winner, runners_up=runners_up, ties=ties, snapshot=snapshot
    )


BEST = scored(190, NodeResourcesFit=99, ImageLocality=91)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (attempt(BEST, scored(150, NodeResourcesFit=99, ImageLocality=51)), "has the image: ImageLocality 91, next 51"),
        (attempt(BEST, scored(190, NodeResourcesFit=99, ImageLocality=91)), "score 190, next 190"),
        (attempt(BEST, ties=3), "most free resources: NodeResourcesFit 99, 3 tied"),
        (attempt(scored(0)), "the only feasible node"),
        (
            attempt(BEST, scored(190, NodeResourcesFit=99, ImageLocality=51), snapshot="earlier"),
            "score 190, no runner-up is recorded",
        ),
        (Attempt(number=1, ago_s=0.0, outcome="refused"), ""),
    ],
)
def test_reason_names_the_plugin_with_the_largest_lead(found: Attempt, expected: str) -> None:
    assert why(found) == expected
