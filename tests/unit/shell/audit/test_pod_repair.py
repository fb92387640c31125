"""PodRepair: what an audit wants of single pods, and how it puts them right."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest

from multisched.model.decode import Decoder
from multisched.model.objects import CPU
from multisched.queueing.entry import Failure
from multisched.queueing.transitions import QueueState
from multisched.shell.audit.pod_repair import PodRepair
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.ingest.test_ingest import place_of, pod_as_served
from tests.unit.shell.shell_kit import House


@pytest.fixture
def house() -> Iterator[House]:
    """Two nodes, and a domain that is led; nobody at work."""
    with closing(SimLoop(seed=1)) as loop:
        house = House(loop, "a", "b")
        house.worker.lead()
        yield house


@pytest.mark.parametrize(
    ("raw", "is_wanted"),
    [
        (pod_as_served(), True),
        (pod_as_served(scheduler="theirs"), False),
        (pod_as_served(node="a"), True),
        (pod_as_served(node="a", scheduler="theirs"), True),
        (pod_as_served(node="a", phase="Succeeded"), False),
        (pod_as_served(node="a", phase="Failed"), False),
        (pod_as_served(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), False),
        (pod_as_served(cpu="lots"), False),
        (msgspec.Raw(b"7"), False),
    ],
)
def test_audit_covers_placed_and_schedulable_pods(house: House, raw: msgspec.Raw, is_wanted: bool) -> None:
    assert house.repair.is_wanted(raw) is is_wanted


def test_unreadable_pod_is_not_readmitted(house: House) -> None:
    uid = house.see_pod("p", cpu="2", nodeName="a")
    house.repair.replace_content("default/p", msgspec.Raw(b"7"))
    entry = house.cache.placed(uid)
    assert entry is not None
    house.repair.replace_content("default/p", pod_as_served(node="a"))
    assert house.cache.nodes.requested(CPU)[house.domain.row("a")] == 1000


def test_undone_bind_frees_its_node_and_requeues_the_pod(house: House) -> None:
    uid = house.see_pod("p", cpu="2")
    assert house.worker.queue.pop(0.0) is not None
    house.cache.assume(house.pods.pending[uid], house.domain.row("a"))
    house.worker.queue.done(uid)
    late = house.see_pod("late", cpu="2")
    assert house.worker.queue.pop(0.0) is not None
    house.worker.queue.fail(late, Failure(frozenset({"NodeResourcesFit"})), 0.0)
    house.repair.unbind("uid-nobody")
    house.repair.unbind(uid)
    assert house.cache.placed(uid) is None
    assert place_of(house, uid) is QueueState.ACTIVE
    assert place_of(house, late) is not QueueState.UNSCHEDULABLE, "it hears of the room"

    standing = house.see_pod("stands", nodeName="b")
    house.repair.unbind(standing)
    assert house.node_of("stands") == "b", "the watch has shown it there"


def test_removed_phantom_pod_requeues_waiting_pods(house: House) -> None:
    heard: list[str] = []
    repair = PodRepair(house.pods, house.cache, house.router, Decoder(), house.clock, on_deleting=heard.append)
    uid = house.see_pod("p", cpu="2")
    assert house.worker.queue.pop(0.0) is not None
    house.cache.assume(house.pods.pending[uid], house.domain.row("a"))
    house.worker.queue.done(uid)
    repair.unbind(uid)
    assert heard == [uid]


def test_readmitted_pod_is_tried_at_once_by_an_idle_domain() -> None:
    loop = SimLoop(seed=1)

    async def main() -> None:
        house = House(loop, "a")
        async with house.at_work():
            uid = house.see_pod("lost")
            house.worker.queue.remove(uid)
            await asyncio.sleep(60.1)
            pod = house.pods.pending[uid]
            assert house.repair.is_lost(pod)
            house.repair.readmit(pod)
            await asyncio.sleep(0.01)  # before the timer that ends backoffs would find it
            assert house.node_of("lost") == "a"

    simulate(main(), loop)
