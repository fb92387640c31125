"""A program that finds no lease: the first one ever binds at once, and one whose lease was deleted waits for who may have held it."""

from __future__ import annotations

import asyncio

import pytest

from multisched.client.lister import PAGE_ITEMS
from multisched.model.wire import Response
from tests.sim.handover import TWO, HandoverCluster, run_on_one_node
from tests.unit.shell.program_kit import CONFIGURATION, Cluster, play

LEASED = CONFIGURATION.replace("enabled: false", "perDomain: true")
"""Two leases; a holder binds for ten seconds after its last renewal, and its last bind may take five more."""


@pytest.mark.parametrize(("scheduler", "is_ours"), [("gpu-scheduler", True), ("default-scheduler", False)])
def test_process_without_a_lease_record_waits_if_own_pods_are_placed(scheduler: str, is_ours: bool) -> None:
    async def prepare(cluster: Cluster) -> None:
        await cluster.add_node("a")
        await cluster.add_pod("stands", scheduler=scheduler)
        await cluster.bind("stands", "a")

    async def main(cluster: Cluster) -> None:
        await cluster.add_pod("next")
        await cluster.settle(9.0)
        assert await cluster.nodes_of_pods() == {"stands": "a", "next": "" if is_ours else "a"}
        await cluster.settle(3.0)
        assert (await cluster.nodes_of_pods())["next"] == "a"
        page = f"/pods?limit={PAGE_ITEMS}&"  # of a reflector; the audit's are smaller
        lists = [path for method, path in cluster.transport.requests if method == "GET" and page in path]
        assert len(lists) == 1 + is_ours  # what the former holder bound meanwhile is known by then

    play(main, prepare=prepare, configuration=LEASED)


def test_list_from_before_the_lease_creation_does_not_prove_it_was_free() -> None:
    """No lease can be asked for while the program starts; a replica binds meanwhile, which the watch does not tell."""

    async def prepare(cluster: Cluster) -> None:
        await cluster.add_node("a")
        await cluster.add_pod("stands", scheduler="gpu-scheduler")
        await cluster.add_pod("next")
        away = Response(503, b"{}", {})
        cluster.transport.answer = lambda method, path: away if "/leases" in path else None

    async def main(cluster: Cluster) -> None:
        cluster.transport.said = lambda text: b"" if text.startswith(b'{"type":') else text
        await cluster.bind("stands", "a")
        cluster.transport.answer = lambda method, path: None
        await cluster.settle(9.0)
        assert await cluster.nodes_of_pods() == {"stands": "a", "next": ""}
        await cluster.settle(10.0)
        assert (await cluster.nodes_of_pods())["next"] == "a"

    play(main, prepare=prepare, configuration=LEASED)


@pytest.mark.parametrize("heir", ["starts later", "starts later and takes both", "has looked long ago"])
def test_node_is_withheld_while_the_holder_of_a_deleted_lease_may_bind(heir: str) -> None:
    """The holder hears of no node and reaches no lease: it binds in good faith until its lease would have run out."""

    async def main(cluster: HandoverCluster) -> None:
        first = cluster.start(["forecast"], TWO)
        holder = cluster.start(["gpu"], TWO)
        await asyncio.sleep(10.0)
        await cluster.add_pod("gpu", "1")
        await asyncio.sleep(30.0)
        holder.transport.stalled_until_s, holder.transport.bind_s = cluster.loop.time() + 60.0, 4.0
        holder.transport.reaches_leases = False
        await cluster.delete_lease("gpu")
        await cluster.set_gpus("n", 0)
        if heir != "has looked long ago":
            await cluster.stop(first)
            cluster.start(["forecast", "gpu"] if "both" in heir else ["forecast"], TWO)
        await asyncio.sleep(3.0)
        in_good_faith, late = await cluster.add_pod("gpu", "5"), await cluster.add_pod("forecast", "5")
        await asyncio.sleep(6.0)
        assert [cluster.node_of(name) for name in (in_good_faith, late)] == ["n", ""]
        small = await cluster.add_pod("forecast", "1")
        await asyncio.sleep(30.0)  # its own process comes back, and waits in its turn
        await cluster.label("n", beat="1")
        await asyncio.sleep(8.0)
        assert [cluster.node_of(name) for name in (late, small)] == ["", "n"]

    run_on_one_node(main)
