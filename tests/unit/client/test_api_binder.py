"""What each answer to a bind is known to mean."""

from __future__ import annotations

import asyncio

import pytest

from multisched.client.binder import ApiBinder
from multisched.client.limits import WriteLimiter
from multisched.framework.ports import BindAnswer, BindReply, BindRequest, PodTruth, UnreachableError
from multisched.model.wire import AnswerLostError, ConnectFailedError, Response
from tests.unit.client.scripted import Answer, LoopClock, ScriptedTransport, a_refusal, a_status, answer

pytestmark = pytest.mark.looptime

REQUEST = BindRequest("team", "web-1", "uid-1", "node-7", {"multisched.io/gpu-devices": "0,1"})


def make_binder(reply: Answer) -> tuple[ApiBinder, ScriptedTransport]:
    transport = ScriptedTransport(respond=lambda _: reply)
    return ApiBinder(transport, WriteLimiter(LoopClock())), transport


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (answer(201, a_status(201)), BindAnswer.CREATED),
        (answer(200, a_status(200)), BindAnswer.CREATED),
        (a_refusal(400, "BadRequest"), BindAnswer.REJECTED),
        (a_refusal(401, "Unauthorized"), BindAnswer.DENIED),
        (a_refusal(403, "Forbidden"), BindAnswer.DENIED),
        (a_refusal(404, "NotFound"), BindAnswer.NOT_FOUND),
        (a_refusal(408, "Timeout"), BindAnswer.UNKNOWN),
        (a_refusal(409, "Conflict"), BindAnswer.CONFLICT),
        (a_refusal(422, "Invalid"), BindAnswer.REJECTED),
        (a_refusal(429, "TooManyRequests"), BindAnswer.THROTTLED),
        (a_refusal(500, "", "target.name: Required value"), BindAnswer.UNKNOWN),
        (a_refusal(503, "ServiceUnavailable"), BindAnswer.UNKNOWN),
        (a_refusal(504, "Timeout"), BindAnswer.UNKNOWN),
        (Response(502, b"<html>bad gateway</html>"), BindAnswer.UNKNOWN),
        (Response(302, b"", {"location": "https://elsewhere/"}), BindAnswer.REJECTED),
        (ConnectFailedError("refused"), BindAnswer.NOT_SENT),
        (AnswerLostError("reset"), BindAnswer.UNKNOWN),
    ],
)
async def test_every_answer_has_one_meaning(reply: Answer, expected: BindAnswer) -> None:
    binder, transport = make_binder(reply)
    assert (await binder.post(REQUEST, timeout_s=5)).answer is expected
    assert len(transport.asked) == 1


async def test_bind_request_has_uid_node_and_server_timeout() -> None:
    binder, transport = make_binder(answer(201, a_status(201)))
    await binder.post(REQUEST, timeout_s=4.5)
    (asked,) = transport.asked
    assert (asked.method, asked.path) == ("POST", "/api/v1/namespaces/team/pods/web-1/binding")
    assert asked.query == {"timeout": "4500ms"}
    assert asked.timeout_s == 5.5
    assert asked.body == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": "web-1",
            "namespace": "team",
            "uid": "uid-1",
            "annotations": {"multisched.io/gpu-devices": "0,1"},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-7"},
    }


async def test_bind_delayed_by_the_limiter_is_checked_again_before_sending() -> None:
    """The node may have been cordoned meanwhile, or the lease lost."""
    transport = ScriptedTransport(respond=lambda _: answer(201, a_status(201)))
    binder = ApiBinder(transport, WriteLimiter(LoopClock(), writes_per_s=1))
    request = BindRequest("team", "web-2", "uid-2", "node-7", is_void=lambda: True)

    replies = await asyncio.gather(*(binder.post(one, timeout_s=5) for one in (REQUEST, request)))

    assert [reply.answer for reply in replies] == [BindAnswer.CREATED, BindAnswer.NOT_SENT]
    assert replies[1].message == "the write limit delayed it until it was no longer valid"
    assert len(transport.asked) == 1


async def test_limiter_wait_counts_towards_the_deadline() -> None:
    transport = ScriptedTransport(respond=lambda _: answer(201, a_status(201)))
    binder = ApiBinder(transport, WriteLimiter(LoopClock(), writes_per_s=1))
    replies = await asyncio.gather(*(binder.post(REQUEST, timeout_s=2.5) for _ in range(5)))
    assert [reply.answer for reply in replies] == [BindAnswer.CREATED] * 3 + [BindAnswer.NOT_SENT] * 2
    assert [asked.query["timeout"] for asked in transport.asked] == ["2500ms", "1500ms", "500ms"]


