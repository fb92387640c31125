"""Nodes that change their domain while a leader's watch has a gap: it lists, and never sees what was in between."""

from __future__ import annotations

import asyncio
import logging

import pytest

from multisched.client.lease_record import Holding
from multisched.client.lease_term import LeaseState
from multisched.config import loading
from multisched.config.nodes import NodeSelection
from multisched.shell.domain import DomainWorker
from multisched.shell.leadership import handover as handover_module
from multisched.shell.leadership.handover import NODES_LISTED_MAX, SEEN_ANNOTATION, SELECTION_ANNOTATION
from multisched.state.domain_rows import DomainRows
from tests.sim.handover import HEAD, THREE, TOGETHER, TWO, HandoverCluster, Replica, run_on_one_node

ONE = HEAD + "- name: gpu\n"
ANNOTATIONS = {"selection": SELECTION_ANNOTATION, "seen": SEEN_ANNOTATION}


def written(configuration: str) -> str:
    """What a leader of this configuration says of the nodes that its domains use."""
    return NodeSelection.of(loading.parse(configuration, "test")).written()


def relist(replica: Replica) -> None:
    replica.program.reflectors["nodes"].request_relist()


def rows_of(replica: Replica, domain: str) -> DomainRows:
    def is_named(worker: DomainWorker) -> bool:
        return worker.name == domain

    router = replica.program.router
    return router.rows_of(next(filter(is_named, router.workers())))


def test_node_that_left_and_returned_unseen_is_not_used_by_a_stale_leader() -> None:
    """The old leader has seen the versions after the node left, and has the node: the new one has yet to hear of that."""

    async def main(cluster: HandoverCluster) -> None:
        old, new = cluster.start(["gpu"], TWO), cluster.start(["forecast"], TWO)
        await asyncio.sleep(10.0)
        old.transport.bind_s = 3.0
        old.transport.stalled_until_s = cluster.loop.time() + 60.0
        await cluster.set_gpus("n", 0)
        await asyncio.sleep(1.0)
        assert rows_of(new, "forecast").withheld
        new.transport.stalled_until_s = cluster.loop.time() + 60.0
        await cluster.set_gpus("n", 4)
        relist(old)
        await asyncio.sleep(6.0)
        first = await cluster.add_pod("gpu", "6")
        await asyncio.sleep(0.5)
        second = await cluster.add_pod("forecast", "6")
        await asyncio.sleep(8.0)

        assert cluster.node_of(first) == "n"
        assert cluster.node_of(second) == ""

    run_on_one_node(main)


def test_node_absent_during_the_next_leaders_list_counts_as_joining() -> None:
    """Neither leader sees all of it: both had the node before their lists and have it after them."""

    async def main(cluster: HandoverCluster) -> None:
        old, new = cluster.start(["gpu"], TWO), cluster.start(["forecast"], TWO)
        await asyncio.sleep(10.0)
        old.transport.bind_s = 4.0
        old.transport.stalled_until_s = cluster.loop.time() + 60.0
        await cluster.set_gpus("n", 0)
        await asyncio.sleep(1.0)
        new.transport.stalled_until_s = cluster.loop.time() + 60.0
        await cluster.set_gpus("n", 4)
        relist(old)
        await asyncio.sleep(6.0)
        first = await cluster.add_pod("gpu", "6")
        await asyncio.sleep(0.2)
        await cluster.set_gpus("n", 0)
        relist(new)
        second = await cluster.add_pod("forecast", "6")
        await asyncio.sleep(10.0)

        assert cluster.node_of(first) == "n"
        assert cluster.node_of(second) == ""

    run_on_one_node(main)


def test_node_of_a_dead_leader_is_used_after_its_lease_and_binds_ended() -> None:
    """Nobody takes the lease: who waits for it has to see for itself that it stands still."""

    async def main(cluster: HandoverCluster) -> None:
        gone, stays = cluster.start(["gpu"], TWO), cluster.start(["forecast"], TWO)
        await asyncio.sleep(10.0)
        await cluster.kill(gone)
        await cluster.set_gpus("n", 0)
        await asyncio.sleep(1.0)
        assert rows_of(stays, "forecast").withheld
        await asyncio.sleep(45.0)
        assert not rows_of(stays, "forecast").withheld

    run_on_one_node(main)


