"""A domain at work: from the queue to a definite outcome, through Permit, PreBind, the server's answers and the lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import anyio
import msgspec
import numpy as np
import orjson
import pytest

from multisched.cycle.bind_outcome import Outcome
from multisched.framework.dependency import Dependency
from multisched.framework.events import Action, ClusterEvent, EventRegistration, Resource
from multisched.framework.isolation import IsolatedError
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, PermitResult
from multisched.framework.ports import (
    BindAnswer,
    Binder,
    BindReply,
    BindRequest,
    ExtenderError,
    PodTruth,
    UnreachableError,
)
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.objects import Pod
from multisched.queueing.requeue_judge import CONFLICTS_IN_A_ROW
from multisched.queueing.transitions import QueueState
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import WorkerHarness
from tests.unit.state.state_kit import NamespaceRoom, Tickets

CREATED, UNKNOWN, CONFLICT = (BindReply(BindAnswer[name]) for name in ("CREATED", "UNKNOWN", "CONFLICT"))


class Recorder:
    """Reserve, Permit, PreBind and PostBind with answers that a test may change."""

    name = "Recorder"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.permit_status = SUCCESS
        self.pre_bind_status: Status | Exception = SUCCESS

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        self.calls.append(f"reserve {pod.name}")
        return SUCCESS

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self.calls.append(f"unreserve {pod.name}")

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        return PermitResult(self.permit_status, 3.0)

    async def pre_bind(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        self.calls.append(f"pre_bind {pod.name}")
        if isinstance(self.pre_bind_status, Exception):
            raise self.pre_bind_status
        return self.pre_bind_status

    def post_bind(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self.calls.append(f"post_bind {pod.name}")


class Slow:
    """Asks outside about every pod, and is answered after so many seconds."""

    depends_on = Dependency.ATTEMPT

    def __init__(self, name: str, seconds: float) -> None:
        self.name = name
        self.response_timeout_s = 10.0
        self._seconds = seconds
        self.answered: list[object] = []

    def request(self, cycle: CycleView, pod: Pod, rows: Rows) -> object | None:
        return pod.name

    async def response(self, request: object) -> object:
        await asyncio.sleep(self._seconds)
        self.answered.append(request)
        return request


def play(scene: Callable[[WorkerHarness, Recorder], Coroutine[Any, Any, None]], *nodes: str, **options: Any) -> None:
    """Runs a scene with a leading worker over these nodes, in virtual time."""
    loop = SimLoop(seed=3)

    async def main() -> None:
        recorder = Recorder()
        plugins = [recorder, *options.pop("plugins", ())]
        harness = WorkerHarness(loop, *(nodes or ("a",)), plugins=plugins, **options)
        harness.desk.sleep = anyio.sleep
        async with harness.at_work():
            await scene(harness, recorder)
        harness.cache.validate()

    simulate(main(), loop)


def test_remote_plugins_are_called_concurrently() -> None:
    asked = [Slow("first", 3.0), Slow("second", 2.0)]

    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.see_pod("p")
        await asyncio.sleep(2.9)
        assert harness.desk.posts == []
        await asyncio.sleep(0.2)
        assert harness.desk.posts == [("p", "a")]
        assert [plugin.answered for plugin in asked] == [["p"], ["p"]]

    play(scene, plugins=asked)


def test_failed_remote_plugin_is_named_with_its_exception() -> None:
    class Failing(Slow):
        async def response(self, request: object) -> object:
            raise ZeroDivisionError("no weights")

    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        assert harness.desk.ends == [("attempt", "error")]
        assert harness.domain.heard.failures == [("failing", "Response", "no weights")]
        (told,) = harness.told("p")
        assert "failing" in told
        assert "no weights" in told

    play(scene, plugins=[Failing("failing", 0.0)])


def test_remote_plugin_timeout_is_a_failure_reported_to_the_pod() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.see_pod("p")
        await asyncio.sleep(9.9)
        assert harness.told("p") == []
        await asyncio.sleep(0.2)
        assert harness.desk.ends == [("attempt", "error")]
        (told,) = harness.told("p")
        assert "no answer within 10.0 s" in told
        assert harness.desk.posts == []

    play(scene, plugins=[Slow("silent", 60.0)])


def test_pod_message_has_only_the_extender_text() -> None:
    class Refusing(Slow):
        async def response(self, request: object) -> object:
            raise ExtenderError('extender "http://e" (filter): is down')

    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        assert harness.told("p") == ['extender "http://e" (filter): is down']
        assert harness.desk.ends == [("attempt", "error")]

    play(scene, plugins=[Refusing("extender", 1.0)])


def test_bound_pod_is_reported_to_all_observers() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        assert harness.desk.posts == [("p", "a")]
        assert recorder.calls == ["reserve p", "pre_bind p", "post_bind p"]
        assert harness.reasons() == ["Scheduled"]
        assert harness.desk.dropped == ["uid-p"]
        assert harness.worker.counters.bound == len(harness.worker.latencies_s) == 1
        assert harness.cache.is_assumed("uid-p")
        assert len(harness.worker.queue) == 0
        assert harness.worker.is_drained

    play(scene)


def test_nothing_is_scheduled_without_the_lease_or_after_intake_closed() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.worker.intake.is_leading = False
        harness.see_pod("p")
        await asyncio.sleep(1.0)
        assert harness.desk.posts == []
        harness.worker.lead()
        await asyncio.sleep(1.0)
        assert harness.desk.posts == [("p", "a")]
        harness.worker.close_intake()
        harness.see_pod("q")
        await asyncio.sleep(60.0)
        assert len(harness.desk.posts) == 1

    play(scene)


@pytest.mark.parametrize(
    ("truth", "outcome", "is_requeued"),
    [
        (PodTruth("uid-p", "a", is_deleting=False, is_gated=False), Outcome.BOUND, False),
        (PodTruth("uid-p", "b", is_deleting=False, is_gated=False), Outcome.FOREIGN, False),
        (PodTruth("uid-p", "", is_deleting=True, is_gated=False), Outcome.GONE, False),
        (PodTruth("another", "", is_deleting=False, is_gated=False), Outcome.GONE, False),
        (None, Outcome.GONE, False),
        (PodTruth("uid-p", "", is_deleting=False, is_gated=True), Outcome.REFUSED, True),
        (PodTruth("uid-p", "", is_deleting=False, is_gated=False), Outcome.REFUSED, True),
    ],
)
def test_conflict_ends_as_the_read_shows(truth: PodTruth | None, outcome: Outcome, is_requeued: bool) -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.desk.replies = [CONFLICT]
        harness.desk.truths = [truth]
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        assert ("outcome", outcome) in harness.desk.ends
        assert harness.cache.is_assumed("uid-p") is (outcome is Outcome.BOUND)
        assert ("unreserve p" in recorder.calls) is (outcome is not Outcome.BOUND)
        assert (harness.worker.queue.where("uid-p") is not None) is is_requeued
        assert harness.worker.is_drained
        harness.see_pod("p", metadata={"labels": {"late": "news"}})
        assert (harness.worker.queue.where("uid-p") is not None) is is_requeued, "the watch lags behind what was read"

    play(scene)


def test_unknown_bind_keeps_its_row_and_retries_only_that_node() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.desk.replies = [UNKNOWN] * 6
        harness.see_pod("p")
        harness.see_pod("q")
        await asyncio.sleep(0.1)
        assert harness.worker.counters.unknown == 2
        assert not harness.worker.is_drained
        assert {node for name, node in harness.desk.posts if name == "p"} == {harness.node_of("p")}
        assert len(harness.cache) == 2
        await asyncio.sleep(60.0)
        assert harness.worker.counters.bound == 2
        assert harness.worker.counters.unknown == 0

    play(scene, "a", "b")


def test_unknown_bind_survives_an_unreachable_server_and_a_lost_event() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.desk.replies = [UNKNOWN, CONFLICT]
        harness.desk.truths = [
            UnreachableError(),
            UnreachableError(),
            PodTruth("uid-p", "a", is_deleting=False, is_gated=False),
        ]
        harness.see_pod("p")
        await asyncio.sleep(30.0)
        assert ("outcome", Outcome.BOUND) in harness.desk.ends
        assert harness.cache.is_assumed("uid-p")

    play(scene)


def test_no_bind_is_sent_without_the_lease() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.desk.is_leading = False
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        assert harness.desk.posts == []
        assert len(harness.cache) == 0
        assert "lease" in harness.told("p")[0]

    play(scene)


def test_unknown_bind_waits_while_the_lease_is_lost() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.desk.replies = [UNKNOWN]
        harness.see_pod("p")
        await asyncio.sleep(0.05)
        harness.desk.is_leading = False
        await asyncio.sleep(60.0)
        assert len(harness.desk.posts) == 1
        assert harness.cache.is_assumed("uid-p")

    play(scene)


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_unsent_bind_is_cancelled_with_its_node(is_made_anew: bool) -> None:
    """A node made anew under the same name may be smaller: nobody asked whether the pod fits there (I1)."""

    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        recorder.permit_status = Status(Code.WAIT)
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        harness.lose_node("a")
        if is_made_anew:
            harness.see_node("a", uid="uid-again", cpu="0")
        harness.worker.waiting.allow("uid-p", "Recorder")
        await asyncio.sleep(0.1)
        assert harness.desk.posts == []
        assert len(harness.cache) == 0
        assert harness.told("p")[0] == "node a was deleted before the pod was bound"

    play(scene)


def test_pod_at_permit_is_cancelled_when_its_node_is_recreated() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        recorder.permit_status = Status(Code.WAIT)
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        assert harness.node_of("p") == "a"
        harness.see_node("a", uid="uid-again")
        await asyncio.sleep(0.1)
        assert len(harness.worker.waiting) == 0
        assert harness.told("p") == ["node a was deleted and created again before the pod was bound"]

    play(scene)


def test_permit_timeout_requeues_the_pod() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        recorder.permit_status = Status(Code.WAIT)
        harness.see_pod("p")
        await asyncio.sleep(2.9)
        assert [pod.name for pod in harness.worker.waiting.waiting()] == ["p"]
        assert harness.cache.is_assumed("uid-p")
        await asyncio.sleep(0.5)
        told = "0/1 nodes are available: 1 rejected due to timeout after waiting 3s at plugin Recorder."
        assert harness.told("p") == [told]
        assert recorder.calls == ["reserve p", "unreserve p"]
        assert ("permit", "rejected") in harness.desk.ends
        assert len(harness.cache) == 0

    play(scene)


GATED: dict[str, Any] = {"schedulingGates": [{"name": "g"}]}


@pytest.mark.parametrize("stage", ["queued", "asked about", "at Permit"])
def test_pod_gated_again_by_a_restored_backup_waits_again(stage: str) -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        recorder.permit_status = Status(Code.WAIT)
        harness.worker.intake.is_leading = stage != "queued"
        uid = harness.see_pod("p")
        await asyncio.sleep(0.5 if stage == "asked about" else 1.5)
        assert harness.cache.is_assumed(uid) is (stage == "at Permit")
        harness.see_pod("p", **GATED)
        harness.worker.lead()
        await asyncio.sleep(1.0)
        assert harness.worker.queue.where(uid) is QueueState.GATED
        assert recorder.calls == (["reserve p", "unreserve p"] if stage == "at Permit" else [])
        recorder.permit_status = SUCCESS
        harness.see_pod("p")
        await asyncio.sleep(9.0)
        assert harness.desk.posts == [("p", "a")]

    play(scene, plugins=[Slow("slow", 1.0)])


@pytest.mark.parametrize("end", ["deleted", "bound elsewhere", "deleting"])
def test_deleted_or_bound_pod_leaves_permit_at_once(end: str) -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        recorder.permit_status = Status(Code.WAIT)
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        assert harness.node_of("p") == "a"
        match end:
            case "deleted":
                harness.lose_pod("p")
            case "deleting":
                harness.see_pod("p", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
            case _:
                harness.see_pod("p", nodeName="b")
        await asyncio.sleep(0.1)
        assert len(harness.worker.waiting) == 0
        assert "unreserve p" in recorder.calls
        assert harness.worker.queue.where("uid-p") is None
        assert harness.node_of("p") == ("b" if end == "bound elsewhere" else None)
        assert harness.worker.is_drained

    play(scene)


@pytest.mark.parametrize(
    "status", [Status.error("no volume"), Status.unschedulable("no volume"), RuntimeError("no volume")]
)
def test_pre_bind_refusal_or_exception_undoes_all_and_sends_nothing(status: Status | Exception) -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        recorder.pre_bind_status = status
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        assert harness.desk.posts == []
        assert recorder.calls[:3] == ["reserve p", "pre_bind p", "unreserve p"]
        assert "no volume" in harness.told("p")[0]
        assert len(harness.cache) == 0
        recorder.pre_bind_status = SUCCESS
        harness.see_node("new")
        await asyncio.sleep(30.0)
        assert [name for name, _ in harness.desk.posts] == ["p"]

    play(scene)


def test_raising_bind_plugin_fails_one_attempt() -> None:
    class Odd:
        name = "Odd"

        async def bind(self, binder: Binder, request: BindRequest, *, timeout_s: float) -> BindReply | None:
            if request.name == "odd":
                raise RuntimeError("boom")
            return None

    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.desk.truths = [PodTruth("uid-odd", "", is_deleting=False, is_gated=False)] * 20
        harness.see_pod("odd")
        harness.see_pod("p")
        await asyncio.sleep(7.0)
        assert "boom" in harness.told("odd")[0]
        assert harness.cache.placed("uid-odd") is None or harness.worker.counters.attempts > 2
        assert [name for name, _ in harness.desk.posts] == ["p"]

    play(scene, plugins=[Odd()])


def test_full_cluster_reports_the_reason_and_freed_room_requeues_the_pod() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.see_pod("filler", cpu="2", nodeName="a")
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        assert harness.told("p") == ["0/1 nodes are available: 1 Insufficient cpu."]
        assert harness.reasons() == ["FailedScheduling"]
        assert harness.worker.counters.refused == 1
        harness.lose_pod("filler")
        await asyncio.sleep(5.0)
        assert harness.desk.posts == [("p", "a")]

    play(scene)


def test_refused_bind_requeues_pods_waiting_for_its_room() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.desk.replies = [BindReply(BindAnswer.REJECTED, message="a webhook says no")]
        harness.see_pod("first", cpu="2")
        await asyncio.sleep(0)
        harness.see_pod("second", cpu="2")
        await asyncio.sleep(60.0)
        assert [name for name, _ in harness.desk.posts][:2] in (["first", "second"], ["second", "first"])
        counters = harness.worker.counters
        assert counters.refused == counters.attempts - counters.bound == 3

    play(scene)


def test_pod_found_on_another_node_requeues_pods_waiting_for_its_room() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.see_node("b", cpu="1")
        harness.see_pod("stands", cpu="1", nodeName="a")
        harness.see_pod("waits", cpu="2")
        await asyncio.sleep(1.0)
        assert harness.desk.posts == []
        metadata = {"name": "stands", "namespace": "default", "uid": "uid-stands"}
        containers = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
        raw = orjson.dumps({"metadata": metadata, "spec": {"nodeName": "b", "containers": containers}})
        label = harness.router.label_of(lambda: harness.pods.upsert("default/stands", msgspec.Raw(raw)))
        assert label == "AssignedPodAdd"
        await asyncio.sleep(30.0)
        assert harness.desk.posts == [("waits", "a")]

    play(scene)


def test_refused_bind_is_reported_as_upstream_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    words = 'running Bind plugin "ByName": pods "p" is forbidden: no'

    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.desk.replies = [BindReply(BindAnswer.REJECTED, message='pods "p" is forbidden: no')]
        harness.see_pod("p")
        await asyncio.sleep(0.5)
        assert harness.told("p") == [words]
        (told,) = [vars(record) for record in caplog.records if record.message == "pod not bound"]
        assert (told["outcome"], told["error"], told["node"]) == ("REFUSED", words, "a")
        assert told["levelname"] == "WARNING"

    play(scene)


@pytest.mark.parametrize(
    ("first_answer", "loses_node"),
    [(BindAnswer.NOT_FOUND, False), (BindAnswer.THROTTLED, True)],
    ids=["pod deleted", "decision overtaken"],
)
def test_healthy_end_of_bind_is_no_warning(
    caplog: pytest.LogCaptureFixture, first_answer: BindAnswer, *, loses_node: bool
) -> None:
    caplog.set_level(logging.INFO)

    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.desk.replies = [BindReply(first_answer, retry_after_s=1.0)]
        harness.see_pod("p")
        await asyncio.sleep(0.5)
        if loses_node:
            harness.lose_node("a")
        await asyncio.sleep(2.0)
        (told,) = [record for record in caplog.records if record.message == "pod not bound"]
        assert told.levelname == "INFO"

    play(scene)


def test_burst_is_bound_without_overcommit() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        for number in range(40):
            harness.see_pod(f"p{number:02}", cpu="500m")
        await asyncio.sleep(5.0)
        assert harness.worker.counters.bound == 12
        nodes = harness.cache.nodes
        assert (nodes.requested("cpu") <= nodes.allocatable("cpu")).all()
        assert len(harness.worker.queue) == 28
        assert sum(len(nodes.pods_on(row)) for row, _ in nodes.live_rows()) == 12

    play(scene, "a", "b", "c")


def test_drained_waits_for_the_last_bind() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.desk.replies = [4.0, CREATED]
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        harness.worker.close_intake()
        began = harness.clock.monotonic()
        with anyio.fail_after(10.0):
            await harness.worker.drained()
        assert 3.0 < harness.clock.monotonic() - began < 5.0
        assert harness.worker.counters.bound == 1

    play(scene)


def test_ledger_refusal_message_reaches_the_pod() -> None:
    """No filter says that the tickets are gone: found by review, the pod was told that its node was taken."""

    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.cache.ledgers.register(Tickets(1))
        harness.see_pod("first", metadata={"annotations": {"tickets": "1"}})
        await asyncio.sleep(0.1)
        harness.see_pod("second", metadata={"annotations": {"tickets": "1"}})
        await asyncio.sleep(0.1)
        assert set(harness.told("second")) == {"node a: no tickets"}
        conditions = [condition for name, condition in harness.desk.conditions if name == "second"]
        assert {(one.status, one.reason) for one in conditions} == {("False", "Unschedulable")}
        assert set(harness.reasons()) == {"Scheduled", "FailedScheduling"}
        entry = harness.worker.queue.entry("uid-second")
        assert entry is not None
        assert entry.message == "node a: no tickets"
        [*_, record] = harness.domain.cycle.records.read("uid-second")
        assert (record.message, record.passed_over) == ("node a: no tickets", ("a",))
        harness.lose_pod("first")
        await asyncio.sleep(30.0)
        assert harness.desk.posts == [("first", "a"), ("second", "a")]

    play(scene)


class NamespaceQuota:
    """Owns the ledger and filters nothing: only at commit is a pod refused. Room comes by pods that go."""

    name = "NamespaceQuota"

    def events_to_register(self) -> Sequence[EventRegistration]:
        return [EventRegistration(ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE))]

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        return SUCCESS

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        """It keeps no account but the ledger."""


def test_pod_refused_by_quota_at_commit_waits_for_its_events() -> None:
    """A race is over after a few tries at once. From then on nothing but a pod that goes brings room."""
    loop = SimLoop(seed=3)

    async def main() -> None:
        harness = WorkerHarness(loop, "a", plugins=[NamespaceQuota()])
        harness.cache.ledgers.register(NamespaceRoom(1000))
        harness.see_pod("standing", cpu="800m", nodeName="a")
        async with harness.at_work():
            harness.see_pod("late", cpu="500m")
            await asyncio.sleep(0.1)
            harness.see_pod("small", cpu="100m", nodeName="a")
            harness.see_node("b")
            await asyncio.sleep(200.0)
            assert harness.desk.attempts == [("late", "conflict")] * (CONFLICTS_IN_A_ROW + 1)
            entry = harness.worker.queue.entry("uid-late")
            assert entry is not None
            assert (entry.state, entry.plugins) == (QueueState.UNSCHEDULABLE, ("NamespaceQuota",))
            assert harness.told("late")[-1] == "namespace default has 200m of its CPU left"
            reasons = {condition.reason for name, condition in harness.desk.conditions if name == "late"}
            assert reasons == {"NamespaceFull"}  # for Unschedulable pods a cluster autoscaler would add nodes
            harness.lose_pod("standing")
            await asyncio.sleep(0.1)
            assert [name for name, _ in harness.desk.posts] == ["late"]

    simulate(main(), loop)


def test_pod_at_permit_is_requeued_when_intake_closes() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        recorder.permit_status = Status(Code.WAIT)
        harness.see_pod("p")
        await asyncio.sleep(1.0)
        harness.worker.close_intake()
        await asyncio.sleep(0.1)
        ((_, condition),) = harness.desk.conditions
        assert condition.message.startswith("the scheduler stopped while the pod waited for others")
        assert condition.reason == "SchedulerError", "the nodes were not the cause"
        assert recorder.calls == ["reserve p", "unreserve p"]
        assert (len(harness.cache), harness.worker.is_drained, harness.desk.posts) == (0, True, [])

    play(scene)


@pytest.mark.parametrize("ends", ["deleted", "bound elsewhere"])
def test_pod_that_ends_during_a_remote_call_is_not_decided(ends: str) -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        uid = harness.see_pod("p")
        await asyncio.sleep(0.5)
        if ends == "deleted":
            harness.lose_pod("p")
        else:
            harness.see_pod("p", nodeName="b")
        await asyncio.sleep(1.0)
        assert (recorder.calls, harness.desk.posts, harness.told("p")) == ([], [], [])
        assert harness.worker.queue.where(uid) is None
        assert harness.worker.queue.statistics().in_flight == 0
        assert harness.node_of("p") == (None if ends == "deleted" else "b")

    play(scene, "a", "b", plugins=[Slow("slow", 1.0)])


def test_pod_relabelled_during_a_remote_call_counts_with_new_labels() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        recorder.permit_status = Status(Code.WAIT)
        uid = harness.see_pod("p", metadata={"labels": {"app": "old"}})
        await asyncio.sleep(0.5)
        harness.see_pod("p", metadata={"labels": {"app": "new"}})
        await asyncio.sleep(1.0)
        entry = harness.cache.placed(uid)
        assert entry is not None
        assert entry.pod.labels == {"app": "new"}

    play(scene, plugins=[Slow("slow", 1.0)])


class Binds:
    """A Bind plugin that returns, or raises, what a test says."""

    name = "Binds"

    def __init__(self, found: Any) -> None:
        self._found = found

    async def bind(self, binder: Binder, request: BindRequest, *, timeout_s: float) -> Any:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ("bound", "returned str, not BindReply"),
        (ExtenderError("the extender is down"), "the extender is down"),
        (BindReply(BindAnswer.REJECTED, message="not here"), "not here"),
    ],
)
def test_bind_plugin_error_is_reported_without_trying_others(found: Any, told: str) -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.desk.truths = [PodTruth("uid-p", "", is_deleting=False, is_gated=False)] * 20
        harness.see_pod("p")
        await asyncio.sleep(7.0)  # whether it was bound all the same is asked first
        first = harness.told("p")[0]
        assert told in first
        assert (first == told) is isinstance(found, ExtenderError), "an extender's own words and no more"
        assert harness.desk.posts == []
        assert recorder.calls[:3] == ["reserve p", "pre_bind p", "unreserve p"]

    play(scene, plugins=[Binds(found)])


def test_bind_plugin_skip_leaves_the_bind_to_the_api() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        assert harness.desk.posts == [("p", "a")]

    play(scene, plugins=[Binds(None)])


def test_failed_post_bind_does_not_undo_the_bind() -> None:
    class Deaf:
        name = "Deaf"

        def post_bind(self, cycle: CycleView, pod: Pod, node: str) -> None:
            raise RuntimeError("boom")

    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        assert harness.reasons() == ["Scheduled"]
        assert harness.domain.heard.failures == [("Deaf", "PostBind", "boom")]
        assert "post_bind p" in recorder.calls

    play(scene, plugins=[Deaf()])


def test_failed_isolated_plugin_is_reported_with_its_extension_point() -> None:
    class Isolated(Slow):
        async def response(self, request: object) -> object:
            raise IsolatedError("Score", "no answer within 1 s")

    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.see_pod("p")
        await asyncio.sleep(0.1)
        (told,) = harness.told("p")
        assert "isolated" in told
        assert "no answer within 1 s" in told
        assert harness.domain.heard.failures == [("isolated", "Score", "no answer within 1 s")]
        assert harness.desk.ends == [("attempt", "error")]

    play(scene, plugins=[Isolated("isolated", 1.0)])


@pytest.mark.parametrize("what", ["nothing", "the lease", "the node"])
def test_delayed_bind_is_void_if_its_decision_no_longer_holds(what: str) -> None:
    asked: list[BindRequest] = []

    class Waits:
        """A Bind plugin that is held up by a limit of writes."""

        name = "Waits"

        async def bind(self, binder: Binder, request: BindRequest, *, timeout_s: float) -> BindReply | None:
            asked.append(request)
            await asyncio.sleep(3.0)
            return CREATED

    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.see_pod("p")
        await asyncio.sleep(1.0)
        (request,) = asked
        assert (request.namespace, request.name, request.uid, request.node) == ("default", "p", "uid-p", "a")
        assert not request.is_void()
        match what:
            case "the lease":
                harness.desk.is_leading = False
            case "the node":
                harness.lose_node("a")
        assert request.is_void() is (what != "nothing")
        await asyncio.sleep(3.0)

    play(scene, plugins=[Waits()])


class Answered(Slow):
    """Asks outside, and lets all rows pass by the answer."""

    def __init__(self) -> None:
        super().__init__("answered", 0.5)
        self.reasons = ReasonTable(self.name)

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        return np.zeros(len(rows), np.uint8)


@pytest.mark.parametrize("what", ["heartbeat", "label"])
def test_node_changed_after_a_remote_call_is_decided_again_except_heartbeats(
    what: str,
) -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        recorder.permit_status = Status(Code.WAIT)
        harness.see_pod("p")
        await asyncio.sleep(1.0)
        harness.see_pod("other", cpu="100m", nodeName="a", scheduler="theirs")  # all is looked at again
        harness.see_node("a", labels={"changed": "yes"} if what == "label" else {})
        for pod in harness.worker.waiting.waiting():
            harness.worker.waiting.allow(pod.uid, "Recorder")
        await asyncio.sleep(0.3)
        assert harness.desk.posts == ([("p", "a")] if what == "heartbeat" else [])
        if what == "label":
            assert "unreserve p" in recorder.calls

    play(scene, plugins=[Answered()])
