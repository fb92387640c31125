"""Each device plugin picks the pod that was admitted, whatever the order, the delay and the other writers."""

from __future__ import annotations

import asyncio

import pytest

from multisched.testing.sim_loop import SimLoop, simulate
from tests.integration.gpu.gpu_town import (
    GPUSHARE,
    HAMI,
    SIZES,
    VOLCANO,
    GpuTown,
    gpushare_node,
    hami_node,
    open_town,
    volcano_node,
)

NODES = (
    *(hami_node(f"hami-{at}") for at in range(3)),
    *(volcano_node(f"volcano-{at}") for at in range(3)),
    *(gpushare_node(f"share-{at}") for at in range(2)),
)
PODS, BURST, BURST_EVERY_S = 400, 25, 4.0


async def arrive(town: GpuTown) -> None:
    """400 pods in bursts; of each burst a fifth is deleted within ten seconds."""
    dialects = (HAMI, VOLCANO, GPUSHARE)
    deletions = set[asyncio.Task[None]]()

    async def delete(name: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await town.delete_pod(name)

    for number in range(PODS):
        dialect = dialects[number % 3]
        await town.add_pod(f"pod-{number:03}", town.rng.choice(SIZES[dialect]))
        if number % 5 == 4:
            late = delete(f"pod-{number - town.rng.randrange(5):03}", town.rng.uniform(0, 10))
            deletions.add(asyncio.create_task(late))
        if number % BURST == BURST - 1:
            await asyncio.sleep(BURST_EVERY_S * town.rng.uniform(0.5, 1.5))
    await asyncio.gather(*deletions)


def judge(town: GpuTown) -> None:
    assert town.wrong_picks() == []
    assert town.kubelets.statistics().rejected == {}
    assert town.overfull_cards() == []


@pytest.mark.parametrize("seed", range(2))
def test_each_of_400_pods_gets_its_own_cards(seed: int) -> None:
    loop = SimLoop(seed)

    async def story() -> None:
        async with open_town(loop, *NODES, seed=seed) as town:
            await arrive(town)
            await asyncio.sleep(10.0)
            judge(town)
            assert await town.pending_that_fit() == []
            assert town.refused_binds == []
            assert town.differences() == []
            assert len(town.allocations) > 300
            wakes = town.wakes_s()
            assert len(wakes) > 100
            assert wakes[len(wakes) * 99 // 100] <= 1.0

    simulate(story(), loop)
