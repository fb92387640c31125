"""Of those that may go: who goes first, on one node and on many, and whom a PodDisruptionBudget keeps."""

from __future__ import annotations

import pytest

from multisched.cycle.results import Unplaced
from multisched.testing.builders import make_node
from tests.unit.plugins.quota.quota_cluster import QuotaCluster
from tests.unit.plugins.quota.trees import leaf, node

CPU = 1_000
WEB = {"app": "web"}


def cluster(*cpus: int, full: int = 12) -> QuotaCluster:
    """Three leaves that are sure of 4, 4 and 2 CPUs and may hold all; nodes `n0`, `n1` and so on."""
    root = node(
        "root", {"cpu": full}, {"cpu": full}, leaf("taker", 4, full), leaf("far", 2, full), leaf("near", 2, full)
    )
    return QuotaCluster([make_node(f"n{at}", cpu_milli=count * CPU) for at, count in enumerate(cpus)], root)


def evicted_for(quota_cluster: QuotaCluster, cpu: int = 1, priority: int = 0) -> list[str]:
    result = quota_cluster.attempt(quota_cluster.add("claim", "taker", cpu * CPU, priority=priority))
    assert isinstance(result, Unplaced)
    return sorted(victim.name for victim in result.victims)


@pytest.mark.parametrize("cpus", [(12,), (20,)], ids=["the node is full", "the quota is full"])
def test_leaf_furthest_over_its_min_gives_first(cpus: tuple[int, ...]) -> None:
    quota_cluster = cluster(*cpus)
    for number in range(8):
        quota_cluster.add(f"far{number}", "far", CPU, priority=9, node="n0")
    for number in range(4):
        quota_cluster.add(f"near{number}", "near", CPU, node="n0")
    assert evicted_for(quota_cluster) == ["far7"]


@pytest.mark.parametrize(("few", "many"), [("n0", "n1"), ("n1", "n0")])
def test_node_with_fewer_equally_important_victims_is_chosen(few: str, many: str) -> None:
    """All of them have started in one second. The other node is looked at first, because somebody leaves it."""
    quota_cluster = cluster(3, 3)
    quota_cluster.add("leaving", "near", 0, node=many)
    quota_cluster.leaves("leaving")
    for name, cpu, at in (("large", 2, many), ("small", 1, many), ("alone", 2, few)):
        quota_cluster.clock = 0
        quota_cluster.add(name, "far", cpu * CPU, node=at)
    assert evicted_for(quota_cluster, cpu=3) == ["alone"]


def test_leaf_gives_first_on_nodes_with_lower_priority_victims() -> None:
    quota_cluster = cluster(8, 4)
    for number in range(8):
        quota_cluster.add(f"far{number}", "far", CPU, priority=9, node="n0")
    for number in range(4):
        quota_cluster.add(f"near{number}", "near", CPU, node="n1")
    assert evicted_for(quota_cluster) == ["far7"]


def test_leaves_equally_over_their_min_give_in_turn() -> None:
    quota_cluster = cluster(20)
    for number in range(7):
        quota_cluster.add(f"far{number}", "far", CPU, node="n0")
    for number in range(5):
        quota_cluster.add(f"near{number}", "near", CPU, node="n0")
    assert evicted_for(quota_cluster, cpu=4) == ["far4", "far5", "far6", "near4"]


def test_lowest_priority_then_newest_pod_of_a_leaf_is_evicted_first() -> None:
    for first, second, victim in ((1, 0, "second"), (0, 1, "first"), (0, 0, "second")):
        quota_cluster = cluster(20)
        quota_cluster.add("first", "far", CPU, priority=first, node="n0")
        quota_cluster.add("second", "far", CPU, priority=second, node="n0")
        quota_cluster.add("rest", "near", 10 * CPU, priority=99, node="n0")
        quota_cluster.set_tree(
            node("root", {"cpu": 12}, {"cpu": 12}, leaf("taker", 4, 12), leaf("far", 0, 12), leaf("near", 8, 12))
        )
        assert evicted_for(quota_cluster) == [victim]


def protected(allowed: int) -> QuotaCluster:
    """`old` are the ones that no budget protects; they would go last."""
    quota_cluster = cluster(20)
    for number in range(6):
        quota_cluster.add(f"old{number}", "far", CPU, priority=5, node="n0")
    for number in range(6):
        quota_cluster.add(f"web{number}", "far", CPU, node="n0", labels=WEB)
    quota_cluster.protect("web", "far", WEB, allowed)
    return quota_cluster


@pytest.mark.parametrize(("allowed", "victims"), [(0, ["old4", "old5"]), (1, ["old5", "web5"]), (2, ["web4", "web5"])])
def test_budget_protected_pod_is_evicted_only_if_necessary(allowed: int, victims: list[str]) -> None:
    assert evicted_for(protected(allowed), cpu=2) == victims


