"""A gang whose attempt takes several steps: others go on meanwhile, and nothing is held once the attempt has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from multisched.model.gang import SP_LABEL, GangApi, GangSpec, TopologyLevel
from multisched.queueing.transitions import QueueState
from multisched.shell.domain import DomainWorker
from multisched.testing.sim_loop import SimLoop, simulate
from tests.kit.counted_steps import CountedSteps
from tests.unit.shell.shell_kit import WorkerHarness
from tests.unit.shell.test_preemptor import preempting_house

ACK = "pod-group.scheduling.sigs.k8s.io"
REST_S = 1.0
"""Virtual seconds of each pause: as many members as evaluations are placed in between."""

Scene = Callable[[WorkerHarness], Coroutine[Any, Any, None]]


def play(scene: Scene, *nodes: str, evaluations: int = 1, plugins: Sequence[str] = ()) -> None:
    """Plays the scene with so many evaluations per step, and these plugins beside GangScheduling."""

    loop = SimLoop(seed=3)

    async def run() -> None:
        harness = WorkerHarness(
            loop, *nodes, filters=("GangScheduling", *plugins), steps=CountedSteps(evaluations, REST_S)
        )
        async with harness.at_work():
            await scene(harness)
        harness.cache.validate()
        harness.worker.queue.validate()
        assert harness.cache.assumed_count() == sum(
            harness.cache.is_assumed(f"uid-{name}") for name, _ in harness.desk.posts
        )

    simulate(run(), loop)


def see_gang(
    harness: WorkerHarness, count: int, *, least: int | None = None, name: str = "gang", **fields: Any
) -> None:
    labels = {f"{ACK}/name": name, f"{ACK}/min-available": str(count if least is None else least)}
    for number in range(count):
        harness.see_pod(f"{name}-{number}", metadata={"labels": labels}, **fields)


def bound(harness: WorkerHarness) -> dict[str, str]:
    return dict(harness.desk.posts)


def in_pause(harness: WorkerHarness) -> bool:
    return harness.worker.long_attempts.is_running


async def first_pause(harness: WorkerHarness) -> None:
    """Until some members are assumed, and others are not."""
    await asyncio.sleep(1.5 * REST_S)
    assert in_pause(harness)
    assert harness.cache.assumed_count()


def test_plain_pod_is_bound_while_a_gang_attempt_is_in_progress() -> None:
    async def scene(harness: WorkerHarness) -> None:
        see_gang(harness, 6)
        await first_pause(harness)
        harness.see_pod("plain")
        await asyncio.sleep(REST_S / 2)
        assert in_pause(harness)
        assert set(bound(harness)) == {"plain"}
        await asyncio.sleep(20 * REST_S)
        assert len(bound(harness)) == 7
        assert harness.steps.longest <= 2
        assert harness.worker.long_attempts.pauses > 2
        assert not harness.worker.long_attempts.undone

    play(scene, "a", "b", "c", "d")


def test_pod_does_not_use_room_of_members_in_a_paused_attempt() -> None:
    async def scene(harness: WorkerHarness) -> None:
        see_gang(harness, 4)
        await first_pause(harness)
        held = harness.cache.assumed_count()
        for number in range(4):
            harness.see_pod(f"plain-{number}")
        await asyncio.sleep(REST_S / 2)
        assert in_pause(harness)
        assert len(bound(harness)) == 4 - held
        assert not any(name.startswith("gang") for name in bound(harness))

    play(scene, "a", "b")


def test_pod_refused_because_of_a_paused_attempt_is_requeued_when_it_fails() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_node("c", cpu="1")
        see_gang(harness, 6)  # one more than there is room for
        await first_pause(harness)
        await asyncio.sleep(REST_S)
        assert harness.cache.assumed_count() == 5
        harness.see_pod("plain")
        await asyncio.sleep(REST_S / 2)
        assert in_pause(harness)
        assert harness.worker.queue.where("uid-plain") is QueueState.UNSCHEDULABLE
        await asyncio.sleep(10 * REST_S)
        assert set(bound(harness)) == {"plain"}
        attempts = harness.worker.counters.attempts
        await asyncio.sleep(60 * REST_S)
        assert harness.worker.counters.attempts == attempts, "the gang was woken by the room that it gave back itself"

    play(scene, "a", "b")


def test_node_deleted_in_a_pause_makes_the_gang_start_elsewhere() -> None:
    async def scene(harness: WorkerHarness) -> None:
        see_gang(harness, 4)
        await first_pause(harness)
        (entry, *_) = list(harness.cache)
        harness.lose_node(entry.node)
        await asyncio.sleep(60 * REST_S)
        nodes = list(bound(harness).values())
        assert len(nodes) == 4
        assert entry.node not in nodes

    play(scene, "a", "b", "c")


def test_member_deleted_in_a_pause_leaves_nothing_held() -> None:
    async def scene(harness: WorkerHarness) -> None:
        see_gang(harness, 4)
        await first_pause(harness)
        harness.lose_pod("gang-0")
        await asyncio.sleep(20 * REST_S)
        assert not bound(harness)
        assert not len(harness.cache)
        assert harness.worker.long_attempts.undone == 1
        harness.see_pod("plain", cpu="2")
        await asyncio.sleep(REST_S)
        assert set(bound(harness)) == {"plain"}

    play(scene, "a", "b")


def test_members_are_not_kept_when_others_of_the_gang_lose_their_nodes_in_a_pause() -> None:
    """One more must start beside two that are bound; without those, three must."""

    async def scene(harness: WorkerHarness) -> None:
        labels = {f"{ACK}/name": "gang", f"{ACK}/min-available": "3"}
        for number in range(2):
            harness.see_pod(f"gang-{number}", nodeName="a", phase="Running", metadata={"labels": labels})
        for number in range(2, 6):
            harness.see_pod(f"gang-{number}", metadata={"labels": labels})
        await first_pause(harness)
        harness.lose_pod("gang-0")
        harness.lose_pod("gang-1")
        harness.see_pod("stranger", cpu="2", nodeName="a", phase="Running", scheduler="another")
        await asyncio.sleep(20 * REST_S)
        assert harness.worker.long_attempts.undone == 1
        assert not bound(harness)
        assert {entry.pod.name for entry in harness.cache} == {"stranger"}

    play(scene, "a", "b")


@pytest.mark.parametrize("pause", [1, 2])
@pytest.mark.parametrize("changed", [GangSpec(7), GangSpec(6, topology=(TopologyLevel("nowhere", is_required=True),))])
def test_gang_whose_object_changes_in_a_pause_does_not_start_as_it_was(changed: GangSpec, pause: int) -> None:
    """Its minimum is raised, or it must stay in one domain of a label that no node has.

    `pause`: the first, in which one member is assumed, or a later one.
    """

    async def scene(harness: WorkerHarness) -> None:
        gangs = harness.cache.gangs
        gangs.set_object(GangApi.SCHEDULER_PLUGINS, "default/gang", GangSpec(6))
        for number in range(6):
            harness.see_pod(f"gang-{number}", metadata={"labels": {SP_LABEL: "gang"}})
        await first_pause(harness)
        await asyncio.sleep((pause - 1) * REST_S)
        assert in_pause(harness)
        gangs.set_object(GangApi.SCHEDULER_PLUGINS, "default/gang", changed)
        await asyncio.sleep(20 * REST_S)
        assert not bound(harness)
        assert not len(harness.cache)

    play(scene, "a", "b", "c")


def test_members_without_a_full_gang_do_not_start_while_others_are_assumed() -> None:
    """A member that comes during the pause must not take those in the pause for started ones."""

    async def scene(harness: WorkerHarness) -> None:
        see_gang(harness, 4)
        await first_pause(harness)
        labels = {f"{ACK}/name": "gang", f"{ACK}/min-available": "4"}
        harness.see_pod("gang-late", metadata={"labels": labels})
        await asyncio.sleep(REST_S / 2)
        assert not bound(harness)
        harness.lose_pod("gang-0")
        harness.lose_pod("gang-1")
        await asyncio.sleep(20 * REST_S)
        assert not bound(harness)
        assert not len(harness.cache)

    play(scene, "a", "b", "c")


def test_stopped_worker_undoes_a_paused_attempt() -> None:
    async def scene(harness: WorkerHarness) -> None:
        see_gang(harness, 4)
        await first_pause(harness)

    play(scene, "a", "b")


@pytest.mark.parametrize("stop", [DomainWorker.close_intake, DomainWorker.pause_scheduling], ids=["closing", "held"])
def test_domain_that_stops_scheduling_undoes_a_paused_attempt(stop: Callable[[DomainWorker], None]) -> None:
    async def scene(harness: WorkerHarness) -> None:
        see_gang(harness, 4)
        await first_pause(harness)
        stop(harness.worker)
        await asyncio.sleep(2 * REST_S)
        assert not len(harness.cache)
        assert not in_pause(harness)
        assert harness.worker.queue.where("uid-gang-0") not in (None, QueueState.IN_FLIGHT)

    play(scene, "a", "b")


def test_second_long_attempt_waits_for_the_first_and_starts_after_it() -> None:
    async def scene(harness: WorkerHarness) -> None:
        see_gang(harness, 4, name="one")
        see_gang(harness, 4, name="two")
        await asyncio.sleep(30 * REST_S)
        assert len(bound(harness)) == 8

    play(scene, "a", "b", "c", "d")


def test_preempted_member_of_a_paused_attempt_undoes_it_and_is_not_deleted() -> None:
    async def scene(harness: WorkerHarness) -> None:
        see_gang(harness, 4)
        await first_pause(harness)
        (entry, *_) = list(harness.cache)
        assert harness.worker.preempt_placed(entry.pod.uid, "Tests")
        await asyncio.sleep(1.5 * REST_S)
        assert harness.worker.long_attempts.undone == 1
        await asyncio.sleep(30 * REST_S)
        assert len(bound(harness)) == 4

    play(scene, "a", "b")


@pytest.mark.parametrize("plugins", [(), ("DefaultPreemption",)], ids=["alone", "preempting"])
@pytest.mark.parametrize(("every_s", "priority"), [(0.37, 0), (1.0, 0), (1.0, 5)])
def test_infeasible_gangs_do_not_starve_a_feasible_one(every_s: float, priority: int, plugins: Sequence[str]) -> None:
    """Events that may help all of them come again and again. While one of the two is tried, the third fits on no node."""

    async def scene(harness: WorkerHarness) -> None:
        harness.see_node("far", cpu="500m")
        for number in range(2):
            see_gang(harness, 13 + number, name=f"big{number}", priority=priority)
        await asyncio.sleep(1.5 * REST_S)
        assert in_pause(harness)
        see_gang(harness, 3, name="small", cpu="2")
        for number in range(int(60 / every_s)):
            harness.see_pod(f"other-{number}", cpu="500m", nodeName="far", scheduler="another")
            await asyncio.sleep(every_s)
            harness.lose_pod(f"other-{number}")
        assert {name for name in bound(harness) if "big" not in name} == {"small-0", "small-1", "small-2"}

    play(scene, *"abcdef", evaluations=6, plugins=plugins)


def test_gang_that_held_capacity_and_failed_yields_despite_its_preemption() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("low", nodeName="a", scheduler="another", priority=-1)
        see_gang(harness, 9, priority=3)
        await first_pause(harness)
        await asyncio.sleep(30 * REST_S)
        assert not in_pause(harness)
        assert harness.worker.long_attempts.pauses > 2
        lead = next(entry for entry in harness.worker.queue.entries() if entry.state is QueueState.UNSCHEDULABLE)
        assert harness.worker.queue.gangs.has_failed_while_holding(lead.uid)

    play(scene, "a", "b", plugins=("DefaultPreemption",))


def test_other_gang_is_first_after_a_recovering_gang_was_deleted() -> None:
    """As docs/users.md has it. Each holds room that the other needs."""

    async def scene(harness: WorkerHarness) -> None:
        for gang in ("first", "second"):
            labels = {f"{ACK}/name": gang, f"{ACK}/min-available": "3"}
            for number in range(2):
                harness.see_pod(f"{gang}-{number}", nodeName="ab"[number], metadata={"labels": labels})
            harness.see_pod(f"{gang}-2", metadata={"labels": labels})
        await asyncio.sleep(30 * REST_S)
        assert bound(harness) == {}
        labels = {f"{ACK}/name": "first", f"{ACK}/min-available": "3"}
        for number in range(2):
            harness.lose_pod(f"first-{number}")
            harness.see_pod(f"first-new-{number}", metadata={"labels": labels})
        await asyncio.sleep(30 * REST_S)
        assert set(bound(harness)) == {"second-2"}

    play(scene, "a", "b")


def test_pod_is_bound_while_another_searches_for_victims() -> None:
    loop, rival = SimLoop(seed=3), {"app": "rival"}

    async def run() -> None:
        harness = preempting_house(
            loop, *(f"n{number}" for number in range(6)), filters=("InterPodAffinity",), steps=CountedSteps(1, REST_S)
        )
        harness.desk.sleep = asyncio.sleep
        for number in range(6):
            harness.see_node(f"n{number}", cpu="2", labels={"rack": f"r{number}"})
            where: dict[str, Any] = {
                "nodeName": f"n{number}",
                "phase": "Running",
                "scheduler": "other",
                "priority": number,
            }
            harness.see_pod(f"low-{number}", metadata={"labels": rival}, **where)
        term = {"labelSelector": {"matchLabels": rival}, "topologyKey": "rack"}
        away = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        async with harness.at_work(harness.preemptor.run):
            harness.see_pod("urgent", priority=9, affinity=away)
            await asyncio.sleep(1.5 * REST_S)
            assert in_pause(harness)
            harness.see_pod("plain")
            await asyncio.sleep(REST_S / 2)
            assert in_pause(harness)
            assert set(bound(harness)) == {"plain"}
            await asyncio.sleep(20 * REST_S)
            assert harness.desk.writes_sent[-1] == ("delete", "low-0")
        harness.worker.queue.validate()

    simulate(run(), loop)
