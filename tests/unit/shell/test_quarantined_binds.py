"""Pods whose bind the API server refuses again and again: told why, left alone, and tried again when that may help."""

from __future__ import annotations

import asyncio

import pytest

from multisched.framework.ports import BindAnswer, BindReply
from multisched.framework.status import SUCCESS, Status
from multisched.queueing.transitions import QueueState
from tests.unit.shell.shell_kit import WorkerHarness
from tests.unit.shell.test_domain_worker import Recorder, play

WORDS = 'admission webhook "policy.example.com" denied the request: node a is not for team a'
REJECTED = BindReply(BindAnswer.REJECTED, message=WORDS)


def test_pod_with_a_bind_always_refused_by_a_webhook_is_quarantined() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.desk.replies = [REJECTED] * 20
        harness.see_pod("p")
        await asyncio.sleep(120.0)
        assert len(harness.desk.posts) == 5
        entry = harness.worker.queue.entry("uid-p")
        assert entry is not None
        assert entry.is_quarantined
        told = harness.desk.conditions[-1][1]
        assert (told.status, told.reason) == ("False", "SchedulerError")
        assert told.message.startswith("quarantined: the API server has refused this pod 5 times with the same message")
        assert told.message.endswith(WORDS)
        assert harness.desk.events[-1].note == told.message
        assert harness.node_of("p") is None

    play(scene)


def test_quarantined_pod_frees_its_room_and_returns_when_changed() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.desk.replies = [REJECTED] * 5
        harness.see_pod("p", cpu="2")
        await asyncio.sleep(60.0)
        assert harness.worker.queue.where("uid-p") is QueueState.UNSCHEDULABLE
        harness.see_pod("q", cpu="1")
        await asyncio.sleep(1.0)
        assert harness.node_of("q") == "a"
        harness.lose_pod("q")
        harness.see_pod("p", cpu="2", metadata={"labels": {"team": "b"}})
        await asyncio.sleep(20.0)
        assert harness.node_of("p") == "a"

    play(scene)


def test_leftover_flush_retries_a_quarantined_pod_every_five_minutes() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.desk.replies = [REJECTED] * 100
        harness.see_pod("p")
        await asyncio.sleep(60.0 + 3 * 300.0)
        assert len(harness.desk.posts) == 5 + 3

    play(scene)


def test_refused_volume_write_quarantines_its_pod() -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        recorder.pre_bind_status = Status.denied('persistentvolumes "v" is forbidden: quota of class fast is used up')
        harness.see_pod("p")
        await asyncio.sleep(120.0)
        assert recorder.calls.count("pre_bind p") == 5
        assert harness.told("p")[-1].endswith("quota of class fast is used up")
        recorder.pre_bind_status = SUCCESS
        await asyncio.sleep(300.0)
        assert harness.desk.posts == [("p", "a")]

    play(scene)


@pytest.mark.parametrize(
    "reply",
    [
        BindReply(BindAnswer.NOT_SENT, message="connection refused"),
        BindReply(BindAnswer.DENIED, message="Unauthorized"),
        BindReply(
            BindAnswer.DENIED,
            message='pods "p" is forbidden: User "multisched" cannot create resource "pods/binding" in API group ""',
        ),
    ],
)
def test_refusals_about_the_scheduler_are_retried_without_limit(reply: BindReply) -> None:
    async def scene(harness: WorkerHarness, recorder: Recorder) -> None:
        harness.desk.replies = [reply] * 1_000
        harness.see_pod("p")
        await asyncio.sleep(300.0)
        posts = len(harness.desk.posts)
        assert posts > 20
        harness.desk.replies = []
        await asyncio.sleep(15.0)
        assert harness.node_of("p") == "a"

    play(scene)
