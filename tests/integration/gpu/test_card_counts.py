"""How many pods run on nodes of each mode, and what happens to running pods while cards vanish and come back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

import pytest

from multisched.testing.builders import Document, container, node_document, pod_document
from multisched.testing.sim_loop import SimLoop, simulate
from tests.integration.gpu.gpu_cluster import PODS, SPLIT, GpuCluster, hami_node, open_gpu_cluster, registered

GPU = "nvidia.com/gpu"


def asking(name: str, limits: Mapping[str, str], **annotations: str) -> Document:
    one = container("c") | {"resources": {"limits": dict(limits)}}
    return pod_document(name, one, schedulerName="gpu-scheduler", annotations=annotations)


async def add(cluster: GpuCluster, number: int, limits: Mapping[str, str], prefix: str = "p") -> None:
    for at in range(number):
        made = await cluster.send("POST", PODS, asking(f"{prefix}{at}", limits))
        cluster.uids[f"{prefix}{at}"] = made["metadata"]["uid"]


async def phases(cluster: GpuCluster, prefix: str = "p") -> Counter[str]:
    return Counter(pod["status"]["phase"] for name, pod in (await cluster.pods()).items() if name.startswith(prefix))


def shared_node(name: str, units: int, **labels: str) -> Document:
    return node_document(
        name, cpu=100, memory="1Ti", extra={GPU: units}, labels={f"nvidia.com/{k}": v for k, v in labels.items()}
    )


TIME_SLICED = {
    "gpu.count": "2",
    "gpu.replicas": "4",
    "gpu.sharing-strategy": "time-slicing",
    "gpu.product": "A10-SHARED",
}
MIG_SINGLE = {"gpu.count": "7", "mig.strategy": "single", "gpu.product": "A100-MIG-1g.5gb"}


@pytest.mark.parametrize(
    ("node", "runs", "why"),
    [
        (hami_node("n", cards=8), 8, "Insufficient nvidia.com/gpu"),
        (shared_node("n", 8, **TIME_SLICED), 8, "Insufficient nvidia.com/gpu"),
        (shared_node("n", 7, **MIG_SINGLE), 7, "Insufficient nvidia.com/gpu"),
        (shared_node("n", 8), 8, "Insufficient nvidia.com/gpu"),
    ],
    ids=["hami 8 x 10", "time-sliced 2 x 4", "mig single", "whole"],
)
def test_only_as_many_one_gpu_pods_run_as_there_are_gpus(node: Document, runs: int, why: str) -> None:
    loop = SimLoop(1)

    async def main() -> None:
        async with open_gpu_cluster(loop, node, plugin_delay_s=(0.1, 0.5)) as cluster:
            await add(cluster, 9, {GPU: "1"})
            await asyncio.sleep(30.0)
            assert await phases(cluster) == {"Running": runs, "Pending": 9 - runs}
            assert {why in message for _, message in cluster.waiting().values()} == {True}
            assert cluster.wrong_picks() == []
            cards = Counter(one.card for allocation in cluster.allocations for one in allocation.slices)
            assert not cards or set(cards.values()) == {1}, "each has a card of its own"
            await cluster.delete_pod(
                next(name for name, pod in (await cluster.pods()).items() if pod["status"]["phase"] == "Running")
            )
            await asyncio.sleep(15.0)
            assert (await phases(cluster))["Running"] == runs

    simulate(main(), loop)


def test_mig_profiles_are_counted_each_for_itself() -> None:
    loop = SimLoop(1)
    small, large = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"
    node = node_document(
        "n", cpu=100, memory="1Ti", extra={small: 2, large: 1}, labels={"nvidia.com/mig.strategy": "mixed"}
    )

    async def main() -> None:
        async with open_gpu_cluster(loop, node) as cluster:
            await add(cluster, 3, {small: "1"}, "small")
            await add(cluster, 2, {large: "1"}, "large")
            await add(cluster, 1, {GPU: "1"}, "whole")
            await asyncio.sleep(15.0)
            assert await phases(cluster, "small") == {"Running": 2, "Pending": 1}
            assert await phases(cluster, "large") == {"Running": 1, "Pending": 1}
            assert await phases(cluster, "whole") == {"Pending": 1}

    simulate(main(), loop)


def test_fraction_is_refused_on_nodes_where_only_the_kubelet_knows_the_cards() -> None:
    loop = SimLoop(1)

    async def main() -> None:
        async with open_gpu_cluster(loop, shared_node("n", 8, **TIME_SLICED)) as cluster:
            await cluster.send("POST", PODS, asking("p", {}, **{"multisched.io/gpu-milli": "100"}))
            await asyncio.sleep(5.0)
            assert "mode shared, which does not serve multisched pods" in cluster.waiting()["p"][1]

    simulate(main(), loop)


async def publish(cluster: GpuCluster, cards: int, *, healthy: tuple[int, ...] | None = None) -> None:
    """HAMi's plugin registers these cards, and the kubelet their slots."""
    text = registered(cards, healthy=healthy)
    await cluster.patch_node("n", {"metadata": {"annotations": {"hami.io/node-nvidia-register": text}}})
    well = cards if healthy is None else len(healthy)
    amounts = {GPU: str(well * SPLIT)}
    await cluster.patch_node("n", {"status": {"allocatable": amounts, "capacity": amounts}}, subresource="/status")


