"""Thirty seeds of the whole program; `make sim` runs two hundred."""

from __future__ import annotations

import pytest

from multisched.testing.scenario import run_seed
from tests.sim.run import FAULTS_MIN

SEEDS = 30


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_invariant_holds_under_faults(seed: int) -> None:
    report = run_seed(seed)

    assert report.broken == (), f"replay with: python -m tests.sim.run --seed {seed}"
    assert report.fault_count >= FAULTS_MIN


def test_the_same_seed_gives_the_same_run() -> None:
    assert run_seed(7) == run_seed(7)
