"""Binds of which nothing was sent yet, while their node changes, goes, or leaves the domain (reference: reliability 4, class 11)."""

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
from tests.unit.shell.shell_kit import HELD_S, Holding, House
from tests.unit.state.state_kit import Tickets

GPU_MILLI = "multisched.io/gpu-milli"
NO_EXECUTE = [{"key": "maintenance", "effect": "NoExecute"}]
NO_SCHEDULE = [{"key": "maintenance", "effect": "NoSchedule"}]


def play(scene: Callable[[House], Coroutine[Any, Any, None]]) -> None:
    """A domain with one bind worker, over node a with room for four pods."""
    loop = SimLoop(seed=3)

    async def main() -> None:
        house = House(loop, plugins=[Holding()], bind_workers=1, filters=("NodeUnschedulable", "NodeAffinity"))
        house.see_node("a", cpu="4")
        house.desk.sleep = anyio.sleep
        async with house.at_work():
            await scene(house)
        house.cache.validate()

    simulate(main(), loop)


CHANGES: dict[str, Callable[[House], object]] = {
    "cordoned": lambda house: house.see_node("a", cpu="4", unschedulable=True),
    "tainted NoExecute": lambda house: house.see_node("a", cpu="4", taints=NO_EXECUTE),
    "tainted NoSchedule": lambda house: house.see_node("a", cpu="4", taints=NO_SCHEDULE),
    "shrunk": lambda house: house.see_node("a", cpu="500m"),
    "relabelled": lambda house: house.see_node("a", cpu="4", labels={"disk": "slow"}),
    "deleted": lambda house: house.lose_node("a"),
    "created anew": lambda house: house.see_node("a", cpu="4", uid="another"),
    "moved to another domain": lambda house: house.see_node("a", cpu="4", labels={"disk": "fast", "domain": "other"}),
    "filled by somebody else": lambda house: house.see_pod("foreign", cpu="4", scheduler="them", nodeName="a"),
}