@pytest.mark.parametrize("healthy", [None, (0, 1, 2, 3, 4, 5)], ids=["vanished", "unhealthy"])
def test_running_pods_keep_their_cards_while_two_vanish_or_fall_ill(healthy: tuple[int, ...] | None) -> None:
    loop = SimLoop(1)
    whole = {GPU: "1", "nvidia.com/gpumem": "20000", "nvidia.com/gpucores": "10"}

    async def main() -> None:
        async with open_gpu_cluster(loop, hami_node("n", cards=8), plugin_delay_s=(0.1, 0.5)) as cluster:
            await add(cluster, 8, whole)
            await asyncio.sleep(20.0)
            assert await phases(cluster) == {"Running": 8}
            before = {name: pod["metadata"]["annotations"] for name, pod in (await cluster.pods()).items()}

            await publish(cluster, 6 if healthy is None else 8, healthy=healthy)
            await add(cluster, 1, whole, "late")
            await asyncio.sleep(10.0)
            assert await phases(cluster) == {"Running": 8}
            assert await phases(cluster, "late") == {"Pending": 1}
            assert {
                name: pod["metadata"]["annotations"] for name, pod in (await cluster.pods()).items() if name in before
            } == before

            victim = next(name for name, notes in before.items() if "GPU-0," in notes["hami.io/vgpu-devices-allocated"])
            await cluster.delete_pod(victim)
            await asyncio.sleep(20.0)
            late = (await cluster.pods())["late0"]["metadata"]["annotations"]
            assert "GPU-0," in late["hami.io/vgpu-devices-allocated"], "the only card with room that is there"

            await publish(cluster, 8)
            await add(cluster, 1, whole, "last")
            await asyncio.sleep(10.0)
            assert await phases(cluster, "last") == {"Pending": 1}, "the cards that came back are still held"
            assert cluster.overfull_cards() == []
            assert cluster.differences() == []

    simulate(main(), loop)


def test_health_that_flips_while_pods_arrive_never_overcommits_a_card() -> None:
    loop = SimLoop(3)
    limits = {GPU: "1", "nvidia.com/gpumem": "11000", "nvidia.com/gpucores": "10"}

    async def main() -> None:
        async with open_gpu_cluster(loop, hami_node("n", cards=4), plugin_delay_s=(0.1, 1.0)) as cluster:
            for turn in range(6):
                await add(cluster, 3, limits, f"p{turn}-")
                await publish(
                    cluster, 4, healthy=tuple(sorted(cluster.rng.sample(range(4), cluster.rng.randrange(1, 5))))
                )
                await asyncio.sleep(cluster.rng.uniform(0.1, 3.0))
            await publish(cluster, 4)
            await asyncio.sleep(20.0)
            assert cluster.overfull_cards() == []
            assert cluster.wrong_picks() == []
            assert await phases(cluster) == {"Running": 8, "Pending": 10}
            assert cluster.differences() == []

    simulate(main(), loop)
