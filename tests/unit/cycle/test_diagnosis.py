"""The sentence a pod is told, word by word as kube-scheduler says it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st

from multisched.cycle.diagnosis import NO_NODES, Diagnosis, diagnose, fit_error, refused_node
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.objects import Pod
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain, FilterBy

FULL = Status.unschedulable("Insufficient cpu", "Insufficient memory").by("NodeResourcesFit")
TAINTED = Status.unresolvable("node(s) had untolerated taint(s)").by("TaintToleration")
PENDING = Status.pending("waits for a claim").by("Claims")


def test_reasons_are_counted_per_node_and_sorted() -> None:
    found = Diagnosis(15, counts=((TAINTED, 10), (FULL, 3), (Status.unschedulable("Insufficient cpu").by("Other"), 2)))
    assert fit_error(found) == (
        "0/15 nodes are available: 10 node(s) had untolerated taint(s), 3 Insufficient memory, 5 Insufficient cpu."
    )


def test_post_filter_message_is_last_and_pre_filter_message_is_alone() -> None:
    assert fit_error(Diagnosis(2, counts=((TAINTED, 2),)), "preemption: 0/2 nodes are available.") == (
        "0/2 nodes are available: 2 node(s) had untolerated taint(s). preemption: 0/2 nodes are available."
    )
    assert fit_error(Diagnosis(2, pre_filter=Status.unresolvable("a", "b"))) == "0/2 nodes are available: a, b."


def test_no_nodes_and_no_reasons() -> None:
    assert fit_error(Diagnosis(0)) == NO_NODES == "no nodes available to schedule pods"
    assert fit_error(Diagnosis(3)) == "0/3 nodes are available:"


def test_later_refused_nodes_are_added_with_their_rejectors() -> None:
    first = Diagnosis(3, counts=((TAINTED, 1),), rejectors=frozenset({"TaintToleration"}), nodes=(("a", TAINTED),))
    found = first.with_more([("b", FULL), ("c", PENDING)])
    assert fit_error(found) == (
        "0/3 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, 1 node(s) had untolerated taint(s), "
        "1 waits for a claim."
    )
    assert found.rejectors == {"TaintToleration", "NodeResourcesFit"}
    assert found.pending == {"Claims"}
    assert dict(found.nodes) == {"a": TAINTED, "b": FULL, "c": PENDING}


def test_refused_chosen_node_counts_as_one_of_one() -> None:
    assert fit_error(refused_node(FULL)) == "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory."
    assert refused_node(FULL).rejectors == {"NodeResourcesFit"}
    assert refused_node(PENDING).pending == {"Claims"}
    assert refused_node(Status(Code.UNSCHEDULABLE)).rejectors == frozenset()
    assert refused_node(Status.error("boom").by("Odd")).rejectors == frozenset()


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from((FULL, TAINTED, PENDING))), max_size=6))
def test_adding_verdicts_one_by_one_equals_adding_all(refused: list[tuple[str, Status]]) -> None:
    base = Diagnosis(9)
    at_once, by_one = base.with_more(refused), base
    for one in refused:
        by_one = by_one.with_more([one])
    assert fit_error(at_once) == fit_error(by_one)
    assert (at_once.rejectors, at_once.pending, at_once.nodes) == (
        by_one.rejectors,
        by_one.pending,
        by_one.nodes,
    )


NODES = ("a", "b", "c", "d")
CODES = {"Soft": Code.UNSCHEDULABLE, "Hard": Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "Waits": Code.PENDING}


class Narrows:
    """PreFilter: leaves these nodes, or refuses the pod with a status."""

    def __init__(self, name: str, result: PreFilterResult) -> None:
        self.name = name
        self._result = result

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        return self._result

    def sign(self, pod: Pod) -> Hashable:
        return ()


@given(
    st.fixed_dictionaries({name: st.dictionaries(st.sampled_from(NODES), st.sampled_from("xy")) for name in CODES}),
    st.dictionaries(st.sampled_from(range(len(NODES))), st.sampled_from((FULL, PENDING)), max_size=2),
    st.none() | st.sets(st.sampled_from(NODES), min_size=1),
)
def test_each_node_counts_for_its_first_rejector(
    refuses: dict[str, dict[str, str]], at_held: dict[int, Status], left: set[str] | None
) -> None:
    filters = [
        FilterBy(name, lambda pod, node, of=refuses[name]: of.get(node, ""), code=code)  # type: ignore[misc]
        for name, code in CODES.items()
    ]
    narrowing = [] if left is None else [Narrows("Narrow", PreFilterResult(SUCCESS, frozenset(left)))]
    domain = Domain(*(make_node(name) for name in NODES), plugins=[*narrowing, *filters], in_tree=())
    entry = domain.fresh_classes().find(make_pod("p"), 1)
    nodes = [domain.cache.nodes.node(row).name for row in entry.rows.tolist()]
    assert nodes == [name for name in NODES if left is None or name in left]
    held = {at: status for at, status in at_held.items() if at < len(nodes)}

    expected: dict[str, Status] = {}
    for at, node in enumerate(nodes):
        said = [Status(code, name, (refuses[name][node],)) for name, code in CODES.items() if node in refuses[name]]
        if at in held or said:
            expected[node] = held[at] if at in held else said[0]
    counts = Counter(expected.values())
    rejectors = {status.plugin for status in expected.values() if status.code is not Code.PENDING}
    if left is not None:
        rejectors.add("Narrow")
        outside = Status.unresolvable("node(s) didn't satisfy plugin(s) [Narrow]")
        counts.update({outside: len(NODES) - len(nodes)} if len(nodes) < len(NODES) else {})

    found = diagnose(entry, domain.cache.nodes, blocked=held, with_names=True, with_verdicts=True)
    assert (found.node_count, found.pre_filter, found.blocked) == (len(NODES), None, held)
    assert Counter(dict(found.counts)) == counts
    assert len(found.counts) == len(counts)
    assert found.rejectors == rejectors
    assert found.pending == {status.plugin for status in expected.values() if status.code is Code.PENDING}
    assert sorted(found.nodes) == sorted(expected.items())
    assert found.verdicts is not None
    told = [found.verdicts.statuses[at] if at >= 0 else None for at in found.verdicts.which.tolist()]
    assert found.verdicts.rows.tolist() == entry.rows.tolist()
    assert told == [expected.get(node) for node in nodes]

    plain = diagnose(entry, domain.cache.nodes, blocked=held)
    assert (list(plain.nodes), plain.verdicts) == ([], None)
    assert (plain.counts, plain.rejectors, plain.pending) == (found.counts, found.rejectors, found.pending)


def test_pre_filter_refusal_counts_for_its_plugin() -> None:
    def found(*plugins: Narrows) -> Diagnosis:
        domain = Domain(*(make_node(name) for name in NODES), plugins=plugins, in_tree=())
        entry = domain.fresh_classes().find(make_pod("p"), 1)
        return diagnose(entry, domain.cache.nodes, blocked={})

    on_a, on_b = (PreFilterResult(SUCCESS, frozenset({name})) for name in "ab")
    nowhere = found(Narrows("First", on_a), Narrows("Second", on_b))
    assert nowhere.rejectors == {"First", "Second"}
    assert (nowhere.node_count, nowhere.pending, nowhere.counts) == (4, frozenset(), ())
    assert nowhere.pre_filter is not None
    refused = found(Narrows("First", on_a), Narrows("No", PreFilterResult(Status.unresolvable("not today"))))
    assert refused.rejectors == {"First", "No"}
    assert refused.pre_filter == Status.unresolvable("not today").by("No")
    waits = found(Narrows("Waits", PreFilterResult(Status.pending("soon"))))
    assert waits.rejectors == frozenset()
    assert waits.pending == {"Waits"}
