"""What PodDisruptionBudgets allow, and that evictions keep to it; in process and on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from multisched.cluster.client.object_client import DEPLOYMENTS, DISRUPTION_BUDGETS, JOBS, PODS, Document
from multisched.cluster.kubelet.stages_builtin import builtin_stages
from tests.unit.cluster.cluster_kit import Fleet, a_cluster, a_deployment, a_job, a_node, a_pod, condition_of, phases

pytestmark = pytest.mark.looptime


async def a_budget(cluster: Fleet, labels: dict[str, str], **spec: Any) -> None:
    body: Document = {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": labels}, **spec}}
    await cluster.create(DISRUPTION_BUDGETS, body)


async def settled(cluster: Fleet) -> Document:
    await asyncio.sleep(1)
    return await cluster.wait_until(DISRUPTION_BUDGETS, "b", lambda b: b.get("status", {}).get("observedGeneration"))


async def evict(cluster: Fleet, pod: str) -> int:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "default"}}
    return (await cluster.client.call("POST", PODS.path("default", pod, "eviction"), body=body)).status


@pytest.mark.parametrize(
    ("spec", "desired", "allowed"),
    [
        ({"minAvailable": 3}, 3, 2),
        ({"minAvailable": 5}, 5, 0),
        ({"minAvailable": "50%"}, 3, 2),
        ({"maxUnavailable": 1}, 4, 1),
        ({"maxUnavailable": "30%"}, 3, 2),
        ({"maxUnavailable": 0}, 5, 0),
        ({"maxUnavailable": 9}, 0, 5),
    ],
)
async def test_budget_counts_the_desired_replicas_of_its_deployment(spec: Document, desired: int, allowed: int) -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(DEPLOYMENTS, a_deployment("web", 5))
        await cluster.wait_listed(PODS, lambda pods: phases(pods) == ["Running"] * 5)
        await a_budget(cluster, {"app": "web"}, **spec)
        budget = await settled(cluster)

        status = budget["status"]
        assert (status["expectedPods"], status["currentHealthy"]) == (5, 5)
        assert (status["desiredHealthy"], status["disruptionsAllowed"]) == (desired, allowed)
        assert condition_of(budget, "DisruptionAllowed")["status"] == ("True" if allowed else "False")


async def test_evictions_stay_within_the_budget_and_new_pods_restore_it() -> None:
    async with a_cluster(a_node(), stages=builtin_stages("general")) as cluster:
        await cluster.create(DEPLOYMENTS, a_deployment("web", 5))
        await cluster.wait_listed(PODS, lambda pods: phases(pods) == ["Running"] * 5)
        await a_budget(cluster, {"app": "web"}, minAvailable=4)
        await settled(cluster)
        names = [p["metadata"]["name"] for p in await cluster.list_all(PODS)]

        assert [await evict(cluster, name) for name in names[:3]] == [201, 429, 429]
        await cluster.wait_until(DISRUPTION_BUDGETS, "b", lambda b: b["status"]["disruptionsAllowed"] == 1)

        ready = [p for p in await cluster.list_all(PODS) if condition_of(p, "Ready").get("status") == "True"]
        assert len(ready) >= 5
        assert await evict(cluster, names[1]) == 201


async def test_pods_that_are_not_ready_are_not_healthy() -> None:
    async with a_cluster(a_node()) as cluster:
        labels = {"app": "db"}
        for name, node in (("a", "n"), ("b", "n"), ("c", "")):
            await cluster.create(PODS, a_pod(name, node=node, metadata={"labels": labels}))
        await a_budget(cluster, labels, minAvailable=2)
        budget = await settled(cluster)

        assert budget["status"]["expectedPods"] == 3
        assert budget["status"]["currentHealthy"] == 2
        assert budget["status"]["disruptionsAllowed"] == 0


async def test_budget_over_pods_without_a_scale_allows_no_disruption() -> None:
    async with a_cluster(a_node()) as cluster:
        slow = {"multisched.io/run-seconds": "500"}
        await cluster.create(JOBS, a_job("batch", annotations=slow, labels={"app": "batch"}, parallelism=2))
        await cluster.wait_listed(PODS, lambda pods: phases(pods) == ["Running"] * 2)
        await a_budget(cluster, {"app": "batch"}, maxUnavailable=1)
        budget = await settled(cluster)

        assert budget["status"]["disruptionsAllowed"] == 0
        condition = condition_of(budget, "DisruptionAllowed")
        assert condition["reason"] == "SyncFailed"
        assert "Job batch" in condition["message"]


async def test_unchanged_budget_status_is_not_rewritten() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(DEPLOYMENTS, a_deployment("web", 2))
        await a_budget(cluster, {"app": "web"}, minAvailable=1)
        await cluster.wait_until(DISRUPTION_BUDGETS, "b", lambda b: b.get("status", {}).get("disruptionsAllowed") == 1)
        before = await settled(cluster)
        await asyncio.sleep(300)
        after = await cluster.get(DISRUPTION_BUDGETS, "b")

        assert after == before
