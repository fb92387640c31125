"""Preemption for gangs that must stay in one topology domain: one domain is cleared, the one that costs least."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.cycle.preemption import group_dry_run
from multisched.cycle.results import GangResult
from multisched.model.gang import TopologyLevel
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain
from tests.unit.cycle.preemption.test_gang_victims import member
from tests.unit.cycle.preemption.test_preemption import budget, standing
from tests.unit.cycle.test_gang_attempts import attempt, gang_of, trace
from tests.unit.plugins.quota.quota_cluster import QuotaCluster
from tests.unit.plugins.quota.trees import leaf, node
from tests.unit.state.gang_kit import cache_with_gangs, place

IN_TREE = ("NodeResourcesFit", "DefaultPreemption")
RACK_REQUIRED, ZONE_REQUIRED = TopologyLevel("rack", is_required=True), TopologyLevel("zone", is_required=True)
NONE: Mapping[str, int] = {}


def cluster(nodes: Mapping[str, int], pods: Iterable[Pod], minimums: Mapping[str, int] = NONE) -> Domain:
    """`nodes`: name -> CPUs. A name is zone, rack and number: `ab1` is of rack b in zone a."""
    made = [
        make_node(name, cpu_milli=cpus * 1000, labels={"zone": name[0], "rack": name[:2]})
        for name, cpus in nodes.items()
    ]
    domain = Domain(*made, in_tree=IN_TREE, cache=cache_with_gangs(**minimums))
    for pod in pods:
        place(domain.cache, pod)
    return domain


def victims(
    domain: Domain, count: int, *levels: TopologyLevel, cpu: int = 1, standing: Sequence[str] = ()
) -> tuple[list[str], set[str]]:
    """Names of the victims, and the nodes of the members. Nothing is left of the search."""
    pods = [make_pod(f"m{at}", cpu_milli=cpu * 1000, priority=9) for at in range(count)]
    before = trace(domain)
    result = attempt(domain, gang_of(pods, count, topology=levels or (RACK_REQUIRED,), member_nodes=tuple(standing)))
    assert trace(domain) == before
    return of(result)


def of(result: GangResult) -> tuple[list[str], set[str]]:
    assert not result.placed
    preemption = result.unplaced[0].preemption
    if preemption is None:
        return [], set()
    assert {node for _, node in preemption.nominations} == {one.nominated_node for one in result.unplaced}
    return sorted(pod.name for pod in preemption.every_victim), {node for _, node in preemption.nominations}


def test_gang_preemption_clears_one_rack_despite_lower_priorities_elsewhere() -> None:
    """Of each rack one pod is the least important: two racks together would cost less than one."""
    pods = [standing(f"{rack}{at}", f"{rack}{at}", priority=at + 1) for rack in ("aa", "ab") for at in range(2)]
    domain = cluster({f"{rack}{at}": 1 for rack in ("aa", "ab") for at in range(2)}, pods)
    found, nodes = victims(domain, 2)
    assert found in (["aa0", "aa1"], ["ab0", "ab1"])
    assert nodes == set(found)


def test_rack_with_the_least_important_victims_is_cleared() -> None:
    pods = [standing("urgent", "aa0", priority=5), *(standing(f"low{at}", "ab0") for at in range(2))]
    assert victims(cluster({"aa0": 2, "ab0": 2}, pods), 2) == (["low0", "low1"], {"ab0"})


def test_fewest_victims_of_equal_importance_are_evicted() -> None:
    pods = [standing(f"a{at}", "aa0") for at in range(2)] + [standing("b", "ab0")]
    assert victims(cluster({"aa0": 2, "ab0": 2}, pods), 2) == (["b"], {"ab0"})


def test_budget_is_kept_if_another_rack_can_be_cleared() -> None:
    pods = [standing("kept", "aa0", labels={"app": "kept"}), standing("high", "ab0", priority=7)]
    domain = cluster({"aa0": 1, "ab0": 1}, pods)
    domain.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, budget("kept", "kept", 0))
    assert victims(domain, 1) == (["high"], {"ab0"})


def test_rack_too_small_or_too_important_is_not_cleared() -> None:
    pods = [standing("low", "aa0"), standing("equal", "ab0", priority=9, cpu=2000), standing("mid", "ac0", priority=4)]
    assert victims(cluster({"aa0": 1, "ab0": 2, "ac0": 2}, pods), 2) == (["mid"], {"ac0"})
    assert victims(cluster({"aa0": 1, "ab0": 2}, pods[:2]), 2) == ([], set())


def test_no_pod_is_evicted_if_no_node_has_the_label() -> None:
    domain = Domain(make_node("n", cpu_milli=1000), in_tree=IN_TREE)
    domain.cache.place(standing("low", "n"))
    assert victims(domain, 1) == ([], set())


def test_placed_members_determine_the_cleared_rack() -> None:
    pods = [standing("low", "aa0"), standing("mid", "ab0", priority=4)]
    assert victims(cluster({"aa0": 1, "ab0": 1, "ab1": 1}, pods), 2, standing=("ab1",)) == (["mid"], {"ab0", "ab1"})


def test_several_racks_are_cleared_within_a_required_zone() -> None:
    pods = [standing(name, name) for name in ("aa0", "ab0", "ba0")]
    domain = cluster({"aa0": 1, "ab0": 1, "ba0": 1}, pods)
    assert victims(domain, 2, ZONE_REQUIRED, TopologyLevel("rack")) == (["aa0", "ab0"], {"aa0", "ab0"})
    assert victims(domain, 2, ZONE_REQUIRED, RACK_REQUIRED) == ([], set())


def test_racks_with_one_name_in_two_zones_are_separate() -> None:
    nodes = [
        make_node(f"{zone}{at}", cpu_milli=1000, labels={"zone": zone, "rack": "r"}) for zone in "ab" for at in "01"
    ]
    domain = Domain(*nodes, in_tree=IN_TREE)
    for name in ("a0", "b0"):
        domain.cache.place(standing(name, name))
    levels = (ZONE_REQUIRED, RACK_REQUIRED)
    assert victims(domain, 2, *levels)[1] in ({"a0", "a1"}, {"b0", "b1"})


def test_gang_spanning_racks_is_evicted_whole_only_as_last_resort() -> None:
    pods = [member("g1", "aa0"), member("g2", "ab0"), standing("mid", "ac0", priority=4)]
    nodes = {"aa0": 1, "ab0": 1, "ac0": 1}
    assert victims(cluster(nodes, pods, {"g": 2}), 1) == (["mid"], {"ac0"})
    assert victims(cluster({"aa0": 1, "ab0": 1}, pods[:2], {"g": 2}), 1)[0] == ["g1", "g2"]


def test_long_search_ends_with_the_least_short_racks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_dry_run, "PLACINGS_MAX", 1)
    pods = [standing(f"a{at}", "aa0") for at in range(2)] + [standing("high", "ab0", priority=7)]
    assert victims(cluster({"aa0": 2, "ab0": 2}, pods), 2) == (["high"], {"ab0"})


racks = st.dictionaries(
    st.sampled_from(["aa", "ab", "ba", "bb"]),
    st.lists(st.lists(st.integers(0, 10), max_size=4), min_size=1, max_size=2),
    min_size=1,
)
"""Rack -> its nodes: the priorities of the pods on each, one CPU each; a node has room for three."""


@given(racks, st.integers(1, 6))
def test_one_rack_is_cleared_minimally_at_the_lowest_cost(shape: dict[str, list[list[int]]], count: int) -> None:
    names = {f"{rack}{at}": pods[:3] for rack, nodes in shape.items() for at, pods in enumerate(nodes)}
    pods = [
        standing(f"{name}-{at}", name, priority=priority)
        for name, priorities in names.items()
        for at, priority in enumerate(priorities)
    ]
    domain = cluster(dict.fromkeys(names, 3), pods)
    short = {rack: shortage(rack, names, count) for rack in shape}
    if any(number <= 0 for number in short.values()):
        return  # some rack has room
    lower = {rack: lower_in(rack, names) for rack in shape}
    possible = [rack for rack in shape if len(lower[rack]) >= short[rack]]
    found, nodes = victims(domain, count)
    assert bool(found) == bool(possible)
    if found:
        (rack,) = {name[:2] for name in (*found, *nodes)}
        of_pods = {pod.name: pod.spec.priority for pod in pods}
        assert len(found) == short[rack]
        most = min(cost_of(lower[one][-short[one] :]) for one in possible)
        assert cost_of([of_pods[name] for name in found]) <= most


def shortage(rack: str, nodes: Mapping[str, list[int]], count: int) -> int:
    return count - sum(3 - len(priorities) for name, priorities in nodes.items() if name[:2] == rack)


def lower_in(rack: str, nodes: Mapping[str, list[int]]) -> list[int]:
    """Priorities of those who may go, ascending."""
    return sorted(one for name, priorities in nodes.items() if name[:2] == rack for one in priorities if one < 9)


def cost_of(priorities: Sequence[int]) -> tuple[int, ...]:
    """As upstream compares nodes: the highest priority, the sum with an offset for each, the number."""
    return max(priorities), sum(priority + 2**31 for priority in priorities), len(priorities)


def test_quota_victims_may_be_in_other_racks() -> None:
    root = node("root", {"cpu": 4}, {"cpu": 4}, leaf("taker", 4, 4))
    nodes = [make_node(f"{rack}0", cpu_milli=4000, labels={"rack": rack}) for rack in ("ra", "rb")]
    quota = QuotaCluster(nodes, root)
    for at in range(4):
        quota.add(f"low{at}", "taker", 1000, node="ra0")
    quota.domain.cache.place(make_pod("big", cpu_milli=1000, priority=9, node="ra0"))
    quota.set_minimum("c", "taker", 2)
    pods = [quota.add(f"c{at}", "taker", 2000, gang="c", priority=5) for at in range(2)]
    found, places = of(attempt(quota.domain, gang_of(pods, 2, topology=(RACK_REQUIRED,))))
    assert (found, places) == ([f"low{at}" for at in range(4)], {"rb0"})


def test_entitled_gang_reclaims_within_one_rack() -> None:
    root = node("root", {"cpu": 12}, {"cpu": 12}, leaf("taker", 4, 12), leaf("far", 2, 12), leaf("near", 2, 12))
    nodes = [
        make_node(f"{rack}{at}", cpu_milli=2000, labels={"rack": rack}) for rack in ("ra", "rb", "rc") for at in "01"
    ]
    quota = QuotaCluster(nodes, root)
    for number, one in enumerate(nodes):
        for at in range(2):
            quota.add(f"{one.name}-{at}", "far" if number < 4 else "near", 1000, node=one.name)
    quota.set_minimum("c", "taker", 3)
    pods = [quota.add(f"c{at}", "taker", 1000, gang="c") for at in range(3)]
    found, places = of(attempt(quota.domain, gang_of(pods, 3, topology=(RACK_REQUIRED,))))
    assert len(found) == 3
    assert len({name[:2] for name in (*found, *places)}) == 1
