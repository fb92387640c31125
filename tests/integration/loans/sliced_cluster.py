"""Two processes over one API server in virtual time: one leads the lender `gpu`, the other the borrower `job`, with a Lease each.

`OverRowJudge` sums the requests of the pods of each node over every version of its own watch.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
import yaml

from multisched.framework.views import ViewQuery
from multisched.model.objects import CPU
from multisched.plugins.loans.sliced_loans import SlicedLoans
from multisched.shell.plugin_views import ProgramViews
from multisched.testing.sim_loop import SimLoop, simulate
from tests.integration.gpu.tide_cluster import at_once
from tests.kit import definitions
from tests.sim.handover import PODS_PATH, HandoverCluster, Replica

SLICES = "/apis/multisched.io/v1alpha1/slicesets"
NOTICE_S = 10.0
LOOK_S = 0.1
LENDER, BORROWER, LATER_BORROWER = frozenset({"gpu"}), frozenset({"job"}), frozenset({"web"})
BOTH = LENDER | BORROWER


def configuration(*, spread: bool = False, has_later: bool = False, **loan: Any) -> str:
    """`has_later`: a second borrower, of all nodes of the lender, gets what the first one leaves."""
    returns = {"return": {"notice": f"{NOTICE_S:g}s", "grace": "5s"}}
    loans = [{"from": "gpu", **returns, **loan}]
    later = [
        {"name": "web", "nodes": {"rule": "labelled"}, "loans": [{"from": "gpu", "return": {**returns["return"]}}]}
    ]
    return yaml.safe_dump(
        {
            "apiVersion": "multisched.io/v1",
            "kind": "MultischedConfiguration",
            "lease": {"perDomain": True, "spread": spread},
            "domains": [
                {"name": "gpu", "nodes": {"rule": "rest"}},
                {"name": "job", "nodes": {"rule": "labelled"}, "loans": loans},
                *(later if has_later else ()),
            ],
        }
    )


class OverRowJudge:
    """What pods hold of each node, from a watch of the API server; `over`: where that ever was more than the node has."""

    def __init__(self, cluster: HandoverCluster) -> None:
        self._cluster = cluster
        self._pods: dict[str, tuple[str, int]] = {}
        self.over: list[str] = []
        self.events = 0
        self.most: dict[str, int] = {}

    async def run(self) -> None:
        async with self._cluster.api.stream("/api/v1/pods?watch=true", idle_timeout_s=1e9) as lines:
            async for line in lines:
                event = orjson.loads(line)
                self._take(event["type"], event["object"])

    def _take(self, kind: str, pod: dict[str, Any]) -> None:
        self.events += 1
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName", "")
        is_over = kind == "DELETED" or pod["status"].get("phase") in ("Succeeded", "Failed")
        self._pods.pop(uid, None)
        if node and not is_over:
            requests = [one["resources"]["requests"]["cpu"] for one in pod["spec"]["containers"]]
            milli = sum(int(one[:-1]) if one.endswith("m") else 1000 * int(one) for one in requests)
            self._pods[uid] = node, milli
            total = sum(amount for at, amount in self._pods.values() if at == node)
            self.most[node] = max(total, self.most.get(node, 0))
            if total > 8000:
                self.over.append(f"{node} holds {total} of 8000 mCPU at {self._cluster.loop.time():.1f} s")


class SlicedCluster:
    """The cluster, and its two processes."""

    def __init__(self, cluster: HandoverCluster, text: str) -> None:
        self.cluster = cluster
        self.judge = OverRowJudge(cluster)
        self._text = text

    def led_by(self, replica: Replica) -> set[str]:
        """Returns the domains that a process leads."""
        return {worker.name for worker in replica.program.router.workers() if worker.is_leading}

    def start(self, leads: frozenset[str], *, bind_s: float | None = 0.05) -> Replica:
        replica = self.cluster.start(leads, self._text)
        replica.transport.bind_s = bind_s
        return replica

    def of(self, leads: frozenset[str]) -> Replica:
        return next(one for one in self.cluster.replicas if one.leads == leads)

    def health(self, leads: frozenset[str], domain: str) -> str:
        """Returns what `/readyz?verbose` of a process says of a domain's loans."""
        worker = next(one for one in self.of(leads).program.router.workers() if one.name == domain)
        (plugin,) = [one.plugin for one in worker.plugins.built if isinstance(one.plugin, SlicedLoans)]
        return plugin.health(0.0)

    async def loans(self, leads: frozenset[str], domain: str) -> dict[str, Any]:
        """Returns what `multisched loans --domain` shows."""
        views = ProgramViews(self.of(leads).program, at_once)
        found: dict[str, Any] = orjson.loads(await views.document("loans", ViewQuery("now", {"domain": domain})))
        return found

    async def install(self) -> None:
        await self.cluster.send("POST", definitions.PATH, definitions.definition("slicesets"))

    async def slices(self) -> list[dict[str, Any]]:
        answer = await self.cluster.send("GET", SLICES)
        found: list[dict[str, Any]] = orjson.loads(answer.body).get("items", [])
        return found

    async def amounts(self) -> tuple[int, int]:
        """Returns what all SliceSets offer and hold: thousandths of cores."""
        found = await self.slices()
        offered = sum(one["cpuMilli"] for item in found for one in item["spec"].get("offers", {}).values())
        statuses = [item.get("status", {}).get("held") or {} for item in found]
        return offered, sum(one["cpuMilli"] for held in statuses for one in held.values())

    async def reserved(self) -> dict[str, int]:
        """Returns thousandths of cores by uid of a node: what the SliceSets offer or hold."""
        found = Counter[str]()
        for item in await self.slices():
            offers, held = item["spec"].get("offers") or {}, item.get("status", {}).get("held") or {}
            for uid in offers.keys() | held.keys():
                found[uid] += max(half.get(uid, {}).get("cpuMilli", 0) for half in (offers, held))
        return found

    def bound(self, domain: str) -> list[str]:
        return [pod.name for pod in self.cluster.stored("pods") if pod.node and pod.name.startswith(f"{domain}-")]

    def requested(self, domain: str) -> int:
        return sum(
            pod.requests.get(CPU, 0)
            for pod in self.cluster.stored("pods")
            if pod.node and pod.name.startswith(f"{domain}-")
        )

    async def until_bound(self, domain: str, count: int, limit_s: float = 300.0) -> float:
        """Waits until so many pods are bound; returns how long that took. Ends after the limit."""
        began_s = self.cluster.loop.time()
        for _ in range(int(limit_s / LOOK_S)):
            if len(self.bound(domain)) >= count:
                break
            await asyncio.sleep(LOOK_S)
        return self.cluster.loop.time() - began_s

    async def add(self, domain: str, count: int, cpu: str = "1") -> list[str]:
        return [await self.cluster.add_pod(domain, cpu) for _ in range(count)]

    async def add_foreign(self, node: str, cpu: str) -> None:
        """Binds a pod of another scheduler."""
        await self.cluster.add_pod("foreign", cpu, schedulerName="default-scheduler", nodeName=node)

    async def events(self, reason: str) -> list[dict[str, Any]]:
        answer = await self.cluster.send("GET", "/apis/events.k8s.io/v1/events")
        return [one for one in orjson.loads(answer.body)["items"] if one["reason"] == reason]

    async def end_evicted(self) -> None:
        """Ends pods that are being deleted, as kubelets do."""
        while True:
            await asyncio.sleep(0.5)
            answer = await self.cluster.send("GET", PODS_PATH)
            for pod in orjson.loads(answer.body)["items"]:
                if pod["metadata"].get("deletionTimestamp"):
                    await self.cluster.delete_pod(pod["metadata"]["name"])


def play(
    story: Callable[[SlicedCluster], Awaitable[None]],
    *,
    nodes: int = 2,
    is_installed: bool = True,
    leads: Sequence[frozenset[str]] = (LENDER, BORROWER),
    **loan: Any,
) -> None:
    """Plays the story with both processes started, and judges every version of every pod."""
    loop = SimLoop(seed=1)
    cluster = HandoverCluster(loop, seed=1)
    sliced = SlicedCluster(cluster, configuration(**loan))

    async def main() -> None:
        for number in range(nodes):
            await cluster.add_node(f"node-{number}")
        if is_installed:
            await sliced.install()
        tasks = [asyncio.create_task(sliced.judge.run()), asyncio.create_task(sliced.end_evicted())]
        for domains in leads:
            sliced.start(domains)
        await story(sliced)
        await cluster.end()
        assert not any(task.done() for task in tasks), "the judge has seen everything"
        for task in tasks:
            task.cancel()
        assert cluster.broken == []
        assert sliced.judge.over == []

    simulate(main(), loop)
