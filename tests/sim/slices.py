"""Two or three replicas that lead the lender and the borrower of a sliced loan, while everything around them is disturbed.

Beside `handover`: the same replicas, leases and judge of binds. Writes of SliceSets are late, lost, or take effect without an answer;
watches stall; replicas are killed and stopped; nodes move between the domains, join and leave the loan; pods come and end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
import yaml

from multisched.cluster.api.direct import DirectTransport
from multisched.model.wire import AnswerLostError, Response
from multisched.testing.sim_loop import SimLoop, simulate
from tests.sim.handover import PODS_PATH, HandoverCluster, Replica, ReplicaTransport

CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SLICES: Final = "/apis/multisched.io/v1alpha1/slicesets"
DEFINITION: Final = Path(__file__).parents[2] / "deploy" / "crds" / "slicesets.yaml"
NODES: Final = 3
NODE_MILLI: Final = 8_000
FAULTS_S: Final = 150.0
QUIET_S: Final = 120.0
ANSWERED_IN_S: Final = 6.0
"""How long a replica waits for the answer to a write, which may take effect later."""
LENDER, BORROWER = "gpu", "job"


def configuration(share_percent: int) -> str:
    loan = {
        "from": LENDER,
        "selector": {"matchExpressions": [{"key": "kept", "operator": "DoesNotExist"}]},
        "sharePercent": share_percent,
        "return": {"notice": "6s", "grace": "4s"},
    }
    domains = [
        {"name": LENDER, "nodes": {"rule": "rest"}},
        {"name": BORROWER, "nodes": {"rule": "labelled"}, "loans": [loan]},
    ]
    head = {"apiVersion": "multisched.io/v1", "kind": "MultischedConfiguration", "lease": {"perDomain": True}}
    return yaml.safe_dump({**head, "domains": domains})


class SliceFaults(ReplicaTransport):
    """A connection on which requests about SliceSets may be late, get lost, or lose their answers."""

    def __init__(self, cluster: HandoverCluster, leads: frozenset[str], late_s: float) -> None:
        super().__init__(cluster, leads, late_s)
        self._rng = random.Random(cluster.rng.random())
        self.loses = 0.0
        """Share of writes that get lost, or lose their answer."""
        self.late_max_s = 0.0

    async def request(self, method: str, path: str, **more: Any) -> Response:
        if "/slicesets" not in path or method == "GET":
            return await super().request(method, path, **more)
        self.check()
        rng = self._rng
        late_s, loses_answer = rng.uniform(0.0, self.late_max_s), rng.random() < self.loses
        if rng.random() < self.loses / 2:
            raise AnswerLostError("lost before it arrived")

        async def travel() -> Response:
            await asyncio.sleep(late_s)
            return await DirectTransport.request(self, method, path, **more)

        answer = await self.carry(travel(), ANSWERED_IN_S)
        self.check()
        if loses_answer:
            raise AnswerLostError("its answer was lost")
        return answer


class SliceCluster(HandoverCluster):
    """The cluster, with a judge of every version of every pod."""

    transport_class = SliceFaults

    async def judge_pods(self) -> None:
        """Sums the requests of the pods on each node over a watch of its own."""
        pods: dict[str, tuple[str, int]] = {}
        async with self.api.stream("/api/v1/pods?watch=true", idle_timeout_s=1e9) as lines:
            async for line in lines:
                event = orjson.loads(line)
                pod = event["object"]
                uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName", "")
                pods.pop(uid, None)
                if event["type"] == "DELETED" or not node:
                    continue
                pods[uid] = node, sum(_milli(one["resources"]["requests"]["cpu"]) for one in pod["spec"]["containers"])
                total = sum(milli for at, milli in pods.values() if at == node)
                if total > NODE_MILLI:
                    self.broken.append(f"I1: {node} holds {total} of {NODE_MILLI} mCPU at {self.loop.time():.1f} s")

    async def end_evicted(self) -> None:
        """Ends pods that are being deleted, as kubelets do."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 3.0))
            answer = await self.send("GET", PODS_PATH)
            for pod in orjson.loads(answer.body)["items"]:
                if pod["metadata"].get("deletionTimestamp"):
                    await self.delete_pod(pod["metadata"]["name"])

    async def slice_sets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = orjson.loads((await self.send("GET", SLICES)).body).get("items", [])
        return found

    def bound(self, domain: str) -> int:
        return sum(1 for pod in self.stored("pods") if pod.node and pod.name.startswith(f"{domain}-"))


def _milli(cpu: str) -> int:
    return int(cpu[:-1]) if cpu.endswith("m") else 1000 * int(cpu)


