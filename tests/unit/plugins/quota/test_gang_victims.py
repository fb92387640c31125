"""Gangs of borrowers: what they have beyond their minimum goes pod by pod, and below it they go whole or not at all."""

from __future__ import annotations

import pytest

from multisched.cycle.results import Unplaced
from multisched.model.gang import GangApi, GangSpec
from multisched.model.quotas.koordinator import POD_LABEL
from multisched.testing.builders import make_node
from tests.unit.model.quotas.quota_documents import linked
from tests.unit.plugins.quota.quota_cluster import QuotaCluster
from tests.unit.plugins.quota.trees import leaf, node

CPU = 1_000


def cluster(*cpus: int, full: int = 12, far: int = 2) -> QuotaCluster:
    """Three leaves that are sure of 4, `far` and 2 CPUs and may hold all; nodes `n0`, `n1` and so on."""
    root = node(
        "root", {"cpu": full}, {"cpu": full}, leaf("taker", 4, full), leaf("far", far, full), leaf("near", 2, full)
    )
    return QuotaCluster([make_node(f"n{at}", cpu_milli=count * CPU) for at, count in enumerate(cpus)], root)


def gang(
    quota_cluster: QuotaCluster, name: str, leaf: str, nodes: list[int], least: int, *, cpu: int = 1, priority: int = 0
) -> None:
    """One member on each of these nodes."""
    quota_cluster.set_minimum(name, leaf, least)
    for number, at in enumerate(nodes):
        quota_cluster.add(f"{name}{number}", leaf, cpu * CPU, node=f"n{at}", gang=name, priority=priority)


def evicted_for(quota_cluster: QuotaCluster, cpu: int = 1, priority: int = 0) -> list[str]:
    result = quota_cluster.domain.schedule(quota_cluster.add("claim", "taker", cpu * CPU, priority=priority))
    assert isinstance(result, Unplaced), "nobody has to go"
    return sorted(victim.name for victim in result.victims)


@pytest.mark.parametrize(
    "cpus", [(12,), (20,), (6, 6)], ids=["the node is full", "the quota is full", "nodes are full"]
)
def test_gang_without_surplus_is_evicted_whole(cpus: tuple[int, ...]) -> None:
    quota_cluster = cluster(*cpus)
    quota_cluster.add("all", "near", 2 * CPU, node="n0")
    gang(quota_cluster, "g", "far", [0, 0, 0, 0, len(cpus) - 1], 5, cpu=2)
    assert evicted_for(quota_cluster) == [f"g{number}" for number in range(5)]


@pytest.mark.parametrize("cpus", [(12,), (20,)], ids=["the node is full", "the quota is full"])
def test_members_above_the_minimum_are_evicted_like_other_pods(cpus: tuple[int, ...]) -> None:
    quota_cluster = cluster(*cpus)
    gang(quota_cluster, "g", "far", [0] * 12, 9)
    assert evicted_for(quota_cluster, cpu=3) == ["g10", "g11", "g9"]


@pytest.mark.parametrize("cpus", [(12,), (20,)], ids=["the node is full", "the quota is full"])
def test_gang_is_evicted_whole_only_if_single_pods_do_not_suffice(cpus: tuple[int, ...]) -> None:
    """The gang's leaf is the one furthest over its min."""
    quota_cluster = cluster(*cpus)
    gang(quota_cluster, "g", "far", [0] * 8, 8)
    for number in range(4):
        quota_cluster.add(f"near{number}", "near", CPU, node="n0")
    assert evicted_for(quota_cluster, cpu=2) == ["near2", "near3"]
    quota_cluster.pending.clear()
    assert evicted_for(quota_cluster, cpu=3) == [f"g{number}" for number in range(8)]


