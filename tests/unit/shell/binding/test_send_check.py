"""Binds of which nothing was sent yet, while their node changes, goes, or leaves the domain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import numpy as np
import pytest

from domains.gpu.gpu_ledger import GpuLedger
from multisched.cycle.bind_outcome import Outcome
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView
from multisched.framework.ports import BindAnswer, BindReply, PodTruth
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import Code
from multisched.model.objects import Pod
from multisched.queueing.transitions import QueueState
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import HELD_S, Holding, WorkerHarness
from tests.unit.state.state_kit import Tickets

GPU_MILLI = "multisched.io/gpu-milli"
NO_EXECUTE = [{"key": "maintenance", "effect": "NoExecute"}]
NO_SCHEDULE = [{"key": "maintenance", "effect": "NoSchedule"}]


def play(scene: Callable[[WorkerHarness], Coroutine[Any, Any, None]]) -> None:
    """A domain with one bind worker, over node a with room for four pods."""
    loop = SimLoop(seed=3)

    async def main() -> None:
        harness = WorkerHarness(
            loop, plugins=[Holding()], bind_workers=1, filters=("NodeUnschedulable", "NodeAffinity")
        )
        harness.see_node("a", cpu="4")
        harness.desk.sleep = anyio.sleep
        async with harness.at_work():
            await scene(harness)
        harness.cache.validate()

    simulate(main(), loop)


CHANGES: dict[str, Callable[[WorkerHarness], object]] = {
    "cordoned": lambda harness: harness.see_node("a", cpu="4", unschedulable=True),
    "tainted NoExecute": lambda harness: harness.see_node("a", cpu="4", taints=NO_EXECUTE),
    "tainted NoSchedule": lambda harness: harness.see_node("a", cpu="4", taints=NO_SCHEDULE),
    "shrunk": lambda harness: harness.see_node("a", cpu="500m"),
    "relabelled": lambda harness: harness.see_node("a", cpu="4", labels={"disk": "slow"}),
    "deleted": lambda harness: harness.lose_node("a"),
    "created anew": lambda harness: harness.see_node("a", cpu="4", uid="another"),
    "moved to another domain": lambda harness: harness.see_node(
        "a", cpu="4", labels={"disk": "fast", "domain": "other"}
    ),
    "filled by somebody else": lambda harness: harness.see_pod("foreign", cpu="4", scheduler="them", nodeName="a"),
}


@pytest.mark.parametrize("where", ["permit", "prebind", "queued"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_bind_is_not_sent_to_a_node_that_no_longer_fits(where: str, change: Callable[[WorkerHarness], object]) -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_node("a", cpu="4", labels={"disk": "fast"})
        harness.desk.replies = [HELD_S] if where == "queued" else []
        harness.see_pod("first")
        await asyncio.sleep(0.1)
        harness.see_pod(where, nodeSelector={"disk": "fast"})
        await asyncio.sleep(0.1)
        assert harness.node_of(where) == "a"
        assert harness.desk.posts == [("first", "a")]

        change(harness)
        await asyncio.sleep(HELD_S)
        harness.worker.waiting.allow("uid-permit", "Holding")
        await asyncio.sleep(0.1)

        assert harness.desk.posts == [("first", "a")]
        assert harness.node_of(where) is None
        assert harness.worker.queue.where(f"uid-{where}") is not None

    play(scene)


@pytest.mark.parametrize("where", ["permit", "prebind"])
def test_waiting_pod_is_cancelled_at_once_when_its_node_changes(where: str) -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod(where)
        await asyncio.sleep(0.1)
        harness.see_node("a", cpu="4", unschedulable=True)
        await asyncio.sleep(0.1)

        assert harness.node_of(where) is None
        assert harness.worker.queue.where(f"uid-{where}") is QueueState.BACKOFF
        assert "unschedulable" in harness.told(where)[0]
        assert harness.worker.is_drained

    play(scene)


@pytest.mark.parametrize("where", ["permit", "prebind", "queued"])
def test_irrelevant_node_change_cancels_no_bind(where: str) -> None:
    """The pod itself fills the node: it does not stand in its own way when the filters are asked again."""

    async def scene(harness: WorkerHarness) -> None:
        harness.desk.replies = [HELD_S] if where == "queued" else []
        harness.see_pod("first", cpu="1")
        await asyncio.sleep(0.1)
        harness.see_pod(where, cpu="3")
        await asyncio.sleep(0.1)
        harness.see_node("a", cpu="4", labels={"colour": "blue"})
        harness.see_node("a", cpu="4", labels={"colour": "green"})
        await asyncio.sleep(HELD_S)
        harness.worker.waiting.allow("uid-permit", "Holding")
        await asyncio.sleep(0.1)

        assert harness.desk.posts == [("first", "a"), (where, "a")]

    play(scene)


def test_node_that_returned_to_the_domain_is_checked_again() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.desk.replies = [HELD_S]
        for name in ("first", "second", "third"):
            harness.see_pod(name)
        await asyncio.sleep(0.1)
        assert [harness.node_of(name) for name in ("first", "second", "third")] == ["a"] * 3
        harness.see_node("a", cpu="4", labels={"domain": "other"})
        harness.see_pod("theirs", cpu="2", scheduler="them", nodeName="a")
        harness.see_node("a", cpu="4")
        await asyncio.sleep(2 * HELD_S)

        assert len(harness.desk.posts) == 2, "one of the waiting two has no room any more"

    play(scene)


def test_cancelled_bind_frees_its_slot() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.desk.replies = [HELD_S]
        harness.see_pod("first")
        await asyncio.sleep(0.1)
        harness.see_pod("queued")
        await asyncio.sleep(0.1)
        harness.see_node("a", cpu="4", unschedulable=True)
        await asyncio.sleep(HELD_S)

        assert harness.desk.posts == [("first", "a")]
        assert harness.worker.limit.in_flight == 0

    play(scene)


def test_throttled_bind_is_not_resent_to_a_cordoned_node() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.desk.replies = [BindReply(BindAnswer.THROTTLED, retry_after_s=3.0)]
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        harness.see_node("a", cpu="4", unschedulable=True)
        await asyncio.sleep(10.0)

        assert harness.desk.posts == [("p", "a")]
        assert ("outcome", Outcome.REFUSED) in harness.desk.ends

    play(scene)


@pytest.mark.parametrize("is_bound", [True, False])
def test_unknown_bind_is_only_read_once_its_node_left(*, is_bound: bool) -> None:
    """The first POST may still take effect; a second one must not follow it to a node of another leader (I2, I8)."""

    async def scene(harness: WorkerHarness) -> None:
        nowhere = PodTruth("uid-p", "", is_deleting=False, is_gated=False)
        bound = PodTruth("uid-p", "a", is_deleting=False, is_gated=False)
        harness.desk.replies = [1.0, BindReply(BindAnswer.UNKNOWN)]
        harness.desk.truths = [nowhere, bound if is_bound else nowhere]
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        harness.see_node("a", cpu="4", labels={"domain": "other"})
        await asyncio.sleep(4.0)
        assert harness.node_of("p") == "a", "its room is held until no POST can land any more"
        await asyncio.sleep(4.0)

        assert harness.desk.posts == [("p", "a")]
        assert ("outcome", Outcome.BOUND if is_bound else Outcome.REFUSED) in harness.desk.ends
        assert harness.node_of("p") == ("a" if is_bound else None)

    play(scene)


def test_unanswered_bind_is_not_resent_to_a_recreated_node() -> None:
    """The watch had confirmed it, so that the pod stood on its node when that was made anew; then history went back."""

    async def scene(harness: WorkerHarness) -> None:
        nowhere = PodTruth("uid-p", "", is_deleting=False, is_gated=False)
        harness.desk.replies = [1.0, BindReply(BindAnswer.UNKNOWN)]
        harness.desk.truths = [nowhere] * 2
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        harness.see_pod("p", nodeName="a")
        harness.lose_node("a")
        harness.see_node("a", cpu="4", uid="another")
        await asyncio.sleep(10.0)

        assert harness.desk.posts == [("p", "a")]

    play(scene)


@pytest.mark.parametrize("where", ["a", "b"])
def test_relabelled_placed_pod_cancels_a_conflicting_bind(where: str) -> None:
    """Also from another node of the zone."""
    term = {"labelSelector": {"matchLabels": {"role": "leader"}}, "topologyKey": "zone"}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    loop = SimLoop(seed=3)

    async def main() -> None:
        harness = WorkerHarness(loop, plugins=[Holding()], filters=("InterPodAffinity",))
        harness.see_node("a", cpu="4", labels={"zone": "z"})
        harness.see_node("b", cpu="1", labels={"zone": "z"})
        async with harness.at_work():
            harness.see_pod("standing", nodeName=where, phase="Running", metadata={"labels": {"role": "follower"}})
            harness.see_pod("permit", cpu="2", affinity=anti)
            await asyncio.sleep(0.1)
            assert harness.node_of("permit") == "a"
            harness.see_pod("standing", nodeName=where, phase="Running", metadata={"labels": {"role": "leader"}})
            harness.worker.waiting.allow("uid-permit", "Holding")
            await asyncio.sleep(0.1)
            assert harness.desk.posts == []

    simulate(main(), loop)


def test_row_repaired_by_the_audit_is_checked_again() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("standing", cpu="4", scheduler="them", nodeName="a", phase="Running")
        row = harness.cache.nodes.row_of("a")
        assert row is not None
        harness.cache.nodes.remove_pod(row, "uid-standing")  # the columns are wrong from here on
        harness.see_pod("permit")
        await asyncio.sleep(0.1)
        assert harness.node_of("permit") == "a"
        harness.cache.repair_row(row)
        harness.worker.waiting.allow("uid-permit", "Holding")
        await asyncio.sleep(0.1)

        assert harness.desk.posts == []

    play(scene)


class Counting:
    """A filter that lets all rows pass, and counts how often it is asked."""

    name = "Counting"
    depends_on = Dependency.ROW
    reasons = ReasonTable(name)

    def __init__(self) -> None:
        self.asked = 0

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        self.asked += 1
        return np.zeros(len(rows), np.uint8)


@pytest.mark.parametrize("milli", ["", "300"])
def test_own_binding_writes_do_not_cancel_the_bind(milli: str) -> None:
    """Else each fraction of a GPU would be looked at twice."""
    loop, counting = SimLoop(seed=3), Counting()

    async def main() -> None:
        harness = WorkerHarness(loop, plugins=[counting], profile="gpu")
        harness.see_node("g", cpu="4", gpus=2)
        async with harness.at_work():
            harness.see_pod("p", metadata={"annotations": {GPU_MILLI: milli} if milli else {}})
            await asyncio.sleep(0.1)
            assert harness.desk.posts == [("p", "g")]
            assert counting.asked == 1

    simulate(main(), loop)


@pytest.mark.parametrize("holds", [True, False])
def test_node_with_changed_devices_cancels_binds_that_hold_its_devices(holds: bool) -> None:
    """Its devices may be the ones that went, though the node still has as many as are needed."""

    async def scene(harness: WorkerHarness) -> None:
        harness.cache.ledgers.register(Tickets(4))
        harness.see_pod("permit", metadata={"annotations": {"tickets": "1"} if holds else {}})
        await asyncio.sleep(0.1)
        harness.see_node("a", cpu="4", labels={"moved": "no"})
        await asyncio.sleep(0.1)
        assert harness.node_of("permit") == "a", "a label is no device"
        harness.see_node("a", cpu="3", labels={"moved": "no"})
        await asyncio.sleep(0.1)
        assert harness.node_of("permit") == (None if holds else "a")
        assert (
            harness.told("permit") == ["the allocatable resources of node a changed before the pod was bound"] * holds
        )
        assert harness.worker.queue.where("uid-permit") is (QueueState.BACKOFF if holds else QueueState.IN_FLIGHT)

    play(scene)


class KeepsOffSlowDisks:
    """A filter whose answers come from outside: it cannot be asked again right before the bind is sent."""

    name = "KeepsOffSlowDisks"
    depends_on = Dependency.ATTEMPT
    response_timeout_s = 1.0

    def __init__(self) -> None:
        self.reasons = ReasonTable(self.name)
        self._slow = self.reasons.code(Code.UNSCHEDULABLE, "a slow disk")

    def request(self, cycle: CycleView, pod: Pod, rows: Rows) -> object | None:
        return [cycle.nodes.node(row).labels.get("disk") == "slow" for row in rows.tolist()]

    async def response(self, request: object) -> object:
        return request

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        answer: Any = cycle.responses[self.name]
        return np.where(answer, self._slow, 0).astype(np.uint8)[: len(rows)]

    def sign(self, pod: Pod) -> str:
        return ""


def test_changed_node_cancels_binds_decided_by_remote_filters() -> None:
    loop = SimLoop(seed=3)

    async def main() -> None:
        harness = WorkerHarness(loop, plugins=[Holding(), KeepsOffSlowDisks()])
        harness.see_node("a", cpu="4", labels={"disk": "fast"})
        harness.desk.sleep = anyio.sleep
        async with harness.at_work():
            harness.see_pod("permit")
            await asyncio.sleep(0.1)
            assert harness.node_of("permit") == "a"

            harness.see_node("a", cpu="4", labels={"disk": "slow"})
            await asyncio.sleep(0.1)
            harness.worker.waiting.allow("uid-permit", "Holding")
            await asyncio.sleep(0.1)
            assert harness.node_of("permit") is None
            assert harness.desk.posts == []

    simulate(main(), loop)


@pytest.mark.parametrize(("annotation", "is_sent"), [("hami.io/mutex.lock", True), ("hami.io/device-cordon", False)])
def test_lock_of_a_node_leaves_answers_of_remote_filters_valid(annotation: str, *, is_sent: bool) -> None:
    """PreBind writes the lock itself after they have answered."""
    loop = SimLoop(seed=3)

    async def main() -> None:
        harness = WorkerHarness(loop, plugins=[Holding(), KeepsOffSlowDisks()])
        harness.cache.ledgers.register(GpuLedger())
        harness.see_node("a", cpu="4")
        harness.desk.sleep = anyio.sleep
        async with harness.at_work():
            harness.see_pod("permit")
            await asyncio.sleep(0.1)
            harness.see_node("a", cpu="4", annotations={annotation: "2026-01-01T00:00:00Z,default,permit"})
            await asyncio.sleep(0.1)
            harness.worker.waiting.allow("uid-permit", "Holding")
            await asyncio.sleep(0.1)
            assert harness.desk.posts == ([("permit", "a")] if is_sent else [])

    simulate(main(), loop)
