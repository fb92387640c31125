"""Sliced loans between replicas that are killed, stalled and cut off: never over a row, and settled again afterwards (I1, I3)."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.sim.slices import run

SEEDS = settings().max_examples // 50


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize(
    "moves", [pytest.param(False, marks=pytest.mark.slow, id="nodes stay"), pytest.param(True, id="nodes move")]
)
def test_slices_never_overcommit_a_row_and_settle(seed: int, moves: bool) -> None:
    found = run(seed, moves=moves)

    assert found.broken == ()
    assert found.stuck == ()
    assert found.counts["bound"] >= 30
