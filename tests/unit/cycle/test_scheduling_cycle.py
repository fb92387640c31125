"""One attempt, from the queue's entry to an assumption, a refusal or a conflict, driven step by step."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from multisched.cycle.results import Conflicted, Placed, Unplaced
from multisched.framework.cycle_state import StateKey
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows, Scores
from multisched.framework.points import CycleView, PermitResult, PostFilterResult, PreFilterResult, Refusals
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.framework.traits import Traits
from multisched.model.objects import CPU, PODS, Pod, PodSpec
from multisched.model.placement import PodAffinity, PodAffinityTerm, SpreadConstraint
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.model.volumes import PodVolume
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain, FilterBy, Reserves, ScoreBy, Waiting

ONE_CPU = PodSpec(requests={CPU: 1000}, placed_cpu_milli=1000)
URGENT = PodSpec(requests={CPU: 1000}, priority=10)


def prefers(node: str) -> ScoreBy:
    return ScoreBy("Prefers", lambda pod, name: 100 if name == node else 0)


class InOrder(ScoreBy):
    """Scores, and lets the first of equally good rows win."""

    traits = Traits(prefers_first_row=True)


class Service:
    """Asks outside which of the feasible nodes it may use: the answer is {node: score}, others are refused."""

    name = "Service"
    depends_on = Dependency.ATTEMPT
    response_timeout_s = 1.0

    def __init__(self) -> None:
        self.reasons = ReasonTable(self.name)
        self.refused = self.reasons.code(Code.UNSCHEDULABLE, "the service says no")
        self.attempts: set[tuple[str, int]] = set()

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        cycle.state.write(_ATTEMPT, cycle.attempt)
        return PreFilterResult()

    def request(self, cycle: CycleView, pod: Pod, rows: Rows) -> object | None:
        return [cycle.nodes.node(row).name for row in rows.tolist()]

    async def response(self, request: object) -> object:
        raise AssertionError("the test answers")

    def _allowed(self, cycle: CycleView, pod: Pod) -> Mapping[str, int]:
        self.attempts.add((pod.name, cycle.state.read(_ATTEMPT)))
        found = cycle.responses[self.name]
        assert isinstance(found, dict)
        return found

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        allowed = self._allowed(cycle, pod)
        return np.array([0 if cycle.nodes.node(r).name in allowed else self.refused for r in rows.tolist()], np.uint8)

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        allowed = self._allowed(cycle, pod)
        return np.array([allowed[cycle.nodes.node(r).name] for r in rows.tolist()], np.int64)

    def sign(self, pod: Pod) -> Hashable:
        return ()


_ATTEMPT: StateKey[int] = StateKey("Service.attempt")


# -- placing -----------------------------------------------------------------------------------------------------------


def test_pod_is_assumed_on_the_best_row() -> None:
    domain = Domain(make_node("a"), make_node("b"), plugins=[prefers("b")])
    result = domain.schedule(make_pod("p", spec=ONE_CPU))

    assert isinstance(result, Placed)
    assert result.node == "b"
    assert domain.cache.is_assumed("uid-p")
    assert domain.cache.nodes.requested(CPU)[domain.row("b")] == 1000


def test_row_filled_by_an_assumption_is_full_for_the_next_pod() -> None:
    domain = Domain(make_node("a", cpu_milli=1000), make_node("b", cpu_milli=1000), plugins=[prefers("b")])
    first, second, third = (domain.schedule(make_pod(name, spec=ONE_CPU)) for name in ("p", "q", "r"))

    assert isinstance(first, Placed)
    assert isinstance(second, Placed)
    assert (first.node, second.node) == ("b", "a")
    assert isinstance(third, Unplaced)
    assert third.message == "0/2 nodes are available: 2 Insufficient cpu."


def test_tie_break_depends_on_seed_uid_and_attempt_only() -> None:
    def places(seed: int) -> list[str]:
        domain = Domain(*(make_node(f"n{i}") for i in range(8)), seed=seed, in_tree=())
        results = [domain.schedule(make_pod(f"p{i}"), attempt=1 + i % 3) for i in range(40)]
        return [r.node for r in results if isinstance(r, Placed)]

    assert places(1) == places(1)
    assert places(1) != places(2)
    assert len(set(places(1))) == 8


def test_next_attempt_may_choose_another_equal_node() -> None:
    """The one that it had may be what it failed on."""
    nodes = [make_node(f"n{i}") for i in range(8)]
    results = [Domain(*nodes, in_tree=()).schedule(make_pod("p"), attempt) for attempt in range(1, 9)]
    assert len({result.node for result in results if isinstance(result, Placed)}) > 2


def test_a_plugin_can_make_the_first_of_equally_good_nodes_win() -> None:
    nodes = [make_node(f"n{i}") for i in range(3)]
    scores = InOrder("InOrder", lambda pod, name: 7 if name != "n0" else 6)
    domain = Domain(*nodes, plugins=[scores], in_tree=())
    results = [domain.schedule(make_pod(f"p{i}")) for i in range(5)]
    assert [r.node for r in results if isinstance(r, Placed)] == ["n1"] * 5


def test_a_pod_that_tries_again_takes_the_next_of_equally_good_nodes() -> None:
    def place(attempt: int) -> Placed | Conflicted | Unplaced:
        nodes = [make_node(f"n{i}") for i in range(3)]
        plugins = [InOrder("InOrder", lambda pod, name: 7)]
        return Domain(*nodes, plugins=plugins, in_tree=()).schedule(make_pod("p"), attempt)

    results = [place(attempt) for attempt in (1, 2, 3, 4)]
    assert [r.node for r in results if isinstance(r, Placed)] == ["n0", "n1", "n2", "n0"]


@pytest.mark.parametrize("plugin", ["NodeVolumeLimits", "VolumeRestrictions"])
def test_volumes_on_another_node_do_not_affect_a_placed_pod(plugin: str) -> None:
    domain = Domain(make_node("a"), in_tree=("NodeResourcesFit", plugin))
    spec = PodSpec(volumes=(PodVolume("data"),))
    pod, others = make_pod("p", spec=spec), [make_pod("other", spec=spec, node="b")]
    placed = domain.schedule(pod)
    assert isinstance(placed, Placed)
    assert not domain.cycle.is_affected(placed, pod, others)


def test_nominated_node_is_tried_first() -> None:
    domain = Domain(make_node("a"), make_node("b"), plugins=[prefers("b")])
    result = domain.schedule(make_pod("p", spec=ONE_CPU, nominated_node="a"))
    assert isinstance(result, Placed)
    assert result.node == "a"


def test_full_or_unknown_nominated_node_is_ignored() -> None:
    domain = Domain(make_node("a", cpu_milli=500), make_node("b"))
    for number, nominated in enumerate(("a", "nowhere")):
        result = domain.schedule(make_pod(f"p{number}", spec=ONE_CPU, nominated_node=nominated))
        assert isinstance(result, Placed)
        assert result.node == "b"


@pytest.mark.parametrize(("others", "node"), [(5, "b"), (0, "b"), (-1, "a")], ids=["higher", "equal", "lower"])
def test_nominated_pod_leaves_room_for_equal_nominated_pods(others: int, node: str) -> None:
    """The node has room for one of them, and both were promised it: as upstream, the one that is tried first does not take
    what the other needs, and goes to another node if there is one."""
    domain = Domain(make_node("a", cpu_milli=1000), make_node("b", cpu_milli=1000))
    domain.nominator.set(make_pod("other", cpu_milli=1000, priority=others, nominated_node="a"))
    pod = make_pod("p", cpu_milli=1000, nominated_node="a")
    domain.nominator.set(pod)
    result = domain.schedule(pod)
    assert isinstance(result, Placed)
    assert result.node == node
    assert (domain.nominator.node_of(pod.uid), domain.nominator.node_of("uid-other")) == ("", "a")


def test_nominated_pod_waits_if_its_node_is_full_of_equal_nominations() -> None:
    domain = Domain(make_node("a", cpu_milli=1000))
    domain.nominator.set(make_pod("other", cpu_milli=600, nominated_node="a"))
    result = domain.schedule(make_pod("p", cpu_milli=600, nominated_node="a"))
    assert isinstance(result, Unplaced)
    assert result.message == "0/1 nodes are available: 1 Insufficient cpu."


def test_reserve_state_belongs_to_one_pod() -> None:
    class Volumes:
        name = "Volumes"

        def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
            cycle.state.write(CHOSEN, pod.name)
            return SUCCESS

        def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
            """Nothing to give back."""

    CHOSEN: StateKey[str] = StateKey("Volumes.chosen")
    domain = Domain(make_node("a"), plugins=[Volumes()])
    first, second = domain.schedule(make_pod("p")), domain.schedule(make_pod("q"))

    assert isinstance(first, Placed)
    assert isinstance(second, Placed)
    assert first.view.state.read(CHOSEN) == "p"
    assert second.view.state.read(CHOSEN) == "q"


# -- refusing ----------------------------------------------------------------------------------------------------------


def test_empty_domain_reports_that_it_has_no_nodes() -> None:
    result = Domain().schedule(make_pod("p"))
    assert isinstance(result, Unplaced)
    assert result.message == "no nodes available to schedule pods"


def test_rows_of_other_domains_are_not_counted() -> None:
    domain = Domain(make_node("ours", cpu_milli=500), make_node("theirs", labels={"domain": "other"}))
    result = domain.schedule(make_pod("p", spec=ONE_CPU))
    assert isinstance(result, Unplaced)
    assert result.message == "0/1 nodes are available: 1 Insufficient cpu."
    assert result.rejectors == {"NodeResourcesFit"}


def test_refusal_for_a_nominated_pod_has_the_plugin_message() -> None:
    domain = Domain(make_node("a", cpu_milli=1000))
    domain.nominator.set(make_pod("urgent", spec=URGENT, nominated_node="a"))
    result = domain.schedule(make_pod("p", spec=ONE_CPU))

    assert isinstance(result, Unplaced)
    assert result.message == "0/1 nodes are available: 1 Insufficient cpu."
    assert result.rejectors == {"NodeResourcesFit"}


@pytest.mark.parametrize("is_promised_too", [False, True])
@pytest.mark.parametrize("pods_max", [0, 1, 2], ids=["full", "kept for the nominated", "enough"])
def test_filter_with_nominated_pods_gets_the_attempt(pods_max: int, is_promised_too: bool) -> None:
    attempts: list[int] = []

    class Counts:
        name = "Counts"
        depends_on = Dependency.ROW
        reasons = ReasonTable(name)

        def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
            attempts.append(cycle.attempt)
            full = self.reasons.code(Code.UNSCHEDULABLE, "full")
            return np.array([full if len(cycle.nodes.pods_on(r)) >= pods_max else 0 for r in rows.tolist()], np.uint8)

    domain = Domain(make_node("a"), in_tree=(), plugins=[Counts()])
    domain.nominator.set(make_pod("urgent", spec=URGENT, nominated_node="a"))
    result = domain.schedule(make_pod("p", spec=ONE_CPU, nominated_node="a" if is_promised_too else ""), 7)
    assert isinstance(result, Placed) == (pods_max == 2)
    assert len(attempts) >= 2, "alone and beside the nominated pod"
    assert set(attempts) == {7}


def test_higher_priority_or_nominated_pod_takes_reserved_room() -> None:
    domain = Domain(make_node("a", cpu_milli=1000))
    domain.nominator.set(make_pod("urgent", spec=URGENT, nominated_node="a"))
    above = PodSpec(requests={CPU: 1000}, priority=11)
    for name, spec in (("above", above), ("urgent", URGENT)):
        result = domain.schedule(make_pod(name, spec=spec))
        assert isinstance(result, Placed)
        assert isinstance(domain.cycle.give_up(result, Status.error("only looking")), Unplaced)


@pytest.mark.parametrize(
    ("narrowings", "message"),
    [
        ([{"a"}, {"b"}], "0/2 nodes are available: node(s) didn't satisfy plugin(s) [Only0 Only1] simultaneously."),
        ([set()], "0/2 nodes are available: node(s) didn't satisfy plugin Only0."),
        ([{"a"}], "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't satisfy plugin(s) [Only0]."),
    ],
)
def test_pre_filters_with_too_few_nodes_are_named(narrowings: Sequence[set[str]], message: str) -> None:
    class Only:
        depends_on = Dependency.NODE

        def __init__(self, number: int, names: set[str]) -> None:
            self.name = f"Only{number}"
            self._names = frozenset(names)

        def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
            return PreFilterResult(nodes=self._names)

    plugins = [Only(number, names) for number, names in enumerate(narrowings)]
    domain = Domain(make_node("a", cpu_milli=500), make_node("b"), plugins=plugins)
    result = domain.schedule(make_pod("p", spec=ONE_CPU))

    assert isinstance(result, Unplaced)
    assert result.message == message
    assert result.rejectors >= {p.name for p in plugins}
    assert not result.is_error


def test_unresolvable_pre_filter_is_reported_after_an_unschedulable_one() -> None:
    class Says:
        def __init__(self, name: str, status: Status) -> None:
            self.name = name
            self._status = status

        def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
            return PreFilterResult(self._status)

    no, never = Says("No", Status.unschedulable("not now")), Says("Never", Status.unresolvable("never"))
    result = Domain(make_node("a"), plugins=[no, never]).schedule(make_pod("p"))
    assert isinstance(result, Unplaced)
    assert result.message == "0/1 nodes are available: never."
    assert result.rejectors == {"Never"}


def test_pending_refusal_names_its_plugin() -> None:
    waits = FilterBy("Waits", lambda pod, node: "waits for its claim", code=Code.PENDING)
    result = Domain(make_node("a"), plugins=[waits]).schedule(make_pod("p"))
    assert isinstance(result, Unplaced)
    assert not result.rejectors
    assert result.pending == {"Waits"}


def test_pending_pre_filter_names_its_plugin() -> None:
    class Early:
        name = "Early"

        def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
            return PreFilterResult(Status.pending("waits for its claim"))

    result = Domain(make_node("a"), plugins=[Early()]).schedule(make_pod("p"))
    assert isinstance(result, Unplaced)
    assert (set(result.rejectors), set(result.pending)) == (set(), {"Early"})


def test_post_filter_nominates_and_completes_the_message() -> None:
    seen: dict[str, Status] = {}

    class Preempts:
        name = "Preempts"

        def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
            seen.update({node: refusals.status_of(node) for node in refusals.nodes()})
            return PostFilterResult(Status(SUCCESS.code, "", ("preemption: 1 victim on a.",)), "a")

    domain = Domain(make_node("a", cpu_milli=500), make_node("b", cpu_milli=1000), plugins=[Preempts()])
    domain.nominator.set(make_pod("urgent", spec=URGENT, nominated_node="b"))
    result = domain.schedule(make_pod("p", spec=ONE_CPU))

    assert isinstance(result, Unplaced)
    assert result.nominated_node == "a"
    assert result.message == "0/2 nodes are available: 2 Insufficient cpu. preemption: 1 victim on a."
    unresolvable = Code.UNSCHEDULABLE_AND_UNRESOLVABLE
    assert {n: s.code for n, s in seen.items()} == {"a": unresolvable, "b": Code.UNSCHEDULABLE}


# -- Reserve and Permit ------------------------------------------------------------------------------------------------


def test_refused_reserve_unreserves_in_reverse_and_forgets() -> None:
    calls: list[str] = []
    plugins = [
        Reserves("A", calls),
        Reserves("B", calls, reserve=Status.unschedulable("no volume")),
        Reserves("C", calls),
    ]
    domain = Domain(make_node("a"), plugins=plugins)
    result = domain.schedule(make_pod("p", spec=ONE_CPU))

    assert isinstance(result, Unplaced)
    assert result.message == "0/1 nodes are available: 1 no volume."
    assert result.rejectors == {"B"}
    assert calls == ["reserve A", "reserve B", "unreserve C", "unreserve B", "unreserve A"]
    assert domain.cache.nodes.requested(CPU)[domain.row("a")] == 0
    assert len(domain.cache) == 0


@pytest.mark.parametrize(
    ("status", "message", "rejectors", "pending", "is_error"),
    [
        (Status.unschedulable("too early"), "0/1 nodes are available: 1 too early.", {"Gate"}, set(), False),
        (Status.unresolvable("never"), "0/1 nodes are available: 1 never.", {"Gate"}, set(), False),
        (Status.pending("claim"), "0/1 nodes are available: 1 claim.", set(), {"Gate"}, False),
        (Status.error("broken"), 'running Permit plugin "Gate": broken', set(), set(), True),
    ],
)
def test_a_refused_permit_reads_as_upstream(
    status: Status, message: str, rejectors: set[str], pending: set[str], is_error: bool
) -> None:
    domain = Domain(make_node("a"), plugins=[Reserves("Gate", [], permit=PermitResult(status))])
    result = domain.schedule(make_pod("p"))
    assert isinstance(result, Unplaced)
    assert result.message == message
    assert (set(result.rejectors), set(result.pending)) == (rejectors, pending)
    assert result.is_error is is_error
    assert len(domain.cache) == 0


def test_nomination_of_a_refused_pod_ends_when_the_refusal_is_applied() -> None:
    """Pods that were refused because of it are told then."""
    permit = PermitResult(Status.unschedulable("not today"))
    domain = Domain(make_node("a"), plugins=[Reserves("Gate", [], permit=permit)])
    pod = make_pod("p", spec=ONE_CPU, nominated_node="a")
    domain.nominator.set(pod)
    result = domain.schedule(pod)
    assert isinstance(result, Unplaced)
    assert (result.nominated_node, domain.nominator.node_of(pod.uid)) == ("", "a")


def test_waiting_permits_are_returned_with_timeouts() -> None:
    wait = Status(Code.WAIT)
    plugins = [
        Reserves("A", [], permit=PermitResult(wait, 5.0)),
        Reserves("B", []),
        Reserves("C", [], permit=PermitResult(wait, 7.0)),
    ]
    result = Domain(make_node("a"), plugins=plugins).schedule(make_pod("p"))
    assert isinstance(result, Placed)
    assert result.waits == {"A": 5.0, "C": 7.0}


# -- waiting outside ---------------------------------------------------------------------------------------------------


def test_remote_answer_decides_the_cycle() -> None:
    domain = Domain(make_node("a"), make_node("b"), make_node("c", cpu_milli=500), plugins=[Service()])
    waiting = Waiting.begin(domain, make_pod("p", spec=ONE_CPU))
    assert [one.request for one in waiting.asked] == [["a", "b"]]

    result = waiting.answer({"Service": {"b": 10}})
    assert isinstance(result, Placed)
    assert result.node == "b"
    assert domain.cycle.conflicts.true == domain.cycle.conflicts.false == 0


def test_nominated_node_comes_before_remote_scores() -> None:
    domain = Domain(make_node("a"), make_node("b"), plugins=[Service()])
    pod = make_pod("p", spec=ONE_CPU, nominated_node="a")
    result = Waiting.begin(domain, pod).answer({"Service": {"a": 1, "b": 100}})
    assert isinstance(result, Placed)
    assert result.node == "a"
    other = make_pod("q", spec=ONE_CPU, nominated_node="a")
    result = Waiting.begin(domain, other).answer({"Service": {"b": 1}})
    assert isinstance(result, Placed)
    assert result.node == "b", "the service refuses the other"


def test_remote_scores_are_normalised_over_remaining_nodes() -> None:
    class Ranks(Service):
        def normalize_score(self, cycle: CycleView, pod: Pod, raw: Scores) -> Scores:
            assert pod.name == "p"
            return 100 - raw * 100 // max(1, int(raw.max()))

    domain = Domain(make_node("a"), make_node("b"), make_node("c"), plugins=[Ranks()])
    result = Waiting.begin(domain, make_pod("p")).answer({"Service": {"a": 5_000, "b": 1_000}})
    assert isinstance(result, Placed)
    assert result.node == "b"
    record = domain.cycle.records.read("uid-p")[-1]
    assert record.scores[-1] == ("Service", 1, 80)


def test_post_filter_gets_the_last_rejector_of_a_node() -> None:
    seen: dict[str, Status] = {}

    class Preempts:
        name = "Preempts"

        def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
            seen.update({node: refusals.status_of(node) for node in ("a", "b", "nowhere")})
            return PostFilterResult(Status.unschedulable("nobody goes"))

    domain = Domain(make_node("a", cpu_milli=500), make_node("b"), plugins=[Service(), Preempts()])
    result = Waiting.begin(domain, make_pod("p", spec=ONE_CPU)).answer({"Service": {}})
    assert isinstance(result, Unplaced)
    assert {node: (status.plugin, status.code) for node, status in seen.items()} == {
        "a": ("NodeResourcesFit", Code.UNSCHEDULABLE_AND_UNRESOLVABLE),
        "b": ("Service", Code.UNSCHEDULABLE),
        "nowhere": ("", Code.UNSCHEDULABLE_AND_UNRESOLVABLE),
    }


def test_concurrent_cycles_of_a_class_keep_own_state_and_do_not_overcommit() -> None:
    service = Service()
    domain = Domain(make_node("a", cpu_milli=1000), make_node("b", cpu_milli=2000), plugins=[service])
    pods = [make_pod(f"p{i}", spec=ONE_CPU) for i in range(4)]
    waiting = [Waiting.begin(domain, pod, attempt=7 + i) for i, pod in enumerate(pods)]
    results = [one.answer({"Service": {"a": 100, "b": 0}}) for one in waiting]

    assert [type(r) for r in results] == [Placed, Placed, Placed, Conflicted]
    assert [r.node for r in results if isinstance(r, Placed)] == ["a", "b", "b"]
    assert service.attempts == {("p0", 7), ("p1", 8), ("p2", 9), ("p3", 10)}
    assert domain.cycle.conflicts.true == 3 + 1
    assert domain.cycle.conflicts.false == 1
    assert (domain.cache.nodes.requested(CPU) <= domain.cache.nodes.allocatable(CPU)).all()


def test_changed_row_that_still_fits_is_a_false_conflict() -> None:
    domain = Domain(make_node("a"), plugins=[Service()])
    waiting = Waiting.begin(domain, make_pod("p", spec=ONE_CPU))
    domain.cache.place(make_pod("other", spec=ONE_CPU, node="a"))
    result = waiting.answer({"Service": {"a": 0}})

    assert isinstance(result, Placed)
    assert (domain.cycle.conflicts.true, domain.cycle.conflicts.false) == (0, 1)


def test_room_nominated_during_the_wait_is_not_taken() -> None:
    domain = Domain(make_node("a", cpu_milli=1000), plugins=[Service()])
    waiting = Waiting.begin(domain, make_pod("p", spec=ONE_CPU))
    domain.nominator.set(make_pod("urgent", spec=URGENT, nominated_node="a"))

    assert isinstance(waiting.answer({"Service": {"a": 0}}), Conflicted)
    assert domain.cycle.conflicts.true == 1


def test_earlier_nomination_is_kept_if_its_row_filled_during_the_wait() -> None:
    domain = Domain(make_node("a", cpu_milli=2000), plugins=[Service()])
    domain.nominator.set(make_pod("urgent", spec=URGENT, nominated_node="a"))
    waiting = Waiting.begin(domain, make_pod("p", spec=ONE_CPU))
    domain.cache.place(make_pod("other", spec=PodSpec(requests={CPU: 500}), node="a"))

    assert isinstance(waiting.answer({"Service": {"a": 0}}), Conflicted)
    assert domain.cycle.conflicts.true == 1


def test_node_removed_during_the_wait_is_a_true_conflict() -> None:
    domain = Domain(make_node("a"), plugins=[Service()])
    waiting = Waiting.begin(domain, make_pod("p"))
    domain.cache.remove_node("a")
    assert isinstance(waiting.answer({"Service": {"a": 0}}), Conflicted)
    assert domain.cycle.conflicts.true == 1


def test_remote_answer_of_one_pod_does_not_affect_preemption_of_the_next() -> None:
    """On `free` there is room, so that the service is asked at all; it wants neither pod there."""
    nodes = [make_node("a", cpu_milli=1000), make_node("b", cpu_milli=1000), make_node("free", cpu_milli=2000)]
    domain = Domain(*nodes, in_tree=("NodeResourcesFit", "DefaultPreemption"), plugins=[Service()])
    for node in ("a", "b", "free"):
        domain.cache.place(make_pod(f"low-{node}", cpu_milli=1000, node=node))
    urgent = replace(ONE_CPU, priority=9)

    def displaced_for(name: str, allowed: str) -> tuple[str | None, list[str], str]:
        result = Waiting.begin(domain, make_pod(name, spec=urgent)).answer({"Service": {allowed: 1}})
        assert isinstance(result, Unplaced)
        return result.nominated_node, [victim.name for victim in result.victims], result.message

    said = "0/3 nodes are available: 1 the service says no, 2 Insufficient cpu."
    assert displaced_for("first", "a") == ("a", ["low-a"], said)
    assert displaced_for("second", "b") == ("b", ["low-b"], said)
    unhelpful = f"{said} preemption: 0/3 nodes are available: 3 the service says no."
    assert displaced_for("third", "nowhere") == ("", [], unhelpful)


def test_row_reused_by_another_node_is_not_a_pre_filter_row() -> None:
    class OnlyA:
        name = "OnlyA"
        depends_on = Dependency.NODE

        def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
            return PreFilterResult(nodes=frozenset({"a"}))

    domain = Domain(make_node("a"), plugins=[OnlyA(), Service()])
    waiting = Waiting.begin(domain, make_pod("p"))
    domain.cache.remove_node("a")
    domain.cache.set_node(make_node("b"))
    assert isinstance(waiting.answer({"Service": {"a": 0}}), Conflicted)


def alone_in_zone(app: str = "db") -> PodSpec:
    """A pod that bears no pod of the app in its zone."""
    far = PodAffinityTerm("zone", LabelSelector((Requirement("app", Operator.IN, (app,)),)))
    return PodSpec(pod_affinity=PodAffinity(anti_required=(far,)))


@pytest.mark.parametrize("is_ours", [True, False], ids=["its own rule", "a rule of the pod that came"])
def test_pod_added_during_the_wait_counts_for_its_whole_zone(is_ours: bool) -> None:
    nodes = [make_node(name, labels={"zone": zone}) for name, zone in (("a", "x"), ("b", "x"), ("c", "y"))]
    domain = Domain(*nodes, plugins=[Service()], in_tree=("NodeResourcesFit", "InterPodAffinity"))
    pod = make_pod("p", spec=alone_in_zone() if is_ours else None, labels={"app": "web"})
    waiting = Waiting.begin(domain, pod)
    other = make_pod("q", spec=None if is_ours else alone_in_zone("web"), labels={"app": "db"}, node="b")
    domain.cache.place(other)
    result = waiting.answer({"Service": {"a": 100, "b": 50, "c": 0}})

    assert isinstance(result, Placed)
    assert result.node == "c"
    assert domain.cycle.conflicts.true == 2


def one_per_zone() -> PodSpec:
    """No zone has two pods of the app more than another."""
    web = LabelSelector((Requirement("app", Operator.IN, ("web",)),))
    return PodSpec(spread=(SpreadConstraint(1, "zone", is_hard=True, selector=web),))


@pytest.mark.parametrize("name", ["new", "c"], ids=["a node that came", "a node that changed its zone"])
def test_zone_added_during_the_wait_counts(name: str) -> None:
    """Before it the pod may go to any node, after it to that zone alone, of which the service knows nothing."""
    domain = Domain(
        *(make_node(node, labels={"zone": "x"}) for node in "abc"),
        plugins=[Service()],
        in_tree=("NodeResourcesFit", "PodTopologySpread"),
    )
    domain.cache.place(make_pod("q", labels={"app": "web"}, node="b"))
    waiting = Waiting.begin(domain, make_pod("p", spec=one_per_zone(), labels={"app": "web"}))
    domain.cache.set_node(make_node(name, labels={"zone": "y"}))

    assert isinstance(waiting.answer({"Service": {"a": 100, "b": 50}}), Conflicted)


class Once:
    """Lets pods pass until one of them has been there; before that it has nothing to filter by."""

    name = "Once"
    depends_on = Dependency.ROW_AND_CACHE_KEY
    users: StateKey[int] = StateKey("Once")

    def __init__(self) -> None:
        self.reasons = ReasonTable(self.name)
        self._used = self.reasons.code(Code.UNSCHEDULABLE, "in use")
        self.uses = 0

    def cache_key(self, cycle: CycleView, pod: Pod) -> Hashable | None:
        return self.uses

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        if not self.uses:
            return PreFilterResult(SKIP)
        cycle.state.write(self.users, self.uses)
        return PreFilterResult()

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        return np.full(len(rows), self._used if cycle.state.read(self.users) else 0, np.uint8)

    def sign(self, pod: Pod) -> Hashable:
        return ()


def test_skipped_plugin_stays_skipped_for_its_pod() -> None:
    """While p waits, q makes their class anew, for which the plugin filters now; what p has seen is p's own."""
    once = Once()
    domain = Domain(make_node("a"), plugins=[once, Service()])
    waiting = Waiting.begin(domain, make_pod("p"))
    once.uses = 1
    domain.schedule(make_pod("q"))

    assert isinstance(waiting.answer({"Service": {"a": 0}}), Conflicted)
    assert domain.heard.failures == []


