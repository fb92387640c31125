"""HAMi's node lock, with the whole program: taken before the bind, respected, released, and taken from those who left it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import orjson
import pytest

from multisched.model.wire import Response
from multisched.testing.sim_loop import SimLoop, simulate
from tests.integration.gpu.gpu_cluster import HAMI, PODS, Demand, GpuCluster, hami_node, open_gpu_cluster

SMALL = Demand(HAMI, ((1, 1_000),))
FOREIGN = "default,foreign"


ISOLATED = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
- name: gpu
  profile: {plugins: {enabled: [{name: NodeAffinity, isolation: thread}]}}
client: {bindTimeout: 900ms}
lease: {duration: 2s, renewDeadline: 1s, retryPeriod: 200ms}
"""
"""A filter that cannot be run again right before a bind is sent."""


def now(cluster: GpuCluster, minutes: float = 0) -> str:
    return f"{cluster.clock.now() + timedelta(minutes=minutes):%Y-%m-%dT%H:%M:%SZ}"


async def node_of(cluster: GpuCluster, name: str) -> str:
    return str((await cluster.pods())[name]["spec"].get("nodeName", ""))


async def is_bound(cluster: GpuCluster, name: str) -> bool:
    return bool(await node_of(cluster, name))


def test_a_lock_names_the_pod_before_it_is_bound_and_the_plugin_removes_it() -> None:
    loop = SimLoop(1)

    async def main() -> None:
        async with open_gpu_cluster(loop, hami_node("n"), plugin_delay_s=(5.0, 5.0)) as cluster:
            await cluster.add_pod("p", SMALL)
            await cluster.until(lambda: is_bound(cluster, "p"))
            assert (await cluster.lock("n")).endswith(",default,p")
            assert (await cluster.pods())["p"]["metadata"]["labels"]["hami.io/vgpu-node"] == "n"
            await asyncio.sleep(6.0)
            assert await cluster.lock("n") == ""
            assert cluster.wrong_picks() == []

    simulate(main(), loop)


def test_own_lock_does_not_cancel_the_bind_beside_an_isolated_filter() -> None:
    loop = SimLoop(1)

    async def main() -> None:
        async with open_gpu_cluster(loop, hami_node("n"), plugin_delay_s=(0.0, 0.0), configuration=ISOLATED) as cluster:
            await cluster.add_pod("p", SMALL)
            await cluster.until(lambda: is_bound(cluster, "p"), 5.0)

    simulate(main(), loop)


def test_lock_of_another_scheduler_refuses_the_node_and_its_release_requeues_the_pod() -> None:
    loop = SimLoop(1)

    async def main() -> None:
        async with open_gpu_cluster(loop, hami_node("locked"), plugin_delay_s=(0.0, 0.0)) as cluster:
            await cluster.add_foreign_pod("foreign")
            text = f"{now(cluster)},{FOREIGN}"
            assert await cluster.swap_lock("locked", "", text)
            await cluster.add_pod("p", SMALL)
            await asyncio.sleep(30.0)
            assert not await is_bound(cluster, "p")
            assert "node(s) had a GPU lock held by another scheduler" in cluster.waiting()["p"][1]
            assert await cluster.lock("locked") == text

            await cluster.add_node(hami_node("free"))
            await cluster.until(lambda: is_bound(cluster, "p"), 1.0)
            assert await node_of(cluster, "p") == "free"
            await cluster.add_pod("q", Demand(HAMI, ((8, 24_000),)))
            await asyncio.sleep(5.0)
            assert not await is_bound(cluster, "q")

            assert await cluster.swap_lock("locked", text, "")
            await cluster.until(lambda: is_bound(cluster, "q"), 1.0)
            assert cluster.refused_binds == []

    simulate(main(), loop)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [(f"{{}},{FOREIGN}", -6.0), ("{},default,nobody", 0.0), ("yesterday", 0.0), ("{},,", 0.0), ("{}", -6.0)],
)
def test_a_stale_lock_is_removed_within_seconds(text: str, minutes: float) -> None:
    loop = SimLoop(1)

    async def main() -> None:
        async with open_gpu_cluster(loop, hami_node("n"), plugin_delay_s=(0.0, 0.0)) as cluster:
            await cluster.add_foreign_pod("foreign")
            assert await cluster.swap_lock("n", "", text.format(now(cluster, minutes)))
            await cluster.add_pod("p", SMALL)
            await cluster.until(lambda: is_bound(cluster, "p"), 3.0)
            assert cluster.refused_binds == []

    simulate(main(), loop)


def test_a_lock_of_another_scheduler_is_left_to_it_even_if_its_pod_runs() -> None:
    loop = SimLoop(1)

    async def main() -> None:
        async with open_gpu_cluster(loop, hami_node("n"), plugin_delay_s=(0.0, 0.0)) as cluster:
            await cluster.add_foreign_pod("foreign")
            await cluster.send("POST", f"{PODS}/foreign/binding", {"target": {"kind": "Node", "name": "n"}})
            await asyncio.sleep(10.0)
            text = f"{now(cluster)},{FOREIGN}"
            assert await cluster.swap_lock("n", "", text)
            await cluster.add_pod("p", SMALL)
            await asyncio.sleep(60.0)
            assert await cluster.lock("n") == text
            assert not await is_bound(cluster, "p")

            await cluster.delete_pod("foreign")
            await cluster.until(lambda: is_bound(cluster, "p"), 15.0)

    simulate(main(), loop)


