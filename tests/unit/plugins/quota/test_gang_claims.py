"""Gangs that their quota entitles to room: one reclaim for all members, on whatever nodes."""

from __future__ import annotations

import itertools

import pytest

from multisched.cycle.effort import Effort
from multisched.cycle.preemption import group_dry_run
from multisched.cycle.preemption.group_trial import GroupOfPods
from multisched.cycle.preemption.victim_units import run_unpaused
from multisched.cycle.results import GangResult
from multisched.framework.events import Hint
from multisched.framework.preemption import Preemption
from multisched.framework.step_budget import UNLIMITED
from multisched.plugins.quota.elastic_quota import ElasticQuota
from multisched.plugins.quota.quota_ledger import QUOTA
from multisched.testing.builders import make_node
from tests.kit.counted_steps import CountedSteps
from tests.unit.plugins.quota.quota_cluster import QuotaCluster
from tests.unit.plugins.quota.test_gang_victims import CPU, gang
from tests.unit.plugins.quota.trees import leaf, node


def cluster(*cpus: int, full: int, sure: int = 8) -> QuotaCluster:
    root = node(
        "root", {"cpu": full}, {"cpu": full}, leaf("taker", sure, full), leaf("far", 2, full), leaf("near", 2, full)
    )
    return QuotaCluster([make_node(f"n{at}", cpu_milli=count * CPU) for at, count in enumerate(cpus)], root)


def claim(quota_cluster: QuotaCluster, count: int, *, cpu: int = 1, name: str = "c", priority: int = 0) -> None:
    """A gang of the entitled leaf, all of which must start."""
    quota_cluster.set_minimum(name, "taker", count)
    for number in range(count):
        quota_cluster.add(f"{name}{number}", "taker", cpu * CPU, gang=name, priority=priority)


def decided(quota_cluster: QuotaCluster, name: str = "c") -> tuple[list[str], dict[str, str]]:
    """Victims, and the nodes of the members."""
    found = preemption_of(quota_cluster.decided_gang(f"taker/{name}"))
    if found is None:
        return [], {}
    assert (found.plugin, found.group) == (QUOTA, f"taker/{name}")
    return sorted(pod.name for pod in found.every_victim), {pod.name: at for pod, at in found.nominations}


def preemption_of(result: GangResult) -> Preemption | None:
    assert not result.placed
    of_members = {id(one.preemption): one.preemption for one in result.unplaced}
    assert len(of_members) == 1, "one for all"
    return next(iter(of_members.values()))


def sentences(result: GangResult) -> set[str]:
    return {one.message.rpartition(" reclaim: ")[2] for one in result.unplaced}


@pytest.mark.parametrize(
    ("cpus", "full"), [((4, 4, 4), 12), ((8, 8, 8), 12)], ids=["the nodes are full", "the quota is full"]
)
def test_entitled_gang_reclaims_its_whole_need_at_once(cpus: tuple[int, ...], full: int) -> None:
    quota_cluster = cluster(*cpus, full=full)
    for number in range(12):
        quota_cluster.add(f"far{number}", "far", CPU, node=f"n{number % 3}")
    claim(quota_cluster, 4, cpu=2)
    victims, nodes = decided(quota_cluster)
    assert len(victims) == 8
    assert len(nodes) == 4
    quota_cluster.attempt_gang("taker/c")
    assert len(quota_cluster.attempt_gang("taker/c").placed) == 4
    assert len(quota_cluster.evicted) == 1
    quota_cluster.settle()
    assert len(quota_cluster.evicted) == 1


def test_free_capacity_is_used_before_victims() -> None:
    quota_cluster = cluster(4, 4, full=8, sure=4)
    for number in range(6):
        quota_cluster.add(f"far{number}", "far", CPU, node=f"n{number % 2}")
    claim(quota_cluster, 4)
    assert len(decided(quota_cluster)[0]) == 2


