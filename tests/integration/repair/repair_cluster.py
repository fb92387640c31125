"""A cluster for repairs: an API server with controllers and kubelets, and programs that are started, killed and restarted, in virtual time.

A foreign scheduler has placed all replicas of a service that logs much in the evening on one node. It looks at everything that
happens: evictions outside the window, replicas below the budget, two replicas away at once, and places that leak are
`broken`. Faults are told by the number of the write that they befall.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import orjson

from domains.forecast.curves.profiles_file import dumps
from domains.forecast.forecast import Forecast
from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import Answer, ApiServer
from multisched.cluster.base.request import ApiRequest
from multisched.cluster.controllers.run import run_controllers
from multisched.cluster.kubelet.kubelets import Kubelets
from multisched.cluster.kubelet.stages_builtin import builtin_stages
from multisched.config import loading
from multisched.framework.moving import RepairStatus
from multisched.model.decode import Decoder
from multisched.model.objects import Pod
from multisched.model.wire import MERGE_PATCH, AnswerLostError, Response, Transport
from multisched.shell.program import Program, ProgramPorts
from multisched.state.reservations import is_stand_in
from multisched.testing.builders import node_document
from multisched.testing.quiet_observer import QuietObserver
from multisched.testing.sim_loop import EPOCH, SimLoop, simulate
from multisched.whatif.repair_source import plans_of
from tests.kit.checkers.api.api_checker import ApiChecker
from tests.kit.checkers.invariants import differences
from tests.unit.domains.forecast.profiles import make_profiles

T = TypeVar("T")
Times = tuple[str, str]
"""When a window opens and closes on the first day, UTC."""
WINDOWS: Final[Sequence[Times]] = (("00:01", "00:31"),)
OPENS_S: Final = 60.0
CLOSES_S: Final = 1_860.0
SHORT: Final[Sequence[Times]] = (("00:01", "00:08"),)
"""A window with several plans, for tests that wait for its end."""
SHORT_CLOSES_S: Final = 480.0
EVENING: Final = np.where(np.arange(168) % 24 == 20, 60.0, 5.0)
NOON: Final = np.where(np.arange(168) % 24 == 12, 60.0, 5.0)
SCHEDULER: Final = "tests-scheduler"


class Fault(Enum):
    """What befalls one write of the repair."""

    THROTTLED = "429"
    FORBIDDEN = "403"
    LOST = "done, and the answer lost"
    UNDONE = "no answer, and not done"
    DIED_BEFORE = "the process dies before it"
    DIED_AFTER = "the process dies after it, before the answer"


class LoopClock:
    """The running loop's time as a Clock."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.monotonic())


