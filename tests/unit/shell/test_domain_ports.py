"""What a domain hands to its ports, field by field: bindings, reads, events, conditions and times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import numpy as np
import pytest

from multisched.client.binder import READ_TIMEOUT_S
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, PermitResult, PreFilterResult
from multisched.framework.ports import (
    BindAnswer,
    BindReply,
    Condition,
    Event,
    ObjectRef,
    PodTruth,
    UnreachableError,
)
from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.objects import Pod
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import HELD_S, Holding, WorkerHarness

POD = ObjectRef("Pod", "default", "p", "uid-p")
UNKNOWN = BindReply(BindAnswer.UNKNOWN)
TAKEN = BindReply(BindAnswer.CONFLICT, message="already assigned")
DENIED = BindReply(BindAnswer.DENIED, message="a webhook says no")


def play(scene: Callable[[WorkerHarness], Coroutine[Any, Any, None]], *plugins: Any) -> None:
    """Runs a scene with a leading worker over one node of two CPUs, in virtual time."""
    loop = SimLoop(seed=3)

    async def main() -> None:
        harness = WorkerHarness(loop, "a", plugins=plugins)
        harness.desk.sleep = anyio.sleep
        async with harness.at_work():
            await scene(harness)

    simulate(main(), loop)


def test_bind_has_the_pod_names_and_is_counted() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.desk.replies = [0.25]
        harness.see_pod("p")
        await asyncio.sleep(0.5)
        ((request, timeout_s),) = harness.desk.requests
        assert (request.namespace, request.name, request.uid, request.node) == ("default", "p", "uid-p", "a")
        assert (request.annotations, request.is_void(), timeout_s) == ({}, False, 5.0)
        assert harness.desk.events == [
            Event(POD, "Normal", "Scheduled", "Binding", "Successfully assigned default/p to a", "ours")
        ]
        ((pod, seconds, attempts),) = harness.desk.bound
        assert (pod, attempts) == ("p", 1)
        assert seconds == pytest.approx(0.25)
        assert (harness.desk.dropped, harness.desk.conditions) == (["uid-p"], [])
        assert harness.worker.counters.bound == 1

    play(scene)


def test_infeasible_pod_gets_condition_and_event_under_its_lease() -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("p", cpu="3")
        await asyncio.sleep(0.5)
        words = "0/1 nodes are available: 1 Insufficient cpu."
        assert harness.desk.conditions == [("p", Condition("False", "Unschedulable", words))]
        assert harness.desk.told_of == [(POD, harness.desk)]
        assert harness.desk.events == [Event(POD, "Warning", "FailedScheduling", "Scheduling", words, "ours")]
        assert harness.worker.counters.refused == 1
        harness.see_node("a", cpu="4")
        await asyncio.sleep(2.0)
        ((pod, seconds, attempts),) = harness.desk.bound
        assert (pod, attempts) == ("p", 2)
        assert seconds == pytest.approx(0.5, abs=0.1)
        assert harness.desk.attempts == [("p", "unschedulable"), ("p", "scheduled")]

    play(scene)


class OverQuota:
    """Refuses pods by name at one point each, with a reason of its own for the condition."""

    name = "OverQuota"
    depends_on = Dependency.ATTEMPT

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        return PreFilterResult(self._say(pod, "pre-filter"))

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        return np.zeros(len(rows), np.uint8)

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        return self._say(pod, "reserve")

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None: ...

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        return PermitResult(self._say(pod, "permit"))

    def _say(self, pod: Pod, point: str) -> Status:
        code = Code.ERROR if pod.name == "error" and point == "reserve" else Code.UNSCHEDULABLE
        is_meant = pod.name == point or code is Code.ERROR
        return Status(code, reasons=("too much",), condition_reason="QuotaExceeded") if is_meant else SUCCESS


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pre-filter", "0/1 nodes are available: too much."),
        ("reserve", "0/1 nodes are available: 1 too much."),
        ("permit", "0/1 nodes are available: 1 too much."),
        ("error", 'running Reserve plugin "OverQuota": too much'),
    ],
)
def test_plugin_may_set_the_condition_reason(name: str, words: str) -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod(name)
        harness.see_pod("p", cpu="3")
        await asyncio.sleep(0.5)
        plain = Condition("False", "Unschedulable", "0/1 nodes are available: 1 Insufficient cpu.")
        assert dict(harness.desk.conditions) == {name: Condition("False", "QuotaExceeded", words), "p": plain}
        assert {event.reason for event in harness.desk.events} == {"FailedScheduling"}

    play(scene, OverQuota())


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (DENIED, 'running Bind plugin "ByName": a webhook says no'),
        (BindReply(BindAnswer.REJECTED), "the API server refused the binding"),
    ],
    ids=["with a message", "without one"],
)
def test_refused_bind_is_an_error_with_the_server_message(refusal: BindReply, words: str) -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.desk.replies = [refusal]
        harness.see_pod("p")
        await asyncio.sleep(0.5)
        ((name, condition),) = harness.desk.conditions
        assert (name, condition.status, condition.reason) == ("p", "False", "SchedulerError")
        assert condition.message == harness.desk.events[0].note == words
        assert [event.reason for event in harness.desk.events] == ["FailedScheduling"]

    play(scene)


@pytest.mark.parametrize(
    ("replies", "truths", "reads", "bound"),
    [
        ([TAKEN], [PodTruth("uid-p", "a", is_deleting=False, is_gated=False)], 1, ["p"]),
        (
            [TAKEN],
            [UnreachableError("reset")] * 2 + [PodTruth("uid-p", "a", is_deleting=False, is_gated=False)],
            3,
            ["p"],
        ),
        ([TAKEN], [PodTruth("uid-p", "b", is_deleting=False, is_gated=False)], 1, []),
        ([TAKEN], [None], 1, []),
        ([UNKNOWN], [], 0, ["p"]),
    ],
    ids=["was bound by us", "cannot be read at first", "was bound elsewhere", "is gone", "no answer"],
)
def test_pod_with_an_unknown_bind_is_read_by_name_with_a_timeout(
    replies: list[BindReply | float], truths: list[PodTruth | UnreachableError | None], reads: int, bound: list[str]
) -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.desk.replies, harness.desk.truths = list(replies), list(truths)
        harness.see_pod("p")
        await asyncio.sleep(4.0)
        assert harness.desk.reads == [("default", "p", READ_TIMEOUT_S)] * reads
        assert [name for name, _, _ in harness.desk.bound] == bound
        assert harness.worker.counters.unknown == 0
        assert harness.desk.truths == []

    play(scene)


@pytest.mark.parametrize(
    ("why", "told", "bound"),
    [("", [], ["prebind"]), ("the past went back", ["the past went back"], [])],
    ids=["nothing has changed", "what was known is no more"],
)
def test_decision_before_a_pause_is_kept_unless_the_check_refuses_it(
    why: str, told: list[str], bound: list[str]
) -> None:
    async def scene(harness: WorkerHarness) -> None:
        harness.see_pod("prebind")
        await asyncio.sleep(1.0)
        harness.worker.resume_scheduling(why) if why else harness.worker.resume_scheduling()
        await asyncio.sleep(0.5)
        assert [words.partition('"Holding": ')[2] or words for words in harness.told("prebind")] == told
        await asyncio.sleep(HELD_S - 1.0)
        assert [name for name, _, _ in harness.desk.bound] == bound

    play(scene, Holding())
