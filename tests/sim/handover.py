"""Replicas that lead different domains of one cluster, while nodes move between the domains and binds take seconds.

A focused simulation beside the general one: real programs, real leases, the embedded API server, virtual time, one seed. Every
replica may write the leases of its own domains only, so that leaders differ; all of them read all leases, as replicas do.
Each bind that takes effect is judged at once by the server's own store: no node holds more CPU than it has (I1), and a pod's
node is its domain's, or was when the sender could last know (I8).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import orjson

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.config import loading
from multisched.config.nodes import NodeRouter
from multisched.config.schema import Configuration
from multisched.model.decode import Decoder
from multisched.model.objects import CPU
from multisched.model.wire import JSON, MERGE_PATCH, AnswerLostError, ConnectFailedError, LineStream, Response
from multisched.shell.program import LeaseLostError, Program, ProgramPorts
from multisched.testing.quiet_observer import QuietObserver
from multisched.testing.sim_loop import PROCESS, SimClock, SimLoop, simulate
from multisched.testing.virtual_workers import VirtualThreads
from multisched.whatif.repair_source import plans_of

NODES = 3
BIND_MIN_S, BIND_MAX_S = 0.2, 4.5
"""Time until a bind reaches the server: less than its deadline, and more than a watch needs to deliver a node."""
FAULTS_S, QUIET_S = 60.0, 40.0
PODS_PATH = "/api/v1/namespaces/default/pods"

HEAD = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\nlease: {perDomain: true}\ndomains:\n"
TWO = HEAD + "- name: forecast\n- name: gpu\n"
TOGETHER = TWO.replace("perDomain: true", "perDomain: false")
THREE = HEAD + "- name: forecast\n- name: gpu\n- name: edge\n  nodes: {rule: labelled}\n"
BY_LABEL = HEAD + "- name: forecast\n- name: gpu\n  nodes: {selector: {matchLabels: {pool: old}}}\n"
BY_NEW_LABEL = HEAD + "- name: forecast\n- name: gpu\n  nodes: {selector: {matchLabels: {pool: new}}}\n"


class LateLines:
    """A watch whose lines come `late_s` late."""

    def __init__(self, inner: LineStream, transport: ReplicaTransport, path: str) -> None:
        self._inner, self._transport, self._is_about_pods = inner, transport, "/pods" in path
        self._part = next((part for part in transport.lags if part in path), None)
        self.status, self.headers = inner.status, inner.headers

    async def read_body(self) -> bytes:
        return await self._inner.read_body()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        loop, awake_s = asyncio.get_running_loop(), float("-inf")
        async for line in self._inner if self._part is None else self._lagging(self._part):
            self._transport.check()
            stalled_until_s = (
                self._transport.pods_stalled_until_s if self._is_about_pods else self._transport.stalled_until_s
            )
            if stalled_until_s > loop.time():
                await asyncio.sleep(stalled_until_s - loop.time())
            if loop.time() - awake_s > self._transport.late_s:  # lines that arrive together have one delay
                await asyncio.sleep(self._transport.late_s)
            awake_s = loop.time()
            self._transport.check()
            yield line

    async def _lagging(self, part: str) -> AsyncIterator[bytes]:
        """Yields each line as long after its arrival as the transport says then."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue()

        async def read() -> None:
            try:
                async for line in self._inner:
                    arrived.put_nowait((loop.time(), line))
            finally:
                arrived.put_nowait((loop.time(), None))

        reading = loop.create_task(read())
        try:
            while (found := await arrived.get())[1] is not None:
                at_s, line = found
                await asyncio.sleep(max(0.0, at_s + self._transport.lags[part] - loop.time()))
                assert line is not None, "it is not the end"
                yield line
            await reading
        finally:
            reading.cancel()


