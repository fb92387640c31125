"""Preemptions of several preemptors and of several nodes: held together, let go together, and nobody goes in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import anyio

from multisched.framework.points import CycleView, PostFilterResult, Refusals
from multisched.framework.ports import WriteAnswer, WriteReply
from multisched.framework.preemption import Nomination, Preemption
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod
from multisched.shell.preemptor import FAILURE_PAUSE_S, SEEN_MAX_S
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import WorkerHarness
from tests.unit.shell.test_preemptor import UnderWay

REFUSED = WriteReply(WriteAnswer.REFUSED, message="a webhook says no")
PLACES = {"one": "a", "two": "b"}
RANK = 1_000_000


class MakesRoom:
    """One preemption for all pods of `PLACES`: whoever has no priority on the given nodes goes."""

    name = "MakesRoom"

    def __init__(
        self, cache: ClusterCache, under_way: UnderWay, places: Mapping[str, str], rank: int | None, group: str
    ) -> None:
        self._cache = cache
        self._under_way = under_way
        self._places = places
        self._rank = rank
        self._group = group
        self._made: Preemption | None = None

    def pre_enqueue(self, pod: Pod) -> Status:
        return Status.unresolvable("its victims go") if self._under_way.is_preempting(pod.uid) else SUCCESS

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        if pod.name not in self._places:
            return PostFilterResult(Status.unschedulable("nobody goes for it"))
        if self._made is None:
            self._made = self._make(cycle)
        return PostFilterResult(SUCCESS, self._made.node_of(pod.uid), self._made)

    def _make(self, cycle: CycleView) -> Preemption:
        victims: dict[str, tuple[Pod, ...]] = {}
        for entry in sorted(self._cache, key=lambda entry: entry.pod.name):
            if not entry.pod.spec.priority:
                victims[entry.node] = (*victims.get(entry.node, ()), entry.pod)
        wanted = [pending(name, self._under_way.harness) for name in self._places]
        nominations = tuple(Nomination(pod, self._places[pod.name]) for pod in wanted)
        return Preemption(victims, nominations, self.name, self._rank, self._group)


def pending(name: str, harness: WorkerHarness) -> Pod:
    pod = harness.worker.queue.pod(f"uid-{name}")
    assert pod is not None
    return pod


def play(
    scene: Callable[[WorkerHarness], Coroutine[Any, Any, None]],
    places: Mapping[str, str] = PLACES,
    *,
    rank: int | None = None,
    group: str = "",
    late_s: float = 0.0,
) -> None:
    """Two nodes of two CPUs, a, b, each full of a pod without priority, and c. `late_s`: when the preemptor begins to work."""
    loop = SimLoop(seed=3)

    async def begin(harness: WorkerHarness) -> None:
        await asyncio.sleep(late_s)
        await harness.preemptor.run()

    async def main() -> None:
        under_way, cache = UnderWay(), ClusterCache()
        plugin = MakesRoom(cache, under_way, places, rank, group)
        harness = under_way.harness = WorkerHarness(loop, "a", "b", plugins=[plugin])
        plugin._cache = harness.cache
        harness.desk.sleep = anyio.sleep
        async with harness.at_work(partial(begin, harness)):
            await asyncio.sleep(1.0)
            for node in "ab":
                harness.see_pod(f"low-{node}", cpu="2", scheduler="other", nodeName=node, phase="Running")
            await scene(harness)
        harness.cache.validate()
        harness.worker.queue.validate()

    simulate(main(), loop)


def see_both(harness: WorkerHarness) -> None:
    harness.see_pod("one", cpu="2", priority=100)
    harness.see_pod("two", cpu="2", priority=100)


def nominations(harness: WorkerHarness) -> Mapping[str, str]:
    return {pod.name: pod.nominated_node for pod in harness.domain.nominator.pods()}


def test_group_preemption_waits_for_victims_on_all_nodes_then_places_all() -> None:
    async def scene(harness: WorkerHarness) -> None:
        see_both(harness)
        await asyncio.sleep(0.5)
        assert harness.desk.writes_sent == [(what, name) for name in ("low-a", "low-b") for what in ("mark", "delete")]
        assert nominations(harness) == PLACES
        assert [pod for pod, condition in harness.desk.conditions if condition.nominated_node] == ["one", "two"]
        assert [end for end in harness.desk.ends if end[0] in ("victims", "preemption")] == [
            ("victims", 2),
            ("preemption", "success"),
        ]
        harness.lose_pod("low-a")
        await asyncio.sleep(0.5)
        assert [harness.preemptor.is_preempting(f"uid-{name}") for name in PLACES] == [True, True]
        assert harness.desk.posts == []
        harness.lose_pod("low-b")
        assert [harness.preemptor.is_preempting(f"uid-{name}") for name in PLACES] == [False, False]
        await asyncio.sleep(2.0)
        assert sorted(harness.desk.posts) == [("one", "a"), ("two", "b")]
        assert len(harness.preemptor) == 0

    play(scene)


def test_group_preemption_is_one_preemption_and_its_events_name_the_group() -> None:
    async def scene(harness: WorkerHarness) -> None:
        see_both(harness)
        await asyncio.sleep(0.002)
        assert len(harness.preemptor) == 1
        await asyncio.sleep(0.5)
        notes = [(event.regarding.name, event.note) for event in harness.desk.events if event.reason == "Preempted"]
        assert notes == [
            ("low-a", "Preempted by podgroup default/train on node a"),
            ("low-b", "Preempted by podgroup default/train on node b"),
        ]

    play(scene, group="default/train")


def test_group_preemption_is_dropped_if_a_member_was_deleted() -> None:
    async def scene(harness: WorkerHarness) -> None:
        see_both(harness)
        await asyncio.sleep(0.1)
        assert harness.preemptor.is_preempting("uid-two")
        harness.lose_pod("two")
        await asyncio.sleep(0.5)
        assert harness.desk.writes_sent == [("clear", "one")]
        assert nominations(harness) == {}
        assert harness.preemptor.is_preempting("uid-one"), "else it would be tried again at once, and again in vain"
        await asyncio.sleep(FAILURE_PAUSE_S)
        assert harness.worker.counters.attempts > 2

    play(scene, late_s=1.2)


def test_group_preemption_is_dropped_if_a_nominated_node_left() -> None:
    async def scene(harness: WorkerHarness) -> None:
        see_both(harness)
        await asyncio.sleep(0.1)
        harness.lose_node("b")
        await asyncio.sleep(0.5)
        assert [what for what, _ in harness.desk.writes_sent if what in ("mark", "delete")] == []
        assert ("preemption", "error") in harness.desk.ends
        assert nominations(harness) == {}

    play(scene, late_s=1.2)


def test_failed_victim_deletion_ends_all_group_nominations_and_requeues() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.desk.writes["delete", "low-b"] = [REFUSED]
        see_both(harness)
        await asyncio.sleep(0.5)
        assert harness.desk.writes_sent[-2:] == [("clear", "one"), ("clear", "two")]
        assert nominations(harness) == {}
        assert [harness.preemptor.is_preempting(f"uid-{name}") for name in PLACES] == [True, True]
        tried = harness.worker.counters.attempts
        await asyncio.sleep(FAILURE_PAUSE_S)
        assert harness.worker.counters.attempts > tried

    play(scene)


def test_group_with_unseen_victim_deletions_is_released_after_a_timeout() -> None:
    async def scene(harness: WorkerHarness) -> None:
        see_both(harness)
        await asyncio.sleep(1.0)
        harness.lose_pod("low-a")
        await asyncio.sleep(SEEN_MAX_S + 0.5)
        assert harness.worker.counters.attempts > 2

    play(scene)


def test_stop_drops_a_group_preemption_once() -> None:
    async def scene(harness: WorkerHarness) -> None:
        see_both(harness)
        await asyncio.sleep(1.0)
        assert harness.preemptor.is_preempting("uid-one")
        harness.worker.close_intake()
        assert [harness.preemptor.is_preempting(f"uid-{name}") for name in PLACES] == [False, False]
        assert harness.worker.is_drained

    play(scene)


def test_group_victims_may_be_on_nodes_without_nominations() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("one", cpu="2", priority=100)
        await asyncio.sleep(0.5)
        notes = [event.note for event in harness.desk.events if event.reason == "Preempted"]
        assert notes == ["Preempted by pod uid-one on node a", "Preempted by pod uid-one on node b"]
        assert nominations(harness) == {"one": "a"}

    play(scene, {"one": "a"})


def test_lower_ranked_nominations_on_the_node_end() -> None:
    async def scene(harness: WorkerHarness) -> None:
        nominator = harness.domain.nominator
        harness.see_pod("lower", cpu="4", priority=50, status={"nominatedNodeName": "a"})
        harness.see_pod("reclaims", cpu="4", priority=50, status={"nominatedNodeName": "a"})
        harness.see_pod("equal", cpu="4", priority=100, status={"nominatedNodeName": "b"})
        nominator.nominate(pending("reclaims", harness), "a", RANK)
        see_both(harness)
        await asyncio.sleep(0.5)
        cleared = [name for what, name in harness.desk.writes_sent if what == "clear"]
        assert cleared == ["lower"]
        assert nominations(harness) == {**PLACES, "reclaims": "a", "equal": "b"}

    play(scene)


def test_ranked_preemption_keeps_its_node_from_higher_priorities() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("one", cpu="2", priority=1)
        await asyncio.sleep(0.5)
        harness.lose_pod("low-a")
        harness.lose_pod("low-b")
        urgent = pending("one", harness)
        assert harness.domain.nominator.rank_of(urgent) == RANK
        harness.see_pod("urgent", cpu="2", priority=100)
        await asyncio.sleep(5.0)
        assert sorted(harness.desk.posts) == [("one", "a"), ("urgent", "b")]

    play(scene, {"one": "a"}, rank=RANK)
