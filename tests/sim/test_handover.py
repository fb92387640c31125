"""Nodes that change their domain while different replicas lead: never overcommitted, and used again soon (I1, I3, I8)."""

from __future__ import annotations

import pytest

from tests.sim.handover import BY_LABEL, BY_NEW_LABEL, THREE, TWO, run

SEEDS = 4


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize(
    ("texts", "moves"),
    [
        ({("forecast",): TWO, ("gpu",): TWO}, "gpus"),
        ({("forecast",): THREE, ("gpu",): THREE, ("edge",): THREE}, "labels"),
        ({("forecast", "gpu"): TWO, ("gpu", "forecast", "none"): TWO}, "gpus"),
    ],
    ids=["two leaders", "three leaders", "two that take over from each other"],
)
def test_a_node_that_changes_its_domain_is_never_overcommitted(
    seed: int, texts: dict[tuple[str, ...], str], moves: str
) -> None:
    found = run(seed, texts, moves)

    assert found.broken == ()
    assert found.stranded == ()
    assert found.happened["move"] > 10
    assert found.happened["bound"] > 20


@pytest.mark.parametrize("seed", range(SEEDS))
def test_two_configurations_during_a_rollout_do_not_share_a_node(seed: int) -> None:
    """The old one gives the gpu domain other nodes than the new one."""
    found = run(seed, {("forecast",): BY_LABEL, ("gpu",): BY_NEW_LABEL}, "pool")

    assert found.broken == ()
    assert found.happened["bound"] > 20
