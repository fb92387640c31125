"""A kubelet that does nothing but forward ports, over TLS and the WebSocket protocol `v4.channel.k8s.io`.

The API server proxies `pods/NAME/portforward` to it, as to any kubelet. A pod's port leads to a port of this machine, where
the process listens that stands for the pod. Kubernetes: staging/src/k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from aiohttp import WSMsgType, web

from tests.real.certificates import Certificates

PROTOCOL: Final = "v4.channel.k8s.io"
CHUNK_BYTES: Final = 32 * 1024
DATA, ERROR = b"\0", b"\1"


class FakeKubelet:
    """Only `serving` makes one."""

    def __init__(self) -> None:
        self.port = 0
        self.ports: dict[tuple[str, int], int] = {}
        """Pod and its port -> port of this machine; of others it says that nobody listens there."""
        self.forwarded: list[str] = []
        """Pods, connection by connection."""

    @classmethod
    @asynccontextmanager
    async def serving(cls, certificates: Certificates) -> AsyncIterator[FakeKubelet]:
        """On a free port of loopback."""
        self = cls()
        application = web.Application()
        application.router.add_get("/portForward/{namespace}/{pod}", self._forward)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificates.serving, certificates.serving_key)
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
            self.port = runner.addresses[0][1]
            yield self
        finally:
            await runner.cleanup()

    def node(self, name: str) -> dict[str, Any]:
        """A Node whose kubelet this is."""
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
        }
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        pod, port = request.match_info["pod"], int(request.query["port"])
        self.forwarded.append(pod)
        channels = web.WebSocketResponse(protocols=(PROTOCOL,))
        await channels.prepare(request)
        for channel in (DATA, ERROR):
            await channels.send_bytes(channel + port.to_bytes(2, "little"))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.ports.get((pod, port), 1))
        except OSError as error:
            await channels.send_bytes(ERROR + f"error forwarding port {port} to pod {pod}: {error}".encode())
            await channels.close()
            return channels
        back = asyncio.create_task(_back(reader, channels))
        try:
            async for message in channels:
                if message.type is WSMsgType.BINARY and message.data[:1] == DATA:
                    writer.write(message.data[1:])
                    await writer.drain()
        finally:
            back.cancel()
            writer.close()
            await asyncio.gather(back, return_exceptions=True)
        return channels


async def _back(reader: asyncio.StreamReader, channels: web.WebSocketResponse) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(CHUNK_BYTES):
            await channels.send_bytes(DATA + data)
    await channels.close()
