"""Nodes and cards that are close to each other, for pods of several cards and for gangs."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from domains.gpu.card_arrays import CardArrays
from domains.gpu.card_row import CardRow
from domains.gpu.cards import CARD_MILLI, Amount, Card, Mode, NodeCards
from domains.gpu.demand import GpuDemand, Part
from domains.gpu.dialects.whole import CLIQUE_LABEL, GPU
from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.gpu_topology import GpuTopology
from domains.gpu.hold import Hold, even_shares
from multisched.framework.gangs import NoGangs
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import all_rows, make_context, make_node, make_pod, make_view, row_of
from tests.unit.shell.program_kit import Cluster, play


class OneGang(NoGangs):
    """All pods whose name starts with `member` are one gang."""

    def __init__(self) -> None:
        self.placed: list[str] = []

    def __len__(self) -> int:
        return 1

    def key_of(self, uid: str) -> str | None:
        return "default/training" if uid.startswith("uid-member") else None

    def placed_members(self, key: str) -> Collection[str]:
        return self.placed


class Bench:
    """Nodes with four whole GPUs each: name -> clique; empty: none."""

    def __init__(self, cliques: Mapping[str, str]) -> None:
        self.cache, self.gangs = ClusterCache(), OneGang()
        self.plugin = GpuTopology(replace(make_context(self.cache), gangs=self.gangs))
        for name, clique in cliques.items():
            labels = {CLIQUE_LABEL: clique} if clique else {}
            self.cache.set_node(make_node(name, pods=100, extra={GPU: 4}, labels=labels))
        self.view = make_view(self.cache)

    def place(self, pod: Pod, node: str) -> None:
        self.cache.assume(pod, row_of(self.cache, node))
        self.gangs.placed.append(pod.uid)

    def scores(self, pod: Pod) -> dict[str, int] | None:
        """Returns node -> score; None if the plugin does not act on the pod."""
        if self.plugin.cache_key(self.view, pod) is None:
            return None
        rows = all_rows(self.cache)
        found = self.plugin.score(self.view, pod, rows).tolist()
        return {self.cache.nodes.node(row).name: score for row, score in zip(rows.tolist(), found, strict=True)}


def whole(name: str, gpus: int) -> Pod:
    return make_pod(name, extra={GPU: gpus})


def test_a_pod_of_several_cards_prefers_a_node_with_room_in_one_link_group() -> None:
    bench = Bench({"linked": "a", "full": "a", "plain": ""})
    bench.place(whole("other", 3), "full")

    assert bench.scores(whole("pod", 2)) == {"linked": 40, "full": 0, "plain": 0}


def test_a_member_of_a_gang_prefers_the_clique_that_holds_members() -> None:
    bench = Bench({"a-0": "a", "a-1": "a", "b-0": "b", "plain": ""})
    assert bench.scores(whole("member-0", 1)) == {"a-0": 0, "a-1": 0, "b-0": 0, "plain": 0}

    bench.place(whole("member-0", 1), "a-0")

    assert bench.scores(whole("member-1", 1)) == {"a-0": 60, "a-1": 60, "b-0": 0, "plain": 0}
    assert bench.scores(whole("member-2", 4)) == {"a-0": 60, "a-1": 100, "b-0": 40, "plain": 0}


def test_the_cache_key_changes_when_a_member_is_placed_in_another_clique() -> None:
    bench, pod = Bench({"a": "a", "b": "b"}), whole("member-2", 1)
    before = bench.plugin.cache_key(bench.view, pod)
    bench.place(whole("member-0", 1), "a")
    first = bench.plugin.cache_key(bench.view, pod)
    bench.place(whole("member-1", 1), "a")

    assert before != first == bench.plugin.cache_key(bench.view, pod)


@pytest.mark.parametrize(
    ("cliques", "pod"),
    [
        ({"n": "a"}, whole("single", 1)),
        ({"n": "a"}, make_pod("member-0")),
        ({"n": ""}, whole("several", 4)),
        ({"n": ""}, whole("member-0", 4)),
    ],
)
def test_pods_to_which_no_node_is_closer_are_not_scored_and_share_a_class(cliques: dict[str, str], pod: Pod) -> None:
    bench = Bench(cliques)

    assert bench.scores(pod) is None
    assert bench.plugin.sign(pod) == bench.plugin.sign(make_pod("plain"))


def test_members_of_different_gangs_are_signed_differently() -> None:
    bench = Bench({"n": "a"})

    assert bench.plugin.sign(whole("member-0", 1)) == bench.plugin.sign(whole("member-1", 1))
    assert bench.plugin.sign(whole("member-0", 1)) != bench.plugin.sign(whole("single", 1))


def test_a_gang_follows_its_first_member_into_its_clique() -> None:
    cliques = {f"node-{number}": "abc"[number % 3] for number in range(9)}

    async def prepare(cluster: Cluster) -> None:
        for name, clique in cliques.items():
            await cluster.add_node(name, labels={CLIQUE_LABEL: clique}, gpus=4)

    async def scene(cluster: Cluster) -> None:
        group = "pod-group.scheduling.sigs.k8s.io"
        labels = {f"{group}/name": "training", f"{group}/min-available": "3"}
        for number in range(3):
            await cluster.add_pod(f"member-{number}", limits={GPU: "4"}, labels=labels, scheduler="gpu-scheduler")
        await cluster.settle()
        nodes = [await cluster.node_of(f"member-{number}") for number in range(3)]
        assert len(set(nodes)) == 3
        assert len({cliques[name] for name in nodes}) == 1

    play(scene, prepare=prepare)


def demand_of(count: int, **args: Any) -> GpuDemand:
    return GpuDemand("multisched", (Part(count, Amount(milli=500)),), "gpu-milli", **args)


def row_with(groups: list[tuple[str, int]], taken: Collection[int]) -> CardRow:
    """Returns a row of cards with these link groups and NUMA nodes; of the taken ones, nothing is free."""
    row = CardRow()
    cards = tuple(Card(index, 1, CARD_MILLI, link=link, numa=numa) for index, (link, numa) in enumerate(groups))
    row.set_node(NodeCards(Mode.WHOLE, cards, is_indexed=True))
    for index in taken:
        amount = Amount(milli=CARD_MILLI)
        row.hold(
            f"h{index}", Hold("multisched", 1, amount, even_shares([index], amount), modes=frozenset({Mode.WHOLE}))
        )
    return row


def test_linked_cards_are_taken_before_cards_of_a_smaller_numa_node() -> None:
    groups = [("", 0), ("", 0), ("a", 1), ("a", 1), ("a", 2), ("a", 2)]
    row = row_with(groups, taken=(3,))

    assert row.choose(demand_of(3)) == (2, 4, 5)
    assert row.choose(demand_of(2)) == (4, 5)
    assert row.choose(demand_of(2, one_numa=True)) == (4, 5)
    assert row.choose(demand_of(3, one_numa=True)) is None
    assert row.choose(demand_of(4)) == (0, 1, 2, 4)


@pytest.mark.parametrize("seed", range(50))
def test_closeness_is_that_of_the_cards_that_are_chosen(seed: int) -> None:
    drawn = random.Random(seed)
    groups = [(drawn.choice(("", "a", "b")), drawn.choice((-1, 0, 7))) for _ in range(drawn.randint(1, 8))]
    row = row_with(groups, taken=[at for at in range(len(groups)) if drawn.random() < 0.3])
    arrays = CardArrays()
    arrays.write(3, row)
    demand = demand_of(drawn.randint(2, 3))

    chosen = row.choose(demand)
    (found,) = arrays.closeness(demand, demand.parts[0], np.array([3], np.intp)).tolist()

    links = {groups[at][0] for at in chosen or ()}
    numas = {groups[at][1] for at in chosen or ()}
    expected = 2 if len(links) == 1 and links != {""} else 1 if len(numas) == 1 and numas != {-1} else 0
    assert found == expected
    assert (chosen is None) <= (found == 0)


def test_a_ledger_knows_groups_only_once_a_node_has_them() -> None:
    ledger = GpuLedger()
    ledger.set_node(0, make_node("plain", extra={GPU: 2}))
    assert not ledger.arrays.has_groups

    ledger.set_node(1, make_node("linked", extra={GPU: 2}, labels={CLIQUE_LABEL: "a"}))
    assert ledger.arrays.has_groups
