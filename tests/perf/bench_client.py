"""The benchmark's own client of the API server: it fills and empties the cluster and keeps the time of each bind.

`BenchClient` owns one aiohttp session; `BindWatch` owns one watch. Neither shares code with multisched's client, so that
a fault there cannot hide here. Both are cheap, because they run on the cores that are being measured: the watch asks
for metadata only, of bound pods only, and looks for a name in each line instead of decoding it.
"""

from __future__ import annotations

import base64
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import aiohttp
import anyio
import orjson

from tests.perf.workload import NAMESPACE

IN_FLIGHT: Final = 32
PAGE_SIZE: Final = 1_000
REQUEST_TIMEOUT_S: Final = 120
WATCH_TIMEOUT_S: Final = 3_600
MAX_RESUMES: Final = 1_000
ATTEMPTS_MAX: Final = 6
RETRY_FIRST_S: Final = 0.25
"""Doubles from attempt to attempt: an API server that was restarted is back within seconds."""
CLEAN_STALL_S: Final = 150
CLEAN_POLL_S: Final = 0.5
ERROR_CHARS: Final = 300

PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
EVENTS: Final = f"/api/v1/namespaces/{NAMESPACE}/events"
NODES: Final = "/api/v1/nodes"
PRIORITY_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
LEASES: Final = "/apis/coordination.k8s.io/v1/leases"
RETRIED_STATUSES: Final = (429, 502, 503, 504)
LOST: Final = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)
MERGE_PATCH: Final = "application/merge-patch+json"
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


W = TypeVar("W", bound="BindWatch")


class UnexpectedAnswerError(RuntimeError):
    """The API server refused something that the benchmark needs."""


class ApiPlace(Protocol):
    """Where an API server is, and how its admin comes in. A real control plane, or an embedded one without an etcd."""

    @property
    def url(self) -> str: ...
    @property
    def etcd_url(self) -> str: ...
    @property
    def token(self) -> str: ...
    @property
    def tls(self) -> ssl.SSLContext: ...


@dataclass(frozen=True, slots=True)
class _Answer:
    method: str
    status: int
    body: bytes
    is_repeated: bool
    """Whether an earlier attempt's answer was lost: it may have been carried out."""


