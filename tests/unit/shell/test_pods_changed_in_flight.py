"""Pods that change between the pop from the queue and the watch's word that they are bound: they count as they are now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import anyio
import numpy as np
import pytest

from domains.gpu.dialects.own import GPU_MILLI
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, Plugin
from multisched.framework.ports import BindAnswer, BindReply, PodTruth, UnreachableError
from multisched.framework.reasons import ReasonTable
from multisched.model.decode import LABELS_MAX
from multisched.model.objects import CPU, Pod
from multisched.queueing.transitions import QueueState
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import HELD_S, Holding, WorkerHarness


class Remote:
    """A filter that asks outside and lets all rows pass, after a while."""

    name = "Remote"
    depends_on = Dependency.ATTEMPT
    response_timeout_s = 10.0
    reasons = ReasonTable(name)

    def __init__(self) -> None:
        self.asked: list[str] = []

    def request(self, cycle: CycleView, pod: Pod, rows: Rows) -> object | None:
        self.asked.append(f"{pod.name} {pod.requests.get(CPU, 0)}m")
        return "?"

    async def response(self, request: object) -> object:
        await asyncio.sleep(HELD_S)
        return "yes"

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        return np.zeros(len(rows), np.uint8)


def play(scene: Callable[[WorkerHarness], Coroutine[Any, Any, None]], *, plugins: Sequence[Plugin] = ()) -> None:
    """A domain with one bind worker, over node a with 4 CPUs."""
    loop = SimLoop(seed=3)

    async def main() -> None:
        harness = WorkerHarness(
            loop, plugins=plugins or [Holding()], bind_workers=1, filters=("NodePorts", "InterPodAffinity")
        )
        harness.see_node("a", cpu="4", labels={"zone": "z"})
        harness.desk.sleep = anyio.sleep
        async with harness.at_work():
            await scene(harness)
        harness.cache.validate()

    simulate(main(), loop)


def used(harness: WorkerHarness) -> int:
    return int(harness.cache.nodes.requested(CPU)[harness.domain.row("a")])


@pytest.mark.parametrize("where", ["permit", "prebind", "queued", "sent"])
def test_changes_of_an_assumed_pod_count_at_once(where: str) -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.desk.replies = [] if where in ("permit", "prebind") else [HELD_S]
        if where == "queued":
            harness.see_pod("first", cpu="100m")
            await asyncio.sleep(0.1)
        harness.see_pod(where, cpu="1")
        await asyncio.sleep(0.1)
        assert harness.node_of(where) == "a"
        before = used(harness)
        harness.see_pod(where, cpu="3")
        assert used(harness) == before + 2000
        for number in range(3):
            harness.see_pod(f"later-{number}", cpu="1")
        await asyncio.sleep(0.1)
        assert used(harness) <= 4000
        harness.see_pod(where, cpu="2")
        await asyncio.sleep(0.1)
        assert used(harness) <= 4000

    play(scene)


@pytest.mark.parametrize("where", ["permit", "prebind", "queued"])
def test_pod_that_outgrew_its_node_before_the_bind_is_decided_again(where: str) -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.desk.replies = [HELD_S] if where == "queued" else []
        harness.see_pod("first", cpu="1")
        await asyncio.sleep(0.1)
        harness.see_pod(where, cpu="1")
        await asyncio.sleep(0.1)
        harness.see_pod(where, cpu="4")
        await asyncio.sleep(HELD_S + 0.1)

        assert harness.node_of(where) is None
        assert harness.desk.posts == [("first", "a")]
        assert harness.worker.queue.where(f"uid-{where}") in (QueueState.BACKOFF, QueueState.UNSCHEDULABLE)
        assert used(harness) == 1000

    play(scene)


@pytest.mark.parametrize("where", ["permit", "prebind", "queued"])
def test_grown_pod_that_still_fits_keeps_its_node(where: str) -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.desk.replies = [HELD_S] if where == "queued" else []
        harness.see_pod("first", cpu="1")
        await asyncio.sleep(0.1)
        harness.see_pod(where, cpu="1")
        await asyncio.sleep(0.1)
        harness.see_pod(where, cpu="3")
        await asyncio.sleep(HELD_S + 0.1)
        harness.worker.waiting.allow("uid-permit", "Holding")
        await asyncio.sleep(0.1)

        assert harness.desk.posts == [("first", "a"), (where, "a")]
        assert used(harness) == 4000

    play(scene)


def test_assumed_pod_counts_with_its_current_labels() -> None:
    """A pod that is relabelled into the reach of a standing pod's anti-affinity is not sent."""
    term = {"labelSelector": {"matchLabels": {"role": "leader"}}, "topologyKey": "zone"}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}

    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("loner", cpu="1", nodeName="a", affinity=anti, phase="Running")
        harness.see_pod("permit", cpu="1", metadata={"labels": {"role": "follower"}})
        await asyncio.sleep(0.1)
        assert harness.node_of("permit") == "a"
        harness.see_pod("permit", cpu="1", metadata={"labels": {"role": "leader"}})
        await asyncio.sleep(0.1)
        assert harness.node_of("permit") is None
        assert harness.desk.posts == []

    play(scene)