def test_borrowing_gang_is_evicted_whole_for_a_gang() -> None:
    quota_cluster = cluster(4, 4, full=8, sure=4)
    gang(quota_cluster, "g", "far", [0, 0, 0, 0, 1, 1, 1, 1], 8)
    claim(quota_cluster, 2)
    assert decided(quota_cluster)[0] == [f"g{number}" for number in range(8)]


def test_surplus_members_are_enough_for_a_small_gang() -> None:
    quota_cluster = cluster(4, 4, full=8, sure=4)
    gang(quota_cluster, "g", "far", [0, 0, 0, 0, 1, 1, 1, 1], 5)
    claim(quota_cluster, 3, cpu=1)
    assert decided(quota_cluster)[0] == ["g5", "g6", "g7"]
    quota_cluster.pending.clear()
    claim(quota_cluster, 4, cpu=1, name="d")
    assert decided(quota_cluster, "d")[0] == [f"g{number}" for number in range(8)]


@pytest.mark.parametrize("surplus", [1, 2])
def test_gang_without_enough_surplus_is_evicted_whole_from_several_nodes(surplus: int) -> None:
    quota_cluster = cluster(1, 1, 1, 1, 1, full=100)
    gang(quota_cluster, "g", "far", [0, 1, 2, 3, 4], 5 - surplus)
    claim(quota_cluster, surplus + 1)
    assert decided(quota_cluster)[0] == [f"g{number}" for number in range(5)]


def test_gang_that_exceeds_its_min_in_total_reclaims_nothing() -> None:
    """Each member alone would be."""
    quota_cluster = cluster(12, full=12, sure=3)
    for number in range(12):
        quota_cluster.add(f"far{number}", "far", CPU, node="n0")
    claim(quota_cluster, 4)
    result = quota_cluster.decided_gang("taker/c")
    assert preemption_of(result) is None
    assert sentences(result) == {"the quota would exceed its min and can borrow only idle capacity"}
    assert all(QUOTA in one.rejectors for one in result.unplaced)


def test_gang_reclaims_at_most_what_a_leaf_borrowed() -> None:
    """One member after the other could: `far` would go below its min at last."""
    root = node("root", {"cpu": 12}, {"cpu": 12}, leaf("taker", 6, 12), leaf("far", 6, 12))
    for sure, count in ((0, 6), (1, 5)):
        quota_cluster = QuotaCluster([make_node("n0", cpu_milli=12 * CPU)], root)
        for number in range(sure):
            quota_cluster.add(f"own{number}", "taker", CPU, node="n0", priority=9)
        for number in range(12 - sure):
            quota_cluster.add(f"far{number}", "far", CPU, node="n0")
        claim(quota_cluster, count)
        assert len(decided(quota_cluster)[0]) == count
        quota_cluster.pending.clear()
        claim(quota_cluster, count + 1, name="d")
        assert decided(quota_cluster, "d")[0] == []


def test_victims_for_different_members_are_evicted_together() -> None:
    """The leaf is sure of 6 and holds 9 in pods of 3: a second one would be entitled to come back."""
    root = node("root", {"cpu": 10}, {"cpu": 10}, leaf("taker", 4, 10), leaf("far", 6, 10))
    quota_cluster = QuotaCluster([make_node(f"n{at}", cpu_milli=3 * CPU) for at in range(3)], root)
    for number in range(3):
        quota_cluster.add(f"far{number}", "far", 3 * CPU, node=f"n{number}")
    claim(quota_cluster, 1, cpu=3)
    assert decided(quota_cluster)[0] == ["far2"]
    quota_cluster.pending.clear()
    claim(quota_cluster, 2, cpu=2, name="d")
    assert decided(quota_cluster, "d")[0] == []


def test_leaf_at_its_min_loses_nothing() -> None:
    quota_cluster = cluster(4, full=12, sure=8)
    for number in range(2):
        for name in ("far", "near"):
            quota_cluster.add(f"{name}{number}", name, CPU, node="n0")
    claim(quota_cluster, 2)
    assert decided(quota_cluster) == ([], {})


