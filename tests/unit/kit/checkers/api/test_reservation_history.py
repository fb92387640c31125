"""Reservations of gangs over the history of the store: reported and allowed ones."""

from __future__ import annotations

from typing import Any

from multisched.framework.gangs import ReservePolicy
from tests.kit.checkers.api.reservation_history import LATE_S, SETTLED_S, ReservationHistory

FOR_S = 20.0


class Store:
    """The pods of two gangs with two members each."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.broken: list[str] = []
        self.leaders = frozenset({"process-1"})
        policy = ReservePolicy(5.0, FOR_S)
        self.history = ReservationHistory(
            policy, "gpu-scheduler", lambda: self.now_s, self.broken.append, lambda: self.leaders
        )
        for gang in "ab":
            self.nominate(gang, "")
        self.wait(1.0)  # until the leader is known

    def nominate(self, gang: str, node: str, *, minimum: int = 2) -> None:
        self._write(gang, {"nominatedNodeName": node}, minimum=minimum)

    def start(self, gang: str) -> None:
        self._write(gang, {}, node="n")

    def _write(self, gang: str, status: dict[str, Any], *, node: str = "", minimum: int = 2) -> None:
        for at in range(2):
            spec = {"schedulerName": "gpu-scheduler", "nodeName": node}
            pod = {"metadata": {}, "spec": spec, "status": status}
            self.history.pod_changed(("team", gang), minimum, f"{gang}{at}", pod)

    def wait(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.5
            self.history.look()


def test_unsuccessful_reservation_and_another_after_a_pause_are_valid() -> None:
    store = Store()
    store.wait(5.0)
    for gang in "ab":
        store.nominate(gang, "n")
        store.wait(FOR_S)
        store.nominate(gang, "")
        store.wait(FOR_S)
    assert not store.broken
    assert store.history.count == 2


def test_reservation_without_a_pause_is_a_fault_unless_the_gang_started() -> None:
    for is_started in (True, False):
        store = Store()
        store.nominate("a", "n")
        store.wait(FOR_S)
        if is_started:
            store.start("a")
        else:
            store.nominate("a", "")
        store.wait(1.0)
        store.nominate("b", "n")
        assert bool(store.broken) is not is_started


def test_reservation_that_lasts_too_long_is_reported_once() -> None:
    store = Store()
    store.nominate("a", "n")
    store.wait(FOR_S + LATE_S - 1.0)
    assert not store.broken
    store.wait(60.0)
    assert store.broken == ["I13: room is reserved for gang team/a for longer than 20 s"]


def test_two_reservations_at_once_are_a_fault() -> None:
    store = Store()
    store.nominate("a", "n")
    store.nominate("b", "n")
    store.wait(SETTLED_S + 1.0)
    assert store.broken == ["I13: room is reserved at once for gangs team/a and team/b"]


def test_reservation_for_a_gang_that_cannot_start_is_a_fault() -> None:
    store = Store()
    store.nominate("a", "n", minimum=3)
    store.wait(SETTLED_S + 1.0)
    assert store.broken == ["I13: room is reserved for gang team/a, which has 2 of 3 members"]


def test_reservation_time_starts_over_for_a_new_leader() -> None:
    store = Store()
    store.nominate("a", "n")
    store.wait(FOR_S)
    store.leaders = frozenset({"process-2"})
    store.wait(FOR_S)
    assert not store.broken


def test_new_leader_needs_no_pause_after_a_reservation_of_the_old_one() -> None:
    store = Store()
    store.nominate("a", "n")
    store.wait(5.0)
    store.leaders = frozenset({"process-2"})
    store.wait(5.0)
    store.nominate("a", "")
    store.wait(1.0)
    store.nominate("a", "n")
    assert not store.broken
