"""A cluster with GPU nodes of three sharing systems, their device plugins, and replicas of the program, in virtual time.

`GpuCluster` records each binding and what plugins do, and judges from the API server's objects alone: which pod each plugin picked, what
containers got of each card at any moment, and which pending pods would fit.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import orjson

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.cluster.kubelet.device_plugins import Allocation
from multisched.cluster.kubelet.kubelets import Kubelets
from multisched.cluster.kubelet.stages_builtin import builtin_stages
from multisched.config import loading
from multisched.model.wire import MERGE_PATCH, ConnectFailedError, LineStream, Response
from multisched.shell.extenders import OpenExtender
from multisched.shell.program import Program, ProgramPorts
from multisched.shell.workers.background_tasks import NetworkMeasures
from multisched.testing.builders import Document, container, node_document, pod_document
from multisched.testing.quiet_observer import QuietObserver
from multisched.testing.sim_loop import PROCESS, SimClock, SimLoop
from multisched.testing.virtual_workers import VirtualProcess, VirtualThreads, VirtualWorkers
from multisched.whatif.repair_source import plans_of
from tests.kit.checkers.invariants import differences

NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"
LOCK = "hami.io/mutex.lock"
CARD_MIB = 24_000
CARD_GIB = 24
SPLIT = 10
HAMI, VOLCANO, GPUSHARE = "hami", "volcano-vgpu", "gpushare"
REQUEST_MAX_S = 0.02
"""A request, and its answer, take up to this long."""

CONFIGURATION = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
- name: gpu
client: {bindTimeout: 900ms}
lease: {duration: 2s, renewDeadline: 1s, retryPeriod: 200ms}
"""


def registered(cards: int, *, healthy: Iterable[int] | None = None) -> str:
    """HAMi's register annotation."""
    well = set(range(cards) if healthy is None else healthy)
    rows = [
        {
            "id": f"GPU-{index}",
            "index": index,
            "count": SPLIT,
            "devmem": CARD_MIB,
            "devcore": 100,
            "type": "NVIDIA-A10",
            "health": index in well,
        }
        for index in range(cards)
    ]
    return orjson.dumps(rows).decode()


def hami_node(name: str, cards: int = 8) -> Document:
    annotations = {"hami.io/node-nvidia-register": registered(cards)}
    return node_document(
        name, cpu=1000, memory="4Ti", pods=1000, extra={"nvidia.com/gpu": cards * SPLIT}, annotations=annotations
    )


def volcano_node(name: str, cards: int = 8) -> Document:
    text = "".join([f"GPU-{index},{SPLIT},{CARD_MIB},NVIDIA-A10,true,hami-core:" for index in range(cards)])
    units = {"number": cards * SPLIT, "memory": cards * CARD_MIB, "cores": cards * 100}
    extra = {f"volcano.sh/vgpu-{unit}": amount for unit, amount in units.items()}
    return node_document(
        name, cpu=1000, memory="4Ti", pods=1000, extra=extra, annotations={"volcano.sh/node-vgpu-register": text}
    )


def gpushare_node(name: str, cards: int = 8) -> Document:
    extra = {"aliyun.com/gpu-mem": cards * CARD_GIB, "aliyun.com/gpu-count": cards}
    return node_document(name, cpu=1000, memory="4Ti", pods=1000, extra=extra)


@dataclass(frozen=True)
class Demand:
    """What a pod requests: for each container, a number of cards and an amount of memory of each."""

    dialect: str
    containers: tuple[tuple[int, int], ...]
    """Number of cards, and memory of each in the unit of the dialect."""

    def document(self, name: str, **fields: Any) -> Document:
        parts = [
            container(f"c{place}", cpu="10m")
            | {"resources": {"limits": self._limits(*part), "requests": {"cpu": "10m"}}}
            for place, part in enumerate(self.containers)
        ]
        return pod_document(name, *parts, schedulerName="gpu-scheduler", **fields)

    def _limits(self, cards: int, memory: int) -> Mapping[str, str]:
        if self.dialect == HAMI:
            return {"nvidia.com/gpu": str(cards), "nvidia.com/gpumem": str(memory), "nvidia.com/gpucores": "1"}
        if self.dialect == VOLCANO:
            return {"volcano.sh/vgpu-number": str(cards), "volcano.sh/vgpu-memory": str(memory)}
        return {"aliyun.com/gpu-mem": str(memory)}


SIZES: Mapping[str, tuple[Demand, ...]] = {
    HAMI: tuple(
        Demand(HAMI, parts)
        for parts in (((1, 2_000),), ((1, 5_000),), ((2, 4_000),), ((1, 9_000),), ((1, 3_000), (1, 1_000)))
    ),
    VOLCANO: tuple(
        Demand(VOLCANO, parts) for parts in (((1, 2_000),), ((1, 5_000),), ((2, 4_000),), ((1, 9_000),), ((3, 2_000),))
    ),
    GPUSHARE: tuple(Demand(GPUSHARE, ((1, memory),)) for memory in (1, 2, 4, 6, 9)),
}
"""Five sizes in each dialect."""


