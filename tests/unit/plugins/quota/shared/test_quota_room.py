"""Quota room between processes: random stories of a lender and two borrowers; no level is ever over its max."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim import defects, quota_room_defects
from tests.unit.plugins.quota.shared.room_world import BORROWERS, LENDER, RoomWorld

STEPS = 800
SEEDS_MAX = 300
"""Random stories in which a defect must show."""


@given(st.integers(0, 2**32 - 1))
def test_no_level_exceeds_its_max_by_pods_of_three_processes(seed: int) -> None:
    world = RoomWorld(seed)
    world.run(STEPS)
    assert world.over == []


def test_stories_bind_pods_of_every_domain() -> None:
    total = sum((one.bound_of for one in map(played, range(20))), start=Counter[str]())
    assert all(total[domain] > 30 for domain in (LENDER, *BORROWERS)), total


def played(seed: int) -> RoomWorld:
    world = RoomWorld(seed)
    world.run(STEPS)
    return world


@pytest.mark.parametrize(
    "name", sorted(name for name, one in defects.DEFECTS.items() if one.__module__ == quota_room_defects.__name__)
)
def test_deliberate_defect_puts_a_level_over_its_max(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_room_defects, "put", monkeypatch.setattr)
    defects.DEFECTS[name]()
    assert any(played(seed).over for seed in range(SEEDS_MAX))