def test_a_lock_in_the_future_expires_after_it_was_seen_for_five_minutes() -> None:
    loop = SimLoop(1)

    async def main() -> None:
        async with open_gpu_cluster(loop, hami_node("n"), plugin_delay_s=(0.0, 0.0)) as cluster:
            await cluster.add_foreign_pod("foreign")
            assert await cluster.swap_lock("n", "", f"{now(cluster, 600.0)},{FOREIGN}")
            await cluster.add_pod("p", SMALL)
            await asyncio.sleep(290.0)
            assert not await is_bound(cluster, "p")
            await cluster.until(lambda: is_bound(cluster, "p"), 20.0)

    simulate(main(), loop)


def test_the_lock_of_a_refused_bind_is_released_at_once() -> None:
    loop = SimLoop(1)

    async def main() -> None:
        async with open_gpu_cluster(loop, hami_node("n")) as cluster:
            body = b'{"kind":"Status","message":"a webhook says no","code":403}'
            cluster.answer = lambda path: Response(403, body, {}) if path.endswith("/binding") else None
            await cluster.add_pod("p", SMALL)
            await cluster.until(lambda: _is_true(cluster.refused_binds))
            await asyncio.sleep(0.2)
            assert await cluster.lock("n") == ""

    simulate(main(), loop)


def test_missing_right_to_patch_nodes_is_reported_on_the_pod() -> None:
    loop = SimLoop(1)

    async def main() -> None:
        async with open_gpu_cluster(loop, hami_node("n"), plugin_delay_s=(0.0, 0.0)) as cluster:
            body = b'{"kind":"Status","message":"nodes \\"n\\" is forbidden","code":403}'
            cluster.answer = lambda path: Response(403, body, {}) if path == "/api/v1/nodes/n" else None
            await cluster.add_pod("p", SMALL)
            await asyncio.sleep(5.0)
            assert 'nodes "n" is forbidden; allow patch of nodes' in cluster.waiting()["p"][1]

            cluster.answer = lambda path: None
            await cluster.until(lambda: is_bound(cluster, "p"), 15.0)

    simulate(main(), loop)


async def _is_true(found: object) -> bool:
    return bool(found)


def test_a_lock_found_only_before_the_bind_sends_the_pod_to_another_node() -> None:
    """The foreign scheduler takes the lock after the decision, before this program's watch shows it."""
    loop = SimLoop(1)

    async def main() -> None:
        async with open_gpu_cluster(loop, hami_node("n"), hami_node("other"), plugin_delay_s=(0.0, 0.0)) as cluster:
            await cluster.add_foreign_pod("foreign")
            locked: list[str] = []

            async def lock_first(path: str) -> None:
                if not locked and "/nodes/" in path:
                    locked.append(path.split("/")[4].partition("?")[0])
                    await cluster.swap_lock(locked[0], "", f"{now(cluster)},{FOREIGN}")

            cluster.before_request = lock_first
            await cluster.add_pod("p", SMALL)
            await cluster.until(lambda: is_bound(cluster, "p"), 2.0)

            assert await node_of(cluster, "p") != locked[0]
            assert cluster.refused_binds == []

    simulate(main(), loop)


@pytest.mark.parametrize(("reads", "within_s"), [(2, 2.0), (20, 15.0)])
def test_lock_that_the_watch_never_shows_delays_the_pod_briefly(reads: int, within_s: float) -> None:
    """It was taken and removed between two lists of nodes: no event tells of its end."""
    loop = SimLoop(1)

    async def main() -> None:
        async with open_gpu_cluster(loop, hami_node("n"), plugin_delay_s=(0.0, 0.0)) as cluster:
            node = await cluster.send("GET", "/api/v1/nodes/n")
            node["metadata"]["annotations"]["hami.io/mutex.lock"] = f"{now(cluster)},{FOREIGN}"
            answers = iter([Response(200, orjson.dumps(node), {})] * reads)
            cluster.answer = lambda path: next(answers, None) if path == "/api/v1/nodes/n" else None
            await cluster.add_pod("p", SMALL)
            await cluster.until(lambda: is_bound(cluster, "p"), within_s)
            assert cluster.refused_binds == []

    simulate(main(), loop)


def test_new_leader_removes_the_lock_of_a_killed_one_for_an_unbound_pod() -> None:
    loop = SimLoop(1)

    async def main() -> None:
        async with open_gpu_cluster(loop, hami_node("n"), replicas=2, plugin_delay_s=(0.0, 0.0)) as cluster:
            leader = cluster.leader()
            assert leader is not None
            hung = asyncio.Event()

            async def hang(path: str) -> None:
                if path.partition("?")[0].endswith("/binding") and not leader.wire.is_cut:
                    hung.set()
                    await asyncio.sleep(3600.0)

            cluster.before_request = hang
            await cluster.add_pod("p", SMALL)
            await hung.wait()
            assert (await cluster.lock("n")).endswith(",default,p")
            await cluster.send("DELETE", f"{PODS}/p?gracePeriodSeconds=0")
            await cluster.add_pod("q", SMALL)
            await cluster.kill(leader)
            cluster.start()
            await cluster.until(lambda: is_bound(cluster, "q"), 15.0)
            assert cluster.refused_binds == []
            await asyncio.sleep(5.0)
            assert cluster.wrong_picks() == []
            assert cluster.differences() == []

    simulate(main(), loop)
