"""Gangs as victims of a single pod: the surplus goes pod by pod, and whoever takes more takes the whole gang."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multisched.cycle.preemption import gang_candidates, victim_units
from multisched.cycle.preemption.gang_columns import GangColumns
from multisched.cycle.results import Placed, Unplaced
from multisched.framework.dependency import Dependency
from multisched.framework.status import Code
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import CPU, Node, Pod
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain, FilterBy
from tests.unit.cycle.preemption.test_preemption import DAY_S, budget, standing
from tests.unit.state.gang_kit import GANG_LABEL, PlainGangs, cache_with_gangs, place, set_minimum, subsets_of

IN_TREE = ("NodeResourcesFit", "DefaultPreemption")
PREEMPTOR = make_pod("p", cpu_milli=1000, priority=9)


def cluster(nodes: Mapping[str, int], pods: Iterable[Pod], plugins: Sequence[Any] = (), **minimums: int) -> Domain:
    """`nodes`: name -> CPUs. `minimums`: gang -> its minimum."""
    made = [make_node(name, cpu_milli=cpus * 1000) for name, cpus in nodes.items()]
    domain = Domain(*made, in_tree=IN_TREE, cache=cache_with_gangs(**minimums), plugins=plugins)
    for pod in pods:
        place(domain.cache, pod)
    return domain


def member(name: str, node: str, gang: str = "g", **fields: Any) -> Pod:
    return standing(name, node, labels={GANG_LABEL: gang, "app": gang}, **fields)


def victims(domain: Domain, pod: Pod = PREEMPTOR) -> tuple[str | None, dict[str, list[str]]]:
    """The nominated node, and the victims by node."""
    result = domain.schedule(pod)
    assert isinstance(result, Unplaced), result
    found = {} if result.preemption is None else result.preemption.victims
    return result.nominated_node, {node: [pod.name for pod in pods] for node, pods in found.items()}


def test_node_with_victims_that_break_no_gang_is_preferred() -> None:
    pods = [member("g1", "a"), member("g2", "b"), standing("alone", "c", priority=5)]
    assert victims(cluster({"a": 1, "b": 1, "c": 1}, pods, g=2)) == ("c", {"c": ["alone"]})


def test_gang_without_surplus_is_evicted_whole_from_all_nodes() -> None:
    pods = [member("g1", "a"), member("g2", "b"), member("g3", "b"), standing("equal", "c", priority=9)]
    domain = cluster({"a": 1, "b": 2, "c": 1}, pods, g=3)
    assert victims(domain) == ("a", {"a": ["g1"], "b": ["g2", "g3"]})
    result = domain.schedule(PREEMPTOR)
    assert isinstance(result, Unplaced)
    assert result.preemption is not None
    assert [pod.name for pod, _ in result.preemption.nominations] == ["p"]


def test_members_beyond_the_minimum_are_evicted_like_other_pods() -> None:
    pods = [member("g1", "a"), member("g2", "b"), member("g3", "c", start=DAY_S + 5)]
    assert victims(cluster({"a": 1, "b": 1, "c": 1}, pods, g=2)) == ("c", {"c": ["g3"]})


def test_no_more_members_than_the_surplus_are_evicted_from_one_node() -> None:
    pods = [member(f"g{number}", "a", start=DAY_S + number) for number in range(3)]
    one, two = PREEMPTOR, make_pod("p", cpu_milli=2000, priority=9)
    assert victims(cluster({"a": 3}, pods, g=2), one) == ("a", {"a": ["g2"]})
    assert victims(cluster({"a": 3}, pods, g=2), two) == ("a", {"a": ["g0", "g1", "g2"]})
    assert victims(cluster({"a": 3}, pods, g=1), two) == ("a", {"a": ["g1", "g2"]})


def test_gang_that_can_spare_a_large_member_is_not_evicted_whole() -> None:
    pods = [member("large", "a", cpu=2000, priority=3), member("s1", "a"), member("s2", "a")]
    assert victims(cluster({"a": 4}, pods, g=2), make_pod("p", cpu_milli=2000, priority=9)) == ("a", {"a": ["large"]})


def test_gang_with_a_too_important_member_loses_only_its_surplus() -> None:
    pods = [member("g1", "a"), member("g2", "a", start=DAY_S + 1), member("boss", "b", priority=9)]
    nodes = {"a": 2, "b": 1}
    assert victims(cluster(nodes, pods, g=3)) == ("", {})
    assert victims(cluster(nodes, pods, g=2)) == ("a", {"a": ["g2"]})
    assert victims(cluster(nodes, pods, g=2), make_pod("p", cpu_milli=2000, priority=9)) == ("", {})


def test_gang_is_not_evicted_whole_for_a_member_of_its_own() -> None:
    """That would only restart it. Another gang is, and a member that it can spare."""
    late = make_pod("late", cpu_milli=1000, priority=9, labels={GANG_LABEL: "g"})
    members = [member("g1", "a", start=DAY_S + 1), member("g2", "a", start=DAY_S + 2)]
    others = [member("h1", "b", "h", priority=3), member("h2", "b", "h", priority=3)]
    for pods, minimum, expected in (
        (members, 2, ("", {})),
        (members, 1, ("a", {"a": ["g2"]})),
        ([*members, *others], 2, ("b", {"b": ["h1", "h2"]})),
    ):
        domain = cluster({"a": 2, "b": 2} if len(pods) > 2 else {"a": 2}, pods, g=minimum, h=2)
        domain.cache.gangs.set(late)
        assert victims(domain, late) == expected


def test_gang_is_broken_before_a_disruption_budget() -> None:
    pods = [member("g1", "a"), member("g2", "b"), standing("kept", "c", labels={"app": "kept"})]
    domain = cluster({"a": 1, "b": 1, "c": 1}, pods, g=2)
    domain.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, budget("kept", "kept", 0))
    assert victims(domain) == ("a", {"a": ["g1"], "b": ["g2"]})
    domain.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, budget("g", "g", 1))
    assert victims(domain) == ("c", {"c": ["kept"]}), "one of the gang's members would break one, too"


def test_pods_not_needed_after_a_whole_gang_eviction_stay() -> None:
    """The pod needs two CPUs of `a`: of gang and pod beside it, neither would be enough but for the gang's second member."""
    pods = [
        member("g1", "a", priority=2, start=DAY_S + 1),
        member("g2", "a", priority=2, start=DAY_S + 2),
        standing("alone", "a", priority=1),
    ]
    assert victims(cluster({"a": 3}, pods, g=2), make_pod("p", cpu_milli=2000, priority=9)) == (
        "a",
        {"a": ["g1", "g2"]},
    )


