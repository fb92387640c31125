"""A connection into a pod over a WebSocket: bytes both ways, the port that each channel begins with, and how it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
from aiohttp import WSMsgType, web

from multisched.client.port_forward import PortForward, PortForwardError
from tests.unit.client.servers import connected, serving

PROTOCOL: Final = "v4.channel.k8s.io"
PORT: Final = 10260
PREFIX: Final = PORT.to_bytes(2, "little")
LARGE: Final = bytes(range(256)) * 4_096
Pod = Callable[[web.WebSocketResponse], Awaitable[None]]


async def forwarded(
    folder: Path, pod: Pod, sent: bytes, *, is_hurried: bool = False
) -> tuple[bytes, PortForward, list[str]]:
    """What comes back from a pod that behaves so, and the paths that were asked for. `is_hurried`: the asker closes at once."""
    asked: list[str] = []

    async def api_server(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request.path_qs)
        channels = web.WebSocketResponse(protocols=(PROTOCOL,))
        await channels.prepare(request)
        await pod(channels)
        await channels.close()
        return channels

    near, far = socket.socketpair()
    async with serving(api_server) as url, connected(folder, url) as transport:
        forward = PortForward(transport, "ms", "pod-a", PORT)
        opened: list[bool] = []
        running = asyncio.create_task(forward.run(far, lambda: opened.append(True)))
        reader, writer = await asyncio.open_connection(sock=near)
        if not is_hurried:
            writer.write(sent)
            await writer.drain()
            got = await reader.read(-1)
        else:
            got = b""
        writer.close()
        await running
        assert opened == [True]
        return got, forward, asked


async def echo(channels: web.WebSocketResponse) -> None:
    await channels.send_bytes(b"\0" + PREFIX)
    await channels.send_bytes(b"\1" + PREFIX)
    got = b""
    async for message in channels:
        assert message.type is WSMsgType.BINARY
        assert message.data[:1] == b"\0"
        got += message.data[1:]
        if len(got) == len(LARGE):
            await channels.send_bytes(b"\0" + got)
            return


async def split(channels: web.WebSocketResponse) -> None:
    """Nobody says that the two bytes come in one message, or alone."""
    for part in (PREFIX[:1], PREFIX[1:] + b"he", b"", b"llo"):
        await channels.send_bytes(b"\0" + part)


async def broken(channels: web.WebSocketResponse) -> None:
    await channels.send_bytes(b"\0" + PREFIX)
    await channels.send_bytes(b"\1" + PREFIX + b"nobody listens")
    await channels.receive()


async def test_port_forward_carries_a_megabyte_both_ways(tmp_path: Path) -> None:
    got, forward, asked = await forwarded(tmp_path, echo, LARGE)
    assert (got == LARGE, forward.trouble) == (True, "")
    assert asked == [f"/api/v1/namespaces/ms/pods/pod-a/portforward?ports={PORT}"]


async def test_port_prefix_is_removed_in_any_chunks(tmp_path: Path) -> None:
    got, forward, _ = await forwarded(tmp_path, split, b"")
    assert (got, forward.trouble) == (b"hello", "")


async def test_complaint_of_the_pod_side_ends_the_connection_and_is_kept(tmp_path: Path) -> None:
    got, forward, _ = await forwarded(tmp_path, broken, b"GET /")
    assert (got, forward.trouble) == (b"", "nobody listens")


async def test_closing_either_side_ends_the_port_forward(tmp_path: Path) -> None:
    async def listen(channels: web.WebSocketResponse) -> None:
        await channels.send_bytes(b"\0" + PREFIX)
        assert (await channels.receive()).type is WSMsgType.CLOSE

    got, forward, _ = await forwarded(tmp_path, listen, b"", is_hurried=True)
    assert (got, forward.trouble) == (b"", "")


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (403, b'{"kind":"Status","code":403,"message":"pods \\"pod-a\\" is forbidden"}', 'pods "pod-a" is forbidden'),
        (502, b"<html>", "the API server returned 502"),
    ],
)
async def test_refused_port_forward_has_the_server_message(tmp_path: Path, status: int, body: bytes, told: str) -> None:
    async def api_server(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, body=body)

    near, far = socket.socketpair()
    with near:
        async with serving(api_server) as url, connected(tmp_path, url) as transport:
            with pytest.raises(PortForwardError) as raised:
                await PortForward(transport, "ms", "pod-a", PORT).run(far, lambda: pytest.fail("it is not open"))
    assert (raised.value.status, str(raised.value)) == (status, told)


async def test_unreachable_api_server_is_reported(tmp_path: Path) -> None:
    near, far = socket.socketpair()
    with near:
        async with connected(tmp_path, "http://127.0.0.1:9") as transport:
            with pytest.raises(PortForwardError, match="the API server does not open the connection"):
                await PortForward(transport, "ms", "pod-a", PORT).run(far, lambda: None)
