"""Connections of the HTTP server: how many there are, and how long each may take for what it does next."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from msgspec.structs import replace

from multisched.observe.certificates import self_signed
from multisched.observe.connections import ConnectionLimits, Connections
from multisched.observe.server import ServerSettings
from tests.unit.observe.observe_kit import EPOCH, served

HANG_S = 240.0
"""Bounds a test that waits for what never comes."""
PATIENT = ConnectionLimits(accepts_per_s=100_000.0, request_s=600.0, answer_s=600.0, send_s=600.0, idle_s=600.0)
AT_ONCE_S = 0.01
GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"

Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def listening(
    limits: ConnectionLimits, *, is_secure: bool = False, pods: int = 1
) -> AsyncIterator[tuple[str, int]]:
    certificate = self_signed("localhost", EPOCH) if is_secure else None
    async with (
        asyncio.timeout(HANG_S),
        served(ServerSettings(port=0, certificate=certificate, limits=limits), pods=pods) as url,
    ):
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        yield parts.hostname, parts.port


@asynccontextmanager
async def connected(address: tuple[str, int], *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Pipe]:
    reader, writer = await asyncio.open_connection(*address, ssl=tls)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def is_cut(pipe: Pipe) -> bool:
    """Waits until the other end has closed without an answer."""
    try:
        return await pipe[0].read() == b""
    except ConnectionError:
        return True


async def livez(pipe: Pipe) -> bytes:
    reader, writer = pipe
    writer.write(GET)
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(2)
    return head.split(b"\r\n")[0]


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


HALF_A_BODY = (
    b"POST /api/v1/explain/what-if HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
)


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /livez HT", b"GET /livez HTTP/1.1\r\nX-Slow: ", HALF_A_BODY],
    ids=["nothing", "half a line", "half a head", "half a body"],
)
async def test_incomplete_request_is_disconnected(sent: bytes) -> None:
    async with listening(replace(PATIENT, request_s=AT_ONCE_S)) as address, connected(address) as pipe:
        pipe[1].write(sent)
        assert await is_cut(pipe)


async def test_incomplete_handshake_is_disconnected() -> None:
    async with listening(replace(PATIENT, request_s=AT_ONCE_S), is_secure=True) as address, connected(address) as pipe:
        pipe[1].write(b"\x16\x03\x01")
        assert await is_cut(pipe)


async def test_slow_headers_do_not_extend_the_timeout() -> None:
    async with listening(replace(PATIENT, request_s=0.5)) as address, connected(address) as pipe:
        pipe[1].write(b"GET /livez HTTP/1.1\r\n")

        async def drip() -> None:
            while True:
                pipe[1].write(b"X: y\r\n")
                await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        try:
            assert b"200" not in await pipe[0].read()
        except ConnectionError:
            pass
        finally:
            dripping.cancel()


async def test_idle_connection_is_closed() -> None:
    async with listening(replace(PATIENT, send_s=AT_ONCE_S, idle_s=AT_ONCE_S)) as address, connected(address) as pipe:
        assert await livez(pipe) == b"HTTP/1.1 200 OK"
        assert await is_cut(pipe)


async def test_unread_large_response_is_disconnected() -> None:
    async with listening(replace(PATIENT, send_s=AT_ONCE_S), pods=5000) as address:
        request = b"GET /api/v1/queue?limit=5000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await asyncio.to_thread(sock.connect, address)
            sock.sendall(request * 20)  # more than the system keeps for both sides
            poll = select.poll()
            poll.register(sock, 0)  # ends when the connection does, whatever could be read
            assert await asyncio.to_thread(poll.poll, HANG_S * 1000)


async def test_number_of_connections_is_limited_and_the_newest_is_served() -> None:
    async with listening(replace(PATIENT, connections=4)) as address, AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(connected(address)) for _ in range(40)]
        pipe = await stack.enter_async_context(connected(address))
        assert await livez(pipe) == b"HTTP/1.1 200 OK"
        for one in silent[:37]:
            assert await is_cut(one)


async def test_idle_connections_are_closed_before_sending_ones() -> None:
    async with listening(replace(PATIENT, connections=2)) as address, AsyncExitStack() as stack:
        sending = await stack.enter_async_context(connected(address))
        sending[1].write(GET[:-2])
        idle = await stack.enter_async_context(connected(address))
        assert await livez(idle) == b"HTTP/1.1 200 OK"
        third = await stack.enter_async_context(connected(address))
        assert await livez(third) == b"HTTP/1.1 200 OK"
        assert await is_cut(idle)
        sending[1].write(GET[-2:])
        assert (await sending[0].readline()) == b"HTTP/1.1 200 OK\r\n"


async def test_slow_reader_does_not_block_others() -> None:
    """Needs no credentials: many small answers that nobody takes fill what the system keeps as a large one does."""
    connections, made = Connections(replace(PATIENT, connections=2)), asyncio.Semaphore(0)

    async def answer(request: web.Request) -> web.Response:
        connections.received(request)
        connections.answered(request)
        made.release()
        return web.Response(body=bytes(64 << 20) if request.path == "/large" else b"ok")

    application = web.Application()
    application.router.add_get("/{what}", answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0)
    await runner.setup()
    async with (
        asyncio.timeout(HANG_S),
        connections.listening(runner, "127.0.0.1", 0, None) as address,
        AsyncExitStack() as stack,
    ):
        for _ in range(2):
            _, writer = await stack.enter_async_context(connected(address))
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(GET.replace(b"livez", b"large"))
            await made.acquire()
            for _ in range(100):  # turns of the loop: until the answer is on its way
                await asyncio.sleep(0)
        pipe = await stack.enter_async_context(connected(address))
        assert await livez(pipe) == b"HTTP/1.1 200 OK"


async def test_unfinished_handshakes_do_not_block_others() -> None:
    async with listening(replace(PATIENT, connections=4), is_secure=True) as address, AsyncExitStack() as stack:
        for _ in range(40):
            await stack.enter_async_context(connected(address))
        pipe = await stack.enter_async_context(connected(address, tls=trusting()))
        assert await livez(pipe) == b"HTTP/1.1 200 OK"