def test_refusal_names_the_rejector_at_decision_time() -> None:
    domain = Domain(make_node("full", cpu_milli=500), make_node("b"), plugins=[Service()])
    waiting = Waiting.begin(domain, make_pod("p", spec=ONE_CPU))
    # Meanwhile the node grows, and another pod of the class renews what is cached: p must still be woken by that growth.
    domain.cache.set_node(make_node("full", version=2))
    other = Waiting.begin(domain, make_pod("q", spec=ONE_CPU))
    result = waiting.answer({"Service": {}})

    assert isinstance(result, Unplaced)
    assert result.rejectors == {"NodeResourcesFit", "Service"}
    assert result.message == "0/2 nodes are available: 1 Insufficient cpu, 1 the service says no."
    assert isinstance(other.answer({"Service": {"full": 0}}), Placed)


def test_missing_remote_answer_fails_the_attempt() -> None:
    domain = Domain(make_node("a"), plugins=[Service()])
    waiting = Waiting.begin(domain, make_pod("p"))
    failure = domain.runner.failure(domain.plugins.remote[0], "Response", "no answer within 1.0 s")
    result = waiting.answer({"Service": failure})

    assert isinstance(result, Unplaced)
    assert result.is_error
    assert "no answer within 1.0 s" in result.message
    assert len(domain.cache) == 0


