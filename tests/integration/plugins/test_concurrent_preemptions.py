"""Several plans that remove pods at the same moment: each counts the victims that the others have chosen as leaving."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.integration.plugins.gang_kit import ack, member, members, nodes
from tests.integration.plugins.program_cluster import HEAD, ProgramCluster, in_virtual_time, open_cluster
from tests.integration.plugins.test_quotas import tree
from tests.unit.plugins.quota.trees import leaf, node

GANG = [f"m{number}" for number in range(6)]


@asynccontextmanager
async def gang_of_six(*, has_quotas: bool = False) -> AsyncIterator[ProgramCluster]:
    """Two nodes of three CPUs, full of a gang that needs four of its six members. With quotas it borrows all but one CPU."""

    async def before(cluster: ProgramCluster) -> None:
        await nodes(cluster, "n0", "n1", cpu="3")
        await cluster.priority_class("high", 100)
        await cluster.post("namespaces", "lender", {})

    async with open_cluster(HEAD, before=before) as cluster:
        if has_quotas:
            leaves = leaf("lender", 5, 12, "lender"), leaf("own", 1, 12, "default")
            await tree(cluster, node("root", {"cpu": 6}, {"cpu": 12}, *leaves))
        await members(cluster, ack("g", 4), *GANG)
        await cluster.bound(*GANG)
        yield cluster
        await cluster.at_rest()


def standing(cluster: ProgramCluster) -> list[str]:
    """Members of the gang that run."""
    return sorted(
        pod.name for pod in cluster.api_checker.pods().values() if pod.name in GANG and pod.node and not pod.is_deleting
    )


@pytest.mark.parametrize("has_quotas", [False, True], ids=["by priority", "under quotas"])
def test_concurrent_preemptors_keep_a_gang_minimum_or_evict_it_whole(has_quotas: bool) -> None:
    async def main() -> None:
        async with gang_of_six(has_quotas=has_quotas) as cluster:
            for name in ("p0", "p1"):
                namespace = "lender" if has_quotas else "default"
                await member(cluster, name, {}, cpu="2", namespace=namespace, priorityClassName="high")
            await cluster.bound("p0", "p1")
            await asyncio.sleep(30.0)
            assert len(standing(cluster)) in (0, 4, 5, 6), standing(cluster)

    in_virtual_time(main)


@pytest.mark.parametrize("has_quotas", [False, True], ids=["by priority", "under quotas"])
def test_gang_and_pod_preempting_concurrently_keep_another_gang_minimum(has_quotas: bool) -> None:
    async def main() -> None:
        async with gang_of_six(has_quotas=has_quotas) as cluster:
            namespace = "lender" if has_quotas else "default"
            await member(cluster, "p0", {}, cpu="2", namespace=namespace, priorityClassName="high")
            for name in ("h0", "h1"):
                await member(cluster, name, ack("h", 2), namespace=namespace, priorityClassName="high")
            await cluster.bound("p0", "h0", "h1")
            await asyncio.sleep(30.0)
            assert len(standing(cluster)) in (0, 4, 5, 6), standing(cluster)

    in_virtual_time(main)


def test_pod_waiting_for_a_foreign_victim_recovers_if_it_is_not_deleted() -> None:
    """The first preemptor is deleted before its victims go: the second one has to find victims of its own."""

    async def main() -> None:
        async with gang_of_six() as cluster:
            await member(cluster, "p0", {}, cpu="2", priorityClassName="high")
            await member(cluster, "p1", {}, cpu="2", priorityClassName="high")
            await cluster.delete("/api/v1/namespaces/default/pods/p0")
            await cluster.bound("p1")
            await asyncio.sleep(30.0)
            assert len(standing(cluster)) in (0, 4, 5, 6), standing(cluster)
            assert not cluster.program.preemptor.removals, "nothing is left over"

    in_virtual_time(main)