def test_domain_unknown_to_another_leader_waits_for_its_nodes() -> None:
    """A configuration with one domain more is rolled out: the old leader would take a node of it without asking."""

    async def main(cluster: HandoverCluster) -> None:
        old, new = cluster.start(["gpu", "forecast"], TWO), cluster.start(["edge"], THREE)
        await cluster.label("n", **{"multisched.io_domain": "edge"})
        await asyncio.sleep(10.0)
        new.transport.bind_s = 4.0
        first = await cluster.add_pod("edge", "6")
        await asyncio.sleep(0.5)
        await cluster.label("n", **{"multisched.io_domain": None})
        second = await cluster.add_pod("gpu", "6")
        await asyncio.sleep(8.0)

        assert cluster.node_of(first) == ""
        assert cluster.node_of(second) == "n"
        await cluster.stop(old)
        await cluster.add_node("m", {"multisched.io/domain": "edge"})
        await asyncio.sleep(20.0)
        assert cluster.node_of(first) == "m"

    run_on_one_node(main)


@pytest.mark.parametrize("count", [NODES_LISTED_MAX, NODES_LISTED_MAX + 1, 2 * NODES_LISTED_MAX])
def test_many_nodes_changing_domain_are_admitted_soon(count: int) -> None:
    """If more than are listed one by one, the list that is made for all of them keeps none of them waiting."""

    async def main(cluster: HandoverCluster) -> None:
        await cluster.send("DELETE", "/api/v1/nodes/n")
        for number in range(count):
            await cluster.add_node(f"node-{number}", gpus=4)
        _, new = cluster.start(["gpu"], TWO), cluster.start(["forecast"], TWO)
        await asyncio.sleep(10.0)
        lists = new.program.reflectors["pods"].statistics().lists
        for number in range(count):
            await cluster.set_gpus(f"node-{number}", 0)
        await asyncio.sleep(6.0)
        assert not rows_of(new, "forecast").withheld
        assert len(rows_of(new, "forecast").rows) == count
        assert (new.program.reflectors["pods"].statistics().lists > lists) == (count > NODES_LISTED_MAX)

    run_on_one_node(main)


def test_nodes_joining_together_do_not_wait_for_each_others_lists() -> None:
    """Of one list, or of one that fails: the others' nodes are used meanwhile."""

    async def main(cluster: HandoverCluster) -> None:
        names = [f"node-{number}" for number in range(NODES_LISTED_MAX - 2)]
        for name in names:
            await cluster.add_node(name, gpus=4)
        _, new = cluster.start(["gpu"], TWO), cluster.start(["forecast"], TWO)
        await asyncio.sleep(10.0)
        new.transport.node_lists = dict.fromkeys(names, 2.0) | {names[0]: float("inf")}
        for name in names:
            await cluster.set_gpus(name, 0)
        await asyncio.sleep(10.0)
        assert len(rows_of(new, "forecast").withheld) == 1
        new.transport.node_lists = {}
        await asyncio.sleep(2.0)
        assert not rows_of(new, "forecast").withheld

    run_on_one_node(main)