class AtOnce:
    """Computes where it is asked: nothing else runs meanwhile in virtual time."""

    async def __call__(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        return work()


class RepairCluster:
    """A cluster in virtual time in which repairs run and are interrupted. Made by `open_cluster`."""

    def __init__(self, folder: Path, text: str, windows: Sequence[Times], seed: int) -> None:
        self.windows = [(_seconds(opens), _seconds(closes)) for opens, closes in windows]
        self.clock = LoopClock()
        self.server = ApiServer(self.clock, seed=seed, rbac=False)
        self.api = DirectTransport(self.server)
        self.broken: list[str] = []
        self.api_checker = ApiChecker(self.server, self.broken)
        self.server.interceptors.append(self)
        self.program: Program | None = None
        self.faults: dict[int, Fault] = {}
        self.forbids = ""
        """Writes that begin so are refused, all of them."""
        self.writes: list[str] = []
        """Of the repair, in order: `EVICT default/pod`, or the state that is kept."""
        self.evicted: list[tuple[float, str]] = []
        self.needed: dict[str, int] = {}
        """Service -> replicas that its budget wants."""
        self._text = text
        self._seed = seed
        self._lives = 0
        self._running: asyncio.Task[None] | None = None
        self._decoder = Decoder()
        self._dying = asyncio.Event()
        self._fault_share, self._chance = 0.0, random.Random(seed)
        self._stop_at = ""
        self._reached, self._released = asyncio.Event(), asyncio.Event()
        profiles = make_profiles(
            ("cpu", "log"),
            chatty={"cpu": np.full(168, 0.01), "log": EVENING},
            midday={"cpu": np.full(168, 0.01), "log": NOON},
        )
        folder.joinpath("profiles").write_bytes(dumps(profiles))

    # -- what is there ---------------------------------------------------------------------------------------------

    async def send(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> Response:
        body = None if document is None else orjson.dumps(document)
        return await self.api.request(method, path, body=body)

    async def make(self, path: str, document: Mapping[str, Any]) -> None:
        answer = await self.send("POST", path, document)
        assert answer.status == 201, answer.body

    async def node(self, name: str, *, cpu: str = "8") -> None:
        await self.make("/api/v1/nodes", node_document(name, cpu=cpu, memory="32Gi"))

    async def cordon(self, name: str, *, is_cordoned: bool) -> None:
        patch = orjson.dumps({"spec": {"unschedulable": is_cordoned}})
        answer = await self.api.request("PATCH", f"/api/v1/nodes/{name}", body=patch, content_type=MERGE_PATCH)
        assert answer.status == 200, answer.body

    async def deploy(
        self,
        name: str,
        replicas: int,
        *,
        on: str,
        kind: str = "Deployment",
        service: str = "",
        scheduler: str = SCHEDULER,
    ) -> None:
        """A workload whose first replicas a foreign hand binds to one node. `service`: whose profile it has; its name's."""
        labels = {"app": name, "multisched.io/service": service or name}
        container = {"name": "main", "image": "app:v1", "resources": {"requests": {"cpu": "500m"}}}
        pod = {"schedulerName": scheduler, "terminationGracePeriodSeconds": 5, "containers": [container]}
        document: dict[str, Any] = {
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        }
        if kind == "StatefulSet":
            document["spec"] |= {"podManagementPolicy": "Parallel", "serviceName": name}
        await self.make(f"/apis/apps/v1/namespaces/default/{kind.lower()}s", document)
        await self.until(lambda: len(self.of(name)) == replicas)
        for one in self.of(name):
            binding = {"metadata": {"name": one.name, "uid": one.uid}, "target": {"name": on}}
            await self.make(f"/api/v1/namespaces/default/pods/{one.name}/binding", binding)
        await self.until(lambda: self.ready(name) == replicas)

    async def budget(self, service: str, least: int) -> None:
        selector = {"matchLabels": {"app": service}}
        await self.make(
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
            {"metadata": {"name": service}, "spec": {"minAvailable": least, "selector": selector}},
        )
        self.needed[service] = least

    def pods(self) -> list[Pod]:
        return [self._decoder.pod(stored.raw) for _, stored in self.server.store.collection("pods").items()]

    def of(self, name: str) -> list[Pod]:
        return [pod for pod in self.pods() if pod.labels.get("app") == name]

    def ready(self, service: str) -> int:
        return sum(pod.is_ready and not pod.is_deleting for pod in self.of(service))

    def spread(self, service: str) -> list[int]:
        """Replicas per node, most first."""
        return sorted(Counter(pod.node for pod in self.of(service) if not pod.is_deleting).values(), reverse=True)

    def record(self) -> dict[str, Any]:
        for key, stored in self.server.store.collection("configmaps").items("kube-system"):
            if key.endswith("/multisched-repair-tests"):
                found: dict[str, Any] = orjson.loads(stored.document()["data"]["run.json"])
                return found
        return {}

    def run_state(self) -> str:
        run = self.record().get("run")
        return str(run["state"]) if run else ""

    # -- time ------------------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self.clock.monotonic()

    async def until(self, holds: Callable[[], object], within_s: float = 120.0) -> None:
        deadline_s = self.now_s + within_s
        while not holds():
            assert self.now_s < deadline_s, (
                f"not within {within_s} s: {self.record().get('run')} {self.record().get('reason')}, "
                f"{[(p.name, p.node, p.is_ready, p.is_deleting) for p in self.pods()]}, {self.broken}"
            )
            await asyncio.sleep(0.1)

    async def at(self, second: float) -> None:
        await asyncio.sleep(max(0.0, second - self.now_s))

    async def reach(self, word: str) -> None:
        """Waits until the repair is about to write this, and holds it there until `go_on`."""
        self._stop_at, self._reached, self._released = word, asyncio.Event(), asyncio.Event()
        await asyncio.wait_for(self._reached.wait(), CLOSES_S)

    def go_on(self) -> None:
        self._stop_at = ""
        self._released.set()

    async def held(self, word: str) -> None:
        if self._stop_at and word.startswith(self._stop_at):
            self._reached.set()
            await self._released.wait()

    # -- the program -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """A new process; it leads once the lease of a dead one has run out."""
        self._lives += 1
        self._dying.clear()
        ports = ProgramPorts(
            _RepairTransport(self.api, self),
            self.clock,
            random.Random(self._seed + self._lives),
            f"life-{self._lives}",
            "kube-system",
            observer=lambda domain: QuietObserver(),
            background_threads=AtOnce,
            plan_repairs=plans_of,
        )
        self.program = Program(loading.parse(self._text, "test"), ports)
        self._running = asyncio.ensure_future(self.program.run())
        program = self.program
        await self.until(lambda: program.is_ready)

    async def kill(self) -> None:
        """SIGKILL: nothing is given back."""
        running, self._running, self.program = self._running, None, None
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def die(self) -> None:
        self._dying.set()

    async def bury(self) -> None:
        """Waits until a fault lets the process die."""
        await self._dying.wait()
        await self.kill()

    async def dies_before(self, second: float) -> bool:
        """Waits until a fault lets the process die, or until then."""
        try:
            await asyncio.wait_for(self.bury(), max(0.0, second - self.now_s))
        except TimeoutError:
            return False
        return True

    def draw_faults(self, share: float) -> None:
        """From now on any fault befalls so many of the writes."""
        self._fault_share = share

    @property
    def plugin(self) -> Forecast:
        assert self.program is not None
        built = [one.plugin for worker in self.program.router.workers() for one in worker.plugins.built]
        return next(plugin for plugin in built if isinstance(plugin, Forecast))

    def status(self) -> RepairStatus:
        return self.plugin.repair_status()

    def places(self) -> list[str]:
        """Nodes on which a place is kept."""
        assert self.program is not None
        nodes = [pod.node for pod in self.pods() if pod.node]
        nominator = self.program.nominator
        return [name for name in sorted({*nodes, "n0", "n1", "n2", "n3"}) for p in nominator.on(name) if is_stand_in(p)]

    # -- what is watched -------------------------------------------------------------------------------------------

    def saw_write(self, word: str) -> Fault | None:
        self.writes.append(word)
        if self.forbids and word.startswith(self.forbids):
            return Fault.FORBIDDEN
        if self._fault_share and self._chance.random() < self._fault_share:
            return self._chance.choice([fault for fault in Fault if fault is not Fault.FORBIDDEN])
        return self.faults.get(len(self.writes))

    def saw_eviction(self, path: str) -> None:
        name = path.split("/")[-2]
        self.evicted.append((self.now_s, name))
        if not any(opens <= self.now_s < closes for opens, closes in self.windows):
            self.broken.append(f"{name} was evicted at {self.now_s}, outside the window")

    def before(self, request: ApiRequest) -> Response | None:
        """See `Interceptor`."""
        return None

    def after(self, request: ApiRequest, answer: Answer) -> Answer:
        """See `Interceptor`: after each write to a pod, services have the replicas that their budgets want."""
        if request.method != "GET" and "/pods" in request.path:
            for service, least in self.needed.items():
                if self.ready(service) < least:
                    self.broken.append(f"{service} has {self.ready(service)} ready replicas at {self.now_s}")
        return answer

    async def at_rest(self) -> None:
        """Caches, queues, ledgers and nominations are as if nothing had ever been kept."""
        assert self.program is not None
        program = self.program
        await self.until(lambda: not differences(program, self.server))
        assert not self.places()
        assert not len(program.reservations)
        assert self.broken == []


class _RepairTransport:
    """Between a program and the server: sees the writes of the repair, and lets faults befall them."""

    def __init__(self, inner: Transport, cluster: RepairCluster) -> None:
        self._inner = inner
        self._cluster = cluster

    async def request(
        self, method: str, path: str, *, body: bytes | None = None, timeout_s: float = 30.0, **rest: Any
    ) -> Response:
        async def ask() -> Response:
            answer = await self._inner.request(method, path, body=body, timeout_s=timeout_s, **rest)
            bare = path.partition("?")[0]
            if "/eviction" in path and answer.status == 201:
                self._cluster.saw_eviction(bare)
            if "/binding" in path and body is not None:
                self._cluster.api_checker.on_bind_applied(bare, body, answer)
            return answer

        word = _word(method, path, body)
        if word:
            await self._cluster.held(word)
        fault = self._cluster.saw_write(word) if word else None
        match fault:
            case None:
                return await ask()
            case Fault.THROTTLED:
                return Response(429, b'{"kind":"Status","message":"busy","code":429}', {"Retry-After": "2"})
            case Fault.FORBIDDEN:
                return Response(403, b'{"kind":"Status","message":"no right to do that","code":403}', {})
            case Fault.UNDONE:
                await asyncio.sleep(timeout_s)
                raise AnswerLostError("timeout")
            case Fault.LOST:
                await ask()
                raise AnswerLostError("reset")
            case Fault.DIED_AFTER:
                await ask()
        self._cluster.die()
        await asyncio.Event().wait()
        raise AssertionError("the dead do not go on")

    def stream(self, path: str, **rest: Any) -> Any:
        return self._inner.stream(path, **rest)


def _word(method: str, path: str, body: bytes | None) -> str:
    """Empty for what is no write of a repair."""
    if "/eviction" in path:
        return f"EVICT {path.split('/')[-2]}"
    if "/configmaps" in path and method != "GET" and body is not None:
        run = orjson.loads(orjson.loads(body)["data"]["run.json"]).get("run")
        return str(run["state"]) if run else "shown"
    return ""


def _seconds(time: str) -> float:
    hour, _, minute = time.partition(":")
    return 3_600.0 * int(hour) + 60.0 * int(minute)


def configuration(folder: Path, windows: Sequence[Times], **repair: Any) -> str:
    """One domain, `tests`."""
    told = [{"from": opens, "to": closes} for opens, closes in windows]
    section = {"mode": "apply", "windows": told, "thresholdPercent": 90, "intervalMinutes": 2, **repair}
    args = {
        "mode": "both",
        "dimensions": ["cpu", "log"],
        "capacities": {"log": 100},
        "profilesFile": str(folder / "profiles"),
        "repair": section,
    }
    document = {
        "apiVersion": "multisched.io/v1",
        "kind": "MultischedConfiguration",
        "domains": [{"name": "tests", "profile": {"plugins": {"enabled": [{"name": "PeakForecast", "args": args}]}}}],
    }
    return orjson.dumps(document).decode()


@asynccontextmanager
async def open_cluster(
    folder: Path, *, seed: int = 0, windows: Sequence[Times] = WINDOWS, **settings: Any
) -> AsyncIterator[RepairCluster]:
    """Controllers and kubelets run until the block is left. `settings`: below `repair:`."""
    cluster = RepairCluster(folder, configuration(folder, windows, **settings), windows, seed)
    kubelets = Kubelets(cluster.api, clock=cluster.clock, rng=random.Random(seed), stages=builtin_stages("general"))
    async with asyncio.TaskGroup() as tasks:
        beside = [
            tasks.create_task(run_controllers(cluster.api, clock=cluster.clock, rng=random.Random(seed))),
            tasks.create_task(kubelets.run()),
        ]
        try:
            yield cluster
            assert cluster.broken == []
        finally:
            await cluster.kill()
            for task in beside:
                task.cancel()


async def uneven(cluster: RepairCluster, *, replicas: int = 3, least: int = 2, nodes: int = 4) -> None:
    """All replicas of `chatty` on n0, which will be at 60 % of its log capacity for each of them at 20:00."""
    for number in range(nodes):
        await cluster.node(f"n{number}")
    await cluster.deploy("chatty", replicas, on="n0")
    await cluster.budget("chatty", least)


def run_in_virtual_time(test: Callable[[], Awaitable[None]], seed: int = 0) -> None:
    """Runs an asynchronous test on the seeded loop with virtual time."""

    async def main() -> None:
        await test()

    simulate(main(), SimLoop(seed))
