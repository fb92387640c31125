"""How much more goes than is needed: measured of the scarcest resource, and stopped where it is over the cap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.cycle.results import Unplaced
from multisched.plugins.quota.elastic_quota import ElasticQuota
from multisched.plugins.quota.evicted_over_needed import EvictionLimit, Excess, ReclaimCounts, excess
from multisched.testing.builders import make_node
from tests.unit.plugins.quota.quota_cluster import QuotaCluster
from tests.unit.plugins.quota.test_gang_claims import claim, decided, sentences
from tests.unit.plugins.quota.test_gang_victims import CPU
from tests.unit.plugins.quota.trees import leaf, node


def cluster(*cpus: int, full: int = 12, cap: float = 2) -> QuotaCluster:
    root = node("root", {"cpu": full}, {"cpu": full}, leaf("taker", 6, full), leaf("far", 0, full))
    return QuotaCluster(
        [make_node(f"n{at}", cpu_milli=count * CPU) for at, count in enumerate(cpus)], root, maxEvictedOverNeeded=cap
    )


def attempt(quota_cluster: QuotaCluster, cpu: int) -> tuple[list[str], str]:
    """The victims, and what the pod is told."""
    result = quota_cluster.domain.schedule(quota_cluster.add("claim", "taker", cpu * CPU))
    assert isinstance(result, Unplaced)
    return sorted(victim.name for victim in result.victims), result.message.rpartition("reclaim: ")[2]


def counted(quota_cluster: QuotaCluster) -> tuple[Mapping[tuple[str, ...], float], float]:
    """Reclaims by their bound, and those that were stopped."""
    plugin = next(one for one in quota_cluster.domain.plugins.post_filter if isinstance(one, ElasticQuota))
    reclaims, stopped = plugin.metrics(0.0)
    return reclaims.values, stopped.values[()]


@pytest.mark.parametrize("cpus", [(8,), (20,)], ids=["the node is full", "the quota is full"])
def test_pod_reports_that_too_many_victims_would_be_needed(cpus: tuple[int, ...]) -> None:
    """It lacks 5, and two of 4 would go."""
    for cap, victims in ((1.5, []), (1.6, ["far0", "far1"])):
        quota_cluster = cluster(*cpus, full=8, cap=cap)
        for number in range(2):
            quota_cluster.add(f"far{number}", "far", 4 * CPU, node="n0")
        found, told = attempt(quota_cluster, 5)
        assert found == victims
        if not victims:
            assert told == "1.6 times as much cpu as needed would be evicted, maxEvictedOverNeeded is 1.5"
            assert counted(quota_cluster) == (dict.fromkeys(counted(quota_cluster)[0], 0.0), 1.0)
        else:
            assert counted(quota_cluster)[0]["1.5",] == 0
            assert counted(quota_cluster)[0]["2",] == counted(quota_cluster)[0]["+Inf",] == 1


@pytest.mark.parametrize("cpus", [(8,), (20,)], ids=["the node is full", "the quota is full"])
def test_single_sufficient_pod_of_any_size_is_evicted(cpus: tuple[int, ...]) -> None:
    quota_cluster = cluster(*cpus, full=8, cap=1)
    quota_cluster.add("far0", "far", 8 * CPU, node="n0")
    assert attempt(quota_cluster, 1)[0] == ["far0"]
    assert counted(quota_cluster)[0]["4",] == 0
    assert counted(quota_cluster)[0]["8",] == 1


def test_single_sufficient_gang_of_any_size_is_evicted() -> None:
    quota_cluster = cluster(8, full=8, cap=1)
    quota_cluster.set_minimum("g", "far", 8)
    for number in range(8):
        quota_cluster.add(f"g{number}", "far", CPU, node="n0", gang="g")
    assert len(attempt(quota_cluster, 2)[0]) == 8


def test_other_victims_are_chosen_if_the_first_exceed_the_limit() -> None:
    """By the order two of 4 go for 5; the one of 5, which is older, is enough."""
    quota_cluster = cluster(13, full=13, cap=1.5)
    for name, cpu in (("large", 5), ("far0", 4), ("far1", 4)):
        quota_cluster.add(name, "far", cpu * CPU, node="n0")
    assert attempt(quota_cluster, 5)[0] == ["large"]


def test_another_node_is_chosen_if_the_first_exceeds_the_limit() -> None:
    """The newest two of `n0` would go first."""
    quota_cluster = cluster(8, 6, full=14, cap=1.5)
    for number in range(3):
        quota_cluster.add(f"fit{number}", "far", 2 * CPU, node="n1", priority=5)
    for number in range(2):
        quota_cluster.add(f"far{number}", "far", 4 * CPU, node="n0")
    assert attempt(quota_cluster, 5)[0] == ["fit0", "fit1", "fit2"]


def test_free_amounts_do_not_count_as_needed() -> None:
    quota_cluster = cluster(8, cap=1.5)
    for number in range(2):
        quota_cluster.add(f"far{number}", "far", 3 * CPU, node="n0")
    assert attempt(quota_cluster, 6)[0] == ["far0", "far1"], "4 are missing, and 6 go"


def test_deleting_pods_do_not_count_as_missing() -> None:
    """Of the 5 that it asks for one pod leaves 2, and two of 2 would go for the other 3."""
    for cap, victims in ((1.3, []), (1.4, ["far1", "far2"])):
        quota_cluster = cluster(8, full=20, cap=cap)
        for number in range(3):
            quota_cluster.add(f"far{number}", "far", 2 * CPU, node="n0")
        quota_cluster.add("leaving", "far", 2 * CPU, node="n0")
        quota_cluster.leaves("leaving")
        assert [name for name in attempt(quota_cluster, 5)[0] if name != "leaving"] == victims


def test_gang_reclaim_is_stopped_if_its_nodes_give_too_much() -> None:
    for cap, count in ((1.1, 0), (1.4, 4)):
        quota_cluster = cluster(6, 6, full=12, cap=cap)
        for number in range(4):
            quota_cluster.add(f"far{number}", "far", 3 * CPU, node=f"n{number % 2}")
        root = node("root", {"cpu": 12}, {"cpu": 12}, leaf("taker", 10, 12), leaf("far", 0, 12))
        quota_cluster.set_tree(root)
        claim(quota_cluster, 2, cpu=5)
        assert len(decided(quota_cluster)[0]) == count
        if not count:
            assert sentences(quota_cluster.decided_gang("taker/c")) == {
                "1.2 times as much cpu as needed would be evicted, maxEvictedOverNeeded is 1.1"
            }


amounts = st.lists(st.integers(1, 20), min_size=2, max_size=8)


@given(amounts, st.data())
def test_needed_victims_of_one_resource_hold_less_than_twice_the_need(held: list[int], data: st.DataObject) -> None:
    """Without the smallest they hold too little. A cap of 2 stops only what adds up for several resources or places."""
    needed = data.draw(st.integers(sum(held) - min(held) + 1, sum(held)))
    found = excess((("cpu", needed),), {"cpu": needed}, [{"cpu": amount} for amount in held])
    assert found.ratio * needed == pytest.approx(sum(held))
    assert found.ratio < 2


@pytest.mark.parametrize(
    ("asked", "missing", "found"),
    [
        (
            {"cpu": 4, "memory": 8},
            {"cpu": 2, "memory": 2},
            Excess("cpu", 1.5),
        ),  # half of the CPUs, a quarter of the memory
        ({"cpu": 4, "memory": 8}, {"cpu": 1, "memory": 8}, Excess("memory", 0.75)),
        ({"cpu": 4, "memory": 8}, {"memory": 1}, Excess("memory", 6.0)),
        ({"cpu": 4}, {}, Excess("", 0.0)),
        ({"cpu": 4, "pods": 1}, {"pods": 1, "cpu": 1}, Excess("pods", 1.0)),
    ],
)
def test_scarcest_resource_determines_the_excess(
    asked: Mapping[str, int], missing: Mapping[str, int], found: Excess
) -> None:
    assert excess(tuple(asked.items()), missing, [{"cpu": 3, "memory": 6, "pods": 1}]) == found


def test_limit_records_the_smallest_excess_above_it() -> None:
    cap = EvictionLimit(1.5)
    assert [cap.allows(Excess("cpu", ratio), 2) for ratio in (1.5, 3.0, 1.7, 2.0)] == [True, False, False, False]
    assert cap.over == Excess("cpu", 1.7)
    assert cap.allows(Excess("cpu", 9.0), 2, places=2)


def bounds(ratios: Sequence[float]) -> list[float]:
    counts = ReclaimCounts()
    for ratio in ratios:
        counts.decided(Excess("cpu", ratio))
    return list(counts.metrics()[0].values.values())


def test_reclaim_metric_counts_into_cumulative_buckets() -> None:
    assert bounds([1.0]) == [1, 1, 1, 1, 1, 1, 1, 1]
    assert bounds([1.01, 2.0, 99.0]) == [0, 1, 1, 2, 2, 2, 2, 3]
