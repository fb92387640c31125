"""Sliced loans between replicas that are killed, stalled and cut off: never over a row, and settled again afterwards (I1, I3)."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.sim.slices import WIDE_FROM, run

SEEDS = settings().max_examples // 50
CASES = [(seed, moves) for seed in range(SEEDS) for moves in (False, True)]
CASES += [(WIDE_FROM + seed, False) for seed in range(SEEDS)]


@pytest.mark.parametrize(("seed", "moves"), CASES)
def test_slices_never_overcommit_a_row_and_settle(seed: int, moves: bool) -> None:
    found = run(seed, moves=moves)

    assert found.broken == ()
    assert found.stuck == ()
    assert found.counts["bound"] >= 30
