"""Attempts that pause: a step evaluates a bounded number of rows, and a search that takes too long ends with a reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
from msgspec.structs import replace

from multisched.cycle import gang_attempt, scheduling_cycle
from multisched.cycle.effort import GIVEN_UP, Effort, RowResults
from multisched.cycle.gang_attempt import TOO_LONG
from multisched.cycle.results import NO_PAUSE, Conflicted, GangResult, Pause, Result, Unplaced
from multisched.framework.node_view import Int64
from multisched.framework.points import QueuedGang, QueuedPod
from multisched.framework.step_budget import UNLIMITED, StepBudget
from multisched.model.cluster_objects import PodDisruptionBudget
from multisched.model.gang import TopologyLevel
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.model.placement import PodAffinity, PodAffinityTerm
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.plugins import disruption_budgets
from multisched.state import pods_by_priority
from multisched.testing.builders import make_node, make_pod
from tests.kit.counted_steps import CountedSteps
from tests.unit.cycle.cycle_kit import Domain, FilterBy
from tests.unit.cycle.preemption.test_preemption import standing

NODES = 12
MEMBERS = 10
FILTER_CALLS_MAX = 8
"""Of one step with one evaluation: the rows of a member's class, and rows that changed since."""

LEVELS = (TopologyLevel("rack"), TopologyLevel("zone"))


def different_members(stuck: str = "") -> Sequence[Pod]:
    """No two of them are of one class; `stuck`: a member that no node takes."""
    pods = [make_pod(f"m{number}", cpu_milli=100 + number, priority=9) for number in range(MEMBERS)]
    return [*pods, make_pod(stuck, cpu_milli=100, priority=9)] if stuck else pods