def test_status_change_cancels_no_bind() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("permit", cpu="1")
        await asyncio.sleep(0.1)
        entry = harness.cache.placed("uid-permit")
        harness.see_pod("permit", cpu="1", status={"conditions": [{"type": "PodScheduled", "status": "False"}]})
        assert harness.cache.placed("uid-permit") is entry
        harness.worker.waiting.allow("uid-permit", "Holding")
        await asyncio.sleep(0.1)
        assert harness.desk.posts == [("permit", "a")]

    play(scene)


def test_pod_changed_during_a_remote_call_is_decided_with_its_new_state() -> None:
    remote = Remote()

    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("p", cpu="1")
        await asyncio.sleep(0.1)
        harness.see_pod("standing", cpu="1", nodeName="a")
        harness.see_pod("p", cpu="4")
        await asyncio.sleep(HELD_S + 0.1)
        assert harness.node_of("p") is None
        harness.lose_pod("standing")
        await asyncio.sleep(4 * HELD_S)
        assert harness.desk.posts == [("p", "a")]
        assert used(harness) == 4000

    play(scene, plugins=[remote])
    assert remote.asked[0] == "p 1000m"
    assert remote.asked[-1] == "p 4000m"


def test_room_freed_by_an_assumed_pod_requeues_waiting_pods() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("permit", cpu="4")
        await asyncio.sleep(0.1)
        harness.see_pod("waits", cpu="1")
        await asyncio.sleep(3.0)
        assert harness.worker.queue.where("uid-waits") is QueueState.UNSCHEDULABLE
        harness.see_pod("permit", cpu="3")
        await asyncio.sleep(2.0)
        assert harness.node_of("waits") == "a"

    play(scene)


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        (BindAnswer.NOT_FOUND, []),
        (BindAnswer.CONFLICT, [PodTruth("uid-lost", "b", is_deleting=False, is_gated=False)]),
    ],
    ids=["deleted", "bound elsewhere"],
)
def test_room_of_a_pod_lost_during_its_bind_requeues_waiting_pods(
    answer: BindAnswer, truth: list[PodTruth | UnreachableError | None]
) -> None:
    """The API server's answer to the bind is all that shows it: the watch reports a pod that has no room on the node any more."""

    async def scene(harness: WorkerHarness) -> None:
        harness.desk.replies, harness.desk.truths = [HELD_S, BindReply(answer)], truth
        harness.see_pod("lost", cpu="4")
        await asyncio.sleep(0.1)
        harness.see_pod("waits", cpu="1")
        await asyncio.sleep(3.0)
        assert harness.worker.queue.where("uid-waits") is QueueState.UNSCHEDULABLE
        await asyncio.sleep(HELD_S)
        if truth:
            harness.see_pod("lost", cpu="4", nodeName="b")
        else:
            harness.lose_pod("lost")
        await asyncio.sleep(10.0)
        assert harness.node_of("waits") == "a"

    play(scene)


def test_pod_that_became_unschedulable_is_not_bound() -> None:
    """It was read well when it was decided; what it holds counts until it is given up."""

    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("permit", cpu="1")
        await asyncio.sleep(0.1)
        harness.see_pod("permit", cpu="1", resourceClaims=[{"name": "c", "resourceClaimName": "c"}])
        await asyncio.sleep(0.1)
        assert harness.node_of("permit") is None
        assert used(harness) == 0
        assert harness.desk.posts == []

    play(scene)


