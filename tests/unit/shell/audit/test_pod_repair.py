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
from tests.unit.shell.shell_kit import WorkerHarness


@pytest.fixture
def harness() -> Iterator[WorkerHarness]:
    """Two nodes, and a domain that is led; nobody at work."""
    with closing(SimLoop(seed=1)) as loop:
        harness = WorkerHarness(loop, "a", "b")
        harness.worker.lead()
        yield harness


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
def test_audit_covers_placed_and_schedulable_pods(harness: WorkerHarness, raw: msgspec.Raw, is_wanted: bool) -> None:
    assert harness.repair.is_wanted(raw) is is_wanted


def test_unreadable_pod_is_not_readmitted(harness: WorkerHarness) -> None:
    uid = harness.see_pod("p", cpu="2", nodeName="a")
    harness.repair.replace_content("default/p", msgspec.Raw(b"7"))
    entry = harness.cache.placed(uid)
    assert entry is not None
    harness.repair.replace_content("default/p", pod_as_served(node="a"))
    assert harness.cache.nodes.requested(CPU)[harness.domain.row("a")] == 1000


def test_undone_bind_frees_its_node_and_requeues_the_pod(harness: WorkerHarness) -> None:
    uid = harness.see_pod("p", cpu="2")
    assert harness.worker.queue.pop(0.0) is not None
    harness.cache.assume(harness.pods.pending[uid], harness.domain.row("a"))
    harness.worker.queue.done(uid)
    late = harness.see_pod("late", cpu="2")
    assert harness.worker.queue.pop(0.0) is not None
    harness.worker.queue.fail(late, Failure(frozenset({"NodeResourcesFit"})), 0.0)
    harness.repair.unbind("uid-nobody")
    harness.repair.unbind(uid)
    assert harness.cache.placed(uid) is None
    assert place_of(harness, uid) is QueueState.ACTIVE
    assert place_of(harness, late) is not QueueState.UNSCHEDULABLE, "it hears of the room"

    standing = harness.see_pod("stands", nodeName="b")
    harness.repair.unbind(standing)
    assert harness.node_of("stands") == "b", "the watch has shown it there"


def test_removed_phantom_pod_requeues_waiting_pods(harness: WorkerHarness) -> None:
    heard: list[str] = []
    repair = PodRepair(harness.pods, harness.cache, harness.router, Decoder(), harness.clock, on_deleting=heard.append)
    uid = harness.see_pod("p", cpu="2")
    assert harness.worker.queue.pop(0.0) is not None
    harness.cache.assume(harness.pods.pending[uid], harness.domain.row("a"))
    harness.worker.queue.done(uid)
    repair.unbind(uid)
    assert heard == [uid]


def test_readmitted_pod_is_tried_at_once_by_an_idle_domain() -> None:
    loop = SimLoop(seed=1)

    async def main() -> None:
        harness = WorkerHarness(loop, "a")
        async with harness.at_work():
            uid = harness.see_pod("lost")
            harness.worker.queue.remove(uid)
            await asyncio.sleep(60.1)
            pod = harness.pods.pending[uid]
            assert harness.repair.is_lost(pod)
            harness.repair.readmit(pod)
            await asyncio.sleep(0.01)  # before the timer that ends backoffs would find it
            assert harness.node_of("lost") == "a"

    simulate(main(), loop)
