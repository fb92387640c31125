"""One quota tree between replicas that are killed, stalled and cut off: no level over its max, and settled again afterwards (I14, I3)."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.sim.quota_room import run

SEEDS = settings().max_examples // 50


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize(
    "edits", [pytest.param(False, marks=pytest.mark.slow, id="tree stays"), pytest.param(True, id="tree changes")]
)
def test_levels_never_exceed_their_max_and_settle(seed: int, edits: bool) -> None:
    found = run(seed, edits=edits)

    assert found.broken == ()
    assert found.stuck == ()
    assert found.counts["bound"] >= 30
    assert found.most["root"] >= 10_000
