"""How often preemptors are tried, and that each of them is placed, however late server and watch are."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.framework.points import CycleView, PostFilterResult, Refusals
from multisched.framework.ports import (
    BindReply,
    BindRequest,
    Condition,
    LeaseHolder,
    ObjectRef,
    WriteAnswer,
    WriteReply,
)
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.queueing.pod_queue import LEFTOVER_S
from multisched.queueing.transitions import QueueState
from multisched.shell.preemptor import SEEN_MAX_S
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import Desk, WorkerHarness
from tests.unit.shell.test_preemptor import preempting_house

GOING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
VICTIM = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}
GATES = [{"name": "wait"}]
ELSEWHERE = {"nominatedNodeName": "n1"}

CPUS = 2
"""Of each node."""


@dataclass
class Flood:
    """Nodes full of running pods of one CPU each, and preemptors for some of them."""

    nodes: int = 30
    per_node: int = 2
    preemptors: int = 20
    cpu: int = 1
    lag_s: tuple[float, float] = (0.0, 0.05)
    """How long the watch takes to say what the server did."""
    grace_s: float = 0.0
    """For how long a deleted victim still stands, marked as going."""
    seed: int = 1

    @property
    def places(self) -> int:
        """How many preemptors there is room for, once all victims are gone."""
        return min(self.preemptors, self.nodes * (CPUS // self.cpu))


class LaggingServer(Desk):
    """Deletes pods and writes nominations, and says so later."""

    def __init__(self, flood: Flood, rng: random.Random) -> None:
        super().__init__()
        self._flood = flood
        self._rng = rng
        self.deleted: set[str] = set()
        self.all_placed = asyncio.Event()
        self.harness: WorkerHarness
        self.tasks: anyio.abc.TaskGroup

    async def _write(self, what: str, pod: ObjectRef) -> WriteReply:
        await asyncio.sleep(self._rng.uniform(0.005, 0.015))
        if what != "delete":
            return WriteReply(WriteAnswer.DONE)
        if pod.name in self.deleted:
            return WriteReply(WriteAnswer.GONE)
        self.deleted.add(pod.name)
        self._later(self._go, pod.name)
        return WriteReply(WriteAnswer.DONE)

    def write(self, pod: ObjectRef, condition: Condition, lease: LeaseHolder) -> None:
        super().write(pod, condition, lease)
        if condition.nominated_node:
            self._later(self._nominate, pod.name, condition.nominated_node)

    async def post(self, request: BindRequest, *, timeout_s: float) -> BindReply:
        reply = await super().post(request, timeout_s=timeout_s)
        if len(self.posts) == self._flood.places:
            self.all_placed.set()
        return reply

    def _later(self, what: Callable[..., Coroutine[Any, Any, None]], *about: str) -> None:
        async def run() -> None:
            await asyncio.sleep(self._rng.uniform(*self._flood.lag_s))
            await what(*about)

        self.tasks.start_soon(run)

    async def _go(self, name: str) -> None:
        if self._flood.grace_s:
            node = self.harness.node_of(name)
            assert node is not None
            going: dict[str, Any] = {"metadata": dict(GOING), "status": dict(VICTIM)}
            self.harness.see_pod(name, scheduler="other", nodeName=node, phase="Running", **going)
            await asyncio.sleep(self._flood.grace_s)
        self.harness.lose_pod(name)

    async def _nominate(self, name: str, node: str) -> None:
        if self.harness.node_of(name) is None:
            self.harness.see_pod(name, cpu=str(self._flood.cpu), priority=100, status={"nominatedNodeName": node})


def play(flood: Flood) -> LaggingServer:
    """Runs it until all are bound, for less than the leftover flush takes: who is missed by every event stays unbound."""
    loop, rng = SimLoop(seed=flood.seed), random.Random(flood.seed)
    server = LaggingServer(flood, rng)

    async def main() -> None:
        names = [f"n{i}" for i in range(flood.nodes)]
        server.harness = harness = preempting_house(loop, *names, desk=server)
        for i in range(flood.nodes * flood.per_node):
            harness.see_pod(f"low-{i}", scheduler="other", nodeName=names[i % flood.nodes], phase="Running")
        for i in range(flood.preemptors):
            harness.see_pod(f"high-{i}", cpu=str(flood.cpu), priority=100)
        async with harness.at_work(harness.preemptor.run) as server.tasks:
            with anyio.move_on_after(LEFTOVER_S / 2):
                await server.all_placed.wait()
        harness.worker.queue.validate()
        harness.cache.validate()

    simulate(main(), loop)
    return server


@pytest.mark.parametrize(
    "flood",
    [
        Flood(),
        Flood(lag_s=(0.5, 1.0)),
        Flood(cpu=2),
        Flood(cpu=2, lag_s=(0.0, 2.0)),
    ],
    ids=["prompt", "late", "two-victims", "two-late-victims"],
)
def test_each_preemptor_is_tried_twice_and_no_victim_is_deleted_needlessly(flood: Flood) -> None:
    server = play(flood)

    assert len(server.posts) == flood.preemptors
    assert server.harness.worker.counters.attempts == 2 * flood.preemptors
    assert len(server.deleted) == flood.cpu * flood.preemptors


def test_late_watch_holds_a_preemptor_only_until_the_timeout() -> None:
    server = play(Flood(nodes=1, preemptors=1, lag_s=(3 * SEEN_MAX_S, 3 * SEEN_MAX_S)))

    assert [name for name, _ in server.posts] == ["high-0"]


def with_port(port: int) -> list[dict[str, Any]]:
    return [{"name": "c", "resources": {"requests": {"cpu": "500m"}}, "ports": [{"hostPort": port}]}]


@pytest.mark.parametrize(
    "ends",
    [
        lambda harness: harness.see_pod("high", cpu="4", priority=100),
        lambda harness: harness.see_pod("high", priority=100, containers=with_port(80)),
        lambda harness: harness.see_pod("high", nodeName="n1"),
        lambda harness: harness.see_pod("high", cpu="2", priority=100, schedulingGates=GATES, status=ELSEWHERE),
    ],
    ids=[
        "too large",
        "placed elsewhere",
        "bound elsewhere by somebody",
        "written as of another node, by an older line",
    ],
)
def test_ended_nomination_requeues_pods_that_yielded(ends: Callable[[WorkerHarness], str]) -> None:
    """The server has not been told of the promise yet, so that no watch tells of its end."""
    loop = SimLoop(seed=1)

    async def main() -> list[str | None]:
        harness = WorkerHarness(loop, "n0", "n1", filters=("NodePorts",))
        for node, port in (("n0", 80), ("n1", 81)):
            harness.see_pod(f"on-{node}", scheduler="other", nodeName=node, containers=with_port(port))
        high = harness.see_pod("high", cpu="2", priority=100, schedulingGates=GATES)
        preemptor = harness.worker.queue.pod(high)
        assert preemptor is not None
        harness.domain.nominator.nominate(preemptor, "n0")
        harness.see_pod("low", containers=with_port(81))
        async with harness.at_work():
            await asyncio.sleep(1.0)
            before = harness.node_of("low")
            ends(harness)
            await asyncio.sleep(5.0)
        return [before, harness.node_of("low")]

    assert simulate(main(), loop) == [None, "n0"]


def test_failed_preemption_requeues_pods_that_yielded() -> None:
    """The preemption fails before the server has been told of the promise, so that no watch tells of its end."""

    ended: list[list[str]] = []

    async def end(harness: WorkerHarness, tasks: anyio.abc.TaskGroup) -> None:
        refused = WriteReply(WriteAnswer.REFUSED)
        harness.desk.writes = {("delete", "victim"): [refused] * 9}
        ended.append(harness.desk.ended)
        tasks.start_soon(harness.preemptor.run)

    assert low_beside_a_preemptor(end) == [None, "n0"]
    assert ended[0][0] == "uid-high", "nor is the server to be told of it from now on"


def test_deleted_preemptor_requeues_pods_that_yielded() -> None:
    """Before the server has been told of the promise."""

    async def end(harness: WorkerHarness, tasks: anyio.abc.TaskGroup) -> None:
        harness.lose_pod("high")

    assert low_beside_a_preemptor(end) == [None, "n0"]


class Broken:
    """A PostFilter that fails: what a pod was promised stays as it was."""

    name = "Broken"

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        return PostFilterResult(Status.error("broken"))


@pytest.mark.parametrize("plugins", [(), (Broken(),)], ids=["", "a plugin fails"])
@pytest.mark.parametrize(
    "leave",
    [lambda harness: harness.see_node("n0", labels={"domain": "other"}), lambda harness: harness.lose_node("n0")],
    ids=["to another domain", "for good"],
)
def test_nomination_ends_when_its_node_leaves_the_domain(
    leave: Callable[[WorkerHarness], None], plugins: tuple[Broken, ...]
) -> None:
    """Others left it the room, those of the node's next domain too; its pod slept, and nothing else woke it."""
    loop = SimLoop(seed=1)

    async def main() -> list[str]:
        harness = preempting_house(loop, "n0", plugins=plugins)
        harness.see_node("too small", cpu="1")
        nominator = harness.domain.nominator
        harness.see_pod("victim", scheduler="other", nodeName="n0", phase="Running", metadata=GOING)
        harness.see_pod("high", cpu="2", priority=100, status={"nominatedNodeName": "n0"})
        async with harness.at_work(harness.preemptor.run):
            await asyncio.sleep(LEFTOVER_S / 10)
            before = nominator.node_of("uid-high")
            leave(harness)
            await asyncio.sleep(LEFTOVER_S / 10)
        return [before, nominator.node_of("uid-high"), harness.worker.queue.where("uid-high") or ""]

    assert simulate(main(), loop) == ["n0", "", QueueState.UNSCHEDULABLE]


