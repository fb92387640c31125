"""Whose turn it is to reserve room: one gang at a time, for a bounded time, and a pause after a turn that led to nothing."""

from __future__ import annotations

from multisched.framework.gangs import ReservePolicy, Reserving
from multisched.queueing.entry import Failure
from multisched.queueing.gang_entries import Turns
from multisched.queueing.gang_reservations import LOOK_S
from tests.unit.queueing.test_gang_entries import House, member

AFTER_S, FOR_S = 60.0, 30.0
MOMENT_S = LOOK_S / 2


def reserving_house() -> House:
    house = House()
    house.queue._back.reservations.policy = ReservePolicy(AFTER_S, FOR_S)
    return house


def turns(house: House) -> Turns:
    return house.queue.gangs.turns


def refuse_all(house: House) -> None:
    """All that can be tried are, and no gang finds room."""
    while popped := house.pop():
        house.fail(*popped)


def at(house: House, now_s: float) -> str:
    """The time comes, and what is tried by then is refused: whose turn it is."""
    house.now_s = now_s
    house.queue.flush(now_s)
    refuse_all(house)
    return turns(house).holder


def test_gang_reserves_after_it_has_waited_and_for_a_bounded_time() -> None:
    house = reserving_house()
    house.add(member("a"), member("b"))
    refuse_all(house)
    assert at(house, AFTER_S - MOMENT_S) == ""
    assert at(house, AFTER_S + LOOK_S) == "team/g"
    assert house.roster.reserving("team/g") is Reserving.NOW
    assert house.queue.next_wakeup_s() is not None
    assert at(house, AFTER_S + LOOK_S + FOR_S) == ""
    assert house.roster.reserving("team/g") is Reserving.NO, "an attempt has taken the nominations back"
    assert turns(house).expired == 1
    assert at(house, AFTER_S + LOOK_S + 2 * FOR_S - MOMENT_S) == "", "a pause as long as a turn"
    assert at(house, AFTER_S + LOOK_S + 2 * FOR_S) == "team/g"


def test_reservation_turn_begins_and_ends_with_an_immediate_attempt() -> None:
    house = reserving_house()
    house.add(member("a"), member("b"))
    refuse_all(house)
    house.now_s = AFTER_S + LOOK_S
    house.queue.flush(house.now_s)
    assert sorted(house.pop()) == ["a", "b"]
    house.fail("a", "b")
    house.now_s += FOR_S
    house.queue.flush(house.now_s)
    assert sorted(house.pop()) == ["a", "b"]


def test_most_important_gang_reserves_first_and_equal_ones_take_turns() -> None:
    house = reserving_house()
    house.add(member("a"), member("b"))
    house.add(member("c", gang="h"), member("d", gang="h"))
    refuse_all(house)
    assert at(house, AFTER_S + LOOK_S) == "team/g"
    assert at(house, AFTER_S + LOOK_S + FOR_S) == ""
    assert at(house, AFTER_S + LOOK_S + 2 * FOR_S) == "team/h"
    house.add(member("e", gang="i", priority=7), member("f", gang="i", priority=7))
    refuse_all(house)
    house.now_s += 2 * AFTER_S
    at(house, house.now_s)
    assert at(house, house.now_s + FOR_S) == "team/i"


def test_reservation_turn_passes_on_when_the_gang_starts() -> None:
    house = reserving_house()
    house.add(member("a"), member("b"))
    house.add(member("c", gang="h"), member("d", gang="h"))
    refuse_all(house)
    assert at(house, AFTER_S + LOOK_S) == "team/g"
    house.room_comes()
    house.queue.flush(house.now_s + 10.0)
    while sorted(popped := house.pop()) != ["a", "b"]:
        house.fail(*popped)
    house.bind("a", "b")
    assert at(house, house.now_s + LOOK_S) in ("", "team/h")
    assert at(house, house.now_s + LOOK_S) == "team/h"
    assert turns(house).expired == 0


def test_reservation_turn_ends_when_the_gang_may_not_be_tried() -> None:
    house = reserving_house()
    house.add(member("a"), member("b"))
    refuse_all(house)
    assert at(house, AFTER_S + LOOK_S) == "team/g"
    house.remove("b")
    house.queue.regroup(house.now_s)
    assert at(house, house.now_s + MOMENT_S) == ""
    assert house.roster.reserving("team/g") is not Reserving.NOW


def test_gang_never_refused_by_a_plugin_reserves_nothing() -> None:
    house = reserving_house()
    house.add(member("a"), member("b"))
    house.fail(*house.pop(), failure=Failure(is_error=True, message="a request failed"))
    house.now_s = AFTER_S + LOOK_S
    house.queue.flush(house.now_s)
    assert turns(house).holder == ""