def test_node_is_withheld_while_another_leader_may_use_it() -> None:
    """What the other says of itself decides, in these words; who says too little is waited for."""

    async def main(cluster: HandoverCluster) -> None:
        replica = cluster.start(["forecast"], TWO)
        await cluster.add_node("free")
        await cluster.add_node("fast", gpus=4)
        await asyncio.sleep(10.0)
        handover, nodes = replica.program.handover, replica.program.cache.nodes
        position = replica.program.reflectors["nodes"].position
        two, three = written(TWO), written(THREE)

        def obstacle(node: str, *, group: str = "gpu", domain: str = "forecast", **said: str) -> str:
            row = nodes.row_of(node)
            assert row is not None
            found = nodes.node(row)
            holding = Holding("other", {ANNOTATIONS[key]: text for key, text in said.items()})
            return handover._obstacle(domain, found, found.version, {group: holding, "nobody": None})

        held = "the lease of gpu is held by other"
        assert obstacle("free") == f"{held}, which does not publish its node selection"
        assert obstacle("free", selection="{") == f"{held}, which does not publish its node selection"
        claimed = f"{held}, whose configuration also claims the node"
        assert obstacle("fast", selection=two, seen=position) == claimed
        left = f"{held}, which has not yet seen that the node left"
        assert obstacle("free", selection=two) == left
        assert obstacle("free", selection=two, seen="1") == left
        assert obstacle("free", selection=two, seen=position) == ""
        more = f"{held}, which has seen newer node changes than this process and may claim it again"
        assert obstacle("free", selection=two, seen=str(int(position) + 1)) == ""
        ahead = {"gpu": Holding("other", {SEEN_ANNOTATION: str(int(position) + 1)}), "forecast": None}
        assert [(one.obstacle, one.seen) for one in handover._ahead(ahead)] == [(more, int(position) + 1)]
        assert handover._ahead({"gpu": Holding("other", {SEEN_ANNOTATION: position}), "nobody": None}) == []
        assert obstacle("free", selection=three, seen=position) == ""
        assert obstacle("free", group="forecast") == "", "what is settled is ours"
        unknown = f"{held}, whose configuration has no lease for domain forecast and may use the node without waiting for that domain"
        assert obstacle("free", selection=written(ONE), seen=position) == unknown

    run_on_one_node(main)


def test_new_leader_withholds_nodes_if_another_leader_has_seen_newer_versions() -> None:
    """A history that was restored: versions that the other has seen are of the one before, and say nothing of this node."""

    async def main(cluster: HandoverCluster) -> None:
        replica = cluster.start(["forecast"], TWO)
        await cluster.add_node("free")
        await asyncio.sleep(10.0)
        handover, rows = replica.program.handover, rows_of(replica, "forecast")
        worker = next(one for one in replica.program.router.workers() if one.name == "forecast")
        position = int(replica.program.reflectors["nodes"].position)
        for seen, count in ((position, 0), (position + 1, 1)):
            holding = Holding("other", {SELECTION_ANNOTATION: written(TWO), SEEN_ANNOTATION: str(seen)})
            handover.open(worker, {"gpu": holding})
            assert len(rows.withheld) == count

    run_on_one_node(main)


def test_number_of_remembered_configurations_and_reports_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover_module, "SELECTIONS_MAX", 2)
    monkeypatch.setattr(handover_module, "REPORTED_MAX", 2)

    async def main(cluster: HandoverCluster) -> None:
        replica = cluster.start(["forecast"], TWO)
        await asyncio.sleep(10.0)
        handover = replica.program.handover
        texts = [written(text) for text in (ONE, TWO, THREE)]
        for text in (*texts, *texts, ""):
            claims = handover._claims({SELECTION_ANNOTATION: text})
            assert (claims is None) == (not text)
            assert claims is None or ("forecast" in claims.groups) == (text != texts[0])
            assert len(handover._selections) <= 2
        assert handover.waiting() == ""

    run_on_one_node(main)


def test_withheld_node_is_logged_once_within_a_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handover_module, "REPORTED_MAX", 3)

    async def main(cluster: HandoverCluster) -> None:
        for name in ("o", "p", "q"):
            await cluster.add_node(name, gpus=4)
        old, new = cluster.start(["gpu"], TWO), cluster.start(["forecast"], TWO)
        await asyncio.sleep(10.0)
        old.transport.stalled_until_s = cluster.loop.time() + 60.0
        caplog.clear()
        for name in ("o", "p", "q"):
            await cluster.set_gpus(name, 0)
        await asyncio.sleep(5.0)
        told = [vars(record) for record in caplog.records if record.message == "node withheld"]
        assert sorted((one["node"], one["domain"]) for one in told) == [(name, "forecast") for name in "opq"]
        assert len(new.program.handover._reported) == 3
        await cluster.set_gpus("n", 0)
        await asyncio.sleep(0.6)
        assert 1 <= len(new.program.handover._reported) <= 3

    with caplog.at_level(logging.INFO):
        run_on_one_node(main)