def test_budget_is_violated_if_no_other_victim_suffices() -> None:
    quota_cluster = cluster(12)
    for number in range(12):
        quota_cluster.add(f"web{number}", "far", CPU, node="n0", labels=WEB)
    quota_cluster.protect("web", "far", WEB, 1)
    assert evicted_for(quota_cluster, cpu=2) == ["web10", "web11"]


def test_budget_counts_pods_on_all_nodes() -> None:
    """One goes for the node's room, one elsewhere for the quota's: together they are too many."""
    quota_cluster = cluster(1, 13)
    quota_cluster.add("web0", "far", CPU, node="n0", labels=WEB)
    quota_cluster.add("web1", "far", CPU, node="n1", labels=WEB)
    for number in range(10):
        quota_cluster.add(f"old{number}", "far", CPU, priority=5, node="n1")
    quota_cluster.protect("web", "far", WEB, 1)
    quota_cluster.domain.cache.set_node(make_node("n1", cpu_milli=0))
    assert evicted_for(quota_cluster) == ["web0"]


@pytest.mark.parametrize(
    ("sizes", "over", "need", "victims", "is_quota_full"),
    [
        ((*[4] * 11, 1), 4, 4, ["of4"], True),  # the small one leaves too little for any other to go, too
        ((*[4] * 11, 1), 4, 4, ["of4"], False),
        ((*[3] * 11, 5), 5, 6, ["of3", "of3"], False),  # and the large one for two small ones
        ((1, 4, 3, 6), 5, 7, ["of3", "of4"], False),  # no order leads there
        ((20, 4, 2), 4, 6, ["of20"], False),  # once both small ones are gone, that of 2 would be entitled to come back
    ],
)
def test_pods_that_may_be_evicted_only_together_are_evicted_together(
    sizes: tuple[int, ...], over: int, need: int, victims: list[str], *, is_quota_full: bool
) -> None:
    """The last of `sizes` is the newest, which would go first. The quota is full, or else the node."""
    used = sum(sizes)
    whole = used if is_quota_full else 99
    root = node("root", {"cpu": whole}, {"cpu": whole}, leaf("taker", need, whole), leaf("far", used - over, whole))
    quota_cluster = QuotaCluster([make_node("n0", cpu_milli=(99 if is_quota_full else used) * CPU)], root)
    for number, size in enumerate(sizes):
        quota_cluster.add(f"p{number}", "far", size * CPU, node="n0")
    names = {f"p{number}": f"of{size}" for number, size in enumerate(sizes)}
    assert sorted(names[one] for one in evicted_for(quota_cluster, cpu=need)) == victims


def test_deleting_pods_cause_no_more_evictions() -> None:
    quota_cluster = cluster(12)
    for number in range(12):
        quota_cluster.add(f"far{number}", "far", CPU, node="n0")
    quota_cluster.leaves("far0")
    result = quota_cluster.attempt(quota_cluster.add("claim", "taker", CPU))
    assert isinstance(result, Unplaced)
    assert (result.nominated_node, [one.name for one in result.victims]) == ("n0", ["far0"])
    assert all(victim.is_deleting for victim in result.victims)


def test_deleting_pod_frees_its_amount_once() -> None:
    """It is the one that would go first."""
    quota_cluster = cluster(20)
    for number in range(12):
        quota_cluster.add(f"far{number}", "far", CPU, node="n0")
    quota_cluster.leaves("far11")
    assert evicted_for(quota_cluster, cpu=2) == ["far10"]


def test_worst_resource_determines_how_far_a_leaf_is_over_its_min() -> None:
    full, sure = {"cpu": 12, "memory": 12}, {"cpu": 2, "memory": 2}
    leaves = [node(name, sure, full, namespaces=[name]) for name in ("taker", "far", "near")]
    quota_cluster = QuotaCluster(
        [make_node("n0", cpu_milli=99 * CPU, memory_bytes=99)], node("root", full, full, *leaves)
    )
    for number in range(4):
        quota_cluster.add(f"far{number}", "far", CPU, memory_bytes=1, node="n0")
    for number in range(4):
        quota_cluster.add(f"near{number}", "near", CPU // 2, memory_bytes=2, node="n0")
    result = quota_cluster.attempt(quota_cluster.add("claim", "taker", CPU, memory_bytes=1))
    assert isinstance(result, Unplaced)
    assert [one.name for one in result.victims] == ["near3"]


def test_leaf_reclaims_only_its_entitlement() -> None:
    """It names no memory at all, and memory is what its pod asks for."""
    full = {"cpu": 12, "memory": 12}
    root = node("root", full, full, leaf("taker", 4, 12), node("far", {"memory": 2}, full, namespaces=["far"]))
    quota_cluster = QuotaCluster([make_node("n0", cpu_milli=99 * CPU, memory_bytes=99)], root)
    quota_cluster.add("far", "far", 0, memory_bytes=12, node="n0")
    result = quota_cluster.attempt(quota_cluster.add("claim", "taker", 0, memory_bytes=1))
    assert isinstance(result, Unplaced)
    assert result.victims == ()
    assert "would exceed its min" in result.message
