"""The checkpoint hook over HTTP: what it is sent, and servers that fail, hang, redirect, or never stop answering."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest
from aiohttp import web

from domains.gpu.tide.hook import ANSWER_BYTES_MAX, Hook, HookOutcome, HookReply
from domains.gpu.tide.notices import Notice
from domains.gpu.tide.settings import HookSettings
from multisched.client.extender_client import HttpExtenderClient
from multisched.cluster.access.certificates import Authority, server_context
from multisched.framework.ports import ExtenderError
from multisched.testing.builders import make_pod
from tests.unit.client.servers import raw_serving, serving

NOTICE = Notice(gang="ml/train", issued_s=1_800_000_000.0, deadline_s=1_800_000_060.0, for_demand="inference")
POD = make_pod("train-0", uid="u", node="a", namespace="ml")
PATIENCE_S = 60.0
"""No machine takes that long to answer."""


async def called(url: str, *, timeout_s: float = PATIENCE_S, ca_file: str = "") -> HookReply:
    hook = Hook(HookSettings(url, timeout_s, ca_file), HttpExtenderClient)
    try:
        return await hook.call(NOTICE, (POD,))
    finally:
        await hook.close()


@pytest.mark.parametrize("path", ["/tide/notice", "/", "", "/a/?token=b/c"])
async def test_hook_is_sent_gang_pods_and_deadline_at_its_url(path: str) -> None:
    seen = []

    async def handler(request: web.BaseRequest) -> web.Response:
        seen.append((request.method, request.path_qs, await request.read()))
        return web.Response()

    async with serving(handler) as url:
        assert await called(url + path) == HookReply(HookOutcome.ANSWERED)
    ((method, asked, body),) = seen
    assert (method, asked) == ("POST", path or "/")
    assert orjson.loads(body) == {
        "notice": NOTICE.id,
        "gang": "ml/train",
        "deadline": "2027-01-15T08:01:00.000000Z",
        "for": "inference",
        "pods": [{"namespace": "ml", "name": "train-0", "uid": "u", "node": "a"}],
    }


async def test_redirect_is_not_followed() -> None:
    async def elsewhere(request: web.BaseRequest) -> web.Response:
        raise AssertionError("the request names pods, and must not get here")

    async with serving(elsewhere) as other:

        async def handler(request: web.BaseRequest) -> web.Response:
            raise web.HTTPTemporaryRedirect(other)

        async with serving(handler) as url:
            reply = await called(f"{url}/tide")
    assert reply.outcome is HookOutcome.FAILED
    assert "code 307" in reply.message


async def test_failure_is_reported_with_its_code() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(status=500, text="no")

    async with serving(handler) as url:
        reply = await called(f"{url}/tide")
    assert reply.outcome is HookOutcome.FAILED
    assert "code 500" in reply.message


async def test_hanging_server_ends_at_the_timeout() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(handler) as url:
        reply = await called(f"{url}/tide", timeout_s=0.05)
    assert (reply.outcome, "no answer within" in reply.message) == (HookOutcome.FAILED, True)


@pytest.mark.parametrize("head", ["Content-Length: 10000000000\r\n", "Transfer-Encoding: chunked\r\n"])
async def test_answer_of_any_size_is_not_read_beyond_its_limit(head: str) -> None:
    sent = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n".encode())
        piece = b"x" * 4096
        while True:
            writer.write(b"1000\r\n" + piece + b"\r\n" if "chunked" in head else piece)
            await writer.drain()
            sent += len(piece)

    async with raw_serving(handler) as url:
        reply = await called(f"{url}/tide")
    assert reply.outcome is HookOutcome.FAILED
    assert "exceeds" in reply.message
    assert sent < 64 * 1024 * 1024 + ANSWER_BYTES_MAX, "what sockets buffer, and not 10 GB"


async def test_server_that_is_down_certainly_got_nothing() -> None:
    async with raw_serving(lambda reader, writer: asyncio.sleep(0)) as url:
        pass
    assert (await called(f"{url}/tide")).outcome is HookOutcome.NOT_SENT


async def test_certificate_is_verified_by_the_ca_file(tmp_path: Path) -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response()

    authority, other = Authority(datetime.now(UTC)), Authority(datetime.now(UTC))
    tmp_path.joinpath("ca").write_bytes(authority.certificate)
    tmp_path.joinpath("other").write_bytes(other.certificate)
    async with serving(handler, server_context(authority, ["127.0.0.1"])) as url:
        assert (await called(f"{url}/t", ca_file=str(tmp_path / "ca"))).outcome is HookOutcome.ANSWERED
        for ca_file in ("", str(tmp_path / "other")):
            assert (await called(f"{url}/t", ca_file=ca_file)).outcome is HookOutcome.NOT_SENT


def test_missing_ca_file_is_an_error() -> None:
    with pytest.raises(ExtenderError):
        Hook(HookSettings("https://h/t", 1.0, "/nowhere"), HttpExtenderClient)