class ReplicaTransport(DirectTransport):
    """The connection of one replica. Binds take seconds, and still take effect if the replica is killed."""

    def __init__(self, cluster: HandoverCluster, leads: frozenset[str], late_s: float) -> None:
        super().__init__(cluster.server)
        self._cluster = cluster
        self.leads = leads
        self.late_s = late_s
        self.stalled_until_s = 0.0
        """Until then its watches deliver nothing, and do not end."""
        self.pods_stalled_until_s = 0.0
        self.lags: dict[str, float] = {}
        """Part of the path of a watch -> how long after its arrival each of its lines is read."""
        self.bind_s: float | None = None
        """Duration of its binds; None: drawn for each bind."""
        self.list_s = 0.0
        """Delay of the response to a list of pods."""
        self.node_lists: Mapping[str, float] = {}
        """Node -> delay of a list of its pods; infinite: the list fails."""
        self.forbidden = "forbidden"
        """Requests whose path has this text get 403."""
        self.is_cut = False
        self.reaches_leases = True
        self._wire = contextvars.copy_context()
        self._travelling: set[asyncio.Task[Response]] = set()

    def check(self) -> None:
        if self.is_cut:
            raise ConnectFailedError("cut")

    @asynccontextmanager
    async def stream(
        self, path: str, *, connect_timeout_s: float = 5.0, idle_timeout_s: float = 90.0
    ) -> AsyncIterator[LineStream]:
        self.check()
        async with super().stream(path, connect_timeout_s=connect_timeout_s, idle_timeout_s=idle_timeout_s) as lines:
            yield LateLines(lines, self, path)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout_s: float = 30.0,
    ) -> Response:
        self.check()
        for node, takes_s in self.node_lists.items():
            if f"spec.nodeName%3D{node}" in path:
                if takes_s == float("inf"):
                    raise ConnectFailedError("cut")
                await asyncio.sleep(takes_s)
        if self.forbidden in path:
            return Response(403, b"{}", {})
        if "/leases" in path and not self.reaches_leases:
            raise ConnectFailedError("cut off from leases")
        if "/leases" in path and method != "GET" and not self._may_lead(body):
            return Response(409, b"{}", {})
        sent = super().request(method, path, body=body, content_type=content_type, accept=accept, timeout_s=timeout_s)
        if "/binding" not in path:
            answer = await sent
            if "/pods?" in path and "limit=" in path:
                await asyncio.sleep(self.list_s)
            self.check()
            return answer

        async def travel() -> Response:
            drawn_s = self._cluster.rng.uniform(BIND_MIN_S, BIND_MAX_S)
            await asyncio.sleep(drawn_s if self.bind_s is None else self.bind_s)
            answer = await sent
            self._cluster.judge(path, body or b"", answer)
            return answer

        return await self.carry(travel(), None)

    async def carry(self, travel: Coroutine[Any, Any, Response], answered_in_s: float | None) -> Response:
        """Lets a write arrive, also if the replica is killed or does not wait for its answer so long."""
        task = asyncio.get_running_loop().create_task(travel, context=self._wire)
        self._travelling.add(task)
        task.add_done_callback(self._travelling.discard)
        try:
            async with asyncio.timeout(answered_in_s):
                return await asyncio.shield(task)
        except TimeoutError:
            raise AnswerLostError("there was no answer in time") from None

    def _may_lead(self, body: bytes | None) -> bool:
        return str(orjson.loads(body or b"{}")["metadata"]["name"]).removeprefix("multisched-") in self.leads


@dataclass
class Replica:
    program: Program
    transport: ReplicaTransport
    task: asyncio.Task[None]
    leads: frozenset[str]
    text: str