class Wire(DirectTransport):
    """One replica's connection: requests and answers take a moment, until the replica is killed."""

    def __init__(self, cluster: GpuCluster) -> None:
        super().__init__(cluster.server)
        self._cluster = cluster
        self._rng = random.Random(cluster.rng.random())
        self.is_cut = False

    async def request(self, method: str, path: str, **rest: Any) -> Response:
        await self._pass()
        await self._cluster.before_request(path)
        answer = self._cluster.answer(path.partition("?")[0]) or await super().request(method, path, **rest)
        if path.partition("?")[0].endswith("/binding"):
            self._cluster.on_binding(path, rest["body"], answer)
        await self._pass()
        return answer

    @asynccontextmanager
    async def stream(
        self, path: str, *, connect_timeout_s: float = 5.0, idle_timeout_s: float = 90.0
    ) -> AsyncIterator[LineStream]:
        await self._pass()
        async with super().stream(path, idle_timeout_s=idle_timeout_s) as lines:
            yield lines

    async def _pass(self) -> None:
        await asyncio.sleep(self._rng.uniform(0, REQUEST_MAX_S))
        if self.is_cut:
            raise ConnectFailedError("the replica was killed")


@dataclass
class Replica:
    program: Program
    wire: Wire
    task: asyncio.Task[None]


@dataclass
class Bound:
    """A binding that took effect."""

    pod: str
    node: str
    at_s: float


