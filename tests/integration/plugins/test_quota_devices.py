"""Elastic quotas and parts of GPUs, which pods ask for by annotations and not by resource requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson

from multisched.cluster.api.direct import DirectTransport
from tests.integration.plugins.program_cluster import (
    HEAD,
    ProgramCluster,
    in_virtual_time,
    install_definitions,
    open_cluster,
    with_controllers,
)
from tests.integration.plugins.test_quotas import TREES, tree
from tests.unit.plugins.quota.trees import Json, node

GPU = "nvidia.com/gpu"


def share(name: str, least: int, most: int) -> Json:
    return node(name, {GPU: least}, {GPU: most}, namespaces=[name])


@asynccontextmanager
async def two_teams(first: Json, second: Json) -> AsyncIterator[ProgramCluster]:
    """A node of eight GPUs that honours indices, so that whole GPUs and parts of them share it."""

    async def before(cluster: ProgramCluster) -> None:
        await install_definitions(cluster)
        await cluster.node("n", cpu="56", labels={"multisched.io/gpu-indices": "honoured"}, extra={GPU: 8})
        for name in ("a", "b"):
            await cluster.post("namespaces", name, {})
        await tree(cluster, node("root", {GPU: 8}, {GPU: 8}, first, second))

    async with open_cluster(HEAD, before=before) as cluster, with_controllers(cluster):
        yield cluster


async def gpu_pod(
    cluster: ProgramCluster, namespace: str, name: str, *, whole: int = 0, milli: int = 0, count: int = 1
) -> None:
    resources = {"requests": {"cpu": "1", **({GPU: str(whole)} if whole else {})}}
    resources["limits"] = {GPU: str(whole)} if whole else {}
    spec: dict[str, Any] = {
        "schedulerName": "gpu-scheduler",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "app:v1", "resources": resources}],
    }
    asked = {"multisched.io/gpu-milli": str(milli), "multisched.io/gpu-count": str(count)} if milli else {}
    await cluster.post(f"/api/v1/namespaces/{namespace}/pods", name, {"annotations": asked}, spec=spec)


def bound(cluster: ProgramCluster) -> set[str]:
    return {pod.name for pod in cluster.api_checker.pods().values() if pod.node}


async def read(cluster: ProgramCluster, path: str) -> Json:
    answer = await DirectTransport(cluster.server).request("GET", path)
    found: Json = orjson.loads(answer.body)
    return found


async def refusal(cluster: ProgramCluster, namespace: str, name: str) -> Json:
    conditions = (await read(cluster, f"/api/v1/namespaces/{namespace}/pods/{name}"))["status"].get("conditions", [])
    return next((one for one in conditions if one["type"] == "PodScheduled"), {})


def test_shared_gpus_count_against_max_and_as_used() -> None:
    async def main() -> None:
        async with two_teams(share("a", 1, 1), share("b", 6, 8)) as cluster:
            await gpu_pod(cluster, "a", "greedy", milli=1000, count=8)
            await gpu_pod(cluster, "a", "honest", milli=250, count=2)
            await gpu_pod(cluster, "b", "owner", whole=6)
            await cluster.until(lambda: bound(cluster) == {"honest", "owner"}, 60.0)
            told = await refusal(cluster, "a", "greedy")
            assert told["reason"] == "QuotaExceeded"
            assert "quota root.a: nvidia.com/gpu" in told["message"]
            assert "8 requested, max 1" in told["message"]
            # What was written at the bind is settled: an edit of a running pod gives its quota nothing back.
            await cluster.patch(
                "namespaces/a/pods/honest", {"metadata": {"annotations": {"multisched.io/gpu-milli": "1"}}}
            )
            await gpu_pod(cluster, "a", "second", milli=600)
            await gpu_pod(cluster, "a", "third", milli=500)
            await cluster.until(lambda: "third" in bound(cluster), 60.0)
            calm_until_s = cluster.now_s + 30.0
            await cluster.until(lambda: cluster.now_s > calm_until_s, 60.0)
            assert bound(cluster) == {"honest", "owner", "third"}
            levels = (await read(cluster, f"{TREES}/tree"))["status"]["levels"]
            assert levels["root.a"]["used"][GPU] == "1"
            assert levels["root"]["used"][GPU] == "7"
            await cluster.at_rest()

    in_virtual_time(main)


def test_borrowed_shared_gpus_are_reclaimed() -> None:
    async def main() -> None:
        async with two_teams(share("a", 2, 8), share("b", 6, 8)) as cluster:
            for number in range(8):
                await gpu_pod(cluster, "a", f"borrower-{number}", milli=1000)
            await cluster.until(lambda: len(bound(cluster)) == 8, 60.0)
            await gpu_pod(cluster, "b", "owner", milli=1000, count=6)
            await cluster.until(lambda: "owner" in bound(cluster), 60.0)
            assert len(bound(cluster)) == 3
            await cluster.at_rest()

    in_virtual_time(main)