@pytest.mark.parametrize("where", ["permit", "prebind", "queued"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_bind_is_not_sent_to_a_node_that_no_longer_fits(where: str, change: Callable[[House], object]) -> None:
    async def scene(house: House) -> None:
        house.see_node("a", cpu="4", labels={"disk": "fast"})
        house.desk.replies = [HELD_S] if where == "queued" else []
        house.see_pod("first")
        await asyncio.sleep(0.1)
        house.see_pod(where, nodeSelector={"disk": "fast"})
        await asyncio.sleep(0.1)
        assert house.node_of(where) == "a"
        assert house.desk.posts == [("first", "a")]

        change(house)
        await asyncio.sleep(HELD_S)
        house.worker.waiting.allow("uid-permit", "Holding")
        await asyncio.sleep(0.1)

        assert house.desk.posts == [("first", "a")]
        assert house.node_of(where) is None
        assert house.worker.queue.where(f"uid-{where}") is not None

    play(scene)


@pytest.mark.parametrize("where", ["permit", "prebind"])
def test_waiting_pod_is_cancelled_at_once_when_its_node_changes(where: str) -> None:
    async def scene(house: House) -> None:
        house.see_pod(where)
        await asyncio.sleep(0.1)
        house.see_node("a", cpu="4", unschedulable=True)
        await asyncio.sleep(0.1)

        assert house.node_of(where) is None
        assert house.worker.queue.where(f"uid-{where}") is QueueState.BACKOFF
        assert "unschedulable" in house.told(where)[0]
        assert house.worker.is_drained

    play(scene)


@pytest.mark.parametrize("where", ["permit", "prebind", "queued"])
def test_irrelevant_node_change_cancels_no_bind(where: str) -> None:
    """The pod itself fills the node: it does not stand in its own way when the filters are asked again."""

    async def scene(house: House) -> None:
        house.desk.replies = [HELD_S] if where == "queued" else []
        house.see_pod("first", cpu="1")
        await asyncio.sleep(0.1)
        house.see_pod(where, cpu="3")
        await asyncio.sleep(0.1)
        house.see_node("a", cpu="4", labels={"colour": "blue"})
        house.see_node("a", cpu="4", labels={"colour": "green"})
        await asyncio.sleep(HELD_S)
        house.worker.waiting.allow("uid-permit", "Holding")
        await asyncio.sleep(0.1)

        assert house.desk.posts == [("first", "a"), (where, "a")]

    play(scene)


def test_node_that_returned_to_the_domain_is_checked_again() -> None:
    async def scene(house: House) -> None:
        house.desk.replies = [HELD_S]
        for name in ("first", "second", "third"):
            house.see_pod(name)
        await asyncio.sleep(0.1)
        assert [house.node_of(name) for name in ("first", "second", "third")] == ["a"] * 3
        house.see_node("a", cpu="4", labels={"domain": "other"})
        house.see_pod("theirs", cpu="2", scheduler="them", nodeName="a")
        house.see_node("a", cpu="4")
        await asyncio.sleep(2 * HELD_S)

        assert len(house.desk.posts) == 2, "one of the waiting two has no room any more"

    play(scene)


def test_cancelled_bind_frees_its_slot() -> None:
    async def scene(house: House) -> None:
        house.desk.replies = [HELD_S]
        house.see_pod("first")
        await asyncio.sleep(0.1)
        house.see_pod("queued")
        await asyncio.sleep(0.1)
        house.see_node("a", cpu="4", unschedulable=True)
        await asyncio.sleep(HELD_S)

        assert house.desk.posts == [("first", "a")]
        assert house.worker.limit.in_flight == 0

    play(scene)


def test_throttled_bind_is_not_resent_to_a_cordoned_node() -> None:
    async def scene(house: House) -> None:
        house.desk.replies = [BindReply(BindAnswer.THROTTLED, retry_after_s=3.0)]
        house.see_pod("p")
        await asyncio.sleep(0.1)
        house.see_node("a", cpu="4", unschedulable=True)
        await asyncio.sleep(10.0)

        assert house.desk.posts == [("p", "a")]
        assert ("outcome", Outcome.REFUSED) in house.desk.ends

    play(scene)


@pytest.mark.parametrize("is_bound", [True, False])
def test_unknown_bind_is_only_read_once_its_node_left(*, is_bound: bool) -> None:
    """The first POST may still take effect; a second one must not follow it to a node of another leader (I2, I8)."""

    async def scene(house: House) -> None:
        nowhere = PodTruth("uid-p", "", is_deleting=False, is_gated=False)
        bound = PodTruth("uid-p", "a", is_deleting=False, is_gated=False)
        house.desk.replies = [1.0, BindReply(BindAnswer.UNKNOWN)]
        house.desk.truths = [nowhere, bound if is_bound else nowhere]
        house.see_pod("p")
        await asyncio.sleep(0.1)
        house.see_node("a", cpu="4", labels={"domain": "other"})
        await asyncio.sleep(4.0)
        assert house.node_of("p") == "a", "its room is held until no POST can land any more"
        await asyncio.sleep(4.0)

        assert house.desk.posts == [("p", "a")]
        assert ("outcome", Outcome.BOUND if is_bound else Outcome.REFUSED) in house.desk.ends
        assert house.node_of("p") == ("a" if is_bound else None)

    play(scene)


def test_unanswered_bind_is_not_resent_to_a_recreated_node() -> None:
    """The watch had confirmed it, so that the pod stood on its node when that was made anew; then history went back."""

    async def scene(house: House) -> None:
        nowhere = PodTruth("uid-p", "", is_deleting=False, is_gated=False)
        house.desk.replies = [1.0, BindReply(BindAnswer.UNKNOWN)]
        house.desk.truths = [nowhere] * 2
        house.see_pod("p")
        await asyncio.sleep(0.1)
        house.see_pod("p", nodeName="a")
        house.lose_node("a")
        house.see_node("a", cpu="4", uid="another")
        await asyncio.sleep(10.0)

        assert house.desk.posts == [("p", "a")]

    play(scene)


@pytest.mark.parametrize("where", ["a", "b"])
def test_relabelled_placed_pod_cancels_a_conflicting_bind(where: str) -> None:
    """Also from another node of the zone."""
    term = {"labelSelector": {"matchLabels": {"role": "leader"}}, "topologyKey": "zone"}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    loop = SimLoop(seed=3)

    async def main() -> None:
        house = House(loop, plugins=[Holding()], filters=("InterPodAffinity",))
        house.see_node("a", cpu="4", labels={"zone": "z"})
        house.see_node("b", cpu="1", labels={"zone": "z"})
        async with house.at_work():
            house.see_pod("standing", nodeName=where, phase="Running", metadata={"labels": {"role": "follower"}})
            house.see_pod("permit", cpu="2", affinity=anti)
            await asyncio.sleep(0.1)
            assert house.node_of("permit") == "a"
            house.see_pod("standing", nodeName=where, phase="Running", metadata={"labels": {"role": "leader"}})
            house.worker.waiting.allow("uid-permit", "Holding")
            await asyncio.sleep(0.1)
            assert house.desk.posts == []

    simulate(main(), loop)


def test_row_repaired_by_the_audit_is_checked_again() -> None:
    async def scene(house: House) -> None:
        house.see_pod("standing", cpu="4", scheduler="them", nodeName="a", phase="Running")
        row = house.cache.nodes.row_of("a")
        assert row is not None
        house.cache.nodes.remove_pod(row, "uid-standing")  # the columns are wrong from here on
        house.see_pod("permit")
        await asyncio.sleep(0.1)
        assert house.node_of("permit") == "a"
        house.cache.repair_row(row)
        house.worker.waiting.allow("uid-permit", "Holding")
        await asyncio.sleep(0.1)

        assert house.desk.posts == []

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
        house = House(loop, plugins=[counting], profile="gpu")
        house.see_node("g", cpu="4", gpus=2)
        async with house.at_work():
            house.see_pod("p", metadata={"annotations": {GPU_MILLI: milli} if milli else {}})
            await asyncio.sleep(0.1)
            assert house.desk.posts == [("p", "g")]
            assert counting.asked == 1

    simulate(main(), loop)


@pytest.mark.parametrize("holds", [True, False])
def test_node_with_changed_devices_cancels_binds_that_hold_its_devices(holds: bool) -> None:
    """Its devices may be the ones that went, though the node still has as many as are needed."""

    async def scene(house: House) -> None:
        house.cache.ledgers.register(Tickets(4))
        house.see_pod("permit", metadata={"annotations": {"tickets": "1"} if holds else {}})
        await asyncio.sleep(0.1)
        house.see_node("a", cpu="4", labels={"moved": "no"})
        await asyncio.sleep(0.1)
        assert house.node_of("permit") == "a", "a label is no device"
        house.see_node("a", cpu="3", labels={"moved": "no"})
        await asyncio.sleep(0.1)
        assert house.node_of("permit") == (None if holds else "a")
        assert house.told("permit") == ["the allocatable resources of node a changed before the pod was bound"] * holds
        assert house.worker.queue.where("uid-permit") is (QueueState.BACKOFF if holds else QueueState.IN_FLIGHT)

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
        house = House(loop, plugins=[Holding(), KeepsOffSlowDisks()])
        house.see_node("a", cpu="4", labels={"disk": "fast"})
        house.desk.sleep = anyio.sleep
        async with house.at_work():
            house.see_pod("permit")
            await asyncio.sleep(0.1)
            assert house.node_of("permit") == "a"

            house.see_node("a", cpu="4", labels={"disk": "slow"})
            await asyncio.sleep(0.1)
            house.worker.waiting.allow("uid-permit", "Holding")
            await asyncio.sleep(0.1)
            assert house.node_of("permit") is None
            assert house.desk.posts == []

    simulate(main(), loop)


@pytest.mark.parametrize(("annotation", "is_sent"), [("hami.io/mutex.lock", True), ("hami.io/device-cordon", False)])
def test_lock_of_a_node_leaves_answers_of_remote_filters_valid(annotation: str, *, is_sent: bool) -> None:
    """PreBind writes the lock itself after they have answered."""
    loop = SimLoop(seed=3)

    async def main() -> None:
        house = House(loop, plugins=[Holding(), KeepsOffSlowDisks()])
        house.cache.ledgers.register(GpuLedger())
        house.see_node("a", cpu="4")
        house.desk.sleep = anyio.sleep
        async with house.at_work():
            house.see_pod("permit")
            await asyncio.sleep(0.1)
            house.see_node("a", cpu="4", annotations={annotation: "2026-01-01T00:00:00Z,default,permit"})
            await asyncio.sleep(0.1)
            house.worker.waiting.allow("uid-permit", "Holding")
            await asyncio.sleep(0.1)
            assert house.desk.posts == ([("permit", "a")] if is_sent else [])

    simulate(main(), loop)
