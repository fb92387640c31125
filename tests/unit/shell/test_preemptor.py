"""What becomes of a preemption once it is decided: victims, nominations, failures, and the preemptor that waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest

from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.context import PluginContext
from multisched.framework.points import CycleView, PermitResult
from multisched.framework.ports import ObjectRef, WriteAnswer, WriteReply
from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.objects import Pod
from multisched.plugins.default_preemption import DefaultPreemption
from multisched.queueing.transitions import QueueState
from multisched.shell.preemptor import ATTEMPTS_MAX, SEEN_MAX_S
from multisched.state.cluster_cache import ClusterCache
from multisched.state.reservations import stand_in_of
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import WRITE_S, WorkerHarness

REFUSED = WriteReply(WriteAnswer.REFUSED, message="a webhook says no")
LOST = WriteReply(WriteAnswer.UNKNOWN, message="reset")
GONE = WriteReply(WriteAnswer.GONE)
BUSY = WriteReply(WriteAnswer.THROTTLED, retry_after_s=2.0, message="too many requests")


class UnderWay:
    """Asks the harness that is built only after its plugins."""

    harness: WorkerHarness

    def is_preempting(self, uid: str) -> bool:
        return self.harness.preemptor.is_preempting(uid)


class HoldLow:
    """Holds pods without priority at Permit."""

    name = "HoldLow"

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        return PermitResult(SUCCESS) if pod.spec.priority else PermitResult(Status(Code.WAIT), 100.0)


class SlowPreBind:
    """Takes a minute over pods without priority."""

    name = "SlowPreBind"

    async def pre_bind(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        if not pod.spec.priority:
            await asyncio.sleep(60)
        return SUCCESS


def preempting_house(loop: SimLoop, *nodes: str, plugins: Sequence[Any] = (), **options: Any) -> WorkerHarness:
    """A domain whose pods preempt by the default rule; whether its preemptor works is the test's."""
    under_way, cache = UnderWay(), ClusterCache()
    context = PluginContext("ours", cache.nodes, WaitingPodTable(), cache.ledgers, cache.objects, preemptions=under_way)
    under_way.harness = WorkerHarness(loop, *nodes, plugins=[*plugins, DefaultPreemption(context)], **options)
    return under_way.harness


def play(
    scene: Callable[[WorkerHarness], Coroutine[Any, Any, None]],
    *plugins: Any,
    bind_workers: int = 4,
    late_s: float = 0.0,
) -> None:
    """Runs a scene with one node of two CPUs, a leading worker and its preemptor, in virtual time.

    `late_s`: when the preemptor begins to work.
    """
    loop = SimLoop(seed=3)

    async def begin(harness: WorkerHarness) -> None:
        await asyncio.sleep(late_s)
        await harness.preemptor.run()

    async def main() -> None:
        harness = preempting_house(loop, "a", plugins=plugins, bind_workers=bind_workers)
        harness.desk.sleep = anyio.sleep
        async with harness.at_work(partial(begin, harness)):
            await scene(harness)
        harness.cache.validate()
        harness.worker.queue.validate()

    simulate(main(), loop)


def two_low(harness: WorkerHarness) -> None:
    """Two running pods fill the node."""
    for name in ("low-1", "low-2"):
        harness.see_pod(name, scheduler="other", nodeName="a", phase="Running")


def nominations(harness: WorkerHarness, name: str) -> list[str | None]:
    return [condition.nominated_node for pod, condition in harness.desk.conditions if pod == name]


def place(harness: WorkerHarness, name: str) -> QueueState | None:
    return harness.worker.queue.where(f"uid-{name}")