def test_small_gang_loses_no_more_than_its_surplus_unless_whole() -> None:
    """The quota is full, and there are so few candidates that every set of them is tried."""
    quota_cluster = cluster(20, full=8)
    gang(quota_cluster, "g", "far", [0] * 4, 3, cpu=2)
    assert evicted_for(quota_cluster, cpu=2) == ["g3"]
    quota_cluster.pending.clear()
    assert evicted_for(quota_cluster, cpu=4) == [f"g{number}" for number in range(4)]


def test_whole_gang_eviction_adds_no_needless_victims() -> None:
    """Its room is enough: the pods that would have gone first stay."""
    quota_cluster = cluster(12)
    gang(quota_cluster, "g", "far", [0] * 8, 8)
    for number in range(4):
        quota_cluster.add(f"near{number}", "near", CPU, node="n0")
    assert evicted_for(quota_cluster, cpu=4) == [f"g{number}" for number in range(8)]


def test_gang_entitled_to_its_minimum_is_kept() -> None:
    """It holds 6 and is sure of 5: with its minimum of 5 it could come back, and take the room again."""
    quota_cluster = cluster(12, far=6)
    gang(quota_cluster, "g", "far", [0] * 7, 7)
    quota_cluster.add("rest", "near", 2 * CPU, node="n0")
    quota_cluster.add("own", "taker", 3 * CPU, node="n0")
    assert evicted_for(quota_cluster) == [f"g{number}" for number in range(7)]
    quota_cluster = cluster(12, far=7)
    gang(quota_cluster, "g", "far", [0] * 7, 7)
    quota_cluster.add("rest", "near", 2 * CPU, node="n0")
    quota_cluster.add("own", "taker", 3 * CPU, node="n0")
    assert evicted_for(quota_cluster) == []


def test_minimum_counts_the_members_that_would_return() -> None:
    """It holds 8, of which it needs 6; its leaf is sure of 6, so that whole it would come back at once."""
    for sure, victims in ((6, []), (5, [f"g{number}" for number in range(8)])):
        quota_cluster = cluster(11, far=sure)
        gang(quota_cluster, "g", "far", [0] * 8, 6)
        quota_cluster.add("own", "taker", CPU, node="n0")
        quota_cluster.add("rest", "near", 2 * CPU, node="n0")
        assert evicted_for(quota_cluster, cpu=2) == ["g6", "g7"]
        quota_cluster.pending.clear()
        assert evicted_for(quota_cluster, cpu=3) == victims


def test_smallest_members_are_assumed_to_return_first() -> None:
    """It needs five of six: they may be those that ask for 6 CPUs together, and not those that ask for 7."""
    for sure, victims in ((6, []), (5, [f"g{number}" for number in range(6)])):
        quota_cluster = cluster(11, far=sure)
        quota_cluster.set_minimum("g", "far", 5)
        for number, cpu in enumerate((2, 1, 1, 2, 1, 1)):
            quota_cluster.add(f"g{number}", "far", cpu * CPU, node="n0", gang="g")
        quota_cluster.add("own", "taker", CPU, node="n0")
        quota_cluster.add("rest", "near", 2 * CPU, node="n0")
        assert evicted_for(quota_cluster, cpu=3) == victims


def test_own_leaf_gang_is_evicted_only_for_a_higher_priority_than_all_members() -> None:
    for boss, victims in ((4, ["g0", "g1", "g2", "g3", "boss"]), (5, [])):
        quota_cluster = cluster(12)
        gang(quota_cluster, "g", "taker", [0] * 4, 5)
        quota_cluster.add("boss", "taker", CPU, node="n0", gang="g", priority=boss)
        quota_cluster.add("rest", "near", 7 * CPU, node="n0")
        quota_cluster.set_tree(node("root", {"cpu": 12}, {"cpu": 12}, leaf("taker", 5, 5), leaf("near", 7, 12)))
        assert evicted_for(quota_cluster, priority=5) == sorted(victims)


