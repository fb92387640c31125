"""Gangs that run without their minimum: their running members hear of it once, by an event."""

from __future__ import annotations

from contextlib import closing

from multisched.framework.gangs import GangCounts
from multisched.model.gang import KOORDINATOR
from multisched.shell.gangs_below_minimum import GangsBelowMinimum
from multisched.testing.sim_loop import SimLoop
from tests.unit.shell.shell_kit import WorkerHarness

NOTES = {f"{KOORDINATOR}name": "g", f"{KOORDINATOR}min-available": "3", f"{KOORDINATOR}waiting-time": "60s"}
NOTES |= {f"{KOORDINATOR}match-policy": "waiting-and-running"}


def the_gang(harness: WorkerHarness) -> GangCounts:
    counts = harness.cache.gangs.counts("default/g")
    assert counts is not None
    return counts


def told_of(harness: WorkerHarness) -> list[str]:
    return [event.regarding.name for event in harness.desk.events if event.reason == "GangBelowMinimum"]


def test_only_bound_members_below_the_minimum_get_an_event_once() -> None:
    with closing(SimLoop(seed=1)) as loop:
        harness = WorkerHarness(loop, "a")
        harness.worker.lead()
        half = GangsBelowMinimum(harness.cache, harness.router, harness.desk, harness.clock)
        for name in ("m0", "m1"):
            harness.see_pod(name, nodeName="a", metadata={"annotations": NOTES})
        harness.see_pod("alone", nodeName="a")
        waits = harness.see_pod("waits", metadata={"annotations": NOTES})
        for now_s in (0.0, 59.0):
            half.look(now_s)
        assert not told_of(harness)
        for now_s in (60.0, 70.0):
            half.look(now_s)
        told = [event for event in harness.desk.events if event.reason == "GangBelowMinimum"]
        assert [event.regarding.name for event in told] == ["m0", "m1"]
        assert the_gang(harness).is_overdue, "so that the status of its PodGroup says it"
        assert {event.note for event in told} == {
            "gang default/g has been below its minimum for 60 s: 2 of 3 members run"
        }
        harness.cache.gangs.set_member_node(waits, "a")
        harness.cache.gangs.set_member_node(waits, "")
        assert not the_gang(harness).is_overdue, "a member was assumed, and the API server refused its bind"
        half.look(75.0)
        assert the_gang(harness).is_overdue
        harness.see_pod("m2", nodeName="a", metadata={"annotations": NOTES})
        half.look(80.0)
        assert not the_gang(harness).is_overdue
        harness.lose_pod("m2")
        for now_s in (90.0, 149.0):
            half.look(now_s)
        assert len(told_of(harness)) == 2, "its time begins anew"
        half.look(151.0)
        assert len(told_of(harness)) == 4


def test_new_leader_reports_gangs_whose_timeout_passed_without_a_leader() -> None:
    with closing(SimLoop(seed=1)) as loop:
        harness = WorkerHarness(loop, "a")
        half = GangsBelowMinimum(harness.cache, harness.router, harness.desk, harness.clock)
        harness.see_pod("m0", nodeName="a", metadata={"annotations": NOTES})
        for now_s in (0.0, 60.0):
            half.look(now_s)
        assert not told_of(harness)
        harness.worker.lead()
        for now_s in (70.0, 80.0):
            half.look(now_s)
        assert told_of(harness) == ["m0"]
