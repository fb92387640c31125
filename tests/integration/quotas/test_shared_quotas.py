"""One quota tree for domains that two processes lead: no level exceeds its max, and room goes where pods wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from multisched.testing.sim_loop import SimLoop, simulate
from tests.sim.quota_cluster import FIRST, SECOND, SLICES, QuotaCluster, configuration, tree

TREE = tree(12, 8, a=(4, 8), b=(2, 6), c=(4, 8))
QUIET_S = 40.0


def play(story: Callable[[QuotaCluster], Awaitable[None]], *, seed: int = 1, slices: bool = True) -> None:
    """Plays a story on a cluster with one process per domain."""
    loop = SimLoop(seed)
    cluster = QuotaCluster(loop, seed)

    async def main() -> None:
        await cluster.begin((FIRST, SECOND), TREE, slices=slices)
        judge, ending = asyncio.create_task(cluster.judge_levels()), asyncio.create_task(cluster.end_evicted(None))
        for domain in (FIRST, SECOND):
            cluster.start({domain}, configuration(FIRST, SECOND)).transport.bind_s = 0.05
        await asyncio.sleep(15.0)
        await story(cluster)
        await cluster.end()
        assert not judge.done(), "the judge has seen everything"
        for task in (judge, ending):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert cluster.broken == []

    simulate(main(), loop)


async def slice_sets(cluster: QuotaCluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads((await cluster.send("GET", SLICES)).body).get("items", [])
    return found


async def pods(cluster: QuotaCluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads((await cluster.send("GET", "/api/v1/pods")).body)["items"]
    return found


async def until(cluster: QuotaCluster, is_reached: Callable[[], bool], limit_s: float = 60.0) -> float:
    """Waits; returns how long. Ends after the limit."""
    began_s = cluster.loop.time()
    for _ in range(int(limit_s / 0.1)):
        if is_reached():
            break
        await asyncio.sleep(0.1)
    return cluster.loop.time() - began_s


def test_pods_of_both_processes_fill_a_quota_together_and_never_exceed_it() -> None:
    async def story(cluster: QuotaCluster) -> None:
        for _ in range(8):
            await cluster.add(FIRST, "a")
            await cluster.add(SECOND, "a")
            await asyncio.sleep(3.0)
        await asyncio.sleep(QUIET_S)
        assert cluster.used["root.x.a"] == 8000
        assert min(len(cluster.running(domain, "a")) for domain in (FIRST, SECOND)) >= 3

    play(story)


def test_borrower_is_offered_what_it_needs_within_seconds() -> None:
    async def story(cluster: QuotaCluster) -> None:
        for _ in range(6):
            await cluster.add(SECOND, "b")
        assert await until(cluster, lambda: len(cluster.running(SECOND)) == 6) < 3.0
        (found,) = await slice_sets(cluster)
        assert found["metadata"]["name"] == "web.batch.quota.0"
        assert found["status"]["held"]["b"] == {"cpuMilli": 6000, "memoryBytes": 0, "pods": 0}

    play(story)


def test_held_room_comes_back_when_pods_of_the_lender_wait() -> None:
    async def story(cluster: QuotaCluster) -> None:
        names = [await cluster.add(SECOND, "b") for _ in range(6)]
        await until(cluster, lambda: len(cluster.running(SECOND)) == 6)
        for name in names:
            await cluster.delete("b", name)
        for _ in range(8):
            await cluster.add(FIRST, "a")
        assert await until(cluster, lambda: len(cluster.running(FIRST)) == 8) < 10.0

    play(story)


def test_without_the_definition_nothing_is_offered_and_it_is_said() -> None:
    async def story(cluster: QuotaCluster) -> None:
        await cluster.add(SECOND, "b")
        for _ in range(9):
            await cluster.add(FIRST, "a")
        await asyncio.sleep(QUIET_S)
        assert (len(cluster.running(FIRST)), cluster.running(SECOND)) == (8, []), (
            "no pod is evicted for room that is not offered"
        )
        (waiting,) = [pod for pod in await pods(cluster) if pod["metadata"]["name"].startswith(SECOND)]
        (condition,) = waiting["status"]["conditions"]
        assert condition["reason"] == "QuotaExceeded"
        assert "web, which has published no SliceSet" in condition["message"]

    play(story, slices=False)


def test_pods_of_the_lender_reclaim_their_min_from_another_process() -> None:
    async def story(cluster: QuotaCluster) -> None:
        for _ in range(6):
            await cluster.add(SECOND, "b")
        await until(cluster, lambda: len(cluster.running(SECOND)) == 6)
        for _ in range(4):
            await cluster.add(SECOND, "b")
            await cluster.add(FIRST, "a")
        await until(cluster, lambda: len(cluster.running(FIRST)) == 4)
        await asyncio.sleep(QUIET_S)
        assert (len(cluster.running(FIRST)), len(cluster.running(SECOND))) == (4, 4)

    play(story)


def test_pods_of_a_borrower_reclaim_their_min_from_the_lender() -> None:
    async def story(cluster: QuotaCluster) -> None:
        for _ in range(10):
            await cluster.add(FIRST, "a")
        await until(cluster, lambda: len(cluster.running(FIRST)) == 8)
        for _ in range(2):
            await cluster.add(SECOND, "b")
        await until(cluster, lambda: len(cluster.running(SECOND)) == 2)
        await asyncio.sleep(QUIET_S)
        assert (len(cluster.running(FIRST)), len(cluster.running(SECOND))) == (6, 2)

    play(story)
