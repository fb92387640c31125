"""The sentence a pod is told, word by word as kube-scheduler says it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multisched.cycle.diagnosis import NO_NODES, Diagnosis, fit_error, refused_node
from multisched.framework.status import Code, Status

FULL = Status.unschedulable("Insufficient cpu", "Insufficient memory").by("NodeResourcesFit")
TAINTED = Status.unresolvable("node(s) had untolerated taint(s)").by("TaintToleration")
PENDING = Status.pending("waits for a claim").by("Claims")


def test_reasons_are_counted_by_node_and_sorted_as_texts() -> None:
    found = Diagnosis(15, counts=((TAINTED, 10), (FULL, 3), (Status.unschedulable("Insufficient cpu").by("Other"), 2)))
    assert fit_error(found) == (
        "0/15 nodes are available: 10 node(s) had untolerated taint(s), 3 Insufficient memory, 5 Insufficient cpu."
    )


def test_post_filter_comes_last_and_pre_filter_stands_alone() -> None:
    assert fit_error(Diagnosis(2, counts=((TAINTED, 2),)), "preemption: 0/2 nodes are available.") == (
        "0/2 nodes are available: 2 node(s) had untolerated taint(s). preemption: 0/2 nodes are available."
    )
    assert fit_error(Diagnosis(2, pre_filter=Status.unresolvable("a", "b"))) == "0/2 nodes are available: a, b."


def test_no_nodes_and_no_reasons() -> None:
    assert fit_error(Diagnosis(0)) == NO_NODES == "no nodes available to schedule pods"
    assert fit_error(Diagnosis(3)) == "0/3 nodes are available:"


def test_nodes_refused_later_are_added_with_those_who_refused_them() -> None:
    first = Diagnosis(3, counts=((TAINTED, 1),), rejectors=frozenset({"TaintToleration"}), nodes=(("a", TAINTED),))
    found = first.with_more([("b", FULL), ("c", PENDING)])
    assert fit_error(found) == (
        "0/3 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, 1 node(s) had untolerated taint(s), "
        "1 waits for a claim."
    )
    assert found.rejectors == {"TaintToleration", "NodeResourcesFit"}
    assert found.pending == {"Claims"}
    assert dict(found.nodes) == {"a": TAINTED, "b": FULL, "c": PENDING}


def test_a_node_refused_after_it_was_chosen_is_one_of_one() -> None:
    assert fit_error(refused_node(FULL)) == "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory."
    assert refused_node(FULL).rejectors == {"NodeResourcesFit"}
    assert refused_node(PENDING).pending == {"Claims"}
    assert refused_node(Status(Code.UNSCHEDULABLE)).rejectors == frozenset()
    assert refused_node(Status.error("boom").by("Odd")).rejectors == frozenset()


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from((FULL, TAINTED, PENDING))), max_size=6))
def test_adding_one_by_one_is_adding_all(refused: list[tuple[str, Status]]) -> None:
    base = Diagnosis(9)
    at_once, by_one = base.with_more(refused), base
    for one in refused:
        by_one = by_one.with_more([one])
    assert fit_error(at_once) == fit_error(by_one)
    assert (at_once.rejectors, at_once.pending, at_once.nodes) == (by_one.rejectors, by_one.pending, by_one.nodes)