def test_lower_priority_pods_of_the_same_leaf_are_evicted_for_a_gang() -> None:
    root = node("root", {"cpu": 4}, {"cpu": 4}, leaf("taker", 4, 4))
    for priority, victims in ((5, ["low0", "low1"]), (0, [])):
        quota_cluster = QuotaCluster([make_node(f"n{at}", cpu_milli=2 * CPU) for at in range(2)], root)
        for at in range(2):
            quota_cluster.add(f"low{at}", "taker", CPU, node=f"n{at}")
            quota_cluster.add(f"high{at}", "taker", CPU, node=f"n{at}", priority=7)
        claim(quota_cluster, 2, priority=priority)
        assert decided(quota_cluster)[0] == victims


@pytest.mark.parametrize(("lowest", "count"), [(5, 2), (3, 0), (0, 0)])
def test_gang_evicts_only_pods_of_its_leaf_that_are_less_important_than_all_members(lowest: int, count: int) -> None:
    root = node("root", {"cpu": 4}, {"cpu": 4}, leaf("taker", 4, 4))
    quota_cluster = QuotaCluster([make_node("n0", cpu_milli=4 * CPU)], root)
    for at in range(4):
        quota_cluster.add(f"own{at}", "taker", CPU, node="n0", priority=3)
    quota_cluster.set_minimum("c", "taker", 2)
    for name, priority in (("high", 9), ("low", lowest)):
        quota_cluster.add(name, "taker", CPU, gang="c", priority=priority)
    assert len(decided(quota_cluster)[0]) == count


def test_full_quota_is_freed_on_nodes_that_no_member_uses() -> None:
    """The node of the members has room; one by one the pods elsewhere could stay, all of them cannot."""
    quota_cluster = cluster(8, 4, 4, 4, full=12)
    for number in range(12):
        quota_cluster.add(f"far{number}", "far", CPU, node=f"n{1 + number % 3}")
    claim(quota_cluster, 2, cpu=4)
    victims, nodes = decided(quota_cluster)
    assert len(victims) == 8
    assert set(nodes.values()) == {"n0"}


def test_gang_of_several_quotas_evicts_no_pod() -> None:
    quota_cluster = cluster(12, full=12)
    for number in range(12):
        quota_cluster.add(f"far{number}", "far", CPU, node="n0")
    claim(quota_cluster, 2)
    pods = [*quota_cluster.pending.values(), quota_cluster.add("other", "near", CPU)]
    after = run_unpaused(
        quota_cluster.domain.cycle.group_post_filters.run(GroupOfPods("taker/c", tuple(pods)), Effort(UNLIMITED))
    )
    assert (after.preemption, after.sentence) == (
        None,
        "reclaim: pods of several quotas that must start together cannot evict other pods",
    )


def placed_meanwhile(at: int) -> int | None:
    """A search for three pods, in whose pause `at` a nominated pod is placed. How many go; None: it ended before."""
    quota_cluster = cluster(16, full=8, sure=4)
    for number in range(6):
        quota_cluster.add(f"far{number}", "far", CPU, node="n0")
    quota_cluster.leaves("far0")
    nominated = quota_cluster.add("near0", "near", CPU)
    quota_cluster.domain.nominator.nominate(nominated, "n0")
    claim(quota_cluster, 3)
    members = tuple(pod for pod in quota_cluster.pending.values() if pod.namespace == "taker")
    search = quota_cluster.domain.cycle.group_post_filters.run(
        GroupOfPods("taker/c", members), Effort(CountedSteps(1), pauses_max=1_000_000)
    )
    pauses = 0
    while True:
        try:
            next(search)
        except StopIteration as ended:
            preemption = ended.value.preemption
            going = () if preemption is None else preemption.every_victim
            return None if pauses < at else sum(not pod.is_leaving for pod in going)
        pauses += 1
        if pauses == at:
            quota_cluster.domain.nominator.remove(nominated.uid)
            quota_cluster.add("near0", "near", CPU, node="n0")


