"""A document in a ConfigMap: of two that write it, the one that read last wins, and the other is told."""

from __future__ import annotations

from typing import Any

import pytest

from multisched.client.limits import WriteLimiter
from multisched.client.stored_document import BYTES_MAX, ConfigMapDocument
from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.framework.moving import DocumentAnswer, DocumentReply
from multisched.framework.ports import UnreachableError
from multisched.model.wire import AnswerLostError, Response
from tests.unit.client.scripted import Answer, Asked, LoopClock, ScriptedTransport, a_refusal, answer

pytestmark = pytest.mark.looptime


class Losing(DirectTransport):
    """Loses the answers that it is told to lose: the write has happened."""

    lose = 0

    async def request(self, method: str, path: str, **rest: Any) -> Response:
        found = await super().request(method, path, **rest)
        if self.lose and method != "GET":
            self.lose -= 1
            raise AnswerLostError("reset")
        return found


def keeper(transport: DirectTransport | ScriptedTransport) -> ConfigMapDocument:
    return ConfigMapDocument(transport, WriteLimiter(LoopClock()), "kube-system", "multisched-repair-forecast")


async def test_document_is_read_by_the_next_process() -> None:
    server = ApiServer(LoopClock(), seed=0, rbac=False)
    ours = keeper(DirectTransport(server))
    assert await ours.read() is None
    for text in (b'{"a": 1}', b'{"a": 2}'):
        assert (await ours.write(text)).answer is DocumentAnswer.WRITTEN
        assert await keeper(DirectTransport(server)).read() == text


async def test_former_leader_does_not_overwrite_the_document() -> None:
    server = ApiServer(LoopClock(), seed=0, rbac=False)
    old, new = keeper(DirectTransport(server)), keeper(DirectTransport(server))
    assert await old.read() is None
    assert (await new.write(b"new")).answer is DocumentAnswer.WRITTEN
    for _ in range(2):
        assert (await old.write(b"old")).answer is DocumentAnswer.CONFLICT
    assert await new.read() == b"new"
    assert (await new.write(b"newer")).answer is DocumentAnswer.WRITTEN


@pytest.mark.parametrize("lost", [1, 3])
async def test_document_write_with_a_lost_response_is_recognised_as_own(lost: int) -> None:
    transport = Losing(ApiServer(LoopClock(), seed=0, rbac=False))
    ours = keeper(transport)
    transport.lose = lost
    assert (await ours.write(b"first")).answer is DocumentAnswer.UNKNOWN
    transport.lose = 0
    assert (await ours.write(b"first")).answer is DocumentAnswer.WRITTEN
    assert (await ours.write(b"second")).answer is DocumentAnswer.WRITTEN


async def test_deleted_document_is_recreated() -> None:
    transport = DirectTransport(ApiServer(LoopClock(), seed=0, rbac=False))
    ours = keeper(transport)
    await ours.write(b"first")
    await transport.request("DELETE", "/api/v1/namespaces/kube-system/configmaps/multisched-repair-forecast")
    assert (await ours.write(b"second")).answer is DocumentAnswer.UNKNOWN
    assert (await ours.write(b"second")).answer is DocumentAnswer.WRITTEN


async def test_document_refusals_are_values_and_unanswered_reads_raise() -> None:
    ours = keeper(ScriptedTransport(respond=lambda _: a_refusal(403, "Forbidden")))
    assert (await ours.write(b"x")).answer is DocumentAnswer.REFUSED
    assert (await ours.write(b"x" * (BYTES_MAX + 1))).answer is DocumentAnswer.REFUSED
    with pytest.raises(UnreachableError):
        await ours.read()
    for status in (408, 429, 500, 503):
        ours = keeper(ScriptedTransport(respond=lambda _, status=status: a_refusal(status, "NotNow")))  # type: ignore[misc]
        assert (await ours.write(b"x")).answer is DocumentAnswer.UNKNOWN


PATH = "/api/v1/namespaces/kube-system/configmaps"
NAME = "multisched-repair-forecast"


def a_config_map(version: str, text: str) -> Response:
    return answer(200, {"metadata": {"resourceVersion": version}, "data": {"run.json": text}})


