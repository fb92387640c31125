"""Nodes that change their domain while different replicas lead: never overcommitted, and used again soon (I1, I3, I8)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings

from tests.sim.handover import BY_LABEL, BY_NEW_LABEL, THREE, TOGETHER, TWO, HandoverCluster, run, run_on_one_node

SEEDS = settings().max_examples // 50


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize(
    ("texts", "moves"),
    [
        ({("forecast",): TWO, ("gpu",): TWO}, "gpus"),
        ({("forecast",): THREE, ("gpu",): THREE, ("edge",): THREE}, "labels"),
        ({("forecast", "gpu"): TWO, ("gpu", "forecast", "none"): TWO}, "gpus"),
    ],
    ids=["two leaders", "three leaders", "two that take over from each other"],
)
def test_node_that_changes_its_domain_is_never_overcommitted(
    seed: int, texts: dict[tuple[str, ...], str], moves: str
) -> None:
    found = run(seed, texts, moves)

    assert found.broken == ()
    assert found.late_pods == ()
    assert found.counts["move"] > 10
    assert found.counts["bound"] >= 10


@pytest.mark.parametrize("seed", range(SEEDS))
def test_two_configurations_during_a_rollout_do_not_share_a_node(seed: int) -> None:
    """The old one gives the gpu domain other nodes than the new one."""
    found = run(seed, {("forecast",): BY_LABEL, ("gpu",): BY_NEW_LABEL}, "pool")

    assert found.broken == ()
    assert found.counts["bound"] >= 10


def test_next_leader_waits_for_a_bind_in_flight_to_the_node() -> None:
    async def main(cluster: HandoverCluster) -> None:
        old, _ = cluster.start(["gpu"], TWO), cluster.start(["forecast"], TWO)
        await asyncio.sleep(10.0)
        old.transport.bind_s = 5.0
        first = await cluster.add_pod("gpu", "6")
        await asyncio.sleep(1.0)
        await cluster.set_gpus("n", 0)
        second = await cluster.add_pod("forecast", "6")
        await asyncio.sleep(20.0)

        assert cluster.node_of(first) == "n", "what was sent while the node was the domain's takes effect"
        assert cluster.node_of(second) == ""

    run_on_one_node(main)


def test_next_leader_waits_until_it_counts_pods_bound_by_the_last_one() -> None:
    async def main(cluster: HandoverCluster) -> None:
        _, new = cluster.start(["gpu"], TWO), cluster.start(["forecast"], TWO)
        await asyncio.sleep(10.0)
        second = await cluster.add_pod("forecast", "6")
        await asyncio.sleep(1.0)
        new.transport.pods_stalled_until_s = cluster.loop.time() + 20.0
        first = await cluster.add_pod("gpu", "6")
        await asyncio.sleep(6.0)
        assert cluster.node_of(first) == "n"
        await cluster.set_gpus("n", 0)
        await asyncio.sleep(40.0)

        assert cluster.node_of(second) == ""

    run_on_one_node(main)


def test_new_leader_waits_for_foreign_binds_to_nodes_that_joined_its_domain() -> None:
    async def main(cluster: HandoverCluster) -> None:
        old, dead = cluster.start(["gpu"], TWO), cluster.start(["forecast"], TWO)
        await asyncio.sleep(10.0)
        await cluster.kill(dead)
        cluster.start(["forecast"], TWO)
        await asyncio.sleep(19.0)  # the lease has run out, and the bind deadline nearly
        old.transport.bind_s = 5.0
        await cluster.add_pod("gpu", "6")
        await asyncio.sleep(0.3)
        await cluster.set_gpus("n", 0)
        second = await cluster.add_pod("forecast", "6")
        await asyncio.sleep(30.0)

        assert cluster.node_of(second) == ""

    run_on_one_node(main)


def test_second_lease_acquired_during_a_list_causes_another_list() -> None:
    """The holder of the second one has bound a pod meanwhile, and no watch tells of it."""

    async def main(cluster: HandoverCluster) -> None:
        important = {"metadata": {"name": "first"}, "value": 9, "preemptionPolicy": "Never"}
        await cluster.send("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", important)
        first, second = cluster.start(["forecast"], TWO), cluster.start(["gpu"], TWO)
        await asyncio.sleep(10.0)
        successor = cluster.start(["forecast", "gpu"], TWO)
        await asyncio.sleep(5.0)
        second.transport.bind_s, successor.transport.list_s = 4.0, 6.0
        bound = await cluster.add_pod("gpu", "6")
        await asyncio.sleep(0.6)
        late = await cluster.add_pod("gpu", "6", priorityClassName="first")
        await asyncio.sleep(0.6)
        successor.transport.pods_stalled_until_s = cluster.loop.time() + 20.0
        await cluster.stop(first)
        await asyncio.sleep(3.0)
        await cluster.stop(second)
        await asyncio.sleep(30.0)

        assert [cluster.node_of(name) for name in (bound, late)] == ["n", ""]

    run_on_one_node(main)


def test_lease_regained_during_a_list_causes_another_list() -> None:
    """Another process has led in between, and has bound a pod that neither the list in progress nor a watch shows."""

    async def main(cluster: HandoverCluster) -> None:
        important = {"metadata": {"name": "first"}, "value": 9, "preemptionPolicy": "Never"}
        await cluster.send("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", important)
        dead, successor, between = (cluster.start(["forecast"], TOGETHER) for _ in range(3))
        successor.transport.reaches_leases = between.transport.reaches_leases = False
        await asyncio.sleep(10.0)
        await cluster.kill(dead)
        late = await cluster.add_pod("gpu", "6")
        successor.transport.reaches_leases, successor.transport.list_s = True, 45.0
        worker = next(one for one in successor.program.router.workers() if one.name == "gpu")
        await successor.program.leases.until_held("forecast")
        await asyncio.sleep(6.0)  # the bind deadline of the dead process has passed: the list has begun
        successor.transport.reaches_leases, successor.transport.pods_stalled_until_s = False, cluster.loop.time() + 90.0
        between.transport.reaches_leases, between.transport.bind_s = True, 0.1
        bound = await cluster.add_pod("gpu", "6", priorityClassName="first")
        await asyncio.sleep(28.0)
        assert cluster.node_of(bound) == "n"
        await cluster.stop(between)
        successor.transport.reaches_leases, successor.transport.list_s = True, 0.0
        await successor.program.leases.until_held("forecast")
        assert not worker.is_leading, "its list is still in progress"
        await asyncio.sleep(20.0)

        assert worker.is_leading
        assert cluster.node_of(late) == ""

    run_on_one_node(main)


@pytest.mark.parametrize("how", ["released", "killed"])
def test_node_of_an_ended_leader_is_used(how: str) -> None:
    async def main(cluster: HandoverCluster) -> None:
        old, _ = cluster.start(["gpu"], TWO), cluster.start(["forecast"], TWO)
        await asyncio.sleep(10.0)
        await (cluster.stop(old) if how == "released" else cluster.kill(old))
        await cluster.set_gpus("n", 0)
        name = await cluster.add_pod("forecast", "6")
        await asyncio.sleep(8.0 if how == "released" else 30.0)

        assert cluster.node_of(name) == "n"

    run_on_one_node(main)


def test_leader_without_watch_events_keeps_its_node_while_it_leads() -> None:
    """Its watch is open and silent: it goes on binding there, in good faith."""

    async def main(cluster: HandoverCluster) -> None:
        old, _ = cluster.start(["gpu"], TWO), cluster.start(["forecast"], TWO)
        await asyncio.sleep(10.0)
        old.transport.stalled_until_s = cluster.loop.time() + 60.0
        await cluster.set_gpus("n", 0)
        await asyncio.sleep(30.0)
        in_good_faith = await cluster.add_pod("gpu", "6")
        late = await cluster.add_pod("forecast", "6")
        await asyncio.sleep(50.0)

        assert cluster.node_of(in_good_faith) == "n"
        assert cluster.node_of(late) == ""

    run_on_one_node(main)


def test_node_moves_at_once_between_domains_of_one_process() -> None:
    async def main(cluster: HandoverCluster) -> None:
        only = cluster.start(["gpu", "forecast"], TWO)
        await asyncio.sleep(10.0)
        only.transport.bind_s = 4.0
        await cluster.add_pod("gpu", "3")
        await asyncio.sleep(0.3)
        await cluster.set_gpus("n", 0)
        only.transport.bind_s = 0.01
        name = await cluster.add_pod("forecast", "5")
        await asyncio.sleep(0.3)

        assert cluster.node_of(name) == "n"

    run_on_one_node(main)


def test_node_claimed_by_two_configurations_stays_with_its_leader_and_is_reported() -> None:
    async def main(cluster: HandoverCluster) -> None:
        _, new = cluster.start(["forecast"], BY_LABEL), cluster.start(["gpu"], BY_NEW_LABEL)
        await asyncio.sleep(10.0)
        await cluster.label("n", pool="new")
        names = [await cluster.add_pod(domain, "6") for domain in ("gpu", "forecast")]
        await asyncio.sleep(20.0)

        assert [cluster.node_of(name) for name in names] == ["", "n"], "who had it keeps it"
        assert "1 node waits for another leader" in new.program.handover.waiting()

    run_on_one_node(main)


def test_takeover_of_all_domains_lists_once_instead_of_once_per_node() -> None:
    async def main(cluster: HandoverCluster) -> None:
        for number in range(40):
            await cluster.add_node(f"node-{number}", gpus=number % 2)
        old = cluster.start(["gpu", "forecast"], TWO)
        await asyncio.sleep(10.0)
        cluster.start(["gpu", "forecast"], TWO)
        await asyncio.sleep(10.0)
        await cluster.kill(old)
        listed: list[str] = []
        cluster.server.request_log = lambda method, path, user, status: listed.append(path)
        names = [await cluster.add_pod(domain, "6") for domain in ("gpu", "forecast") * 3]
        await asyncio.sleep(30.0)  # lease, bind deadline, a retry period, a bind

        assert all(cluster.node_of(name) for name in names)
        assert not [path for path in listed if "spec.nodeName" in path]

    run_on_one_node(main)
