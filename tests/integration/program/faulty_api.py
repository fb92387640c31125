"""An embedded API server on plain HTTP that can be told to answer badly: the network, proxies and servers of bad days.

`FaultyApi.start` owns cluster and socket. A fault hits the first request of each kind (list, watch, bind, …) once, so that
every consumer of answers meets it, and must get over it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.embedded import EmbeddedCluster
from multisched.model.wire import Response

Document = dict[str, Any]
HTML = b"<!doctype html><html><body><h1>It works!</h1></body></html>"
LONG_LINE = b"x" * 1_000_000


class Fault(StrEnum):
    """What happens to an answer."""

    TRUNCATED = "the connection is closed in the middle of the body"
    CUT = "the body is half of the JSON"
    GARBLED = "the body is not JSON"
    EMPTY = "the body is empty"
    HTML = "a page with status 200"
    OTHER = "JSON of another shape"
    REFUSED = "500 without a Status, and nothing is done"
    PROXY = "a page with status 502, and nothing is done"
    LONG = "a megabyte without a newline"


_NOT_DONE = {Fault.REFUSED: (500, b"internal error"), Fault.PROXY: (502, HTML)}


class SystemClock:
    """The machine's own time."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class FaultyApi:
    """Made by `start` only."""

    def __init__(self, cluster: EmbeddedCluster, fault: Fault | None) -> None:
        self.cluster = cluster
        self.fault = fault
        self.is_down = False
        """Every request is cut off, and nothing is done."""
        self.spoiled: set[str] = set()
        self.binds: Counter[str] = Counter()
        """Pod -> bindings that the server has accepted."""
        self._direct = cluster.transport()
        self._port = 0
        self._runner: web.AppRunner
        self._site: web.TCPSite

    @classmethod
    @asynccontextmanager
    async def start(cls, fault: Fault | None = None) -> AsyncIterator[FaultyApi]:
        async with EmbeddedCluster.start(SystemClock()) as cluster:
            api = cls(cluster, fault)
            application = web.Application(client_max_size=2**24)
            application.router.add_route("*", "/{path:.*}", api._answer)
            api._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
            await api._runner.setup()
            try:
                await api.listen()
                yield api
            finally:
                await api._runner.cleanup()

    async def listen(self) -> None:
        """Accepts connections, on the same port each time."""
        self._site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await self._site.start()
        self._port = self._runner.addresses[0][1]

    async def stop_listening(self) -> None:
        """New connections are refused."""
        await self._site.stop()

    @property
    def transport(self) -> DirectTransport:
        """The administrator's own way in, which no fault hits."""
        return self._direct

    def write_kubeconfig(self, path: Path) -> None:
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._port}"}}],
            "users": [{"name": "u", "user": {"token": "any"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        path.write_text(yaml.safe_dump(document))

    async def create(self, path: str, document: Document) -> Document:
        answer = await self._direct.request("POST", path, body=json.dumps(document).encode())
        assert answer.status == 201, answer.body
        created: Document = json.loads(answer.body)
        return created

    async def get(self, path: str) -> Document:
        answer = await self._direct.request("GET", path)
        assert answer.status == 200, answer.body
        found: Document = json.loads(answer.body)
        return found

    # ---- answering

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        kind = _kind(request)
        if self.is_down:
            _abort(request)
            return web.Response(status=503)
        fault = None
        if self.fault is not None and kind not in self.spoiled:
            self.spoiled.add(kind)
            fault = self.fault
        if fault in _NOT_DONE:
            status, body = _NOT_DONE[fault]
            return web.Response(status=status, body=body)
        if "watch" in request.query:
            return await self._watch(request, fault)
        content_type = request.headers.get("Content-Type", "application/json")
        answer = await self._direct.request(
            request.method, request.path_qs, body=await request.read(), content_type=content_type
        )
        if kind == "bind" and answer.status == 201:
            self.binds[request.path] += 1
        if fault is Fault.TRUNCATED:
            return await _half(request, answer)
        body = answer.body if fault is None else _spoil(fault, answer.body)
        return web.Response(status=answer.status, body=body, headers=_headers(answer))

    async def _watch(self, request: web.Request, fault: Fault | None) -> web.StreamResponse:
        async with self._direct.stream(request.path_qs) as stream:
            response = web.StreamResponse(status=stream.status)
            response.enable_chunked_encoding()
            await response.prepare(request)
            if stream.status != 200:
                await response.write(await stream.read_body())
                return response
            async for line in stream:
                if fault is Fault.TRUNCATED:
                    await response.write(line[: len(line) // 2])
                    _abort(request)
                    break
                if fault is not None:
                    await response.write(_spoil(fault, line) + b"\n")
                    fault = None
                    continue
                await response.write(line + b"\n")
        return response


def _kind(request: web.Request) -> str:
    """What the request is for, roughly: who reads the answer."""
    path = request.path.rpartition("/")[2]
    if request.path.endswith("/binding"):
        return "bind"
    if "watch" in request.query:
        return f"watch {path}"
    if "leases" in request.path:
        return f"{request.method} lease"
    if "events" in request.path:
        return "event"
    if request.method == "PATCH":
        return "condition"
    return f"{request.method} {path}" if path in ("pods", "nodes", "version") else request.method


def _spoil(fault: Fault, body: bytes) -> bytes:
    match fault:
        case Fault.CUT:
            return body[: len(body) // 2]
        case Fault.GARBLED:
            return bytes((byte * 7 + 13) % 256 for byte in body[:200]).replace(b"\n", b" ")
        case Fault.EMPTY:
            return b""
        case Fault.HTML:
            return HTML
        case Fault.OTHER:
            return b'{"kind": "Widget", "items": {"no": "list"}, "object": [1, 2]}'
        case Fault.LONG:
            return LONG_LINE
    raise AssertionError(fault)


async def _half(request: web.Request, answer: Response) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=_headers(answer))
    response.content_length = len(answer.body)
    await response.prepare(request)
    await response.write(answer.body[: len(answer.body) // 2])
    await asyncio.sleep(0)
    _abort(request)
    return response


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _headers(answer: Response) -> dict[str, str]:
    return {"Content-Type": answer.headers.get("content-type", "application/json")}