class BenchClient:
    """Requests as cluster admin. Every method raises UnexpectedAnswerError on an answer that is no success.

    A request whose answer was lost (connection closed under it, 429, a server that is not there) is sent again, since all
    that is sent here may be sent twice: reads, deletions of what should go, creations under a name of its own and binds.
    If the first was carried out after all, the second is refused with 409. For a creation that says that it is done; for
    a bind, the pod is read: it must be on the node that was asked for.
    """

    def __init__(self, plane: ApiPlace, session: aiohttp.ClientSession) -> None:
        self.repeated = 0
        """Requests that were sent again."""
        self._plane = plane
        self._session = session

    @classmethod
    @asynccontextmanager
    async def open(cls, plane: ApiPlace) -> AsyncIterator[BenchClient]:
        headers = {"Authorization": f"Bearer {plane.token}", "Accept-Encoding": "identity"}
        connector = aiohttp.TCPConnector(ssl=plane.tls, limit=0)
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
            client = cls(plane, session)
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
            await client.create("/api/v1/namespaces", namespace)
            yield client
            if client.repeated:
                print(f"the benchmark's client sent {client.repeated} requests again", flush=True)

    async def create(self, path: str, body: Mapping[str, Any]) -> float:
        """POST; the client's time at which the answer was here."""
        answer = await self._send("POST", self._plane.url + path, body=body)
        if answer.status != 409 or not answer.is_repeated:
            _checked(answer, path)
        return time.monotonic()

    async def label(self, path: str, labels: Mapping[str, str]) -> None:
        """Sets labels of an object; one that is gone is passed over."""
        body = {"metadata": {"labels": labels}}
        answer = await self._send("PATCH", self._plane.url + path, body=body, content_type=MERGE_PATCH)
        if answer.status != 404:
            _checked(answer, path)

    async def delete(self, path: str) -> None:
        """Deletes an object at once."""
        answer = await self._send("DELETE", self._plane.url + path, {"gracePeriodSeconds": "0"})
        if answer.status != 404:
            _checked(answer, path)

    async def bind(self, pod: str, node: str) -> float:
        """POSTs a Binding; the client's time at which the answer was here."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        answer = await self._send("POST", f"{self._plane.url}{PODS}/{pod}/binding", body=body)
        answered_at = time.monotonic()
        is_bound = answer.status == 409 and answer.is_repeated and await self._node_of(pod) == node
        if not is_bound:
            _checked(answer, pod)
        return answered_at

    async def _node_of(self, pod: str) -> str:
        found = await self._get(f"{PODS}/{pod}", {}, "application/json")
        return str(found["spec"].get("nodeName") or "")

    async def create_all(self, path: str, bodies: Iterable[Mapping[str, Any]], in_flight: int = IN_FLIGHT) -> None:
        """POSTs every body, `in_flight` at a time."""

        async def work(waiting: Iterator[Mapping[str, Any]]) -> None:
            for body in waiting:
                await self.create(path, body)

        shared = iter(bodies)
        async with anyio.create_task_group() as tasks:
            for _ in range(in_flight):
                tasks.start_soon(work, shared)

    async def bind_all(self, bindings: Iterable[tuple[str, str]]) -> list[float]:
        """Posts a Binding per (pod, node); the times of the answers."""
        times: list[float] = []

        async def work(waiting: Iterator[tuple[str, str]]) -> None:
            for pod, node in waiting:
                times.append(await self.bind(pod, node))

        shared = iter(bindings)
        async with anyio.create_task_group() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.start_soon(work, shared)
        return times

    async def items(self, path: str, accept: str = "application/json") -> AsyncIterator[dict[str, Any]]:
        """Every object of a collection, in pages."""
        query = {"limit": str(PAGE_SIZE)}
        while True:
            page = await self._get(path, query, accept)
            for item in page["items"] or ():
                yield item
            query["continue"] = page["metadata"].get("continue", "")
            if not query["continue"]:
                return

    async def count(self, path: str) -> int:
        """How many objects a collection holds, without reading them."""
        page = await self._get(path, {"limit": "1"}, METADATA_LIST_ONLY)
        return len(page["items"] or ()) + int(page["metadata"].get("remainingItemCount", 0))

    async def resource_version(self, path: str) -> str:
        page = await self._get(path, {"limit": "1"}, METADATA_LIST_ONLY)
        return str(page["metadata"]["resourceVersion"])

    async def empty(self, path: str) -> None:
        """Deletes a collection, grace 0, and returns when it is empty; TimeoutError when nothing goes for CLEAN_STALL_S.

        The API server gives one such request a minute, too little for 100,000 pods, and then answers 504 or closes the
        connection under it: either way what is left is asked for again.
        """
        left, progress_at = await self.count(path), time.monotonic()
        while left:
            try:
                answer = await self._send("DELETE", self._plane.url + path, {"gracePeriodSeconds": "0"}, attempts_max=1)
            except LOST:
                self.repeated += 1
            else:
                if answer.status not in RETRIED_STATUSES:
                    _checked(answer, path)
            await anyio.sleep(CLEAN_POLL_S)
            before, left = left, await self.count(path)
            if left < before:
                progress_at = time.monotonic()
            elif time.monotonic() - progress_at > CLEAN_STALL_S:
                raise TimeoutError(f"{left} objects of {path} do not go")

    async def delete_leases(self, name_part: str) -> None:
        """Removes leader leases, so that no contender waits for one of an earlier round."""
        names = [
            (item["metadata"]["namespace"], item["metadata"]["name"])
            async for item in self.items(LEASES, METADATA_LIST_ONLY)
        ]
        for namespace, name in names:
            if name_part in name or name_part in namespace:
                path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
                answer = await self._send("DELETE", self._plane.url + path)
                if answer.status != 404:
                    _checked(answer, path)

    async def compact(self) -> None:
        """Drops etcd's history, so that the last round runs on as small a store as the first."""
        key = base64.b64encode(b"compact_rev_key").decode()
        revision = (await self._etcd("kv/range", {"key": key}))["header"]["revision"]
        await self._etcd("kv/compaction", {"revision": revision, "physical": True})

    async def end_pod(self, name: str) -> None:
        """Says, as a kubelet does, that the pod has Succeeded."""
        path = f"{PODS}/{name}/status"
        body = {"status": {"phase": "Succeeded"}}
        _checked(await self._send("PATCH", self._plane.url + path, body=body, content_type=MERGE_PATCH), path)

    @asynccontextmanager
    async def watch_binds(self) -> AsyncIterator[BindWatch]:
        """A watch of all binds from now on; its reader ends with the block, and fails the block when it cannot go on."""
        async with self._reading(BindWatch(self._open_watch, await self.resource_version(PODS))) as watch:
            yield watch

    @asynccontextmanager
    async def watch_slots(self) -> AsyncIterator[SlotWatch]:
        """The same, of whole pods: it also keeps the node of each pod, and when it has Succeeded."""
        open_watch = partial(self._open_watch, accept="application/json")
        async with self._reading(SlotWatch(open_watch, await self.resource_version(PODS))) as watch:
            yield watch

    @asynccontextmanager
    async def _reading(self, watch: W) -> AsyncIterator[W]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.read)
            yield watch
            tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def _open_watch(self, version: str, accept: str = METADATA_ONLY) -> AsyncIterator[aiohttp.ClientResponse]:
        query = {
            "watch": "true",
            "fieldSelector": "spec.nodeName!=",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_TIMEOUT_S),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_S)
        async with self._session.get(
            self._plane.url + PODS, params=query, headers={"Accept": accept}, timeout=timeout
        ) as answer:
            if answer.status != 200:
                _checked(_Answer("GET", answer.status, await answer.read(), is_repeated=False), PODS)
            yield answer

    async def _get(self, path: str, query: Mapping[str, str], accept: str) -> dict[str, Any]:
        answer = await self._send("GET", self._plane.url + path, query, accept=accept)
        _checked(answer, path)
        document: dict[str, Any] = orjson.loads(answer.body)
        return document

    async def _etcd(self, method: str, body: Mapping[str, Any]) -> dict[str, Any]:
        answer = await self._send("POST", f"{self._plane.etcd_url}/v3/{method}", body=body)
        _checked(answer, method)
        document: dict[str, Any] = orjson.loads(answer.body)
        return document

    async def _send(
        self,
        method: str,
        url: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Mapping[str, Any] | None = None,
        accept: str = "application/json",
        content_type: str = "application/json",
        attempts_max: int = ATTEMPTS_MAX,
    ) -> _Answer:
        """One request, sent again while its answer is lost; returns or raises what came of the last attempt."""
        headers = {"Accept": accept, "Content-Type": content_type}
        data = None if body is None else orjson.dumps(body)
        for attempt in range(attempts_max):
            wait_s = RETRY_FIRST_S * 2**attempt
            try:
                async with self._session.request(method, url, params=query, data=data, headers=headers) as found:
                    answer = _Answer(method, found.status, await found.read(), attempt > 0)
                    retry_after = found.headers.get("Retry-After", "")
                    wait_s = float(retry_after) if retry_after.isdigit() else wait_s
            except LOST:
                if attempt == attempts_max - 1:
                    raise
            else:
                if answer.status not in RETRIED_STATUSES or attempt == attempts_max - 1:
                    return answer
            self.repeated += 1
            await anyio.sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")