def crowded(steps: CountedSteps, asked: FilterBy, *, low: int = 0) -> Domain:
    """Twelve nodes in racks and zones; `low`: less important pods on each."""
    nodes = [
        make_node(f"n{at}", cpu_milli=1_000, labels={"rack": f"r{at // 2}", "zone": f"z{at // 6}"})
        for at in range(NODES)
    ]
    domain = Domain(*nodes, in_tree=("NodeResourcesFit", "DefaultPreemption"), plugins=[asked], steps=steps)
    for at in range(NODES):
        for number in range(low):
            domain.cache.place(standing(f"low-{at}-{number}", f"n{at}", cpu=1_000 // low))
    return domain


def by_name() -> FilterBy:
    """A filter that keeps no class: each pod is asked about anew."""
    return FilterBy("Asked", lambda pod, node: "no" if pod.name == "stuck" else "", sign=lambda pod: pod.uid)


def play(domain: Domain, pods: Sequence[Pod], asked: FilterBy, *levels: TopologyLevel) -> tuple[GangResult, list[int]]:
    """The result, and how often the filter was called in each step."""
    members = tuple(QueuedPod(pod, 0.0, 1) for pod in pods)
    gang = QueuedGang(members, {"g": len(pods)}, {pod.uid: "g" for pod in pods}, levels)
    running, calls, answers = domain.cycle.attempt(gang), list[int](), None
    while True:
        domain.steps.begin()
        before = len(asked.asked)
        try:
            paused = next(running) if answers is None else running.send(answers)
        except StopIteration as ended:
            calls.append(len(asked.asked) - before)
            result: GangResult = ended.value
            return result, calls
        assert isinstance(paused, Pause)
        calls.append(len(asked.asked) - before)
        domain.cache.validate()
        answers = NO_PAUSE


@pytest.mark.parametrize("levels", [(), LEVELS], ids=["anywhere", "topology"])
@pytest.mark.parametrize("stuck", ["", "stuck"], ids=["fits", "stuck"])
def test_gang_attempt_evaluates_few_members_between_two_pauses(stuck: str, levels: Sequence[TopologyLevel]) -> None:
    asked = by_name()
    result, calls = play(crowded(CountedSteps(1), asked), different_members(stuck), asked, *levels)
    assert len(result.placed) == (0 if stuck else MEMBERS)
    assert len(calls) > MEMBERS / 2
    assert max(calls) <= FILTER_CALLS_MAX


def test_group_preemption_evaluates_few_members_between_two_pauses() -> None:
    asked = by_name()
    result, calls = play(crowded(CountedSteps(1), asked, low=2), different_members(), asked)
    preemption = result.unplaced[0].preemption
    assert preemption is not None
    assert len(preemption.nominations) == MEMBERS
    assert len(calls) > MEMBERS
    assert max(calls) <= FILTER_CALLS_MAX


def test_gang_attempt_that_takes_too_long_gives_up_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(Effort):
        def __init__(self, budget: StepBudget) -> None:
            super().__init__(budget, pauses_max=3)

    monkeypatch.setattr(gang_attempt, "Effort", Short)
    asked = by_name()
    domain = crowded(CountedSteps(1), asked)
    result, calls = play(domain, different_members(), asked)
    assert len(calls) == 4
    assert not len(domain.cache)
    assert {one.message for one in result.unplaced} == {f"gang g: {TOO_LONG}"}


def test_closed_attempt_leaves_nothing_assumed_and_nominations_as_they_were() -> None:
    asked = by_name()
    domain = crowded(CountedSteps(1), asked)
    pods = different_members()
    domain.nominator.nominate(pods[0], "n3")
    members = tuple(QueuedPod(pod, 0.0, 1) for pod in pods)
    running = domain.cycle.attempt(QueuedGang(members, {"g": len(pods)}, {pod.uid: "g" for pod in pods}))
    domain.steps.begin()
    while not len(domain.cache):
        assert isinstance(next(running), Pause)
        domain.steps.begin()
    running.close()
    assert not len(domain.cache)
    assert domain.nominator.node_of(pods[0].uid) == "n3"
    domain.cache.validate()


# -- one pod that looks for victims ------------------------------------------------------------------------------------

RIVALS = LabelSelector((Requirement("app", Operator.IN, ("rival",)),))


def rivals(steps: StepBudget, *, nodes: int = NODES) -> Domain:
    """Full nodes, each with two less important pods that keep the urgent one away; those on n3 are the least important."""
    hosts = [make_node(f"n{at}", cpu_milli=1_000, labels={"rack": f"r{at}"}) for at in range(nodes)]
    domain = Domain(*hosts, in_tree=("NodeResourcesFit", "InterPodAffinity", "DefaultPreemption"), steps=steps)
    for at in range(nodes):
        for number in range(2):
            domain.cache.place(rival(f"{at}-{number}", f"n{at}", priority=1 if at == 3 else 2))
    return domain


def rival(name: str, node: str, *, priority: int = 2) -> Pod:
    return standing(name, node, cpu=500, priority=priority, labels={"app": "rival"})


def urgent() -> QueuedPod:
    away = PodAffinity(anti_required=(PodAffinityTerm("rack", RIVALS),))
    spec = replace(make_pod("urgent", cpu_milli=100, priority=9).spec, pod_affinity=away)
    return QueuedPod(make_pod("urgent", spec=spec), 0.0, 1)


def search(domain: Domain, during: Callable[[int], object] = lambda pause: None) -> tuple[Result, int]:
    """The result and the number of pauses; `during` is called in each of them, numbered from 1."""
    running, answers, pauses = domain.cycle.attempt(urgent()), None, 0
    while True:
        domain.steps.begin()
        try:
            paused = next(running) if answers is None else running.send(answers)
        except StopIteration as ended:
            return ended.value, pauses
        assert isinstance(paused, Pause)
        answers, pauses = NO_PAUSE, pauses + 1
        during(pauses)


def victims(result: Result) -> list[str]:
    assert isinstance(result, Unplaced), result
    return [] if result.preemption is None else sorted(pod.name for pod in result.preemption.every_victim)


def test_search_for_victims_tests_few_nodes_between_two_pauses_and_finds_the_same() -> None:
    whole, none = search(rivals(UNLIMITED))
    paused, pauses = search(rivals(CountedSteps(1)))
    assert victims(whole) == victims(paused) == ["3-0", "3-1"]
    assert isinstance(whole, Unplaced)
    assert isinstance(paused, Unplaced)
    assert (paused.nominated_node, paused.message) == (whole.nominated_node, whole.message)
    assert none == 0
    assert pauses >= NODES / 2 - 1


def test_search_for_victims_counts_pods_that_came_to_the_best_node_during_a_pause() -> None:
    domain = rivals(CountedSteps(1))

    def during(pause: int) -> None:
        if pause == 4:  # n3 has been tested
            domain.cache.place(rival("late", "n3", priority=9))

    assert victims(search(domain, during)[0]) == ["0-0", "0-1"]


def test_search_for_victims_counts_pods_that_came_to_other_nodes_during_a_pause() -> None:
    domain = rivals(CountedSteps(1))
    domain.cache.set_node(make_node("beside", cpu_milli=500, labels={"rack": "r3"}))

    def during(pause: int) -> None:
        if pause == 5:
            domain.cache.place(rival("late", "beside", priority=9))

    assert victims(search(domain, during)[0]) == ["0-0", "0-1"]


def test_search_for_victims_evicts_no_pod_if_a_node_became_feasible_during_a_pause() -> None:
    domain = rivals(CountedSteps(1))
    result, pauses = search(domain, lambda pause: domain.cache.set_node(make_node("new", cpu_milli=500)))
    assert isinstance(result, Conflicted)
    assert "became feasible" in result.refusal
    assert pauses == 1


def test_search_for_victims_that_takes_too_long_ends_with_what_it_has_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling_cycle, "Effort", partial(Effort, pauses_max=3))
    result, pauses = search(rivals(CountedSteps(1)))
    assert pauses == 3
    assert victims(result) == ["0-0", "0-1"], "n3 has not been tested"


def with_budgets(domain: Domain) -> Domain:
    """A budget for the pods of each node; that of n3 allows no eviction."""
    for at in range(NODES):
        app = LabelSelector((Requirement("app", Operator.IN, (f"a{at}",)),))
        budget = PodDisruptionBudget(
            name=f"b{at}", namespace="default", selector=app, disruptions_allowed=0 if at == 3 else 2
        )
        domain.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, budget)
    return domain


