"""The whole program and an embedded API server in one process, for tests of plugins.

Tests create nodes and pods and wait for bindings, in virtual time (`in_virtual_time`), or in real time if threads, processes or
sockets take part. Every binding is checked when it takes effect (I1, I2, I7), also by the judge of `multisched verify`. `at_rest`
requires that caches and queues equal the content of the server (I3, I4, I5).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import orjson

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.cluster.controllers.run import run_controllers
from multisched.config import loading
from multisched.config.schema import Configuration
from multisched.framework.isolation import WorkerFactory
from multisched.framework.measures import Measures
from multisched.framework.registry import Registry
from multisched.model.objects import Pod
from multisched.model.wire import Response, Transport
from multisched.queueing.entry import QueueEntry
from multisched.shell.domain import DomainWorker
from multisched.shell.program import Program, ProgramPorts
from multisched.testing.builders import NOTHING, Document, container, node_document, pod_document
from multisched.testing.quiet_observer import QuietObserver
from multisched.testing.sim_loop import EPOCH, SimLoop, simulate
from multisched.whatif.repair_source import plans_of
from tests.kit import definitions
from tests.kit.checkers.api.api_checker import ApiChecker, decision_of
from tests.kit.checkers.api.bind_judge import BindJudge
from tests.kit.checkers.invariants import differences

T = TypeVar("T")
AsyncTest = Callable[[], Awaitable[T]]
HEAD = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\nlease: {enabled: false}\n"


def one_domain(*plugins: Mapping[str, Any], queue_sort: str | None = None, **settings: Any) -> str:
    """Returns a configuration with one domain, `tests` (scheduler name `tests-scheduler`): the default profile and these plugins."""
    # DefaultBinder is last: the first Bind plugin that does not skip binds the pod.
    enabled = [*plugins, {"name": "DefaultBinder"}]
    profile: dict[str, Any] = {"plugins": {"disabled": ["DefaultBinder"], "enabled": enabled}}
    if queue_sort is not None:
        profile["queueSort"] = queue_sort
    return HEAD + "domains: " + orjson.dumps([{"name": "tests", "profile": profile, **settings}]).decode()


LOOK_S, LOOK_LONGER, LOOK_MAX_S = 0.005, 1.2, 0.1
"""A condition is looked at after 5 ms, and then less and less often: most tests wait for minutes of virtual time in all."""


class LoopClock:
    """The running loop's time as a Clock."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.monotonic())


class PlacementObserver(QuietObserver):
    """Records the names of placed pods in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.placed: list[str] = []

    def attempt_ended(self, pod: Pod, result: str, seconds: float) -> None:
        if result == "scheduled":
            self.placed.append(pod.name)


class ProgramCluster:
    """A running program with its API server. Created by `open_cluster`."""

    def __init__(
        self,
        server: ApiServer,
        api_checker: ApiChecker,
        broken: list[str],
        clock: LoopClock,
        configuration: Configuration,
    ) -> None:
        self.server = server
        self._judge = BindJudge(server, configuration, clock.monotonic, self)
        self.api_checker = api_checker
        self.broken = broken
        self.observer = PlacementObserver()
        self.bound_at: dict[str, float] = {}
        """Pod -> seconds since the start, in the order of binding."""
        self.program: Program
        self._clock = clock
        self._began_s = clock.monotonic()
        self._api = DirectTransport(server)

    @property
    def now_s(self) -> float:
        return self._clock.monotonic() - self._began_s

    def is_known(self, one: str, uid: str) -> bool:
        return one in self.api_checker.bound

    def was_delivered(self, pod: dict[str, Any], uid: str) -> bool:
        return True

    def missed_pods(self, uid: str) -> Collection[str]:
        return ()

    def on_bind_applied(self, path: str, body: bytes, answer: Response) -> None:
        self.api_checker.on_bind_applied(path, body, answer)
        if answer.status == 201:
            self.bound_at[path.split("/")[-2]] = self.now_s
            self.broken += [str(finding) for finding in self._judge.findings(decision_of(body)[0])]

    async def node(self, name: str, *, cpu: str = "8", memory: str = "32Gi", **fields: Any) -> None:
        """`fields`: as in `node_document`."""
        await self._create("/api/v1/nodes", node_document(name, cpu=cpu, memory=memory, **fields))

    async def pod(
        self,
        name: str,
        *,
        cpu: str | None = None,
        limits: Mapping[str, str] = NOTHING,
        priority: str = "",
        scheduler: str = "tests-scheduler",
        **fields: Any,
    ) -> None:
        """`priority`: the name of a class. `fields`: as in `pod_document`."""
        one = container(cpu=cpu, image="app:v1")
        one["resources"]["limits"] = dict(limits)
        document = pod_document(name, one, schedulerName=scheduler, **fields)
        if priority:
            document["spec"]["priorityClassName"] = priority
        await self._create("/api/v1/namespaces/default/pods", document)

    async def post(self, path: str, name: str, metadata: Mapping[str, Any], **parts: Any) -> None:
        full = path if path.startswith("/") else f"/api/v1/{path}"
        await self._create(full, {"metadata": {"name": name, **metadata}, **parts})

    async def _create(self, path: str, document: Document) -> None:
        answer = await self._api.request("POST", path, body=orjson.dumps(document))
        assert answer.status == 201, answer.body

    async def patch(self, path: str, changes: Mapping[str, Any]) -> None:
        full, merge = path if path.startswith("/") else f"/api/v1/{path}", "application/merge-patch+json"
        answer = await self._api.request("PATCH", full, body=orjson.dumps(changes), content_type=merge)
        assert answer.status == 200, answer.body

    async def priority_class(self, name: str, value: int, **fields: str) -> None:
        """`fields`: of the class, for instance `preemptionPolicy`."""
        await self.post("/apis/scheduling.k8s.io/v1/priorityclasses", name, {}, value=value, **fields)

    async def delete(self, path: str) -> None:
        full = path if path.startswith("/") else f"/api/v1/{path}"
        assert (await self._api.request("DELETE", f"{full}?gracePeriodSeconds=0")).status == 200

    async def until(self, holds: Callable[[], bool], within_s: float = 60.0, *, look_max_s: float = LOOK_MAX_S) -> None:
        """Waits until `holds()` is true. Fails with the queued and bound pods if it is not within `within_s`.

        `look_max_s`: the longest time between two looks, for what is true for a moment only.
        """
        deadline_s, pause_s = self.now_s + within_s, LOOK_S
        while not holds():
            assert self.now_s < deadline_s, f"not within {within_s} s; {self._waiting()}, bound: {self.bound_at}"
            await asyncio.sleep(pause_s)
            pause_s = min(look_max_s, LOOK_LONGER * pause_s)

    def _waiting(self) -> str:
        entries = [entry for worker in self.program.router.workers() for entry in worker.queue.entries()]
        return f"waiting: { {entry.pod.name: (entry.state.value, entry.message) for entry in entries} }"

    async def bound(self, *names: str, within_s: float = 60.0) -> None:
        await self.until(lambda: self.bound_at.keys() >= set(names), within_s)

    def worker(self, domain: str = "tests") -> DomainWorker:
        return next(worker for worker in self.program.router.workers() if worker.name == domain)

    def waiting(self, name: str) -> QueueEntry | None:
        """Returns the pod's queue entry; None if it is not queued."""
        return next((e for e in self.worker().queue.entries() if e.pod.name == name), None)

    def node_of(self, name: str) -> str:
        return self.api_checker.pods()[f"default/{name}"].node

    async def at_rest(self) -> None:
        """Waits until caches, queues and ledgers equal the content of the server, and checks that no invariant was broken."""
        deadline_s = self.now_s + 60.0
        while found := differences(self.program, self.server):
            assert self.now_s < deadline_s, found
            await asyncio.sleep(0.005)
        assert self.broken == []


