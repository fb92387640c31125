"""How many pods a second HAMi's nodes start, each of which serves one pod at a time."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from multisched.testing.sim_loop import SimLoop, simulate
from tests.integration.gpu.gpu_cluster import HAMI, Demand, hami_node, open_gpu_cluster

NODES, ANSWER_S = 50, 0.1
PODS_PER_S_LEAST = 40


@pytest.mark.parametrize("pods", [200, pytest.param(600, marks=pytest.mark.slow)])
def test_fifty_hami_nodes_start_forty_pods_a_second(pods: int) -> None:
    """The plugin takes 100 ms, and a request 0 to 40 ms. Pods arrive at once: a node is bound to again when its plugin has answered."""
    loop = SimLoop(1)

    async def main() -> None:
        nodes = [hami_node(f"hami-{number:02}") for number in range(NODES)]
        async with open_gpu_cluster(loop, *nodes, plugin_delay_s=(ANSWER_S, ANSWER_S)) as cluster:
            began_s = loop.time()
            for number in range(pods):
                await cluster.add_pod(f"pod-{number:04}", Demand(HAMI, ((1, 1_000),)))

            async def are_served() -> bool:
                return len(cluster.allocations) == pods

            await cluster.until(are_served, pods / PODS_PER_S_LEAST)
            assert pods / (loop.time() - began_s) >= PODS_PER_S_LEAST
            assert cluster.refused_binds == []
            assert cluster.wrong_picks() == []
            assert cluster.overfull_cards() == []
            used = Counter(one.node for one in cluster.bound)
            assert len(used) == NODES, "no node is idle while others have pods in line"
            await asyncio.sleep(5.0)
            assert cluster.differences() == []

    simulate(main(), loop)
