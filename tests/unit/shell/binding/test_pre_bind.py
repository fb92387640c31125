"""PreBind: work that takes long holds up no other pod, ends when its time is up, and gives up when the scheduler stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

from multisched.framework.points import CycleView, PermitResult, Plugin
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.framework.traits import Traits
from multisched.model.objects import Pod
from multisched.shell.binding import pre_bind
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import WorkerHarness

BIND_WORKERS = 2


class Stubborn:
    """Raises when it is ended."""

    name = "Stubborn"

    async def pre_bind(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        try:
            await asyncio.sleep(600.0)
        except asyncio.CancelledError as error:
            raise RuntimeError("not now") from error
        return SUCCESS


class SlowVolumes:
    """Pods called slow-… take `takes_s` at PreBind, all others nothing."""

    name = "SlowVolumes"
    traits = Traits(pre_bind_timeout_s=700.0)

    def __init__(self) -> None:
        self.takes_s = 600.0
        self.at_work = 0
        self.begun: list[str] = []
        self.looked_at: list[tuple[str, str]] = []

    def pre_bind_pre_flight(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        self.looked_at.append((pod.name, node))
        return SUCCESS if pod.name.startswith("slow") else SKIP

    async def pre_bind(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        self.at_work += 1
        self.begun.append(pod.name)
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.at_work -= 1
        return SUCCESS


def play(scene: Callable[[WorkerHarness, SlowVolumes], Coroutine[Any, Any, None]], *plugins: Plugin) -> None:
    loop = SimLoop(seed=3)

    async def main() -> None:
        volumes = SlowVolumes()
        harness = WorkerHarness(loop, plugins=[volumes, *plugins], bind_workers=BIND_WORKERS)
        harness.see_node("a", cpu="100")
        harness.desk.sleep = anyio.sleep
        async with harness.at_work():
            await scene(harness, volumes)
        harness.cache.validate()

    simulate(main(), loop)


def test_pods_waiting_for_volumes_block_no_bind_worker() -> None:
    async def scene(harness: WorkerHarness, volumes: SlowVolumes) -> None:
        for number in range(BIND_WORKERS + 3):
            harness.see_pod(f"slow-{number}")
        harness.see_pod("quick")
        await asyncio.sleep(1.0)
        assert volumes.at_work == BIND_WORKERS + 3
        assert harness.desk.posts == [("quick", "a")]
        assert ("quick", "a") in volumes.looked_at
        assert {node for _, node in volumes.looked_at} == {"a"}
        await asyncio.sleep(600.0)
        assert len(harness.desk.posts) == BIND_WORKERS + 4
        assert harness.worker.is_drained

    play(scene)


def test_plugin_with_its_own_pre_bind_timeout_is_stopped_then() -> None:
    async def scene(harness: WorkerHarness, volumes: SlowVolumes) -> None:
        volumes.takes_s = 1e6
        harness.see_pod("slow")
        await asyncio.sleep(699.0)
        assert volumes.at_work == 1
        assert harness.node_of("slow") == "a"
        volumes.takes_s = 0.0
        await asyncio.sleep(2.0)
        assert 'running PreBind plugin "SlowVolumes": not done within 700 s' in harness.told("slow")[0]
        await asyncio.sleep(60.0)
        assert harness.desk.posts == [("slow", "a")]

    play(scene)


class Patient:
    """Takes for ever, and does not say how long that may be."""

    name = "Patient"

    async def pre_bind(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        await asyncio.Event().wait()
        return SUCCESS


def test_plugin_without_a_pre_bind_timeout_is_stopped_after_15_minutes() -> None:
    async def scene(harness: WorkerHarness, volumes: SlowVolumes) -> None:
        harness.see_pod("p")
        await asyncio.sleep(pre_bind.PRE_BIND_MAX_S - 1.0)
        assert harness.told("p") == []
        await asyncio.sleep(2.0)
        assert 'running PreBind plugin "Patient": not done within 900 s' in harness.told("p")[0]

    play(scene, Patient())


def test_stop_does_not_wait_for_volumes() -> None:
    async def scene(harness: WorkerHarness, volumes: SlowVolumes) -> None:
        harness.see_pod("slow")
        await asyncio.sleep(1.0)
        harness.worker.close_intake()
        with anyio.fail_after(pre_bind.CLOSING_S + 1.0):
            await harness.worker.drained()
        assert harness.desk.posts == []
        assert harness.node_of("slow") is None
        assert "the scheduler stopped while the pod waited at PreBind" in harness.told("slow")[0]

    play(scene)


def test_stop_extends_no_pre_bind_timeout() -> None:
    async def scene(harness: WorkerHarness, volumes: SlowVolumes) -> None:
        volumes.takes_s = 800.0
        harness.see_pod("slow")
        await asyncio.sleep(699.5)
        harness.worker.close_intake()
        with anyio.fail_after(1.0):
            await harness.worker.drained()

    play(scene)


class Waits:
    """Holds every pod at Permit."""

    name = "Waits"

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        return PermitResult(Status(Code.WAIT), 60.0)


def test_pre_bind_does_not_start_for_a_cancelled_pod() -> None:
    async def scene(harness: WorkerHarness, volumes: SlowVolumes) -> None:
        harness.see_pod("slow")
        await asyncio.sleep(0.1)
        harness.worker.waiting.allow("uid-slow", "Waits")
        harness.see_node("a", cpu="0")
        await asyncio.sleep(0.1)
        assert volumes.begun == []
        assert harness.node_of("slow") is None
        assert "the pod no longer fits node a" in harness.told("slow")[0]
        assert harness.worker.is_drained

    play(scene, Waits())


def test_pod_waiting_for_pre_bind_is_cancelled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pre_bind, "PRE_BINDS_MAX", 1)

    async def scene(harness: WorkerHarness, volumes: SlowVolumes) -> None:
        harness.see_pod("slow-1")
        await asyncio.sleep(0.1)
        harness.see_pod("slow-2")
        await asyncio.sleep(0.1)
        assert harness.worker.preempt_placed("uid-slow-2", "Test")
        await asyncio.sleep(0.1)
        assert (harness.node_of("slow-1"), harness.node_of("slow-2")) == ("a", None)
        await asyncio.sleep(1300.0)
        assert volumes.begun == ["slow-1", "slow-2"]
        assert harness.desk.posts == [("slow-1", "a"), ("slow-2", "a")]

    play(scene)


class Drags:
    """Who gives up its reserve for slow-1 turns back slow-2, whose turn it is at that very moment."""

    name = "Drags"
    harness: WorkerHarness

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        return SUCCESS

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        if pod.name == "slow-1":
            assert self.harness.worker.preempt_placed("uid-slow-2", "Drags")


def test_pod_cancelled_at_its_pre_bind_turn_passes_the_turn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pre_bind, "PRE_BINDS_MAX", 1)
    drags = Drags()

    async def scene(harness: WorkerHarness, volumes: SlowVolumes) -> None:
        drags.harness = harness
        for number in (1, 2, 3):
            harness.see_pod(f"slow-{number}")
            await asyncio.sleep(0.1)
        assert harness.worker.preempt_placed("uid-slow-1", "Test")
        await asyncio.sleep(0.1)
        assert volumes.begun == ["slow-1", "slow-3"]
        assert [harness.node_of(f"slow-{number}") for number in (1, 2, 3)] == [None, None, "a"]
        await asyncio.sleep(2000.0)
        assert sorted(harness.desk.posts) == [("slow-1", "a"), ("slow-2", "a"), ("slow-3", "a")]

    play(scene, drags)


def test_stop_does_not_wait_for_pods_queued_for_pre_bind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pre_bind, "PRE_BINDS_MAX", 1)

    async def scene(harness: WorkerHarness, volumes: SlowVolumes) -> None:
        harness.see_pod("slow-1")
        harness.see_pod("slow-2")
        await asyncio.sleep(1.0)
        harness.worker.close_intake()
        with anyio.fail_after(pre_bind.CLOSING_S + 1.0):
            await harness.worker.drained()
        assert "the scheduler stopped while the pod waited at PreBind" in harness.told("slow-2")[0]
        assert len(volumes.begun) == 1

    play(scene)


class Reserves:
    """Reserves for every pod, and keeps account in `story`, which it shares with others."""

    def __init__(self, name: str, story: list[str]) -> None:
        self.name = name
        self._story = story

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        self._story.append(f"{self.name} +{pod.name}")
        return SUCCESS

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self._story.append(f"{self.name} -{pod.name}")


LEAVES: dict[str, tuple[Callable[[WorkerHarness], object], str | None]] = {
    "deleted": (lambda harness: harness.lose_pod("slow"), None),
    "being deleted": (
        lambda harness: harness.see_pod("slow", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        None,
    ),
    "ended": (lambda harness: harness.see_pod("slow", phase="Failed"), None),
    "bound elsewhere": (lambda harness: harness.see_pod("slow", nodeName="b"), "b"),
}
"""What others do to the pod "slow", and the node it stands on then."""


@pytest.mark.parametrize("where", ["at a plugin", "waiting for its turn"])
@pytest.mark.parametrize(("leave", "node"), LEAVES.values(), ids=LEAVES)
def test_pod_deleted_during_pre_bind_releases_all_holds_at_once(
    leave: Callable[[WorkerHarness], object], node: str | None, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pre_bind, "PRE_BINDS_MAX", 1)
    story: list[str] = []

    async def scene(harness: WorkerHarness, volumes: SlowVolumes) -> None:
        first, second = ("slow", "slow-other") if where == "at a plugin" else ("slow-other", "slow")
        harness.see_pod(first)
        await asyncio.sleep(0.1)
        harness.see_pod(second)
        await asyncio.sleep(0.1)
        assert volumes.begun == [first]
        harness.see_node("b")
        story.clear()

        leave(harness)
        await asyncio.sleep(0.1)
        assert story == ["B -slow", "A -slow"]
        assert harness.node_of("slow") == node
        assert [pod.name for pod in harness.cache.nodes.pods_on(harness.domain.row("a"))] == ["slow-other"]
        assert volumes.at_work == 1, "the other has its place now"
        await asyncio.sleep(700.0)
        assert harness.desk.posts == [("slow-other", "a")]
        assert harness.node_of("slow") == node, "what the watch has confirmed is not forgotten"
        assert len(harness.worker.queue) == 0
        assert harness.worker.is_drained

    play(scene, Reserves("A", story), Reserves("B", story))


def test_failed_plugin_cancellation_keeps_the_cancel_reason() -> None:
    """Nor does the reason stay behind: it was for this attempt."""
    loop = SimLoop(seed=3)

    async def main() -> None:
        harness = WorkerHarness(loop, "a", plugins=[Stubborn()], filters=("NodeUnschedulable",))
        harness.desk.sleep = anyio.sleep
        async with harness.at_work():
            harness.see_pod("p")
            await asyncio.sleep(0.1)
            harness.see_node("a", unschedulable=True)
            await asyncio.sleep(0.1)
        assert "unschedulable" in harness.told("p")[0]
        assert harness.domain.heard.failures == [("Stubborn", "PreBind", "not now")]

    simulate(main(), loop)


class Unwilling:
    """Refuses at PreBindPreFlight or at PreBind, as the pod's name says; or answers with something else."""

    name = "Unwilling"

    def pre_bind_pre_flight(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        return Status.unschedulable(f"no flight to {node}") if pod.name == "flight" else SUCCESS

    async def pre_bind(self, cycle: CycleView, pod: Pod, node: str) -> Any:
        return "done" if pod.name == "odd" else Status.unschedulable(f"no bind to {node}")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("flight", "no flight to a"),
        ("bind", "no bind to a"),
        ("odd", 'running PreBind plugin "Unwilling": returned str, not Status'),
    ],
)
def test_pre_bind_refusal_is_reported_and_nothing_is_sent(name: str, told: str) -> None:
    async def scene(harness: WorkerHarness, volumes: SlowVolumes) -> None:
        harness.see_pod(name)
        await asyncio.sleep(0.5)
        assert told in harness.told(name)[0]
        assert harness.desk.posts == []
        assert volumes.at_work == 0

    play(scene, Unwilling())
