"""A program that finds no lease: the first one ever binds at once, and one whose lease was deleted waits for who may have held it."""

from __future__ import annotations

import pytest

from tests.unit.shell.program_kit import CONFIGURATION, Cluster, play

LEASED = CONFIGURATION.replace("lease: {enabled: false}", "")
"""Two leases; a holder binds for ten seconds after its last renewal, and its last bind may take five more."""


@pytest.mark.parametrize(("scheduler", "is_ours"), [("gpu-scheduler", True), ("default-scheduler", False)])
def test_who_finds_no_lease_waits_where_pods_of_ours_stand(scheduler: str, is_ours: bool) -> None:
    async def prepare(cluster: Cluster) -> None:
        await cluster.add_node("a")
        await cluster.add_pod("stands", scheduler=scheduler)
        await cluster.bind("stands", "a")

    async def scene(cluster: Cluster) -> None:
        await cluster.add_pod("next")
        await cluster.settle(9.0)
        assert await cluster.nodes_of_pods() == {"stands": "a", "next": "" if is_ours else "a"}
        await cluster.settle(3.0)
        assert (await cluster.nodes_of_pods())["next"] == "a"
        lists = [path for method, path in cluster.transport.requests if method == "GET" and "/pods?" in path]
        assert len(lists) == 1 + is_ours  # what the former holder bound meanwhile is known by then

    play(scene, prepare=prepare, configuration=LEASED)