class _ObservedTransport(DirectTransport):
    """A transport that reports every binding when it takes effect."""

    def __init__(self, server: ApiServer, cluster: ProgramCluster) -> None:
        super().__init__(server)
        self._cluster = cluster

    async def request(self, method: str, path: str, *, body: bytes | None = None, **rest: Any) -> Response:
        answer = await super().request(method, path, body=body, **rest)
        if "/binding" in path and body is not None:
            self._cluster.on_bind_applied(path.partition("?")[0], body, answer)
        return answer


@asynccontextmanager
async def open_cluster(
    configuration: str,
    *,
    registry: Registry | None = None,
    worker_factory: WorkerFactory | None = None,
    before: Callable[[ProgramCluster], Awaitable[None]] | None = None,
    behind: Callable[[Transport], Transport] | None = None,
    measures: Measures | None = None,
    server: ApiServer | None = None,
    identity: str = "house",
) -> AsyncIterator[ProgramCluster]:
    """Runs the program until the block is left; it must then stop within 20 s.

    `before`: creates objects before the program starts. `behind`: wraps the transport between the program and the server.
    `server`: of an earlier cluster, whose program this one succeeds.
    """
    clock, broken = LoopClock(), list[str]()
    server = ApiServer(clock, seed=0, rbac=False) if server is None else server
    parsed = loading.parse(configuration, "house")
    cluster = ProgramCluster(server, ApiChecker(server, broken), broken, clock, parsed)
    if before is not None:
        await before(cluster)
    seen = _ObservedTransport(server, cluster)
    ports = ProgramPorts(
        behind(seen) if behind is not None else seen,
        clock,
        random.Random(0),
        identity,
        "kube-system",
        observer=lambda domain: cluster.observer,
        registry=registry,
        worker_factory=worker_factory,
        measures=measures,
        plan_repairs=plans_of,
    )
    cluster.program = Program(parsed, ports)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(cluster.program.run())
        try:
            await cluster.until(lambda: cluster.program.is_ready)
            yield cluster
            cluster.program.stop()
            async with asyncio.timeout(20.0):
                await running
        finally:
            running.cancel()


async def install_definitions(cluster: ProgramCluster) -> None:
    """Installs the custom resource definitions of `deploy/crds`."""
    for document in definitions.all_definitions():
        await cluster.post(definitions.PATH, document["metadata"]["name"], {}, spec=document["spec"])


def in_virtual_time(main: Callable[[], Any], seed: int = 0) -> None:
    """Runs an asynchronous test on the seeded loop with virtual time."""
    simulate(main(), SimLoop(seed))


@asynccontextmanager
async def with_controllers(cluster: ProgramCluster) -> AsyncIterator[None]:
    """Runs the controllers of a cluster while the block runs."""
    working = asyncio.ensure_future(
        run_controllers(DirectTransport(cluster.server), clock=LoopClock(), rng=random.Random(0))
    )
    try:
        yield
    finally:
        working.cancel()
