"""Members that must start together are bound once Permit and PreBind of all have ended; else all are undone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, Plugin
from multisched.framework.ports import BindAnswer, BindReply
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SKIP, SUCCESS, Status
from multisched.model.gang import KOORDINATOR
from multisched.model.objects import Pod
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import WorkerHarness

TAKES_S = 60.0
BEFORE_S, AFTER_S = TAKES_S - 10.0, TAKES_S + 10.0
NOT_BOUND = "gang default/g was not bound: member "


class Volumes:
    """PreBind of members in `slow` takes a minute, and says what `answer` is by then."""

    name = "Volumes"

    def __init__(self) -> None:
        self.slow = {"m3"}
        self.answer = SUCCESS

    def pre_bind_pre_flight(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        return SUCCESS if pod.name in self.slow else SKIP

    async def pre_bind(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        await asyncio.sleep(TAKES_S)
        return self.answer


class Remote:
    """A filter that asks outside about m4, and is answered after 20 s."""

    name = "Remote"
    depends_on = Dependency.ATTEMPT
    response_timeout_s = 30.0
    reasons = ReasonTable(name)

    def request(self, cycle: CycleView, pod: Pod, rows: Rows) -> object | None:
        return pod.name if pod.name == "m4" else None

    async def response(self, request: object) -> object:
        await asyncio.sleep(20.0)
        return request

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        return np.zeros(len(rows), np.uint8)


def gang(name: str = "g", least: int = 4, **more: str) -> dict[str, str]:
    notes = {"name": name, "min-available": str(least), "match-policy": "waiting-and-running", **more}
    return {f"{KOORDINATOR}{key}": text for key, text in notes.items()}


def see_members(harness: WorkerHarness, *names: str, notes: dict[str, str] | None = None) -> None:
    for name in names:
        harness.see_pod(name, metadata={"annotations": notes or gang()})


def posted(harness: WorkerHarness) -> list[str]:
    return sorted(name for name, _ in harness.desk.posts)


Scene = Callable[[WorkerHarness, Volumes], Coroutine[Any, Any, None]]


def play(scene: Scene, *plugins: Plugin, bind_workers: int = 4) -> None:
    """Three nodes with room for two pods each."""
    loop = SimLoop(seed=1)

    async def main() -> None:
        volumes = Volumes()
        harness = WorkerHarness(
            loop,
            "a",
            "b",
            "c",
            plugins=[volumes, *plugins],
            filters=("GangScheduling", "NodeUnschedulable"),
            bind_workers=bind_workers,
        )
        async with harness.at_work():
            await scene(harness, volumes)
        harness.cache.validate()
        harness.worker.queue.validate()

    simulate(main(), loop)


def test_no_member_is_bound_before_the_minimum_passed_pre_bind() -> None:
    async def scene(harness: WorkerHarness, volumes: Volumes) -> None:
        see_members(harness, "m0", "m1", "m2", "m3")
        harness.see_pod("plain")
        await asyncio.sleep(BEFORE_S)
        assert posted(harness) == ["plain"]
        await asyncio.sleep(AFTER_S - BEFORE_S)
        assert posted(harness) == ["m0", "m1", "m2", "m3", "plain"]
        assert harness.worker.is_drained

    play(scene)


def test_surplus_members_block_no_pod() -> None:
    async def scene(harness: WorkerHarness, volumes: Volumes) -> None:
        see_members(harness, "m0", "m1", "m2", "m3", "m4")
        await asyncio.sleep(BEFORE_S)
        assert posted(harness) == ["m0", "m1", "m2", "m4"]
        await asyncio.sleep(AFTER_S - BEFORE_S)
        assert posted(harness) == ["m0", "m1", "m2", "m3", "m4"]

    play(scene)


def test_later_member_is_not_bound_before_its_gang() -> None:
    async def scene(harness: WorkerHarness, volumes: Volumes) -> None:
        volumes.slow |= {"m2"}
        see_members(harness, "m0", "m1", "m2", "m3")
        await asyncio.sleep(1.0)
        see_members(harness, "m4")
        await asyncio.sleep(BEFORE_S)
        assert not posted(harness)
        await asyncio.sleep(AFTER_S - BEFORE_S)
        assert posted(harness) == ["m0", "m1", "m2", "m3", "m4"]

    play(scene)


def test_linked_gangs_are_bound_together() -> None:
    async def scene(harness: WorkerHarness, volumes: Volumes) -> None:
        groups = {"groups": '["g","h"]'}
        see_members(harness, "m0", "m1", notes=gang("h", 2, **groups))
        see_members(harness, "m2", "m3", notes=gang("g", 2, **groups))
        await asyncio.sleep(BEFORE_S)
        assert not posted(harness)
        await asyncio.sleep(AFTER_S - BEFORE_S)
        assert posted(harness) == ["m0", "m1", "m2", "m3"]

    play(scene)


def cordon(harness: WorkerHarness, volumes: Volumes) -> None:
    node = harness.node_of("m3")
    assert node is not None
    harness.see_node(node, unschedulable=True)


def delete(harness: WorkerHarness, volumes: Volumes) -> None:
    harness.lose_pod("m3")


def preempt(harness: WorkerHarness, volumes: Volumes) -> None:
    for name in ("m3", "m2"):  # two victims of one gang
        assert harness.worker.preempt_placed(f"uid-{name}", "DefaultPreemption")


def refuse(harness: WorkerHarness, volumes: Volumes) -> None:
    volumes.answer = Status.unschedulable("its volume did not come").by("Volumes")


@pytest.mark.parametrize(
    ("fails", "cause"),
    [
        (cordon, "the pod no longer fits node"),
        (delete, "deleted"),
        (preempt, "preempted by DefaultPreemption"),
        (refuse, "its volume did not come"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_failed_member_undoes_its_gang_and_is_named(
    fails: Callable[[WorkerHarness, Volumes], None], cause: str
) -> None:
    async def scene(harness: WorkerHarness, volumes: Volumes) -> None:
        see_members(harness, "m0", "m1", "m2", "m3")
        await asyncio.sleep(5.0)
        harness.worker.intake.is_held = True  # nothing is decided anew
        fails(harness, volumes)
        await asyncio.sleep(TAKES_S)
        assert not posted(harness)
        assert [harness.node_of(f"m{index}") for index in range(4)] == [None] * 4
        for name in ("m0", "m1"):
            assert any(NOT_BOUND in told and cause in told for told in harness.told(name)), harness.told(name)
        assert harness.worker.is_drained

    play(scene)


def test_no_member_is_bound_if_one_is_cancelled_while_they_wait_for_a_bind_worker() -> None:
    async def scene(harness: WorkerHarness, volumes: Volumes) -> None:
        harness.desk.sleep, harness.desk.replies = asyncio.sleep, [3.0]
        harness.see_pod("plain")  # its bind takes 3 s, and the only worker
        await asyncio.sleep(1.0)
        for name in ("m0", "m1"):
            harness.see_pod(name, cpu="2", metadata={"annotations": gang(least=2)})
        await asyncio.sleep(1.0)
        node = harness.node_of("m1")
        assert node not in (None, harness.node_of("m0"))
        harness.worker.intake.is_held = True  # nothing is decided anew
        harness.see_node(str(node), unschedulable=True)
        await asyncio.sleep(TAKES_S)
        assert posted(harness) == ["plain"]
        assert [harness.node_of(name) for name in ("m0", "m1")] == [None, None]

    play(scene, bind_workers=1)


def test_undone_gang_is_retried_as_a_gang() -> None:
    async def scene(harness: WorkerHarness, volumes: Volumes) -> None:
        see_members(harness, "m0", "m1", "m2", "m3")
        await asyncio.sleep(5.0)
        cordon(harness, volumes)
        await asyncio.sleep(BEFORE_S)
        assert not posted(harness)
        await asyncio.sleep(AFTER_S - BEFORE_S)
        assert posted(harness) == ["m0", "m1", "m2", "m3"]

    play(scene)


def test_member_whose_gang_is_undone_during_its_attempt_is_not_bound_alone() -> None:
    async def scene(harness: WorkerHarness, volumes: Volumes) -> None:
        volumes.slow |= {"m4"}
        see_members(harness, "m0", "m1", "m2", "m3")
        await asyncio.sleep(1.0)
        see_members(harness, "m4")
        await asyncio.sleep(1.0)
        harness.worker.intake.is_held = True  # nothing is decided anew
        delete(harness, volumes)
        await asyncio.sleep(20.0)
        assert [harness.node_of(f"m{index}") for index in (0, 1, 2, 4)] == [None] * 4
        assert any("other members of its gang" in told for told in harness.told("m4")), harness.told("m4")
        harness.worker.intake.is_held = False
        harness.worker.intake.wake()
        await asyncio.sleep(2 * TAKES_S)
        assert posted(harness) == ["m0", "m1", "m2", "m4"]

    play(scene, Remote())


def test_pods_with_gang_labels_start_one_by_one_in_a_profile_without_the_plugin() -> None:
    loop = SimLoop(seed=1)

    async def main() -> None:
        harness = WorkerHarness(loop, "a", "b", "c")
        async with harness.at_work():
            see_members(harness, "m0", "m1", notes=gang(least=2))
            see_members(harness, "m2", notes=gang("others", 4))
            await asyncio.sleep(1.0)
            assert posted(harness) == ["m0", "m1", "m2"]

    simulate(main(), loop)


def test_failed_surplus_member_leaves_the_others_their_nodes() -> None:
    async def scene(harness: WorkerHarness, volumes: Volumes) -> None:
        volumes.slow |= {"m2"}
        see_members(harness, "m0", "m1", "m2", "m3", "m4")
        await asyncio.sleep(5.0)
        harness.lose_pod("m3")
        await asyncio.sleep(AFTER_S)
        assert posted(harness) == ["m0", "m1", "m2", "m4"]
        assert not any(NOT_BOUND in told for name in ("m0", "m1", "m2", "m4") for told in harness.told(name))

    play(scene)


def test_gang_whose_minimum_rises_at_the_barrier_holds_nothing() -> None:
    async def scene(harness: WorkerHarness, volumes: Volumes) -> None:
        see_members(harness, "m0", "m1", "m2", "m3")
        await asyncio.sleep(5.0)
        see_members(harness, "m0", "m1", "m2", "m3", notes=gang(least=5))
        await asyncio.sleep(AFTER_S)
        assert not posted(harness)
        assert not len(harness.cache)

    play(scene)


def test_lost_lease_at_the_barrier_sends_no_member() -> None:
    async def scene(harness: WorkerHarness, volumes: Volumes) -> None:
        see_members(harness, "m0", "m1", "m2", "m3")
        await asyncio.sleep(BEFORE_S)
        harness.desk.is_leading = False
        await asyncio.sleep(AFTER_S - BEFORE_S)
        assert not posted(harness)

    play(scene)


def test_stop_at_the_barrier_sends_no_member() -> None:
    async def scene(harness: WorkerHarness, volumes: Volumes) -> None:
        see_members(harness, "m0", "m1", "m2", "m3")
        await asyncio.sleep(5.0)
        harness.worker.close_intake()
        await harness.worker.drained()
        assert not posted(harness)
        assert not len(harness.cache)

    play(scene)


def test_member_refused_after_the_first_post_reports_what_stays_bound() -> None:
    async def scene(harness: WorkerHarness, volumes: Volumes) -> None:
        harness.desk.replies = [*[BindReply(BindAnswer.CREATED)] * 3, BindReply(BindAnswer.DENIED, message="no")]
        see_members(harness, "m0", "m1", "m2", "m3")
        await asyncio.sleep(2 * AFTER_S)
        told = [text for name in ("m0", "m1", "m2", "m3") for text in harness.told(name)]
        (sentence,) = told
        assert sentence.endswith(
            ": no. Members of gang default/g that are bound by now stay bound: a bind cannot be undone."
        )
        assert len(harness.desk.bound) == 4, "tried again alone"

    play(scene)
