"""Gangs that run without their minimum: their running members hear of it once, by an event."""

from __future__ import annotations

from contextlib import closing

from multisched.framework.gangs import GangCounts
from multisched.model.gang import KOORDINATOR
from multisched.shell.gangs_below_minimum import GangsBelowMinimum
from multisched.testing.sim_loop import SimLoop
from tests.unit.shell.shell_kit import House

NOTES = {f"{KOORDINATOR}name": "g", f"{KOORDINATOR}min-available": "3", f"{KOORDINATOR}waiting-time": "60s"}
NOTES |= {f"{KOORDINATOR}match-policy": "waiting-and-running"}


def the_gang(house: House) -> GangCounts:
    counts = house.cache.gangs.counts("default/g")
    assert counts is not None
    return counts


def told_of(house: House) -> list[str]:
    return [event.regarding.name for event in house.desk.events if event.reason == "GangBelowMinimum"]


def test_only_bound_members_below_the_minimum_get_an_event_once() -> None:
    with closing(SimLoop(seed=1)) as loop:
        house = House(loop, "a")
        house.worker.lead()
        half = GangsBelowMinimum(house.cache, house.router, house.desk, house.clock)
        for name in ("m0", "m1"):
            house.see_pod(name, nodeName="a", metadata={"annotations": NOTES})
        house.see_pod("alone", nodeName="a")
        waits = house.see_pod("waits", metadata={"annotations": NOTES})
        for now_s in (0.0, 59.0):
            half.look(now_s)
        assert not told_of(house)
        for now_s in (60.0, 70.0):
            half.look(now_s)
        told = [event for event in house.desk.events if event.reason == "GangBelowMinimum"]
        assert [event.regarding.name for event in told] == ["m0", "m1"]
        assert the_gang(house).is_overdue, "so that the status of its PodGroup says it"
        assert {event.note for event in told} == {
            "gang default/g has been below its minimum for 60 s: 2 of 3 members run"
        }
        house.cache.gangs.set_member_node(waits, "a")
        house.cache.gangs.set_member_node(waits, "")
        assert not the_gang(house).is_overdue, "a member was assumed, and the API server refused its bind"
        half.look(75.0)
        assert the_gang(house).is_overdue
        house.see_pod("m2", nodeName="a", metadata={"annotations": NOTES})
        half.look(80.0)
        assert not the_gang(house).is_overdue
        house.lose_pod("m2")
        for now_s in (90.0, 149.0):
            half.look(now_s)
        assert len(told_of(house)) == 2, "its time begins anew"
        half.look(151.0)
        assert len(told_of(house)) == 4


def test_new_leader_reports_gangs_whose_timeout_passed_without_a_leader() -> None:
    with closing(SimLoop(seed=1)) as loop:
        house = House(loop, "a")
        half = GangsBelowMinimum(house.cache, house.router, house.desk, house.clock)
        house.see_pod("m0", nodeName="a", metadata={"annotations": NOTES})
        for now_s in (0.0, 60.0):
            half.look(now_s)
        assert not told_of(house)
        house.worker.lead()
        for now_s in (70.0, 80.0):
            half.look(now_s)
        assert told_of(house) == ["m0"]
