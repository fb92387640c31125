"""A document in a ConfigMap: of two that write it, the one that read last wins, and the other is told."""

from __future__ import annotations

import pytest

from multisched.client.kept_document import BYTES_MAX, ConfigMapKeeper
from multisched.client.limits import WriteLimiter
from multisched.cluster.direct import DirectTransport
from multisched.cluster.server import ApiServer
from multisched.framework.moving import KeepAnswer
from multisched.framework.ports import UnreachableError
from multisched.model.wire import JSON, AnswerLostError, Response
from tests.unit.client.scripted import LoopClock, ScriptedTransport, a_refusal

pytestmark = pytest.mark.looptime


class Losing(DirectTransport):
    """Loses the answers that it is told to lose: the write has happened."""

    lose = 0

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout_s: float = 30.0,
    ) -> Response:
        found = await super().request(
            method, path, body=body, content_type=content_type, accept=accept, timeout_s=timeout_s
        )
        if self.lose and method != "GET":
            self.lose -= 1
            raise AnswerLostError("reset")
        return found


def keeper(transport: DirectTransport | ScriptedTransport) -> ConfigMapKeeper:
    return ConfigMapKeeper(transport, WriteLimiter(LoopClock()), "kube-system", "multisched-repair-forecast")


async def test_what_is_written_is_read_by_the_next_process() -> None:
    server = ApiServer(LoopClock(), seed=0, rbac=False)
    ours = keeper(DirectTransport(server))
    assert await ours.read() is None
    for text in (b'{"a": 1}', b'{"a": 2}'):
        assert (await ours.write(text)).answer is KeepAnswer.KEPT
        assert await keeper(DirectTransport(server)).read() == text


async def test_a_leader_of_the_past_overwrites_nothing() -> None:
    server = ApiServer(LoopClock(), seed=0, rbac=False)
    old, new = keeper(DirectTransport(server)), keeper(DirectTransport(server))
    assert await old.read() is None
    assert (await new.write(b"new")).answer is KeepAnswer.KEPT
    for _ in range(2):
        assert (await old.write(b"old")).answer is KeepAnswer.OVERTAKEN
    assert await new.read() == b"new"
    assert (await new.write(b"newer")).answer is KeepAnswer.KEPT


@pytest.mark.parametrize("lost", [1, 3])
async def test_a_write_whose_answer_was_lost_is_our_own(lost: int) -> None:
    transport = Losing(ApiServer(LoopClock(), seed=0, rbac=False))
    ours = keeper(transport)
    transport.lose = lost
    assert (await ours.write(b"first")).answer is KeepAnswer.UNKNOWN
    transport.lose = 0
    assert (await ours.write(b"first")).answer is KeepAnswer.KEPT
    assert (await ours.write(b"second")).answer is KeepAnswer.KEPT


async def test_a_document_that_was_deleted_is_made_anew() -> None:
    transport = DirectTransport(ApiServer(LoopClock(), seed=0, rbac=False))
    ours = keeper(transport)
    await ours.write(b"first")
    await transport.request("DELETE", "/api/v1/namespaces/kube-system/configmaps/multisched-repair-forecast")
    assert (await ours.write(b"second")).answer is KeepAnswer.UNKNOWN
    assert (await ours.write(b"second")).answer is KeepAnswer.KEPT


async def test_refusals_are_values_and_reads_without_an_answer_raise() -> None:
    ours = keeper(ScriptedTransport(respond=lambda _: a_refusal(403, "Forbidden")))
    assert (await ours.write(b"x")).answer is KeepAnswer.REFUSED
    assert (await ours.write(b"x" * (BYTES_MAX + 1))).answer is KeepAnswer.REFUSED
    with pytest.raises(UnreachableError):
        await ours.read()
    for status in (408, 429, 500, 503):
        ours = keeper(ScriptedTransport(respond=lambda _, status=status: a_refusal(status, "NotNow")))  # type: ignore[misc]
        assert (await ours.write(b"x")).answer is KeepAnswer.UNKNOWN
