"""One fixture, two servers: `api` is an embedded cluster of the test's own or, with `--cluster=real`, the session's real one."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from multisched.cluster.embedded import EmbeddedCluster

Document = dict[str, Any]


class SystemClock:
    """The machine's own time."""

    def now(self) -> datetime:
        """UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds."""
        return time.monotonic()


class Api:
    """Requests as one user. `is_embedded` is for expectations that only an empty server can meet."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, is_embedded: bool) -> None:
        self.session, self.url, self.is_embedded = session, url, is_embedded

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> tuple[int, Any]:
        """Status and decoded body."""
        headers = {"Content-Type": content_type, "Accept": accept}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        async with self.session.request(method, self.url + path, data=data, headers=headers) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text.startswith(("{", "[")) else text

    async def must(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Document:
        """The body of an answer that has to be a success."""
        status, answer = await self.ask(method, path, body, content_type)
        assert status in (200, 201), (method, path, status, answer)
        assert isinstance(answer, dict)
        return answer

    @asynccontextmanager
    async def watch(self, path: str) -> AsyncIterator[Watch]:
        """An open watch."""
        async with self.session.get(self.url + path, timeout=aiohttp.ClientTimeout(total=None)) as answer:
            assert answer.status == 200, await answer.text()
            yield Watch(answer)


class Watch:
    """Events of an open watch, one by one."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def next(self, timeout_s: float = 60.0) -> Document:
        """The next event; raises TimeoutError when none comes, EOFError at the end."""
        async with asyncio.timeout(timeout_s):
            line = await self._answer.content.readline()
        if not line:
            raise EOFError
        event: Document = json.loads(line)
        return event

    async def rest(self) -> list[Document]:
        """All events until the server ends the watch."""
        events = []
        while True:
            try:
                events.append(await self.next())
            except EOFError:
                return events


def _client(kubeconfig: Path) -> tuple[str, ssl.SSLContext, dict[str, str]]:
    document = yaml.safe_load(kubeconfig.read_text())
    context = next(entry["context"] for entry in document["contexts"] if entry["name"] == document["current-context"])
    cluster = next(entry["cluster"] for entry in document["clusters"] if entry["name"] == context["cluster"])
    user = next(entry["user"] for entry in document["users"] if entry["name"] == context["user"])

    def data(holder: Document, name: str) -> bytes | None:
        if f"{name}-data" in holder:
            return base64.b64decode(holder[f"{name}-data"])
        return Path(holder[name]).read_bytes() if name in holder else None

    authority = data(cluster, "certificate-authority")
    tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
    certificate, key = data(user, "client-certificate"), data(user, "client-key")
    if certificate and key:
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(certificate + b"\n" + key)
            pair.flush()
            tls.load_cert_chain(pair.name)
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    return str(cluster["server"]), tls, headers


@asynccontextmanager
async def _connected(kubeconfig: Path, *, is_embedded: bool) -> AsyncIterator[Api]:
    url, tls, headers = _client(kubeconfig)
    connector = aiohttp.TCPConnector(ssl=tls)
    async with aiohttp.ClientSession(connector=connector, headers=headers, read_bufsize=2**21) as session:
        yield Api(session, url, is_embedded=is_embedded)


@pytest.fixture
async def api(real_kubeconfig: Path | None, tmp_path: Path) -> AsyncIterator[Api]:
    """An administrator's requests."""
    if real_kubeconfig is not None:
        async with _connected(real_kubeconfig, is_embedded=False) as api:
            yield api
        return
    async with EmbeddedCluster.start(SystemClock()) as cluster:
        kubeconfig = tmp_path / "kubeconfig"
        cluster.write_kubeconfig(kubeconfig)
        async with _connected(kubeconfig, is_embedded=True) as api:
            yield api


@pytest.fixture
async def namespace(api: Api) -> AsyncIterator[str]:
    """A namespace of its own for a test."""
    created = await api.must("POST", "/api/v1/namespaces", {"metadata": {"generateName": "api-test-"}})
    name = created["metadata"]["name"]
    yield name
    await api.ask("DELETE", f"/api/v1/namespaces/{name}/pods?gracePeriodSeconds=0")
    await api.ask("DELETE", f"/api/v1/namespaces/{name}")


def pod(name: str, **spec: Any) -> Document:
    """A small pod."""
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "x"}},
        "spec": {"schedulerName": "nobody", "containers": [container], **spec},
    }
