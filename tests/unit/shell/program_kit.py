"""The embedded API server in virtual time, what its users do, and a whole program over it by a transport that tests may bend."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import orjson

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.config import loading
from multisched.model.wire import JSON, MERGE_PATCH, LineStream, Response
from multisched.shell.program import Program, ProgramPorts
from multisched.testing.builders import GPU, NOTHING, Document, container, node_document, pod_document
from multisched.testing.quiet_observer import QuietObserver
from multisched.testing.sim_loop import SimClock, SimLoop, simulate
from multisched.testing.virtual_workers import VirtualProcess
from multisched.whatif.repair_source import plans_of
from tests.kit.checkers.invariants import differences

CONFIGURATION = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
- name: forecast
- name: gpu
lease: {enabled: false}
"""
PODS = "/api/v1/namespaces/default/pods"

T = TypeVar("T")


async def at_once(work: Callable[[], T]) -> T:
    """Threads answer in real time, which virtual time does not wait for."""
    return work()


class BentTransport:
    """Every answer of the server goes through `said` on its way to the program, every request through `asked`.

    A watch line of which nothing is left is lost.
    """

    def __init__(self, server: ApiServer) -> None:
        self.inner = DirectTransport(server)
        self.said: Callable[[bytes], bytes] = lambda text: text
        self.asked: Callable[[bytes], bytes] = lambda text: text
        self.requests: list[tuple[str, str]] = []
        self.answer: Callable[[str, str], Response | None] = lambda method, path: None
        """An answer from here keeps the request from the server."""
        self.list_s = self.bind_s = 0.0
        """So long the answer to a list, and a request to bind, are on their way."""

    async def request(
        self, method: str, path: str, *, body: bytes | None = None, timeout_s: float = 30.0, **rest: Any
    ) -> Response:
        assert timeout_s > 0
        self.requests.append((method, path))
        if path.partition("?")[0].endswith("/binding"):
            await asyncio.sleep(self.bind_s)
        answer = self.answer(method, path)
        if answer is None:
            answer = await self.inner.request(
                method,
                self.asked(path.encode()).decode(),
                body=None if body is None else self.asked(body),
                timeout_s=timeout_s,
                **rest,
            )
        if method == "GET" and "?limit=" in path:
            await asyncio.sleep(self.list_s)
        return Response(answer.status, self.said(answer.body), answer.headers)

    @asynccontextmanager
    async def stream(
        self, path: str, *, connect_timeout_s: float = 5.0, idle_timeout_s: float = 90.0
    ) -> AsyncIterator[LineStream]:
        self.requests.append(("WATCH", path))
        path = self.asked(path.encode()).decode()
        async with self.inner.stream(path, idle_timeout_s=idle_timeout_s) as lines:
            yield BentLines(lines, lambda text: self.said(text))  # which a test may change meanwhile


class BentLines:
    """A watch whose lines come as `said` has them; empty ones do not come."""

    def __init__(self, inner: LineStream, said: Callable[[bytes], bytes]) -> None:
        self.status, self.headers = inner.status, inner.headers
        self._inner = inner
        self._said = said

    async def read_body(self) -> bytes:
        return self._said(await self._inner.read_body())

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for line in self._inner:
            said = self._said(line)
            if said:
                yield said


class Site:
    """An API server, and what its users do."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.clock = SimClock(loop)
        self.server = ApiServer(self.clock, rbac=False)
        self.api = DirectTransport(self.server)

    async def send(
        self, method: str, path: str, document: Document | None = None, *, content_type: str = JSON
    ) -> Document:
        body = orjson.dumps(document) if document is not None else None
        answer = await self.api.request(method, path, body=body, content_type=content_type)
        assert answer.status < 300, answer.body
        found: Document = orjson.loads(answer.body)
        return found

    async def add_node(self, name: str, *, gpus: int = 0, **fields: Any) -> None:
        """`fields`: as in `node_document`."""
        extra = {GPU: gpus} if gpus else {}
        await self.send("POST", "/api/v1/nodes", node_document(name, extra=extra, **fields))

    async def add_pod(
        self,
        name: str,
        *,
        cpu: str = "1",
        limits: Mapping[str, str] = NOTHING,
        port: int = 0,
        scheduler: str = "forecast-scheduler",
        **fields: Any,
    ) -> None:
        """`fields`: as in `pod_document`."""
        one = container(cpu=cpu)
        one["resources"]["limits"] = dict(limits)
        if port:
            one["ports"] = [{"containerPort": port, "hostPort": port}]
        await self.send("POST", PODS, pod_document(name, one, schedulerName=scheduler, **fields))

    async def bind(self, name: str, node: str) -> None:
        await self.send("POST", f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": {"name": node}})

    async def change_metadata(self, name: str, **fields: Any) -> None:
        """Of a pod: `labels`, `annotations` or `finalizers`; what is None goes."""
        await self.send("PATCH", f"{PODS}/{name}", {"metadata": fields}, content_type=MERGE_PATCH)

    async def delete_pod(self, name: str) -> None:
        await self.send("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")

    async def node_of(self, name: str) -> str:
        """Of a pod, as the API says it; empty where it waits."""
        pod = await self.send("GET", f"{PODS}/{name}")
        return str(pod["spec"].get("nodeName", ""))

    async def nodes_of_pods(self) -> dict[str, str]:
        """Name -> node, of every pod of the API; empty where it waits."""
        listed = await self.send("GET", PODS)
        return {item["metadata"]["name"]: item["spec"].get("nodeName", "") for item in listed["items"]}


class Cluster(Site):
    """A site with a program that watches it."""

    def __init__(self, loop: SimLoop, configuration: str) -> None:
        super().__init__(loop)
        self.transport = BentTransport(self.server)
        self.observer = QuietObserver()
        self.thread_uses = 0
        """What would be computed in threads, which virtual time does not wait for, is computed at once."""
        ports = ProgramPorts(
            self.transport,
            self.clock,
            random.Random(1),
            "tester",
            "kube-system",
            observer=lambda domain: self.observer,
            background_threads=lambda: self._at_once,
            open_process=VirtualProcess,
            plan_repairs=plans_of,
        )
        self.program = Program(loading.parse(configuration, "test"), ports)

    async def _at_once(self, work: Callable[[], T]) -> T:
        self.thread_uses += 1
        return work()

    @property
    def placed(self) -> dict[str, str]:
        """Name -> node, of every pod on a node as the cache has it."""
        return {entry.pod.name: entry.node for entry in self.program.cache}

    async def settle(self, seconds: float = 5.0) -> None:
        await asyncio.sleep(seconds)

    @property
    def differences(self) -> list[str]:
        return differences(self.program, self.server)


def play(
    scene: Callable[[Cluster], Coroutine[Any, Any, None]],
    *,
    prepare: Callable[[Cluster], Coroutine[Any, Any, None]] | None = None,
    configuration: str = CONFIGURATION,
) -> None:
    """Runs a scene beside a program that has started; `prepare` comes before it."""
    loop = SimLoop(seed=1)

    async def main() -> None:
        cluster = Cluster(loop, configuration)
        if prepare is not None:
            await prepare(cluster)
        running = loop.create_task(cluster.program.run())
        await cluster.settle()
        try:
            await scene(cluster)
        finally:
            cluster.program.stop()
            await running

    simulate(main(), loop)