def test_withheld_row_is_no_candidate_after_a_remote_answer() -> None:
    domain = Domain(make_node("a", cpu_milli=1000), make_node("b"), plugins=[Service(), prefers("a")])
    domain.nominator.set(make_pod("urgent", spec=URGENT, nominated_node="a"))
    waiting = Waiting.begin(domain, make_pod("p", spec=ONE_CPU))
    assert [one.request for one in waiting.asked] == [["b"]]
    result = waiting.answer({"Service": {"a": 100, "b": 0}})
    assert isinstance(result, Placed)
    assert result.node == "b"


# -- plugins that fail -------------------------------------------------------------------------------------------------


def test_pre_filter_without_signature_runs_in_every_attempt() -> None:
    """A quota that is full now may have room at the next attempt, and another team's quota is another answer."""
    full = {"red"}

    class Quota:
        name = "Quota"

        def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
            team = pod.labels["team"]
            return PreFilterResult(Status.unschedulable(f"{team} is full") if team in full else SUCCESS)

    domain = Domain(make_node("a"), plugins=[Quota()])
    red, blue = make_pod("red", labels={"team": "red"}), make_pod("blue", labels={"team": "blue"})
    assert isinstance(domain.schedule(red), Unplaced)
    assert isinstance(domain.schedule(blue), Placed)
    full.clear()
    assert isinstance(domain.schedule(red), Placed)


def test_too_many_pods_is_reported_at_the_pod_limit() -> None:
    domain = Domain(make_node("a", pods=1))
    assert isinstance(domain.schedule(make_pod("p")), Placed)
    result = domain.schedule(make_pod("q"))
    assert isinstance(result, Unplaced)
    assert result.message == "0/1 nodes are available: 1 Too many pods."
    assert domain.cache.nodes.allocatable(PODS)[domain.row("a")] == 1