def test_readiness_names_the_number_of_withheld_nodes_and_one_example() -> None:
    async def main(cluster: HandoverCluster) -> None:
        old, new = cluster.start(["gpu"], TWO), cluster.start(["forecast"], TWO)
        await asyncio.sleep(10.0)
        old.transport.stalled_until_s = cluster.loop.time() + 60.0
        assert new.program.handover.waiting() == ""
        await cluster.set_gpus("n", 0)
        await asyncio.sleep(1.0)
        assert new.program.handover.waiting() == "1 node waits for another leader, for instance n"

    run_on_one_node(main)


def test_node_joining_during_the_wait_for_a_former_holder_is_withheld(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The former holder may have the node still, and a bind to it on its way."""

    async def main(cluster: HandoverCluster) -> None:
        gone = cluster.start(["forecast"], TWO)
        await asyncio.sleep(5.0)
        heir = cluster.start(["gpu", "forecast"], TWO)
        await asyncio.sleep(10.0)
        await cluster.kill(gone)
        keeper = heir.program.handover._keepers["forecast"]
        while keeper.term.state is not LeaseState.LEADING:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        assert not keeper.term.may_bind()
        await cluster.add_node("late", gpus=4)
        await asyncio.sleep(2.0)
        assert len(rows_of(heir, "gpu").withheld) == 1
        (told,) = [vars(record) for record in caplog.records if record.message == "node withheld"]
        who = "this process, which waits for the former holder's binds"
        assert (told["node"], told["domain"]) == ("late", "gpu")
        assert told["why"].startswith(f"the lease of forecast is held by {who}, ")
        await asyncio.sleep(20.0)
        assert not rows_of(heir, "gpu").withheld

    with caplog.at_level(logging.INFO):
        run_on_one_node(main)


def test_leader_of_all_domains_withholds_nodes_of_leaders_with_own_leases() -> None:
    """As while a version that shares one lease is rolled out."""

    async def main(cluster: HandoverCluster) -> None:
        first, second = cluster.start(["forecast"], TWO), cluster.start(["gpu"], TWO)
        await asyncio.sleep(10.0)
        second.transport.bind_s = 3.0
        new = cluster.start(["forecast"], TOGETHER)
        await asyncio.sleep(5.0)
        await cluster.stop(first)
        await asyncio.sleep(20.0)
        assert [worker.is_leading for worker in new.program.router.workers()] == [True, True]
        assert rows_of(new, "gpu").withheld
        pods = [await cluster.add_pod("gpu", "6"), await cluster.add_pod("gpu", "6")]
        await asyncio.sleep(10.0)
        assert sorted(map(cluster.node_of, pods)) == ["", "n"]
        await cluster.stop(second)
        await asyncio.sleep(20.0)
        assert not rows_of(new, "gpu").withheld

    run_on_one_node(main)


@pytest.mark.parametrize("count", [1, NODES_LISTED_MAX + 4])
def test_unchanged_nodes_do_not_wait_for_a_bookmark(count: int) -> None:
    """Where replicas start together whoever lists last has seen more, and no node's change lets the other's watch catch up."""

    async def main(cluster: HandoverCluster) -> None:
        for number in range(count):
            await cluster.add_node(f"free-{number}")
        early, late = cluster.start(["forecast"], TWO), cluster.start(["gpu"], TWO)
        early.transport.late_s = late.transport.late_s = 0.0
        await asyncio.sleep(1.0)
        assert len(rows_of(early, "forecast").withheld) == count
        early.transport.stalled_until_s = cluster.loop.time() + 60.0
        await cluster.add_node("unheard", gpus=4)
        await asyncio.sleep(0.2)
        assert late.program.reflectors["nodes"].position > early.program.reflectors["nodes"].position
        await asyncio.sleep(8.0)
        assert not rows_of(early, "forecast").withheld
        pod = await cluster.add_pod("forecast", "1")
        await asyncio.sleep(8.0)
        assert cluster.node_of(pod).startswith("free-")

    run_on_one_node(main)