def full(steps: StepBudget) -> Domain:
    """Full nodes, each with two less important pods with labels of their own; those on n3 are the least important."""
    hosts = [make_node(f"n{at}", cpu_milli=1_000) for at in range(NODES)]
    domain = Domain(*hosts, in_tree=("NodeResourcesFit", "DefaultPreemption"), steps=steps)
    for at in range(NODES):
        for number in range(2):
            labels = {"app": f"a{at}", "number": str(number)}
            priority = 1 if at == 3 else 2
            domain.cache.place(standing(f"{at}-{number}", f"n{at}", cpu=500, priority=priority, labels=labels))
    return with_budgets(domain)


@pytest.mark.parametrize("pods_at_once", [2, 6])
def test_first_search_reads_few_pods_between_pauses_and_finds_the_same(
    pods_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, none = search(full(UNLIMITED))
    monkeypatch.setattr(pods_by_priority, "PODS_AT_ONCE", pods_at_once)
    monkeypatch.setattr(disruption_budgets, "LABEL_SETS_AT_ONCE", pods_at_once)
    domain = full(CountedSteps(1))
    written = record_writes(domain, monkeypatch)
    paused, pauses = search(domain, lambda pause: written.append(0))
    assert victims(whole) == victims(paused) == ["0-1"]
    assert none == 0
    assert pauses >= 2 * NODES / pods_at_once
    assert 0 < max(written) <= 2 * pods_at_once
    assert search(domain)[1] == 0, "pods that are known are not read again"


def record_writes(domain: Domain, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The last entry is the number of pods written to columns since that entry was added."""
    written, amounts = [0], pods_by_priority._amounts

    def counted(pods: Sequence[Pod], resource: str) -> Int64:
        written[-1] += len(pods)
        return amounts(pods, resource)

    monkeypatch.setattr(pods_by_priority, "_amounts", counted)
    return written


def test_first_search_that_takes_too_long_is_resumed_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pods_by_priority, "PODS_AT_ONCE", 2)
    monkeypatch.setattr(scheduling_cycle, "Effort", partial(Effort, pauses_max=6))
    domain, found = full(CountedSteps(1)), list[Result]()
    while not found or not victims(found[-1]):
        result, pauses = search(domain)
        assert pauses <= 6
        found.append(result)
    assert len(found) > 1
    first = found[0]
    assert isinstance(first, Unplaced)
    assert GIVEN_UP.message in first.message
    assert victims(found[-1]) == ["0-1"]


def test_search_results_are_separate_per_rule() -> None:
    results = RowResults(Effort(CountedSteps(1_000)))
    first, second = (("Tests", results.begin_search(), 0) for _ in range(2))
    assert results.of(first, 1, lambda: [1]) == [1]
    assert results.of(second, 1, lambda: [2]) == [2]
    assert results.of(first, 1, lambda: [3]) == [1]