class BindWatch:
    """When the client saw each pod bound: an object enters a watch of `spec.nodeName!=` exactly once, when it is bound.

    The API server closes the stream of a watcher that falls behind by some tens of milliseconds, which a client on the
    same two cores does in any burst; so the watch resumes at the last version it saw, as every reflector does.
    """

    def __init__(
        self, open_watch: Callable[[str], AbstractAsyncContextManager[aiohttp.ClientResponse]], version: str
    ) -> None:
        self.bound_at: dict[str, float] = {}
        self.resumed = 0
        self._first = anyio.Event()
        self._open = open_watch
        self._version = version

    async def read(self) -> None:
        for _ in range(MAX_RESUMES):
            try:
                async with self._open(self._version) as answer:
                    await self._read_stream(answer)
            except LOST:
                await anyio.sleep(RETRY_FIRST_S)
            self.resumed += 1
        raise UnexpectedAnswerError(f"the API server closed the benchmark's watch {MAX_RESUMES} times")

    async def _read_stream(self, answer: aiohttp.ClientResponse) -> None:
        rest = b""
        async for chunk in answer.content.iter_any():
            now = time.monotonic()
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._take(line, now)

    async def wait_first(self, stall_s: float) -> None:
        """Returns at the first bind, or when none has come for `stall_s`."""
        with anyio.move_on_after(stall_s):
            await self._first.wait()

    async def wait(self, names: Iterable[str], stall_s: float, poll_s: float = 0.05) -> bool:
        """True when all of `names` are bound; False when no bind has come for `stall_s`."""
        missing = set(names) - self.bound_at.keys()
        progress_at, seen = time.monotonic(), len(self.bound_at)
        while missing:
            await anyio.sleep(poll_s)
            if len(self.bound_at) != seen:
                progress_at, seen = time.monotonic(), len(self.bound_at)
                if seen >= len(missing):
                    missing -= self.bound_at.keys()
            elif time.monotonic() - progress_at > stall_s:
                return False
        return True

    def _take(self, line: bytes, now: float) -> None:
        if line.startswith(b'{"type":"ERROR"'):
            raise UnexpectedAnswerError(line[:ERROR_CHARS].decode(errors="replace"))
        self._version = _text_after(line, b'"resourceVersion":"')
        if line.startswith(b'{"type":"ADDED"'):
            self.bound_at.setdefault(_text_after(line, b'"name":"'), now)
            self._first.set()


