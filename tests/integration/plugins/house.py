"""The whole program on an embedded API server in process, for tests of plugins: nodes and pods in, bindings out.

Runs in virtual time under `in_virtual_time`, and in real time where threads, processes or sockets answer. Every binding is
checked when it takes effect (I1, I2, I7), by the judge of `multisched verify` too, and at the end the caches must be what the
server holds (I3, I4, I5).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import orjson
import yaml

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
from tests.kit.checkers.api.api_checker import ApiChecker, decision_of
from tests.kit.checkers.api.bind_judge import BindJudge
from tests.kit.checkers.invariants import differences

T = TypeVar("T")
DEFINITIONS = Path(__file__).parents[3] / "deploy" / "crds"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
Story = Callable[[], Awaitable[T]]
HEAD = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\nlease: {enabled: false}\n"


def one_domain(*plugins: Mapping[str, Any], queue_sort: str | None = None, **settings: Any) -> str:
    """A configuration with the domain `tests`, that is `tests-scheduler`: the default profile and these plugins."""
    # DefaultBinder comes last: the first Bind plugin that does not pass speaks for the pod.
    enabled = [*plugins, {"name": "DefaultBinder"}]
    profile: dict[str, Any] = {"plugins": {"disabled": ["DefaultBinder"], "enabled": enabled}}
    if queue_sort is not None:
        profile["queueSort"] = queue_sort
    return HEAD + "domains: " + orjson.dumps([{"name": "tests", "profile": profile, **settings}]).decode()


class LoopClock:
    """The running loop's time as a Clock."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.monotonic())


class Ears(QuietObserver):
    """Hears also in which order pods were placed."""

    def __init__(self) -> None:
        super().__init__()
        self.placed: list[str] = []

    def attempt_ended(self, pod: Pod, result: str, seconds: float) -> None:
        if result == "scheduled":
            self.placed.append(pod.name)


class House:
    """The whole program over an embedded API server, for tests of plugins. Made by `open_house`."""

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
        self.observer = Ears()
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
        """`preemptionPolicy`, for instance."""
        await self.post("/apis/scheduling.k8s.io/v1/priorityclasses", name, {}, value=value, **fields)

    async def delete(self, path: str) -> None:
        full = path if path.startswith("/") else f"/api/v1/{path}"
        assert (await self._api.request("DELETE", f"{full}?gracePeriodSeconds=0")).status == 200

    async def until(self, holds: Callable[[], bool], within_s: float = 60.0) -> None:
        """Waits for something that is to come about; fails with what the program knows when it does not."""
        deadline_s = self.now_s + within_s
        while not holds():
            entries = [entry for worker in self.program.router.workers() for entry in worker.queue.entries()]
            found = {entry.pod.name: (entry.state.value, entry.message) for entry in entries}
            assert self.now_s < deadline_s, f"not within {within_s} s; waiting: {found}, bound: {self.bound_at}"
            await asyncio.sleep(0.005)

    async def bound(self, *names: str, within_s: float = 60.0) -> None:
        await self.until(lambda: self.bound_at.keys() >= set(names), within_s)

    def worker(self, domain: str = "tests") -> DomainWorker:
        return next(worker for worker in self.program.router.workers() if worker.name == domain)

    def waiting(self, name: str) -> QueueEntry | None:
        """The pod's place in the queue."""
        return next((e for e in self.worker().queue.entries() if e.pod.name == name), None)

    def node_of(self, name: str) -> str:
        return self.api_checker.pods()[f"default/{name}"].node

    async def at_rest(self) -> None:
        """Caches, queues and ledgers come to hold exactly what the server does, and no invariant was broken."""
        deadline_s = self.now_s + 60.0
        while found := differences(self.program, self.server):
            assert self.now_s < deadline_s, found
            await asyncio.sleep(0.005)
        assert self.broken == []


class _Seen(DirectTransport):
    """A transport that tells of every binding at the moment it took effect."""

    def __init__(self, server: ApiServer, house: House) -> None:
        super().__init__(server)
        self._house = house

    async def request(self, method: str, path: str, *, body: bytes | None = None, **rest: Any) -> Response:
        answer = await super().request(method, path, body=body, **rest)
        if "/binding" in path and body is not None:
            self._house.on_bind_applied(path.partition("?")[0], body, answer)
        return answer


@asynccontextmanager
async def open_house(
    configuration: str,
    *,
    registry: Registry | None = None,
    worker_factory: WorkerFactory | None = None,
    before: Callable[[House], Awaitable[None]] | None = None,
    behind: Callable[[Transport], Transport] | None = None,
    measures: Measures | None = None,
    server: ApiServer | None = None,
    identity: str = "house",
) -> AsyncIterator[House]:
    """The program runs until the block is left, and must then end in time.

    `before`: what is in the cluster already; `behind`: what stands between the program and the server. `server`: of another
    house, whose program this one follows.
    """
    clock, broken = LoopClock(), list[str]()
    server = ApiServer(clock, seed=0, rbac=False) if server is None else server
    parsed = loading.parse(configuration, "house")
    house = House(server, ApiChecker(server, broken), broken, clock, parsed)
    if before is not None:
        await before(house)
    seen = _Seen(server, house)
    ports = ProgramPorts(
        behind(seen) if behind is not None else seen,
        clock,
        random.Random(0),
        identity,
        "kube-system",
        observer=lambda domain: house.observer,
        registry=registry,
        worker_factory=worker_factory,
        measures=measures,
        plan_repairs=plans_of,
    )
    house.program = Program(parsed, ports)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(house.program.run())
        try:
            await house.until(lambda: house.program.is_ready)
            yield house
            house.program.stop()
            async with asyncio.timeout(20.0):
                await running
        finally:
            running.cancel()


async def install_definitions(house: House) -> None:
    """The custom resource definitions that ship."""
    for file in sorted(DEFINITIONS.glob("*.yaml")):
        document = yaml.safe_load(file.read_text("utf-8"))
        await house.post(CRDS, document["metadata"]["name"], {}, spec=document["spec"])


def in_virtual_time(story: Callable[[], Any], seed: int = 0) -> None:
    """Runs an asynchronous test under the simulation's loop."""
    simulate(story(), SimLoop(seed))


@asynccontextmanager
async def controlled(house: House) -> AsyncIterator[None]:
    """The controllers of a cluster at work beside the program."""
    working = asyncio.ensure_future(
        run_controllers(DirectTransport(house.server), clock=LoopClock(), rng=random.Random(0))
    )
    try:
        yield
    finally:
        working.cancel()
