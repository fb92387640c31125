"""Servers on loopback for the transport: well-behaved ones by aiohttp, ill-behaved ones by hand; and kubeconfigs for both."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from multisched.client.transport import HttpTransport, connect

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
RawHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """An aiohttp server with one handler for everything; yields its address."""
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield f"{'https' if tls is not None else 'http'}://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def raw_serving(handler: RawHandler) -> AsyncIterator[str]:
    """A server that reads one request head and then does whatever `handler` does; yields its address."""
    connections: set[asyncio.Task[None]] = set()

    async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            connections.discard(task)

    server = await asyncio.start_server(on_connect, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()


async def read_head(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def write_kubeconfig(
    folder: Path, server: str, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None
) -> Path:
    path = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "u", "user": user if user is not None else {"token": "token-1"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(document))
    return path


@asynccontextmanager
async def connected(
    folder: Path, server: str, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None
) -> AsyncIterator[HttpTransport]:
    async with connect(write_kubeconfig(folder, server, user, cluster)) as transport:
        yield transport