def test_pod_placed_during_a_pause_is_not_counted_twice() -> None:
    """Two others would go, and one is enough as soon as the pod that is leaving has left."""
    found = list(itertools.takewhile(lambda one: one is not None, map(placed_meanwhile, itertools.count(1))))
    assert len(found) >= 4
    assert all(one is not None and one <= 1 for one in found), found


def test_members_of_different_sizes_get_separately_cleared_nodes() -> None:
    """The large one needs a node whose pods all go; the small ones what is left, or little of another node."""
    quota_cluster = cluster(4, 4, 4, full=12, sure=8)
    for at in (0, 1):
        for number in range(4):
            quota_cluster.add(f"far{at}{number}", "far", CPU, node=f"n{at}")
    for number in range(4):
        quota_cluster.add(f"near{number}", "near", CPU, node="n2")
    quota_cluster.set_minimum("c", "taker", 3)
    for name, cpu in (("large", 4), ("small", 1), ("tiny", 1)):
        quota_cluster.add(name, "taker", cpu * CPU, gang="c")
    victims, nodes = decided(quota_cluster)
    assert len(victims) == 6
    assert nodes["large"] not in (nodes["small"], nodes["tiny"])


def test_pod_deleted_from_the_quota_requeues_a_gang_over_its_min() -> None:
    quota_cluster = cluster(12, full=12, sure=4)
    old = quota_cluster.add("own", "taker", CPU, node="n0")
    for number in range(11):
        quota_cluster.add(f"far{number}", "far", CPU, node="n0")
    claim(quota_cluster, 4)
    result = quota_cluster.decided_gang("taker/c")
    assert preemption_of(result) is None
    plugin = next(one for one in quota_cluster.domain.plugins.post_filter if isinstance(one, ElasticQuota))
    hint = next(one.hint for one in plugin.events_to_register() if one.event.label == "AssignedPodFrees")
    assert hint is not None
    assert hint(result.unplaced[0].pod, old, None) is Hint.QUEUE


def test_pod_deleted_from_another_leaf_requeues_a_gang_under_the_shared_max() -> None:
    quota_cluster = cluster(24, full=12, sure=2)
    for number in range(12):
        old = quota_cluster.add(f"far{number}", "far", CPU, node="n0")
    claim(quota_cluster, 4)
    result = quota_cluster.decided_gang("taker/c")
    assert preemption_of(result) is None
    plugin = next(one for one in quota_cluster.domain.plugins.post_filter if isinstance(one, ElasticQuota))
    hint = next(one.hint for one in plugin.events_to_register() if one.event.label == "AssignedPodFrees")
    assert hint is not None
    assert hint(result.unplaced[0].pod, old, None) is Hint.QUEUE


def test_gang_without_nodes_is_requeued_by_any_event() -> None:
    """A quota hears of no node that comes."""
    quota_cluster = cluster(full=12)
    claim(quota_cluster, 2)
    result = quota_cluster.decided_gang("taker/c")
    assert all("no nodes available" in one.message and "reclaim" not in one.message for one in result.unplaced)
    assert [(one.rejectors, one.pending, one.preemption) for one in result.unplaced] == [
        (frozenset(), frozenset(), None)
    ] * 2


@pytest.mark.parametrize(("served_max", "count"), [(1000, 3), (3, 3), (2, 0)])
def test_number_of_members_in_one_reclaim_search_is_limited(
    monkeypatch: pytest.MonkeyPatch, served_max: int, count: int
) -> None:
    monkeypatch.setattr(group_dry_run, "SERVED_MAX", served_max)
    quota_cluster = cluster(4, 4, full=8, sure=4)
    for number in range(8):
        quota_cluster.add(f"far{number}", "far", CPU, node=f"n{number % 2}")
    claim(quota_cluster, 3)
    found, _ = decided(quota_cluster)
    assert len(found) == count
