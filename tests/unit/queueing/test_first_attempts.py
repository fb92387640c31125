"""First attempts go in QueueSort's order; only a namespace whose attempts take long stands back while others wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.queueing.active_pods import UNIT_S, ActivePods
from multisched.queueing.first_attempts import DEBT_UNITS

DEAR_UNITS = 20.0


class Line:
    """First attempts that came one after the other, taken one by one; those of `dear` take DEAR_UNITS."""

    def __init__(self, dear_units: float = DEAR_UNITS) -> None:
        self.dear_units = dear_units
        self.active = ActivePods()
        self.homes: dict[str, str] = {}

    def come(self, namespace: str, count: int = 1) -> None:
        for _ in range(count):
            uid = f"{len(self.homes):05}"
            self.homes[uid] = namespace
            self.active.push_first(uid, namespace, (0,), len(self.homes))

    def take(self) -> str:
        uid = self.active.head()
        assert uid is not None
        self.active.charge(uid)
        self.active.discard(uid, self.homes[uid])
        if self.homes[uid] == "dear":
            self.active.charge_cost("dear", self.dear_units * UNIT_S, is_retry=False)
        self.active.validate()
        return uid


def test_cheap_pods_keep_arrival_order_across_namespaces() -> None:
    line = Line()
    line.come("many", 100)
    line.come("one")
    line.come("many", 10)
    assert [line.take() for _ in range(111)] == sorted(line.homes)


def test_cheap_pod_does_not_wait_for_expensive_ones() -> None:
    line = Line()
    line.come("dear", 1_000)
    line.come("plain")
    taken = [line.homes[line.take()] for _ in range(int(2 * DEBT_UNITS / DEAR_UNITS) + 4)]
    assert "plain" in taken


@pytest.mark.parametrize("units", [1.5, 2.0, 3.0, 10.0])
def test_many_slightly_expensive_pods_do_not_block_others(units: float) -> None:
    """The part of an attempt that is no more than others take counts too: else 800 of 2.3 ms came before each plain pod."""
    line = Line(units)
    line.come("dear", 1_000)
    line.come("plain")
    taken = [line.homes[line.take()] for _ in range(int(2 * DEBT_UNITS / units) + 4)]
    assert "plain" in taken


def test_expensive_pods_get_a_share_under_load() -> None:
    line = Line()
    line.come("dear", 100)
    line.come("plain", 1_000)
    taken = [line.homes[line.take()] for _ in range(600)]
    assert 10 <= taken.count("dear") <= 40  # about as many units as the plain ones


def test_expensive_pods_are_not_delayed_without_other_pods() -> None:
    line = Line()
    line.come("dear", 50)
    assert [line.take() for _ in range(50)] == sorted(line.homes)


@given(st.lists(st.sampled_from(("dear", "plain", "other", "take", "take")), max_size=60))
def test_every_first_attempt_is_popped_once(steps: list[str]) -> None:
    line, taken = Line(), []
    for step in steps:
        if step != "take":
            line.come(step)
        elif len(line.active):
            taken.append(line.take())
    taken += [line.take() for _ in range(len(line.active))]
    assert sorted(taken) == sorted(line.homes)
    assert line.active.head() is None