def test_gang_with_a_deleting_member_is_evicted_without_it() -> None:
    quota_cluster = cluster(12)
    gang(quota_cluster, "g", "far", [0] * 12, 12)
    quota_cluster.leaves("g0")
    assert evicted_for(quota_cluster, cpu=2) == sorted(f"g{number}" for number in range(1, 12))


def test_node_without_whole_gang_evictions_is_preferred() -> None:
    quota_cluster = cluster(4, 4, 4)
    gang(quota_cluster, "g", "far", [0, 0, 0, 0, 1, 1, 1, 1], 8)
    for number in range(4):
        quota_cluster.add(f"near{number}", "near", CPU, node="n2")
    assert evicted_for(quota_cluster, cpu=2) == ["near2", "near3"]


def test_gang_on_the_only_node_is_evicted_from_all_its_nodes() -> None:
    quota_cluster = cluster(4, 4, 4)
    gang(quota_cluster, "g", "far", [0, 0, 1, 2], 4, cpu=2)
    quota_cluster.add("rest", "near", 2 * CPU, node="n1")
    quota_cluster.add("kept", "taker", CPU, node="n2")
    result = quota_cluster.domain.schedule(quota_cluster.add("claim", "taker", 3 * CPU))
    assert isinstance(result, Unplaced)
    assert result.preemption is not None
    assert {n: [pod.name for pod in pods] for n, pods in result.preemption.victims.items()} == {
        "n0": ["g0", "g1"],
        "n1": ["g2"],
        "n2": ["g3"],
    }
    assert result.nominated_node in ("n0", "n2")


def test_gang_that_starts_once_is_evicted_whole_as_any_other() -> None:
    """Koordinator's once-satisfied: it starts again as a whole, because no member of it stays."""
    for is_once in (False, True):
        quota_cluster = cluster(11, far=3)
        spec = GangSpec(8, is_once=is_once)
        quota_cluster.domain.cache.gangs.set_object(GangApi.SCHEDULER_PLUGINS, "far/g", spec)
        for number in range(8):
            quota_cluster.add(f"g{number}", "far", CPU, node="n0", gang="g")
            quota_cluster.domain.cache.gangs.set_member_node(f"uid-g{number}", "n0", is_bound=True)
        quota_cluster.add("rest", "near", 2 * CPU, node="n0")
        quota_cluster.add("own", "taker", CPU, node="n0")
        assert evicted_for(quota_cluster) == [f"g{number}" for number in range(8)]


def test_gang_of_several_leaves_is_not_evicted_whole() -> None:
    for label, victims in (("far", [f"g{number}" for number in range(10)]), ("near", [])):
        quota_cluster = QuotaCluster([make_node("n0", cpu_milli=12 * CPU)], None)
        quota_cluster.put(
            linked("taker", 4, 12, namespaces=["taker"]),
            linked("far", 2, 12, namespaces=["far"]),
            linked("near", 4, 12, namespaces=["near", "far"]),
        )
        quota_cluster.set_minimum("g", "far", 10)
        for number in range(10):
            team = label if number == 9 else "far"
            quota_cluster.add(f"g{number}", "far", CPU, node="n0", gang="g", labels={POD_LABEL: team})
        quota_cluster.add("rest", "near", 2 * CPU, node="n0")
        assert evicted_for(quota_cluster) == victims


def test_gang_is_not_evicted_whole_for_a_member_of_its_own() -> None:
    """A member of higher priority than the others may replace one that the gang can spare, but not all of them."""
    root = node("root", {"cpu": 8}, {"cpu": 8}, leaf("team", 4, 4))
    for least, expected in ((4, []), (3, ["g3"])):
        quota_cluster = QuotaCluster([make_node("n0", cpu_milli=8 * CPU)], root)
        gang(quota_cluster, "g", "team", [0] * 4, least)
        late = quota_cluster.add("late", "team", CPU, priority=5, gang="g")
        result = quota_cluster.domain.schedule(late)
        assert isinstance(result, Unplaced)
        assert [victim.name for victim in result.victims] == expected