def test_nomination_without_a_keeper_ends_when_its_last_victim_is_deleted() -> None:
    """Somebody took the port meanwhile. The victim's end frees none, so that no hint wakes the preemptor: its rivals wait too."""
    loop = SimLoop(seed=1)

    async def main() -> list[str | None]:
        harness = preempting_house(loop, "n0", filters=("NodePorts",))
        harness.see_pod("stranger", scheduler="other", nodeName="n0", priority=100, containers=with_port(80))
        harness.see_pod("victim", scheduler="other", nodeName="n0", phase="Running", metadata=GOING, status=VICTIM)
        harness.see_pod("high", priority=100, containers=with_port(80), status={"nominatedNodeName": "n0"})
        harness.see_pod("low", cpu="1500m")
        async with harness.at_work(harness.preemptor.run):
            await asyncio.sleep(LEFTOVER_S / 10)
            before = harness.domain.nominator.node_of("uid-high")
            harness.lose_pod("victim")
            await asyncio.sleep(LEFTOVER_S / 10)
        return [before, harness.domain.nominator.node_of("uid-high"), harness.node_of("low")]

    assert simulate(main(), loop) == ["n0", "", "n0"]


def low_beside_a_preemptor(
    end: Callable[[WorkerHarness, anyio.abc.TaskGroup], Coroutine[Any, Any, None]],
) -> list[str | None]:
    """Where a lowly pod is while a node's last room is promised to another, and once that is over."""
    loop = SimLoop(seed=1)

    async def main() -> list[str | None]:
        harness = preempting_house(loop, "n0")
        harness.see_pod("victim", scheduler="other", nodeName="n0", phase="Running")
        harness.see_pod("high", cpu="2", priority=100)
        async with harness.at_work() as tasks:
            await asyncio.sleep(1.0)
            harness.see_pod("low")
            await asyncio.sleep(1.0)
            before = harness.node_of("low")
            await end(harness, tasks)
            await asyncio.sleep(LEFTOVER_S / 2)
        return [before, harness.node_of("low")]

    return simulate(main(), loop)


@given(
    nodes=st.integers(1, 3),
    per_node=st.integers(1, 2),
    preemptors=st.integers(1, 6),
    cpu=st.integers(1, 2),
    lag_s=st.sampled_from([0.0, 0.01, 0.5, 2.0, SEEN_MAX_S * 2]),
    grace_s=st.sampled_from([0.0, 0.02, 3.0]),
    seed=st.integers(0, 1000),
)
def test_feasible_pods_are_placed_without_the_leftover_flush(
    nodes: int, per_node: int, preemptors: int, cpu: int, lag_s: float, grace_s: float, seed: int
) -> None:
    flood = Flood(nodes, per_node, preemptors, cpu, (0.0, lag_s), grace_s, seed)

    assert len(play(flood).posts) == flood.places
