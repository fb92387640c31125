"""Starts the embedded cluster: API server, TLS socket, credentials, and the components that run with it.

Owns the server, its listener and the tasks of the components (controllers, fake kubelets). The cluster runs inside
`async with EmbeddedCluster.start(...) as cluster:`; leaving the block cancels the components.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import orjson

from multisched.cluster.access.certificates import Authority, server_context
from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.http import HttpServer
from multisched.cluster.api.server import ApiServer
from multisched.cluster.base.metadata import Clock
from multisched.cluster.base.request import ADMIN, UserInfo
from multisched.cluster.base.storage import HISTORY_EVENTS

LOOPBACK = "127.0.0.1"

Part = Callable[["EmbeddedCluster"], Awaitable[None]]
"""A component, cancelled when the cluster ends. An exception that it raises ends the cluster."""


class EmbeddedCluster:
    """A running cluster. Created by `start`."""

    def __init__(self, server: ApiServer, authority: Authority, url: str, admin_token: str) -> None:
        self.server = server
        self.url = url
        self._authority = authority
        self._admin_token = admin_token

    @staticmethod
    @asynccontextmanager
    async def start(
        clock: Clock,
        *,
        seed: int = 0,
        host: str = LOOPBACK,
        port: int = 0,
        rbac: bool = True,
        history: int = HISTORY_EVENTS,
        parts: Sequence[Part] = (),
    ) -> AsyncIterator[EmbeddedCluster]:
        """Starts a cluster that listens on `host` (port 0: any free one); stops it when the block is left."""
        server = ApiServer(clock, seed=seed, rbac=rbac, history=history)
        authority = Authority(clock.now())
        http = HttpServer(server, server_context(authority, sorted({host, LOOPBACK, "localhost"})))
        token = secrets.token_urlsafe(32)
        server.tokens.add_fixed(token, ADMIN)
        async with AsyncExitStack() as stack:
            bound = await http.listen(host, port)
            stack.push_async_callback(http.close)
            cluster = EmbeddedCluster(server, authority, f"https://{host}:{bound}", token)
            group = await stack.enter_async_context(asyncio.TaskGroup())
            tasks = [group.create_task(_run(part, cluster)) for part in parts]
            try:
                yield cluster
            finally:
                for task in tasks:
                    task.cancel()

    def transport(self, user: UserInfo = ADMIN) -> DirectTransport:
        """Returns a transport that sends requests in process as this user, without a socket."""
        return DirectTransport(self.server, user)

    def write_kubeconfig(self, path: Path, user: UserInfo = ADMIN) -> None:
        """Writes a kubeconfig with two contexts: `embedded` (a client certificate of `user`) and `embedded-token` (the admin's token)."""
        pair = self._authority.client(user)
        cluster = {"server": self.url, "certificate-authority-data": _b64(self._authority.certificate)}
        by_certificate = {"client-certificate-data": _b64(pair.certificate), "client-key-data": _b64(pair.key)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "embedded", "cluster": cluster}],
            "users": [
                {"name": "embedded", "user": by_certificate},
                {"name": "embedded-token", "user": {"token": self._admin_token}},
            ],
            "contexts": [
                {"name": name, "context": {"cluster": "embedded", "user": name}}
                for name in ("embedded", "embedded-token")
            ],
            "current-context": "embedded",
        }
        path.touch(mode=0o600)
        # JSON is valid YAML and needs no extra library.
        path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))


async def _run(part: Part, cluster: EmbeddedCluster) -> None:
    await part(cluster)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