class SliceSchedule:
    """Disturbances, drawn from the seed."""

    def __init__(self, cluster: SliceCluster, *, moves: bool) -> None:
        self.cluster = cluster
        steps: list[tuple[Callable[[], Awaitable[None]], float]] = [
            (self._burst, 10),
            (self._delete_pods, 5),
            (self._stall_watches, 1),
            (self._disturb_writes, 2),
            (self._slow_binds, 1),
            (self._fail, 0.8),
        ]
        if moves:
            steps += [(self._move, 2), (self._keep, 1), (self._recreate, 0.5)]
        self._steps = [step for step, _ in steps]
        self._weights = [weight for _, weight in steps]

    async def run(self) -> None:
        cluster, loop = self.cluster, self.cluster.loop
        end_s = loop.time() + FAULTS_S
        while loop.time() < end_s:
            await asyncio.sleep(cluster.rng.uniform(0.05, 2.0))
            step = cluster.rng.choices(self._steps, self._weights)[0]
            cluster.counts[getattr(step, "__name__", "").strip("_")] += 1
            await step()

    def _replica(self) -> Replica:
        return self.cluster.rng.choice(self.cluster.replicas)

    async def _burst(self) -> None:
        rng = self.cluster.rng
        domain = rng.choice([LENDER, BORROWER, BORROWER])
        for _ in range(rng.randrange(1, 9)):
            await self.cluster.add_pod(domain, rng.choice(["500m", "1", "3"]))

    async def _delete_pods(self) -> None:
        pods = sorted(pod.name for pod in self.cluster.stored("pods"))
        for name in self.cluster.rng.sample(pods, len(pods) // 2):
            await self.cluster.delete_pod(name)

    async def _stall_watches(self) -> None:
        transport, until_s = self._replica().transport, self.cluster.loop.time() + self.cluster.rng.uniform(1.0, 12.0)
        transport.stalled_until_s = self.cluster.rng.choice([0.0, until_s])
        transport.pods_stalled_until_s = until_s

    async def _disturb_writes(self) -> None:
        for replica in self.cluster.replicas:
            transport = replica.transport
            assert isinstance(transport, SliceFaults), "the cluster makes no others"
            transport.loses = self.cluster.rng.choice([0.0, 0.0, 0.3])
            transport.late_max_s = self.cluster.rng.choice([0.0, 0.1, 1.0, 3.0, 40.0])

    async def _slow_binds(self) -> None:
        self._replica().transport.bind_s = self.cluster.rng.choice([None, 0.05, 4.5])

    async def _fail(self) -> None:
        replica = self._replica()
        if self.cluster.rng.random() < 0.7:
            await self.cluster.kill(replica)
        else:
            await self.cluster.stop(replica)
        await asyncio.sleep(self.cluster.rng.choice([0.0, 1.0, 25.0]))
        self.cluster.start(replica.leads, replica.text)

    def _node(self) -> str:
        return f"node-{self.cluster.rng.randrange(NODES)}"

    async def _move(self) -> None:
        await self.cluster.label(self._node(), **{"multisched.io_domain": self.cluster.rng.choice([LENDER, BORROWER])})

    async def _keep(self) -> None:
        await self.cluster.label(self._node(), kept=self.cluster.rng.choice([None, "yes"]))

    async def _recreate(self) -> None:
        name = self._node()
        await self.cluster.remove_node(name)
        await self.cluster.add_node(name)


@dataclass(frozen=True)
class SliceReport:
    broken: tuple[str, ...]
    counts: Counter[str]
    stuck: tuple[str, ...]
    """What did not settle after the disturbances."""


def run(seed: int, *, moves: bool) -> SliceReport:
    """Runs one seed. `moves`: nodes move between domains, and into and out of the loan."""
    loop = SimLoop(seed)
    cluster = SliceCluster(loop, seed)
    text = configuration(cluster.rng.choice([100, 60]))

    async def main() -> SliceReport:
        for number in range(NODES):
            await cluster.add_node(f"node-{number}")
        await cluster.send("POST", CRDS, yaml.safe_load(DEFINITION.read_text()))
        tasks = [asyncio.create_task(cluster.judge_pods()), asyncio.create_task(cluster.end_evicted())]
        both = [{LENDER}, {BORROWER}] + [{LENDER, BORROWER}] * cluster.rng.randrange(2)
        for leads in both:
            cluster.start(leads, text)
        await asyncio.sleep(15.0)
        await SliceSchedule(cluster, moves=moves).run()
        stuck = await _settled(cluster)
        await cluster.end()
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        return SliceReport(tuple(dict.fromkeys(cluster.broken)), cluster.counts, tuple(stuck))

    return simulate(main(), loop)


async def _settled(cluster: SliceCluster) -> Sequence[str]:
    """Ends the disturbances; returns what is wrong once the loan has had time to settle."""
    for replica in cluster.replicas:
        transport = replica.transport
        assert isinstance(transport, SliceFaults), "the cluster makes no others"
        transport.loses = transport.late_max_s = transport.stalled_until_s = transport.pods_stalled_until_s = 0.0
        transport.bind_s = 0.05
    for number in range(NODES):
        await cluster.label(f"node-{number}", multisched_io_domain=None, kept=None, **{"multisched.io_domain": None})
    for pod in cluster.stored("pods"):
        await cluster.delete_pod(pod.name)
    await asyncio.sleep(QUIET_S)
    stuck = []
    for _ in range(4 * NODES):
        await cluster.add_pod(BORROWER, "1")
    await asyncio.sleep(QUIET_S)
    if cluster.bound(BORROWER) != 4 * NODES:
        stuck.append(f"{cluster.bound(BORROWER)} of {4 * NODES} pods of the borrower are bound")
    for _ in range(2 * NODES):
        await cluster.add_pod(LENDER, "4")
    await asyncio.sleep(QUIET_S)
    if cluster.bound(LENDER) != 2 * NODES:
        stuck.append(f"{cluster.bound(LENDER)} of {2 * NODES} pods of the lender are bound")
    for pod in cluster.stored("pods"):
        await cluster.delete_pod(pod.name)
    await asyncio.sleep(QUIET_S)
    held = {one["metadata"]["name"]: (one.get("status") or {}).get("held") for one in await cluster.slice_sets()}
    stuck += [f"SliceSet {name} holds {amounts}" for name, amounts in held.items() if amounts]
    return stuck
