"""Requests as cluster administrator, for tests: plain HTTP that shares no code with multisched's client.

`Admin` owns one session. Creations go on through the death of the API server: a pod that was stored although its answer
was lost is found by its name.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import anyio
import orjson

from tests.real.control_plane import ControlPlane

IN_FLIGHT: Final = 16
PAGE_ITEMS: Final = 1_000
REQUEST_TIMEOUT_S: Final = 30
RETRY_S: Final = 0.2
RETRIES_MAX: Final = 300
"""Tries per object: with RETRY_S between them, a minute of absence."""
WATCH_TIMEOUT_S: Final = 600
POLL_S: Final = 0.05
ERROR_CHARS: Final = 300
CREATED: Final = (201, 409)
Document = Mapping[str, Any]
COLLECTIONS: Final = {
    "Pod": "/api/v1/namespaces/default/pods",
    "Job": "/apis/batch/v1/namespaces/default/jobs",
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "Node": "/api/v1/nodes",
    "PersistentVolumeClaim": "/api/v1/namespaces/default/persistentvolumeclaims",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "CSIDriver": "/apis/storage.k8s.io/v1/csidrivers",
    "CSINode": "/apis/storage.k8s.io/v1/csinodes",
}
PODS: Final = COLLECTIONS["Pod"]
JOBS: Final = COLLECTIONS["Job"]
NODES: Final = COLLECTIONS["Node"]
CLAIMS: Final = COLLECTIONS["PersistentVolumeClaim"]
VOLUMES: Final = COLLECTIONS["PersistentVolume"]
EVENTS: Final = "/apis/events.k8s.io/v1/namespaces/default/events"


class UnexpectedAnswerError(RuntimeError):
    """The API server refused something that the test needs."""


class Admin:
    """Only `open` and `by` make one."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    @classmethod
    def open(cls, plane: ControlPlane) -> AbstractAsyncContextManager[Admin]:
        """Connected until the block ends."""
        return cls.by(plane.kubeconfig)

    @classmethod
    @asynccontextmanager
    async def by(cls, kubeconfig: Path) -> AsyncIterator[Admin]:
        """Connected until the block ends, to the cluster of a kubeconfig, with the token in it."""
        document = orjson.loads(await anyio.Path(kubeconfig).read_bytes())
        cluster = document["clusters"][0]["cluster"]
        (token,) = (one["user"]["token"] for one in document["users"] if "token" in one["user"])
        tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        connector = aiohttp.TCPConnector(ssl=tls, limit=0)
        async with aiohttp.ClientSession(
            connector=connector,
            headers={"Authorization": f"Bearer {token}"},
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
            read_bufsize=2**20,
        ) as session:
            yield cls(cluster["server"], session)

    async def create(self, document: Document) -> None:
        """Stores one object, however often the API server has to be asked."""
        path, body = COLLECTIONS[document["kind"]], orjson.dumps(document)
        for _ in range(RETRIES_MAX):
            try:
                status, answer = await self._send("POST", path, body, "application/json")
            except (aiohttp.ClientError, TimeoutError):
                status, answer = 0, b""
            if status in CREATED:
                return
            if status in range(400, 500) and status != 429:
                raise UnexpectedAnswerError(f"POST {path}: {status} {answer[:ERROR_CHARS].decode()}")
            await anyio.sleep(RETRY_S)
        raise UnexpectedAnswerError(f"POST {path}: the API server stays away")

    async def create_all(self, documents: Iterable[Document], in_flight: int = IN_FLIGHT) -> None:
        """Stores every object, `in_flight` at a time."""

        async def work(waiting: Iterator[Document]) -> None:
            for document in waiting:
                await self.create(document)

        shared = iter(documents)
        async with anyio.create_task_group() as tasks:
            for _ in range(in_flight):
                tasks.start_soon(work, shared)

    async def request(self, method: str, path: str, document: Document | None = None, content_type: str = "") -> Any:
        """The answer, which has to be a success."""
        body = None if document is None else orjson.dumps(document)
        status, answer = await self._send(method, path, body, content_type or "application/json")
        if status not in (200, 201):
            raise UnexpectedAnswerError(f"{method} {path}: {status} {answer[:ERROR_CHARS].decode()}")
        return orjson.loads(answer)

    async def items(self, path: str, query: str = "") -> list[dict[str, Any]]:
        """Every object of a collection."""
        return (await self.listing(path, query))[0]

    async def listing(self, path: str, query: str = "") -> tuple[list[dict[str, Any]], str]:
        """Every object of a collection, and the version at which that was true."""
        found: list[dict[str, Any]] = []
        following = ""
        while True:
            page = await self.request("GET", f"{path}?limit={PAGE_ITEMS}{following}{query}")
            found += page["items"] or ()
            if not page["metadata"].get("continue"):
                return found, str(page["metadata"]["resourceVersion"])
            following = f"&continue={page['metadata']['continue']}"

    async def watch(self, path: str, version: str, *, bookmarks: bool = False) -> AsyncIterator[dict[str, Any]]:
        """Events after `version` until the connection ends, in whatever way."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_S)
        query = f"?watch=1&resourceVersion={version}&timeoutSeconds={WATCH_TIMEOUT_S}"
        query += "&allowWatchBookmarks=true" * bookmarks
        try:
            async with self._session.get(f"{self._url}{path}{query}", timeout=timeout) as answer:
                async for line in answer.content:
                    yield orjson.loads(line)
        except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError):
            return

    async def _send(self, method: str, path: str, body: bytes | None, content_type: str) -> tuple[int, bytes]:
        headers = {"Content-Type": content_type}
        async with self._session.request(method, self._url + path, data=body, headers=headers) as answer:
            return answer.status, await answer.read()


async def until(holds: Callable[[], Awaitable[bool]], limit_s: float) -> None:
    """Asks again and again; TimeoutError when it does not hold in time."""
    async with asyncio.timeout(limit_s):
        while not await holds():  # noqa: ASYNC110 - what is asked lives behind a network
            await anyio.sleep(POLL_S)
