"""Elastic quotas and parts of GPUs, which pods ask for by annotations and not by resource requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson

from multisched.cluster.api.direct import DirectTransport
from tests.integration.plugins.house import HEAD, House, controlled, in_virtual_time, install_definitions, open_house
from tests.integration.plugins.test_quotas import TREES, tree
from tests.unit.plugins.quota.trees import Json, node

GPU = "nvidia.com/gpu"


def share(name: str, least: int, most: int) -> Json:
    return node(name, {GPU: least}, {GPU: most}, namespaces=[name])


@asynccontextmanager
async def two_teams(first: Json, second: Json) -> AsyncIterator[House]:
    """A node of eight GPUs that honours indices, so that whole GPUs and parts of them share it."""

    async def before(house: House) -> None:
        await install_definitions(house)
        await house.node("n", cpu="56", labels={"multisched.io/gpu-indices": "honoured"}, extra={GPU: 8})
        for name in ("a", "b"):
            await house.post("namespaces", name, {})
        await tree(house, node("root", {GPU: 8}, {GPU: 8}, first, second))

    async with open_house(HEAD, before=before) as house, controlled(house):
        yield house


async def gpu_pod(house: House, namespace: str, name: str, *, whole: int = 0, milli: int = 0, count: int = 1) -> None:
    resources = {"requests": {"cpu": "1", **({GPU: str(whole)} if whole else {})}}
    resources["limits"] = {GPU: str(whole)} if whole else {}
    spec: dict[str, Any] = {
        "schedulerName": "gpu-scheduler",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "app:v1", "resources": resources}],
    }
    asked = {"multisched.io/gpu-milli": str(milli), "multisched.io/gpu-count": str(count)} if milli else {}
    await house.post(f"/api/v1/namespaces/{namespace}/pods", name, {"annotations": asked}, spec=spec)


def bound(house: House) -> set[str]:
    return {pod.name for pod in house.api_checker.pods().values() if pod.node}


async def read(house: House, path: str) -> Json:
    answer = await DirectTransport(house.server).request("GET", path)
    found: Json = orjson.loads(answer.body)
    return found


async def refusal(house: House, namespace: str, name: str) -> Json:
    conditions = (await read(house, f"/api/v1/namespaces/{namespace}/pods/{name}"))["status"].get("conditions", [])
    return next((one for one in conditions if one["type"] == "PodScheduled"), {})


def test_shared_gpus_count_against_max_and_as_used() -> None:
    async def story() -> None:
        async with two_teams(share("a", 1, 1), share("b", 6, 8)) as house:
            await gpu_pod(house, "a", "greedy", milli=1000, count=8)
            await gpu_pod(house, "a", "honest", milli=250, count=2)
            await gpu_pod(house, "b", "owner", whole=6)
            await house.until(lambda: bound(house) == {"honest", "owner"}, 60.0)
            told = await refusal(house, "a", "greedy")
            assert told["reason"] == "QuotaExceeded"
            assert "quota root.a: nvidia.com/gpu" in told["message"]
            assert "8 requested, max 1" in told["message"]
            # What was written at the bind is settled: an edit of a running pod gives its quota nothing back.
            await house.patch(
                "namespaces/a/pods/honest", {"metadata": {"annotations": {"multisched.io/gpu-milli": "1"}}}
            )
            await gpu_pod(house, "a", "second", milli=600)
            await gpu_pod(house, "a", "third", milli=500)
            await house.until(lambda: "third" in bound(house), 60.0)
            calm_until_s = house.now_s + 30.0
            await house.until(lambda: house.now_s > calm_until_s, 60.0)
            assert bound(house) == {"honest", "owner", "third"}
            levels = (await read(house, f"{TREES}/tree"))["status"]["levels"]
            assert levels["root.a"]["used"][GPU] == "1"
            assert levels["root"]["used"][GPU] == "7"
            await house.at_rest()

    in_virtual_time(story)


def test_borrowed_shared_gpus_are_reclaimed() -> None:
    async def story() -> None:
        async with two_teams(share("a", 2, 8), share("b", 6, 8)) as house:
            for number in range(8):
                await gpu_pod(house, "a", f"borrower-{number}", milli=1000)
            await house.until(lambda: len(bound(house)) == 8, 60.0)
            await gpu_pod(house, "b", "owner", milli=1000, count=6)
            await house.until(lambda: "owner" in bound(house), 60.0)
            assert len(bound(house)) == 3
            await house.at_rest()

    in_virtual_time(story)