def test_victims_are_marked_and_deleted_with_the_last_one_after_the_others() -> None:
    async def scene(harness: WorkerHarness) -> None:
        await asyncio.sleep(1.0)
        two_low(harness)
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(0.5)
        assert harness.desk.writes_sent == [
            ("mark", "low-1"),
            ("delete", "low-1"),
            ("mark", "low-2"),
            ("delete", "low-2"),
        ]
        assert [(e.regarding.name, e.related and e.related.name, e.note) for e in harness.desk.events if e.reason == "Preempted"] == [
            ("low-1", "high", "Preempted by pod uid-high on node a"),
            ("low-2", "high", "Preempted by pod uid-high on node a"),
        ]  # fmt: skip
        assert harness.told("high") == ["0/1 nodes are available: 1 Insufficient cpu."]
        assert nominations(harness, "high") == ["a"]
        assert ("victims", 2) in harness.desk.ends
        assert ("preemption", "success") in harness.desk.ends
        assert harness.desk.preemptions_s == [pytest.approx(4 * WRITE_S)]
        harness.lose_pod("low-1")
        harness.lose_pod("low-2")
        await asyncio.sleep(2.0)
        assert harness.desk.posts == [("high", "a")]

    play(scene)


def test_preemption_is_dropped_if_the_node_left_the_domain() -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.desk.writes[("mark", "low-1")] = [BUSY]
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(0.1)
        row = harness.cache.nodes.row_of("a")
        assert row is not None
        harness.domain.rows.set_node(row, None)
        await asyncio.sleep(5.0)
        assert harness.desk.writes_sent == [("mark", "low-1"), ("clear", "high")]
        assert ("preemption", "error") in harness.desk.ends
        harness.domain.rows.set_node(row, harness.cache.nodes.node(row))
        harness.see_node("a")
        await asyncio.sleep(5.0)
        assert {("delete", "low-1"), ("delete", "low-2")} <= {*harness.desk.writes_sent}

    play(scene)


def test_assumed_victim_stays_if_its_node_left_the_preemptors_domain() -> None:
    async def scene(harness: WorkerHarness) -> None:
        for name in ("low-1", "low-2"):
            harness.see_pod(name, cpu="1")
        await asyncio.sleep(0.5)
        harness.see_pod("high", cpu="2", priority=100)
        row = harness.cache.nodes.row_of("a")
        assert row is not None
        await asyncio.sleep(0.5)
        harness.domain.rows.set_node(row, None)
        await asyncio.sleep(5.0)
        assert {entry.pod.name for entry in harness.cache} == {"low-1", "low-2"}

    play(scene, HoldLow(), late_s=3.0)


def test_preemptor_is_held_until_its_last_victim_deletion_was_sent() -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.desk.writes[("mark", "low-1")] = [BUSY]
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(0.1)
        harness.lose_pod("low-1")
        assert place(harness, "high") is QueueState.GATED
        harness.lose_pod("low-2")
        await asyncio.sleep(0.1)
        assert (place(harness, "high"), harness.desk.posts) == (QueueState.GATED, [])
        assert len(harness.told("high")) == 1
        await asyncio.sleep(5.0)
        assert harness.desk.posts == [("high", "a")]
        assert len(harness.preemptor) == 0

    play(scene)


def test_preemptor_continues_when_the_watch_shows_deletions_before_the_reply() -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.desk.writes[("delete", "low-2")] = [BUSY]
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(0.5)
        harness.lose_pod("low-1")
        assert place(harness, "high") is QueueState.GATED
        harness.lose_pod("low-2")
        await asyncio.sleep(1.0)
        assert harness.desk.posts == [("high", "a")]
        assert not harness.worker.is_drained, "the last deletion is still to be sent again"
        await asyncio.sleep(2.0)
        assert harness.desk.writes_sent[-2:] == [("delete", "low-2")] * 2
        assert harness.worker.is_drained
        assert nominations(harness, "high") == ["a"]

    play(scene)


