"""Each device plugin picks the pod that was admitted, whatever the order, the delay and the other writers."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from multisched.testing.sim_loop import SimLoop, simulate
from tests.integration.gpu.gpu_cluster import (
    GPUSHARE,
    HAMI,
    SIZES,
    VOLCANO,
    Demand,
    GpuCluster,
    gpushare_node,
    hami_node,
    open_gpu_cluster,
    volcano_node,
)

NODES = (
    *(hami_node(f"hami-{at}") for at in range(3)),
    *(volcano_node(f"volcano-{at}") for at in range(3)),
    *(gpushare_node(f"share-{at}") for at in range(2)),
)
BURST = 25
SEEDS = ((0, 150), pytest.param(1, 400, marks=pytest.mark.slow))
"""And the number of pods. In the simulation, each seed from CONTESTED_FROM on has such nodes, faults and foreign locks, too."""


async def arrive(cluster: GpuCluster, pods: int, every_s: float) -> None:
    """Pods in bursts; of each burst a fifth is deleted within ten seconds."""
    dialects = (HAMI, VOLCANO, GPUSHARE)
    deletions = set[asyncio.Task[None]]()

    async def delete(name: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await cluster.delete_pod(name)

    for number in range(pods):
        dialect = dialects[number % 3]
        await cluster.add_pod(f"pod-{number:03}", cluster.rng.choice(SIZES[dialect]))
        if number % 5 == 4:
            late = delete(f"pod-{number - cluster.rng.randrange(5):03}", cluster.rng.uniform(0, 10))
            deletions.add(asyncio.create_task(late))
        if number % BURST == BURST - 1:
            await asyncio.sleep(every_s * cluster.rng.uniform(0.5, 1.5))
    await asyncio.gather(*deletions)


def judge(cluster: GpuCluster) -> None:
    assert cluster.wrong_picks() == []
    assert cluster.kubelets.statistics().rejected == {}
    assert cluster.overfull_cards() == []


@pytest.mark.parametrize(("seed", "pods"), SEEDS)
def test_each_of_many_pods_gets_its_own_cards(seed: int, pods: int) -> None:
    loop = SimLoop(seed)

    async def main() -> None:
        async with open_gpu_cluster(loop, *NODES, seed=seed) as cluster:
            await arrive(cluster, pods, 4.0)
            await asyncio.sleep(10.0)
            judge(cluster)
            assert await cluster.pending_that_fit() == []
            assert cluster.refused_binds == []
            assert cluster.differences() == []
            assert len(cluster.allocations) > 0.75 * pods
            wakes = cluster.wakes_s()
            assert len(wakes) > pods // 4
            assert wakes[len(wakes) * 99 // 100] <= 1.0

    simulate(main(), loop)


async def kill_leaders(cluster: GpuCluster) -> None:
    """Every three seconds, until cancelled. Two replicas run all the time."""
    while True:
        await asyncio.sleep(3.0)
        leader = cluster.leader()
        if leader is not None:
            await cluster.kill(leader)
        while len(cluster.replicas) < 2:
            cluster.start()


async def lock_nodes(cluster: GpuCluster) -> None:
    """A foreign scheduler and its remains, until cancelled: locks that are fresh, expired, of a vanished pod, and malformed."""
    await cluster.add_foreign_pod("foreign")
    while True:
        await asyncio.sleep(cluster.rng.uniform(0.5, 3.0))
        node, now = f"hami-{cluster.rng.randrange(3)}", cluster.clock.now()
        texts = {
            "fresh": f"{now:%Y-%m-%dT%H:%M:%SZ},default,foreign",
            "expired": f"{now - timedelta(minutes=6):%Y-%m-%dT%H:%M:%SZ},default,foreign",
            "vanished": f"{now:%Y-%m-%dT%H:%M:%SZ},default,nobody",
            "malformed": cluster.rng.choice(("yesterday", f"{now:%Y-%m-%dT%H:%M:%SZ},default", "x" * 2000, ",,")),
        }
        kind = cluster.rng.choice(sorted(texts))
        if not await cluster.swap_lock(node, "", texts[kind]) or kind != "fresh":
            continue
        try:
            await asyncio.sleep(cluster.rng.uniform(0.1, 2.0))
        finally:
            await cluster.swap_lock(node, texts[kind], "")


@pytest.mark.parametrize(("seed", "pods"), SEEDS)
def test_picks_are_right_while_leaders_are_killed_and_others_lock_nodes(seed: int, pods: int) -> None:
    loop = SimLoop(seed)

    async def main() -> None:
        async with open_gpu_cluster(loop, *NODES, seed=seed, replicas=2) as cluster:
            disturbers = [asyncio.create_task(one(cluster)) for one in (kill_leaders, lock_nodes)]
            await arrive(cluster, pods, 12.0)
            for task in disturbers:
                task.cancel()
            await asyncio.gather(*disturbers, return_exceptions=True)
            await asyncio.sleep(10.0)
            judge(cluster)
            assert await cluster.pending_that_fit() == []
            assert cluster.differences() == []
            assert cluster.killed > 5

    simulate(main(), loop)


def test_plugin_response_requeues_one_of_many_equal_pods_and_forgets_none() -> None:
    """Pods are deleted while they wait and right after they were woken: another takes the node."""
    loop = SimLoop(1)
    small = Demand(HAMI, ((1, 1_000),))

    async def main() -> None:
        async with open_gpu_cluster(loop, *NODES[:3], plugin_delay_s=(0.1, 0.1)) as cluster:
            names = [f"pod-{number:03}" for number in range(120)]
            for name in names:
                await cluster.add_pod(name, small)
            for name in cluster.rng.sample(names, 40):
                await asyncio.sleep(0.02)
                await cluster.delete_pod(name)
            await asyncio.sleep(12.0)
            assert await cluster.pending_that_fit() == []
            judge(cluster)
            leader = cluster.leader()
            assert leader is not None
            refusals = sum(worker.failures.refused for worker in leader.program.router.workers())
            assert refusals < 6 * len(names), "each answer retries about one pod, not all that wait"

    simulate(main(), loop)