class SlotWatch(BindWatch):
    """Also keeps the node of each pod, and when the client saw it Succeeded."""

    def __init__(
        self, open_watch: Callable[[str], AbstractAsyncContextManager[aiohttp.ClientResponse]], version: str
    ) -> None:
        super().__init__(open_watch, version)
        self.node_of: dict[str, str] = {}
        self.ended_at: dict[str, float] = {}
        self.on_bound: Callable[[str], None] = lambda name: None

    async def wait_ended(self, limit_s: float, poll_s: float = 0.05) -> None:
        """Returns when all bound pods have Succeeded, or after `limit_s`."""
        for _ in range(round(limit_s / poll_s)):
            if len(self.ended_at) >= len(self.bound_at):
                return
            await anyio.sleep(poll_s)

    def _take(self, line: bytes, now: float) -> None:
        known = len(self.bound_at)
        super()._take(line, now)
        if line.startswith(b'{"type":"ADDED"') and len(self.bound_at) > known:
            name = _text_after(line, b'"name":"')
            self.node_of[name] = _text_after(line, b'"nodeName":"')
            self.on_bound(name)
        elif line.startswith(b'{"type":"MODIFIED"') and b'"phase":"Succeeded"' in line:
            self.ended_at.setdefault(_text_after(line, b'"name":"'), now)


def _text_after(line: bytes, key: bytes) -> str:
    """The string value of the first `key`: metadata comes first, and its name and version in it."""
    start = line.index(key) + len(key)
    return line[start : line.index(b'"', start)].decode()


def _checked(answer: _Answer, path: str) -> None:
    if answer.status >= 400:
        text = answer.body[:ERROR_CHARS].decode(errors="replace")
        raise UnexpectedAnswerError(f"{answer.method} {path}: {answer.status} {text}")