@pytest.mark.parametrize("what", ["mark", "delete"])
def test_failed_victim_deletion_spares_the_others_and_releases_the_preemptor(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.desk.writes[(what, "low-1")] = [REFUSED]
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(0.25)
        (record,) = [one for one in caplog.records if one.getMessage() == "preemption"]
        assert {"pod": "default/high", "node": "a"}.items() <= vars(record).items()
        assert vars(record)["error"] == "victim default/low-1 was not removed: a webhook says no"
        assert not any(name == "low-2" for _, name in harness.desk.writes_sent[:3])
        assert ("clear", "high") in harness.desk.writes_sent
        assert ("preemption", "error") in harness.desk.ends
        await asyncio.sleep(5.0)
        assert ("delete", "low-2") in harness.desk.writes_sent, "the next attempt preempts anew"

    play(scene)


def test_write_with_unknown_effect_is_retried_and_a_missing_victim_is_no_failure() -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.desk.writes[("mark", "low-1")] = [LOST, GONE]
        harness.desk.writes[("delete", "low-2")] = [LOST, LOST]
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(2.0)
        assert harness.desk.writes_sent == [("mark", "low-1")] * 2 + [("mark", "low-2")] + [("delete", "low-2")] * 3
        assert [e.regarding.name for e in harness.desk.events if e.reason == "Preempted"] == ["low-2"]
        assert ("preemption", "success") in harness.desk.ends

    play(scene)


@pytest.mark.parametrize(
    ("answers", "waits_s"),
    [
        ([LOST] * 4, [0.1, 0.2, 0.4, 0.8]),
        ([BUSY, LOST, LOST, BUSY], [2.0, 0.2, 0.4, 2.0]),
        ([WriteReply(WriteAnswer.THROTTLED, retry_after_s=0.05)] * 2, [0.1, 0.2]),
    ],
    ids=["no answers", "told when", "told to come back soon"],
)
def test_write_retry_delay_doubles_or_follows_retry_after(answers: list[WriteReply], waits_s: list[float]) -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.desk.writes[("mark", "low-1")] = list(answers)
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(8.0)
        sent_at = harness.desk.writes_sent_at[: len(answers) + 1]
        assert [later - before - WRITE_S for before, later in pairwise(sent_at)] == pytest.approx(waits_s)
        assert harness.desk.writes_sent == [
            *[("mark", "low-1")] * (len(answers) + 1),
            ("delete", "low-1"),
            ("mark", "low-2"),
            ("delete", "low-2"),
        ]

    play(scene)


@pytest.mark.parametrize(("message", "told"), [("reset", "reset"), ("", "no answer")])
def test_unanswered_write_fails_after_five_attempts(message: str, told: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.desk.writes[("delete", "low-1")] = [WriteReply(WriteAnswer.UNKNOWN, message=message)] * ATTEMPTS_MAX
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(3.5)
        assert harness.desk.writes_sent[:7] == [
            ("mark", "low-1"),
            *[("delete", "low-1")] * ATTEMPTS_MAX,
            ("clear", "high"),
        ]
        profiles_text = [vars(one)["error"] for one in caplog.records if one.getMessage() == "preemption"]
        assert profiles_text == [f"victim default/low-1 was not removed: {told}"]

    play(scene)


def test_victim_events_name_the_preemptor_and_writes_have_the_domain_deadline() -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(0.5)
        why = "ours: preempting to accommodate a higher priority pod"
        assert harness.desk.marks == [
            (ObjectRef("Pod", "default", name, f"uid-{name}"), why, harness.worker.write_timeout_s)
            for name in ("low-1", "low-2")
        ]
        (first, second) = (event for event in harness.desk.events if event.reason == "Preempted")
        assert (first.type, first.action, first.reporter) == ("Normal", "Preempting", "ours")
        assert first.regarding == ObjectRef("Pod", "default", "low-1", "uid-low-1")
        assert first.related == second.related == ObjectRef("Pod", "default", "high", "uid-high")

    play(scene)


def test_preemptor_writes_nothing_without_the_lease() -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.desk.is_leading = False
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(0.5)
        assert harness.desk.writes_sent == []
        assert place(harness, "high") is not None

    play(scene)


def test_lease_is_checked_before_each_write() -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(0.005)
        harness.desk.is_leading = False
        await asyncio.sleep(0.5)
        assert harness.desk.writes_sent == [("mark", "low-1")]

    play(scene)


def test_deleting_victims_are_not_written() -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        going = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
        harness.see_pod("low-1", scheduler="other", nodeName="a", phase="Running", metadata=going)
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(0.5)
        assert harness.desk.writes_sent == [("mark", "low-2"), ("delete", "low-2")]

    play(scene)


def test_victim_at_permit_is_cancelled_in_memory_and_requeued() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("low", cpu="2")
        await asyncio.sleep(0.1)
        assert harness.cache.is_assumed("uid-low")
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(2.0)
        assert harness.desk.posts == [("high", "a")]
        assert harness.desk.writes_sent == []
        (event,) = [e for e in harness.desk.events if e.reason == "Preempted"]
        assert event.note == "Preempted by pod uid-high on node a (in kube-scheduler memory)."
        assert harness.told("low")[0] == "waiting on permit for pod: preempted"
        assert place(harness, "low") is not None

    play(scene, HoldLow())


def test_victim_at_pre_bind_is_cancelled_in_memory() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("low", cpu="2")
        await asyncio.sleep(0.1)
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(2.0)
        assert harness.desk.posts == [("high", "a")]
        assert harness.desk.writes_sent == []
        assert harness.told("low")[0] == 'running PreBind plugin "SlowPreBind": preempted by DefaultPreemption'

    play(scene, SlowPreBind())


def test_victim_with_an_unsent_bind_is_cancelled_in_memory() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("first", cpu="10m", priority=200)
        harness.desk.replies = [3.0]
        await asyncio.sleep(0.1)
        harness.see_pod("low", cpu="1900m")
        await asyncio.sleep(0.1)
        assert harness.desk.posts == [("first", "a")]
        harness.see_pod("high", cpu="1900m", priority=100)
        await asyncio.sleep(100.0)
        assert ("low", "a") not in harness.desk.posts
        assert ("high", "a") in harness.desk.posts
        assert harness.desk.writes_sent == []

    play(scene, bind_workers=1)


def test_lower_nominations_on_the_node_end_and_equal_ones_stay() -> None:
    async def scene(harness: WorkerHarness) -> None:
        for name in ("low-1", "low-2"):
            harness.see_pod(name, scheduler="other", nodeName="a", phase="Running")
        lower: dict[str, Any] = {"status": {"nominatedNodeName": "a"}}
        harness.worker.intake.is_leading = False
        harness.see_pod("middle", cpu="2", priority=50, **lower)
        harness.see_pod("equal", cpu="0", priority=100, **lower)
        nominator = harness.domain.nominator
        assert {pod.name for pod in nominator.on("a")} == {"middle", "equal"}
        harness.worker.queue.remove("uid-middle")
        harness.worker.queue.remove("uid-equal")
        harness.see_pod("high", cpu="2", priority=100)
        harness.worker.lead()
        await asyncio.sleep(0.5)
        assert {pod.name for pod in nominator.on("a")} == {"equal", "high"}
        assert harness.desk.writes_sent[0] == ("clear", "middle")

    play(scene)


def test_failed_nomination_clear_is_logged_and_reservations_are_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Pods go all the same: the node is promised to them no longer, whatever the server says of it."""

    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        nominator = harness.domain.nominator
        harness.worker.intake.is_leading = False
        lower: dict[str, Any] = {"status": {"nominatedNodeName": "a"}}
        standing = harness.cache.placed("uid-low-1")
        assert standing is not None
        nominator.set(stand_in_of(standing.pod, "a"))
        for name in ("middle-1", "middle-2"):
            harness.see_pod(name, cpu="2", priority=50, **lower)
            harness.worker.queue.remove(f"uid-{name}")
            harness.desk.writes[("clear", name)] = [REFUSED]
        harness.see_pod("high", cpu="2", priority=100)
        harness.worker.lead()
        await asyncio.sleep(0.5)
        assert [pod.name for pod in nominator.on("a")] == ["high"]
        assert harness.desk.writes_sent == [
            *(("clear", name) for name in ("middle-1", "middle-2")),
            *((what, name) for name in ("low-1", "low-2") for what in ("mark", "delete")),
        ]
        told = [vars(record)["error"] for record in caplog.records if record.getMessage() == "preemption"]
        words = "the nomination of default/{} was not cleared: a webhook says no"
        assert told == [words.format("middle-1"), words.format("middle-2")]
        assert ("preemption", "error") in harness.desk.ends

    play(scene)


def test_preemptor_with_two_victims_continues_after_both() -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(1.0)
        assert harness.preemptor.is_preempting("uid-high")
        harness.lose_pod("low-1")
        assert place(harness, "high") is QueueState.GATED
        harness.preemptor.on_victim_deleting("uid-low-1")  # a watch that begins anew may say so again
        assert place(harness, "high") is QueueState.GATED
        harness.lose_pod("low-2")
        assert not harness.preemptor.is_preempting("uid-high")
        await asyncio.sleep(0.5)
        assert harness.desk.posts == [("high", "a")]

    play(scene)


def test_preemptor_without_victim_events_is_requeued_after_a_timeout() -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(1.0)
        harness.lose_pod("low-1")
        deleted = harness.desk.writes_sent.count(("delete", "low-2"))
        assert (place(harness, "high"), harness.preemptor.is_preempting("uid-high"), deleted) == (
            QueueState.GATED,
            True,
            1,
        )
        await asyncio.sleep(SEEN_MAX_S)
        assert harness.worker.counters.attempts == 2
        assert harness.desk.writes_sent.count(("delete", "low-2")) == 2, "the watch still shows it"

    play(scene)


def test_closed_domain_releases_waiting_preemptors() -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(1.0)
        assert (place(harness, "high"), harness.preemptor.is_preempting("uid-high")) == (QueueState.UNSCHEDULABLE, True)
        harness.worker.close_intake()
        assert not harness.preemptor.is_preempting("uid-high")
        assert harness.worker.is_drained
        await asyncio.sleep(60.0)
        assert harness.desk.posts == []

    play(scene)


def test_preemption_is_dropped_if_its_pod_was_deleted_before_it() -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(0.1)
        assert harness.preemptor.is_preempting("uid-high")
        harness.lose_pod("high")
        await asyncio.sleep(0.5)
        assert harness.desk.writes_sent == []
        assert len(harness.preemptor) == 0
        assert harness.worker.is_drained

    play(scene, late_s=0.2)


def test_stop_waits_for_started_preemptions_and_drops_the_rest() -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(0.005)
        harness.worker.close_intake()
        assert not harness.worker.is_drained
        with anyio.fail_after(1.0):
            await harness.worker.drained()
        assert harness.desk.writes_sent[-1] == ("delete", "low-2")

    play(scene)


def test_stop_drops_an_unstarted_preemption() -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.see_pod("high", cpu="2", priority=100)
        await asyncio.sleep(0.1)
        assert harness.preemptor.is_preempting("uid-high")
        harness.worker.close_intake()
        await asyncio.sleep(0.5)
        assert (harness.desk.writes_sent, harness.worker.is_drained) == ([], True)

    play(scene, late_s=0.2)


def test_two_preemptors_delete_a_shared_victim_once() -> None:
    async def scene(harness: WorkerHarness) -> None:
        two_low(harness)
        harness.desk.writes[("delete", "low-1")] = [BUSY]
        harness.desk.writes[("delete", "low-2")] = [BUSY]
        harness.see_pod("high", cpu="1500m", priority=100)
        await asyncio.sleep(0.1)
        harness.see_pod("higher", cpu="2", priority=200)
        await asyncio.sleep(10.0)
        assert sorted(name for what, name in harness.desk.writes_sent if what == "mark") == ["low-1", "low-2"]
        assert harness.domain.nominator.node_of("uid-higher") == "a"

    play(scene)
