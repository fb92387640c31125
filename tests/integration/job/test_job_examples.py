"""Each example of the job domain with the whole program, controllers, own nodes and virtual ones, in virtual time.

The program runs the example of a configuration, `serverless-units.yaml`.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from domains.job.deadlines.deadline import DeadlineOrigin
from domains.job.deadlines.deadline_sort import DeadlineSort
from multisched.cluster.controllers.run import run_controllers
from multisched.cluster.kubelet.provider import ProviderSettings
from multisched.cluster.virtual_nodes import virtual_nodes
from multisched.framework.views import ViewQuery
from multisched.shell.plugin_views import ProgramViews
from multisched.testing.builders import Document, decode_pod, node_document
from multisched.testing.sim_loop import SimLoop, simulate
from tests.integration.gpu.gpu_cluster import GpuCluster, Replica, open_gpu_cluster
from tests.integration.gpu.tide_cluster import at_once

EXAMPLES = Path(__file__).parents[3] / "domains" / "job" / "examples"
DEFINITION = Path(__file__).parents[3] / "deploy" / "crds" / "resourcepolicies.yaml"
CONFIGURATION = (EXAMPLES / "serverless-units.yaml").read_text("utf-8")
TESTED = "client: {bindTimeout: 900ms}\nlease: {duration: 2s, renewDeadline: 1s, retryPeriod: 200ms}\n"
PATHS = {
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "ResourcePolicy": "/apis/scheduling.alibabacloud.com/v1alpha1/namespaces/default/resourcepolicies",
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "Job": "/apis/batch/v1/namespaces/default/jobs",
    "CronJob": "/apis/batch/v1/namespaces/default/cronjobs",
    "Pod": "/api/v1/namespaces/default/pods",
}
COST = "controller.kubernetes.io/pod-deletion-cost"
NOTICED_S = 10.0
"""A definition that is installed is noticed within seven seconds."""


def own_node(name: str, cpu: int) -> Document:
    labels = {"multisched.io/domain": "job", "pool": "batch"}
    return node_document(name, cpu=cpu, memory="64Gi", pods=100, labels=labels)


def documents(path: Path) -> list[Document]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


async def apply(cluster: GpuCluster, path: Path) -> None:
    for document in documents(path):
        await cluster.send("POST", PATHS[document["kind"]], document)


async def bound(cluster: GpuCluster, count: int, within_s: float = 60.0) -> list[Document]:
    async def holds() -> bool:
        return sum("nodeName" in pod["spec"] for pod in (await cluster.pods()).values()) >= count

    await cluster.until(holds, within_s)
    return list((await cluster.pods()).values())


def kinds(pods: list[Document]) -> Counter[str]:
    """Own or virtual nodes -> pods bound to them."""
    nodes = [pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]]
    return Counter("own" if node.startswith("own") else "virtual" for node in nodes)


def plugin_of(replica: Replica) -> DeadlineSort:
    built = replica.program.router.workers()[-1].plugins.built
    return next(one.plugin for one in built if isinstance(one.plugin, DeadlineSort))


async def view(cluster: GpuCluster, name: str) -> Document:
    views = ProgramViews(cluster.replicas[0].program, at_once)
    found: Document = orjson.loads(await views.document(name, ViewQuery("now")))
    return found


async def succeeded(cluster: GpuCluster, job: str, count: int) -> None:
    async def holds() -> bool:
        jobs = (await cluster.send("GET", PATHS["Job"]))["items"]
        return any(
            one["metadata"]["name"].startswith(job) and one["status"].get("succeeded", 0) == count for one in jobs
        )

    await cluster.until(holds, 600.0)


async def own_then_serverless(cluster: GpuCluster) -> None:
    pods = await bound(cluster, 30)
    assert kinds(pods) == {"own": 10, "virtual": 20}
    costs = {(pod["spec"]["nodeName"][:3] == "own", pod["metadata"]["annotations"][COST]) for pod in pods}
    assert costs == {(True, "100"), (False, "99")}


async def wait_for_own_nodes(cluster: GpuCluster) -> None:
    pods = await bound(cluster, 8)  # of half a core, on four cores
    assert kinds(pods) == {"own": 8}
    assert [unit["used"]["pods"] for unit in (await view(cluster, "units"))["units"]] == [0]
    await cluster.add_node(own_node("own-1", 1))  # the autoscaler's
    assert kinds(await bound(cluster, 10)) == {"own": 10}
    began_s = cluster.loop.time()
    assert kinds(await bound(cluster, 12, 400.0)) == {"own": 10, "virtual": 2}
    assert cluster.loop.time() - began_s > 240.0


async def deadline(cluster: GpuCluster) -> None:
    pods = [decode_pod(pod) for pod in await bound(cluster, 61)]
    starts = plugin_of(cluster.replicas[0]).starts
    origins = Counter(starts.group_of(pod).rule.origin for pod in pods)
    assert origins == {DeadlineOrigin.ACTIVE_DEADLINE: 60, DeadlineOrigin.ANNOTATION: 1}
    await succeeded(cluster, "invoices", 60)
    owners = {one["owner"]: one for one in (await view(cluster, "jobs"))["owners"]}
    assert 19.0 <= owners["Job/invoices"]["p90Seconds"] <= 23.0


async def cron(cluster: GpuCluster) -> None:
    await succeeded(cluster, "settle", 20)
    owners = {one["owner"]: one for one in (await view(cluster, "jobs"))["owners"]}
    assert owners["CronJob/settle"]["runs"] == 20


CASES: dict[str, Callable[[GpuCluster], Awaitable[None]]] = {
    "own-then-serverless": own_then_serverless,
    "wait-for-own-nodes": wait_for_own_nodes,
    "deadline": deadline,
    "cron": cron,
}


def test_every_example_has_a_case() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == {*CASES, "serverless-units"}


@pytest.mark.parametrize("name", CASES)
def test_example_does_what_it_says(name: str) -> None:
    loop = SimLoop(1)
    settings = ProviderSettings(startupSeconds=5.0)
    nodes: list[Any] = [own_node("own-0", 4), *virtual_nodes(2, settings)]

    async def main() -> None:
        async with open_gpu_cluster(loop, *nodes, configuration=CONFIGURATION + TESTED) as cluster:
            controllers = asyncio.ensure_future(run_controllers(cluster.api, clock=cluster.clock, rng=random.Random(1)))
            try:
                await apply(cluster, DEFINITION)
                await asyncio.sleep(NOTICED_S)
                await apply(cluster, EXAMPLES / f"{name}.yaml")
                await CASES[name](cluster)
                assert cluster.differences() == []
                assert [unit["name"] for unit in (await view(cluster, "units"))["units"]] == ["eci"]
            finally:
                controllers.cancel()
                await asyncio.gather(controllers, return_exceptions=True)

    simulate(main(), loop)
