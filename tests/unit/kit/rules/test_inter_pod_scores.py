"""What the simulation says that nodes score by the pods there: sums by hand, from the documentation of each plugin."""

from __future__ import annotations

import pytest

from multisched.model.objects import Node, Pod, PodSpec
from multisched.model.placement import PodAffinity, PodAffinityTerm, SpreadConstraint, WeightedPodTerm
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.testing.builders import HOSTNAME, make_node, make_pod
from tests.kit.rules.inter_pod_scores import by_affinity, by_spread

ZONE = "zone"
A, B, C = (make_node(name, labels={ZONE: zone}) for name, zone in (("a", "x"), ("b", "x"), ("c", "y")))
NODES = [A, B, C]
WEB = LabelSelector((Requirement("app", Operator.IN, ("web",)),))


def pod(name: str, app: str = "web", *, spec: PodSpec | None = None, namespace: str = "default") -> Pod:
    return make_pod(name, namespace=namespace, spec=spec, labels={"app": app})


def liking(key: str, weight: int) -> PodSpec:
    return PodSpec(pod_affinity=PodAffinity(preferred=(WeightedPodTerm(weight, PodAffinityTerm(key, WEB)),)))


def averse(key: str, weight: int) -> PodSpec:
    return PodSpec(pod_affinity=PodAffinity(anti_preferred=(WeightedPodTerm(weight, PodAffinityTerm(key, WEB)),)))


@pytest.mark.parametrize(
    ("wanted", "standing", "scores"),
    [
        (pod("p"), [(pod("q"), A)], [0, 0, 0]),
        (pod("p", spec=liking(HOSTNAME, 10)), [(pod("q"), A)], [100, 0, 0]),
        (pod("p", spec=liking(ZONE, 10)), [(pod("q"), A)], [100, 100, 0]),
        (pod("p", spec=liking(ZONE, 10)), [(pod("q"), A), (pod("r"), C), (pod("s"), C)], [0, 0, 100]),
        (pod("p", spec=averse(HOSTNAME, 10)), [(pod("q"), A)], [0, 100, 100]),
        (pod("p", spec=liking(ZONE, 10)), [(pod("q", "other"), A)], [0, 0, 0]),
        (pod("p", spec=liking(ZONE, 10)), [(pod("q", namespace="team"), A)], [0, 0, 0]),
        # The first draws it to its host by 2, the second to its zone by 1: 3, 1 and 0.
        (pod("p"), [(pod("q", spec=liking(HOSTNAME, 2)), A), (pod("r", spec=liking(ZONE, 1)), A)], [100, 33, 0]),
        (pod("p"), [(pod("q", spec=averse(HOSTNAME, 2)), B)], [100, 0, 100]),
    ],
)
def test_nodes_score_by_whom_either_would_rather_be_with(
    wanted: Pod, standing: list[tuple[Pod, Node]], scores: list[int]
) -> None:
    assert by_affinity(wanted, NODES, standing) == scores


def test_a_required_affinity_of_a_pod_that_stands_weighs_one() -> None:
    spec = PodSpec(pod_affinity=PodAffinity(required=(PodAffinityTerm(ZONE, WEB),)))
    assert by_affinity(pod("p"), NODES, [(pod("q", spec=spec), C)]) == [0, 0, 100]


def level(key: str, skew: int = 1, *, is_hard: bool = False) -> PodSpec:
    return PodSpec(spread=(SpreadConstraint(skew, key, is_hard, WEB),))


def test_the_fuller_a_domain_the_less_it_scores() -> None:
    standing = [(pod("q"), A), (pod("r"), B), (pod("s"), C)]
    # Two zones weigh ln 4: 2 * 1.386 = 2.77 -> 3, and 1.386 -> 1. 100 * (3 + 1 - 3) // 3 and 100 * (3 + 1 - 1) // 3.
    assert by_spread(pod("p", spec=level(ZONE)), NODES, NODES, standing) == [33, 33, 100]
    # Three hosts weigh ln 5: 1.609 -> 2 each, and one more of maxSkew - 1.
    assert by_spread(pod("p", spec=level(HOSTNAME, 2)), NODES, NODES, standing) == [100, 100, 100]
    assert by_spread(pod("p", spec=level(HOSTNAME)), NODES, NODES, standing[:1]) == [0, 100, 100]


def test_nobody_there_is_as_good_everywhere() -> None:
    assert by_spread(pod("p", spec=level(ZONE)), NODES, NODES, []) == [100, 100, 100]


def test_a_node_without_the_key_scores_nothing_and_is_no_domain() -> None:
    bare = make_node("d")
    assert by_spread(pod("p", spec=level(ZONE)), [A, bare], [A, bare], [(pod("q"), bare)]) == [100, 0]
    assert by_spread(pod("p", spec=level(ZONE)), [bare], [bare], []) == [0]


def test_pods_count_that_stand_where_the_pod_might_be_and_are_of_its_namespace() -> None:
    standing = [(pod("q"), C), (pod("r", namespace="team"), A), (pod("s", "other"), A)]
    assert by_spread(pod("p", spec=level(ZONE)), NODES, [A, B], standing) == [100, 100, 100]
    assert by_spread(pod("p", spec=level(ZONE)), NODES, NODES, standing) == [100, 100, 0]


@pytest.mark.parametrize("spec", [PodSpec(), level(ZONE, is_hard=True)])
def test_of_pods_without_soft_constraints_nothing_is_said(spec: PodSpec) -> None:
    assert by_spread(pod("p", spec=spec), NODES, NODES, []) is None
