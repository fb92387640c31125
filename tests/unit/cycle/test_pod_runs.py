"""Runs of identical pods: what is decided together is what one-by-one decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.cycle.attempt_record import Outcome
from multisched.cycle.pod_run import RUN_MAX, SINGLES_MAX, Pace, count_right, draw
from multisched.cycle.scheduling_cycle import Placed, Result, Unplaced
from multisched.framework.node_view import Rows, Scores
from multisched.framework.plugin import CycleView, Dependency, PermitResult, Plugin, QueuedPod
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import CPU, Node, Pod, PodSpec
from multisched.model.selectors import Taint
from tests.unit.cycle.cycle_kit import (
    IN_TREE_USED,
    Domain,
    FilterBy,
    ScoreBy,
    in_runs,
    make_node,
    make_pod,
    one_by_one,
    said,
    same_state,
)
from tests.unit.state.state_kit import Tickets

TOTALS = st.lists(st.integers(-1, 3), min_size=1, max_size=12).filter(lambda totals: max(totals) >= 0)


# -- the arithmetic ----------------------------------------------------------------------------------------------------


@given(st.integers(1, 20), st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=RUN_MAX), st.booleans())
def test_draw_picks_as_one_by_one_would(count: int, turns: list[int], keeps: bool) -> None:
    ties = np.arange(count, dtype=np.intp) * 3
    left = ties.tolist()
    expected: list[int] = []
    for turn in turns:
        if not left or (keeps and left[turn % len(left)] in expected):
            break
        expected.append(left[turn % len(left)])
        if not keeps:
            left.remove(expected[-1])
    assert draw(ties, turns, keeps=keeps) == expected


@pytest.mark.parametrize(
    ("after", "keeps", "by_feasible", "right"),
    [
        ([4, 4, 5, 3], False, False, 2),  # both fell behind
        ([5, 4, 5, 3], False, False, 1),  # the first stayed: it may take the second pod too
        ([6, 4, 5, 3], False, False, 1),  # the first became the best of all
        ([4, 5, 5, 3], False, False, 2),  # the last may do what it likes
        ([5, 5, 5, 3], True, False, 2),
        ([4, 5, 5, 3], True, False, 1),
        ([4, 4, 5, 2], False, False, 1),  # a row that took none has moved
        ([4, 4, 4, 3], False, False, 1),
        ([-1, 4, 5, 3], False, False, 2),  # a full row is out, as foreseen
        ([-1, 4, 5, 3], False, True, 1),  # ... but what is feasible has a say in the others' scores
    ],
)
def test_a_run_is_right_until_a_row_does_other_than_foreseen(
    after: list[int], keeps: bool, by_feasible: bool, right: int
) -> None:
    before = np.array([5, 5, 5, 3], np.int32)
    found = count_right(before, np.array(after, np.int32), [0, 1], keeps=keeps, by_feasible=by_feasible)
    assert found == right


def test_the_pace_doubles_while_runs_hold_and_rests_when_they_break_at_once() -> None:
    pace = Pace()
    lengths = []
    for _ in range(6):
        lengths.append(pace.next_length())
        pace.ran(lengths[-1], lengths[-1])
    assert lengths == [4, 8, 16, 32, RUN_MAX, RUN_MAX]
    pace.ran(RUN_MAX, 7)
    assert pace.next_length() == 7
    singles = []
    for _ in range(10):
        pace.ran(4, 1)
        singles.append(0)
        while pace.next_length() == 1:
            singles[-1] += 1
    assert singles == [2, 4, 8, 16, 32, 64, 128, 256, SINGLES_MAX, SINGLES_MAX]


# -- the cycle ---------------------------------------------------------------------------------------------------------


class ByPods(ScoreBy):
    """A score that a pod on the row changes, by a table: what it is after 0, 1, 2 … pods."""

    def __init__(self, steps: Sequence[int]) -> None:
        super().__init__("ByPods", lambda pod, name: 0, depends_on=Dependency.ROW)
        self._steps = np.array(steps, np.int64)

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        found: Scores = self._steps.take(np.minimum(cycle.nodes.pod_count[rows], len(self._steps) - 1))
        return found


class ByRank(ScoreBy):
    """Normalised by a rule of its own: whoever falls out moves the others."""

    def __init__(self) -> None:
        super().__init__("ByRank", lambda pod, name: int(name[1:]))

    def normalize_score(self, cycle: CycleView, pod: Pod, raw: Scores) -> Scores:
        found: Scores = (raw - raw.min()) * 100 // max(1, int(raw.max() - raw.min()))
        return found


class Refusing:
    """Reserve and Permit that refuse pods by name, and keep books of what is reserved."""

    name = "Refusing"

    def __init__(self, reserve: frozenset[str], permit: frozenset[str]) -> None:
        self._at_reserve, self._at_permit = reserve, permit
        self.books: list[str] = []

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        self.books.append(pod.name)
        return Status.unschedulable("refused") if pod.name in self._at_reserve else SUCCESS

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self.books.remove(pod.name)

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        return PermitResult(Status.unschedulable("not permitted") if pod.name in self._at_permit else SUCCESS)


nodes = st.lists(
    st.tuples(
        st.sampled_from((1000, 2000, 4000)),
        st.integers(1, 6),
        st.sampled_from(((), (Taint("l", "", "PreferNoSchedule"),), (Taint("k", "", "NoSchedule"),))),
    ),
    min_size=1,
    max_size=12,
)
names = st.frozensets(st.sampled_from([f"p{n}" for n in range(40)]), max_size=2)
Plugins = Callable[[], list[Plugin]]
plugin_sets: st.SearchStrategy[Plugins] = st.one_of(
    st.just(list),
    st.lists(st.integers(0, 100), min_size=1, max_size=5).map(lambda steps: lambda: [ByPods(steps)]),
    st.just(lambda: [ByRank()]),
    st.just(lambda: [ScoreBy("Even", lambda pod, name: 50)]),
    st.builds(lambda reserve, permit: lambda: [Refusing(reserve, permit)], names, names),
    st.just(lambda: [FilterBy("NoTwo", lambda pod, name: "no" if name == "n2" else "", depends_on=Dependency.ATTEMPT)]),
)
in_trees = st.sampled_from((("NodeResourcesFit",), tuple(IN_TREE_USED), ("TaintToleration", "NodeResourcesFit"), ()))


@given(nodes, plugin_sets, in_trees, st.integers(1, 40), st.sampled_from((0, 300, 600)), st.booleans())
def test_runs_decide_what_one_by_one_decides(
    shapes: list[tuple[int, int, tuple[Taint, ...]]],
    plugins: Plugins,
    in_tree: tuple[str, ...],
    count: int,
    cpu: int,
    is_nominated: bool,
) -> None:
    cluster: list[Node] = [
        make_node(f"n{number}", cpu=cpu, pods=pods, taints=taints) for number, (cpu, pods, taints) in enumerate(shapes)
    ]
    spec = PodSpec(requests={CPU: cpu} if cpu else {}, scoring_cpu_milli=cpu or 100, placed_cpu_milli=cpu or 100)
    pods = [make_pod(f"p{number}", spec=spec) for number in range(count)]
    domains = []
    for decide in (one_by_one, in_runs):
        domain = Domain(*cluster, plugins=plugins(), in_tree=in_tree)
        if is_nominated:
            domain.nominator.set(make_pod("ahead", spec=spec, nominated_node="n0"))
        domains.append((domain, said(decide(domain, pods))))
    (alone, expected), (together, found) = domains
    assert found == expected
    same_state(alone, together)


def test_equal_nodes_are_filled_in_runs() -> None:
    domain = Domain(*(make_node(f"n{n}") for n in range(100)), in_tree=tuple(IN_TREE_USED))
    spec = PodSpec(requests={CPU: 400}, scoring_cpu_milli=400, placed_cpu_milli=400)
    lengths: list[int] = []
    results = in_runs(domain, [make_pod(f"p{n}", spec=spec) for n in range(100)], lengths)
    assert len({r.node for r in results if isinstance(r, Placed)}) == 100
    assert lengths == [1, 4, 8, 16, 32, 39]


def test_what_plugins_reserved_is_what_was_placed() -> None:
    refusing = Refusing(frozenset({"p7"}), frozenset({"p9"}))
    domain = Domain(*(make_node(f"n{n}") for n in range(30)), plugins=[refusing])
    spec = PodSpec(requests={CPU: 400}, scoring_cpu_milli=400, placed_cpu_milli=400)
    results = in_runs(domain, [make_pod(f"p{n}", spec=spec) for n in range(20)])
    assert refusing.books == [r.pod.name for r in results if isinstance(r, Placed)]
    assert len(refusing.books) == 18


def test_a_ledger_that_refuses_ends_a_run_with_a_conflict() -> None:
    """The row takes no more of what the ledger holds, and no filter says so: as one by one, the pod is to be tried again."""

    pods = [make_pod(f"p{n}", spec=SPEC, annotations=WANTS) for n in range(6)]

    def decided(decide: Callable[[Domain, Sequence[Pod]], list[Result]]) -> list[Any]:
        domain = Domain(*(make_node(f"n{n}") for n in range(4)), in_tree=("NodeResourcesFit",))
        domain.cache.ledgers.register(Tickets(1))
        return said(decide(domain, pods))

    assert decided(in_runs) == decided(one_by_one)


@pytest.mark.parametrize("hold_up", [(), (Refusing(frozenset(), frozenset({"p1"})),)])
@pytest.mark.parametrize("steps", [(50, 40), (50, 50, 40), (50, 60)])
def test_a_pod_behind_a_run_that_was_cut_back_leaves_no_attempt(
    steps: Sequence[int], hold_up: Sequence[Plugin]
) -> None:
    """It met a conflict, but those before it are decided again first: until then nothing has happened to it."""
    domain = Domain(*(make_node(f"n{n}") for n in range(6)), plugins=[ByPods(steps), *hold_up])
    domain.cache.ledgers.register(Tickets(0))
    wanting = make_pod("p3", spec=SPEC, annotations=WANTS)
    pods = [make_pod(f"p{n}", spec=SPEC) for n in range(3)] + [wanting]
    decided = domain.cycle.attempt_run([QueuedPod(pod, 0.0, 1) for pod in pods])
    records = domain.cycle.records.read(wanting.uid)
    assert [one.outcome for one in records] == ([Outcome.CONFLICT] if len(decided) == len(pods) else [])
    assert all(len(domain.cycle.records.read(one.pod.uid)) == 1 for one in decided)
    assert all(not domain.cycle.records.read(pod.uid) for pod in pods[len(decided) :])


SPEC = PodSpec(requests={CPU: 100}, scoring_cpu_milli=100, placed_cpu_milli=100)
WANTS: Mapping[str, str] = {"tickets": "1"}


def test_a_plugin_that_fails_about_the_rows_of_a_run_costs_the_pod_behind_its_attempt() -> None:
    class Fragile(ScoreBy):
        def __init__(self) -> None:
            super().__init__("Fragile", lambda pod, name: 1, depends_on=Dependency.ROW)

        def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
            if any(cycle.nodes.pod_count[row] and cycle.nodes.node(row).name == "n4" for row in rows.tolist()):
                raise ValueError("n4 is in use")
            return np.where(cycle.nodes.pod_count[rows] == 0, 50, 40).astype(np.int64)

    pods = [make_pod(f"p{n}", spec=SPEC) for n in range(9)]

    def decided(decide: Callable[[Domain, Sequence[Pod]], list[Result]]) -> tuple[list[Any], Domain]:
        domain = Domain(*(make_node(f"n{n}") for n in range(9)), plugins=[Fragile()])
        return said(decide(domain, pods)), domain

    expected, alone = decided(one_by_one)
    found, together = decided(in_runs)
    assert found == expected
    assert any(isinstance(one, Unplaced) for one in found)
    together.cache.validate()
    alone.cache.validate()
