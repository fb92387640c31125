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
from tests.unit.shell.shell_kit import House
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
        wanted = [pending(name, self._under_way.house) for name in self._places]
        nominations = tuple(Nomination(pod, self._places[pod.name]) for pod in wanted)
        return Preemption(victims, nominations, self.name, self._rank, self._group)


def pending(name: str, house: House) -> Pod:
    pod = house.worker.queue.pod(f"uid-{name}")
    assert pod is not None
    return pod


def play(
    scene: Callable[[House], Coroutine[Any, Any, None]],
    places: Mapping[str, str] = PLACES,
    *,
    rank: int | None = None,
    group: str = "",
    late_s: float = 0.0,
) -> None:
    """Two nodes of two CPUs, a, b, each full of a pod without priority, and c. `late_s`: when the preemptor begins to work."""
    loop = SimLoop(seed=3)

    async def begin(house: House) -> None:
        await asyncio.sleep(late_s)
        await house.preemptor.run()

    async def main() -> None:
        under_way, cache = UnderWay(), ClusterCache()
        plugin = MakesRoom(cache, under_way, places, rank, group)
        house = under_way.house = House(loop, "a", "b", plugins=[plugin])
        plugin._cache = house.cache
        house.desk.sleep = anyio.sleep
        async with house.at_work(partial(begin, house)):
            await asyncio.sleep(1.0)
            for node in "ab":
                house.see_pod(f"low-{node}", cpu="2", scheduler="other", nodeName=node, phase="Running")
            await scene(house)
        house.cache.validate()
        house.worker.queue.validate()

    simulate(main(), loop)


def see_both(house: House) -> None:
    house.see_pod("one", cpu="2", priority=100)
    house.see_pod("two", cpu="2", priority=100)


def nominations(house: House) -> Mapping[str, str]:
    return {pod.name: pod.nominated_node for pod in house.domain.nominator.pods()}


def test_group_preemption_waits_for_victims_on_all_nodes_then_places_all() -> None:
    async def scene(house: House) -> None:
        see_both(house)
        await asyncio.sleep(0.5)
        assert house.desk.writes_sent == [(what, name) for name in ("low-a", "low-b") for what in ("mark", "delete")]
        assert nominations(house) == PLACES
        assert [pod for pod, condition in house.desk.conditions if condition.nominated_node] == ["one", "two"]
        assert [end for end in house.desk.ends if end[0] in ("victims", "preemption")] == [
            ("victims", 2),
            ("preemption", "success"),
        ]
        house.lose_pod("low-a")
        await asyncio.sleep(0.5)
        assert [house.preemptor.is_preempting(f"uid-{name}") for name in PLACES] == [True, True]
        assert house.desk.posts == []
        house.lose_pod("low-b")
        assert [house.preemptor.is_preempting(f"uid-{name}") for name in PLACES] == [False, False]
        await asyncio.sleep(2.0)
        assert sorted(house.desk.posts) == [("one", "a"), ("two", "b")]
        assert len(house.preemptor) == 0

    play(scene)


def test_group_preemption_is_one_preemption_and_its_events_name_the_group() -> None:
    async def scene(house: House) -> None:
        see_both(house)
        await asyncio.sleep(0.002)
        assert len(house.preemptor) == 1
        await asyncio.sleep(0.5)
        notes = [(event.regarding.name, event.note) for event in house.desk.events if event.reason == "Preempted"]
        assert notes == [
            ("low-a", "Preempted by podgroup default/train on node a"),
            ("low-b", "Preempted by podgroup default/train on node b"),
        ]

    play(scene, group="default/train")


def test_group_preemption_is_dropped_if_a_member_was_deleted() -> None:
    async def scene(house: House) -> None:
        see_both(house)
        await asyncio.sleep(0.1)
        assert house.preemptor.is_preempting("uid-two")
        house.lose_pod("two")
        await asyncio.sleep(0.5)
        assert house.desk.writes_sent == [("clear", "one")]
        assert nominations(house) == {}
        assert house.preemptor.is_preempting("uid-one"), "else it would be tried again at once, and again in vain"
        await asyncio.sleep(FAILURE_PAUSE_S)
        assert house.worker.counters.attempts > 2

    play(scene, late_s=1.2)