def test_deleting_member_counts_as_a_deleting_pod() -> None:
    going = member("g1", "a", is_deleting=True)
    pods = [going, member("g2", "b"), member("g3", "c")]
    assert victims(cluster({"a": 1, "b": 1, "c": 1}, pods, g=2)) == ("a", {"a": ["g1"]})


def test_deleting_member_of_a_gang_without_surplus_spares_other_pods() -> None:
    pods = [
        member("g1", "a", is_deleting=True),
        member("g2", "b"),
        member("g3", "c"),
        standing("alone", "d", priority=1),
    ]
    assert victims(cluster(dict.fromkeys("abcd", 1), pods, g=2)) == ("a", {"a": ["g1"]})


def test_member_on_an_unknown_node_is_evicted_with_its_gang() -> None:
    pods = [member("g1", "a"), member("g2", "gone")]
    assert victims(cluster({"a": 1}, pods, g=2)) == ("a", {"a": ["g1"], "gone": ["g2"]})


def test_gangs_are_broken_on_the_cheapest_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_candidates, "ROWS_TRIED_MAX", 1)
    pods = [
        member("g1", "a", priority=2),
        member("g2", "b", priority=2),
        member("h1", "c", gang="h"),
        member("h2", "d", gang="h"),
    ]
    nodes = dict.fromkeys("abcd", 1)
    assert victims(cluster(nodes, pods, g=2, h=2)) == ("c", {"c": ["h1"], "d": ["h2"]})


def test_other_filters_are_evaluated_without_the_whole_gang() -> None:
    """They refuse `a` whoever goes from there."""
    careful = FilterBy(
        "Careful",
        lambda pod, name: "no" if name == "a" else "",
        depends_on=Dependency.CLUSTER,
        sign=lambda pod: (),
    )
    pods = [member("g1", "a"), member("g2", "b")]
    assert victims(cluster({"a": 1, "b": 1}, pods, [careful], g=2)) == ("b", {"b": ["g2"], "a": ["g1"]})