@dataclass
class GpuCluster:
    """A cluster with shared GPUs and replicas of the program. Created by `open_gpu_cluster`."""

    loop: SimLoop
    seed: int
    plugin_delay_s: tuple[float, float]
    configuration: str = CONFIGURATION
    demands: dict[str, Demand] = field(default_factory=dict)
    """Pod -> demand, of all pods ever created."""
    uids: dict[str, str] = field(default_factory=dict)
    created_s: dict[str, float] = field(default_factory=dict)
    bound: list[Bound] = field(default_factory=list)
    refused_binds: list[str] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    killed: int = 0

    def __post_init__(self) -> None:
        self.answer: Callable[[str], Response | None] = lambda path: None
        """Path -> a response that is returned instead of the server's; None: the request is sent to the server."""
        self.before_request: Callable[[str], Awaitable[None]] = _nothing
        """Called with the path before each request of a replica; may change the cluster."""
        self.open_extender: OpenExtender | None = None
        """Opens clients of hooks; there is no network in virtual time."""
        self.rng = random.Random(self.seed)
        self.clock = SimClock(self.loop)
        self.server = ApiServer(self.clock, rbac=False)
        self.api = DirectTransport(self.server)
        self.observer = QuietObserver()
        self.kubelets = Kubelets(
            self.api,
            clock=self.clock,
            rng=random.Random(self.seed + 1),
            stages=builtin_stages("general"),
            plugin_delay_s=self.plugin_delay_s,
        )
        self._numbers = count(1)

    # -- what users and operators do -----------------------------------------------------------------------------------

    async def send(self, method: str, path: str, document: Document | None = None, **rest: Any) -> Document:
        body = None if document is None else orjson.dumps(document)
        answer = await self.api.request(method, path, body=body, **rest)
        assert answer.status < 300, answer.body
        found: Document = orjson.loads(answer.body)
        return found

    async def add_node(self, document: Document) -> None:
        await self.send("POST", NODES, document)

    async def patch_node(self, name: str, body: Document, *, subresource: str = "") -> None:
        await self.send("PATCH", f"{NODES}/{name}{subresource}", body, content_type=MERGE_PATCH)

    async def lock(self, node: str) -> str:
        """Returns the node's lock; empty if there is none."""
        notes = (await self.send("GET", f"{NODES}/{node}"))["metadata"].get("annotations") or {}
        return str(notes.get(LOCK, ""))

    async def swap_lock(self, node: str, before: str, text: str) -> bool:
        """Sets the node's lock as another client does, if it is `before` (empty: there is none). Returns False if it is not."""
        if await self.lock(node) != before:
            return False
        await self.patch_node(node, {"metadata": {"annotations": {LOCK: text or None}}})
        return True

    async def add_foreign_pod(self, name: str) -> None:
        """A pending pod of another scheduler."""
        await self.send("POST", PODS, pod_document(name, container("c"), schedulerName="hami-scheduler"))

    async def add_pod(self, name: str, demand: Demand, **fields: Any) -> None:
        made = await self.send("POST", PODS, demand.document(name, **fields))
        self.demands[name], self.uids[name] = demand, made["metadata"]["uid"]
        self.created_s[name] = self.loop.time()

    async def delete_pod(self, name: str) -> bool:
        """Deletes the pod with its grace period, as users do; False if it is gone."""
        answer = await self.api.request("DELETE", f"{PODS}/{name}")
        return answer.status == 200

    async def pods(self) -> dict[str, Document]:
        return {pod["metadata"]["name"]: pod for pod in (await self.send("GET", PODS))["items"]}

    async def nodes(self) -> dict[str, Document]:
        return {node["metadata"]["name"]: node for node in (await self.send("GET", NODES))["items"]}

    async def until(self, holds: Any, within_s: float = 60.0) -> None:
        end_s = self.loop.time() + within_s
        while not await holds():
            assert self.loop.time() < end_s, f"not within {within_s} s: {self.waiting()}"
            await asyncio.sleep(0.05)

    # -- replicas ------------------------------------------------------------------------------------------------------

    def start(self) -> Replica:
        identity = f"replica-{next(self._numbers)}"
        context = contextvars.copy_context()
        context.run(PROCESS.set, identity)
        wire = Wire(self)
        ports = ProgramPorts(
            wire,
            self.clock,
            random.Random(self.rng.random()),
            identity,
            "kube-system",
            observer=lambda domain: self.observer,
            measures=NetworkMeasures(wire, random.Random(self.rng.random())),
            background_threads=VirtualThreads,
            open_process=VirtualProcess,
            worker_factory=VirtualWorkers(random.Random(self.seed)),
            plan_repairs=plans_of,
            open_extender=self.open_extender,
        )
        program = context.run(Program, loading.parse(self.configuration, "test"), ports)
        task = self.loop.create_task(_ended(program), context=context)
        replica = Replica(program, wire, task)
        self.replicas.append(replica)
        return replica

    async def kill(self, replica: Replica) -> None:
        """Ends a replica as SIGKILL does: none of its later requests reaches the server."""
        replica.wire.is_cut = True
        replica.task.cancel()
        await asyncio.wait([replica.task])
        self.replicas.remove(replica)
        self.killed += 1

    def leader(self) -> Replica | None:
        leading = [one for one in self.replicas if any(w.intake.is_leading for w in one.program.router.workers())]
        return leading[0] if leading else None

    def waiting(self) -> dict[str, tuple[str, str]]:
        """Pod -> queue state and message, as the leader has it."""
        leader = self.leader()
        workers = leader.program.router.workers() if leader is not None else ()
        return {e.pod.name: (e.state.value, e.message) for worker in workers for e in worker.queue.entries()}

    def differences(self) -> list[str]:
        return [text for one in self.replicas for text in differences(one.program, self.server)]

    def on_binding(self, path: str, body: bytes, answer: Response) -> None:
        pod = path.split("?")[0].split("/")[-2]
        if answer.status == 201:
            self.bound.append(Bound(pod, orjson.loads(body)["target"]["name"], self.loop.time()))
        elif answer.status != 404:  # a pod that was deleted in between
            self.refused_binds.append(f"{pod}: {answer.status} {answer.body[:200]!r}")

    # -- judging -------------------------------------------------------------------------------------------------------

    @property
    def allocations(self) -> list[Allocation]:
        return list(self.kubelets.plugins.allocations)

    def wrong_picks(self) -> list[str]:
        """Allocations for which the plugin picked another pod than the admitted one."""
        names = {uid: name for name, uid in self.uids.items()}
        return [
            f"{a.node} {a.rule}: admitted {names[a.uid]}, picked {names[a.believed_uid]}"
            for a in self.allocations
            if a.uid != a.believed_uid
        ]

    def overfull_cards(self) -> list[str]:
        """Returns cards of which containers together got more memory than the card has, at any moment."""
        changes: dict[tuple[str, str], list[tuple[float, int, int]]] = defaultdict(list)
        for allocation in self.allocations:
            for one in allocation.slices:
                changes[allocation.node, one.card].append((allocation.began_s, 1, one.memory))
                changes[allocation.node, one.card].append((allocation.ended_s, 0, -one.memory))
        found = []
        for (node, card), steps in changes.items():
            size, held = (CARD_GIB if card.isdigit() else CARD_MIB), 0
            for at_s, _, amount in sorted(steps):
                held += amount
                if held > size:
                    found.append(f"{node} card {card}: {held} of {size} at {at_s:.3f} s")
        return found

    def wakes_s(self) -> list[float]:
        """Returns delays in seconds between the moment at which a pod could be bound to a node and its binding, sorted.

        Only nodes are measured where the device plugin could have confused the pod with an earlier one. The delay starts at the
        last allocation, at the end of a pod, or at the creation of the pod, whichever is latest.
        """
        texts = {name: _confused(demand) for name, demand in self.demands.items()}
        names = {uid: name for name, uid in self.uids.items()}
        answers: dict[tuple[str, str], list[float]] = defaultdict(list)
        for allocation in self.allocations:
            answers[allocation.node, texts[names[allocation.uid]]].append(allocation.began_s)
        ended_s, found = [allocation.ended_s for allocation in self.allocations], []
        for bound in self.bound:
            before = [at_s for at_s in answers[bound.node, texts[bound.pod]] if at_s < bound.at_s]
            latest = [at_s for at_s in ended_s if at_s < bound.at_s]
            if before and before[-1] > self.created_s[bound.pod]:
                found.append(bound.at_s - max(before[-1:] + latest))
        return sorted(found)

    async def pending_that_fit(self) -> list[str]:
        """Returns pending pods for which a node has cards with enough free memory, by the requests and annotations of bound pods."""
        pods, nodes = await self.pods(), await self.nodes()
        found = []
        for name, pod in pods.items():
            if pod["spec"].get("nodeName") or name not in self.demands:
                continue
            found += [
                f"{name} {self.demands[name].containers} fits {node}"
                for node, document in nodes.items()
                if _dialect_of(document) == self.demands[name].dialect and self._fits(name, node, pods)
            ]
        return found

    def _fits(self, name: str, node: str, pods: Mapping[str, Document]) -> bool:
        used, sharers = Counter[str](), Counter[str]()
        for pod in pods.values():
            if pod["spec"].get("nodeName") == node and pod["status"]["phase"] in ("Pending", "Running"):
                for card, memory in _held(pod):
                    used[card] += memory
                    sharers[card] += 1
        demand = self.demands[name]
        size = CARD_GIB if demand.dialect == GPUSHARE else CARD_MIB
        for cards, memory in demand.containers:
            names = [str(at) if demand.dialect == GPUSHARE else f"GPU-{at}" for at in range(8)]
            fitting = [c for c in names if used[c] + memory <= size and (size == CARD_GIB or sharers[c] < SPLIT)]
            if len(fitting) < cards:
                return False
            for card in sorted(fitting, key=lambda c: -used[c])[:cards]:
                used[card] += memory
                sharers[card] += 1
        return True


