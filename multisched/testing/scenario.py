"""A whole-program run under a seed: nodes, pods, faults, then quiet, then the invariants.

The real `Program` (configuration, reflectors, queues, cycles, bind workers, leases) runs against the real embedded API
server in process, under virtual time. `run_seed` returns a report; its `broken` is empty when every invariant held.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from multisched import config
from multisched.cluster.direct import DirectTransport
from multisched.cluster.server import ApiServer
from multisched.config_schema import Configuration
from multisched.cycle.bind_outcome import Outcome
from multisched.model.objects import Pod
from multisched.shell.program import LeaseLostError, Program, Surroundings
from multisched.testing.faults import Faults, FaultyTransport
from multisched.testing.invariants import Books, check_program, differences
from multisched.testing.sim_loop import SimClock, SimLoop, simulate

NODES, PODS = 40, 200
STORM_S = 25.0
"""Virtual seconds in which pods arrive and faults strike."""

QUIET_MAX_S = 120.0
"""Virtual seconds after the last fault within which every feasible pod must be bound (I3)."""

DISRUPTIONS = 16
RUNS_MAX_S = 4 * QUIET_MAX_S

CONFIGURATION = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
- name: forecast
  profile:
    plugins:
      enabled:
      - name: multisched.testing.oracle:SlowOracle
        weight: 50
- name: gpu
- name: job
  loans:
  - from: forecast
    selector:
      matchLabels: {lend: "yes"}
"""


@dataclass(frozen=True, slots=True)
class Report:
    """What a run found. `trace` is a digest of every binding in order: equal for equal seeds (I12)."""

    seed: int
    broken: tuple[str, ...]
    bound: int
    trace: int
    faults: Mapping[str, int]
    conflicts_true: int
    conflicts_false: int
    virtual_s: float

    @property
    def fault_count(self) -> int:
        return sum(self.faults.values())


