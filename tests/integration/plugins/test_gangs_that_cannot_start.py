"""A gang that is not eligible to start holds nothing: neither nominated nodes nor room of a quota, here or on the API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from multisched.model.gang import SP_LABEL
from tests.integration.plugins.gang_kit import GROUPS, PODS, get, member, members, nodes
from tests.integration.plugins.program_cluster import HEAD, ProgramCluster, in_virtual_time, open_cluster
from tests.integration.plugins.test_quotas import tree
from tests.unit.plugins.quota.trees import leaf, node

GANG = {"labels": {SP_LABEL: "g"}}
FINALIZER = {"finalizers": ["example.com/slow"]}


async def lose_member(cluster: ProgramCluster) -> None:
    await cluster.delete(f"{PODS}/g1")


async def lose_group(cluster: ProgramCluster) -> None:
    await cluster.delete(f"{GROUPS}/g")


async def raise_minimum(cluster: ProgramCluster) -> None:
    await cluster.patch(f"{GROUPS}/g", {"spec": {"minMember": 3}})


WAYS = pytest.mark.parametrize("breaks", [lose_member, lose_group, raise_minimum])


async def before(cluster: ProgramCluster) -> None:
    await nodes(cluster, "n1", cpu="4")
    await cluster.priority_class("high", 100)
    await cluster.post("namespaces", "other", {})
    await cluster.post(GROUPS, "g", {}, spec={"minMember": 2})


@asynccontextmanager
async def preempting(*, has_quotas: bool = False) -> AsyncIterator[ProgramCluster]:
    """A gang of two preempts two pods of two CPUs: the first ends at once, and the second waits for its finalizer."""
    async with open_cluster(HEAD, before=before) as cluster:
        if has_quotas:
            await tree(
                cluster, node("root", {"cpu": 4}, {"cpu": 4}, leaf("own", 4, 4, "default"), leaf("o", 0, 4, "other"))
            )
        await member(cluster, "low-0", {}, cpu="2", namespace="other")
        await member(cluster, "low-1", FINALIZER, cpu="2", namespace="other")
        await cluster.bound("low-0", "low-1")
        await members(cluster, GANG, "g0", "g1", cpu="2", priorityClassName="high")
        await cluster.until(lambda: "other/low-0" not in cluster.api_checker.pods() and not is_preempting(cluster))
        yield cluster
        await cluster.patch("/api/v1/namespaces/other/pods/low-1", {"metadata": {"finalizers": None}})
        await cluster.at_rest()


def is_preempting(cluster: ProgramCluster) -> bool:
    return bool(len(cluster.program.preemptor)) or not len(cluster.program.nominator)


async def nominated(cluster: ProgramCluster) -> list[str]:
    """Pods that the API server has a nominated node for."""
    pods = (await get(cluster, "/api/v1/pods"))["items"]
    return sorted(pod["metadata"]["name"] for pod in pods if pod.get("status", {}).get("nominatedNodeName"))


@WAYS
def test_hopeless_gang_releases_nominations_and_requeues_waiting_pods(
    breaks: Callable[[ProgramCluster], Awaitable[None]],
) -> None:
    async def main() -> None:
        async with preempting() as cluster:
            await member(cluster, "waits", {}, cpu="2")
            await asyncio.sleep(5.0)
            assert ("waits" in cluster.bound_at, await nominated(cluster)) == (False, ["g0", "g1"])
            await breaks(cluster)
            await cluster.bound("waits", within_s=5.0)
            await asyncio.sleep(2.0)
            assert (await nominated(cluster), len(cluster.program.nominator)) == ([], 0)

    in_virtual_time(main)


@WAYS
def test_hopeless_gang_holds_no_quota(breaks: Callable[[ProgramCluster], Awaitable[None]]) -> None:
    """Pods that reclaim keep their places from pods of every priority, also from those without a quota."""

    async def main() -> None:
        async with preempting(has_quotas=True) as cluster:
            await member(cluster, "waits", {}, cpu="1", namespace="other")
            await member(cluster, "urgent", {}, cpu="1", namespace="kube-public", priorityClassName="high")
            await asyncio.sleep(5.0)
            assert cluster.bound_at.keys() == {"low-0", "low-1"}
            await breaks(cluster)
            await cluster.bound("waits", "urgent", within_s=5.0)

    in_virtual_time(main)


@WAYS
def test_nominations_of_a_hopeless_gang_do_not_count_after_a_restart(
    breaks: Callable[[ProgramCluster], Awaitable[None]],
) -> None:
    async def main() -> None:
        async with open_cluster(HEAD, before=before) as first:
            await member(first, "low", FINALIZER, cpu="4")
            await first.bound("low")
            await members(first, GANG, "g0", "g1", cpu="2", priorityClassName="high")
            await first.until(lambda: not is_preempting(first))
            await asyncio.sleep(2.0)
        assert await nominated(first) == ["g0", "g1"]
        await breaks(first)
        await first.patch(f"{PODS}/low", {"metadata": {"finalizers": None}})
        async with open_cluster(HEAD, server=first.server) as cluster:
            await member(cluster, "three", {}, cpu="3")
            await cluster.bound("three", within_s=10.0)
            await asyncio.sleep(2.0)
            assert await nominated(cluster) == []

    in_virtual_time(main)


def test_nominated_gang_keeps_its_nodes_over_a_restart() -> None:
    """Its members are listed one after the other: the first ones wait for the rest, and lose nothing by that."""

    async def main() -> None:
        async with open_cluster(HEAD, before=before) as first:
            await member(first, "low", FINALIZER, cpu="4")
            await first.bound("low")
            await members(first, GANG, "g0", "g1", cpu="2", priorityClassName="high")
            await first.until(lambda: not is_preempting(first))
            await asyncio.sleep(2.0)
        async with open_cluster(HEAD, server=first.server) as cluster:
            await asyncio.sleep(2.0)
            assert (await nominated(cluster), len(cluster.program.nominator)) == (["g0", "g1"], 2)
            await cluster.patch(f"{PODS}/low", {"metadata": {"finalizers": None}})
            await cluster.bound("g0", "g1")

    in_virtual_time(main)
