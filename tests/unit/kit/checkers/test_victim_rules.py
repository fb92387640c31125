"""Violations of preemptions: only what holds in every order of equal pods."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from multisched.model.cluster_objects import PodDisruptionBudget
from multisched.model.objects import Node, Pod, PodSpec
from multisched.model.selectors import LabelSelector, Operator, Requirement, Taint, Toleration
from multisched.testing.builders import make_node, make_pod
from tests.kit.checkers.reference_rules import PodOnNode
from tests.kit.checkers.victim_rules import (
    fault_of_units,
    fault_of_victims,
    fits_within_budgets,
    is_plain,
    surely_spared,
    surely_violated_budget,
)

URGENT = 100


def budget(
    app: str, allowed: int, *, namespace: str = "default", disrupted: tuple[str, ...] = ()
) -> PodDisruptionBudget:
    selector = LabelSelector((Requirement("app", Operator.IN, (app,)),))
    return PodDisruptionBudget(
        name=app,
        namespace=namespace,
        selector=selector,
        disruptions_allowed=allowed,
        disrupted_pods=frozenset(disrupted),
    )


def pod(name: str, app: str = "free", cpu_milli: int = 1000, priority: int = 0) -> Pod:
    return make_pod(name, cpu_milli=cpu_milli, priority=priority, labels={"app": app})


def node(name: str, *, is_cordoned: bool = False, taints: tuple[Taint, ...] = ()) -> Node:
    return make_node(name, cpu_milli=2000, is_unschedulable=is_cordoned, taints=taints)


@pytest.mark.parametrize(
    ("allowed", "apps", "broken"),
    [
        (0, ["free", "free"], ""),
        (0, ["free", "kept"], "kept"),
        (1, ["kept"], ""),
        (1, ["kept", "kept"], "kept"),
        (2, ["kept", "kept"], ""),
    ],
)
def test_budget_is_violated_if_too_many_of_its_pods_are_evicted(allowed: int, apps: list[str], broken: str) -> None:
    victims = [pod(str(number), app) for number, app in enumerate(apps)]

    assert surely_violated_budget([budget("kept", allowed)], victims) == broken


def test_budget_ignores_other_namespaces_and_already_disrupted_pods() -> None:
    victims = [pod("a", "kept")]

    assert surely_violated_budget([budget("kept", 0, namespace="other")], victims) == ""
    assert surely_violated_budget([budget("kept", 0, disrupted=("a",))], victims) == ""


def test_exhausted_budget_may_spare_each_of_its_pods() -> None:
    kept = [pod(name, "kept") for name in ("a", "b")]
    lower = [*kept, pod("c")]

    assert surely_spared([budget("kept", 1)], lower) == kept
    assert surely_spared([budget("kept", 2)], lower) == []


@pytest.mark.parametrize(
    ("apps", "does"),
    [
        ([], False),
        (["kept", "kept"], False),
        (["kept", "free"], True),
        (["free", "free"], True),
    ],
)
def test_node_is_a_candidate_if_enough_pods_can_be_evicted(apps: list[str], does: bool) -> None:
    here = node("n")
    placed: list[PodOnNode] = [(pod(str(number), app), here) for number, app in enumerate(apps)]
    urgent = pod("urgent", cpu_milli=1000, priority=URGENT)

    assert fits_within_budgets(urgent, here, [budget("kept", 0)], [here], placed, lambda node: True) is does


def test_resources_reserved_for_a_pod_of_equal_priority_are_not_free() -> None:
    here = node("n")
    placed: list[PodOnNode] = [(pod("low"), here), (pod("first", cpu_milli=1500, priority=URGENT), here)]

    assert not fits_within_budgets(pod("second", priority=URGENT), here, [], [here], placed, lambda node: True)


def test_lower_priority_pod_with_an_earlier_reservation_is_no_victim() -> None:
    here, urgent = node("n"), pod("urgent", priority=URGENT)
    kept = replace(pod("kept", "kept"), started_s=1.0)
    placed: list[PodOnNode] = [(kept, here)]
    promised: list[PodOnNode] = [(pod("entitled"), here)]

    assert not fits_within_budgets(urgent, here, [budget("kept", 0)], [here], placed, lambda node: True, promised)
    assert fault_of_victims(urgent, here, [kept], [here], placed, lambda node: True, [], promised) == ""


def test_cordoned_or_foreign_node_is_no_candidate() -> None:
    here, shut = node("n"), node("shut", is_cordoned=True)
    placed: list[PodOnNode] = [(pod("low"), here), (pod("other"), shut)]
    urgent = pod("urgent", cpu_milli=2000, priority=URGENT)

    assert fits_within_budgets(urgent, here, [], [here, shut], placed, lambda node: True)
    assert not fits_within_budgets(urgent, here, [], [here, shut], placed, lambda node: False)
    assert not fits_within_budgets(urgent, shut, [], [here, shut], placed, lambda node: True)


def test_node_is_a_candidate_if_all_hard_taints_are_tolerated() -> None:
    preferred, hard = Taint("slow", "", "PreferNoSchedule"), Taint("upkeep", "", "NoSchedule")
    urgent = pod("urgent", cpu_milli=2000, priority=URGENT)
    tolerant = replace(urgent, spec=replace(urgent.spec, tolerations=(Toleration(key="upkeep", operator="Exists"),)))

    def does(apps: Pod, *taints: Taint) -> bool:
        here = node("n", taints=taints)
        return fits_within_budgets(apps, here, [], [here], [(pod("low"), here)], lambda node: True)

    assert does(urgent, preferred)
    assert not does(urgent, preferred, hard)
    assert does(tolerant, preferred, hard)


def test_pod_with_other_constraints_than_resources_is_not_judged() -> None:
    assert is_plain(pod("plain"))
    assert not is_plain(Pod("default", "x", "u", 1, PodSpec(), {}, annotations={"multisched.io/gpu-milli": "500"}))


@pytest.mark.parametrize(
    ("victims", "fault"),
    [
        (["a"], ""),
        (["a", "b"], "default/a might as well stay"),
        (["b", "a"], "default/b might as well stay"),
        ([], "it does not fit"),
    ],
)
def test_number_of_victims_is_minimal(victims: list[str], fault: str) -> None:
    there, lower = node("n"), {name: pod(name) for name in ("a", "b")}
    pods_on_nodes: list[PodOnNode] = [(one, there) for one in lower.values()]
    going = [lower[name] for name in victims]

    found = fault_of_victims(pod("urgent", priority=URGENT), there, going, [there], pods_on_nodes, lambda node: True)

    assert found.startswith(fault)
    assert bool(found) == bool(fault)


@pytest.mark.parametrize(
    ("victim", "staying", "is_fault"),
    [
        (pod("old"), pod("young"), False),
        (replace(pod("old"), started_s=1.0), replace(pod("young"), started_s=2.0), True),
        (replace(pod("old"), started_s=1.0), pod("not begun"), True),
        (replace(pod("young"), started_s=2.0), replace(pod("old"), started_s=1.0), False),
        (pod("more urgent", priority=1), replace(pod("old"), started_s=1.0), True),
        (replace(pod("old"), started_s=1.0), replace(pod("small", cpu_milli=900), started_s=2.0), False),
        (replace(pod("old"), started_s=1.0), replace(pod("guarded", "kept"), started_s=2.0), False),
        (replace(pod("guarded", "kept"), started_s=1.0), replace(pod("young"), started_s=2.0), False),
    ],
)
def test_more_important_of_two_equal_pods_is_spared(victim: Pod, staying: Pod, is_fault: bool) -> None:
    there = node("n")
    pods_on_nodes: list[PodOnNode] = [(victim, there), (staying, there)]
    preemptor = pod("urgent", priority=URGENT)
    found = fault_of_victims(preemptor, there, [victim], [there], pods_on_nodes, lambda node: True, [budget("kept", 0)])
    assert found == (f"{victim.key} goes, and {staying.key}, which is less important, stays" if is_fault else "")


@pytest.mark.parametrize(
    ("units", "fault"),
    [
        (["ab"], ""),
        (["a", "b"], ""),
        (["a"], "default/one and its like do not fit when ['default/a'] are gone"),
        (["ab", "c"], "['default/c'] might as well stay"),
        (["abc"], ""),
        (["a", "bc"], ""),
    ],
)
def test_each_unit_of_victims_of_several_preemptors_is_needed(units: list[str], fault: str) -> None:
    nodes = {name: node(name) for name in ("m", "n")}
    places = {"a": "m", "b": "n", "c": "n"}
    lower = {name: pod(name, cpu_milli=500 if name == "c" else 1000) for name in places}
    pods_on_nodes: list[PodOnNode] = [(lower[name], nodes[there]) for name, there in places.items()]
    preemptors = [(pod("one", cpu_milli=2000, priority=URGENT), nodes["m"]), (pod("two", priority=URGENT), nodes["n"])]
    going = [[lower[name] for name in unit] for unit in units]

    assert fault_of_units(preemptors, going, nodes.values(), pods_on_nodes, lambda node: True) == fault


def test_preemptors_must_fit_together() -> None:
    there = node("n")
    preemptors = [(pod("one", priority=URGENT), there), (pod("two", cpu_milli=1500, priority=URGENT), there)]
    found = fault_of_units(preemptors, [[pod("a")]], [there], [(pod("a"), there)], lambda node: True)
    assert found == "default/one and its like do not fit when ['default/a'] are gone"
