"""What preemption writes, and what each answer to it is known to mean."""

from __future__ import annotations

import asyncio

import pytest

from multisched.client.limits import WriteLimiter
from multisched.client.pod_writer import ApiPodWriter
from multisched.framework.ports import ObjectRef, WriteAnswer, WriteReply
from multisched.model.wire import AnswerLostError, ConnectFailedError, Response
from tests.unit.client.scripted import Answer, LoopClock, ScriptedTransport, a_refusal, a_status, answer

pytestmark = pytest.mark.looptime

VICTIM = ObjectRef("Pod", "team", "batch-1", "uid-1")


def make_writer(reply: Answer, writes_per_s: float = 5_000) -> tuple[ApiPodWriter, ScriptedTransport]:
    transport, clock = ScriptedTransport(respond=lambda _: reply), LoopClock()
    return ApiPodWriter(transport, WriteLimiter(clock, writes_per_s=writes_per_s), clock), transport


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (answer(200, a_status(200)), WriteReply(WriteAnswer.DONE)),
        (answer(202, a_status(202)), WriteReply(WriteAnswer.DONE)),
        (a_refusal(403, "Forbidden", "no"), WriteReply(WriteAnswer.REFUSED, message="no")),
        (a_refusal(404, "NotFound", "no such pod"), WriteReply(WriteAnswer.GONE, message="no such pod")),
        (a_refusal(408, "Timeout", "slow"), WriteReply(WriteAnswer.UNKNOWN, message="slow")),
        (a_refusal(409, "Conflict", "another"), WriteReply(WriteAnswer.GONE, message="another")),
        (a_refusal(422, "Invalid", "bad"), WriteReply(WriteAnswer.REFUSED, message="bad")),
        (a_refusal(429, "TooManyRequests", "wait", retry_after="3"), WriteReply(WriteAnswer.THROTTLED, 3.0, "wait")),
        (a_refusal(500, "InternalError", "etcd"), WriteReply(WriteAnswer.UNKNOWN, message="etcd")),
        (Response(502, b"<html>bad gateway</html>"), WriteReply(WriteAnswer.UNKNOWN, message="HTTP 502")),
        (ConnectFailedError("refused"), WriteReply(WriteAnswer.THROTTLED, message="refused")),
        (AnswerLostError("reset"), WriteReply(WriteAnswer.UNKNOWN, message="reset")),
    ],
)
async def test_every_answer_has_one_meaning(reply: Answer, expected: WriteReply) -> None:
    limiter = WriteLimiter(LoopClock(), writes_per_s=5_000)
    transport = ScriptedTransport(respond=lambda _: reply)
    writer = ApiPodWriter(transport, limiter, LoopClock())
    assert await writer.delete(VICTIM, timeout_s=60) == expected
    assert await writer.mark_victim(VICTIM, "why", timeout_s=60) == expected
    assert await writer.clear_nomination(VICTIM, timeout_s=60) == expected
    assert await writer.annotate(VICTIM, {"a": "b"}, timeout_s=60) == expected
    assert len(transport.asked) == 4
    is_busy = isinstance(reply, Response) and reply.status == 429
    assert limiter.statistics().throttled == 4 * is_busy


async def test_victim_is_deleted_by_uid_within_a_deadline() -> None:
    writer, transport = make_writer(answer(200, a_status(200)))
    await writer.delete(VICTIM, timeout_s=4.5)
    (asked,) = transport.asked
    assert (asked.method, asked.path) == ("DELETE", "/api/v1/namespaces/team/pods/batch-1")
    assert asked.query == {"timeout": "4500ms"}
    assert asked.body == {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "uid-1"}}


async def test_victim_condition_equals_that_of_kube_scheduler() -> None:
    writer, transport = make_writer(answer(200, a_status(200)))
    await writer.mark_victim(VICTIM, "job-scheduler: preempting to accommodate a higher priority pod", timeout_s=5)
    (asked,) = transport.asked
    assert (asked.method, asked.path) == ("PATCH", "/api/v1/namespaces/team/pods/batch-1/status")
    (condition,) = asked.body["status"]["conditions"]
    assert condition.pop("lastTransitionTime")
    assert condition == {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "job-scheduler: preempting to accommodate a higher priority pod",
    }
    assert asked.body["metadata"] == {"uid": "uid-1"}


async def test_nomination_is_cleared() -> None:
    writer, transport = make_writer(answer(200, a_status(200)))
    await writer.clear_nomination(VICTIM, timeout_s=5)
    (asked,) = transport.asked
    assert asked.body == {"metadata": {"uid": "uid-1"}, "status": {"nominatedNodeName": None}}


async def test_annotations_are_written_with_the_status() -> None:
    writer, transport = make_writer(answer(200, a_status(200)))
    await writer.annotate(VICTIM, {"set": "text", "removed": None}, timeout_s=5)
    (asked,) = transport.asked
    assert (asked.method, asked.path) == ("PATCH", "/api/v1/namespaces/team/pods/batch-1/status")
    assert asked.body == {"metadata": {"uid": "uid-1", "annotations": {"set": "text", "removed": None}}}


async def test_limiter_wait_counts_towards_the_deadline() -> None:
    writer, transport = make_writer(answer(200, a_status(200)), writes_per_s=1)
    replies = await asyncio.gather(*(writer.delete(VICTIM, timeout_s=2.5) for _ in range(5)))
    assert [reply.answer for reply in replies] == [WriteAnswer.DONE] * 3 + [WriteAnswer.THROTTLED] * 2
    assert len(transport.asked) == 3