def test_gang_is_evicted_whole_for_other_requirements_than_resources() -> None:
    """A filter keeps the pod off `a` as long as a member stands there, and off `b` for good."""

    class Shy(FilterBy):
        def filter(self, cycle: Any, pod: Pod, rows: Any) -> Any:
            refused = self.reasons.code(Code.UNSCHEDULABLE, "shy")
            members = [{one.name for one in cycle.nodes.pods_on(row)} & {"g1", "g2"} for row in rows.tolist()]
            return np.array([refused if some else 0 for some in members], np.uint8)

    shy = Shy("Shy", lambda pod, name: "", depends_on=Dependency.CLUSTER, sign=lambda pod: ())
    pods = [member("g1", "a"), standing("other", "a"), member("g2", "b"), standing("equal", "b", cpu=9000, priority=9)]
    assert victims(cluster({"a": 9, "b": 9}, pods, [shy], g=2)) == ("a", {"a": ["g1"], "b": ["g2"]})


def test_next_pod_of_the_class_sees_changed_gangs() -> None:
    domain = cluster({"a": 1, "b": 1, "c": 1}, [member("g1", "a"), member("g2", "b"), member("g3", "c")], g=2)
    assert victims(domain) == ("a", {"a": ["g1"]})
    domain.cache.remove("uid-g3")
    place(domain.cache, standing("equal", "c", priority=9))
    assert victims(domain) == ("a", {"a": ["g1"], "b": ["g2"]})
    domain.cache.remove("uid-g2")
    place(domain.cache, standing("equal-b", "b", priority=9))
    place(domain.cache, member("g4", "nowhere"))
    place(domain.cache, member("g5", "nowhere"))
    assert victims(domain) == ("a", {"a": ["g1"]})


def test_numbers_of_deleted_gangs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multisched.cycle.preemption.gang_columns.NUMBERS_MAX", 2)
    domain = cluster({"a": 2}, [])
    columns = GangColumns(domain.cache.gangs)
    for number in range(6):
        set_minimum(domain.cache, f"g{number}", 1)
        place(domain.cache, member(f"p{number}", "a", gang=f"g{number}"))
        (pods,) = domain.cache.pods_by_priority.blocks(np.array([0], np.intp))
        assert columns.beyond_surplus(pods, np.ones_like(pods.priority, np.bool_)).tolist() == [[True]]
        assert len(columns._numbers) <= 3
        domain.cache.remove(f"uid-p{number}")
        domain.cache.gangs.remove(f"uid-p{number}")


# -- against every set of victims ----------------------------------------------------------------------------------------

GANGS = ("", "", "g", "h")


class Plain:
    """All that rules say of victims, set by set."""

    def __init__(self, domain: Domain, pod: Pod) -> None:
        self.entries = [entry for entry in domain.cache if entry.pod.spec.priority < pod.spec.priority]
        self._domain, self._pod = domain, pod
        self._gangs = PlainGangs(domain.cache)

    def is_allowed(self, uids: frozenset[str]) -> bool:
        return self._gangs.are_spared(uids)

    def fits(self, node: str, uids: frozenset[str]) -> bool:
        table, row = self._domain.cache.nodes, self._domain.row(node)
        left = sum(pod.requests[CPU] for pod in table.pods_on(row) if pod.uid not in uids)
        return left + self._pod.requests[CPU] <= table.node(row).allocatable[CPU]

    def is_breaking(self, uids: frozenset[str]) -> bool:
        """A gang goes whole."""
        return self._gangs.is_any_gone(uids)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Domain, list[Node]]:
    nodes = [make_node(f"n{number}", cpu_milli=draw(st.sampled_from([1000, 2000, 3000]))) for number in range(3)]
    minimums = {gang: draw(st.integers(1, 4)) for gang in ("g", "h")}
    domain = Domain(*nodes, in_tree=IN_TREE, cache=cache_with_gangs(**minimums))
    for number in range(draw(st.integers(1, 9))):
        gang = draw(st.sampled_from(GANGS))
        priority = draw(st.sampled_from([0, 0, 3, 9]))
        fields = {"labels": {GANG_LABEL: gang}} if gang else {}
        node, cpu = draw(st.sampled_from([*nodes])).name, draw(st.sampled_from([500, 1000, 2000]))
        place(domain.cache, standing(f"s{number}", node, cpu=cpu, priority=priority, start=DAY_S + number, **fields))
    return domain, nodes


