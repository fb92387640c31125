"""What an eviction asks for, and what each answer to it is known to mean."""

from __future__ import annotations

import asyncio

import pytest

from multisched.client.evictor import ApiEvictor
from multisched.client.limits import WriteLimiter
from multisched.framework.moving import EvictAnswer, EvictReply
from multisched.framework.ports import ObjectRef
from multisched.model.wire import AnswerLostError, ConnectFailedError, Response
from tests.unit.client.scripted import Answer, LoopClock, ScriptedTransport, a_refusal, a_status, answer

pytestmark = pytest.mark.looptime

POD = ObjectRef("Pod", "team", "web-1", "uid-1")
TWO = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."


def make_evictor(reply: Answer, writes_per_s: float = 5_000) -> tuple[ApiEvictor, ScriptedTransport]:
    transport = ScriptedTransport(respond=lambda _: reply)
    return ApiEvictor(transport, WriteLimiter(LoopClock(), writes_per_s=writes_per_s)), transport


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (answer(201, a_status(201)), EvictAnswer.EVICTED),
        (answer(200, a_status(200)), EvictAnswer.EVICTED),
        (Response(299, b""), EvictAnswer.EVICTED),
        (Response(300, b""), EvictAnswer.REFUSED),
        (a_refusal(403, "Forbidden"), EvictAnswer.REFUSED),
        (a_refusal(404, "NotFound"), EvictAnswer.GONE),
        (a_refusal(408, "Timeout"), EvictAnswer.UNKNOWN),
        (a_refusal(409, "Conflict"), EvictAnswer.UNKNOWN),
        (a_refusal(422, "Invalid"), EvictAnswer.REFUSED),
        (a_refusal(429, "TooManyRequests"), EvictAnswer.NOT_NOW),
        (a_refusal(500, "InternalError"), EvictAnswer.UNKNOWN),
        (answer(500, {"kind": "Status", "status": "Failure", "code": 500, "message": TWO}), EvictAnswer.REFUSED),
        (Response(502, b"<html>bad gateway</html>"), EvictAnswer.UNKNOWN),
        (ConnectFailedError("refused"), EvictAnswer.NOT_NOW),
        (AnswerLostError("reset"), EvictAnswer.UNKNOWN),
    ],
)
async def test_every_answer_has_one_meaning(reply: Answer, expected: EvictAnswer) -> None:
    evictor, transport = make_evictor(reply)
    assert (await evictor.evict(POD, timeout_s=5)).answer is expected
    assert len(transport.asked) == 1


async def test_pod_is_evicted_by_uid_within_a_deadline() -> None:
    evictor, transport = make_evictor(answer(201, a_status(201)))
    await evictor.evict(POD, timeout_s=4.5)
    (asked,) = transport.asked
    assert (asked.method, asked.path) == ("POST", "/api/v1/namespaces/team/pods/web-1/eviction")
    assert asked.query == {"timeout": "4500ms"}
    assert asked.body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "web-1", "namespace": "team"},
        "deleteOptions": {"preconditions": {"uid": "uid-1"}},
    }


async def test_limiter_wait_counts_towards_the_deadline() -> None:
    evictor, transport = make_evictor(answer(201, a_status(201)), writes_per_s=1)
    replies = await asyncio.gather(*(evictor.evict(POD, timeout_s=2.5) for _ in range(5)))
    assert [reply.answer for reply in replies] == [EvictAnswer.EVICTED] * 3 + [EvictAnswer.NOT_NOW] * 2
    assert len(transport.asked) == 3


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (answer(201, a_status(201)), EvictReply(EvictAnswer.EVICTED)),
        (a_refusal(429, "TooManyRequests", "wait", retry_after="7"), EvictReply(EvictAnswer.NOT_NOW, 7.0, "wait")),
        (a_refusal(403, "Forbidden", "no"), EvictReply(EvictAnswer.REFUSED, message="no")),
        (a_refusal(503, "Unavailable", "later", retry_after="2"), EvictReply(EvictAnswer.UNKNOWN, 2.0, "later")),
        (ConnectFailedError("refused"), EvictReply(EvictAnswer.NOT_NOW, message="refused")),
        (AnswerLostError("reset"), EvictReply(EvictAnswer.UNKNOWN, message="reset")),
    ],
)
async def test_response_is_returned_with_message_and_retry_delay(reply: Answer, told: EvictReply) -> None:
    evictor, transport = make_evictor(reply)
    assert await evictor.evict(POD, timeout_s=4.5) == told
    assert [asked.timeout_s for asked in transport.asked] == [5.5]
