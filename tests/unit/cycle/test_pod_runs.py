"""Runs of identical pods: what is decided together is what decisions one by one give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.cycle.pod_runs import RUN_MAX
from multisched.cycle.results import Placed, Result, Unplaced
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Rows, Scores
from multisched.framework.normalize import ByLargest
from multisched.framework.points import CycleView, Plugin, QueuedPod
from multisched.framework.traits import Traits
from multisched.model.objects import CPU, Node, Pod, PodSpec
from multisched.model.placement import PodAffinity, PodAffinityTerm
from multisched.model.selectors import LabelSelector, Operator, Requirement, Taint
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import IN_TREE_USED, Domain, FilterBy, Reserves, ScoreBy
from tests.unit.state.state_kit import Tickets


def one_by_one(domain: Domain, pods: Sequence[Pod]) -> list[Result]:
    return [domain.schedule(pod) for pod in pods]


def in_runs(domain: Domain, pods: Sequence[Pod], lengths: list[int] | None = None) -> list[Result]:
    """Decides the pods as the scheduling loop does; appends the number of pods decided together."""
    results: list[Result] = []
    while len(results) < len(pods):
        left = pods[len(results) :]
        length = domain.cycle.run_length(left[0])
        run = [QueuedPod(pod, 0.0, 1) for pod in left[:length] if pod.spec is left[0].spec]
        found = domain.cycle.attempt_run(run) if len(run) > 1 else ()
        results += found or [domain.schedule(left[0])]
        if lengths is not None:
            lengths.append(len(found) or 1)
    return results


def said(results: Sequence[Result]) -> list[Any]:
    return [
        (one.pod.uid, one.node) if isinstance(one, Placed) else (one.pod.uid, type(one), str(one)) for one in results
    ]


def state_of(domain: Domain) -> Any:
    domain.cache.validate()
    nodes = domain.cache.nodes
    rows = [
        (nodes.node(row).name, nodes.requested(CPU).item(row), nodes.pod_count.item(row))
        for row, _ in nodes.live_rows()
    ]
    return rows, sorted((entry.pod.uid, entry.node, entry.state) for entry in domain.cache)


def recorded(domain: Domain, pods: Sequence[Pod]) -> Any:
    """The recorded attempts of the pods, with the scores of their nodes."""
    return [
        [
            (one.attempt, one.outcome, one.node, one.scores, one.total, one.is_own_snapshot)
            for one in domain.cycle.records.read(pod.uid)
        ]
        for pod in pods
    ]


class ByPods(ScoreBy):
    """A score that a pod on the row changes, by a table: its value after 0, 1, 2 ... pods."""

    def __init__(self, steps: Sequence[int]) -> None:
        super().__init__("ByPods", lambda pod, name: 0, depends_on=Dependency.ROW)
        self._steps = np.array(steps, np.int64)

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        found: Scores = self._steps.take(np.minimum(cycle.nodes.pod_count[rows], len(self._steps) - 1))
        return found


class ByRank(ScoreBy):
    """Normalised by a rule of its own: a row that ceases to be feasible changes the scores of others."""

    def __init__(self) -> None:
        super().__init__("ByRank", lambda pod, name: int(name[1:]))

    def normalize_score(self, cycle: CycleView, pod: Pod, raw: Scores) -> Scores:
        found: Scores = (raw - raw.min()) * 100 // max(1, int(raw.max() - raw.min()))
        return found


class SignsPlaced(ScoreBy):
    """Signs what has been placed so far, as a plugin does whose rules come from placed pods."""

    def __init__(self) -> None:
        super().__init__("SignsPlaced", lambda pod, name: 0, depends_on=Dependency.NODE)

    def bind_to(self, domain: Domain) -> None:
        self.sign = lambda pod: int(domain.cache.nodes.pod_count.sum()) // 3
        self._rule = lambda pod, name: (int(domain.cache.nodes.pod_count.sum()) // 3 * 7 + int(name[1:]) * 3) % 11


PREFER_NOT: Final = (Taint("l", "", "PreferNoSchedule"),)
shapes_of_nodes = st.lists(
    st.tuples(st.sampled_from((2000, 2000, 2000, 4000)), st.integers(1, 6), st.sampled_from(((), (), PREFER_NOT))),
    min_size=2,
    max_size=12,
)
Plugins = Callable[[], list[Plugin]]
by_pods = st.lists(st.integers(48, 52), min_size=1, max_size=5).map(lambda steps: lambda: [ByPods(steps)])
plugin_sets: st.SearchStrategy[Plugins] = st.one_of(
    by_pods,
    by_pods,
    st.just(list),
    st.just(lambda: [ByRank()]),
    st.just(lambda: [SignsPlaced()]),
    st.just(lambda: [Reserves("Reserves", [])]),
    st.just(lambda: [FilterBy("NoTwo", lambda pod, name: "no" if name == "n2" else "", depends_on=Dependency.ATTEMPT)]),
)
in_trees = st.sampled_from(((), ("NodeResourcesFit",), ("TaintToleration", "NodeResourcesFit"), tuple(IN_TREE_USED)))


@given(shapes_of_nodes, plugin_sets, in_trees, st.integers(2, 40), st.sampled_from((0, 10, 300)))
def test_runs_give_the_results_of_single_decisions(
    shapes: list[tuple[int, int, tuple[Taint, ...]]],
    plugins: Plugins,
    in_tree: tuple[str, ...],
    count: int,
    cpu: int,
) -> None:
    cluster: list[Node] = [
        make_node(f"n{number}", cpu_milli=milli, pods=pods, taints=taints)
        for number, (milli, pods, taints) in enumerate(shapes)
    ]
    spec = PodSpec(requests={CPU: cpu} if cpu else {}, scoring_cpu_milli=cpu or 100, placed_cpu_milli=cpu or 100)
    pods = [make_pod(f"p{number}", spec=spec) for number in range(count)]
    outcomes = []
    for decide in (one_by_one, in_runs):
        built = plugins()
        domain = Domain(*cluster, plugins=built, in_tree=in_tree)
        for plugin in built:
            if isinstance(plugin, SignsPlaced):
                plugin.bind_to(domain)
        outcomes.append((said(decide(domain, pods)), state_of(domain), recorded(domain, pods)))
    assert outcomes[1] == outcomes[0]


HOST: Final = "kubernetes.io/hostname"
OWN: Final = LabelSelector((Requirement("own", Operator.EXISTS),))
RELATED: Final = {
    name: IN_TREE_USED.get(name, 2) for name in ("TaintToleration", "NodeResourcesFit", "InterPodAffinity")
}
hosts_of_nodes = st.lists(
    st.tuples(
        st.sampled_from((2000, 2000, 4000)),
        st.one_of(st.none(), st.none(), st.sampled_from(("", "h0", "h1"))),
        st.sampled_from(((), (), PREFER_NOT)),
    ),
    min_size=2,
    max_size=16,
)
terms = st.builds(
    PodAffinityTerm,
    st.sampled_from((HOST, HOST, HOST, "zone")),
    st.sampled_from(("own", "own", "old", "both")).map(lambda key: LabelSelector((Requirement(key, Operator.EXISTS),))),
)
affinities = st.builds(
    PodAffinity,
    required=st.one_of(st.just(()), st.just(()), terms.map(lambda one: (one,))),
    anti_required=st.lists(terms, max_size=2).map(tuple),
)


@given(hosts_of_nodes, affinities, affinities, st.integers(0, 3), st.sampled_from((2, 4, 8)))
def test_runs_of_related_pods_give_the_results_of_single_decisions(
    shapes: list[tuple[int, str | None, tuple[Taint, ...]]], own: PodAffinity, of_old: PodAffinity, old: int, zone: int
) -> None:
    """Nodes with a host name of their own, with the one of another node, and without one."""
    cluster = [
        msgspec.structs.replace(
            make_node(f"n{number}", cpu_milli=milli, taints=taints),
            labels={"zone": str(number // zone)} | ({} if host == "" else {HOST: host or f"n{number}"}),
        )
        for number, (milli, host, taints) in enumerate(shapes)
    ]
    spec = PodSpec(requests={CPU: 10}, scoring_cpu_milli=10, placed_cpu_milli=10, pod_affinity=own)
    pods = [make_pod(f"p{number}", spec=spec, labels={"own": "", "both": ""}) for number in range(24)]
    placed = [
        make_pod(f"old{n}", spec=PodSpec(pod_affinity=of_old), labels={"old": "", "both": ""}, node=f"n{n}")
        for n in range(min(old, len(cluster)))
    ]
    outcomes = []
    for decide in (one_by_one, in_runs):
        domain = Domain(*cluster, in_tree=tuple(RELATED), weights=RELATED)
        for pod in placed:
            domain.cache.place(pod)
        first = said(decide(domain, pods[:12]))
        for pod in pods[:12]:
            domain.cache.remove(pod.uid)
        outcomes.append((first, said(decide(domain, pods[12:])), state_of(domain), recorded(domain, pods)))
    assert outcomes[1] == outcomes[0]


class ByShare(ScoreBy):
    """Normalised: as long as n0 is feasible it has 100 and n1 has 50; without n0, n1 has 100."""

    traits = Traits(normalizer=ByLargest())

    def __init__(self) -> None:
        super().__init__("ByShare", lambda pod, name: {"n0": 10, "n1": 5}.get(name, 0))


def test_a_run_whose_rows_change_the_scale_of_the_scores_gives_the_results_of_single_decisions() -> None:
    """All nodes are equally good, until n0 is taken and n1 is better than the rest."""
    term = PodAffinityTerm(HOST, OWN)
    spec = msgspec.structs.replace(SPEC, pod_affinity=PodAffinity(anti_required=(term,)))

    def decided(decide: Callable[[Domain, Sequence[Pod]], list[Result]], name: str) -> Any:
        levels = ScoreBy("Levels", lambda pod, name: {"n0": 0, "n1": 50}.get(name, 100))
        domain = Domain(
            *(make_node(f"n{n}", labels={HOST: f"n{n}"}) for n in range(24)),
            plugins=[ByShare(), levels],
            in_tree=("InterPodAffinity",),
        )
        return said(decide(domain, [make_pod(f"{name}{n}", spec=spec, labels={"own": ""}) for n in range(24)]))

    for name in "abcdefghij":
        assert decided(in_runs, name) == decided(one_by_one, name)


@pytest.mark.parametrize(("key", "nodes", "longest"), [(HOST, 100, RUN_MAX), ("zone", 4, 1)])
def test_pods_that_keep_off_each_others_nodes_are_decided_in_runs(key: str, nodes: int, longest: int) -> None:
    """By host names, since a run would take zones of two nodes twice."""
    term = PodAffinityTerm(key, OWN)
    spec = msgspec.structs.replace(SPEC, pod_affinity=PodAffinity(anti_required=(term,)))
    cluster = [make_node(f"n{n}", labels={HOST: f"n{n}", "zone": str(n // 2)}) for n in range(nodes)]
    pods = [make_pod(f"p{n}", spec=spec, labels={"own": ""}) for n in range(nodes // 2)]
    lengths: list[int] = []
    results = in_runs(Domain(*cluster, in_tree=tuple(RELATED)), pods, lengths)
    assert said(results) == said(one_by_one(Domain(*cluster, in_tree=tuple(RELATED)), pods))
    assert all(isinstance(one, Placed) for one in results)
    assert max(lengths) == longest


def test_pods_that_seek_each_other_start_together_again_when_all_of_them_left() -> None:
    """The first of them may go to either zone, and the others follow it."""
    spec = msgspec.structs.replace(SPEC, pod_affinity=PodAffinity(required=(PodAffinityTerm("zone", OWN),)))
    domain = Domain(
        *(make_node(f"n{n}", labels={"zone": str(n % 2)}) for n in range(40)),
        in_tree=tuple(RELATED),
        args={"InterPodAffinity": {"hardPodAffinityWeight": 0}},
    )
    pods = [make_pod(f"p{n}", spec=spec, labels={"own": ""}) for n in range(80)]
    for some in (pods[:40], pods[40:]):
        results = in_runs(domain, some)
        assert len({int(one.node[1:]) % 2 for one in results if isinstance(one, Placed)}) == 1
        for pod in some:
            domain.cache.remove(pod.uid)


def test_pods_of_one_spec_that_plugins_tell_apart_are_not_placed_together() -> None:
    """As the leader and the followers of one StatefulSet."""
    pods = [make_pod(f"p{n}", spec=SPEC, labels={"side": str(n % 3 % 2)}) for n in range(30)]
    for decide in (one_by_one, in_runs):
        side = ScoreBy(
            "Side",
            lambda pod, name: 100 * (int(pod.labels["side"]) == int(name[1:]) % 2),
            sign=lambda pod: pod.labels["side"],
        )
        domain = Domain(*(make_node(f"n{n}") for n in range(60)), plugins=[side, ByPods((50, 40))], in_tree=())
        placed = [one for one in decide(domain, pods) if isinstance(one, Placed)]
        assert [int(one.node[1:]) % 2 for one in placed] == [int(pod.labels["side"]) for pod in pods]


def test_no_run_is_possible_while_a_pod_is_nominated() -> None:
    domain = Domain(*(make_node(f"n{n}") for n in range(30)))
    domain.nominator.set(make_pod("ahead", spec=SPEC, nominated_node="n0"))
    assert {domain.cycle.run_length(make_pod(f"p{n}", spec=SPEC)) for n in range(40)} == {1}


SPEC = PodSpec(requests={CPU: 100}, scoring_cpu_milli=100, placed_cpu_milli=100)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((50, 40), [1, 4, 8, 16, 1]),  # each row falls behind
        ((50, 50), [1, 1, 4, 8]),  # each row stays among the best: the first run supposes that they fall behind
        ((50, 60), [1, 1, 1, 1]),  # the row of the first pod takes the second pod, too
    ],
)
def test_runs_double_while_the_totals_move_as_supposed(steps: Sequence[int], expected: list[int]) -> None:
    domain = Domain(
        *(make_node(f"n{n}", cpu_milli=4000, pods=110) for n in range(1000)), plugins=[ByPods(steps)], in_tree=()
    )
    lengths: list[int] = []
    results = in_runs(domain, [make_pod(f"p{n}", spec=SPEC) for n in range(30)], lengths)
    assert all(isinstance(one, Placed) for one in results)
    assert sum(lengths) == 30
    assert max(lengths) <= RUN_MAX
    if steps != (50, 50):
        assert lengths[: len(expected)] == expected
    else:
        assert lengths[:2] == [1, 1]


def test_a_ledger_that_refuses_ends_a_run() -> None:
    pods = [make_pod(f"p{n}", spec=SPEC, annotations={"tickets": "1"}) for n in range(6)]

    def decided(decide: Callable[[Domain, Sequence[Pod]], list[Result]]) -> Any:
        domain = Domain(*(make_node(f"n{n}") for n in range(4)), in_tree=("NodeResourcesFit",))
        domain.cache.ledgers.register(Tickets(1))
        return said(decide(domain, pods)), state_of(domain), recorded(domain, pods)

    assert decided(in_runs) == decided(one_by_one)


def test_a_plugin_that_fails_on_a_row_of_a_run_fails_the_next_pod() -> None:
    class Fragile(ScoreBy):
        def __init__(self) -> None:
            super().__init__("Fragile", lambda pod, name: 1, depends_on=Dependency.ROW)

        def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
            if any(cycle.nodes.pod_count[row] and cycle.nodes.node(row).name == "n4" for row in rows.tolist()):
                raise ValueError("n4 is in use")
            return np.where(cycle.nodes.pod_count[rows] == 0, 50, 40).astype(np.int64)

    pods = [make_pod(f"p{n}", spec=SPEC) for n in range(9)]

    def decided(decide: Callable[[Domain, Sequence[Pod]], list[Result]]) -> Any:
        domain = Domain(*(make_node(f"n{n}") for n in range(9)), plugins=[Fragile()])
        return said(decide(domain, pods)), state_of(domain)

    expected, found = decided(one_by_one), decided(in_runs)
    assert found == expected
    assert any(kind is Unplaced for _, kind, *_ in expected[0])
