"""Victims of decided removals: marked from the decision on, until the watch shows them leaving or the plan ends without that."""

from __future__ import annotations

import asyncio

import pytest

from multisched.framework.ports import WriteReply
from multisched.framework.preemption import preemption_of_one
from multisched.shell.removals import UNSEEN_MAX_S, Removals
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import make_node, make_pod
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import WorkerHarness
from tests.unit.shell.test_preemptor import BUSY, LOST, REFUSED, play, two_low


def victims(harness: WorkerHarness) -> list[str]:
    return sorted(entry.pod.name for entry in harness.cache if entry.pod.is_leaving)


def test_victims_are_marked_from_decision_until_seen_deleting() -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(0.001)
        assert (harness.desk.writes_sent, victims(harness)) == ([("mark", "low-1")], ["low-1", "low-2"])
        harness.see_pod("low-2", scheduler="other", nodeName="a", phase="Running", metadata={"labels": {"a": "b"}})
        assert victims(harness) == ["low-1", "low-2"], "a later version of the pod changes nothing"
        harness.lose_pod("low-1")
        harness.see_pod(
            "low-2", scheduler="other", nodeName="a", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}
        )
        await asyncio.sleep(1.0)
        assert (len(harness.removals), harness.preemptor.is_preempting("uid-high")) == (0, False)

    play(scene)


@pytest.mark.parametrize(
    ("answers", "after_s", "marked"),
    [([REFUSED], 0.5, ["low-1"]), ([LOST] * 5, 3.5, ["low-1", "low-2"]), ([BUSY, REFUSED], 2.5, ["low-1"])],
)
def test_victim_whose_deletion_failed_is_released(answers: list[WriteReply], after_s: float, marked: list[str]) -> None:
    """One whose deletion has happened, or may have, goes on to count until the watch shows it."""

    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.desk.writes[("delete", "low-2")] = answers
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(after_s)
        assert ("preemption", "error") in harness.desk.ends
        assert victims(harness) == marked

    play(scene)


def test_cancelled_victim_is_no_victim_on_its_next_node() -> None:
    async def main() -> None:
        cache, pod = ClusterCache(), make_pod("low")
        for name in ("a", "b"):
            cache.set_node(make_node(name))
        removals = Removals(cache)
        cache.assume(pod, 0)
        removals.decide("one", [pod])
        removals.sent(pod.uid)
        cache.forget(pod.uid)
        removals.release("one", [pod])
        cache.assume(pod, 1)
        assert removals.pods() == []
        removals.decide("two", [pod])
        removals.release("two", [pod])
        assert (removals.pods(), len(removals)) == ([], 0)

    simulate(main(), SimLoop(seed=1))


def test_deletion_that_ends_after_its_plan_marks_the_victim() -> None:
    """The plan is dropped when its domain stops, while the API server carries out the deletion. Seed 200 showed it."""

    async def main() -> None:
        cache, pod = ClusterCache(), make_pod("low")
        cache.set_node(make_node("a"))
        removals = Removals(cache)
        cache.assume(pod, 0)
        removals.decide("plan", [pod])
        removals.release("plan", [pod])
        removals.sent(pod.uid)
        assert [victim.uid for victim in removals.pods()] == [pod.uid]
        await asyncio.sleep(UNSEEN_MAX_S + 1)
        assert (removals.pods(), len(removals)) == ([], 0)

    simulate(main(), SimLoop(seed=1))


def test_dropped_preemption_leaves_no_victims() -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(0.1)
        assert victims(harness) == ["low-1", "low-2"]
        harness.worker.close_intake()
        assert (victims(harness), len(harness.removals)) == ([], 0)

    play(scene, late_s=60.0)


def test_victim_is_marked_while_any_preemption_needs_it_and_a_minute_after_sending() -> None:
    async def main() -> None:
        cache, pod = ClusterCache(), make_pod("low", node="a")
        cache.set_node(make_node("a"))
        cache.place(pod)
        removals = Removals(cache)
        removals.decide("one", [pod])
        removals.decide("two", [pod])
        removals.release("one", [pod])
        assert [victim.name for victim in removals.pods()] == ["low"]
        removals.sent(pod.uid)
        removals.release("two", [pod])
        await asyncio.sleep(UNSEEN_MAX_S - 1.0)
        assert [victim.name for victim in removals.pods()] == ["low"]
        await asyncio.sleep(2.0)
        entry = cache.placed(pod.uid)
        assert entry is not None
        assert (len(removals), entry.pod.is_leaving) == (0, False)
        cache.validate()

    simulate(main(), SimLoop(seed=1))


def test_preemption_does_not_start_for_victims_with_cancelled_binds() -> None:
    """Else it would end at once, and its preemptor be tried again at once, without end."""

    async def scene(harness: WorkerHarness) -> None:
        low, high, home = make_pod("low"), make_pod("high", priority=100), harness.worker.nominations
        harness.cache.assume(low, 0)
        preemption = preemption_of_one(high, "a", (low,), "Tests")
        assert harness.preemptor.start(preemption, home)
        await asyncio.sleep(2.0)
        harness.removals.decide(harness, (low,))
        harness.removals.sent(low.uid)
        assert not harness.preemptor.start(preemption, home)
        harness.cache.forget(low.uid)

    play(scene)