@given(clusters(), st.sampled_from([1000, 2000, 3000]))
@settings(deadline=None)
def test_victims_are_minimal_and_gangs_are_broken_only_if_necessary(drawn: tuple[Domain, list[Node]], cpu: int) -> None:
    domain, nodes = drawn
    pod = make_pod("p", cpu_milli=cpu, priority=9)
    before = sorted((entry.pod.uid, entry.node) for entry in domain.cache)
    result, plain = domain.schedule(pod), Plain(domain, pod)
    if isinstance(result, Placed):
        return
    assert isinstance(result, Unplaced)
    assert sorted((entry.pod.uid, entry.node) for entry in domain.cache) == before
    lower = {entry.pod.uid for entry in plain.entries}
    would_do = [
        (uids, node.name)
        for uids in subsets_of(lower)
        if plain.is_allowed(uids)
        for node in nodes
        if plain.fits(node.name, uids)
    ]
    if result.preemption is None:
        assert not would_do
        return
    gone, node = frozenset(victim.uid for victim in result.victims), result.nominated_node or ""
    assert (gone, node) in would_do
    assert not any(plain.is_allowed(some) and plain.fits(node, some) for some in subsets_of(gone) if some < gone)
    assert result.preemption.victims == {
        node: tuple(pod for pod in result.victims if plain_node(domain, pod) == node)
        for node in result.preemption.victims
    }
    assert not plain.is_breaking(gone) or all(plain.is_breaking(some) for some, _ in would_do)


def plain_node(domain: Domain, pod: Pod) -> str:
    entry = domain.cache.placed(pod.uid)
    assert entry is not None
    return entry.node


def test_gang_with_too_many_subsets_to_test_is_evicted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gang has five members, and can spare two: the two large ones would do, and so would no others."""
    pods = [
        member("g0", "a", cpu=1000, priority=4),
        member("g1", "a", cpu=500, priority=3),
        member("g2", "a", cpu=500, priority=2),
        member("g3", "a", cpu=1000, priority=1),
        member("g4", "a", cpu=500, priority=0),
        standing("equal", "a", cpu=500, priority=9),
    ]
    pod = make_pod("p", cpu_milli=2000, priority=9)
    assert victims(cluster({"a": 4}, pods, g=3), pod) == ("a", {"a": ["g0", "g3"]})
    monkeypatch.setattr(victim_units, "SUBSETS_MAX", 3)
    assert victims(cluster({"a": 4}, pods, g=3), pod) == ("a", {"a": ["g0", "g1", "g2", "g3", "g4"]})


def test_victims_of_another_preemption_are_no_surplus() -> None:
    """Six members, two of them beyond the minimum: what one preemptor takes the next one cannot take, too."""
    pods = [member(f"g{number}", "ab"[number % 2], start=DAY_S + number) for number in range(6)]
    domain, two = cluster({"a": 3, "b": 3}, pods, g=4), make_pod("p", cpu_milli=2000, priority=9)
    assert victims(domain, two) == ("b", {"b": ["g3", "g5"]})
    domain.removals.decide("another plan", [pod for pod in pods if pod.name in ("g3", "g5")])
    domain.nominator.nominate(make_pod("first", cpu_milli=2000, priority=9), "b")
    assert victims(domain, two) == ("a", {"a": ["g0", "g2", "g4"], "b": ["g1"]})
    domain.removals.release("another plan", pods)
    domain.nominator.remove("uid-first")
    assert victims(domain, two) == ("b", {"b": ["g3", "g5"]})


@pytest.mark.parametrize(
    ("gone", "is_spared"),
    [(["g0"], True), (["g0", "g1"], False), (["g0", "g1", "g2"], True), (["alone"], True)],
    ids=["the surplus", "more than that", "all of it", "no gang"],
)
def test_gang_is_spared_if_it_keeps_its_minimum_or_is_evicted_whole(gone: list[str], is_spared: bool) -> None:
    pods = [member(f"g{number}", "a") for number in range(3)] + [standing("alone", "a")]
    domain = cluster({"a": 4}, pods, g=2)
    chosen = [pod for pod in pods if pod.name in gone]
    assert victim_units.gangs_are_spared(chosen, domain.cache.gangs) is is_spared
