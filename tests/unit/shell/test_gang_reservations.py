"""A big gang beside a stream of small pods of its priority: it starts in bounded time if it may reserve room, else never."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from multisched.framework.gangs import Reserving
from multisched.observe.explain_view import ExplainQuery
from multisched.observe.explain_words import pod_text
from multisched.testing.sim_loop import SimLoop, simulate
from multisched.whatif.explain_source import ProgramExplanations
from tests.unit.shell.program_kit import PODS, Cluster

AFTER_S, FOR_S = 60.0, 120.0
RUNS_S = 20.0
"""How long a small pod runs."""
PENDING = 4
"""Small pods that always wait."""
GANG = {"pod-group.scheduling.sigs.k8s.io/name": "big", "pod-group.scheduling.sigs.k8s.io/min-available": "2"}

PLAIN = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
- name: forecast
lease: {enabled: false}
"""
RESERVING = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
- name: forecast
  profile:
    plugins:
      enabled:
      - {name: GangScheduling, args: {reserveAfter: 1m, reserveFor: 2m}}
lease: {enabled: false}
"""

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
Scene = Callable[[Cluster], Coroutine[Any, Any, None]]


def play(scene: Scene, configuration: str = RESERVING) -> None:
    """Two nodes of four CPUs, full of small pods; the gang is two pods of four."""
    loop = SimLoop(seed=1)

    async def main() -> None:
        cluster = Cluster(loop, configuration)
        for node in ("a", "b"):
            await cluster.add_node(node, cpu="4")
        running = loop.create_task(cluster.program.run())
        await cluster.settle()
        try:
            await scene(cluster)
        finally:
            cluster.program.stop()
            await running

    simulate(main(), loop)


@asynccontextmanager
async def stream_of_small_pods(cluster: Cluster, *, lasting: str = "") -> AsyncIterator[None]:
    """Each runs for `RUNS_S`, those on node `lasting` for ever; there are always some that wait."""

    async def flow() -> None:
        ends_s: dict[str, float] = {}
        count = 0
        while True:
            nodes = await cluster.nodes_of_pods()
            small = {name: node for name, node in nodes.items() if name.startswith("small")}
            now_s = cluster.clock.monotonic()
            for name, node in small.items():
                if node and node != lasting and now_s >= ends_s.setdefault(name, now_s + RUNS_S):
                    await cluster.delete_pod(name)
            for _ in range(PENDING - sum(not node for node in small.values())):
                count += 1
                await cluster.add_pod(f"small-{count}", cpu="1")
            await asyncio.sleep(1.0)

    task = asyncio.get_running_loop().create_task(flow())
    try:
        await asyncio.sleep(30.0)
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def add_gang(cluster: Cluster) -> None:
    for name in ("big-0", "big-1"):
        await cluster.add_pod(name, cpu="4", labels=GANG)


async def nominated(cluster: Cluster) -> set[str]:
    listed = await cluster.send("GET", PODS)
    return {node for item in listed["items"] if (node := item.get("status", {}).get("nominatedNodeName"))}


async def starts(cluster: Cluster, within_s: float) -> bool:
    for _ in range(int(within_s)):
        nodes = await cluster.nodes_of_pods()
        if nodes["big-0"] and nodes["big-1"]:
            return True
        await asyncio.sleep(1.0)
    return False


@pytest.mark.parametrize(("configuration", "does_start"), [(PLAIN, False), (RESERVING, True)], ids=["off", "on"])
def test_gang_among_a_stream_of_pods_starts_only_with_a_reservation(configuration: str, does_start: bool) -> None:
    async def scene(cluster: Cluster) -> None:
        async with stream_of_small_pods(cluster):
            await add_gang(cluster)
            assert await starts(cluster, AFTER_S + FOR_S) is does_start

    play(scene, configuration)


def test_reservation_is_reported_to_members_and_counted() -> None:
    async def scene(cluster: Cluster) -> None:
        async with stream_of_small_pods(cluster):
            await add_gang(cluster)
            await asyncio.sleep(AFTER_S + 5.0)
            assert await nominated(cluster) == {"a", "b"}
            pod = await cluster.send("GET", f"{PODS}/big-0")
            (condition,) = (one for one in pod["status"]["conditions"] if one["type"] == "PodScheduled")
            assert "Resources that become free on 2 nodes are reserved for the gang" in condition["message"]
            (worker,) = cluster.program.router.workers()
            assert worker.queue.statistics().gangs_reserving == 1
            assert await starts(cluster, FOR_S)
            await asyncio.sleep(5.0)
            counted = worker.queue.statistics()
            assert (counted.gangs_reserving, counted.reservations, counted.reservations_expired) == (0, 1, 0)

    play(scene)


def test_reservation_without_success_ends_and_pauses_equally_long() -> None:
    async def scene(cluster: Cluster) -> None:
        async with stream_of_small_pods(cluster, lasting="b"):
            await add_gang(cluster)
            await asyncio.sleep(AFTER_S + 5.0)
            assert await nominated(cluster) == {"a", "b"}
            await asyncio.sleep(FOR_S + 5.0)
            assert not await nominated(cluster)
            used = [node for node in (await cluster.nodes_of_pods()).values() if node == "a"]
            assert len(used) == 4, "small pods use what was reserved"
            await asyncio.sleep(FOR_S)
            assert await nominated(cluster) == {"a", "b"}, "its next turn"

    play(scene)


def test_more_important_pod_takes_reserved_room() -> None:
    async def scene(cluster: Cluster) -> None:
        async with stream_of_small_pods(cluster, lasting="b"):
            await add_gang(cluster)
            await asyncio.sleep(AFTER_S + RUNS_S + 10.0)
            assert "a" not in set((await cluster.nodes_of_pods()).values()), "kept free"
            await cluster.send("POST", CLASSES, {"metadata": {"name": "urgent"}, "value": 100})
            await cluster.add_pod("urgent", cpu="1", priorityClassName="urgent")
            await asyncio.sleep(2.0)
            assert await cluster.node_of("urgent") == "a"

    play(scene)


def test_gang_that_lost_a_member_ends_its_turn() -> None:
    async def scene(cluster: Cluster) -> None:
        async with stream_of_small_pods(cluster, lasting="b"):
            await add_gang(cluster)
            await asyncio.sleep(AFTER_S + 5.0)
            await cluster.delete_pod("big-1")
            await asyncio.sleep(2.0)
            (worker,) = cluster.program.router.workers()
            assert worker.queue.statistics().gangs_reserving == 0
            assert cluster.program.cache.gangs.reserving("default/big") is not Reserving.NOW
            assert not await nominated(cluster)

    play(scene)


def test_explain_names_the_reservation_for_the_gang_and_blocked_pods() -> None:
    async def scene(cluster: Cluster) -> None:
        async with stream_of_small_pods(cluster, lasting="b"):
            await add_gang(cluster)
            await asyncio.sleep(AFTER_S + 40.0)
            ask = ProgramExplanations(cluster.program, in_thread=cluster._at_once)
            small = min(name for name, node in (await cluster.nodes_of_pods()).items() if "small" in name and not node)
            held = await ask.pod(ExplainQuery("default", small))
            held_on_a = await ask.pod(ExplainQuery("default", small, node="a"))
            big = await ask.pod(ExplainQuery("default", "big-0"))
            tried = await ask.pod(ExplainQuery("default", "big-0", with_fixes=True))

        text = pod_text(held)
        assert "1 NodeResourcesFit: Insufficient cpu (Unschedulable)  [b]" in text
        assert (
            "1 NodeResourcesFit: Insufficient cpu counting the pods that are nominated to it (Unschedulable)  [a]"
            in text
        )
        (who,) = held.notes
        assert who in (
            f"node a is kept free for nominated pods: default/big-{at}; resources that become free there are reserved for"
            " gang default/big"
            for at in (0, 1)
        )
        assert held_on_a.on_node is not None
        assert held_on_a.on_node.text == (
            "It is not feasible: NodeResourcesFit: Insufficient cpu counting the pods that are nominated to it."
        )
        assert held_on_a.notes == held.notes

        reserved = "Resources that become free on 2 nodes are reserved for the gang"
        assert reserved in big.attempts[0].message
        (said,) = [point for point in big.attempts[0].points if point.point == "PostFilter"]
        assert (said.plugin, said.said.startswith(reserved)) == (
            "ElasticQuota, DefaultPreemption, GangScheduling",
            True,
        )
        assert big.attempts[0].nominated_node in ("a", "b")
        assert any(
            note.startswith("it is placed with its gang or not at all") and reserved in note for note in tried.notes
        )

    play(scene)