def _confused(demand: Demand) -> str:
    """Returns a key that is equal for pods which the device plugin cannot tell apart."""
    cards, memory = demand.containers[0]
    return {HAMI: HAMI, VOLCANO: f"{VOLCANO} {cards}", GPUSHARE: f"{GPUSHARE} {memory}"}[demand.dialect]


def _held(pod: Document) -> list[tuple[str, int]]:
    """Card and memory, of all containers of a bound pod."""
    notes = pod["metadata"].get("annotations") or {}
    if "ALIYUN_COM_GPU_MEM_IDX" in notes:
        return [(notes["ALIYUN_COM_GPU_MEM_IDX"], int(notes["ALIYUN_COM_GPU_MEM_POD"]))]
    text = notes.get("hami.io/vgpu-devices-allocated") or notes.get("volcano.sh/vgpu-ids-new") or ""
    devices = [device.split(",") for part in text.split(";") for device in part.split(":") if device.count(",") == 3]
    return [(one[0], int(one[2])) for one in devices]


def _dialect_of(node: Document) -> str:
    notes = node["metadata"].get("annotations") or {}
    if "hami.io/node-nvidia-register" in notes:
        return HAMI
    return VOLCANO if "volcano.sh/node-vgpu-register" in notes else GPUSHARE


async def _nothing(path: str) -> None:
    """Changes nothing before a request."""


async def _ended(program: Program) -> None:
    """Runs a replica. It may end with an error, for instance after losing its lease; the test starts another one."""
    try:
        await program.run()
    except* Exception as error:  # noqa: BLE001 - judged by what the cluster shows
        del error


@asynccontextmanager
async def open_gpu_cluster(
    loop: SimLoop,
    *nodes: Document,
    seed: int = 0,
    replicas: int = 1,
    plugin_delay_s: tuple[float, float] = (0.0, 2.0),
    configuration: str = CONFIGURATION,
    open_extender: OpenExtender | None = None,
) -> AsyncIterator[GpuCluster]:
    """Runs a cluster with these nodes, their kubelets and replicas of the program until the block is left."""
    cluster = GpuCluster(loop, seed, plugin_delay_s, configuration)
    cluster.open_extender = open_extender
    for node in nodes:
        await cluster.add_node(node)
    kubelets = asyncio.create_task(cluster.kubelets.run())
    await cluster.kubelets.wait_synced()
    for _ in range(replicas):
        cluster.start()
    await asyncio.sleep(3.0)
    try:
        yield cluster
        cluster.kubelets.validate_state()
    finally:
        for replica in list(cluster.replicas):
            await cluster.kill(replica)
        kubelets.cancel()
        await asyncio.gather(kubelets, return_exceptions=True)
