"""Whose turn it is to reserve room: one gang at a time, for a bounded time, and a pause after a turn that led to nothing."""

from __future__ import annotations

from multisched.framework.gangs import ReservePolicy, Reserving
from multisched.queueing.entry import Failure
from multisched.queueing.gang_entries import Turns
from multisched.queueing.gang_reservations import LOOK_S
from tests.unit.queueing.test_gang_entries import GangQueue, member

AFTER_S, FOR_S = 60.0, 30.0
MOMENT_S = LOOK_S / 2


def reserving_queue() -> GangQueue:
    gang_queue = GangQueue()
    gang_queue.queue._readmission.reservations.policy = ReservePolicy(AFTER_S, FOR_S)
    return gang_queue


def turns(gang_queue: GangQueue) -> Turns:
    return gang_queue.queue.gangs.turns


def refuse_all(gang_queue: GangQueue) -> None:
    """All that can be tried are, and no gang finds room."""
    while popped := gang_queue.pop():
        gang_queue.fail(*popped)


def at(gang_queue: GangQueue, now_s: float) -> str:
    """The time comes, and what is tried by then is refused: whose turn it is."""
    gang_queue.now_s = now_s
    gang_queue.queue.flush(now_s)
    refuse_all(gang_queue)
    return turns(gang_queue).holder


def test_gang_reserves_after_it_has_waited_and_for_a_bounded_time() -> None:
    gang_queue = reserving_queue()
    gang_queue.add(member("a"), member("b"))
    refuse_all(gang_queue)
    assert at(gang_queue, AFTER_S - MOMENT_S) == ""
    assert at(gang_queue, AFTER_S + LOOK_S) == "team/g"
    assert gang_queue.roster.reserving("team/g") is Reserving.NOW
    assert gang_queue.queue.next_wakeup_s() is not None
    assert at(gang_queue, AFTER_S + LOOK_S + FOR_S) == ""
    assert gang_queue.roster.reserving("team/g") is Reserving.NO, "an attempt has taken the nominations back"
    assert turns(gang_queue).expired == 1
    assert at(gang_queue, AFTER_S + LOOK_S + 2 * FOR_S - MOMENT_S) == "", "a pause as long as a turn"
    assert at(gang_queue, AFTER_S + LOOK_S + 2 * FOR_S) == "team/g"


def test_reservation_turn_begins_and_ends_with_an_immediate_attempt() -> None:
    gang_queue = reserving_queue()
    gang_queue.add(member("a"), member("b"))
    refuse_all(gang_queue)
    gang_queue.now_s = AFTER_S + LOOK_S
    gang_queue.queue.flush(gang_queue.now_s)
    assert sorted(gang_queue.pop()) == ["a", "b"]
    gang_queue.fail("a", "b")
    gang_queue.now_s += FOR_S
    gang_queue.queue.flush(gang_queue.now_s)
    assert sorted(gang_queue.pop()) == ["a", "b"]
    assert gang_queue.roster.reserving("team/g") is Reserving.ENDED, "the attempt drops the nominations"


def test_most_important_gang_reserves_first_and_equal_ones_take_turns() -> None:
    gang_queue = reserving_queue()
    gang_queue.add(member("a"), member("b"))
    gang_queue.add(member("c", gang="h"), member("d", gang="h"))
    refuse_all(gang_queue)
    assert at(gang_queue, AFTER_S + LOOK_S) == "team/g"
    assert at(gang_queue, AFTER_S + LOOK_S + FOR_S) == ""
    assert at(gang_queue, AFTER_S + LOOK_S + 2 * FOR_S) == "team/h"
    gang_queue.add(member("e", gang="i", priority=7), member("f", gang="i", priority=7))
    refuse_all(gang_queue)
    gang_queue.now_s += 2 * AFTER_S
    at(gang_queue, gang_queue.now_s)
    assert at(gang_queue, gang_queue.now_s + FOR_S) == "team/i"


def test_every_waiting_gang_gets_a_turn_before_an_important_one_gets_another() -> None:
    gang_queue = reserving_queue()
    gang_queue.add(member("a", priority=7), member("b", priority=7))
    gang_queue.add(member("c", gang="h"), member("d", gang="h"))
    refuse_all(gang_queue)
    assert at(gang_queue, AFTER_S + LOOK_S) == "team/g"
    assert at(gang_queue, AFTER_S + LOOK_S + FOR_S) == ""
    assert at(gang_queue, AFTER_S + LOOK_S + 2 * FOR_S) == "team/h"


def test_reservation_turn_passes_on_when_the_gang_starts() -> None:
    gang_queue = reserving_queue()
    gang_queue.add(member("a"), member("b"))
    gang_queue.add(member("c", gang="h"), member("d", gang="h"))
    refuse_all(gang_queue)
    assert at(gang_queue, AFTER_S + LOOK_S) == "team/g"
    gang_queue.room_comes()
    gang_queue.queue.flush(gang_queue.now_s + 10.0)
    while sorted(popped := gang_queue.pop()) != ["a", "b"]:
        gang_queue.fail(*popped)
    gang_queue.bind("a", "b")
    assert at(gang_queue, gang_queue.now_s + LOOK_S) in ("", "team/h")
    assert at(gang_queue, gang_queue.now_s + LOOK_S) == "team/h"
    assert turns(gang_queue).expired == 0


def test_reservation_turn_ends_when_the_gang_may_not_be_tried() -> None:
    gang_queue = reserving_queue()
    gang_queue.add(member("a"), member("b"))
    refuse_all(gang_queue)
    assert at(gang_queue, AFTER_S + LOOK_S) == "team/g"
    gang_queue.remove("b")
    gang_queue.queue.regroup(gang_queue.now_s)
    assert at(gang_queue, gang_queue.now_s + MOMENT_S) == ""
    assert gang_queue.roster.reserving("team/g") is not Reserving.NOW


def test_gang_never_refused_by_a_plugin_reserves_nothing() -> None:
    gang_queue = reserving_queue()
    gang_queue.add(member("a"), member("b"))
    gang_queue.fail(*gang_queue.pop(), failure=Failure(is_error=True, message="a request failed"))
    gang_queue.now_s = AFTER_S + LOOK_S
    gang_queue.queue.flush(gang_queue.now_s)
    assert turns(gang_queue).holder == ""
