"""Pod affinity and spread constraints: what is read of them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from multisched.model.objects import Pod
from multisched.model.placement import (
    DemandKind,
    PodAffinity,
    PodAffinityTerm,
    PodDemand,
    SpreadConstraint,
    WeightedPodTerm,
    demands_of,
)
from multisched.model.selectors import LabelSelector, Operator, Requirement
from tests.unit.model.documents import decode_pod, pod_document

REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
WEB = {"matchLabels": {"app": "web"}}
IS_WEB = LabelSelector((Requirement("app", Operator.IN, ("web",)),))


def with_affinity(**affinity: Any) -> Pod:
    return decode_pod(pod_document(affinity=affinity))


def with_spread(**changes: Any) -> Pod:
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": WEB}
    return decode_pod(pod_document(topologySpreadConstraints=[{**constraint, **changes}]))


def test_terms_of_both_sides_are_compiled_into_one_affinity() -> None:
    term = {"topologyKey": "zone", "labelSelector": WEB, "namespaces": ["a"], "namespaceSelector": {}}
    far = {"topologyKey": "host", "labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}
    pod = with_affinity(
        podAffinity={REQUIRED: [term]},
        podAntiAffinity={PREFERRED: [{"weight": 7, "podAffinityTerm": far}]},
    )

    exists = LabelSelector((Requirement("app", Operator.EXISTS),))
    assert pod.malformed == ""
    assert pod.spec.pod_affinity == PodAffinity(
        required=(PodAffinityTerm("zone", IS_WEB, frozenset({"a"}), LabelSelector()),),
        anti_preferred=(WeightedPodTerm(7, PodAffinityTerm("host", exists)),),
    )


def test_a_missing_selector_is_not_an_empty_one() -> None:
    pod = with_affinity(podAffinity={REQUIRED: [{"topologyKey": "a"}, {"topologyKey": "b", "labelSelector": {}}]})
    assert pod.spec.pod_affinity is not None
    assert [term.selector for term in pod.spec.pod_affinity.required] == [None, LabelSelector()]


def test_a_pod_without_terms_has_no_affinity() -> None:
    assert with_affinity(podAffinity={}, podAntiAffinity={REQUIRED: []}).spec.pod_affinity is None


def test_a_constraint_gets_upstreams_defaults() -> None:
    assert with_spread().spec.spread == (
        SpreadConstraint(
            max_skew=1,
            topology_key="zone",
            is_hard=True,
            selector=IS_WEB,
            min_domains=1,
            honors_affinity=True,
            honors_taints=False,
        ),
    )


def test_constraint_with_all_fields_is_decoded() -> None:
    pod = with_spread(
        maxSkew=3,
        minDomains=4,
        whenUnsatisfiable="ScheduleAnyway",
        nodeAffinityPolicy="Ignore",
        nodeTaintsPolicy="Honor",
        matchLabelKeys=["pod-template-hash"],
    )
    assert pod.spec.spread == (
        SpreadConstraint(
            max_skew=3,
            topology_key="zone",
            is_hard=False,
            selector=IS_WEB,
            min_domains=4,
            honors_affinity=False,
            honors_taints=True,
            match_label_keys=("pod-template-hash",),
        ),
    )


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"maxSkew": 0}, "spec.topologySpreadConstraints[0].maxSkew"),
        ({"minDomains": 0}, "spec.topologySpreadConstraints[0].minDomains"),
        ({"whenUnsatisfiable": "Perhaps"}, "spec.topologySpreadConstraints[0].whenUnsatisfiable"),
        (
            {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}},
            "spec.topologySpreadConstraints[0].labelSelector",
        ),
        ({"matchLabelKeys": [str(n) for n in range(300)]}, "spec.topologySpreadConstraints[0].matchLabelKeys"),
    ],
)
def test_unusable_constraint_names_its_field(changes: dict[str, Any], path: str) -> None:
    assert with_spread(**changes).malformed.startswith(path)


@pytest.mark.parametrize(
    ("affinity", "path"),
    [
        ({REQUIRED: [{"labelSelector": {"matchLabels": {"a b": "c"}}}]}, "[0].labelSelector"),
        ({REQUIRED: [{"namespaceSelector": {"matchExpressions": [{"operator": "In"}]}}]}, "[0].namespaceSelector"),
        ({REQUIRED: [{"namespaces": [str(n) for n in range(300)]}]}, "[0].namespaces"),
        ({PREFERRED: [{"weight": 101}]}, "[0].weight"),
    ],
)
def test_unusable_term_names_its_field(affinity: dict[str, Any], path: str) -> None:
    found = with_affinity(podAntiAffinity=affinity).malformed
    assert found.startswith(f"spec.affinity.podAntiAffinity.{next(iter(affinity))}{path}")


def test_too_many_terms_are_refused() -> None:
    assert "more than the 64" in with_affinity(podAffinity={REQUIRED: [{"topologyKey": "a"}] * 65}).malformed


def test_term_without_namespaces_selects_the_namespace_of_the_pod() -> None:
    near = PodAffinityTerm("zone", IS_WEB)
    named = PodAffinityTerm("zone", IS_WEB, frozenset({"a"}))
    selected = PodAffinityTerm("zone", IS_WEB, namespace_selector=LabelSelector())
    assert near.named_namespaces("own") == {"own"}
    assert named.named_namespaces("own") == {"a"}
    assert selected.named_namespaces("own") == frozenset()


def test_demands_match_later_pods_by_namespace_or_its_labels() -> None:
    of_team = LabelSelector((Requirement("team", Operator.IN, ("x",)),))
    affinity = PodAffinity(
        anti_required=(PodAffinityTerm("host", IS_WEB, namespace_selector=of_team),),
        preferred=(
            WeightedPodTerm(5, PodAffinityTerm("zone", None)),
            WeightedPodTerm(6, PodAffinityTerm("zone", IS_WEB)),
        ),
    )
    anti, preferred = demands_of(affinity, "own")

    assert anti == PodDemand(DemandKind.ANTI_REQUIRED, "host", IS_WEB, frozenset(), of_team)
    assert preferred == PodDemand(DemandKind.PREFERRED, "zone", IS_WEB, frozenset({"own"}), None, 6)
    assert anti.matches("any", {"app": "web"}, {"team": "x"})
    assert not anti.matches("own", {"app": "web"}, {})
    assert preferred.matches("own", {"app": "web"}, {})
    assert not preferred.matches("own", {"app": "db"}, {})
