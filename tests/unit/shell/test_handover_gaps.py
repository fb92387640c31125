"""Nodes that change their domain while a leader's watch has a gap: it lists, and never sees what was in between."""

from __future__ import annotations

import asyncio

from multisched.shell.domain import DomainWorker
from multisched.shell.handover import NODES_LISTED_MAX
from multisched.state.domain_rows import DomainRows
from tests.sim.handover import THREE, TWO, Replica, Site, play


def relist(replica: Replica) -> None:
    replica.program.reflectors["nodes"].request_relist()


def rows_of(replica: Replica, domain: str) -> DomainRows:
    def is_named(worker: DomainWorker) -> bool:
        return worker.name == domain

    router = replica.program.router
    return router.rows_of(next(filter(is_named, router.workers())))


def test_a_node_that_went_and_came_back_unseen_is_not_used_by_a_leader_that_knows_less() -> None:
    """The old leader has seen the versions after the node left, and has the node: the new one has yet to hear of that."""

    async def scene(site: Site) -> None:
        old, new = site.start(["gpu"], TWO), site.start(["forecast"], TWO)
        await asyncio.sleep(10.0)
        old.cable.bind_s = 3.0
        old.cable.deaf_until_s = site.loop.time() + 60.0
        await site.set_gpus("n", 0)
        await asyncio.sleep(1.0)
        assert rows_of(new, "forecast").withheld
        new.cable.deaf_until_s = site.loop.time() + 60.0
        await site.set_gpus("n", 4)
        relist(old)
        await asyncio.sleep(6.0)
        first = await site.add_pod("gpu", "6")
        await asyncio.sleep(0.5)
        second = await site.add_pod("forecast", "6")
        await asyncio.sleep(8.0)

        assert site.node_of(first) == "n"
        assert site.node_of(second) == ""

    play(scene)


def test_a_node_that_was_away_while_its_next_leader_listed_counts_as_one_that_joins_by_that_list() -> None:
    """Neither leader sees all of it: both had the node before their lists and have it after them."""

    async def scene(site: Site) -> None:
        old, new = site.start(["gpu"], TWO), site.start(["forecast"], TWO)
        await asyncio.sleep(10.0)
        old.cable.bind_s = 4.0
        old.cable.deaf_until_s = site.loop.time() + 60.0
        await site.set_gpus("n", 0)
        await asyncio.sleep(1.0)
        new.cable.deaf_until_s = site.loop.time() + 60.0
        await site.set_gpus("n", 4)
        relist(old)
        await asyncio.sleep(6.0)
        first = await site.add_pod("gpu", "6")
        await asyncio.sleep(0.2)
        await site.set_gpus("n", 0)
        relist(new)
        second = await site.add_pod("forecast", "6")
        await asyncio.sleep(10.0)

        assert site.node_of(first) == "n"
        assert site.node_of(second) == ""

    play(scene)


def test_a_domain_that_another_leader_has_never_heard_of_uses_no_node_beside_it() -> None:
    """A configuration with one domain more is rolled out: the old leader would take a node of it without asking."""

    async def scene(site: Site) -> None:
        old, new = site.start(["gpu", "forecast"], TWO), site.start(["edge"], THREE)
        await site.label("n", **{"multisched.io_domain": "edge"})
        await asyncio.sleep(10.0)
        new.cable.bind_s = 4.0
        first = await site.add_pod("edge", "6")
        await asyncio.sleep(0.5)
        await site.label("n", **{"multisched.io_domain": None})
        second = await site.add_pod("gpu", "6")
        await asyncio.sleep(8.0)

        assert site.node_of(first) == ""
        assert site.node_of(second) == "n"
        await site.stop(old)
        await site.add_node("m", {"multisched.io/domain": "edge"})
        await asyncio.sleep(20.0)
        assert site.node_of(first) == "m"

    play(scene)


def test_many_nodes_that_change_their_domain_at_once_are_used_soon() -> None:
    """More than are listed one by one. The list that is made for all of them keeps none of them waiting."""

    async def scene(site: Site) -> None:
        count = 2 * NODES_LISTED_MAX
        for number in range(count):
            await site.add_node(f"node-{number}", gpus=4)
        _, new = site.start(["gpu"], TWO), site.start(["forecast"], TWO)
        await asyncio.sleep(10.0)
        for number in range(count):
            await site.set_gpus(f"node-{number}", 0)
        await asyncio.sleep(6.0)
        assert not rows_of(new, "forecast").withheld
        assert len(rows_of(new, "forecast").rows) == count

    play(scene)


def test_nodes_that_come_together_do_not_wait_for_one_anothers_lists() -> None:
    """Of one list, or of one that fails: the others' nodes are used meanwhile."""

    async def scene(site: Site) -> None:
        names = [f"node-{number}" for number in range(NODES_LISTED_MAX - 2)]
        for name in names:
            await site.add_node(name, gpus=4)
        _, new = site.start(["gpu"], TWO), site.start(["forecast"], TWO)
        await asyncio.sleep(10.0)
        new.cable.node_lists = dict.fromkeys(names, 2.0) | {names[0]: float("inf")}
        for name in names:
            await site.set_gpus(name, 0)
        await asyncio.sleep(10.0)
        assert len(rows_of(new, "forecast").withheld) == 1
        new.cable.node_lists = {}
        await asyncio.sleep(2.0)
        assert not rows_of(new, "forecast").withheld

    play(scene)