class QuietObserver:
    """A DomainObserver that counts plugin failures and nothing else."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None: ...

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        self.failures.append(f"{plugin} {point}: {error!r}")

    def attempt_ended(self, pod: Pod, result: str, seconds: float) -> None: ...

    def pod_bound(self, pod: Pod, seconds: float, attempts: int) -> None: ...

    def bind_ended(self, pod: Pod, outcome: Outcome, seconds: float) -> None: ...

    def permit_waited(self, result: str, seconds: float) -> None: ...


@dataclass(slots=True)
class _Process:
    """One running program with the cable that can be cut."""

    program: Program
    transport: FaultyTransport
    task: asyncio.Task[None]


@dataclass
class _Run:
    """Everything of one seed."""

    seed: int
    loop: SimLoop
    rng: random.Random
    configuration: Configuration
    server: ApiServer = field(init=False)
    broken: list[str] = field(default_factory=list)
    observer: QuietObserver = field(default_factory=QuietObserver)
    processes: list[_Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = SimClock(self.loop)
        self.server = ApiServer(self.clock, seed=self.seed, rbac=False)
        self.api = DirectTransport(self.server)
        self.faults = Faults(random.Random(self.seed ^ 0x5EED))  # noqa: S311 - a simulation
        self.books = Books(self.server, self.broken)
        self.disruptions: list[str] = []
        self.names = 0

    # -- world -----------------------------------------------------------------------------------------------------

    async def post(self, path: str, document: Mapping[str, Any]) -> None:
        answer = await self.api.request("POST", path, body=orjson.dumps(document))
        while answer.status == 503:  # the server is away for a moment: users try again
            await asyncio.sleep(0.5)
            answer = await self.api.request("POST", path, body=orjson.dumps(document))
        if answer.status not in (201, 409):
            raise AssertionError(f"{path}: {answer.body!r}")

    async def add_node(self, number: int) -> None:
        await self.post("/api/v1/nodes", _node(number))

    async def add_pod(self, name: str = "") -> None:
        self.names += 1
        await self.post("/api/v1/namespaces/default/pods", _pod(name or f"pod-{self.names}", self.rng))

    def start(self, identity: str) -> None:
        transport = FaultyTransport(self.api, self.faults, self.books.bind_seen)
        surroundings = Surroundings(
            transport,
            self.clock,
            random.Random(self.rng.random()),  # noqa: S311 - a simulation
            identity,
            "kube-system",
            observer=lambda domain: self.observer,
        )
        program = Program(self.configuration, surroundings)
        self.processes.append(_Process(program, transport, self.loop.create_task(self.keep(program, identity))))

    async def keep(self, program: Program, identity: str) -> None:
        """A process that ends because its lease is lost is started again, as a kubelet does with a container."""
        try:
            await program.run()
        except* LeaseLostError:
            self.processes[:] = [p for p in self.processes if p.program is not program]
            self.start(f"{identity}-again")

    # -- faults ----------------------------------------------------------------------------------------------------

    async def disrupt(self, kind: str) -> None:
        """One disruption from outside the wire."""
        self.disruptions.append(kind)
        names = [key for key, _ in self.server.store.collection("pods").items()]
        match kind:
            case "watches dropped":
                self.server.drop_watches()
            case "history compacted":
                self.server.compact()
                self.server.drop_watches()
            case "watches expired":
                self.server.expire_watches()
            case "pod deleted":
                if names:
                    await self.delete_pod(self.rng.choice(names).rsplit("/", 1)[-1])
            case "pod recreated":
                if names:
                    name = self.rng.choice(names).rsplit("/", 1)[-1]
                    await self.delete_pod(name)
                    await self.add_pod(name)
            case "pod deleted unseen":
                if names:
                    self.server.drop_watches()
                    await self.delete_pod(self.rng.choice(names).rsplit("/", 1)[-1])
                    self.server.compact()
            case "foreign bind":
                await self.bind_from_outside()
            case "node deleted":
                await self.api.request("DELETE", f"/api/v1/nodes/node-{self.rng.randrange(NODES // 4)}")
            case "node replaced":
                number = self.rng.randrange(NODES // 4)
                await self.api.request("DELETE", f"/api/v1/nodes/node-{number}")
                await asyncio.sleep(self.rng.uniform(0.0, 1.0))
                await self.add_node(number)
            case "leader killed":
                await self.kill_leader()
            case "server away":
                self.server.set_unavailable()
                await asyncio.sleep(self.rng.uniform(0.5, 3.0))
                self.server.set_available()

    async def delete_pod(self, name: str) -> None:
        await self.api.request("DELETE", f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0")

    async def bind_from_outside(self) -> None:
        """Somebody else creates a pod of ours and binds it before we can, to a large node that we may be filling too."""
        self.names += 1
        name, virtual = f"foreign-{self.names}", 9 + 10 * self.rng.randrange(NODES // 10)
        pod = _pod(name, self.rng)
        pod["spec"] = {"schedulerName": "job-scheduler", "containers": pod["spec"]["containers"]}
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100m"}}
        await self.post("/api/v1/namespaces/default/pods", pod)
        await asyncio.sleep(self.rng.uniform(0.0, 0.04))
        uid = self.books.pods()[f"default/{name}"].uid
        body = orjson.dumps({"metadata": {"name": name, "uid": uid}, "target": {"name": f"node-{virtual}"}})
        path = f"/api/v1/namespaces/default/pods/{name}/binding"
        self.books.bind_seen(path, body, await self.api.request("POST", path, body=body))

    async def kill_leader(self) -> None:
        """The process that leads is cut off in the middle of whatever it does; another stands by."""
        victim = self.processes[0]
        victim.transport.cut()
        victim.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await victim.task
        self.processes.remove(victim)
        self.start(f"process-{self.names}-{len(self.disruptions)}")

    # -- the run ---------------------------------------------------------------------------------------------------

    async def main(self) -> Report:
        for number in range(NODES):
            await self.add_node(number)
        self.start("process-a")
        self.start("process-b")
        storm = [self.loop.create_task(self._arrivals()), self.loop.create_task(self._storm())]
        for task in storm:
            await task
        self.faults.is_on = False
        quiet_from = self.loop.time()
        while self.loop.time() - quiet_from < QUIET_MAX_S and not self.is_settled():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(2.0)
        self.books.check_feasible(self.configuration)
        self.books.check_events()
        for process in self.processes:
            check_program(process.program, self.server, self.broken)
        if self.observer.failures:
            self.broken.append(f"plugins failed: {self.observer.failures[:3]}")
        conflicts = [w.cycle.conflicts for p in self.processes for w in p.program.router.workers()]
        await self._end()
        return Report(
            self.seed,
            tuple(self.broken),
            len(self.books.bound),
            zlib.crc32(repr(self.books.history).encode()),
            dict(self.faults.injected) | {k: self.disruptions.count(k) for k in set(self.disruptions)},
            sum(c.true for c in conflicts),
            sum(c.false for c in conflicts),
            self.loop.time(),
        )

    def is_settled(self) -> bool:
        return not self.books.unbound_feasible(self.configuration) and all(
            not differences(p.program, self.server) for p in self.processes
        )

    async def _arrivals(self) -> None:
        left = PODS
        while left:
            burst = min(left, self.rng.choice([1, 1, 5, 20, 40]))
            left -= burst
            for _ in range(burst):
                await self.add_pod()
            await asyncio.sleep(self.rng.uniform(0.0, STORM_S / 12))

    async def _storm(self) -> None:
        kinds = [
            "watches dropped",
            "history compacted",
            "watches expired",
            "pod deleted",
            "pod recreated",
            "pod deleted unseen",
            "foreign bind",
            "foreign bind",
            "node deleted",
            "node replaced",
            "server away",
            "leader killed",
        ]
        for number in range(DISRUPTIONS):
            await asyncio.sleep(self.rng.uniform(0.1, 2 * STORM_S / DISRUPTIONS))
            await self.disrupt(kinds[number] if number < len(kinds) else self.rng.choice(kinds[:-1]))

    async def _end(self) -> None:
        """SIGTERM: every process must end in time (I11)."""
        began = self.loop.time()
        for process in self.processes:
            process.program.stop()
        for process in self.processes:
            await process.task
        if self.loop.time() - began > 20.0:
            self.broken.append(f"I11: stopping took {self.loop.time() - began:.1f} s")


def run_seed(seed: int) -> Report:
    """One whole run; deterministic in the seed."""
    loop = SimLoop(seed)
    run = _Run(seed, loop, random.Random(seed), config.parse(CONFIGURATION, "scenario"))  # noqa: S311 - a simulation
    return simulate(run.main(), loop)


def _node(number: int) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": f"node-{number}", "zone": f"z{number % 3}"}
    spec: dict[str, Any] = {}
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "20"}
    if number % 10 in (7, 8):
        allocatable = {"cpu": "16", "memory": "64Gi", "pods": "40", "nvidia.com/gpu": "4"}
    elif number % 10 == 9:
        labels["type"] = "virtual-kubelet"
        spec["taints"] = [{"key": "virtual-kubelet.io/provider", "value": "multisched", "effect": "NoSchedule"}]
        allocatable = {"cpu": "32", "memory": "64Gi", "pods": "60"}
    elif number % 3 == 0:
        labels["lend"] = "yes"
    status = {"capacity": allocatable, "allocatable": allocatable}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"node-{number}", "labels": labels},
        "spec": spec,
        "status": status,
    }


def _pod(name: str, rng: random.Random) -> dict[str, Any]:
    domain = rng.choice(["forecast", "forecast", "gpu", "job", "job"])
    requests = {"cpu": rng.choice(["100m", "250m", "500m"]), "memory": rng.choice(["64Mi", "256Mi", "512Mi"])}
    annotations: dict[str, str] = {}
    resources: dict[str, Any] = {"requests": requests}
    spec: dict[str, Any] = {"schedulerName": f"{domain}-scheduler"}
    if domain == "gpu" and rng.random() < 0.4:
        resources["limits"] = {"nvidia.com/gpu": "1"}
    elif domain == "gpu" and rng.random() < 0.5:
        annotations["multisched.io/gpu-milli"] = rng.choice(["250", "500"])
    chance = rng.random()
    if chance < 0.04:
        requests["cpu"] = "500"
    elif chance < 0.07:
        spec["schedulingGates"] = [{"name": "test/gate"}]
    elif chance < 0.12 and domain == "forecast":
        spec["nodeSelector"] = {"zone": rng.choice(["z0", "z1"])}
    elif chance < 0.14:
        spec["tolerations"] = [{"operator": "Exists"}]
    spec["containers"] = [{"name": "main", "image": f"app-{rng.randrange(4)}:v1", "resources": resources}]
    metadata = {"name": name, "labels": {"app": f"app-{rng.randrange(5)}"}, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