async def test_document_is_created_then_replaced_by_version_within_a_deadline() -> None:
    answers: list[Answer] = [answer(201, {"metadata": {"resourceVersion": "7"}}), a_config_map("8", "second")]
    transport = ScriptedTransport(respond=lambda _: answers.pop(0))
    ours = keeper(transport)
    for text in (b"first", b"second"):
        assert await ours.write(text) == DocumentReply(DocumentAnswer.WRITTEN)
    created, replaced = transport.asked
    metadata = {"name": NAME, "labels": {"app.kubernetes.io/managed-by": "multisched"}}
    document = {"apiVersion": "v1", "kind": "ConfigMap"}
    assert (created.method, created.path, replaced.method, replaced.path) == ("POST", PATH, "PUT", f"{PATH}/{NAME}")
    assert created.body == {**document, "metadata": metadata, "data": {"run.json": "first"}}
    assert replaced.body == {
        **document,
        "metadata": {**metadata, "resourceVersion": "7"},
        "data": {"run.json": "second"},
    }
    for asked in transport.asked:
        assert (asked.query, asked.timeout_s) == ({"timeout": "5000ms"}, 6.0)


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (a_refusal(403, "Forbidden", "no"), DocumentReply(DocumentAnswer.REFUSED, "no")),
        (a_refusal(400, "BadRequest", "odd"), DocumentReply(DocumentAnswer.REFUSED, "odd")),
        (a_refusal(499, "Odd", "odd"), DocumentReply(DocumentAnswer.REFUSED, "odd")),
        (a_refusal(404, "NotFound", "no namespace"), DocumentReply(DocumentAnswer.REFUSED, "no namespace")),
        (a_refusal(408, "Timeout", "slow"), DocumentReply(DocumentAnswer.UNKNOWN, "slow")),
        (a_refusal(429, "TooManyRequests", "busy"), DocumentReply(DocumentAnswer.UNKNOWN, "busy")),
        (a_refusal(500, "InternalError", "etcd"), DocumentReply(DocumentAnswer.UNKNOWN, "etcd")),
        (AnswerLostError("reset"), DocumentReply(DocumentAnswer.UNKNOWN, "reset")),
    ],
)
async def test_each_write_response_has_one_meaning_and_message(reply: Answer, told: DocumentReply) -> None:
    assert await keeper(ScriptedTransport(respond=lambda _: reply)).write(b"x") == told


async def test_success_without_a_readable_config_map_is_unknown_result() -> None:
    for status in (200, 201):
        ours = keeper(ScriptedTransport(respond=lambda _, status=status: Response(status, b"<html>")))  # type: ignore[misc]
        assert (await ours.write(b"x")).answer is DocumentAnswer.UNKNOWN


async def test_writer_of_a_deleted_document_gets_an_error_and_recreates_it() -> None:
    answers = [a_config_map("7", "first"), a_refusal(404, "NotFound", "deleted"), a_config_map("9", "third")]
    transport = ScriptedTransport(respond=lambda _: answers.pop(0))
    kept = keeper(transport)
    told = [await kept.write(document) for document in (b"first", b"second", b"third")]
    assert told == [
        DocumentReply(DocumentAnswer.WRITTEN),
        DocumentReply(DocumentAnswer.UNKNOWN, "deleted"),
        DocumentReply(DocumentAnswer.WRITTEN),
    ]
    assert [asked.method for asked in transport.asked] == ["POST", "PUT", "POST"]


async def test_outdated_writer_gets_conflicts_until_it_reads() -> None:
    def respond(asked: Asked) -> Answer:
        return a_config_map("9", "theirs") if asked.method == "GET" else a_refusal(409, "Conflict", "modified")

    transport = ScriptedTransport(respond=respond)
    words = f"ConfigMap {NAME} was written by another"
    assert await keeper(transport).write(b"ours") == DocumentReply(DocumentAnswer.CONFLICT, words)
    assert [(asked.method, asked.timeout_s) for asked in transport.asked] == [("POST", 6.0), ("GET", 5.0)]


async def test_document_size_is_limited() -> None:
    ours = keeper(ScriptedTransport(respond=lambda _: answer(201, {"metadata": {}})))
    assert await ours.write(b"x" * 900_000) == DocumentReply(DocumentAnswer.WRITTEN)
    assert await ours.write(b"x" * 900_001) == DocumentReply(DocumentAnswer.REFUSED, "900001 bytes, more than 900000")


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (a_refusal(403, "Forbidden", "no"), "no"),
        (Response(502, b"<html>"), "HTTP 502"),
        (AnswerLostError("reset"), "reset"),
        (Response(200, b"<html>"), "the response is not a ConfigMap: JSON is malformed: invalid character (byte 0)"),
    ],
)
async def test_unreadable_document_reports_why(reply: Answer, words: str) -> None:
    with pytest.raises(UnreachableError) as told:
        await keeper(ScriptedTransport(respond=lambda _: reply)).read()
    assert str(told.value) == f"ConfigMap {NAME}: {words}"


@pytest.mark.parametrize(
    "document", [{"metadata": {}}, {"metadata": {}, "data": None}, {"metadata": {}, "data": {"a": "b"}}]
)
async def test_foreign_document_counts_as_none(document: object) -> None:
    assert await keeper(ScriptedTransport(respond=lambda _: answer(200, document))).read() == b""
