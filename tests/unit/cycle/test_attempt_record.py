"""What an attempt leaves behind: true to the attempt, bounded, and shared where pods are alike."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.cycle import attempt_record
from multisched.cycle.attempt_record import ATTEMPTS_KEPT, STATUS_BYTES, AttemptRecord, Outcome
from multisched.cycle.classes import placement_log
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.classes.score_snapshot import OTHERS, SNAPSHOT_BYTES_MIN, ScoreSnapshot
from multisched.cycle.results import Conflicted, Placed, Unplaced
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows, Scores
from multisched.framework.points import CycleView
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import Code, Status
from multisched.model.objects import Pod
from multisched.model.selectors import Taint
from multisched.state.change_log import ChangeLog
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import IN_TREE_USED, Domain, FilterBy, Waiting

NAMES = ("n0", "n1", "n2", "n3")


class Service:
    """Asks outside which nodes are allowed, and how good they are."""

    name = "Service"
    depends_on = Dependency.ATTEMPT
    response_timeout_s = 1.0

    def __init__(self) -> None:
        self.reasons = ReasonTable(self.name)
        self._refused = self.reasons.code(Code.UNSCHEDULABLE, "the service says no")

    def request(self, cycle: CycleView, pod: Pod, rows: Rows) -> object | None:
        return len(rows)

    async def response(self, request: object) -> object:
        raise AssertionError("the test answers")

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        allowed = self._allowed(cycle)
        return np.array([0 if name in allowed else self._refused for name in _names(cycle, rows)], np.uint8)

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        return np.array([self._allowed(cycle)[name] for name in _names(cycle, rows)], np.int64)

    def sign(self, pod: Pod) -> Hashable:
        return ()

    def _allowed(self, cycle: CycleView) -> dict[str, int]:
        answer: Any = cycle.responses[self.name]
        return dict(answer)


def _names(cycle: CycleView, rows: Rows) -> list[str]:
    return [cycle.nodes.node(row).name for row in rows.tolist()]


def last(domain: Domain, pod: Pod) -> AttemptRecord:
    return domain.cycle.records.read(pod.uid)[-1]


def cold(domain: Domain, pod: Pod) -> EquivalenceClass:
    """What a run that has seen nothing yet says."""
    classes = domain.fresh_classes()
    found = classes.find(pod, 1)
    if found.refusal is None and found.feasible.any():
        classes.score(found)
    return found


def assert_shows(snapshot: ScoreSnapshot, pod_class: EquivalenceClass) -> None:
    assert snapshot.rows.tolist() == pod_class.rows.tolist()
    assert [(c.plugin.name, c.codes.tolist()) for c in snapshot.filters] == [
        (c.plugin.name, c.codes.tolist()) for c in pod_class.filters
    ]
    if snapshot.scores:
        at = pod_class.feasible
        assert snapshot.total[at].tolist() == pod_class.total[at].tolist()
        assert [(c.plugin, c.weight, c.final[at].tolist()) for c in snapshot.scores] == [
            (c.plugin.name, c.weight, c.final[at].tolist()) for c in pod_class.scores
        ]


pods = st.builds(
    lambda number, cpu, spec_number: (number, cpu, spec_number),
    st.integers(0, 10**6),
    st.sampled_from((100, 500, 2000)),
    st.integers(0, 1),
)
changes = st.tuples(st.sampled_from(NAMES), st.sampled_from((500, 2000, 4000)), st.booleans())


@given(st.lists(st.one_of(pods, changes), max_size=25))
def test_record_equals_a_cold_run(steps: list[tuple[Any, ...]]) -> None:
    domain = Domain(*(make_node(name) for name in NAMES), in_tree=tuple(IN_TREE_USED))
    for count, step in enumerate(steps):
        if isinstance(step[0], str):
            name, cpu, is_tainted = step
            taints = (Taint("team", "x", "NoSchedule" if cpu == 500 else "PreferNoSchedule"),) if is_tainted else ()
            domain.cache.set_node(make_node(name, cpu_milli=cpu, taints=taints))
            continue
        pod = make_pod(f"p{count}", cpu_milli=step[1], priority=step[2])
        expected = cold(domain, pod)
        result, record = domain.schedule(pod), last(domain, pod)
        snapshot = record.snapshot
        assert snapshot is not None
        if isinstance(result, Placed):
            at = expected.rows.tolist().index(domain.row(result.node))
            assert (record.outcome, record.node, record.at) == (Outcome.PLACED, result.node, at)
            assert record.total == expected.total[at]
            assert record.scores == tuple((c.plugin.name, c.weight, int(c.final[at])) for c in expected.scores)
        else:
            assert isinstance(result, Unplaced)
            assert (record.outcome, record.message, record.is_own_snapshot) == (Outcome.REFUSED, result.message, True)
        if record.is_own_snapshot:
            assert_shows(snapshot, expected)


def test_refused_pods_of_a_class_share_a_snapshot_until_a_change() -> None:
    domain = Domain(make_node("n1", cpu_milli=100), make_node("n2", cpu_milli=100))
    first, second, third = (make_pod(name, cpu_milli=500) for name in ("a", "b", "c"))
    domain.schedule(first)
    domain.schedule(second)
    domain.cache.set_node(make_node("n2", cpu_milli=200))
    domain.schedule(third)

    assert last(domain, first).snapshot is last(domain, second).snapshot
    assert last(domain, third).snapshot is not last(domain, first).snapshot


class Gate(FilterBy):
    """Shuts nodes by what is written neither on them nor on their pods."""

    def __init__(self) -> None:
        super().__init__("Gate", self._why_not, depends_on=Dependency.CACHE_KEY)
        self.why = {"n1": "shut", "n2": "shut"}

    def cache_key(self, cycle: CycleView, pod: Pod) -> Hashable | None:
        return tuple(self.why.items())

    def _why_not(self, pod: Pod, name: str) -> str:
        return self.why[name]


def test_snapshot_is_not_shared_between_different_refusals() -> None:
    gate = Gate()
    domain = Domain(make_node("n1"), make_node("n2"), plugins=[gate], in_tree=("NodeResourcesFit",))
    first, second = make_pod("a", cpu_milli=500), make_pod("b", cpu_milli=500)
    domain.schedule(first)
    gate.why["n2"] = "locked"
    domain.schedule(second)
    told = []
    for pod in (first, second):
        snapshot = last(domain, pod).snapshot
        assert snapshot is not None
        (codes,) = (column.codes for column in snapshot.filters if column.plugin is gate)
        told.append([gate.reasons.status(code).message for code in codes.tolist()])
    assert told == [["shut", "shut"], ["shut", "locked"]]


def test_sampled_placed_pods_get_their_own_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_record, "SAMPLED_EVERY", 3)
    domain = Domain(make_node("n1", pods=99))
    placed = [make_pod(f"p{n}", cpu_milli=1) for n in range(7)]
    for pod in placed:
        assert isinstance(domain.schedule(pod), Placed)

    records = [last(domain, pod) for pod in placed]
    assert [record.is_own_snapshot for record in records] == [True, False, False, True, False, False, True]
    assert records[2].snapshot is records[0].snapshot


def test_latest_attempts_are_returned_oldest_first() -> None:
    domain = Domain(make_node("n1", cpu_milli=100))
    pod = make_pod("late", cpu_milli=500)
    for attempt in range(1, ATTEMPTS_KEPT + 3):
        domain.schedule(pod, attempt)
    domain.cache.set_node(make_node("n1", cpu_milli=1000))
    domain.schedule(pod, ATTEMPTS_KEPT + 3)

    records = domain.cycle.records.read(pod.uid)
    assert [record.attempt for record in records] == list(range(4, ATTEMPTS_KEPT + 4))
    assert [record.outcome for record in records][-2:] == [Outcome.REFUSED, Outcome.PLACED]


def test_pod_rejected_by_reserve_or_bind_keeps_its_scores() -> None:
    domain = Domain(make_node("n1"))
    pod = make_pod("p", cpu_milli=1)
    placed = domain.schedule(pod)
    assert isinstance(placed, Placed)
    domain.cycle.give_up(placed, Status.unschedulable("not today").by("Permission"))

    record = last(domain, pod)
    assert (record.outcome, record.node, record.status.plugin, record.message) == (
        Outcome.GIVEN_UP,
        "n1",
        "Permission",
        "not today",
    )
    assert record.total > 0
    assert len(domain.cycle.records.read(pod.uid)) == 1


def test_pod_rejected_after_a_remote_answer_keeps_its_record() -> None:
    domain = Domain(make_node("n1"), plugins=[Service()])
    pod = make_pod("p", cpu_milli=1)
    placed = Waiting.begin(domain, pod, attempt=5).answer({"Service": {"n1": 1}})
    assert isinstance(placed, Placed)
    domain.cycle.give_up(placed, Status.unschedulable("not today").by("Permission"))
    (record,) = domain.cycle.records.read(pod.uid)
    assert (record.attempt, record.outcome, record.node) == (5, Outcome.GIVEN_UP, "n1")


def test_forgotten_placement_keeps_its_node_on_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement_log, "FULL", 8 * placement_log.WIDTH)
    domain = Domain(make_node("n1", pods=1000))
    pod = make_pod("p", cpu_milli=1)
    placed = domain.schedule(pod, 3)
    assert isinstance(placed, Placed)
    for number in range(40):
        domain.schedule(make_pod(f"other-{number}", cpu_milli=1))
    assert domain.cycle.records.read(pod.uid) == ()
    domain.cycle.give_up(placed, Status.unschedulable("not today").by("Permission"))

    (record,) = domain.cycle.records.read(pod.uid)
    assert (record.attempt, record.outcome, record.node) == (3, Outcome.GIVEN_UP, "n1")
    assert (record.message, record.status.plugin) == ("not today", "Permission")


def test_snapshot_size_counts_its_arrays() -> None:
    domain = Domain(*(make_node(name) for name in NAMES), in_tree=tuple(IN_TREE_USED))
    placed, refused = make_pod("p", cpu_milli=1), make_pod("large", cpu_milli=10**6)
    domain.schedule(placed)
    domain.schedule(refused)
    sizes = domain.cycle.records.statistics()
    for pod, name in ((placed, "sampled_bytes"), (refused, "refused_bytes")):
        snapshot = last(domain, pod).snapshot
        assert snapshot is not None
        columns = [
            snapshot.feasible,
            snapshot.total,
            *(c.codes for c in snapshot.filters),
            *(c.final for c in snapshot.scores),
        ]
        assert sizes[name] == SNAPSHOT_BYTES_MIN + sum(column.nbytes for column in columns)


def test_refusals_by_node_name_count_to_their_snapshot() -> None:
    domain = Domain(*(make_node(name, cpu_milli=100) for name in NAMES))
    domain.schedule(make_pod("before", cpu_milli=101))
    plain = domain.cycle.records.statistics()["refused_bytes"]
    for name in NAMES:
        domain.nominator.nominate(make_pod(f"promised-{name}", cpu_milli=100, priority=1), name)
    low = make_pod("low", cpu_milli=100)
    domain.schedule(low)
    record = last(domain, low)
    assert len(record.blocked) == len(NAMES)
    assert record.snapshot is not None
    assert record.snapshot.nbytes == plain + STATUS_BYTES * len(NAMES)
    assert domain.cycle.records.statistics()["refused_bytes"] == plain + record.snapshot.nbytes


def test_moving_scores_stay_available_after_a_snapshot_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempt_record, "SAMPLED_BYTES_MAX", 1)
    domain = Domain(
        *(make_node(name, pods=1000) for name in NAMES),
        in_tree=tuple(IN_TREE_USED),
        weights={"NodeResourcesFit": 2, "NodeResourcesBalancedAllocation": 3},
    )
    pod = make_pod("p", cpu_milli=1000)
    domain.schedule(pod)
    before = last(domain, pod)
    assert before.snapshot is not None
    assert before.snapshot.is_kept
    domain.schedule(make_pod("another", cpu_milli=500))
    after = last(domain, pod)
    assert after.snapshot is before.snapshot
    assert not after.snapshot.is_kept
    told = {score.plugin: score for score in before.scores}
    assert after.scores[0] == told["NodeResourcesFit"]
    assert [score.plugin for score in after.scores[1:]] == [OTHERS]
    assert sum(score.weight * score.final for score in after.scores) == after.total == before.total
    assert all(isinstance(score.final, int) for score in (*before.scores, *after.scores))


def test_rebuilt_class_takes_a_new_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    domain = Domain(*(make_node(name) for name in NAMES), in_tree=tuple(IN_TREE_USED))
    first, alike, after = (make_pod(name, cpu_milli=1) for name in ("first", "alike", "after"))
    domain.schedule(first)
    domain.schedule(alike)
    monkeypatch.setattr(ChangeLog, "since", lambda self, sequence: None)  # too long ago to know
    domain.schedule(after)
    assert [last(domain, pod).is_own_snapshot for pod in (first, alike, after)] == [True, False, True]


def test_repeated_attempt_counts_once() -> None:
    domain = Domain(make_node("n1"), make_node("n2"))
    pod = make_pod("p", cpu_milli=1)
    first = domain.schedule(pod)
    assert isinstance(first, Placed)
    domain.cache.forget(pod.uid)
    domain.cache.remove_node(first.node)
    second = domain.schedule(pod)
    assert isinstance(second, Placed)

    assert [record.node for record in domain.cycle.records.read(pod.uid)] == [second.node]


def test_no_scores_are_recorded_if_all_nodes_are_reserved_for_nominated_pods() -> None:
    domain = Domain(make_node("n1", cpu_milli=100))
    placed = make_pod("first", cpu_milli=40)
    domain.schedule(placed)
    domain.nominator.nominate(make_pod("urgent", cpu_milli=40, priority=9), "n1")
    refused = make_pod("second", cpu_milli=40)
    assert isinstance(domain.schedule(refused), Unplaced)

    snapshots = [last(domain, pod).snapshot for pod in (placed, refused)]
    assert [snapshot is not None and bool(snapshot.scores) for snapshot in snapshots] == [True, False]


def test_plugin_failure_is_recorded() -> None:
    def breaks(pod: Pod, name: str) -> str:
        raise RuntimeError("broken")

    domain = Domain(make_node("n1"), plugins=[FilterBy("Broken", breaks)])
    pod = make_pod("p")
    domain.schedule(pod, 2)

    record = last(domain, pod)
    assert (record.attempt, record.outcome, record.status.plugin) == (2, Outcome.ERROR, "Broken")
    assert (record.message, record.snapshot) == (record.status.message, None)
    assert "broken" in record.message


def test_alternative_nodes_after_a_remote_answer_are_recorded() -> None:
    domain = Domain(make_node("best", cpu_milli=100), make_node("next", cpu_milli=100), plugins=[Service()])
    pod = make_pod("late", cpu_milli=80)
    waiting = Waiting.begin(domain, pod)
    domain.cache.assume(make_pod("early", cpu_milli=80), domain.row("best"))
    result = waiting.answer({"Service": {"best": 90, "next": 10}})

    record = last(domain, pod)
    assert isinstance(result, Placed)
    assert (record.node, record.passed_over, record.scores[-1]) == ("next", ("best",), ("Service", 1, 10))
    assert record.snapshot is not None
    assert record.total == record.snapshot.total[record.at]


def test_remote_refusals_are_recorded() -> None:
    domain = Domain(make_node("n1"), make_node("n2"), plugins=[Service()])
    pod = make_pod("late")
    Waiting.begin(domain, pod).answer({"Service": {}})

    record = last(domain, pod)
    assert record.outcome is Outcome.REFUSED
    assert [(name, status.message) for name, status in record.remote_refusals] == [
        ("n1", "the service says no"),
        ("n2", "the service says no"),
    ]


def test_conflict_record_names_the_taken_nodes() -> None:
    domain = Domain(make_node("n1", cpu_milli=100), plugins=[Service()])
    pod = make_pod("late", cpu_milli=80)
    waiting = Waiting.begin(domain, pod, attempt=2)
    domain.cache.assume(make_pod("early", cpu_milli=80), domain.row("n1"))

    assert isinstance(waiting.answer({"Service": {"n1": 1}}), Conflicted)
    record = last(domain, pod)
    assert (record.attempt, record.outcome, record.passed_over) == (2, Outcome.CONFLICT, ("n1",))


def test_recorded_attempts_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_log, "FULL", 8 * placement_log.WIDTH)
    monkeypatch.setattr(attempt_record, "REFUSED_PODS_KEPT", 8)
    monkeypatch.setattr(attempt_record, "REFUSED_BYTES_MAX", 3 * SNAPSHOT_BYTES_MIN)
    monkeypatch.setattr(attempt_record, "SAMPLED_BYTES_MAX", 3 * SNAPSHOT_BYTES_MIN)
    domain = Domain(make_node("n1", pods=1000))
    for number in range(100):
        domain.schedule(make_pod(f"small-{number}", cpu_milli=1, priority=number))
        domain.schedule(make_pod(f"large-{number}", cpu_milli=10**6, priority=number))

    sizes = domain.cycle.records.statistics()
    assert 8 <= sizes["placed"] <= 16
    assert 4 <= sizes["rare_pods"] <= 8
    assert max(sizes["sampled_bytes"], sizes["refused_bytes"]) <= 3 * SNAPSHOT_BYTES_MIN
    first = domain.cycle.records.read("uid-small-92")[-1]
    assert first.snapshot is not None
    assert not first.snapshot.is_kept
    assert sum(score.weight * score.final for score in first.scores) == first.total
    arrays = (first.snapshot.rows, first.snapshot.feasible, first.snapshot.total)
    assert [(len(array), array.base) for array in arrays] == [(0, None)] * 3, "and holds on to nothing larger"
    latest, dropped = (domain.cycle.records.read(f"uid-large-{number}") for number in (99, 97))
    assert latest[-1].snapshot is not None
    assert latest[-1].snapshot.is_kept
    assert dropped[-1].snapshot is not None
    assert not dropped[-1].snapshot.is_kept
    assert dropped[-1].found is not None
    assert dropped[-1].found.counts[0][1] == 1, "how many nodes were refused by whom is known all the same"
    assert domain.cycle.records.read("uid-large-1") == ()


def test_unknown_pod_has_no_attempts() -> None:
    assert Domain().cycle.records.read("nobody") == ()
