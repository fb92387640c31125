"""The embedded cluster as one thing to start: API server, TLS socket, credentials, and the parts that run beside it.

Owns the server, its listener and the tasks of the parts (controllers, fake kubelets). Parts are handed in as async
callables and cancelled at the end. `async with EmbeddedCluster.start(...) as cluster:` is the whole life.
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
"""Something that runs while the cluster does; cancelled when it ends. An exception of a part ends the cluster."""


class EmbeddedCluster:
    """A running cluster. Made by `start` only."""

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
        """A cluster that serves on `host` (port 0: any free one) until the block is left."""
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
        """Requests in process, as a user, without a socket."""
        return DirectTransport(self.server, user)

    def write_kubeconfig(self, path: Path, user: UserInfo = ADMIN) -> None:
        """A kubeconfig with two contexts: `embedded` (client certificate) and `embedded-token` (the admin's token)."""
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
        # JSON is YAML, and needs no library to write.
        path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))


async def _run(part: Part, cluster: EmbeddedCluster) -> None:
    await part(cluster)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