@dataclass
class HandoverCluster:
    """The cluster, its replicas, and what was found wrong."""

    transport_class: ClassVar[type[ReplicaTransport]] = ReplicaTransport

    loop: SimLoop
    seed: int
    broken: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.clock = SimClock(self.loop)
        self.server = ApiServer(self.clock, rbac=False, seed=self.seed)
        self.api = DirectTransport(self.server)
        self.replicas: list[Replica] = []
        self.pods = 0
        self.started = 0

    # -- the cluster -----------------------------------------------------------------------------------------------

    async def send(self, method: str, path: str, document: dict[str, Any] | None = None, kind: str = JSON) -> Response:
        body = orjson.dumps(document) if document is not None else None
        return await self.api.request(method, path, body=body, content_type=kind)

    async def add_node(self, name: str, labels: dict[str, str] | None = None, gpus: int = 0) -> None:
        amounts = {"cpu": "8", "memory": "64Gi", "pods": "100", "nvidia.com/gpu": str(gpus)}
        node = {"kind": "Node", "metadata": {"name": name, "labels": labels or {}}}
        await self.send("POST", "/api/v1/nodes", {**node, "status": {"allocatable": amounts, "capacity": amounts}})

    async def remove_node(self, name: str) -> None:
        """Deletes the node, then its pods."""
        await self.send("DELETE", f"/api/v1/nodes/{name}")
        for pod in self.stored("pods"):
            if pod.node == name:
                await self.delete_pod(pod.name)

    async def set_gpus(self, name: str, gpus: int) -> None:
        amounts = {"nvidia.com/gpu": str(gpus)}
        patch = {"status": {"allocatable": amounts, "capacity": amounts}}
        await self.send("PATCH", f"/api/v1/nodes/{name}/status", patch, MERGE_PATCH)

    async def label(self, name: str, **labels: str | None) -> None:
        patch = {"metadata": {"labels": {key.replace("_", "/"): value for key, value in labels.items()}}}
        await self.send("PATCH", f"/api/v1/nodes/{name}", patch, MERGE_PATCH)

    async def add_pod(self, domain: str, cpu: str = "1", **rest: str) -> str:
        self.pods += 1
        name = f"{domain}-{self.pods}"
        containers = [{"name": "main", "image": "app", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}]
        spec = {"schedulerName": f"{domain}-scheduler", "containers": containers, **rest}
        await self.send("POST", PODS_PATH, {"kind": "Pod", "metadata": {"name": name}, "spec": spec})
        return name

    def node_of(self, name: str) -> str:
        return next(str(pod.node) for pod in self.stored("pods") if pod.name == name)

    async def delete_pod(self, name: str) -> None:
        await self.send("DELETE", f"{PODS_PATH}/{name}?gracePeriodSeconds=0")

    async def delete_lease(self, group: str) -> None:
        await self.send("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/multisched-{group}")

    def stored(self, resource: str) -> list[Any]:
        decoder = Decoder()
        decode = decoder.pod if resource == "pods" else decoder.node

        objects = self.server.store.collection(resource).items()
        return [decode(msgspec.Raw(orjson.dumps(stored.document()))) for stored in dict(objects).values()]

    # -- the judge -------------------------------------------------------------------------------------------------

    def judge(self, path: str, body: bytes, answer: Response) -> None:
        if answer.status != 201:
            return
        self.counts["bound"] += 1
        name = orjson.loads(body)["target"]["name"]
        held = sum(pod.requests.get(CPU, 0) for pod in self.stored("pods") if pod.node == name)
        if held > 8000 and any(node.name == name for node in self.stored("nodes")):
            self.broken.append(f"I1: {name} holds {held} of 8000 mCPU at {self.loop.time():.1f} s")

    # -- replicas --------------------------------------------------------------------------------------------------

    def start(self, leads: Iterable[str], text: str) -> Replica:
        self.started += 1
        identity = f"replica-{self.started}"
        transport = self.transport_class(self, frozenset(leads), self.rng.choice([0.0, 0.02, 0.5]))
        context = contextvars.copy_context()
        context.run(PROCESS.set, identity)
        ports = ProgramPorts(
            transport,
            self.clock,
            random.Random(self.rng.random()),
            identity,
            "kube-system",
            observer=lambda domain: QuietObserver(),
            background_threads=VirtualThreads,
            plan_repairs=plans_of,
        )
        program = context.run(Program, loading.parse(text, "handover"), ports)
        task = self.loop.create_task(self._keep(program), context=context)
        replica = Replica(program, transport, task, frozenset(leads), text)
        self.replicas.append(replica)
        return replica

    async def _keep(self, program: Program) -> None:
        """Restarts a program that ends because it lost its lease, as a kubelet restarts a container."""
        try:
            await program.run()
        except* LeaseLostError:
            self.counts["lease lost"] += 1
            replica = next(r for r in self.replicas if r.program is program)
            replica.transport.is_cut = True
            self.replicas.remove(replica)
            self.start(replica.leads, replica.text)

    async def kill(self, replica: Replica) -> None:
        replica.transport.is_cut = True
        self.replicas.remove(replica)
        replica.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await replica.task

    async def stop(self, replica: Replica) -> None:
        replica.program.stop()
        await replica.task
        self.replicas.remove(replica)

    async def end(self) -> None:
        for replica in list(self.replicas):
            await self.stop(replica)


