"""HAMi's node lock, with the whole program: taken before the bind, respected, released, and taken from those who left it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from multisched.model.wire import Response
from multisched.testing.sim_loop import SimLoop, simulate
from tests.integration.gpu.gpu_town import HAMI, PODS, Demand, GpuTown, hami_node, open_town

SMALL = Demand(HAMI, ((1, 1_000),))
FOREIGN = "default,foreign"


def now(town: GpuTown, minutes: float = 0) -> str:
    return f"{town.clock.now() + timedelta(minutes=minutes):%Y-%m-%dT%H:%M:%SZ}"


async def node_of(town: GpuTown, name: str) -> str:
    return str((await town.pods())[name]["spec"].get("nodeName", ""))


async def is_bound(town: GpuTown, name: str) -> bool:
    return bool(await node_of(town, name))


def test_a_lock_names_the_pod_before_it_is_bound_and_the_plugin_removes_it() -> None:
    loop = SimLoop(1)

    async def story() -> None:
        async with open_town(loop, hami_node("n"), plugin_delay_s=(5.0, 5.0)) as town:
            await town.add_pod("p", SMALL)
            await town.until(lambda: is_bound(town, "p"))
            assert (await town.lock("n")).endswith(",default,p")
            await asyncio.sleep(6.0)
            assert await town.lock("n") == ""
            assert town.wrong_picks() == []

    simulate(story(), loop)


def test_lock_of_another_scheduler_refuses_the_node_and_its_release_requeues_the_pod() -> None:
    loop = SimLoop(1)

    async def story() -> None:
        async with open_town(loop, hami_node("locked"), plugin_delay_s=(0.0, 0.0)) as town:
            await town.add_foreign_pod("foreign")
            text = f"{now(town)},{FOREIGN}"
            assert await town.swap_lock("locked", "", text)
            await town.add_pod("p", SMALL)
            await asyncio.sleep(30.0)
            assert not await is_bound(town, "p")
            assert "node(s) had a GPU lock held by another scheduler" in town.waiting()["p"][1]
            assert await town.lock("locked") == text

            await town.add_node(hami_node("free"))
            await town.until(lambda: is_bound(town, "p"), 1.0)
            assert await node_of(town, "p") == "free"
            await town.add_pod("q", Demand(HAMI, ((8, 24_000),)))
            await asyncio.sleep(5.0)
            assert not await is_bound(town, "q")

            assert await town.swap_lock("locked", text, "")
            await town.until(lambda: is_bound(town, "q"), 1.0)
            assert town.refused_binds == []

    simulate(story(), loop)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [(f"{{}},{FOREIGN}", -6.0), ("{},default,nobody", 0.0), ("yesterday", 0.0), ("{},,", 0.0), ("{}", -6.0)],
)
def test_a_stale_lock_is_removed_within_seconds(text: str, minutes: float) -> None:
    loop = SimLoop(1)

    async def story() -> None:
        async with open_town(loop, hami_node("n"), plugin_delay_s=(0.0, 0.0)) as town:
            await town.add_foreign_pod("foreign")
            assert await town.swap_lock("n", "", text.format(now(town, minutes)))
            await town.add_pod("p", SMALL)
            await town.until(lambda: is_bound(town, "p"), 3.0)
            assert town.refused_binds == []

    simulate(story(), loop)


def test_a_lock_of_another_scheduler_is_left_to_it_even_if_its_pod_runs() -> None:
    loop = SimLoop(1)

    async def story() -> None:
        async with open_town(loop, hami_node("n"), plugin_delay_s=(0.0, 0.0)) as town:
            await town.add_foreign_pod("foreign")
            await town.send("POST", f"{PODS}/foreign/binding", {"target": {"kind": "Node", "name": "n"}})
            await asyncio.sleep(10.0)
            text = f"{now(town)},{FOREIGN}"
            assert await town.swap_lock("n", "", text)
            await town.add_pod("p", SMALL)
            await asyncio.sleep(60.0)
            assert await town.lock("n") == text
            assert not await is_bound(town, "p")

            await town.delete_pod("foreign")
            await town.until(lambda: is_bound(town, "p"), 15.0)

    simulate(story(), loop)


def test_a_lock_in_the_future_expires_after_it_was_seen_for_five_minutes() -> None:
    loop = SimLoop(1)

    async def story() -> None:
        async with open_town(loop, hami_node("n"), plugin_delay_s=(0.0, 0.0)) as town:
            await town.add_foreign_pod("foreign")
            assert await town.swap_lock("n", "", f"{now(town, 600.0)},{FOREIGN}")
            await town.add_pod("p", SMALL)
            await asyncio.sleep(290.0)
            assert not await is_bound(town, "p")
            await town.until(lambda: is_bound(town, "p"), 20.0)

    simulate(story(), loop)


def test_the_lock_of_a_refused_bind_is_released_at_once() -> None:
    loop = SimLoop(1)

    async def story() -> None:
        async with open_town(loop, hami_node("n")) as town:
            body = b'{"kind":"Status","message":"a webhook says no","code":403}'
            town.answer = lambda path: Response(403, body, {}) if path.endswith("/binding") else None
            await town.add_pod("p", SMALL)
            await town.until(lambda: _is_true(town.refused_binds))
            await asyncio.sleep(0.2)
            assert await town.lock("n") == ""

    simulate(story(), loop)


def test_missing_right_to_patch_nodes_is_reported_on_the_pod() -> None:
    loop = SimLoop(1)

    async def story() -> None:
        async with open_town(loop, hami_node("n"), plugin_delay_s=(0.0, 0.0)) as town:
            body = b'{"kind":"Status","message":"nodes \\"n\\" is forbidden","code":403}'
            town.answer = lambda path: Response(403, body, {}) if path == "/api/v1/nodes/n" else None
            await town.add_pod("p", SMALL)
            await asyncio.sleep(5.0)
            assert 'nodes "n" is forbidden; allow patch of nodes' in town.waiting()["p"][1]

            town.answer = lambda path: None
            await town.until(lambda: is_bound(town, "p"), 15.0)

    simulate(story(), loop)


async def _is_true(found: object) -> bool:
    return bool(found)


def test_a_lock_found_only_before_the_bind_sends_the_pod_to_another_node() -> None:
    """The foreign scheduler takes the lock after the decision, before this program's watch shows it."""
    loop = SimLoop(1)

    async def story() -> None:
        async with open_town(loop, hami_node("n"), hami_node("other"), plugin_delay_s=(0.0, 0.0)) as town:
            await town.add_foreign_pod("foreign")
            locked: list[str] = []

            async def lock_first(path: str) -> None:
                if not locked and "/nodes/" in path:
                    locked.append(path.split("/")[4].partition("?")[0])
                    await town.swap_lock(locked[0], "", f"{now(town)},{FOREIGN}")

            town.meddle = lock_first
            await town.add_pod("p", SMALL)
            await town.until(lambda: is_bound(town, "p"), 2.0)

            assert await node_of(town, "p") != locked[0]
            assert town.refused_binds == []

    simulate(story(), loop)


def test_new_leader_removes_the_lock_of_a_killed_one_for_an_unbound_pod() -> None:
    loop = SimLoop(1)

    async def story() -> None:
        async with open_town(loop, hami_node("n"), replicas=2, plugin_delay_s=(0.0, 0.0)) as town:
            leader = town.leader()
            assert leader is not None
            hung = asyncio.Event()

            async def hang(path: str) -> None:
                if path.partition("?")[0].endswith("/binding") and not leader.wire.is_cut:
                    hung.set()
                    await asyncio.sleep(3600.0)

            town.meddle = hang
            await town.add_pod("p", SMALL)
            await hung.wait()
            assert (await town.lock("n")).endswith(",default,p")
            await town.send("DELETE", f"{PODS}/p?gracePeriodSeconds=0")
            await town.add_pod("q", SMALL)
            await town.kill(leader)
            town.start()
            await town.until(lambda: is_bound(town, "q"), 15.0)
            assert town.refused_binds == []
            await asyncio.sleep(5.0)
            assert town.wrong_picks() == []
            assert town.differences() == []

    simulate(story(), loop)