@pytest.mark.parametrize(
    ("header", "expected_s"), [("3", 3.0), ("0", 0.0), ("99999999", 60.0), ("soon", 1.0), ("-5", 1.0), (None, 1.0)]
)
async def test_retry_after_is_returned_with_limit_and_default(header: str | None, expected_s: float) -> None:
    headers = {"retry-after": header} if header is not None else {}
    binder, _ = make_binder(Response(429, b"", headers))
    assert (await binder.post(REQUEST, timeout_s=5)).retry_after_s == expected_s


async def test_server_message_is_returned_and_truncated() -> None:
    binder, _ = make_binder(a_refusal(409, "Conflict", "x" * 1000))
    assert (await binder.post(REQUEST, timeout_s=5)).message == "x" * 256
    binder, _ = make_binder(Response(502, b'{"kind":"Secret","message":"leak"}'))
    assert (await binder.post(REQUEST, timeout_s=5)).message == "HTTP 502"


async def test_cancelled_binds_leave_the_in_flight_count() -> None:
    transport = ScriptedTransport(respond=lambda _: answer(201, {}), latency_s=10)
    limiter = WriteLimiter(LoopClock())
    binder = ApiBinder(transport, limiter)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(binder.post(REQUEST, timeout_s=5))
        await asyncio.sleep(1)
        assert limiter.statistics().binds_in_flight == 1
        task.cancel()
    assert limiter.statistics().binds_in_flight == 0


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ({"metadata": {"uid": "u"}, "spec": {}}, PodTruth("u", "", is_deleting=False, is_gated=False)),
        ({"metadata": {"uid": "u"}, "spec": {"nodeName": "n"}}, PodTruth("u", "n", is_deleting=False, is_gated=False)),
        (
            {"metadata": {"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"schedulingGates": []}},
            PodTruth("u", "", is_deleting=True, is_gated=False),
        ),
        (
            {"metadata": {"uid": "u"}, "spec": {"schedulingGates": [{"name": "g"}]}},
            PodTruth("u", "", is_deleting=False, is_gated=True),
        ),
    ],
)
async def test_read_returns_the_node_of_the_pod(pod: object, expected: PodTruth) -> None:
    binder, transport = make_binder(answer(200, pod))
    assert await binder.read("team", "web-1", timeout_s=3) == expected
    assert transport.asked[0].query == {}


async def test_read_of_a_deleted_pod_returns_none() -> None:
    binder, _ = make_binder(a_refusal(404, "NotFound"))
    assert await binder.read("team", "web-1", timeout_s=3) is None


@pytest.mark.parametrize(
    "reply",
    [a_refusal(500), a_refusal(403), Response(200, b'{"metadata":'), ConnectFailedError("x"), AnswerLostError("x")],
)
async def test_read_without_a_definite_response_is_unreachable(reply: Answer) -> None:
    binder, _ = make_binder(reply)
    with pytest.raises(UnreachableError, match="team/web-1"):
        await binder.read("team", "web-1", timeout_s=3)


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (a_refusal(503, "Unavailable", "later", retry_after="2"), BindReply(BindAnswer.UNKNOWN, 2.0, "later")),
        (a_refusal(422, "Invalid", "no such node"), BindReply(BindAnswer.REJECTED, message="no such node")),
        (ConnectFailedError("refused"), BindReply(BindAnswer.NOT_SENT, message="refused")),
        (AnswerLostError("reset"), BindReply(BindAnswer.UNKNOWN, message="reset")),
    ],
)
async def test_response_is_returned_with_message_and_retry_delay(reply: Answer, told: BindReply) -> None:
    binder, _ = make_binder(reply)
    assert await binder.post(REQUEST, timeout_s=5) == told


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (a_refusal(403, "Forbidden", "no"), "could not be read"),
        (Response(200, b"<html>"), "could not be read: the response is not a pod"),
        (AnswerLostError("reset"), "could not be read: reset"),
    ],
)
async def test_unreadable_pod_is_named_and_its_read_has_a_deadline(reply: Answer, words: str) -> None:
    binder, transport = make_binder(reply)
    with pytest.raises(UnreachableError) as told:
        await binder.read("team", "web/1", timeout_s=3)
    assert str(told.value) == f"pod team/web/1 {words}"
    (asked,) = transport.asked
    assert (asked.method, asked.path, asked.timeout_s) == ("GET", "/api/v1/namespaces/team/pods/web%2F1", 3)