def test_paused_domain_schedules_nothing_and_continues_with_later_changes() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.worker.pause_scheduling()
        harness.see_pod("p")
        await asyncio.sleep(1.0)
        assert harness.node_of("p") is None
        harness.worker.resume_scheduling()
        await asyncio.sleep(0.1)
        assert harness.desk.posts == [("p", "a")]

    play(scene)


@pytest.mark.parametrize("where", ["permit", "prebind", "queued"])
def test_decisions_of_another_history_are_repeated(where: str) -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.desk.replies = [HELD_S] if where == "queued" else []
        harness.see_pod("first", cpu="1")
        await asyncio.sleep(0.1)
        harness.see_pod(where, cpu="1")
        await asyncio.sleep(0.1)
        harness.worker.pause_scheduling()
        harness.worker.resume_scheduling("the server's history went back")
        await asyncio.sleep(0.2)
        assert (harness.node_of(where) is None) is (where != "queued"), (
            "a bind worker turns it back when it comes to it"
        )
        assert harness.desk.posts == [("first", "a")]

    play(scene)


def test_temporarily_unreadable_bound_pod_is_not_decided_again() -> None:
    """Its labels went past what is read and back, as anybody may write them, before the watch told of its binding."""
    too_many = {"labels": {f"key-{number}": "x" for number in range(LABELS_MAX + 1)}}

    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        assert harness.desk.posts == [("p", "a")]
        harness.see_pod("p", metadata=too_many)
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        assert harness.desk.posts == [("p", "a")]
        assert used(harness) == 1000
        harness.repair.unbind("uid-p")  # a read has shown that the answer was false
        await asyncio.sleep(0.1)
        assert harness.desk.posts == [("p", "a")] * 2

    play(scene)


@pytest.mark.parametrize("where", ["permit", "prebind", "queued"])
def test_pod_with_changed_device_requests_is_decided_again_with_an_event(where: str) -> None:
    """The ledger holds for it what it asked for before."""
    loop = SimLoop(seed=3)

    def see(harness: WorkerHarness, milli: str) -> None:
        harness.see_pod(where, cpu="1", metadata={"annotations": {GPU_MILLI: milli}})

    async def main() -> None:
        harness = WorkerHarness(loop, plugins=[Holding()], bind_workers=1, profile="gpu")
        harness.see_node("g", cpu="4", gpus=2)
        harness.desk.sleep = anyio.sleep
        harness.desk.replies = [HELD_S] if where == "queued" else []
        async with harness.at_work():
            harness.see_pod("first", cpu="100m", metadata={"annotations": {GPU_MILLI: "100"}})
            await asyncio.sleep(0.1)
            see(harness, "300")
            await asyncio.sleep(0.1)
            assert harness.node_of(where) == "g"
            see(harness, "700")
            await asyncio.sleep(HELD_S + 0.1)
            assert any("the pod changed before it was bound" in text for text in harness.told(where)), harness.told(
                where
            )
        harness.cache.validate()

    simulate(main(), loop)


def test_explain_shows_why_a_pod_is_retried_after_a_remote_call() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("p", cpu="3")
        await asyncio.sleep(0.1)
        harness.worker.pause_scheduling()
        harness.see_pod("standing", cpu="3", scheduler="them", nodeName="a", phase="Running")
        await asyncio.sleep(HELD_S + 0.1)
        entry = harness.worker.queue.entry("uid-p")
        assert entry is not None
        assert (entry.state, entry.message) == (QueueState.ACTIVE, "its node was taken")
        assert harness.told("p") == [], "it is tried again at once"

    play(scene, plugins=[Remote()])


def test_pod_bound_elsewhere_by_another_scheduler_is_not_bound() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.desk.replies = [HELD_S]
        harness.see_pod("first", cpu="1")
        await asyncio.sleep(0.1)
        harness.see_pod("queued", cpu="1")
        await asyncio.sleep(0.1)
        harness.see_node("b", cpu="4")
        harness.see_pod("queued", cpu="1", nodeName="b")
        await asyncio.sleep(HELD_S + 0.1)

        assert harness.desk.posts == [("first", "a")]
        assert harness.node_of("queued") == "b"
        assert harness.worker.queue.where("uid-queued") is None
        assert used(harness) == 1000
        assert not harness.worker.counters.unknown

    play(scene)