class FaultSchedule:
    """Disruptions of the cluster and its replicas for `FAULTS_S`, drawn from the seed."""

    def __init__(self, cluster: HandoverCluster, domains: tuple[str, ...], moves: str) -> None:
        self.cluster, self.domains, self.moves = cluster, domains, moves

    async def run(self) -> None:
        cluster, loop = self.cluster, self.cluster.loop
        end_s = loop.time() + FAULTS_S
        while loop.time() < end_s:
            await asyncio.sleep(cluster.rng.uniform(0.02, 1.2))
            what = cluster.rng.choices(
                [
                    self._move,
                    self._burst,
                    self._delete_pods,
                    self._heartbeat,
                    self._recreate,
                    self._stall_watches,
                    self._fail,
                ],
                [6, 8, 6, 2, 1, 1, 0.5],
            )[0]
            cluster.counts[what.__name__.strip("_")] += 1
            await what()

    def _node(self) -> str:
        return f"node-{self.cluster.rng.randrange(NODES)}"

    async def _move(self) -> None:
        rng, name = self.cluster.rng, self._node()
        if self.moves == "gpus":
            await self.cluster.set_gpus(name, rng.choice([0, 4]))
        elif self.moves == "pool":
            await self.cluster.label(name, pool=rng.choice(["old", "new", "none"]))
        else:
            await self.cluster.label(name, **{"multisched.io_domain": rng.choice(self.domains)})

    async def _burst(self) -> None:
        for _ in range(self.cluster.rng.randrange(1, 9)):
            await self.cluster.add_pod(
                self.cluster.rng.choice(self.domains), self.cluster.rng.choice(["500m", "1", "3"])
            )

    async def _delete_pods(self) -> None:
        pods = sorted(pod.name for pod in self.cluster.stored("pods"))
        for name in self.cluster.rng.sample(pods, len(pods) // 2):
            await self.cluster.delete_pod(name)

    async def _heartbeat(self) -> None:
        await self.cluster.label(self._node(), beat=str(self.cluster.rng.random()))

    async def _recreate(self) -> None:
        name = self._node()
        await self.cluster.remove_node(name)
        await self.cluster.add_node(name, {"multisched.io/domain": self.cluster.rng.choice(self.domains)})

    async def _stall_watches(self) -> None:
        """Stalls the watches of a replica for longer than any bind takes. The replica cannot detect it."""
        transport = self.cluster.rng.choice(self.cluster.replicas).transport
        until_s = self.cluster.loop.time() + self.cluster.rng.uniform(1.0, 12.0)
        transport.stalled_until_s = self.cluster.rng.choice([0.0, until_s])
        transport.pods_stalled_until_s = until_s

    async def _fail(self) -> None:
        replica = self.cluster.rng.choice(self.cluster.replicas)
        if self.cluster.rng.random() < 0.5:
            await self.cluster.kill(replica)
        else:
            await self.cluster.stop(replica)
        self.cluster.start(replica.leads, replica.text)


@dataclass(frozen=True)
class HandoverReport:
    broken: tuple[str, ...]
    counts: Counter[str]
    late_pods: tuple[str, ...]
    """Pods that are not bound although a node of their domain has been empty for a long time."""


def run(seed: int, texts: dict[tuple[str, ...], str], moves: str) -> HandoverReport:
    """Runs one seed. `texts`: domains that a replica may lead -> its configuration. `moves`: what moves nodes between domains."""
    loop = SimLoop(seed)
    cluster = HandoverCluster(loop, seed)
    configuration = loading.parse(next(iter(texts.values())), "handover")

    async def main() -> HandoverReport:
        for number in range(NODES):
            await cluster.add_node(f"node-{number}", {"pool": "old"} if moves == "pool" else {}, gpus=4 * (number % 2))
        for leads, text in texts.items():
            cluster.start(leads, text)
        await asyncio.sleep(10.0)
        domains = tuple(domain.name for domain in configuration.domains)
        await FaultSchedule(cluster, domains, moves).run()
        late_pods = await _calm(cluster, configuration) if len(set(texts.values())) == 1 else ()
        await cluster.end()
        return HandoverReport(tuple(cluster.broken), cluster.counts, tuple(late_pods))

    return simulate(main(), loop)


def run_on_one_node(main: Callable[[HandoverCluster], Coroutine[Any, Any, None]]) -> None:
    """Runs a test on a cluster with one node, `n`, which has GPUs."""
    loop = SimLoop(seed=1)
    cluster = HandoverCluster(loop, seed=1)

    async def on_loop() -> None:
        await cluster.add_node("n", gpus=4)
        await main(cluster)
        await cluster.end()
        assert cluster.broken == []

    simulate(on_loop(), loop)


async def _calm(cluster: HandoverCluster, configuration: Configuration) -> list[str]:
    """Returns pods that are not bound after the disruptions: each node must be used by its domain again."""
    for pod in cluster.stored("pods"):
        await cluster.delete_pod(pod.name)
    await asyncio.sleep(QUIET_S)
    router, wanted = NodeRouter(configuration), {}
    for node in cluster.stored("nodes"):
        home = router.home(node)
        if home is not None:
            for _ in range(2):
                wanted[await cluster.add_pod(home, "3")] = home
    await asyncio.sleep(QUIET_S)
    return [pod.name for pod in cluster.stored("pods") if pod.name in wanted and not pod.node]
