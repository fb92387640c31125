"""Which pods are of one class: those that every plugin signs alike, and no others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from typing import Any

import pytest
from msgspec.structs import replace

from multisched.cycle.classes.cache import CLASS_BYTES_MAX
from multisched.cycle.classes.signatures import SPECS_BYTES_MAX, Signatures
from multisched.cycle.results import Placed, Unplaced
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.runner import Runner
from multisched.framework.status import SUCCESS, Status
from multisched.framework.traits import Traits
from multisched.model.objects import Owner, Pod, PodSpec, are_alike
from multisched.model.placement import PodAffinity, PodAffinityTerm, SpreadConstraint, WeightedPodTerm
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.shell.observer import SilentObserver
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain, FilterBy

SPEC = PodSpec()


@pytest.mark.parametrize(
    "read",
    [
        lambda pod: pod.name,
        lambda pod: pod.labels.get("a", ""),
        lambda pod: pod.annotations.get("a", ""),
        lambda pod: pod.owner.name if pod.owner else "",
    ],
    ids=["name", "labels", "annotations", "owner"],
)
def test_every_signed_field_separates_classes(read: Callable[[Pod], str]) -> None:
    """Found by review: fragments were remembered by spec, labels and owner, so that a name made no difference."""
    only = FilterBy("Only", lambda pod, node: "" if read(pod) == "yes" else "not this one", sign=read)
    domain = Domain(make_node("n"), plugins=[only], in_tree=())
    yes, no = (
        make_pod(
            text,
            spec=SPEC,
            uid=f"uid-{text}",
            labels={"a": text},
            annotations={"a": text},
            owner=Owner("Job", text, text),
        )
        for text in ("yes", "no")
    )
    assert isinstance(domain.schedule(yes), Placed)
    assert isinstance(domain.schedule(no), Unplaced)


def test_pods_with_equal_signatures_share_a_class() -> None:
    domain = Domain(make_node("n"), in_tree=("NodeResourcesFit",))
    classes = domain.cycle.classes
    domain.schedule(make_pod("a", spec=SPEC, labels={"job": "1"}))
    domain.schedule(make_pod("b", spec=SPEC, labels={"job": "2"}, owner=Owner("Job", "2", "2")))
    assert (classes.hits, classes.misses) == (1, 1)
    domain.schedule(make_pod("c", spec=PodSpec(priority=1)))
    domain.schedule(make_pod("d", spec=SPEC, namespace="other"))
    domain.schedule(make_pod("e", spec=PodSpec()))
    assert (classes.hits, classes.misses) == (2, 3)


def test_unsigned_pod_gets_a_separate_class_and_is_counted() -> None:
    cannot_sign = FilterBy("CannotSign", lambda pod, node: "no b" if pod.name == "b" else "", sign=lambda pod: None)
    domain = Domain(make_node("n"), plugins=[cannot_sign], in_tree=())
    assert isinstance(domain.schedule(make_pod("a", spec=SPEC)), Placed)
    assert isinstance(domain.schedule(make_pod("b", spec=SPEC)), Unplaced)
    assert domain.cycle.classes.unsigned == {"CannotSign": 2}
    assert domain.cycle.classes.hits == 0


@pytest.mark.parametrize("signs", [True, False])
def test_pre_filter_result_is_cached_only_if_its_input_is_signed(signs: bool) -> None:
    class Team:
        name = "Team"
        depends_on = Dependency.NODE

        def __init__(self) -> None:
            self.asked = 0
            if signs:
                self.sign = self._sign

        def _sign(self, pod: Pod) -> Hashable:
            return pod.labels["team"]

        def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
            self.asked += 1
            return PreFilterResult(SUCCESS if pod.labels["team"] == "blue" else Status.unschedulable("blue only"))

    team = Team()
    domain = Domain(make_node("n"), plugins=[team])
    red, blue = ({"team": colour} for colour in ("red", "blue"))
    assert isinstance(domain.schedule(make_pod("a", spec=SPEC, labels=red)), Unplaced)
    assert isinstance(domain.schedule(make_pod("b", spec=SPEC, labels=blue)), Placed)
    assert isinstance(domain.schedule(make_pod("c", spec=SPEC, labels=red)), Unplaced)
    assert isinstance(domain.schedule(make_pod("d", spec=SPEC, labels=blue)), Placed)
    assert team.asked == 2 if signs else team.asked >= 4


TERM = PodAffinityTerm("zone", LabelSelector((Requirement("role", Operator.IN, ("leader",)),)))
OWN_TERMS = {
    "affinity": PodSpec(pod_affinity=PodAffinity(required=(TERM,))),
    "anti-affinity": PodSpec(pod_affinity=PodAffinity(anti_required=(TERM,))),
    "preferred affinity": PodSpec(pod_affinity=PodAffinity(preferred=(WeightedPodTerm(1, TERM),))),
    "preferred anti-affinity": PodSpec(pod_affinity=PodAffinity(anti_preferred=(WeightedPodTerm(1, TERM),))),
    "hard spread": PodSpec(spread=(SpreadConstraint(1, "zone", is_hard=True, selector=TERM.selector),)),
    "soft spread": PodSpec(spread=(SpreadConstraint(1, "zone", is_hard=False, selector=TERM.selector),)),
}


@pytest.mark.parametrize("kind", OWN_TERMS)
def test_self_matching_terms_are_part_of_the_signature(kind: str) -> None:
    """Found by review: leaders and followers of one spec were one class until a leader was placed."""
    domain = Domain(make_node("n", labels={"zone": "z"}), profile="default")
    classes, spec = domain.cycle.classes, OWN_TERMS[kind]
    leader, other, follower = (
        make_pod(name, spec=spec, labels={"role": role, "name": name})
        for name, role in (("a", "leader"), ("b", "leader"), ("c", "follower"))
    )
    for _ in range(2):
        assert classes.signature(leader) == classes.signature(other) != classes.signature(follower)
        domain.cache.place(make_pod("d", spec=spec, labels={"role": "leader"}, node="n"))
    domain.cache.remove("uid-d")
    assert classes.signature(leader) == classes.signature(other) != classes.signature(follower)


@pytest.mark.parametrize(("kind", "relates"), [("anti-affinity", True), ("hard spread", True), ("soft spread", False)])
def test_pod_with_required_affinity_is_signed_with_it(kind: str, relates: bool) -> None:
    """News of others concern it until its bind is sent."""
    domain = Domain(make_node("n", labels={"zone": "z"}), profile="default")
    placed = domain.schedule(make_pod("a", spec=OWN_TERMS[kind], labels={"role": "leader"}))
    assert isinstance(placed, Placed)
    assert placed.relates is relates


def test_signed_specs_of_deleted_pods_are_limited() -> None:
    """A spec may be a megabyte of terms, and a tenant makes and deletes such pods one after the other."""
    domain = Domain(make_node("n"), in_tree=("NodeResourcesFit", "PodTopologySpread", "InterPodAffinity"))
    selector = LabelSelector((Requirement("app", Operator.EXISTS),))
    specs = []
    for number in range(400):
        term = PodAffinityTerm("zone", LabelSelector((Requirement(f"k{number}", Operator.EXISTS),)))
        spread = SpreadConstraint(number + 1, "zone", is_hard=False, selector=selector)
        spec = PodSpec(pod_affinity=PodAffinity(required=(term,)), spread=(spread,), size_bytes=1 << 20)
        domain.cycle.classes.find(make_pod(f"p{number}", spec=spec), number)
        specs.append(spec)
    held = sum(sys.getrefcount(spec) > 3 for spec in specs)
    most = CLASS_BYTES_MAX + 2 * 2 * SPECS_BYTES_MAX
    assert 0 < held <= most >> 20


def test_unsigned_pods_are_counted_per_plugin_and_cached_classes_as_hits() -> None:
    odd = FilterBy("Odd", lambda pod, node: "", sign=lambda pod: None if pod.name.startswith("odd") else ())
    domain = Domain(make_node("a"), plugins=[odd])
    for name in ("odd-1", "odd-2", "odd-3", "fine-1", "fine-2", "fine-3"):
        domain.schedule(make_pod(name))
    classes = domain.cycle.classes
    assert (classes.unsigned["Odd"], classes.hits, classes.misses) == (3, 2, 4)


class Signer:
    """Signs a label of a pod, and counts its calls."""

    def __init__(self, name: str, *, signs_alike: bool) -> None:
        self.name = name
        self.traits = Traits(signs_alike=signs_alike)
        self.signed: list[str] = []

    def sign(self, pod: Pod) -> Hashable:
        self.signed.append(pod.name)
        return pod.labels.get("a")

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("difference", "is_signed", "is_same"),
    [
        ({}, False, True),
        ({"labels": {"a": "yes"}}, True, True),
        ({"labels": {"a": "no"}}, True, False),
        ({"owner": Owner("Job", "j", "j")}, True, True),
        ({"namespace": "other"}, True, False),
        ({"spec": PodSpec(priority=1)}, True, False),
    ],
    ids=str,
)
def test_pods_that_are_alike_are_signed_once_by_plugins_with_the_trait(
    difference: dict[str, Any], is_signed: bool, is_same: bool
) -> None:
    every, once = Signer("Every", signs_alike=False), Signer("Once", signs_alike=True)
    signatures = Signatures([every, once], Runner(SilentObserver(), lambda: 0.0))
    known = make_pod("known", spec=SPEC, labels={"a": "yes"})
    pod = replace(known, name="next", uid="next", **difference)
    signature = signatures.of(known)
    assert signature is not None
    assert signatures.is_of(signature, pod, is_alike=are_alike(pod, known)) is is_same
    assert (every.signed, once.signed) == (["known", "next"], ["known", "next"] if is_signed else ["known"])


def test_pods_with_affinity_terms_are_signed_one_by_one() -> None:
    once = Signer("Once", signs_alike=True)
    signatures = Signatures([once], Runner(SilentObserver(), lambda: 0.0))
    known = make_pod("known", spec=PodSpec(pod_affinity=PodAffinity()), labels={"a": "yes"})
    signature = signatures.of(known)
    assert signature is not None
    assert signatures.is_of(signature, replace(known, name="next"), is_alike=True)
    assert once.signed == ["known", "next"]