def test_group_preemption_is_dropped_if_a_nominated_node_left() -> None:
    async def scene(house: House) -> None:
        see_both(house)
        await asyncio.sleep(0.1)
        house.lose_node("b")
        await asyncio.sleep(0.5)
        assert [what for what, _ in house.desk.writes_sent if what in ("mark", "delete")] == []
        assert ("preemption", "error") in house.desk.ends
        assert nominations(house) == {}

    play(scene, late_s=1.2)


def test_failed_victim_deletion_ends_all_group_nominations_and_requeues() -> None:
    async def scene(house: House) -> None:
        house.desk.writes["delete", "low-b"] = [REFUSED]
        see_both(house)
        await asyncio.sleep(0.5)
        assert house.desk.writes_sent[-2:] == [("clear", "one"), ("clear", "two")]
        assert nominations(house) == {}
        assert [house.preemptor.is_preempting(f"uid-{name}") for name in PLACES] == [True, True]
        tried = house.worker.counters.attempts
        await asyncio.sleep(FAILURE_PAUSE_S)
        assert house.worker.counters.attempts > tried

    play(scene)


def test_group_with_unseen_victim_deletions_is_released_after_a_timeout() -> None:
    async def scene(house: House) -> None:
        see_both(house)
        await asyncio.sleep(1.0)
        house.lose_pod("low-a")
        await asyncio.sleep(SEEN_MAX_S + 0.5)
        assert house.worker.counters.attempts > 2

    play(scene)


def test_stop_drops_a_group_preemption_once() -> None:
    async def scene(house: House) -> None:
        see_both(house)
        await asyncio.sleep(1.0)
        assert house.preemptor.is_preempting("uid-one")
        house.worker.close_intake()
        assert [house.preemptor.is_preempting(f"uid-{name}") for name in PLACES] == [False, False]
        assert house.worker.is_drained

    play(scene)


def test_group_victims_may_be_on_nodes_without_nominations() -> None:
    async def scene(house: House) -> None:
        house.see_pod("one", cpu="2", priority=100)
        await asyncio.sleep(0.5)
        notes = [event.note for event in house.desk.events if event.reason == "Preempted"]
        assert notes == ["Preempted by pod uid-one on node a", "Preempted by pod uid-one on node b"]
        assert nominations(house) == {"one": "a"}

    play(scene, {"one": "a"})


def test_lower_ranked_nominations_on_the_node_end() -> None:
    async def scene(house: House) -> None:
        nominator = house.domain.nominator
        house.see_pod("lower", cpu="4", priority=50, status={"nominatedNodeName": "a"})
        house.see_pod("reclaims", cpu="4", priority=50, status={"nominatedNodeName": "a"})
        house.see_pod("equal", cpu="4", priority=100, status={"nominatedNodeName": "b"})
        nominator.nominate(pending("reclaims", house), "a", RANK)
        see_both(house)
        await asyncio.sleep(0.5)
        cleared = [name for what, name in house.desk.writes_sent if what == "clear"]
        assert cleared == ["lower"]
        assert nominations(house) == {**PLACES, "reclaims": "a", "equal": "b"}

    play(scene)


def test_ranked_preemption_keeps_its_node_from_higher_priorities() -> None:
    async def scene(house: House) -> None:
        house.see_pod("one", cpu="2", priority=1)
        await asyncio.sleep(0.5)
        house.lose_pod("low-a")
        house.lose_pod("low-b")
        urgent = pending("one", house)
        assert house.domain.nominator.rank_of(urgent) == RANK
        house.see_pod("urgent", cpu="2", priority=100)
        await asyncio.sleep(5.0)
        assert sorted(house.desk.posts) == [("one", "a"), ("urgent", "b")]

    play(scene, {"one": "a"}, rank=RANK)
