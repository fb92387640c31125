"""Serverless units with elastic capacity in the whole program, in virtual time: what still limits their pods, and what the judge says."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from multisched.cluster.kubelet.provider import ProviderSettings
from multisched.config import loading
from multisched.config.domains import judged_domains
from multisched.testing.builders import Document, container, pod_document
from multisched.verify import judge
from multisched.whatif.explain_known import plugin_notes
from tests.integration.gpu.gpu_cluster import PODS, GpuCluster
from tests.integration.job.serverless_cluster import OWNER, nodes_of, play_units

PROVIDER = ProviderSettings(burst=100, perSecond=50.0, startupSeconds=1.0, syncBurst=1000, syncPerSecond=1000.0)
ELASTIC = {"capacity": "elastic"}


def small_nodes(unit: str, pods: int = 1000, **allocatable: str) -> list[Document]:
    """Returns a virtual node on which two pods of `create` have room, by its allocatable."""
    (node,) = nodes_of(unit, PROVIDER, 1)
    amounts = {"cpu": "200m", "memory": "1Gi", "pods": str(pods), **allocatable}
    node["status"] |= {"allocatable": amounts, "capacity": amounts}
    return [node]


async def create(cluster: GpuCluster, count: int, prefix: str = "pod") -> None:
    """Creates pods that run until the test ends."""
    for number in range(count):
        document = pod_document(f"{prefix}-{number}", container("c", cpu="100m"), schedulerName="job-scheduler")
        annotations = {"multisched.io/run-seconds": "1000"}
        document["metadata"] |= {"annotations": annotations, "ownerReferences": [OWNER]}
        await cluster.send("POST", PODS, document)


async def bound(cluster: GpuCluster, within_s: float = 20.0) -> Counter[str]:
    """Returns how many pods are bound to the nodes of each unit after this time."""
    await asyncio.sleep(within_s)
    assert cluster.differences() == []
    return Counter(one.node.rpartition("-")[0] for one in cluster.bound)


async def violations(cluster: GpuCluster) -> dict[str, int]:
    """Returns rule -> pods that violate it, as `multisched verify` says with the configuration of the cluster."""
    objects = [("Node", one) for one in (await cluster.nodes()).values()]
    objects += [("Pod", one) for one in (await cluster.pods()).values()]
    domains = judged_domains(loading.parse(cluster.configuration, "cluster"))
    return Counter(one.rule for one in judge(objects, domains=domains) if one.is_sure)


@pytest.mark.parametrize(("fields", "most"), [(ELASTIC, 50), ({}, 2), ({**ELASTIC, "quota": {"pods": 7}}, 7)])
def test_only_an_elastic_unit_runs_more_than_its_allocatable(fields: Document, most: int) -> None:
    async def story(cluster: GpuCluster) -> None:
        await create(cluster, 50)
        assert (await bound(cluster))["first"] == most
        assert await violations(cluster) == {}

    play_units(story, {"first": fields}, *small_nodes("first"))


def test_number_of_pods_limits_an_elastic_node() -> None:
    async def story(cluster: GpuCluster) -> None:
        await create(cluster, 50)
        assert (await bound(cluster))["first"] == 20
        _, message = cluster.waiting()[sorted(cluster.waiting())[0]]
        assert "Too many pods" in message

    play_units(story, {"first": ELASTIC}, *small_nodes("first", pods=20))


def test_node_without_capacity_that_is_added_later_runs_the_pods_that_wait() -> None:
    async def story(cluster: GpuCluster) -> None:
        await create(cluster, 10)
        assert (await bound(cluster, 5.0))["first"] == 2
        await asyncio.sleep(60.0)
        (added,) = small_nodes("first", cpu="0", memory="0")
        added["metadata"]["name"] = "first-late"
        added["metadata"]["labels"] |= {"kubernetes.io/hostname": "first-late", "unit": "elastic"}
        await cluster.add_node(added)
        await bound(cluster, 12.0)
        assert Counter(one.node for one in cluster.bound) == {"first-000": 2, "first-late": 8}
        assert await violations(cluster) == {}

    play_units(story, {"first": {}, "elastic": ELASTIC}, *small_nodes("first"))


def test_node_that_leaves_an_elastic_unit_is_limited_again() -> None:
    async def story(cluster: GpuCluster) -> None:
        await create(cluster, 10)
        assert (await bound(cluster, 5.0))["first"] == 10
        await cluster.patch_node("first-000", {"metadata": {"labels": {"unit": "none"}}})
        await asyncio.sleep(1.0)
        await create(cluster, 5, "late")
        assert (await bound(cluster, 5.0))["first"] == 10
        assert (await violations(cluster))["resources"] == 8
        await cluster.patch_node("first-000", {"metadata": {"labels": {"unit": "first"}}})
        assert (await bound(cluster, 15.0))["first"] == 15
        assert await violations(cluster) == {}

    play_units(story, {"first": ELASTIC}, *small_nodes("first"))


def test_explain_says_that_capacity_is_elastic() -> None:
    async def story(cluster: GpuCluster) -> None:
        await create(cluster, 1)
        await bound(cluster, 5.0)
        program = cluster.replicas[0].program
        (pod,) = (one.pod for one in program.cache)
        notes = list(plugin_notes(program, program.router.workers()[0], pod, ["first-000", "second-000"]))
        assert notes == [
            "ServerlessUnits about first-000: in serverless unit first, whose capacity is elastic: the node's cpu and memory are no limit"
        ]

    play_units(story, {"first": ELASTIC, "second": {}}, *small_nodes("first"), *small_nodes("second", cpu="0"))


def test_sizes_round_up_also_on_elastic_nodes() -> None:
    async def story(cluster: GpuCluster) -> None:
        await create(cluster, 10)
        assert (await bound(cluster))["first"] == 4, "each takes 500m of the quota"

    fields = {**ELASTIC, "roundTo": {"cpu": "500m", "memory": "1Gi"}, "quota": {"cpu": "2"}}
    play_units(story, {"first": fields}, *small_nodes("first", cpu="0"))
