"""The latest placements of a domain, for a page that lists them."""

from __future__ import annotations

from typing import Any

from multisched.cycle.classes.placement_log import FULL, WIDTH, PlacementLog


def filled(count: int) -> PlacementLog:
    log, snapshot = PlacementLog(), object()
    for number in range(count):
        row: Any = (f"u{number}", 1, float(number), "n1", 0, b"", number, snapshot)
        list_ = log.room()
        list_ += row
    return log


def test_latest_placements_come_first() -> None:
    assert [one.uid for one in filled(5).latest(3)] == ["u4", "u3", "u2"]
    assert [one.uid for one in filled(2).latest(9)] == ["u1", "u0"]
    assert list(filled(0).latest(9)) == []
    assert list(filled(3).latest(0)) == []


def test_latest_placements_reach_into_the_older_half() -> None:
    kept = FULL // WIDTH
    found = [one.uid for one in filled(kept + 2).latest(4)]
    assert found == [f"u{kept + 1}", f"u{kept}", f"u{kept - 1}", f"u{kept - 2}"]
